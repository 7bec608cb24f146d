"""The log of one partition: append, flush, roll, drop, seal, close.

Belongs here: what changes an open log. Opening after a crash is ``recovery``, reading is
``log_reader``, writing at the end is ``log_tail``, what a flush has to do is ``flushing``, making
and checking frames is ``framing``, one file is ``block``, bytes are ``format``. Who may append, who
waits for a flush and when one is due is the broker's.

Threads: every method is called on one thread (the broker's event loop), except ``SyncTicket.run``,
which the flusher thread calls. Nothing here locks: what a ticket needs was copied into it.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from vq.clock import Clock
from vq.errors import (
    Busy,
    CorruptData,
    DiskFull,
    InvalidState,
    PartitionFailed,
    StorageFailed,
)
from vq.log_lines import get_logger
from vq.model import ProducerStamp
from vq.store.archive.archive import Archive, joined, place_of
from vq.store.archive.archived_file import NotInMemory
from vq.store.disk.disk import Buffer, Disk
from vq.store.log.block import FULL_ERRNOS, Block, BlockCache
from vq.store.log.blocks import Blocks
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.flushing import Flushing
from vq.store.log.framing import check_batches, check_frames, epoch_is_over, frame
from vq.store.log.log_config import FROM_THE_FIRST, LogBegin, LogConfig, LogState
from vq.store.log.log_reader import LogReader
from vq.store.log.log_status import LogStatus
from vq.store.log.log_tail import LogTail
from vq.store.log.manifest import HeldAs, ManifestEntry
from vq.store.log.recovered import Case, Recovered, RecoveryReport
from vq.store.log.recovery import recover
from vq.store.log.ticket import SyncTicket
from vq.store.records.format import CHECKPOINT_NAME, CONTROL_BYTES, BatchHeader, records_mark
from vq.store.records.producers import Records

logger = get_logger(__name__)

_OK: Final = LogState.OK  # looked up for each batch
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper


class Log:
    """One partition's log on this node, opened by ``Log.open``.

    Attributes (read them freely, do not set them):
        directory: The directory of the log.
        topic_id: Of the topic.
        config: Sizes.
        blocks: All of them, in rising order.
        status: Where the log begins and ends, its state.
        reader: Reads it.
        flushing: What is durable, and what the next flush has to do.
        begin_data, finish_data: For who flushes by itself, one log at a time: at a third of the
            cost of a ticket, if one file is to be synced and nothing else; see ``Flushing``.
        producers: Who wrote which batches last.
        recovery: What opening found.
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
        facts = recovered.facts
        self.directory = directory
        self.topic_id = topic_id
        self.config = config
        self.recovery: RecoveryReport = recovered.report
        self.producers = facts.producers
        self.status = LogStatus(
            directory=directory,
            start_offset=recovered.start_offset,
            start_messages=recovered.start_messages,
            first_number=recovered.first_number,
            lost_from=recovered.lost_from,
            end_offset=recovered.end_offset,
            messages=facts.messages,
            epoch=facts.epoch,
            append_time_ms=facts.append_time_ms,
        )
        self.blocks = Blocks(recovered.blocks)
        self.reader = LogReader(self.status, self.blocks)
        self.flushing = Flushing(
            recovered,
            status=self.status,
            blocks=self.blocks,
            config=config,
            disk=disk,
            cache=cache,
        )
        self.begin_data = self.flushing.begin_data
        self.finish_data = self.flushing.take_data_back
        self._disk = disk
        self._cache = cache
        self._wall_ms = clock.wall_ms
        self._tail = LogTail(
            recovered,
            status=self.status,
            blocks=self.blocks,
            flushing=self.flushing,
            config=config,
            disk=disk,
            cache=cache,
            make_first_checkpoint=self._make_checkpoint,
        )
        if recovered.quarantine:
            self.status.stop(LogState.QUARANTINED, recovered.quarantine)
        elif recovered.sealed:
            self.status.stop(LogState.SEALED, "its span ended here")

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic_id: str,
        config: LogConfig,
        disk: Disk,
        clock: Clock,
        begin: LogBegin = FROM_THE_FIRST,
        begun_at: int | None = None,
        cache: BlockCache | None = None,
        before_cut: Callable[[], None] = lambda: None,
        keeps_damage: bool = False,
    ) -> "Log":
        """Open the log in ``directory``, which need not exist, and recover it.

        A log without any append has no file, no descriptor and no directory. After an I/O error the
        log is returned in state FAILED; it answers every call with ``PartitionFailed``.

        Args:
            directory: The partition's directory.
            topic_id: Id of the topic; a directory of another one is refused.
            config: Sizes.
            disk: The disk.
            clock: For append times.
            begin: Where a new log begins (a partition that moved here).
            begun_at: The first offset of the log that is known to have been here, if one is.
            cache: Bounds the files open at once; give one to all logs of a node.
            before_cut, keeps_damage: See ``recover``.

        Raises:
            DirectoryRefused: It belongs to another topic.
            CorruptData: ``begin`` has no producer table.
            DiskFull: There is no space for what opening writes; it may be tried again.
        """
        cache = BlockCache(16) if cache is None else cache
        try:
            recovered = recover(
                directory,
                topic_id=topic_id,
                disk=disk,
                cache=cache,
                begin=begin,
                begun_at=begun_at,
                before_cut=before_cut,
                keeps_damage=keeps_damage,
            )
            failure = None
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise DiskFull(f"no space to open the log in {directory}: {error}") from error
            failure = error
            recovered = Recovered.failed(begin.offset)
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
            log.status.readable = False
        elif recovered.report.case is Case.NEW and (begin.offset or begin.producers):
            log._found()
        return log

    def _found(self) -> None:
        """Make the start of a new log durable: an empty directory does not show it."""
        try:
            self._tail.make_directory()
            self._disk.write_atomic(
                self.directory / CHECKPOINT_NAME, self._make_checkpoint().to_bytes()
            )
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise DiskFull(f"no space to make a log in {self.directory}: {error}") from error
            self.fail(error)

    @property
    def start_offset(self) -> int:
        """The oldest byte kept."""
        return self.status.start_offset

    @property
    def end_offset(self) -> int:
        """Where the next batch goes. Invariant: ``start <= synced <= end``."""
        return self.status.end_offset

    @property
    def synced_offset(self) -> int:
        """Everything before it is durable."""
        return self.flushing.synced_offset

    @property
    def epoch(self) -> int:
        """Master epoch of the last batch."""
        return self.status.epoch

    @property
    def state(self) -> LogState:
        """Whether the log takes appends, and why not."""
        return self.status.state

    @property
    def reason(self) -> str:
        """Why the log takes no appends."""
        return self.status.reason

    @property
    def size_bytes(self) -> int:
        """Bytes of the log from its start to its end."""
        return self.status.end_offset - self.status.start_offset

    @property
    def successor(self) -> LogBegin:
        """Where a log begins that goes on from here."""
        first = self.status.first_number
        number = None if first is None else first + self.status.messages
        return LogBegin(self.end_offset, self.producers.to_bytes(), number)

    @property
    def messages_appended(self) -> int:
        """Messages since the log's first byte, control records not counted."""
        return self.status.messages

    @property
    def messages(self) -> int:
        """Messages in the log, control records not counted."""
        return self.status.messages - self.status.start_messages

    @property
    def unsynced_messages(self) -> int:
        """Messages appended that are not known to be durable."""
        return self.status.messages - self.flushing.messages_synced

    @property
    def last_append_time_ms(self) -> int:
        """Append time of the last batch; 0 if there never was one."""
        return self.status.append_time_ms

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
        """Append one batch of these records; return its start offset.

        The first record lies ``CONTROL_BYTES`` behind it. On return the bytes are in the page cache
        and can be read; they are durable once ``synced_offset`` is beyond the offset returned.
        Nothing is verified: the caller has checked CRC and records. ``records`` is not kept.

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
            InvalidRequest: The stamp does not fit its fields.
            DiskFull: Nothing was stored; a later append may succeed.
            Busy: No file descriptor is left; nothing was stored.
            StorageFailed: An I/O error; whether it is stored is unknown, and the log has failed.
        """
        status = self.status
        if status.state is not _OK:
            raise status.refusal()
        if epoch < status.epoch:
            raise epoch_is_over(epoch, status.epoch)
        start = status.end_offset
        size = len(records) + CONTROL_BYTES
        now = self._wall_ms()
        if now < status.append_time_ms:
            now = status.append_time_ms
        control = frame(
            size,
            record_count,
            records_crc,
            start,
            self.flushing.synced_offset,
            now,
            epoch,
            stamp,
            transaction_id,
        )
        self._tail.write((control, records), size, record_count, now, epoch)
        if stamp is not None and stamp.producer_id:
            held = _new(Records, (record_count, records_mark(records_crc)))
            self.producers.record(stamp, start, held)
        return start

    def append_framed(
        self, data: bytes | memoryview, batches: Sequence[BatchHeader] | None = None
    ) -> int:
        """Append whole batches as they lie in another copy of the log; return the new end.

        The bytes are verified and stored as they are, so this copy becomes equal to the other, with
        its producer table and indexes. Durability is as with ``append``.

        Args:
            data: Whole batches, back to back, the first one of which starts at ``end_offset``.
            batches: Their headers, from ``batches_ready``; None: they are not read yet.

        Raises:
            OffsetOutOfRange: They begin elsewhere; ``details["latest"]`` is where the log ends.
            NotMaster: A newer master than theirs has appended here.
            CorruptData: They are no batches, or damaged. As with the errors above, nothing was
                stored.
            PartitionReadOnly, PartitionFailed, PartitionQuarantined: The state forbids it.
            DiskFull, Busy: As ``append``; the batches before ``end_offset`` are stored.
            StorageFailed: As ``append``.
        """
        status = self.status
        if status.state is not _OK:
            raise status.refusal()
        epoch, time_ms = status.epoch, status.append_time_ms
        if batches is None:
            batches = check_frames(
                data, end_offset=status.end_offset, epoch=epoch, append_time_ms=time_ms
            )
        else:
            check_batches(bytes(data), batches, epoch=epoch, append_time_ms=time_ms)
        view = memoryview(data)
        written = 0
        try:
            for _, size, count, time_ms, epoch, *_ in batches:
                self._tail.write((view[:size],), size, count, time_ms, epoch)
                view = view[size:]
                written += 1
        finally:
            self.producers.record_all(batches[:written])
        return status.end_offset

    def learn_number(self, begin: LogBegin) -> None:
        """Number the messages as another copy of this log does, if this one cannot by itself.

        That one begins at ``begin``, and both are equal from there on.
        """
        status, number = self.status, begin.number
        if status.first_number is not None or number is None:
            return
        if not status.start_offset <= begin.offset <= status.end_offset:
            return
        with contextlib.suppress(CorruptData, OSError, NotInMemory):
            first = number - self.reader.messages_before(begin.offset)
            status.first_number = first if first >= 0 else None
            self.flushing.checkpoint_wanted |= self._tail.has_directory

    # Flushing -------------------------------------------------------------------------------------
    def begin_sync(self) -> SyncTicket | None:
        """Return a ticket for all that was appended so far; None if there is nothing to do.

        At most one ticket is out: until it came back through ``finish_sync``, this returns None.
        Cheap, except that every 64 MiB the checkpoint is put together here (and written by the
        ticket).
        """
        return self.flushing.begin(self._make_checkpoint)

    def finish_sync(self, ticket: SyncTicket) -> None:
        """Take back a ticket whose ``run`` returned: ``synced_offset`` moves to its offset.

        Raises:
            InvalidState: It is not the ticket that is out.
        """
        self.flushing.take_back(ticket)
        self._cache.trim()

    def want_checkpoint(self) -> None:
        """Have the next ticket write a checkpoint, if something was appended since the last."""
        if self.end_offset > self.flushing.checkpoint_offset:
            self.flushing.checkpoint_wanted = self._tail.has_directory

    def fail(self, error: BaseException) -> None:
        """End writing for good after an I/O error; see ``LogStatus.fail``."""
        self.status.fail(error)

    def _make_checkpoint(self, first: ManifestEntry | None = None) -> Checkpoint:
        """Return a checkpoint that is true once everything appended so far is durable.

        ``first`` is the place of bytes that are to follow.
        """
        last = self.blocks.last
        manifest = [
            ManifestEntry(block.start_offset, HeldAs.ARCHIVE if block.is_archived else HeldAs.BLOCK)
            for block in self.blocks
            if block.length
        ]
        return Checkpoint(
            topic_id=self.topic_id,
            start_offset=self.start_offset,
            offset=self.end_offset,
            start_messages=self.status.start_messages,
            messages=self.messages_appended,
            first_number=self.status.first_number,
            append_time_ms=self.status.append_time_ms,
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
        if self.status.state is not _OK:
            return
        self._tail.roll()

    @property
    def closed_blocks(self) -> Sequence[Block]:
        """The blocks that take no more appends, in rising order."""
        blocks = list(self.blocks)
        return blocks if self.open_block is None else blocks[:-1]

    @property
    def open_block(self) -> Block | None:
        """The last block, which takes the next append; None: a new one does, or none."""
        ended = self._tail.rolled or self.status.state is LogState.SEALED
        return None if ended else self.blocks.last

    def drop_before(self, offset: int) -> int:
        """Drop the blocks that end at or before ``offset``; return how many bytes that frees.

        Whole durable blocks only, and not the one that takes appends (``roll`` ends it). The log's
        start moves at once; the files go with the next ``begin_sync`` ticket. A crash before that
        brings them back. Reads an index, or all headers of a block, if a block's facts are unknown.

        Raises:
            PartitionFailed: The log has failed, or an index it needs cannot be read.
        """
        if not self.status.can_flush:
            raise self.status.refusal()
        bound = min(offset, self.synced_offset)
        freed = 0
        for block in self.closed_blocks:
            if not block.length or block.end_offset > bound:
                break
            try:
                messages = self._messages_up_to(block)
            except (CorruptData, OSError) as error:
                raise PartitionFailed(f"retention in {self.directory} failed: {error}") from error
            if self.blocks.drop_first() is self.blocks.active:  # of a sealed log
                self.blocks.active = None
            block.close()
            self.flushing.note_dropped(block)
            self.status.start_offset, self.status.start_messages = block.end_offset, messages
            freed += block.length
        return freed

    def _messages_up_to(self, block: Block) -> int:
        """Return the messages before the end of the first block, since the log's first byte."""
        if block.facts is not None:
            return self.status.start_messages + block.facts.messages
        return self.reader.messages_before(block.end_offset)

    # Archives -------------------------------------------------------------------------------------
    def use_archive(self, block: Block, archive: Archive) -> None:
        """Have an archive hold the bytes of a closed, durable block; its file goes.

        Stub and zip are there, durably. The file is deleted with the next ``begin_sync`` ticket,
        once a checkpoint says so.

        Raises:
            InvalidState: The block cannot be archived, or not any more.
            PartitionFailed: The log has failed.
        """
        self.check_archivable(block)
        if (archive.start_offset, archive.length) != (block.start_offset, block.length):
            raise InvalidState(f"{block.path} is another block than the archive has")
        self.flushing.note_superseded(block.path)
        block.use_archive(archive)
        self._tail.rolled |= block is self.blocks.last

    def places_behind(self, offset: int) -> str:
        """Return the places of what is behind an offset and lies elsewhere; see ``joined``."""
        return joined(
            place_of(block.archive.url)
            for block in self.blocks
            if block.end_offset > offset and block.archive is not None
        )

    def has(self, block: Block) -> bool:
        """Whether a block is one of this log, and not dropped."""
        return self.blocks.at(block.start_offset) is block

    def check_archivable(self, block: Block, *, takes_appends: bool = False) -> None:
        """Return if a block of this log is closed and durable, and in a block file.

        ``takes_appends``: also the last one, which the caller rolls.

        Raises:
            Busy: An archive that it had before is still to be deleted.
            InvalidState: It is not.
            PartitionFailed: The log has failed.
        """
        self._check_has(block)
        if block.is_archived:
            raise InvalidState(f"{block.path} is archived already")
        self._check_settled(block)
        is_closed = takes_appends or block is not self.open_block
        is_durable = not block.dirty and block.end_offset <= self.synced_offset
        if not is_closed or not is_durable or not block.length:
            raise InvalidState(f"{block.path} takes appends, or is not durable")

    def use_file(self, block: Block) -> None:
        """Have the block file hold the bytes of an archived block again; stub and zip go.

        The file is there, durably; the archive goes as the file does in ``use_archive``.

        Raises:
            Busy, InvalidState, PartitionFailed: As ``check_restorable``.
        """
        self.check_restorable(block)
        self.flushing.note_superseded(block.path)
        block.use_file()

    def check_restorable(self, block: Block) -> None:
        """Return if a block file may be written in the place of an archive of this log.

        Raises:
            Busy: The file that was there before is still to be deleted.
            InvalidState: The block is not archived, or not in the log any more.
            PartitionFailed: The log has failed.
        """
        self._check_has(block)
        if not block.is_archived:
            raise InvalidState(f"{block.path} is not archived")
        self._check_settled(block)

    def _check_has(self, block: Block) -> None:
        if not self.status.can_flush:
            raise self.status.refusal()
        if not self.has(block):
            raise InvalidState(f"{block.path} is not in the log any more")

    def _check_settled(self, block: Block) -> None:
        """Return if nothing of a block is to be deleted: what takes its name would go with it."""
        if self.flushing.supersedes(block):
            raise Busy(f"the file that {block.path} replaced is not deleted yet")

    def seal(self) -> int:
        """Refuse appends from now on; return the end offset. Lasts once the next ticket was run."""
        if self.state is LogState.OK:
            self.status.stop(LogState.SEALED, "its span ended here")
            self.flushing.checkpoint_wanted = self._tail.has_directory
        return self.end_offset

    def save_seal(self) -> None:
        """Make the seal durable now. Blocks; nothing may be dirty and no ticket out.

        Raises:
            StorageFailed: It may not be durable.
        """
        try:
            if not self._tail.has_directory:
                self._tail.make_directory()
            self.flushing.checkpoint_wanted = True
            ticket = self._sync_now()
            if ticket is None or not ticket.checkpoint_written:
                raise StorageFailed(f"the seal of {self.directory} was not written; seal it again")
        except OSError as error:
            self.fail(error)
            raise StorageFailed(f"sealing {self.directory} failed: {error}") from error

    def unseal(self) -> None:
        """Take appends again, after a move was abandoned."""
        if self.state is LogState.SEALED:
            self.status.state, self.status.reason = LogState.OK, ""
            self.flushing.checkpoint_wanted = self._tail.has_directory

    def abandon(self) -> None:
        """Give all files back as they are, also in the middle of an append; open the log anew."""
        self.status.stop(LogState.FAILED, "whoever wrote to it was interrupted")
        self.close()

    def close(self, *, saves: bool = True) -> None:
        """Make everything durable, write a checkpoint and give all files back. May be repeated.

        With ``saves`` False no checkpoint is written if everything is durable already: the next
        start verifies what was appended since the last one. Otherwise it blocks for a few
        fdatasyncs if anything happened since the last checkpoint. No ticket may be running. A
        failed or quarantined log only gives its files back.

        Raises:
            InvalidState: A ticket is out.
            StorageFailed: What was not durable before may be lost; the files are given back.
        """
        if self.state is LogState.CLOSED:
            return
        if self.flushing.under_way and self.state is not LogState.FAILED:
            raise InvalidState(f"{self.directory}: a flush is running; wait for it, then close")
        own = BlockCache()  # this may run on another thread than the rest
        for block in self.blocks:
            self._cache.give(block, own)
        try:
            if self.status.can_flush:
                self._close_properly(saves=saves)
        except OSError as error:
            self.fail(error)
            raise StorageFailed(f"closing {self.directory} failed: {error}") from error
        finally:
            own.close_all()
            self.blocks.active = None
            self.status.readable = False
            self.status.stop(LogState.CLOSED, "the log is closed")

    def _close_properly(self, *, saves: bool) -> None:
        last = self.blocks.last
        if not saves and self.synced_offset == self.end_offset:
            return
        if last is not None and self.end_offset > self.flushing.checkpoint_offset:
            self.flushing.checkpoint_wanted = True
        if not self.flushing.checkpoint_wanted:
            if last is not None and last is self.blocks.active:
                last.cut_allocation()
            return
        if last is not None:
            last.cut_allocation()
        self._sync_now()

    def _sync_now(self) -> SyncTicket | None:
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self.flushing.take_back(ticket)
        return ticket
