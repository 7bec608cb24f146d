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
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from vq import limits
from vq.client.ids import IdGenerator
from vq.clock import Clock
from vq.errors import CorruptData, DirectoryRefused, DiskFull, InvalidArgument
from vq.local.items import IDEMPOTENCY_HEADER, LATER, PRIORITIES, LocalItem
from vq.local.notes import (
    Aside,
    LaneRange,
    LaneSnapshot,
    Range,
    Snapshot,
    decode_note,
    encode_notes,
    lane_and_number,
)
from vq.local.pad import GIVEN_SLOTS, CodePad, Given, given_in, given_of
from vq.local.state import restored
from vq.log_lines import get_logger
from vq.model import TopicPartition, time_ms_of
from vq.store.commit.flusher import FlushRunner
from vq.store.directory.directory import unusable
from vq.store.disk.disk import Disk, Lock
from vq.store.log.block import FULL_ERRNOS, BlockCache
from vq.store.log.log import Log, LogConfig, LogState
from vq.store.log.lookup import batch_at
from vq.store.log.ticket import SyncTicket
from vq.store.records.checked_text import decode_text, encode_text
from vq.store.records.codec import encode_records
from vq.store.records.format import CONTROL_BYTES, decode_control
from vq.store.records.record import (
    Record,
    bytes_needed,
    decode_into,
    decode_properties,
    encode_record,
    is_intact,
)
from vq.store.records.scan import first_control

__all__ = [
    "ALL_LANES",
    "LANE_TOPIC",
    "LOGS",
    "NOTES",
    "DamagedMessages",
    "Storage",
    "StorageState",
    "damaged_in",
    "origin_of",
]

logger = get_logger(__name__)

QUEUE_NAME: Final = "@queue"
LOCK_NAME: Final = "@lock"
SNAPSHOT_NAME: Final = "@snapshot"
PAD_NAME: Final = "@done"
GIVEN_NAME: Final = "@given"
_DAMAGED: Final = "@damaged."
_DAMAGED_NAME: Final = re.compile(
    rf"{_DAMAGED}([a-z0-9-]+)\.(\d{{1,20}})\.(\d{{1,20}})\.(\d{{1,20}})", re.A
)
LOGS: Final = (*(f"lane-{priority}" for priority in range(PRIORITIES)), "later", "notes")
NOTES: Final = LATER + 1
ALL_LANES: Final = range(NOTES + 1)
#: The topic in the destination of a message in ``later``; its partition is the priority.
LANE_TOPIC: Final = "lane"
_VERSION: Final = 2
_EPOCH: Final = 1  # one writer has the directory, so its logs need no epochs
#: Blocks go once all of their messages are completed.
_LOG_CONFIG: Final = LogConfig(
    block_bytes=32 * limits.MIB, checkpoint_bytes=32 * limits.MIB, checkpoint_batches=20_000
)
#: After so many bytes of notes, or of messages, a snapshot is due.
_NOTES_BYTES: Final = 4 * limits.MIB
_PUT_BYTES: Final = 64 * limits.MIB
#: An empty lane gives its block back from this size on.
_EMPTY_BYTES: Final = limits.MIB
_READ_BYTES: Final = 512 * limits.KIB
_ONE_BYTES: Final = limits.KIB
_BATCH_BYTES: Final = limits.MIB  # of contents in one batch; one larger message is one batch
_IDEMPOTENCY: Final = IDEMPOTENCY_HEADER.encode()


class StorageState(NamedTuple):
    """What a restart found.

    Attributes:
        lanes: How far each lane was read, and what of it is open.
        asides: What waits for its time.
        keys: Idempotency keys with the time of their put, in ms since 1970, in rising order.
        given: How messages were handed out that are not completed, by their codes.
    """

    lanes: list[LaneSnapshot]
    asides: list[Aside]
    keys: list[tuple[str, int]]
    given: dict[int, Given]


class ReadMessage(NamedTuple):
    """A record with the number of its message in the lane."""

    number: int
    record: Record


class DamagedMessages(NamedTuple):
    """Messages that could not be read; their bytes were set aside, and the lane went on.

    Attributes:
        log: ``lane-0`` to ``lane-2``, ``later``, or ``notes`` (of completions: what those were of
            is given again).
        offset: Where the bytes begin in the log.
        number: Of the first one in its lane.
        messages: So many, or notes.
        path: The file that has the bytes.
    """

    log: str
    offset: int
    number: int
    messages: int
    path: Path


def damaged_in(directory: Path, names: Iterable[str]) -> list[DamagedMessages]:
    """Return what was set aside, by the names of the files in a queue's directory."""
    found = []
    for name in names:
        match = _DAMAGED_NAME.fullmatch(name)
        if match is not None and match[1] in LOGS:  # others are not ours: a copy of an editor, say
            offset, number, count = (int(each) for each in match.groups()[1:])
            found.append(DamagedMessages(match[1], offset, number, count, directory / name))
    return sorted(found)


class Storage:
    """The open files of one queue; use ``Storage.open``.

    Attributes:
        directory: Where they are.
        identity: Of the queue, 16 hexadecimal digits.
        pad: Takes completions at once.
        given: ... and what is handed out.
        damaged: What was set aside, also by earlier processes.
        damaged_now: So many messages since the queue was opened.
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
        self.damaged = damaged_in(directory, disk.listdir(directory))
        self.damaged_now = 0
        self._clock = clock
        self._runner = FlushRunner(clock)
        self._notes_from = logs[NOTES].end_offset  # where those begin that no snapshot has
        self._put_from = self._put_bytes
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
        return storage, storage._restore(snapshot)

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

    def _restore(self, snapshot: Snapshot) -> StorageState:
        """Return what is open: the snapshot, and what the logs and the pad say since."""
        done: list[list[Range]] = [[] for _ in range(LATER + 1)]
        for _, record in self._scan(NOTES, snapshot.notes, 0):
            for lane, numbers in decode_note(record.payload):
                done[lane].append(numbers)
        later: list[Aside] = []
        keys = dict(snapshot.keys)
        for number, record in self._scan(LATER, snapshot.later_offset, snapshot.later_number):
            aside, moved = _aside_of(number, record)
            later.append(aside)
            if moved is not None:
                done[moved[0]].append((moved[1], moved[1] + 1))
            _note_key(record, keys)
        for lane, was in enumerate(snapshot.lanes):
            for record in self._keyed(lane, was.end):
                _note_key(record, keys)
        given_anew = set()  # a damaged end was cut off: other messages get these numbers
        for code in self.pad.codes():
            lane, number = lane_and_number(code)
            done[lane].append((number, number + 1))
            if _is_beyond(code, self._logs):
                given_anew.add(code)
        if given_anew:
            self.pad.forget(given_anew)
        for lane, ranges in enumerate(done):
            last = self._logs[lane].messages_appended
            done[lane] = [(start, min(end, last)) for start, end in ranges if start < last]
        lanes, asides = restored(snapshot, done, later)
        keys_by_time = sorted(keys.items(), key=lambda each: each[1])
        return StorageState(lanes, asides, keys_by_time, self._given_of(lanes, asides))

    def _given_of(self, lanes: Sequence[LaneSnapshot], asides: Iterable[Aside]) -> dict[int, Given]:
        """Return how messages were handed out that are open."""
        waiting = {each.number for each in asides}
        found = {}
        for code, given in given_in(self.given.codes()).items():
            lane, number = lane_and_number(code)
            is_open = number in waiting if lane == LATER else lanes[lane].is_open(number)
            if is_open and not _is_beyond(code, self._logs):
                found[code] = given
        self.given.keep([given_of(code, *given) for code, given in found.items()])
        return found

    def _scan(self, lane: int, offset: int, number: int) -> Iterator[ReadMessage]:
        """Yield the records from a boundary on."""
        end = self._logs[lane].end_offset
        offset = max(offset, self._logs[lane].start_offset)
        while offset < end:
            found, offset, number = self._chunk(lane, offset, number)
            yield from found

    def _keyed(self, lane: int, offset: int) -> Iterator[Record]:
        """Yield the records, from a batch on, of chunks that have idempotency keys.

        Most have none, and are passed batch by batch.
        """
        log, size = self._logs[lane], _READ_BYTES
        offset = max(offset, log.start_offset)
        while offset < log.end_offset:
            data = bytes(log.reader.read(offset, size, log.end_offset))
            at = 0
            try:
                header = decode_control(data)
                while header is not None and at + header.byte_length <= len(data):
                    at += header.byte_length
                    header = decode_control(data, at)
            except CorruptData:  # whoever reads the messages tells it
                if not at:
                    offset = self._next_batch(lane, offset + 1)[0]
                    continue
            if not at:  # not one whole batch
                size = CONTROL_BYTES if header is None else header.byte_length
                continue
            if _IDEMPOTENCY in data:
                records: list[Record] = []
                with contextlib.suppress(CorruptData):
                    decode_into(data[:at], offset, records)
                yield from records
            offset, size = offset + at, _READ_BYTES

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
        for item, (found, record) in zip(items, self._scan(lane, offset, number), strict=False):
            item.id, item.number, item.offset = record.id, found, record.offset
            count += 1
        return count

    # Messages -------------------------------------------------------------------------------------
    def end_of(self, lane: int) -> tuple[int, int]:
        """Return number and offset of the message that is put next."""
        log = self._logs[lane]
        return log.messages_appended, log.end_offset

    def end_number(self, lane: int) -> int:
        """Return the number of the message that is put next."""
        return self._logs[lane].messages_appended

    def append(self, lane: int, items: Sequence[LocalItem]) -> Iterator[list[LocalItem]]:
        """Append messages; yield those of each batch, with their numbers and offsets.

        They are durable after ``flush``.

        Raises:
            DiskFull, Busy: What was not yielded is not stored; a later append may succeed.
            StorageFailed, PartitionFailed: The log has failed.
        """
        log = self._logs[lane]
        for batch in _batches(items):
            number = log.messages_appended
            ids = self._ids.take(len(batch))
            if lane == LATER:  # a copy has the id of its message
                ids = [item.id or new for item, new in zip(batch, ids, strict=True)]
            data, sizes = encode_records(
                [item.content for item in batch], [item.head for item in batch], ids
            )
            offset = log.append(
                data,
                record_count=len(batch),
                records_crc=google_crc32c.value(data),
                epoch=_EPOCH,
            )
            at = offset + CONTROL_BYTES
            for item, message_id, size in zip(batch, ids, sizes, strict=True):
                item.number = number
                item.id = message_id
                item.offset = at
                number += 1
                at += size
            yield batch

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

    def begin_flush(
        self, lanes: Iterable[int] = ALL_LANES, *, checkpoints: bool = False
    ) -> list[tuple[int, SyncTicket]]:
        """Return what ``flush`` has to make durable, by lane.

        Args:
            lanes: Of these; ``NOTES`` is one, too.
            checkpoints: Have a checkpoint cover all that was appended: a snapshot is to follow, and
                a start cuts nothing off that a checkpoint covers.
        """
        found = []
        for lane in lanes:
            log = self._logs[lane]
            if checkpoints:
                log.want_checkpoint()
            ticket = log.begin_sync()
            if ticket is not None:
                found.append((lane, ticket))
        return found

    def flush(self, tickets: Sequence[tuple[int, SyncTicket]]) -> list[BaseException | None]:
        """Make it durable. Without the lock of the queue; one call at a time."""
        return list(self._runner.run([ticket for _, ticket in tickets])) if tickets else []

    def end_flush(
        self,
        tickets: Sequence[tuple[int, SyncTicket]],
        outcome: Sequence[BaseException | None],
    ) -> dict[int, BaseException]:
        """Take the tickets back; return the errors by lane, which takes no more messages then."""
        errors = {}
        for (lane, ticket), error in zip(tickets, outcome, strict=True):
            if error is None:
                self._logs[lane].finish_sync(ticket)
            else:
                self._logs[lane].fail(error)
                errors[lane] = error
        return errors

    def read(
        self, lane: int, offset: int, number: int, count: int
    ) -> tuple[list[ReadMessage], int, int]:
        """Return some durable messages from a boundary on, and where to go on, with the number.

        What is damaged is set aside, so there may be none before that place.

        Args:
            lane: Of the messages.
            offset: Where the message of this number begins, or the batch in front of it.
            number: Of the first one.
            count: At most so many, >= 1.

        Raises:
            CorruptData, PartitionFailed, PartitionQuarantined: They cannot be read.
        """
        return self._chunk(lane, offset, number, count=count)

    def open_items(self, lane: int, snapshot: LaneSnapshot, topic: str) -> list[LocalItem]:
        """Return the messages of the open ranges of a lane.

        Raises:
            CorruptData, PartitionFailed, PartitionQuarantined: As ``read``.
        """
        items = []
        for start, end, offset, first in snapshot.opened:
            number = start if first < 0 else first
            while number < end:
                found, offset, number = self._chunk(lane, offset, number)
                items += [
                    LocalItem.stored(record, topic, lane, each, priority=lane, attempts=1)
                    for each, record in found
                    if start <= each < end
                ]
        return items

    def read_aside(self, aside: Aside, topic: str) -> LocalItem:
        """Return a message of the lane ``LATER``.

        Raises:
            CorruptData, PartitionFailed, PartitionQuarantined: As ``read``.
        """
        ((_, record),), _, _ = self._chunk(
            LATER, aside.offset, aside.number, size=_ONE_BYTES, count=1, skips=False
        )
        return LocalItem.stored(
            record,
            topic,
            LATER,
            aside.number,
            priority=aside.priority,
            attempts=aside.attempts + 1,
        )

    def _chunk(
        self,
        lane: int,
        offset: int,
        number: int,
        *,
        size: int = _READ_BYTES,
        count: int | None = None,
        skips: bool = True,
    ) -> tuple[list[ReadMessage], int, int]:
        log = self._logs[lane]
        records: list[Record] = []
        while not records and offset < log.synced_offset:
            data = bytes(log.reader.read(offset, size, log.synced_offset))
            try:
                following = decode_into(data, offset, records)
                if following == offset:  # not one whole record
                    size = bytes_needed(data)
            except CorruptData as error:
                if records:
                    following = records[-1].next_offset
                elif not skips:
                    raise
                else:
                    at = max(int(error.details.get("offset", offset)), offset)
                    following, number = self._set_aside(lane, at, number, error)
            offset = following
        if count is not None and len(records) > count:
            del records[count:]
            offset = records[-1].next_offset
        found = [ReadMessage(number + at, record) for at, record in enumerate(records)]
        return found, offset, number + len(found)

    # Damage -------------------------------------------------------------------------------------
    def set_aside(self, aside: Aside, error: CorruptData) -> None:
        """Keep the bytes of a message in ``LATER`` that cannot be read.

        Raises:
            CorruptData: They cannot be kept.
        """
        self._set_aside(LATER, aside.offset, aside.number, error)

    def _set_aside(
        self, lane: int, offset: int, number: int, error: CorruptData
    ) -> tuple[int, int]:
        """Keep the bytes that cannot be read; return the next boundary and its number.

        Raises:
            CorruptData: They cannot be kept, so nothing goes on.
        """
        log = self._logs[lane]
        following, next_number = self._past_damage(lane, offset, number)
        count = 1 if lane == NOTES else next_number - number
        path = self.directory / f"{_DAMAGED}{LOGS[lane]}.{offset}.{number}.{count}"
        found = DamagedMessages(LOGS[lane], offset, number, count, path)
        if found not in self.damaged:
            try:
                data = bytes(log.reader.read(offset, following - offset, following))
                self._disk.write_atomic(path, data)
            except OSError as failed:
                raise CorruptData(
                    f"{error}; its bytes cannot be set aside: {failed}",
                    hint=f"free space in {self.directory}, then take again",
                ) from error
            self.damaged.append(found)
        self.damaged_now += count if lane != NOTES else 0
        logger.error(
            "messages cannot be read, set aside",
            directory=log.directory,
            offset=offset,
            messages=count,
            path=path,
            error=error,
        )
        return following, next_number

    def _past_damage(self, lane: int, offset: int, number: int) -> tuple[int, int]:
        """Return the first boundary behind damage that is known to be one, and its number."""
        log = self._logs[lane]
        block = log.reader.block_at(offset)
        try:
            if block is None:
                raise CorruptData(f"no block has offset {offset}")
            batch, _ = batch_at(block, offset)
            first = log.reader.number_at(batch.start_offset)
        except CorruptData:
            return self._next_batch(lane, offset + 1)
        with contextlib.suppress(CorruptData):
            size = bytes_needed(log.reader.read(offset, _ONE_BYTES, batch.end_offset))
            following = offset + size
            if following == batch.end_offset or self._is_whole(lane, following, batch.end_offset):
                return following, number + 1
        if first is None:
            return self._next_batch(lane, batch.end_offset)
        return batch.end_offset, first + batch.record_count

    def _is_whole(self, lane: int, offset: int, end: int) -> bool:
        if offset >= end:
            return False
        reader = self._logs[lane].reader
        size = bytes_needed(reader.read(offset, _ONE_BYTES, end))
        return offset + size <= end and is_intact(bytes(reader.read(offset, size, end)))

    def _next_batch(self, lane: int, offset: int) -> tuple[int, int]:
        """Return where the next batch begins at ``offset`` or behind it, and its number.

        Damage hides the numbers of what follows, up to the next place that an index knows. They
        follow from it if the batches in between are whole.
        """
        log = self._logs[lane]
        first, count = -1, 0  # whole batches that end at ``offset``
        while (block := log.reader.block_at(offset)) is not None:
            data = block.view(offset - block.start_offset, block.end_offset - offset)
            header = first_control(bytes(data), offset)
            start = block.end_offset if header is None else header.start_offset
            number = log.messages_appended
            if start < log.end_offset:
                known = log.reader.number_at(start)
                number = -1 if known is None else known
            if first < 0 or start != offset:
                first, count = start, 0
            if number >= 0:
                return first, number - count
            if header is not None:
                count += header.record_count
            offset = start if header is None else header.end_offset
        return log.end_offset, log.messages_appended

    # Snapshots ------------------------------------------------------------------------------------
    @property
    def _put_bytes(self) -> int:
        return sum(log.end_offset for log in self._logs[:NOTES])

    @property
    def wants_snapshot(self) -> bool:
        """Whether so much was written since the last snapshot that a restart would take long."""
        notes = self._logs[NOTES].end_offset - self._notes_from
        return notes >= _NOTES_BYTES or self._put_bytes - self._put_from >= _PUT_BYTES

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
        self._notes_from, self._put_from = snapshot.notes, self._put_bytes
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


def _is_beyond(code: int, logs: Sequence[Log]) -> bool:
    lane, number = lane_and_number(code)
    return number >= logs[lane].messages_appended


def origin_of(item: LocalItem) -> str:
    """Return how a copy in ``later`` names its message."""
    return f"{LANE_TOPIC}-{item.lane}@{item.number}"


def _moved_from(origin: str) -> tuple[int, int] | None:
    """Return lane and number in the origin of a copy; None: it is no copy."""
    if not origin:
        return None
    lane, _, number = origin.removeprefix(f"{LANE_TOPIC}-").partition("@")
    return int(lane), int(number)


def _aside_of(number: int, record: Record) -> tuple[Aside, tuple[int, int] | None]:
    """Return what a record of ``later`` says, and of a copy the lane and number of its message."""
    found = decode_properties(record.properties or b"")
    to = found.destination or TopicPartition(LANE_TOPIC, 0)
    aside = Aside(
        found.delivery_time_ms, number, record.offset, to.partition, found.retry_count, record.id
    )
    return aside, _moved_from(found.origin)


def _note_key(record: Record, keys: dict[str, int]) -> None:
    if record.properties is not None and _IDEMPOTENCY in record.properties:
        properties = decode_properties(record.properties)
        key = properties.headers.get(IDEMPOTENCY_HEADER)
        if key is not None and not properties.origin:
            keys[key] = time_ms_of(record.id)


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
