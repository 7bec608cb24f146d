"""The files of a local queue: logs of the store, one for each lane and one of notes.

    <directory>/@queue       its id (``store.records.checked_text``)
    <directory>/@lock        held by the process that has it open; names its pid
    <directory>/@snapshot    what was known at one moment (``notes``)
    <directory>/@done        completions that may be in no note yet (``pad``)
    <directory>/@given       what was handed out, and how often
    <directory>/lane-0 ...   a log (``vq.store.log``) of each priority
    <directory>/later        ... of messages that wait for a time
    <directory>/notes        ... of completions
    <directory>/@damaged.*   bytes of logs that could not be read, set aside

What is put and what is completed are appended, nothing else: a message that goes to ``later`` is
copied, and the copy names the message, so that one record says both. Under the lock of the queue,
except for ``Storage.flush`` and ``save``, which wait for the disk.
"""

import contextlib
import operator
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import google_crc32c

from vq import limits
from vq.client.ids import IdGenerator
from vq.clock import Clock
from vq.errors import CorruptData, DirectoryRefused, DiskFull, InvalidArgument
from vq.local.files.damage import LaneDamage
from vq.local.files.lane_reader import LaneReader
from vq.local.files.lanes import ALL_LANES, LOGS, NOTES
from vq.local.files.notes import LaneRange, Snapshot, encode_notes
from vq.local.files.pad import GIVEN_SLOTS, CodePad
from vq.local.files.restart import StorageState, restart
from vq.local.items import LATER, PRIORITIES, LocalItem
from vq.log_lines import get_logger
from vq.model import time_ms_of
from vq.store.commit.flusher import FlushRunner, Outcome
from vq.store.directory.directory import unusable
from vq.store.disk.disk import Disk, Lock
from vq.store.log.block import FULL_ERRNOS, BlockCache
from vq.store.log.flushing import DataFlush
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig, LogState
from vq.store.log.ticket import SyncTicket
from vq.store.records.checked_text import decode_text, encode_text
from vq.store.records.codec import encode_records
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.record import encode_record

logger = get_logger(__name__)

QUEUE_NAME: Final = "@queue"
LOCK_NAME: Final = "@lock"
SNAPSHOT_NAME: Final = "@snapshot"
PAD_NAME: Final = "@done"
GIVEN_NAME: Final = "@given"
_VERSION: Final = 2
_EPOCH: Final = 1  # one writer has the directory, so its logs need no epochs
#: Blocks go once all of their messages are completed.
_LOG_CONFIG: Final = LogConfig(
    block_bytes=32 * limits.MIB, checkpoint_bytes=32 * limits.MIB, checkpoint_batches=20_000
)
#: After so many bytes of notes, or of messages, a snapshot is due.
_NOTE_BYTES_MAX: Final = 4 * limits.MIB
_PUT_BYTES_MAX: Final = 64 * limits.MIB
#: An empty lane gives its block back from this size on.
_EMPTY_BYTES: Final = limits.MIB
_BATCH_BYTES: Final = limits.MIB  # of contents in one batch; one larger message is one batch
_content_of: Final = operator.attrgetter("content")
_head_of: Final = operator.attrgetter("head")


class Storage:
    """The open files of one queue; use ``Storage.open``.

    Attributes:
        directory: Where they are.
        identity: Of the queue, 16 hexadecimal digits.
        pad: Takes completions at once.
        given: ... and what is handed out.
        damage: What cannot be read.
        reader: Reads the lanes.
        wants_snapshot: So much was written since the last one that a restart would take long.
    """

    def __init__(
        self,
        directory: Path,
        identity: str,
        lock: Lock,
        logs: list[Log],
        pad: CodePad,
        given: CodePad,
        disk: Disk,
        clock: Clock,
        cache: BlockCache,
    ) -> None:
        """Use ``Storage.open``."""
        self.directory = directory
        self.identity = identity
        self.pad = pad
        self.given = given
        self._lock = lock
        self._logs = logs
        self._disk = disk
        self._cache = cache
        self.damage = LaneDamage(directory, logs, disk)
        self.reader = LaneReader(logs, self.damage)
        self._clock = clock
        self._runner = FlushRunner(clock)
        self._put_bytes = self._note_bytes = 0  # since the last snapshot
        self.wants_snapshot = False
        after_ms = max(self._last_id_ms(log) for log in logs[:NOTES])
        self._ids = IdGenerator(0, clock, after_ms=after_ms)

    @classmethod
    def open(cls, directory: Path, disk: Disk, clock: Clock) -> tuple["Storage", StorageState]:
        """Open the queue in a directory, which is made if it is missing; say what it has.

        Raises:
            DirectoryRefused: Another process has it open, it is something else, damaged or of a
                later version, or the system does not let us use it.
            InvalidArgument: A file is there.
            DiskFull: There is no space for what opening writes.
        """
        try:
            for parent in [*disk.mkdir(directory), directory.parent]:
                disk.sync_directory(parent)
            lock = _locked(directory, disk)
            try:
                return cls._open(directory, lock, disk, clock)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                raise DiskFull(
                    f"the queue in {directory} cannot be opened: {error.strerror}",
                    hint="opening writes little where a queue is: free some space",
                ) from error
            raise unusable(directory, error) from error

    @classmethod
    def _open(
        cls, directory: Path, lock: Lock, disk: Disk, clock: Clock
    ) -> tuple["Storage", StorageState]:
        queue_id = _identity(directory, disk)
        cache = BlockCache(4 * len(LOGS))
        logs = [_opened_log(directory / name, queue_id, disk, clock, cache) for name in LOGS]
        pad = CodePad(directory / PAD_NAME, int(queue_id, 16))
        given = CodePad(directory / GIVEN_NAME, int(queue_id, 16), GIVEN_SLOTS)
        storage = cls(directory, queue_id, lock, logs, pad, given, disk, clock, cache)
        snapshot = storage._read_snapshot()
        ends = [storage.end_number(lane) for lane in range(LATER + 1)]
        return storage, restart(snapshot, storage.reader, ends, pad, given)

    def close(self) -> None:
        """Make everything durable and give all files back.

        Raises:
            StorageFailed: What was not durable may be lost; the files are given back.
        """
        try:
            for log in self._logs:
                log.close()
        finally:
            self.pad.close()
            self.given.close()
            self._lock.release()

    def leave_lock(self) -> None:
        """Give back what the child of a fork has of the lock; its parent has it as before."""
        self._lock.release()

    # Opening --------------------------------------------------------------------------------------
    def _read_snapshot(self) -> Snapshot:
        path = self.directory / SNAPSHOT_NAME
        try:
            if self._disk.exists(path):
                snapshot = Snapshot.from_bytes(self._disk.read_bytes(path))
                self._check_ends(snapshot)
                return snapshot
        except CorruptData as error:
            raise DirectoryRefused(
                f"{path} is damaged: {error}",
                hint="restore the directory from a copy; nothing was changed",
            ) from error
        if any(log.start_offset for log in self._logs):
            raise DirectoryRefused(
                f"{path} is missing, and messages that it told of were dropped already",
                hint="restore the directory from a copy; nothing was changed",
            )
        return Snapshot()

    def _check_ends(self, snapshot: Snapshot) -> None:
        """Refuse logs that end before what was durable when the snapshot was taken.

        New messages would get numbers that were given already, and count as completed.
        """
        ends = [*(lane.end for lane in snapshot.lanes), snapshot.later_offset]
        for log, end in zip(self._logs[:NOTES], ends, strict=True):
            if log.end_offset < end:
                raise DirectoryRefused(
                    f"{log.directory} ends at {log.end_offset}, and was durable up to {end}: its "
                    "end is damaged, or was cut off",
                    hint=f"restore the directory from a copy; {log.directory}/*.cut-* have the "
                    "bytes that were taken off the end, if any were",
                )

    def _last_id_ms(self, log: Log) -> int:
        last = None
        if log.end_offset > log.start_offset:
            with contextlib.suppress(CorruptData):
                last = log.reader.message_before(log.end_offset)
        return max(log.last_append_time_ms, 0 if last is None else time_ms_of(last))

    def reopen(self, lane: int) -> None:
        """Open a log anew as after a crash: whoever wrote to it was interrupted.

        Raises:
            DirectoryRefused, DiskFull: It takes no more messages.
        """
        log = self._logs[lane]
        log.abandon()
        self._logs[lane] = _opened_log(
            log.directory, log.topic_id, self._disk, self._clock, self._cache
        )

    def stored_again(self, lane: int, offset: int, number: int, items: Sequence[LocalItem]) -> int:
        """Return how many of the messages are stored that were appended at the end of a lane.

        They get their numbers and places.
        """
        count = 0
        for item, (found, record) in zip(
            items, self.reader.scan(lane, offset, number), strict=False
        ):
            item.id, item.number, item.offset = record.id, found, record.offset
            count += 1
        return count

    # Messages -------------------------------------------------------------------------------------
    def end_of(self, lane: int) -> tuple[int, int]:
        """Return number and offset of the message that is put next."""
        status = self._logs[lane].status
        return status.messages, status.end_offset

    def end_number(self, lane: int) -> int:
        """Return the number of the message that is put next."""
        return self._logs[lane].messages_appended

    def append(
        self, lane: int, items: Sequence[LocalItem], stored: list[Sequence[LocalItem]]
    ) -> None:
        """Append messages; add those of each batch to ``stored``, with their numbers and offsets.

        They are durable after ``flush``.

        Raises:
            DiskFull, Busy: What is not in ``stored`` is not stored; a later append may succeed.
            StorageFailed, PartitionFailed: The log has failed.
        """
        log = self._logs[lane]
        for batch in (items,) if len(items) == 1 else _batches(items):
            number = log.status.messages
            ids = self._ids.take(len(batch))
            if lane == LATER:  # a copy has the id of its message
                ids = [item.id or new for item, new in zip(batch, ids, strict=True)]
            data, sizes = encode_records([*map(_content_of, batch)], [*map(_head_of, batch)], ids)
            offset = log.append(
                data,
                record_count=len(batch),
                records_crc=google_crc32c.value(data),
                epoch=_EPOCH,
            )
            self._put_bytes += CONTROL_BYTES + len(data)
            if self._put_bytes >= _PUT_BYTES_MAX:
                self.wants_snapshot = True
            at = offset + CONTROL_BYTES
            for item, message_id, size in zip(batch, ids, sizes, strict=True):
                item.number = number
                item.id = message_id
                item.offset = at
                number += 1
                at += size
            stored.append(batch)

    def note(self, codes: Sequence[int], ranges: Sequence[LaneRange] = ()) -> None:
        """Append what was completed: of these codes, and ranges of numbers.

        Raises:
            DiskFull, Busy, StorageFailed, PartitionFailed: As ``append``.
        """
        for note in encode_notes(codes, ranges):
            record = encode_record(0, note)
            self._logs[NOTES].append(
                record, record_count=1, records_crc=google_crc32c.value(record), epoch=_EPOCH
            )
            self._note_bytes += CONTROL_BYTES + len(record)
            if self._note_bytes >= _NOTE_BYTES_MAX:
                self.wants_snapshot = True

    def begin_flush(
        self, lanes: Sequence[int] = ALL_LANES, *, checkpoints: bool = False
    ) -> dict[int, SyncTicket | DataFlush]:
        """Return what ``flush`` has to make durable, by lane.

        Args:
            lanes: Of these; ``NOTES`` is one, too.
            checkpoints: Have a checkpoint cover all that was appended: a snapshot is to follow, and
                a start cuts nothing off that a checkpoint covers.
        """
        found: dict[int, SyncTicket | DataFlush] = {}
        for lane in lanes:
            log = self._logs[lane]
            if checkpoints:
                log.want_checkpoint()
            ticket = (log.begin_data() if len(lanes) == 1 else None) or log.begin_sync()
            if ticket is not None:
                found[lane] = ticket
        return found

    def flush(self, tickets: Mapping[int, SyncTicket | DataFlush]) -> Outcome:
        """Make it durable. Without the lock of the queue; one call at a time."""
        some: list[SyncTicket] = []
        for ticket in tickets.values():
            if isinstance(ticket, DataFlush):  # then it is the only one
                return (_synced(ticket),)
            some.append(ticket)
        return self._runner.run(some) if some else ()

    def end_flush(
        self, tickets: Mapping[int, SyncTicket | DataFlush], outcome: Outcome
    ) -> dict[int, BaseException]:
        """Take the tickets back; return the errors by lane, which takes no more messages then."""
        errors = {}
        for (lane, ticket), error in zip(tickets.items(), outcome, strict=True):
            if error is None:
                if isinstance(ticket, DataFlush):
                    self._logs[lane].finish_data(ticket)
                else:
                    self._logs[lane].finish_sync(ticket)
            else:
                self._logs[lane].fail(error)
                errors[lane] = error
        return errors

    # Snapshots ------------------------------------------------------------------------------------
    @property
    def ends(self) -> list[int]:
        """The ends of what is durable of all priorities."""
        return [log.synced_offset for log in self._logs[:PRIORITIES]]

    @property
    def later_end(self) -> tuple[int, int]:
        """Number and offset of the end of what is durable of the lane ``LATER``."""
        log = self._logs[LATER]
        return log.messages_appended - log.unsynced_messages, log.synced_offset

    @property
    def later_blocks(self) -> list[int]:
        """Where the blocks of the lane ``LATER`` end that take no more messages, rising."""
        return [block.end_offset for block in self._logs[LATER].closed_blocks]

    @property
    def notes_end(self) -> int:
        """Where the next note goes."""
        return self._logs[NOTES].end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all logs."""
        return sum(log.size_bytes for log in self._logs)

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot of what is durable. Without the lock of the queue; one call at a time.

        Raises:
            OSError: The one before may still be there.
        """
        self._disk.write_atomic(self.directory / SNAPSHOT_NAME, snapshot.to_bytes())

    def saved(self, snapshot: Snapshot) -> None:
        """Drop what a saved snapshot says nobody needs; the next flush deletes the files.

        Raises:
            PartitionFailed: A log has failed.
        """
        self._put_bytes = self._note_bytes = 0
        self.wants_snapshot = False
        needed = [
            min([lane.next_offset, *(each.offset for each in lane.opened)])
            for lane in snapshot.lanes
        ]
        needed.append(min([snapshot.later_offset, *(each.offset for each in snapshot.asides)]))
        needed.append(snapshot.notes)
        for log, offset in zip(self._logs, needed, strict=True):
            if log.state is not LogState.OK:
                continue  # its files are not written again
            if offset == log.end_offset and log.size_bytes >= _EMPTY_BYTES:
                log.roll()
            log.drop_before(offset)


def _opened_log(directory: Path, queue_id: str, disk: Disk, clock: Clock, cache: BlockCache) -> Log:
    """Return a log that takes messages; what is damaged in it is set aside when it is read.

    Raises:
        DirectoryRefused: It cannot be read, or nobody knows how many messages the damage took.
    """
    log = Log.open(
        directory,
        topic_id=queue_id,
        config=_LOG_CONFIG,
        disk=disk,
        clock=clock,
        cache=cache,
        keeps_damage=True,
    )
    for note in log.recovery.notes:
        logger.warning("log of a local queue was recovered", note=note)
    if log.state is not LogState.OK:
        raise DirectoryRefused(
            f"{log.directory} cannot take messages ({log.state}): {log.reason}",
            hint="restore the directory from a copy, or move it away; nothing was changed",
        )
    return log


def _synced(flush: DataFlush) -> BaseException | None:
    """Sync the file of one block; return what went wrong."""
    file = flush.block.file
    assert file is not None, "a dirty block is never closed"
    try:
        file.datasync()
    except Exception as error:  # noqa: BLE001  also one that a signal handler raises
        if file.file_system is not None:
            with contextlib.suppress(OSError):
                file.file_system.check_journal()
        return error
    return None


def _batches(items: Sequence[LocalItem]) -> Iterator[list[LocalItem]]:
    """Yield messages in batches that the store takes."""
    some: list[LocalItem] = []
    size = 0
    for item in items:
        more = len(item.content)
        if some and (size + more > _BATCH_BYTES or len(some) >= limits.BATCH_RECORDS_MAX):
            yield some
            some, size = [], 0
        some.append(item)
        size += more + (0 if item.head is None else len(item.head[1]))
    if some:
        yield some


def _locked(directory: Path, disk: Disk) -> Lock:
    """Return the lock of a directory.

    Raises:
        DirectoryRefused: A process has it; the error names it.
    """
    try:
        return disk.lock(directory / LOCK_NAME)
    except DirectoryRefused as error:
        pid = error.details.get("pid", "")
        this = ", which is this one" if pid == str(os.getpid()) else ""
        raise DirectoryRefused(
            f"the queue in {directory} is open in process {pid or 'unknown'}{this}",
            hint="threads share one LocalQueue; for other processes let that one serve it "
            "(vq.local.LocalQueueServer), and use vq.local.LocalQueueClient there",
        ) from error


def _identity(directory: Path, disk: Disk) -> str:
    """Return the id of the queue, 16 hexadecimal digits; a new one for an empty directory.

    Raises:
        DirectoryRefused: It is something else, or damaged.
    """
    path = directory / QUEUE_NAME
    if not disk.exists(path):
        others = set(disk.listdir(directory)) - {LOCK_NAME, QUEUE_NAME + ".tmp"}
        if others:
            raise DirectoryRefused(
                f"{directory} has {sorted(others)[0]!r} and no {QUEUE_NAME}: it is no local queue; "
                "give an empty directory, or one that can be made"
            )
        disk.write_atomic(path, encode_text(_VERSION, {"id": secrets.token_hex(8)}))
    try:
        version, values = decode_text(disk.read_bytes(path), version_max=_VERSION)
        if version != _VERSION:
            raise DirectoryRefused(
                f"{path} has version {version}; this vq knows {_VERSION}. A later vq wrote it"
            )
        return f"{int(values['id'], 16):016x}"
    except (CorruptData, KeyError, ValueError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise DirectoryRefused(
            f"{path} is damaged: {error}",
            hint="restore it from a copy of the directory; nothing was changed",
        ) from error
