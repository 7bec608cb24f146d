"""The end of a log: the block that takes appends, and the next one.

In here: where the next batch goes, when a block ends and another begins, and what a write that
failed leaves. Not in here: what may be appended (``log``), and when it is durable (``flushing``).
"""

from collections.abc import Callable

from vq.errors import (
    Busy,
    DiskFull,
    PartitionFailed,
    PartitionReadOnly,
    StorageFailed,
    VqError,
)
from vq.store.disk.disk import Buffer, Disk
from vq.store.log.block import FULL_ERRNOS, Block, BlockCache
from vq.store.log.block_facts import BlockFacts
from vq.store.log.blocks import Blocks
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.flushing import Flushing
from vq.store.log.log_config import LogConfig
from vq.store.log.log_reader import NO_DESCRIPTOR_ERRNOS
from vq.store.log.log_status import LogStatus
from vq.store.log.manifest import ManifestEntry
from vq.store.log.recovered import Recovered
from vq.store.records.format import CHECKPOINT_NAME, OFFSET_MAX
from vq.store.records.offset_index import OffsetIndex


class LogTail:
    """Writes at the end of a log. One thread only, the log's.

    Args:
        recovered: What opening found.
        status: Of the log; each write moves its end.
        blocks: Of the log.
        flushing: Is told what is not durable.
        config: Sizes.
        disk: The disk.
        cache: Bounds the open files.
        make_first_checkpoint: Returns the checkpoint of a log with a first block, which is to
            follow.

    Attributes:
        rolled: The next append begins a new block; the log sets it when it archives the last one.
        has_directory: Whether the log's directory was made.
    """

    def __init__(
        self,
        recovered: Recovered,
        *,
        status: LogStatus,
        blocks: Blocks,
        flushing: Flushing,
        config: LogConfig,
        disk: Disk,
        cache: BlockCache,
        make_first_checkpoint: Callable[[ManifestEntry], Checkpoint],
    ) -> None:
        self._status = status
        self._blocks = blocks
        self._flushing = flushing
        self._config = config
        self._disk = disk
        self._cache = cache
        self._make_first_checkpoint = make_first_checkpoint
        self._directory = status.directory
        self.rolled = bool(recovered.blocks) and recovered.blocks[-1].is_archived
        self.has_directory = recovered.has_checkpoint or bool(recovered.blocks)

    def make_directory(self) -> None:
        """Make the log's directory, durably."""
        for parent in self._disk.mkdir(self._directory):
            self._disk.sync_directory(parent)
        self.has_directory = True

    def roll(self) -> None:
        """End the block that takes appends, if it has any.

        Raises:
            DiskFull, Busy, PartitionFailed: An I/O error.
        """
        block = self._blocks.active or self._adopt_last()
        if block is not None and block.length:
            try:
                self._end_block(block)
            except OSError as error:
                raise self._allocation_failed(error) from error

    def write(
        self, framed: tuple[Buffer, ...], size: int, record_count: int, time_ms: int, epoch: int
    ) -> None:
        """Write a framed batch of ``size`` bytes at the log's end, and count it."""
        status = self._status
        block = self._blocks.active
        if (
            block is None
            or (end := block.length + size) > block.allocated
            or end > self._config.block_bytes
        ):
            block = self._block_for(size)
        length = block.length
        try:
            file = block.file
            if file is None:
                file = block.open()
                self._cache.trim(block)
            file.pwrite(framed, length)
        except OSError as error:
            raise self._append_failed(block, error) from error
        start = status.end_offset
        index = block.index
        assert index is not None
        index.maybe_add(start, block.messages, time_ms)
        flushing = self._flushing
        if block.synced_length == length:
            flushing.note_dirty(block)
        flushing.batches += 1
        block.length = length + size
        block.messages += record_count
        status.end_offset = start + size
        status.messages += record_count
        status.epoch = epoch
        status.append_time_ms = time_ms

    def _block_for(self, size: int) -> Block:
        """Return the block for the next batch, with space for it; may begin a new block."""
        if self._status.end_offset + size > OFFSET_MAX:
            raise PartitionReadOnly(f"offset {OFFSET_MAX} is the last one a partition can have")
        config = self._config
        block = self._blocks.active or self._adopt_last()
        try:
            if block is not None and block.length and block.length + size > config.block_bytes:
                self._end_block(block)
                block = None
            if block is None:
                block = self._begin_block()
            needed = block.length + size
            if needed > block.allocated:
                step = min(max(config.allocate_bytes_min, block.length), config.allocate_bytes_max)
                wish = min(block.allocated + step, config.block_bytes)
                block.allocate(needed, wish)
        except OSError as error:
            raise self._allocation_failed(error) from error
        self._blocks.active = block
        self._cache.trim(block)
        return block

    def _adopt_last(self) -> Block | None:
        """Return the last block, ready for appends again; None if the next one must be new."""
        block = self._blocks.last
        if block is None or self.rolled:
            return None
        assert block.index is not None, "a start verifies the last block, and keeps its index"
        block.index_saved = False
        self._flushing.keep_index(block)
        return block

    def _begin_block(self) -> Block:
        disk, start = self._disk, self._status.end_offset
        if not self._blocks:
            # The parent even if the directory is there: a process killed in between may have left
            # it in the page cache only.
            self._flushing.new_names += [*disk.mkdir(self._directory), self._directory.parent]
            self.has_directory = True
        block = Block(self._directory, start, disk=disk, cache=self._cache)
        # A file of this name is what an earlier try left when the disk was full.
        block.allocated = block.open(create=not disk.exists(block.path)).size()
        block.messages = 0
        block.index = OffsetIndex(start, messages_before=self._status.messages)
        block.index_saved = False
        self._flushing.new_names.append(self._directory)
        if not self._blocks:
            try:
                self._name_first(block)
            except OSError:
                block.close()
                raise
        self._blocks.append(block)
        self.rolled = False
        return block

    def _name_first(self, block: Block) -> None:
        """Have a manifest name the log's first block before anybody relies on it.

        A log's first checkpoint is not written beside the blocks and renamed, but lies in the page
        cache until the flush that makes the block durable: many logs may begin at the same moment.
        It vouches for no byte, so it may be torn; its name comes behind the block's.
        """
        path = self._directory / CHECKPOINT_NAME
        if self._disk.exists(path):
            self._flushing.checkpoint_wanted = True
            return
        checkpoint = self._make_first_checkpoint(ManifestEntry(block.start_offset))
        file = self._disk.open(path, create=True)
        try:
            file.pwrite([checkpoint.to_bytes()], 0)
        finally:
            file.close()
        self._flushing.first_checkpoint = path

    def _end_block(self, block: Block) -> None:
        """End appends to a block: free its unused space, and have its index saved."""
        self._blocks.active = None
        block.cut_allocation()
        block.facts = BlockFacts(self._status.append_time_ms, block.messages)
        self._flushing.note_ended(block)
        self.rolled = True

    def _allocation_failed(self, error: OSError) -> VqError:
        """Return the error for a failed allocation; the log stays usable if the cause may pass."""
        if error.errno in FULL_ERRNOS:
            return DiskFull(f"no space for a batch in {self._directory}: {error}")
        if error.errno in NO_DESCRIPTOR_ERRNOS:
            return Busy(f"no file descriptor left for {self._directory}: {error}")
        self._status.fail(error)
        return PartitionFailed(self._status.reason)

    def _append_failed(self, block: Block, error: OSError) -> VqError:
        """Return the error for a failed write; a full disk leaves the log usable, cut back."""
        if error.errno in NO_DESCRIPTOR_ERRNOS:
            return Busy(f"no file descriptor left for {self._directory}: {error}")
        if error.errno in FULL_ERRNOS:
            try:
                file = block.open()
                file.truncate(block.length)
                block.allocated = block.length
                # A power cut must not bring back what is refused here: its bytes may be whole
                # already, where the missing ones are zeros like those of allocated space.
                file.datasync()
            except OSError as second:
                error = second
            else:
                return DiskFull(f"no space for a batch in {self._directory}: {error}")
        self._status.fail(error)
        return StorageFailed(f"a write to {self._directory} failed: {error}")
