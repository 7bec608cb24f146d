"""Reading from a log's blocks, and lookups in them. ``log`` changes a log."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from vq.errors import Busy, CorruptData, OffsetNotBoundary, PartitionFailed, VqError
from vq.log_lines import get_logger
from vq.message_filter import ALL, Filter
from vq.store.archive.archive import place_of
from vq.store.archive.archive_place import ZipUnreachable
from vq.store.archive.archived_file import NotInMemory
from vq.store.log import lookup
from vq.store.log.block import Block
from vq.store.log.blocks import Blocks
from vq.store.log.log_config import LogState, partition_of
from vq.store.log.log_status import LogStatus
from vq.store.log.lookup import EpochEnd
from vq.store.log.piece import Piece

logger = get_logger(__name__)

NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_EMPTY: Final = memoryview(b"")
#: So many bytes at the end of a log count as in memory: they were written just now.
RECENT_BYTES: Final = 1024 * 1024


class EpochStart(NamedTuple):
    """Where the batches of an epoch begin.

    Attributes:
        epoch: The epoch.
        offset: Of the first of its batches that is kept.
        epoch_before: Of the batch before that; 0: there is none.
    """

    epoch: int
    offset: int
    epoch_before: int


class LogReader:
    """Reads the blocks of one log, within the bounds of its status; one thread only, the log's.

    Attributes:
        on_unreadable: Called with an offset whose bytes could not be read; set it freely.
    """

    __slots__ = ("_blocks", "_epochs", "_status", "_told_unreadable", "on_unreadable")

    def __init__(self, status: LogStatus, blocks: Blocks) -> None:
        self._status = status
        self._blocks = blocks
        # Where the batches of each epoch begin: the newest epoch first, the older ones as needed.
        self._epochs: list[EpochStart] = []
        self.on_unreadable: Callable[[int], None] = lambda offset: None
        self._told_unreadable: set[Path] = set()  # blocks that the log file names already

    def read(self, offset: int, max_bytes: int, limit: int) -> memoryview:
        """Return raw bytes from ``offset`` on, without copying: ``[offset, end)`` of one block.

        Of an archived block they end with its next chunk at the latest.

        ``end`` is the smallest of ``offset + max_bytes``, ``limit``, and the end of the block or
        log. The last record may be cut off. Empty if ``offset`` is the limit or the end. The view
        stays valid whatever happens to the log.

        Args:
            offset: Should be a record boundary; ``check_boundary`` tells.
            max_bytes: Upper bound, >= 1.
            limit: Where readers stop: nothing from there on is returned.

        Raises:
            OffsetOutOfRange: It is not in ``[start_offset, end_offset]``.
            PartitionQuarantined: It lies at or behind the damage.
            PartitionFailed: The medium cannot deliver these bytes.
            NotInMemory: They are archived, and must be fetched first; so it is with all look-ups.
            Busy: The place of the archive cannot be reached.
            ShuttingDown: The log is closed.
        """
        block = self._blocks.active
        if block is None or offset < block.start_offset:
            found = self._block_at(offset)
            if found is None:
                return _EMPTY
            block = found
        block_start = block.start_offset
        end = min(offset + max_bytes, limit, block_start + block.length)
        if end <= offset:
            if offset > self._status.end_offset:
                self._status.check_range(offset)
            return _EMPTY
        try:
            if block.archive is not None:
                end = min(end, block.stop(offset))
            return block.view(offset - block_start, end - offset)
        except OSError as error:
            raise self._read_failed(error, offset) from error

    def cold(self, offset: int, max_bytes: int, limit: int) -> Callable[[], None] | None:
        """Return a function that brings the bytes of a ``read`` into memory; None: no need.

        Call that function on another thread, before the read. The bytes appended last count as in
        memory, without a check.

        Raises:
            NotInMemory: The index is not that tells the epoch of what is read.
            VqError: As ``read``.
        """
        block = self._blocks.active
        if block is None or len(self._blocks) > 1:  # the active one has its index at hand
            self.epoch_before(offset + 1)
        recent = self._status.end_offset - RECENT_BYTES
        if block is not None and offset >= max(block.start_offset, recent):
            return None
        found = self._block_at(offset)
        if found is None:
            return None
        end = min(offset + max_bytes, limit, found.end_offset)
        if end <= offset:
            return None
        try:
            if found.archive is not None:
                end = min(end, found.stop(offset))
            return found.cold(offset - found.start_offset, end - offset)
        except OSError as error:
            raise self._read_failed(error, offset) from error

    def _read_failed(self, error: OSError, offset: int | None = None) -> VqError:
        """Return the error for a failed read at ``offset`` (None: unknown); report the place."""
        directory = self._status.directory
        if error.errno in NO_DESCRIPTOR_ERRNOS:
            return Busy(f"no file descriptor left for {directory}: {error}")
        if isinstance(error, ZipUnreachable):
            return Busy(
                f"offset {offset} of {partition_of(directory)} is in an archive: {error}",
                hint="have the broker reach the place of the archive; then try again",
            )
        block = self._block_of(error) if offset is None else self._blocks.at(offset)
        if block is None:
            logger.error("read failed", partition=partition_of(directory), error=error)
            return PartitionFailed(f"{directory} cannot be read: {error}")
        if offset is None:
            offset = max(block.start_offset, self._status.start_offset)
        if block.path not in self._told_unreadable:
            self._told_unreadable.add(block.path)
            logger.error(
                "read failed",
                partition=partition_of(directory),
                offset=offset,
                file=block.path,
                error=error,
            )
        self.on_unreadable(offset)
        return PartitionFailed(
            f"offset {offset} of {partition_of(directory)} cannot be read: {error}; it lies "
            f"in {block.path}, which holds [{block.start_offset}, {block.end_offset})"
        )

    def _block_of(self, error: OSError) -> Block | None:
        """Return the block whose file an error names."""
        name = str(error.filename)
        return next((block for block in self._blocks if str(block.path) == name), None)

    def _block_at(self, offset: int) -> Block | None:
        """Return the block that holds the byte at ``offset``; None at the very end of the log."""
        self._status.check_range(offset)
        block = self._blocks.at(offset)
        return block if block is not None and offset < block.end_offset else None

    def block_at(self, offset: int) -> Block | None:
        """Return the block that holds the byte at an offset; None: none does."""
        block = self._blocks.at(offset)
        return block if block is not None and offset < block.end_offset else None

    def pieces(self, offset: int, end: int, at_most: int | None = None) -> list[Piece]:
        """Return where the batches that hold the bytes ``[offset, end)`` lie.

        The first piece may begin some batches earlier.

        Args:
            offset: Where to begin.
            end: A batch boundary, at most the end of the log.
            at_most: So many pieces, >= 1; None: all.

        Raises:
            PartitionFailed, ShuttingDown: As ``LogStatus.check_readable``.
        """
        self._status.check_readable()
        found: list[Piece] = []
        blocks = self._blocks
        for number in range(max(0, blocks.index_at(offset)), len(blocks)):
            block = blocks[number]
            if block.start_offset >= end or (at_most is not None and len(found) >= at_most):
                break
            if offset < block.end_offset:
                start = self._batch_start(block, max(offset, block.start_offset))
                piece_end = min(block.end_offset, end)
                archive = block.archive
                place = place_of(archive.url) if archive is not None else ""
                found.append(Piece(block.path, block.start_offset, start, piece_end, place))
        return found

    def _batch_start(self, block: Block, offset: int) -> int:
        """Return the start of a batch not far before ``offset``, or of the block."""
        if offset > block.start_offset:
            try:
                return block.load_index().at_offset(offset).offset
            except (CorruptData, OSError, NotInMemory):  # no index, and none can be made now
                pass
        return block.start_offset

    def check_boundary(self, offset: int) -> None:
        """Check that a record starts at ``offset``, or that the log ends there.

        Raises:
            OffsetNotBoundary: It lies inside a record; ``details["next"]`` is where one starts.
            CorruptData: A batch on the way is damaged.
            OffsetOutOfRange, PartitionQuarantined, PartitionFailed: As ``read``.
        """
        block = self._block_at(offset)
        if block is None:
            return
        try:
            following = lookup.next_boundary(block, offset)
        except OSError as error:
            raise self._read_failed(error, offset) from error
        if following != offset:
            raise OffsetNotBoundary(
                f"offset {offset} lies inside a record; the next one starts at {following}",
                details={"next": following},
            )

    def message_before(self, offset: int, wanted: Filter = ALL) -> int | None:
        """Return the id of the last message that ends at or before a boundary.

        Only those that the filter takes count. None: not known.

        Raises:
            CorruptData: A batch on the way is damaged.
            OffsetOutOfRange, PartitionQuarantined, PartitionFailed: As ``read``.
        """
        self._status.check_range(offset)
        try:
            return lookup.message_before(self._blocks, offset, wanted)
        except OSError as error:
            raise self._read_failed(error) from error

    def offset_at_time(self, time_ms: int) -> int:
        """Return the start of the first batch appended at or after ``time_ms``; the end if none.

        Raises:
            CorruptData: A batch on the way is damaged.
            PartitionFailed: The medium cannot deliver what is needed to tell.
            PartitionQuarantined: Lost blocks may have had it.
        """
        status = self._status
        status.check_range(status.start_offset)
        try:
            found = lookup.offset_at_time(self._blocks, time_ms)
        except OSError as error:
            raise self._read_failed(error) from error
        if found == status.start_offset:  # append times rise: only then earlier ones count, too
            status.check_range(status.promised_start)
        return status.end_offset if found is None else found

    def appended_ms(self, offset: int) -> int | None:
        """Return when the batch at ``offset`` was appended; None: no batch begins there.

        Raises:
            CorruptData: The batch is damaged.
            OffsetOutOfRange, PartitionQuarantined, PartitionFailed: As ``read``.
        """
        block = self._block_at(offset)
        if block is None:
            return None
        try:
            header = block.header_at(offset)
        except OSError as error:
            raise self._read_failed(error, offset) from error
        return header.append_time_ms if header.start_offset == offset else None

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return where the batches up to ``epoch`` end; None: none of them is kept.

        Another copy of the log whose last batch is of ``epoch`` has nothing in common with this one
        behind the offset returned. If this log has no batch of ``epoch`` itself, the answer names
        the last epoch before it, which the other copy looks up in turn (KIP-101, KIP-279).

        *Example*, of a log with batches of epochs 1, 1, 3 at offsets 0, 100, 200, and the end 300:
        epoch 1 ends at 200, 2 is answered with epoch 1 and 200, 3 and later with epoch 3 and 300.

        Raises:
            CorruptData: A batch on the way is damaged.
            NotInMemory: An index is not.
            PartitionFailed: The medium cannot deliver what is needed to tell.
            ShuttingDown: The log is closed.
        """
        status = self._status
        status.check_readable()
        # What is left of a damaged log may end in an earlier epoch than its checkpoint told.
        if epoch >= status.epoch and status.state is not LogState.QUARANTINED:
            return EpochEnd(status.epoch, status.end_offset)
        try:
            return lookup.epoch_end(self._blocks, epoch)
        except OSError as error:
            raise self._read_failed(error) from error

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the batch that has the byte before ``offset``; usually without I/O.

        0: that byte is not kept, or damage or a failing medium hides it.

        Raises:
            NotInMemory: An index that tells it is not.
        """
        status, epochs = self._status, self._epochs
        if not status.start_offset < offset <= status.end_offset:
            return 0
        if status.state is LogState.QUARANTINED:  # ``status.epoch`` may be of what was lost
            return 0
        if epochs and epochs[0].epoch == status.epoch:
            if epochs[0].offset < offset:
                return status.epoch
        else:
            epochs.clear()
        try:
            while not epochs or offset <= epochs[-1].offset:
                epoch = epochs[-1].epoch_before if epochs else status.epoch
                before = lookup.epoch_end(self._blocks, epoch - 1)
                epochs.append(
                    EpochStart(epoch, status.start_offset, 0)
                    if before is None
                    else EpochStart(epoch, before.offset, before.epoch)
                )
        except (CorruptData, OSError):
            return 0
        return next(each.epoch for each in epochs if each.offset < offset)

    def count(self, from_offset: int, to_offset: int) -> tuple[int, bool]:
        """Count the messages that start in ``[from_offset, to_offset)``.

        Returns:
            The count, and whether it is exact. It is not where the range leaves the log, and it is
            0 and not exact where damage or a failing medium hides what the range holds.
        """
        end = self._status.end_offset
        low = min(max(from_offset, self._status.start_offset), end)
        high = max(min(to_offset, end), low)
        exact = low == from_offset and high == max(to_offset, from_offset)
        try:
            counted = self.messages_before(high) - self.messages_before(low)
        except (CorruptData, OSError):
            return 0, False
        return counted, exact

    def messages_before(self, offset: int) -> int:
        """Return how many messages start before ``offset``, counted since the log's first byte.

        Raises:
            CorruptData: A batch on the way is damaged.
            OSError: The medium cannot deliver what is needed to tell.
        """
        if offset == self._status.end_offset:
            return self._status.messages
        return lookup.messages_before(self._blocks, offset, messages_appended=self._status.messages)

    def number_at(self, offset: int) -> int | None:
        """Return the number of the first message that begins at ``offset`` or behind it.

        It is how many messages of the partition begin before the offset, from its first one ever.
        None: not known, since the log does not tell, or damage or a failing medium hides it.

        Raises:
            NotInMemory: An index that tells it is not.
            OffsetOutOfRange, PartitionQuarantined, PartitionFailed: As ``read``.
        """
        self._status.check_range(offset)
        first = self._status.first_number
        try:
            return None if first is None else first + self.messages_before(offset)
        except NotInMemory:
            raise
        except (CorruptData, OSError):
            return None

    def offset_at_number(self, number: int) -> int | None:
        """Return where the first message begins whose number is ``number`` or higher.

        The end of the log if there is none. None: not known, as with ``number_at``.

        Raises:
            NotInMemory, PartitionQuarantined, PartitionFailed: As ``number_at``.
        """
        status = self._status
        status.check_range(status.start_offset)
        if status.first_number is None:
            return None
        messages = number - status.first_number
        if messages < status.start_messages:
            status.check_range(status.promised_start)
        if max(messages, status.start_messages) >= status.messages:
            status.check_range(status.end_offset)
            return status.end_offset
        try:
            return lookup.offset_of(self._blocks, messages, messages_appended=status.messages)
        except NotInMemory:
            raise
        except (CorruptData, OSError):
            return None
