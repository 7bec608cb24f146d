"""The log of one partition: append, read, flush, and the few questions asked about it.

Belongs here: the life of an open log. Opening after a crash is ``recovery``, one file is ``block``,
bytes are ``format``. Who may append, who waits for a flush and when one is due is the broker's.

Threads: every method is called on one thread (the broker's event loop), except ``SyncTicket.run``,
which the flusher thread calls. Nothing here locks: what a ticket needs was copied into it.
"""

import logging
import struct
from pathlib import Path
from typing import Final

from vq import limits
from vq.clock import Clock
from vq.errors import (
    BatchTooLarge,
    Busy,
    CorruptData,
    DiskFull,
    InvalidRequest,
    InvalidState,
    NotMaster,
    PartitionFailed,
    PartitionReadOnly,
    StorageFailed,
    VqError,
)
from vq.model import ProducerStamp
from vq.store.begun import Beginning
from vq.store.block import FULL_ERRNOS, Block, BlockCache
from vq.store.blocks import Blocks
from vq.store.checkpoint import Checkpoint
from vq.store.disk import Buffer, Disk
from vq.store.format import (
    BATCH_ON_DISK_BYTES_MAX,
    CHECKPOINT_NAME,
    CONTROL_BYTES,
    OFFSET_MAX,
    pack_control,
)
from vq.store.log_config import LogConfig, LogState, partition_of
from vq.store.log_reader import NO_DESCRIPTOR_ERRNOS, LogReader
from vq.store.manifest import ManifestEntry
from vq.store.offset_index import OffsetIndex
from vq.store.recovery import Case, Recovered, RecoveryReport, recover
from vq.store.ticket import SyncTicket

__all__ = ["Log", "LogConfig", "LogState", "SyncTicket"]

logger = logging.getLogger(__name__)

_NO_STAMP: Final = ProducerStamp(0, 0, 0)


class Log(LogReader):
    """One partition's log on this node, opened by ``Log.open``.

    Attributes (read them freely, do not set them):
        start_offset: The oldest byte kept.
        end_offset: Where the next batch goes. Invariant: ``start <= synced <= end``.
        synced_offset: Everything before it is durable.
        epoch: Master epoch of the last batch.
        producers: Who wrote which batches last.
        state, reason: Whether it takes appends; if not, why.
        messages_appended: Messages since the log's first byte, control records not counted.
        messages_synced: How many of these are durable.
        recovery: What opening found.
        on_unreadable: Called with an offset whose bytes could not be read; set it freely.
        beginning: Noted with the flush of the first batch; set it on a log that is new.
    """

    def __init__(
        self,
        directory: Path,
        recovered: Recovered,
        *,
        topic_id: str,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        cache: BlockCache,
    ) -> None:
        """Use ``Log.open``."""
        self.directory = directory
        self.topic_id = topic_id
        self.config = config
        self.start_offset = recovered.start_offset
        self.end_offset = self.synced_offset = recovered.end_offset
        self.epoch = recovered.facts.epoch
        self.producers = recovered.facts.producers
        self.messages_appended = self.messages_synced = recovered.facts.messages
        self.recovery: RecoveryReport = recovered.report
        self.state = LogState.OK
        self.reason = ""
        self._disk = disk
        self._wall_ms = clock.wall_ms
        self._cache = cache
        self._blocks = Blocks(recovered.blocks)
        self._start_messages = recovered.start_messages
        self._append_time_ms = recovered.facts.append_time_ms
        self._active: Block | None = None  # the last block, while it takes appends
        self._dirty: list[Block] = []  # blocks with bytes that are not durable yet
        self._new_names: list[Path] = []  # directories with names that are not durable yet
        self._ticket: SyncTicket | None = None
        self._bytes_since_checkpoint = recovered.facts.verified_bytes
        self._batches_since_checkpoint = recovered.facts.batches
        # Whatever the sizes say; until it is written, a first block that is lost is not missed.
        self._checkpoint_wanted = bool(recovered.dropped) or recovered.unnamed
        self._unsaved = [b for b in recovered.blocks[:-1] if not b.index_saved]  # closed blocks
        self._first_checkpoint: Path | None = None  # written, and to be made durable
        self._doomed = recovered.dropped  # files of blocks that were dropped
        self._rolled = False  # the next append begins a new block
        self._has_directory = recovered.has_checkpoint or bool(recovered.blocks)
        self._block_bytes = config.block_bytes
        self._unreadable = False
        self._told_unreadable = set()
        self.on_unreadable = lambda offset: None
        self.beginning: Beginning | None = None
        self._stopped = False  # appends are refused
        if recovered.quarantine:
            self._stop(LogState.QUARANTINED, recovered.quarantine)
        elif recovered.sealed:
            self._stop(LogState.SEALED, "its span ended here")

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic_id: str,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        start_offset: int = 0,
        producers: bytes = b"",
        begun_at: int | None = None,
        cache: BlockCache | None = None,
    ) -> "Log":
        """Open the log in ``directory``, which need not exist, and recover it.

        A log nobody ever appended to has no file, no descriptor and no directory. After an I/O
        error the log is returned in state FAILED; it answers every call with ``PartitionFailed``.

        Args:
            directory: The partition's directory.
            topic_id: Id of the topic; a directory of another one is refused.
            config: Sizes.
            disk: Where.
            clock: For append times.
            start_offset: Where a new log begins (a partition that moved here).
            producers: Producer table of a new log, as ``ProducerTable.to_bytes`` gave it.
            begun_at: The first offset of the log that is known to have been here, if one is.
            cache: Bounds the files open at once; give one to all logs of a node.

        Raises:
            DirectoryRefused: It belongs to another topic.
            CorruptData: ``producers`` is no producer table.
            DiskFull: There is no space for what opening writes; it may be tried again.
        """
        cache = BlockCache(16) if cache is None else cache
        try:
            recovered = recover(
                directory,
                topic_id=topic_id,
                disk=disk,
                cache=cache,
                start_offset=start_offset,
                producers=producers,
                begun_at=begun_at,
            )
            failure = None
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise DiskFull(f"no space to open the log in {directory}: {error}") from error
            failure = error
            recovered = Recovered.failed(start_offset)
        log = cls(
            directory,
            recovered,
            topic_id=topic_id,
            config=config,
            disk=disk,
            clock=clock,
            cache=cache,
        )
        if failure is not None:
            log.fail(failure)
            log._unreadable = True
        elif recovered.report.case is Case.NEW and (start_offset or producers):
            log._found()
        return log

    def _found(self) -> None:
        """Make durable where a new log begins, for it cannot be told from an empty directory."""
        try:
            self._make_directory()
            self._disk.write_atomic(
                self.directory / CHECKPOINT_NAME, self._make_checkpoint().to_bytes()
            )
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise DiskFull(f"no space to make a log in {self.directory}: {error}") from error
            self.fail(error)

    def _make_directory(self) -> None:
        for parent in self._disk.mkdir(self.directory):
            self._disk.sync_directory(parent)
        self._has_directory = True

    @property
    def size_bytes(self) -> int:
        """Bytes of the log from its start to its end."""
        return self.end_offset - self.start_offset

    @property
    def messages(self) -> int:
        """Messages in the log, control records not counted."""
        return self.messages_appended - self._start_messages

    @property
    def unsynced_messages(self) -> int:
        """Messages appended that are not known to be durable."""
        return self.messages_appended - self.messages_synced

    @property
    def last_append_time_ms(self) -> int:
        """Append time of the last batch; 0 if there never was one."""
        return self._append_time_ms

    # Appending ------------------------------------------------------------------------------------
    def append(
        self,
        records: Buffer,
        *,
        record_count: int,
        records_crc: int,
        epoch: int,
        stamp: ProducerStamp | None = None,
        transaction_id: int = 0,
    ) -> int:
        """Append one batch; return its start offset (the first record is ``CONTROL_BYTES`` on).

        On return the bytes are in the page cache and can be read; they are durable once
        ``synced_offset`` is beyond the offset returned. Nothing is verified: the caller has
        checked CRC and records. ``records`` is not kept.

        Args:
            records: Whole records, back to back.
            record_count: How many.
            records_crc: Their CRC-32C.
            epoch: Epoch of the master that appends; not smaller than that of the last batch.
            stamp: Producer id, epoch and sequence, for recognising a resend.
            transaction_id: 0 for none.

        Raises:
            PartitionReadOnly, PartitionFailed, PartitionQuarantined: The state forbids it.
            NotMaster: A newer master has appended here.
            BatchTooLarge: More than a batch may have.
            DiskFull: Nothing was stored; a later append may succeed.
            Busy: No file descriptor is left; nothing was stored.
            StorageFailed: An I/O error; whether it is stored is unknown, and the log has failed.
        """
        if self._stopped:
            raise self._refusal()
        if epoch < self.epoch:
            raise NotMaster(f"epoch {epoch} is over: epoch {self.epoch} has appended here")
        size = len(records) + CONTROL_BYTES
        block = self._active
        if (
            block is None
            or block.length + size > block.allocated
            or block.length + size > self._block_bytes
            or size > BATCH_ON_DISK_BYTES_MAX
        ):
            block = self._make_room(size)
        start = self.end_offset
        now = self._wall_ms()
        if now < self._append_time_ms:
            now = self._append_time_ms
        producer_id, producer_epoch, sequence = stamp or _NO_STAMP
        try:
            control = pack_control(
                start,
                size,
                record_count,
                now,
                epoch,
                self.synced_offset,
                producer_id,
                producer_epoch,
                sequence,
                transaction_id,
                records_crc,
            )
        except struct.error as error:
            raise InvalidRequest(f"{stamp} does not fit a batch header: {error}") from error
        length = block.length
        try:
            file = block.file
            if file is None:
                file = block.open()
                self._cache.trim(block)
            file.pwrite((control, records), length)
        except OSError as error:
            raise self._append_failed(block, error) from error
        index = block.index
        assert index is not None
        index.maybe_add(start, block.messages, now)
        if block.synced_length == length and block not in self._dirty:
            self._dirty.append(block)
            self._cache.pin(block)
        block.length = length + size
        block.messages += record_count
        self.end_offset = start + size
        self.messages_appended += record_count
        self.epoch = epoch
        self._append_time_ms = now
        self._bytes_since_checkpoint += size
        self._batches_since_checkpoint += 1
        if producer_id and stamp is not None:
            self.producers.record(stamp, start)
        return start

    def _make_room(self, size: int) -> Block:
        """Return the block that takes the next batch, with space for it; may begin a new one."""
        if size > BATCH_ON_DISK_BYTES_MAX:
            raise BatchTooLarge(
                f"batch of {size - CONTROL_BYTES} bytes; at most {limits.BATCH_BYTES_MAX} bytes"
            )
        if self.end_offset + size > OFFSET_MAX:
            raise PartitionReadOnly(f"offset {OFFSET_MAX} is the last one a partition can have")
        config = self.config
        block = self._active or self._adopt_last()
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
            raise self._room_failed(error) from error
        self._active = block
        self._cache.trim(block)
        return block

    def _adopt_last(self) -> Block | None:
        """Return the last block, ready for appends again; None if the next one must be new."""
        block = self._blocks.last
        if block is None or self._rolled:
            return None
        if block.index is None:
            try:
                block.load_index().messages_before = self.messages_appended - block.messages
            except OSError as error:
                raise self._room_failed(error) from error
            except CorruptData as error:
                self.fail(error)
                raise self._refusal() from error
        block.index_saved = False
        self._unsaved = [other for other in self._unsaved if other is not block]
        return block

    def _begin_block(self) -> Block:
        disk, start = self._disk, self.end_offset
        if not self._blocks:
            # The parent even if the directory is there: a process killed in between may have left
            # it in the page cache only.
            self._new_names += [*disk.mkdir(self.directory), self.directory.parent]
            self._has_directory = True
        block = Block(self.directory, start, disk=disk, cache=self._cache)
        # A file of this name is what an earlier try left when the disk was full.
        block.allocated = block.open(create=not disk.exists(block.path)).size()
        block.messages = 0
        block.index = OffsetIndex(start, messages_before=self.messages_appended)
        block.index_saved = False
        self._new_names.append(self.directory)
        if not self._blocks:
            try:
                self._name_first(block)
            except OSError:
                block.close()
                raise
        self._blocks.append(block)
        self._rolled = False
        return block

    def _name_first(self, block: Block) -> None:
        """Have a manifest name the log's first block before anybody relies on it.

        A log's first checkpoint is not written beside the blocks and renamed, but lies in the page
        cache until the flush that makes the block durable: many logs may begin at the same moment.
        It vouches for no byte, so it may be torn; its name comes behind the block's.
        """
        path = self.directory / CHECKPOINT_NAME
        if self._disk.exists(path):
            self._checkpoint_wanted = True
            return
        file = self._disk.open(path, create=True)
        try:
            file.pwrite([self._make_checkpoint(ManifestEntry(block.start_offset)).to_bytes()], 0)
        finally:
            file.close()
        self._first_checkpoint = path

    def _end_block(self, block: Block) -> None:
        """No appends to it any more: its unused space goes back, its index is to be saved."""
        self._active = None
        block.cut_allocation()
        self._unsaved.append(block)
        self._rolled = self._checkpoint_wanted = True

    def _room_failed(self, error: OSError) -> VqError:
        """Return what to raise when there is no room; the log stays usable if that may pass."""
        if error.errno in FULL_ERRNOS:
            return DiskFull(f"no space for a batch in {self.directory}: {error}")
        if error.errno in NO_DESCRIPTOR_ERRNOS:
            return Busy(f"no file descriptor left for {self.directory}: {error}")
        self.fail(error)
        return PartitionFailed(self.reason)

    def _append_failed(self, block: Block, error: OSError) -> VqError:
        """Return what to raise after a failed write; a full disk is cut back and survived."""
        if error.errno in NO_DESCRIPTOR_ERRNOS:
            return Busy(f"no file descriptor left for {self.directory}: {error}")
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
                return DiskFull(f"no space for a batch in {self.directory}: {error}")
        self.fail(error)
        return StorageFailed(f"a write to {self.directory} failed: {error}")

    # Flushing -------------------------------------------------------------------------------------
    def begin_sync(self) -> SyncTicket | None:
        """Return a ticket for all that was appended so far; None if there is nothing to do.

        At most one ticket is out: until it came back through ``finish_sync``, this returns None.
        Cheap, except that every 64 MiB the checkpoint is put together here (and written by the
        ticket).
        """
        if self._ticket is not None or not (self._dirty or self._checkpoint_wanted):
            return None
        if self.state not in (LogState.OK, LogState.SEALED):
            return None
        ticket = SyncTicket(
            directory=self.directory,
            disk=self._disk,
            offset=self.end_offset,
            messages=self.messages_appended,
        )
        for block in self._dirty:
            assert block.file is not None, "a dirty block is never closed"
            ticket.add(block, block.file)
        if self._dirty:
            ticket.beginning, self.beginning = self.beginning, None
        ticket.first_checkpoint, self._first_checkpoint = self._first_checkpoint, None
        if self._new_names:
            ticket.directories = list(dict.fromkeys(reversed(self._new_names)))
            self._new_names = []
        if (
            self._checkpoint_wanted
            or self._bytes_since_checkpoint >= self.config.checkpoint_bytes
            or self._batches_since_checkpoint >= self.config.checkpoint_batches
        ):
            self._add_checkpoint(ticket)
        self._ticket = ticket
        return ticket

    def _add_checkpoint(self, ticket: SyncTicket) -> None:
        ticket.indexes = [(block, block.index_bytes()) for block in self._unsaved]
        ticket.checkpoint = self._make_checkpoint()
        ticket.doomed, self._doomed = self._doomed, []
        ticket.log_is_empty = not self._blocks
        self._checkpoint_wanted = False
        self._bytes_since_checkpoint = self._batches_since_checkpoint = 0

    def finish_sync(self, ticket: SyncTicket) -> None:
        """Take back a ticket whose ``run`` returned: ``synced_offset`` moves to its offset.

        Raises:
            InvalidState: It is not the ticket that is out.
        """
        self._take_back(ticket)
        self._cache.trim()

    def _take_back(self, ticket: SyncTicket) -> None:
        if ticket is not self._ticket:
            raise InvalidState("this ticket is not the one in flight")
        self._ticket = None
        if self.state not in (LogState.OK, LogState.SEALED):
            return
        self.synced_offset = ticket.offset
        self.messages_synced = ticket.messages
        for block, length, allocated in ticket.blocks:
            block.synced_length = length
            block.synced_allocated = allocated
            if block.length == length:
                block.cache.unpin(block)
        self._dirty = [block for block in self._dirty if block.dirty]
        if ticket.checkpoint_written:
            for block, _ in ticket.indexes:
                block.index_saved = block is not self._active
            self._unsaved = [block for block in self._unsaved if not block.index_saved]
        self._doomed += ticket.doomed

    def fail(self, error: BaseException) -> None:
        """End writing for good after an I/O error; what is not known to be durable is unknown.

        Reading goes on. The files are not written again, not even to close the log properly: only
        a new start, which reads what the medium really holds, can tell what is stored.
        """
        if self.state in (LogState.OK, LogState.SEALED):
            logger.error("[partition=%s] writing ends: %s", partition_of(self.directory), error)
            self._stop(LogState.FAILED, f"{type(error).__name__}: {error}")

    def _stop(self, state: LogState, reason: str) -> None:
        self.state, self.reason, self._stopped = state, reason, True

    def _make_checkpoint(self, first: ManifestEntry | None = None) -> Checkpoint:
        """Return a checkpoint that is true once everything appended so far is durable.

        ``first`` is the place of bytes that are to follow.
        """
        last = self._blocks.last
        manifest = [ManifestEntry(block.start_offset) for block in self._blocks if block.length]
        return Checkpoint(
            topic_id=self.topic_id,
            start_offset=self.start_offset,
            offset=self.end_offset,
            start_messages=self._start_messages,
            messages=self.messages_appended,
            append_time_ms=self._append_time_ms,
            epoch=self.epoch,
            sealed=self.state is LogState.SEALED,
            index=last.index_bytes() if last is not None and last.index is not None else b"",
            producers=self.producers.to_bytes(),
            manifest=(*manifest, first) if first is not None else tuple(manifest),
        )

    # Retention, sealing, closing ------------------------------------------------------------------
    def roll(self) -> None:
        """End the block that takes appends, so that retention may drop it; the next one is new.

        Rolling again before the next append does nothing.

        Raises:
            PartitionFailed: An I/O error.
        """
        if self._stopped:
            return
        block = self._active or self._adopt_last()
        if block is not None and block.length:
            try:
                self._end_block(block)
            except OSError as error:
                raise self._room_failed(error) from error

    def drop_before(self, offset: int) -> int:
        """Drop the blocks that end at or before ``offset``; return how many bytes that frees.

        Whole durable blocks only, and not the one that takes appends (``roll`` ends it). The log's
        start moves at once; the files go with the next ``begin_sync`` ticket. A crash before that
        brings them back.

        Raises:
            PartitionFailed: The log has failed, or an index it needs cannot be read.
        """
        if self.state not in (LogState.OK, LogState.SEALED):
            raise self._refusal()
        blocks = self._blocks
        bound = min(offset, self.synced_offset)
        freed = 0
        while len(blocks) and blocks[0].length and blocks[0].end_offset <= bound:
            block = blocks[0]
            if block is self._active or (len(blocks) == 1 and not self._rolled):
                break
            try:
                before = self._messages_before(block.end_offset)
            except (CorruptData, OSError) as error:
                raise PartitionFailed(f"retention in {self.directory} failed: {error}") from error
            blocks.drop_first()
            block.close()
            self._unsaved = [other for other in self._unsaved if other is not block]
            self._doomed.append(block.path)
            self.start_offset, self._start_messages = block.end_offset, before
            self._checkpoint_wanted = True
            freed += block.length
        return freed

    def seal(self) -> int:
        """Refuse appends from now on; return the end offset. Lasts once the next ticket was run."""
        if self.state is LogState.OK:
            self._stop(LogState.SEALED, "its span ended here")
            self._checkpoint_wanted = self._has_directory
        return self.end_offset

    def save_seal(self) -> None:
        """Make the seal durable now. Blocks; nothing may be dirty and no ticket out.

        Raises:
            StorageFailed: It may not be durable.
        """
        try:
            if not self._has_directory:
                self._make_directory()
            self._checkpoint_wanted = True
            ticket = self._sync_now()
            if ticket is None or not ticket.checkpoint_written:
                raise StorageFailed(f"the seal of {self.directory} was not written; seal it again")
        except OSError as error:
            self.fail(error)
            raise StorageFailed(f"sealing {self.directory} failed: {error}") from error

    def unseal(self) -> None:
        """Take appends again, after a move that did not happen."""
        if self.state is LogState.SEALED:
            self.state, self.reason, self._stopped = LogState.OK, "", False
            self._checkpoint_wanted = self._has_directory

    def close(self) -> None:
        """Make everything durable, write a checkpoint and give all files back. May be repeated.

        Blocks for a few fdatasyncs if anything happened since the last checkpoint. No ticket may be
        running. A failed or quarantined log only gives its files back.

        Raises:
            InvalidState: A ticket is out.
            StorageFailed: What was not durable before may be lost; the files are given back.
        """
        if self.state is LogState.CLOSED:
            return
        if self._ticket is not None and self.state is not LogState.FAILED:
            raise InvalidState(f"{self.directory}: a flush is running; wait for it, then close")
        own = BlockCache()  # this may run on another thread than the rest
        for block in self._blocks:
            self._cache.give(block, own)
        try:
            if self.state in (LogState.OK, LogState.SEALED):
                self._close_properly()
        except OSError as error:
            self.fail(error)
            raise StorageFailed(f"closing {self.directory} failed: {error}") from error
        finally:
            own.close_all()
            self._active = None
            self._unreadable = True
            self._stop(LogState.CLOSED, "the log is closed")

    def _close_properly(self) -> None:
        last = self._blocks.last
        if last is not None and self._bytes_since_checkpoint:
            self._checkpoint_wanted = True
        if not self._checkpoint_wanted:
            if last is not None and last is self._active:
                last.cut_allocation()
            return
        if last is not None:
            last.cut_allocation()
        self._sync_now()

    def _sync_now(self) -> SyncTicket | None:
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self._take_back(ticket)
        return ticket
