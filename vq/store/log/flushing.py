"""What of one log is not durable yet, and the flush that is under way.

In here: which blocks, names, indexes and dropped files the next ticket makes durable, when a
checkpoint is due, and what a finished ticket proves. The flush itself is ``ticket``; what is
appended, rolled and dropped is decided in ``log``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from vq.errors import InvalidState
from vq.store.disk.disk import Disk
from vq.store.log.begun import Beginning
from vq.store.log.block import Block, BlockCache
from vq.store.log.blocks import Blocks
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.log_config import LogConfig, LogState
from vq.store.log.log_status import LogStatus
from vq.store.log.recovered import Recovered
from vq.store.log.ticket import SyncTicket

_OK: Final = LogState.OK  # looked up for each flush
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper


class DataFlush(NamedTuple):
    """A flush of one block's bytes, where nothing else of the log is to be made durable.

    Attributes:
        block: Its file is to be synced.
        length, allocated: Of the block, which become durable.
        offset, messages: As of a ``SyncTicket``.
    """

    block: Block
    length: int
    allocated: int
    offset: int
    messages: int


class Flushing:
    """The part of a log that knows what a flush has to do.

    The log notes here what it did; ``begin`` copies that into a ticket, ``take_back`` takes the
    result. One thread only, the log's.

    Attributes:
        synced_offset: Everything before it is durable.
        messages_synced: Messages before it, since the log's first byte.
        checkpoint_wanted: The next ticket writes a checkpoint, whatever the sizes say.
        checkpoint_offset: The last checkpoint covers everything before it.
        batches: Batches appended since that checkpoint.
        new_names: Directories with names that are not durable yet.
        first_checkpoint: The log's first checkpoint, which was written and is not durable yet.
        doomed: Files of dropped blocks, to be deleted.
        superseded: Files of blocks whose bytes are elsewhere now, to be deleted.
        discards: Marks of zips elsewhere that are to be removed; nobody here does that.
        beginning: Noted with the flush of the first batch; set it on a log that is new.
    """

    __slots__ = (
        "_blocks",
        "_cache",
        "_config",
        "_dirty",
        "_disk",
        "_out",
        "_status",
        "_unsaved",
        "batches",
        "beginning",
        "checkpoint_offset",
        "checkpoint_wanted",
        "discards",
        "doomed",
        "first_checkpoint",
        "messages_synced",
        "new_names",
        "superseded",
        "synced_offset",
    )

    def __init__(
        self,
        recovered: Recovered,
        *,
        status: LogStatus,
        blocks: Blocks,
        config: LogConfig,
        disk: Disk,
        cache: BlockCache,
    ) -> None:
        facts = recovered.facts
        self._status = status
        self._blocks = blocks
        self._config = config
        self._disk = disk
        self._cache = cache
        self.synced_offset = recovered.end_offset
        self.messages_synced = facts.messages
        # Until it is written, a first block that is lost is not missed.
        self.checkpoint_wanted = bool(recovered.dropped) or recovered.unnamed
        self.checkpoint_offset = recovered.end_offset - facts.verified_bytes
        self.batches = facts.batches
        self.new_names: list[Path] = []
        self.first_checkpoint: Path | None = None
        self.doomed = recovered.dropped
        self.superseded: list[Path] = []
        self.discards = recovered.discards
        self.beginning: Beginning | None = None
        self._dirty: list[Block] = []
        # Closed blocks whose index is not beside them yet.
        self._unsaved = [b for b in recovered.blocks[:-1] if not b.index_saved]
        self._out: SyncTicket | DataFlush | None = None

    @property
    def under_way(self) -> bool:
        """Whether a ticket is out."""
        return self._out is not None

    @property
    def _ticket(self) -> SyncTicket | None:
        """What is out, if it is a ticket."""
        return self._out if isinstance(self._out, SyncTicket) else None

    @property
    def deletes(self) -> bool:
        """Whether files of blocks are still to be deleted."""
        ticket = self._ticket
        out = ticket is not None and bool(ticket.doomed or ticket.superseded)
        return out or bool(self.doomed or self.superseded)

    @property
    def saves(self) -> bool:
        """Whether a checkpoint is still to be written, as behind the end of a block."""
        ticket = self._ticket
        return self.checkpoint_wanted or (ticket is not None and ticket.checkpoint is not None)

    def delete_again(self) -> bool:
        """Have the next ticket delete what an earlier one could not; whether there is something.

        That needs a checkpoint, which a full disk did not take. A log that gets no appends writes
        none by itself.
        """
        is_left = bool(self.doomed or self.superseded)
        self.checkpoint_wanted |= is_left
        return is_left

    def note_dirty(self, block: Block) -> None:
        """Note that an open block got bytes that are not durable."""
        if block not in self._dirty:
            self._dirty.append(block)
            self._cache.pin(block)

    def note_ended(self, block: Block) -> None:
        """Note that a block takes no more appends: its index is to be saved."""
        self._unsaved.append(block)
        self.checkpoint_wanted = True

    def keep_index(self, block: Block) -> None:
        """Do not save the index of ``block``: it changes again, or goes with the block."""
        self._unsaved = [other for other in self._unsaved if other is not block]

    def note_dropped(self, block: Block) -> None:
        """Note that retention dropped a block."""
        self.keep_index(block)
        self.doomed.append(block.path)
        self.checkpoint_wanted = True

    def note_superseded(self, path: Path) -> None:
        """Note that a block's bytes are elsewhere now, not in the file, or archive, at ``path``."""
        self.superseded.append(path)
        self.checkpoint_wanted = True

    def supersedes(self, block: Block) -> bool:
        """Whether a file that held the bytes of a block before is still to be deleted."""
        ticket = self._ticket
        paths = [*self.superseded, *(ticket.superseded if ticket is not None else ())]
        return any(path.stem == block.path.stem for path in paths)

    def begin(self, make_checkpoint: Callable[[], Checkpoint]) -> SyncTicket | None:
        """Return a ticket for all that was noted; None if there is nothing, or a ticket is out.

        ``make_checkpoint`` is called when a checkpoint is due.
        """
        status = self._status
        if self._out is not None or not (self._dirty or self.checkpoint_wanted):
            return None
        if status.state is not _OK and not status.can_flush:
            return None
        ticket = SyncTicket(
            directory=status.directory,
            disk=self._disk,
            offset=status.end_offset,
            messages=status.messages,
        )
        for block in self._dirty:
            assert block.file is not None, "a dirty block is never closed"
            ticket.add(block, block.file)
        if self._dirty:
            ticket.beginning, self.beginning = self.beginning, None
        ticket.first_checkpoint, self.first_checkpoint = self.first_checkpoint, None
        if self.new_names:
            ticket.directories = list(dict.fromkeys(reversed(self.new_names)))
            self.new_names = []
        if self._checkpoint_due():
            ticket.indexes = [(block, block.index_bytes()) for block in self._unsaved]
            ticket.checkpoint = make_checkpoint()
            ticket.doomed, self.doomed = self.doomed, []
            ticket.superseded, self.superseded = self.superseded, []
            ticket.log_is_empty = not self._blocks
            self.checkpoint_wanted = False
            self.checkpoint_offset = status.end_offset
            self.batches = 0
        self._out = ticket
        return ticket

    def _checkpoint_due(self) -> bool:
        return (
            self.checkpoint_wanted
            or self._status.end_offset - self.checkpoint_offset >= self._config.checkpoint_bytes
            or self.batches >= self._config.checkpoint_batches
        )

    def begin_data(self) -> DataFlush | None:
        """Return the one block whose bytes are all that a flush has to make durable.

        None: there is more to do, or nothing, or a ticket is out; ``begin`` knows. The flush counts
        as the ticket that is out. Sync the block's file, then ``take_data_back``; after an error
        the log has to ``fail``.
        """
        status, dirty = self._status, self._dirty
        if (
            len(dirty) != 1
            or self._out is not None
            or status.state is not _OK
            or self.new_names
            or self.first_checkpoint is not None
            or self.beginning is not None
            or self._checkpoint_due()
        ):
            return None
        block = dirty[0]
        found: DataFlush = _new(
            DataFlush,
            (block, block.length, block.allocated, status.end_offset, status.messages),
        )
        self._out = found
        return found

    def take_data_back(self, flush: DataFlush) -> None:
        """Note that the bytes of a block are durable, unless the log has failed meanwhile.

        Raises:
            InvalidState: It is not the flush that is out.
        """
        if flush is not self._out:
            raise InvalidState("this flush is not the one in flight")
        self._out = None
        if self._status.state is not _OK and not self._status.can_flush:
            return
        block, length, allocated, self.synced_offset, self.messages_synced = flush
        block.synced_length, block.synced_allocated = length, allocated
        if block.length == length:
            self._dirty.remove(block)
            block.cache.unpin(block)

    def take_back(self, ticket: SyncTicket) -> None:
        """Take back a ticket that ran, and apply its result unless the log has failed meanwhile.

        Raises:
            InvalidState: It is not the ticket that is out.
        """
        if ticket is not self._out:
            raise InvalidState("this ticket is not the one in flight")
        self._out = None
        status = self._status
        if status.state is not _OK and not status.can_flush:
            return
        self.synced_offset = ticket.offset
        self.messages_synced = ticket.messages
        for block, length, allocated in ticket.blocks:
            block.synced_length = length
            block.synced_allocated = allocated
            if block.length == length:
                self._dirty.remove(block)
                block.cache.unpin(block)
        if ticket.checkpoint_written:
            for block, _ in ticket.indexes:
                block.index_saved = block is not self._blocks.active
            self._unsaved = [block for block in self._unsaved if not block.index_saved]
        self.doomed += ticket.doomed
        self.superseded += ticket.superseded
        self.discards += ticket.discards
