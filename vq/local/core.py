"""A local queue without its API: messages come in, one thread commits them, takers get them.

Callers put messages and codes of completed ones into ``intake``; the thread ``vq-local`` takes all
there is, appends it, flushes once for all of it (group commit), and wakes who waits. While it
flushes, the next round gathers. The same thread watches times: delays, retries, leases.

A caller that finds nobody at work commits its messages itself (``lead``): that saves the hand-over
to the thread and back. ``_leading`` is held by whoever commits.

``_lock`` guards the state and the logs, not the waits for the disk. A put, a take and a completion
take no lock: each is one operation of a deque or a set. That relies on the interpreter's own lock
(vq refuses to run without it).
"""

import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from vq import limits
from vq.client.producer.intake.delays import due_ms_of
from vq.client.producer.intake.stages import Head, Heads, as_bytes, encode_head
from vq.clock import Clock
from vq.errors import (
    BufferFull,
    Busy,
    CorruptData,
    DiskFull,
    InvalidArgument,
    InvalidState,
    LeaseLost,
    MessageTooLarge,
    StorageFailed,
    VqError,
)
from vq.local.items import IDEMPOTENCY_HEADER, LATER, PRIORITY_MAX, LocalItem, split_head
from vq.local.notes import Aside, LaneRange, code_of
from vq.local.pad import SLOTS, Given, given_of
from vq.local.settings import LocalQueueConfig, WhenCrowded
from vq.local.state import QueueState
from vq.local.storage import (
    ALL_LANES,
    LANE_TOPIC,
    LOGS,
    NOTES,
    DamagedMessages,
    Storage,
    origin_of,
)
from vq.local.waits import (
    DONE_LINGER_S,
    CommitWaiter,
    Company,
    Intake,
    LineOfWakers,
    Sleeper,
    Waker,
    error_of,
    is_unstored,
)
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition
from vq.shown import shown
from vq.store.disk.disk import Disk
from vq.store.records.record import Properties, encode_properties

__all__ = ["LocalCounts", "QueueCore", "delay_of"]

logger = get_logger(__name__)

#: Capacity of a queue in memory without one of its own.
MEMORY_CAPACITY: Final = 100_000
#: So many messages, or bytes, that no commit has yet; then a put waits for a commit.
_INTAKE_ITEMS: Final = 50_000
_INTAKE_BYTES: Final = 64 * limits.MIB
#: Before the next try to write to a disk that is full.
_FULL_PAUSE_S: Final = 1.0
#: Messages that are due and have no room in memory are looked for again after so long.
_CROWDED_PAUSE_S: Final = 0.05
_LEASE_LOOKS: Final = 10  # per lease
_LEASE_LOOK_S: Final = 0.02  # ... and not more often
_DELAY_S_MAX: Final = 40 * 24 * 3600.0
_KEY_CHARS_MAX: Final = 256
#: So many bytes of contents are few: they are copied, so that the blocks they lie in can go.
_MOVED_BYTES: Final = 8 * limits.MIB
_JOIN_S: Final = 60.0

_FORKED: Final = "the process was forked after the queue was opened: open it in the child"
_MADE: "weakref.WeakSet[QueueCore]" = weakref.WeakSet()
_no_lease: Final = math.inf


@dataclass(slots=True)
class LocalCounts:
    """What happened since the queue was opened.

    Attributes:
        delayed: Messages that were put with a time, of a queue in a directory.
        failed: Times that a taker gave one back.
        expired: Leases that ended.
        dropped: Messages that a ring dropped.
        repeated: Puts whose key was seen already.
        commits: Rounds of the thread.
    """

    delayed: int = 0
    failed: int = 0
    expired: int = 0
    dropped: int = 0
    repeated: int = 0
    commits: int = 0


class Led(NamedTuple):
    """What a caller commits by itself.

    Attributes:
        items: Its messages.
        lane: Of all of them.
        number, offset: The end of that lane before.
    """

    items: Sequence[LocalItem]
    lane: int
    number: int
    offset: int


class KeyOnItsWay(Busy):
    """Another put with the same idempotency key has not ended."""


class QueueCore:
    """One queue of one process. ``LocalQueue`` and ``vq.aio.LocalQueue`` are its API.

    Args:
        directory: Where it is; None: in memory only.
        config: How it behaves.
        disk: The disk.
        clock: The clock.

    Attributes:
        name: The topic of its messages.
        config: As given.
    """

    def __init__(
        self, directory: Path | None, config: LocalQueueConfig, disk: Disk, clock: Clock
    ) -> None:
        self.config = config
        self.directory = directory
        self.name = config.name or _name_of(directory)
        self._clock = clock
        self.lock = threading.RLock()  # never taken twice: see ``check_not_interrupting``
        self._is_locking: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.state = QueueState(config, durable=directory is not None)
        self._storage: Storage | None = None
        self.size_at_open = self._numbers_at_open = 0
        self.in_memory = directory is None
        self.capacity = config.capacity
        if directory is None:
            self.capacity = config.capacity or MEMORY_CAPACITY
        elif config.when_full is WhenCrowded.DROP_OLDEST:
            raise InvalidArgument(
                "when_full = 'drop-oldest' is for a queue in memory only: one in a directory keeps "
                "what it was given; give 'block' or 'raise'"
            )
        # What the fast paths use.
        self.room_below = self.capacity or 0  # so many messages may be in ``_opened``, in memory
        self._numbers = itertools.count()
        self.following = self._numbers.__next__  # numbers of messages in memory
        self.opened = self.state.opened
        self.first_line = self.state.lines[0].ready
        self.lease_s = _no_lease if config.lease_s is None else config.lease_s
        self.takers = LineOfWakers()
        self.spaces = LineOfWakers()  # who waits until messages are completed
        # Idempotency keys of puts that have not ended.
        self.coming: dict[str, weakref.ref[LocalItem]] = {}
        self._key_of: weakref.WeakKeyDictionary[LocalItem, str] = weakref.WeakKeyDictionary()
        self.arrivals = LineOfWakers()  # who waits for one of these
        self.intake = Intake()
        self.sleeper = Sleeper(self.intake)
        self.counts = LocalCounts()
        self.refusal: VqError | None = None
        self.stopped: dict[int, StorageFailed] = {}  # lanes that take no more messages, and why
        self.lost_error: VqError | None = None  # of the last put that nobody waited for,
        self.losses = 0  # and so often there was one
        self.is_served = False  # to other processes
        self.wants_save = False  # the next commit ends with a snapshot
        self._next_look = self._note_at = clock.monotonic()
        self._company = Company()
        self._leading = threading.RLock()
        self._is_leading: Callable[[], bool] = self._leading._is_owned  # type: ignore[attr-defined]
        self._thread_waits = False  # for ``_leading``
        self._led: Led | None = None  # what a caller commits; left behind if it was interrupted
        if directory is not None:
            self._open(directory, disk, clock)
        self._thread = threading.Thread(target=self._work, name="vq-local", daemon=True)
        self._thread.start()
        _MADE.add(self)

    def _open(self, directory: Path, disk: Disk, clock: Clock) -> None:
        storage, found = Storage.open(directory, disk, clock)
        try:
            state = self.state
            for lane, was in enumerate(found.lanes):
                line = state.lines[lane]
                line.end_number = storage.end_number(lane)
                self._numbers_at_open += line.end_number
                line.skip(was.skipped)
                items = storage.open_items(lane, was, self.name)
                items = self._told_how_often(items, found.given)
                state.loaded(lane, items, was.next_number, was.next_offset)
            state.plain = False
            state.restore_asides(self._given_before(each, found.given) for each in found.asides)
            state.given = {code: was for code, was in found.given.items() if code & 3 != LATER}
            state.keys.update(found.keys)
            for failed in self._flush(storage, checkpoints=True).values():
                raise failed
            self._save_at_open(storage)
        except BaseException:
            storage.close()
            raise
        self._storage = storage
        self.size_at_open = state.size

    def _told_how_often(self, items: list[LocalItem], given: dict[int, Given]) -> list[LocalItem]:
        """Return messages that were read and go into line, with how often they were given.

        What was in hand at a crash has failed once more. As after a failure, one that has used up
        its retries waits for a time: whatever ends its process does not stop the others.
        """
        if not given:
            return items
        in_line = []
        for item in items:
            was = given.pop(code_of(item.lane, item.number), None)
            if was is not None:
                item.attempts = was.times
                again = item.again(was.times + 1)
                if was.times > self.config.retries and not was.keeps_place:
                    self.opened.add(again)
                    self._set_aside(item, again, self._retry_ms())
                    continue
                item = again
            in_line.append(item)
        return in_line

    def _given_before(self, aside: Aside, given: Mapping[int, Given]) -> Aside:
        was = given.get(code_of(LATER, aside.number))
        if was is None:
            return aside
        due_ms = aside.due_ms
        if was.times > self.config.retries:
            due_ms = max(due_ms, self._retry_ms())
        return aside._replace(due_ms=due_ms, attempts=max(aside.attempts, was.times))

    def _retry_ms(self) -> int:
        return self._clock.wall_ms() + math.ceil(self.config.retry_s * 1000)

    def note_given(self, item: LocalItem, tries: int = 0, *, keeps_place: bool = False) -> None:
        """Note that somebody begins to handle a message: a crash counts as a failure then.

        Args:
            item: The message.
            tries: So often it failed since it was taken.
            keeps_place: It stays where it is in line, however often it fails so.
        """
        storage = self._storage
        if storage is not None:
            code = code_of(item.lane, item.number)
            try:
                storage.given.note(given_of(code, item.attempts + tries, keeps_place))
            except ValueError:  # it was closed just now
                pass

    def _save_at_open(self, storage: Storage) -> None:
        snapshot = self.state.snapshot(storage.ends, storage.later_end, storage.notes_end)
        try:
            storage.save(snapshot)
        except OSError as error:  # a full disk: takers make room, and the logs say the same
            self._tell_unsaved(error)
            self.wants_save = True
        else:
            storage.saved(snapshot)

    def _tell_unsaved(self, error: OSError) -> None:
        logger.warning("snapshot cannot be written", queue=self.name, error=error)

    # Messages come in -----------------------------------------------------------------------------
    def prepare(
        self,
        content: object,
        delay_s: float | None,
        priority: int,
        idempotency_key: str | None,
        told: Mapping[str, str] | None = None,
    ) -> LocalItem | None:
        """Return what to store for a put; None: its key was seen within the window.

        ``told`` has the headers of vq's own that a copy has beside those of the message.

        Raises:
            InvalidArgument, MessageTooLarge: An argument is unusable.
            BufferFull: Too many messages wait for their times.
            KeyOnItsWay: What another put with this key comes to, decides what this one does.
        """
        self.check_not_interrupting()
        message = content if isinstance(content, Message) else Message("", content)
        tag, key, headers = message.tag, message.key, message.headers
        if delay_s is None:
            delay_s = delay_of(message, self._clock)
        data = content_of(message)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidArgument(f"priority = {shown(priority)} is no number")
        if not 0 <= priority <= PRIORITY_MAX:
            raise InvalidArgument(
                f"priority = {priority} is outside [0, {PRIORITY_MAX}]; a higher one goes first"
            )
        head: Head | None = Heads.of(tag, key, headers)
        due_ms = None if delay_s is None else self._due_ms(delay_s)
        if idempotency_key is not None and not self.in_memory:
            _check_key(idempotency_key)
        if due_ms is not None or told or (idempotency_key is not None and not self.in_memory):
            named = dict(told or {})
            if idempotency_key is not None:
                named[IDEMPOTENCY_HEADER] = idempotency_key
            head = _with_properties(
                head,
                Properties(
                    key,
                    {**(headers or {}), **named},
                    due_ms or 0,
                    destination=None if due_ms is None else TopicPartition(LANE_TOPIC, priority),
                ),
            )
        lane = priority if due_ms is None else LATER
        item = LocalItem(data, self.name, lane, priority, head, 1 if due_ms is None else 0)
        if due_ms is not None:
            item.deadline = due_ms
            delayed = len(self.state.asides) - self.state.failed
            if delayed >= self.config.later_max:
                raise BufferFull(
                    f"{delayed} delayed messages wait for their times; later_max = "
                    f"{self.config.later_max}",
                    hint="try again when some were given, or raise later_max",
                )
        if idempotency_key is not None:
            _check_key(idempotency_key)
            with self.lock:
                if idempotency_key in self.coming:
                    raise KeyOnItsWay(f"a put with the key {idempotency_key!r} has not ended")
                if self.state.knows(idempotency_key, self._clock.wall_ms()):
                    self.counts.repeated += 1
                    return None
                self._key_of[item] = idempotency_key
                self.coming[idempotency_key] = weakref.ref(item, self._gone(idempotency_key))
        return item

    def _gone(self, key: str) -> "Callable[[weakref.ref[LocalItem]], None]":
        """Return what notes that the message of a put is nowhere: the put was interrupted."""

        def forget(gone: "weakref.ref[LocalItem]") -> None:  # anywhere, so without the lock
            if self.coming.get(key) is gone:
                self.coming.pop(key, None)
                self.arrivals.wake_all()

        return forget

    def _due_ms(self, delay_s: float) -> int | None:
        if isinstance(delay_s, bool) or not isinstance(delay_s, int | float):
            raise InvalidArgument(f"delay_s = {shown(delay_s)} is no number of seconds")
        if not 0 <= delay_s <= _DELAY_S_MAX:
            raise InvalidArgument(f"delay_s = {delay_s} is outside [0, {_DELAY_S_MAX:.0f}]")
        return self._clock.wall_ms() + math.ceil(delay_s * 1000) if delay_s else None

    def add_in_memory(self, item: LocalItem) -> None:
        """Give a message of a queue in memory to takers."""
        item.number = self.following()
        if item.lane == LATER:
            with self.lock:
                self.room_below -= 1  # those that wait for a time take room, too
                due_ms, item.deadline, item.attempts = int(item.deadline), 0.0, 1
                self.state.set_aside(item, due_ms, 0)
                self._remember_keys((item,))
            self.sleeper.kick()
            return
        self.opened.add(item)
        self.state.lines[item.priority].ready.append(item)
        item.offset = 0  # it is in line now, for ``QueueState.overdue``
        if item.priority:
            self.state.plain = False
        if self._key_of:
            with self.lock:
                self._remember_keys((item,))
        if self.takers.line:
            self.takers.wake(1)

    def is_full(self, more: int = 1) -> bool:
        """Whether a put must not add so many messages now."""
        capacity = self.capacity
        return capacity is not None and self.size + more > capacity

    def lacks_room(self, count: int) -> bool:
        """Whether a put of so many messages must wait; a ring drops what is in their way.

        Raises:
            BufferFull: It is not to wait.
            InvalidState, StorageFailed: As ``check``.
        """
        while self.is_full(count):
            self.check()
            if self.config.when_full is WhenCrowded.DROP_OLDEST and self.drop_oldest():
                continue
            if self.config.when_full is WhenCrowded.RAISE:
                raise self.full()
            return True
        return False

    def is_usable(self) -> bool:
        """Return True, or raise as ``check`` does."""
        self.check()
        return True

    @property
    def size(self) -> int:
        """How many messages are not completed."""
        return self.state.size + self.intake.size

    def full(self) -> BufferFull:
        """Return the error of a put at the bound."""
        return BufferFull(
            f"queue {self.name!r} has {self.size} messages that are not completed; its "
            f"capacity is {self.capacity}",
            hint="take and complete messages, wait longer, or raise capacity",
        )

    def check_fits(self, count: int) -> None:
        """Refuse so many messages at once if they can never have room.

        Raises:
            InvalidArgument: They cannot.
        """
        if self.capacity is not None and count > self.capacity:
            raise InvalidArgument(f"{count} messages at once; the capacity is {self.capacity}")

    def give_up(self, item: LocalItem) -> None:
        """Note that a put has ended and its message is not there: another one may use its key."""
        if item in self._key_of:
            with self.lock:
                self._forget_key_of(item)

    def _forget_key_of(self, item: LocalItem) -> None:
        key = self._key_of.pop(item, None)
        if key is not None:
            self.coming.pop(key, None)
            self.arrivals.wake_all()

    def _remember_keys(self, items: Iterable[LocalItem]) -> None:
        """Note that messages are there: puts with their keys add nothing. Under the lock."""
        now_ms = self._clock.wall_ms()
        for item in items if self._key_of else ():
            key = self._key_of.pop(item, None)
            if key is not None:
                self.coming.pop(key, None)
                self.state.remember(key, now_ms)
        self.arrivals.wake_all()

    def drop_oldest(self) -> bool:
        """Drop the message in line that waits longest, of the lowest priority; False: none does."""
        for line in self.state.lines:
            try:
                item = line.ready.popleft()
            except IndexError:
                continue
            self.opened.discard(item)
            self.counts.dropped += 1
            return True
        return False

    def accept(self, items: Sequence[LocalItem], waiter: CommitWaiter | None) -> None:
        """Have messages stored with the next commit; ``waiter`` hears of its end."""
        self.intake.items.extend(items)
        if waiter is None:
            self.intake.size_bytes += sum(len(item.content) for item in items)
        else:
            self.intake.barriers.append(waiter)
            if self.refusal is not None:  # it may have missed the end
                self._refuse_waiters()
        if self.sleeper.idle:
            self.sleeper.kick()

    def lead(self, items: Sequence[LocalItem]) -> bool:
        """Commit messages on the thread of their caller; False: they are to be accepted.

        Only if nobody else commits or is about to. An exception that is raised in between (Ctrl-C)
        leaves ``_led`` behind: the thread puts the log in order before it is used again. For that
        each step may be interrupted wherever CPython looks for signals: when a function begins,
        when a call has returned and when a loop turns.

        Raises:
            DiskFull: They are not stored.
            StorageFailed, OutcomeUnknown: It is unknown whether they are.
        """
        intake, storage, lane = self.intake, self._storage, items[0].lane
        if (
            self._thread_waits
            or intake.items
            or intake.barriers
            or not self._company.is_alone(self.counts.commits)
            or storage is None
            or lane == LATER
            or any(item.lane != lane for item in items)
        ):
            return False
        errors: Mapping[int, VqError]
        try:
            if not self._leading.acquire(blocking=False):
                return False
            if self.sleeper.is_ending or self.refusal is not None or self._led is not None:
                return False
            self._led = Led(items, lane, *storage.end_of(lane))
            errors = self._write(storage, items, (), flushed=(lane,))
            if errors:
                self._settle_unstored(items, errors, set(items))
            self._led = None
        except BaseException:
            self.sleeper.kick()
            raise
        finally:
            try:
                self._leading.release()
            except RuntimeError:  # somebody else holds it
                pass
        if storage.wants_snapshot:
            self.sleeper.kick()
        if errors:
            error = error_of(items, errors)
            if error is not None:
                raise error
        return True

    def check_not_interrupting(self) -> None:
        """Refuse a call by a signal handler inside of a call of the same thread: it would hang.

        Raises:
            InvalidState: It is one.
        """
        if self._is_leading() or self._is_locking():
            raise InvalidState(
                f"queue {self.name!r} was called by a signal handler that interrupted a call of "
                "the same thread",
                hint="set a flag in the handler, and call the queue once that call has returned",
            )

    @property
    def intake_full(self) -> bool:
        """Whether so many messages wait for a commit that a put must wait, too."""
        return len(self.intake.items) >= _INTAKE_ITEMS or self.intake.size_bytes >= _INTAKE_BYTES

    def check(self) -> None:
        """Return if the queue can be used.

        Raises:
            InvalidState: It is closed, or the process was forked.
            StorageFailed: Its disk has failed; reopen it.
        """
        refusal = self.refusal
        if refusal is not None:
            raise type(refusal)(refusal.message, hint=refusal.hint)
        self.check_not_interrupting()

    # Messages go out ------------------------------------------------------------------------------
    def take_now(self) -> LocalItem | None:
        """Return the next message; None: there is none now. May read from the disk.

        Raises:
            InvalidState, StorageFailed: As ``check``.
            CorruptData, PartitionFailed, PartitionQuarantined: The next message cannot be read.
        """
        self.check()
        unreadable: dict[int, VqError] = {}
        while True:
            with self.lock:
                found = self.state.next_ready(unreadable)
                if isinstance(found, LocalItem):
                    found.deadline = self._clock.monotonic() + self.lease_s
                    return found
                if found is None:
                    for error in unreadable.values():
                        raise error
                    return None
                try:
                    count = self.load(found)
                except VqError as error:  # the other lanes go on
                    unreadable[found] = error
                    continue
            if count > 1 and self.takers.line:
                self.takers.wake(count - 1)

    def load(self, lane: int) -> int:
        """Read some messages of a lane; return how many. Under the lock."""
        storage, state = self._storage, self.state
        assert storage is not None
        line = state.lines[lane]
        room = max(line.room(self.config), 1)
        found, offset, number = storage.read(lane, line.next_offset, line.next_number, room)
        if number == line.next_number:
            raise CorruptData(
                f"message {line.next_number} of {self.directory}/lane-{lane} is missing"
            )
        items = [
            LocalItem.stored(record, self.name, lane, number, priority=lane, attempts=1)
            for number, record in found
            if not line.skipped or state.wanted(lane, number)
        ]
        before, count = line.unread, len(items)
        items = self._told_how_often(items, state.given)
        state.loaded(lane, items, number, offset)
        if len(items) < count:
            self.sleeper.kick()
        if line.unread + count < before:  # some are damaged, and set aside
            self.spaces.wake_all()
        return len(items)

    def unread(self, lane: int, count: int) -> list[LocalItem]:
        """Return the first messages of a lane that are on disk only. Under the lock."""
        line, storage = self.state.lines[lane], self._storage
        if storage is None or not line.unread:
            return []
        items: list[LocalItem] = []
        number, offset = line.next_number, line.next_offset
        while number < line.end_number and len(items) < count:
            found, offset, number = storage.read(lane, offset, number, count)
            items += [
                LocalItem.stored(
                    record,
                    self.name,
                    lane,
                    each,
                    priority=lane,
                    attempts=self.state.times_given(lane, each) + 1,
                )
                for each, record in found
                if self.state.wanted(lane, each)
            ]
        return items[:count]

    def item_of(self, aside: Aside) -> LocalItem:
        """Return the message that waits for a time, for its next taker. Under the lock."""
        if self._storage is None:
            return self.state.kept[aside.number]
        return self._storage.read_aside(aside, self.name)

    def counted(self) -> int:
        """Return how many messages were put since the queue was opened."""
        if self.in_memory:
            return int(self._numbers.__reduce__()[1][0])  # without taking one
        stored = sum(line.end_number for line in self.state.lines) - self._numbers_at_open
        return stored + self.counts.delayed

    @property
    def identity(self) -> str:
        """What no other queue has; "" of a queue in memory."""
        return "" if self._storage is None else self._storage.identity

    @property
    def size_bytes(self) -> int:
        """Bytes of all logs."""
        return 0 if self._storage is None else self._storage.size_bytes

    def wait_for_message(self, taker: Waker) -> bool:
        """Have a taker woken when there may be a message; False: there may be one already."""
        self.takers.line.append(taker)
        if self.state.has_next or self.refusal is not None:
            return not self.takers.leave(taker)
        return True

    def pass_on(self) -> None:
        """Wake another taker in the place of one that does not look any more."""
        if self.takers.line and self.state.has_next:
            self.takers.wake(1)

    @property
    def must_read(self) -> bool:
        """Whether the next message may be on disk only."""
        return any(line.unread and not line.ready for line in self.state.lines)

    def give_back(self, item: LocalItem) -> None:
        """Give a message again that no taker has seen."""
        if self.refusal is not None:  # as in ``extend_item``; a new start gives it again
            return
        self.check_not_interrupting()
        with self.lock:
            again = self.state.exchange(item, item.attempts)
            if again is not None:
                self.state.give(again)
        self.takers.wake()

    # What becomes of them -------------------------------------------------------------------------
    def complete(self, item: LocalItem) -> None:
        """Note that a message is done.

        Raises:
            LeaseLost, InvalidArgument, InvalidState, StorageFailed: As ``lost``.
        """
        try:
            self.opened.remove(item)
        except (KeyError, TypeError):
            raise self.lost(item) from None
        self.note_done(item)

    def note_done(self, item: LocalItem) -> None:
        """Note that a message is completed; it was removed from ``opened``."""
        storage = self._storage
        if storage is not None:
            code = item.number << 2 | item.lane
            try:
                storage.pad.note(code)
            except ValueError:  # it was closed just now
                raise InvalidState("the queue is closed; the message is given again") from None
            self.intake.done.append(code)
            if self.sleeper.asleep:
                self.sleeper.kick()
        if self.spaces.line:
            self.spaces.wake()

    @property
    def done_full(self) -> bool:
        """Whether so many completions are in no note that the next one must wait."""
        return len(self.intake.done) >= SLOTS // 2

    def lost(self, item: object) -> VqError:
        """Return the error for an item that does not stand for its message."""
        if self.refusal is not None:
            return type(self.refusal)(self.refusal.message, hint=self.refusal.hint)
        try:
            own = check_item(item, self.name)
        except InvalidArgument as error:
            return error
        return LeaseLost(
            f"message {own.id} of queue {self.name!r} is not with this taker any more: it was "
            "completed or failed, or its lease ended and it was given to another one"
        )

    def fail_item(self, item: LocalItem, delay_s: float | None = None) -> None:
        """Give a message again: at once, after ``delay_s``, or as the retries say.

        Raises:
            LeaseLost: The item does not stand for it any more.
            StorageFailed: It cannot be moved to the retry lane; it stays with the taker.
        """
        self.check()
        if not isinstance(item, LocalItem):
            raise self.lost(item)
        if delay_s is not None:
            self._due_ms(delay_s)
        elif item.attempts > self.config.retries:
            delay_s = self.config.retry_s
        stopped = self.stopped.get(LATER)
        if stopped is not None and delay_s and item.lane != LATER:
            raise StorageFailed(stopped.message, hint=stopped.hint)
        with self.lock:
            again = self.state.exchange(item, item.attempts + 1)
            if again is None:
                raise self.lost(item)
            self.counts.failed += 1
            if not delay_s:
                self.state.give(again)
            else:
                self._set_aside(item, again, self._clock.wall_ms() + math.ceil(delay_s * 1000))
        if not delay_s:
            self.takers.wake(1)
        else:
            self.sleeper.kick()  # whether it sleeps or not: it may have looked at times before

    def _set_aside(self, item: LocalItem, again: LocalItem, due_ms: int) -> None:
        if self.in_memory or item.lane == LATER:
            self.opened.discard(again)
            self.state.set_aside(again, due_ms, item.attempts)
            self.room_below -= 1
            return
        again.deadline = _no_lease  # nobody gets it before its copy is stored
        copy = self._copy_for_later(item, due_ms, item.attempts)
        self.intake.moves[copy] = again
        self.intake.items.append(copy)

    def _copy_for_later(self, item: LocalItem, due_ms: int, given: int) -> LocalItem:
        """Return a copy for the lane ``LATER``, which names its message; ``given`` times given."""
        found = item.properties
        properties = Properties(
            found.key,
            found.headers,
            due_ms,
            given,
            origin_of(item),
            TopicPartition(LANE_TOPIC, item.priority),
        )
        head = _with_properties(item.head, properties)
        copy = LocalItem(item.content, self.name, LATER, item.priority, head, given)
        copy.id, copy.deadline = item.id, due_ms
        return copy

    def extend_item(self, item: LocalItem) -> None:
        """Begin the lease of a message anew.

        Raises:
            LeaseLost: The item does not stand for it any more.
        """
        if not isinstance(item, LocalItem):
            raise self.lost(item)
        if self.refusal is not None:  # in the child of a fork the lock may be held for ever
            raise self.lost(item)
        self.check_not_interrupting()
        with self.lock:
            if item not in self.opened:
                raise self.lost(item)
            item.deadline = self._clock.monotonic() + self.lease_s

    # The thread -----------------------------------------------------------------------------------
    def _work(self) -> None:
        try:
            while True:
                if self.sleeper.has_work or self.intake.done or self._led or self._wants_save:
                    self._thread_waits = True
                    with self._leading:
                        self._thread_waits = False
                        self._work_once()
                wait_s = self._watch_times()
                if self.sleeper.is_ending and (self.intake.unwritten or not self._has_messages):
                    return
                self.sleeper.sleep(wait_s)
        except BaseException as error:  # somebody waits for this thread
            logger.exception("local queue failed", queue=self.name)
            self._break(error)

    def _work_once(self) -> None:
        """Commit what there is. Under ``_leading``."""
        if self._led is not None:
            led, self._led = self._led, None
            self._mend(led)
        if self._company.expected:
            self._company.gather(self.sleeper, self.counts.commits)
        if self.sleeper.has_work or self.intake.done:
            self._commit()
        elif self._wants_save:
            self._save_state()

    def _mend(self, led: "Led") -> None:
        """Open a log anew whose writer was interrupted, and publish what of it is stored.

        What is not stored stays so: its caller has not returned.
        """
        storage = self._storage
        assert storage is not None
        logger.info("a put was interrupted", queue=self.name, messages=len(led.items))
        with self.lock:
            try:
                storage.reopen(led.lane)
                count = storage.stored_again(led.lane, led.offset, led.number, led.items)
            except (VqError, OSError) as error:
                self._stop_lane(led.lane, error)
                count = 0
            if count and self.state.lines[led.lane].end_number == led.number:
                self._publish(led.lane, led.items[:count])
            for item in led.items[count:]:
                self._forget_key_of(item)
        self.takers.wake(count)

    @property
    def _has_messages(self) -> bool:
        return bool(self.intake.items or self.intake.barriers or self.intake.done)

    def _commit(self) -> None:
        """Store and flush all that came in, give it to takers, and wake who waits for it."""
        now = self._clock.monotonic()
        is_due = now >= self._note_at or self.done_full or self.sleeper.is_ending
        waiters, batch, codes = self.intake.take(notes_due=is_due)
        if codes:
            self._note_at = now + DONE_LINGER_S
        purged = [self.intake.purged.popleft() for _ in range(len(self.intake.purged))]
        storage = self._storage
        errors: Mapping[int, VqError] = {}
        if storage is not None:
            errors = self._write(storage, batch, codes, purged=purged)
            if self._wants_save:
                self._save_state()
        self.intake.committing = 0
        if errors and self.refusal is None:
            waited = {item for waiter in waiters for item in waiter.items}
            self._settle_unstored(batch, errors, waited)
        self._company.note(
            self.counts.commits, len(waiters), len(self.intake.barriers), messages=len(batch)
        )
        for waiter in waiters:
            waiter.end(errors)
        refused = [error for error in errors.values() if isinstance(error, DiskFull | Busy)]
        if refused and self.sleeper.is_ending and isinstance(refused[0], DiskFull):
            self.intake.unwritten = refused[
                0
            ]  # the pad and the logs have all but puts that did not wait
        elif refused:
            time.sleep(_FULL_PAUSE_S)
            self.intake.items.extend(self.intake.unmoved)
            self.intake.unmoved = []

    def _settle_unstored(
        self, batch: Iterable[LocalItem], errors: Mapping[int, VqError], waited: set[LocalItem]
    ) -> None:
        """Decide what becomes of messages that are not stored; ``waited``: their puts are told."""
        given = 0
        with self.lock:
            for item in batch:
                if item.lane not in errors or not is_unstored(item, errors[item.lane]):
                    continue
                moved = self.intake.moves.get(item)
                if moved is None:
                    self._forget_key_of(item)
                    if item not in waited:
                        self.lost_error = errors[item.lane]
                        self.losses += 1
                elif LATER in self.stopped:  # it waits for no time: its next failure tells
                    del self.intake.moves[item]
                    moved.deadline = 0.0
                    self.state.give(moved)
                    given += 1
                else:
                    self.intake.unmoved.append(item)
        self.takers.wake(given)

    def _write(
        self,
        storage: Storage,
        batch: Sequence[LocalItem],
        codes: Sequence[int],
        *,
        purged: Sequence[LaneRange] = (),
        flushed: Iterable[int] = ALL_LANES,
    ) -> Mapping[int, VqError]:
        """Store, flush these lanes, and publish; return what went wrong, by lane."""
        if self.refusal is not None:
            return dict.fromkeys(ALL_LANES, self.refusal)
        lanes: dict[int, list[LocalItem]] = {}
        for item in batch:
            lanes.setdefault(item.lane, []).append(item)
        stored: list[tuple[int, list[LocalItem]]] = []
        errors: dict[int, VqError] = {}
        with self.lock:
            for lane, items in lanes.items():
                try:
                    for part in storage.append(lane, items):
                        stored.append((lane, part))  # noqa: PERF401  one may raise
                except (DiskFull, Busy) as refused:
                    errors[lane] = refused
                except VqError as failed:
                    errors[lane] = self._stop_lane(lane, failed)
            try:
                if codes or purged:
                    storage.note(codes, purged)
                    codes = purged = ()
            except (DiskFull, Busy) as refused:
                errors[NOTES] = refused
            except VqError as failed:
                return dict.fromkeys(ALL_LANES, self._break(failed))
            tickets = storage.begin_flush(flushed)
        begin = self._clock.monotonic()
        outcome = storage.flush(tickets)
        self._company.flush_s = self._clock.monotonic() - begin
        if codes:
            self.intake.done.extendleft(reversed(codes))
        self.intake.purged.extend(purged)
        with self.lock:
            failures = storage.end_flush(tickets, outcome)
            if NOTES in failures:
                return dict.fromkeys(ALL_LANES, self._break(failures[NOTES]))
            for lane, failure in failures.items():
                errors[lane] = self._stop_lane(lane, failure)
            self.counts.commits += 1
            ready = sum(
                self._publish(lane, items) for lane, items in stored if lane not in self.stopped
            )
            self.intake.committing = 0
        if ready and self.takers.line:
            self.takers.wake(ready)
        return errors

    @property
    def _wants_save(self) -> bool:
        return self.wants_save or (self._storage is not None and self._storage.wants_snapshot)

    def _save_state(self) -> None:
        storage = self._storage
        if storage is not None and self.refusal is None:
            self.wants_save = False
            self._move_forward(storage)
            self.save()

    def _publish(self, lane: int, items: Sequence[LocalItem]) -> int:
        if self._key_of:
            self._remember_keys(items)
        if lane != LATER:
            ready = self.state.publish(lane, items)
            return ready or len(items)  # or a taker reads them from the disk
        self.counts.delayed += len(items)
        for copy in items:
            self.state.set_aside(copy, int(copy.deadline), copy.attempts)
            moved = self.intake.moves.pop(copy, None)
            if moved is not None:
                self.counts.delayed -= 1
                self.opened.discard(moved)
                self.intake.done.append(code_of(moved.lane, moved.number))
        return 0

    def _move_forward(self, storage: Storage) -> None:
        """Copy the few messages that keep the oldest blocks of the lane ``LATER`` to its end.

        As with a message that fails, the one record says that the copy is there and the message is
        gone. Only this thread gives asides to takers, so none of them is given meanwhile.
        """
        if LATER in self.stopped:
            return
        copies: dict[LocalItem, Aside] = {}
        places: dict[int, tuple[int, int]] = {}
        size = 0
        with self.lock:
            try:
                for block in self.state.few_in(storage.later_blocks):
                    some = self._copies_of(block, _MOVED_BYTES - size)
                    if some is None:
                        break
                    copies |= some
                    size += sum(len(each.content) for each in some)
                if not copies:
                    return
                for part in storage.append(LATER, list(copies)):
                    places |= {copies[each].number: (each.number, each.offset) for each in part}
            except (DiskFull, Busy, CorruptData) as error:
                logger.info("old messages cannot be moved", queue=self.name, error=error)
            except VqError as failed:
                self._stop_lane(LATER, failed)
                return
        if self._flush(storage) and LATER in self.stopped:
            return
        with self.lock:
            gone = self.state.moved(places)
            self.intake.done.extend(code_of(LATER, number) for number in gone)

    def _copies_of(self, asides: Iterable[Aside], most: int) -> dict[LocalItem, Aside] | None:
        """Return copies of messages of at most so many bytes; None: they have more."""
        copies: dict[LocalItem, Aside] = {}
        for aside in asides:
            item = self.item_of(aside)
            most -= len(item.content)
            if most < 0:
                return None
            copies[self._copy_for_later(item, aside.due_ms, aside.attempts)] = aside
        return copies

    def save(self) -> None:
        """Save a snapshot, and drop what nobody needs any more. For the thread only."""
        storage = self._storage
        assert storage is not None
        if NOTES in self._flush(storage, checkpoints=True):
            return
        try:
            with self.lock:
                snapshot = self.state.snapshot(storage.ends, storage.later_end, storage.notes_end)
            storage.save(snapshot)
        except OSError as error:
            self._tell_unsaved(error)
            return
        with self.lock:
            storage.saved(snapshot)
        self._flush(storage)

    def _flush(self, storage: Storage, *, checkpoints: bool = False) -> Mapping[int, VqError]:
        """Make durable what is not yet; return what went wrong, by lane. For the thread only."""
        with self.lock:
            tickets = storage.begin_flush(checkpoints=checkpoints)
        outcome = storage.flush(tickets)
        with self.lock:
            failures = storage.end_flush(tickets, outcome)
            return {lane: self._stop_lane(lane, error) for lane, error in failures.items()}

    def _watch_times(self) -> float:
        """Give again what is due; return how long to sleep, -1 for without an end."""
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        with self.lock:
            was_crowded = self.state.crowded
            due = self.state.take_due(now_ms)
            for aside in due:
                self._give_due(aside, now_ms)
            may_go_on = was_crowded and not self.state.crowded
            expired = 0
            if self.config.lease_s is not None and now >= self._next_look:
                expired = self._expire(now)
                self._next_look = now + max(self.config.lease_s / _LEASE_LOOKS, _LEASE_LOOK_S)
            next_ms = self.state.next_due_ms
        if may_go_on:  # all that is in line waited, too
            self.takers.wake(self.state.waiting)
        elif due or expired:
            self.takers.wake(len(due) + expired)
        wait_s = math.inf if self.config.lease_s is None else self._next_look - now
        if next_ms is not None:
            until_s = (next_ms - now_ms) / 1000
            wait_s = min(wait_s, until_s if until_s > 0 else _CROWDED_PAUSE_S)
        return -1 if wait_s == math.inf else min(max(wait_s, 0.001), threading.TIMEOUT_MAX)

    def _give_due(self, aside: Aside, now_ms: int) -> None:
        state = self.state
        try:
            item = self.item_of(aside)
        except VqError as error:
            if self._is_set_aside(aside, error):
                return
            logger.error("message cannot be read, trying again later", queue=self.name, error=error)
            state.put_back(aside, now_ms + int(self.config.retry_s * 1000))
            return
        if state.kept.pop(aside.number, None) is not None:
            self.room_below += 1
        state.give(item, first=False)

    def _is_set_aside(self, aside: Aside, error: VqError) -> bool:
        """Whether a message that cannot be read is out of the queue, and its bytes are kept."""
        if self._storage is None or not isinstance(error, CorruptData):
            return False
        try:
            self._storage.set_aside(aside, error)
        except VqError:
            return False
        self.intake.done.append(code_of(LATER, aside.number))
        return True

    @property
    def damaged(self) -> Sequence[DamagedMessages]:
        """What was set aside because it could not be read."""
        return () if self._storage is None else tuple(self._storage.damaged)

    @property
    def damaged_now(self) -> int:
        """How many messages that is since the queue was opened."""
        return 0 if self._storage is None else self._storage.damaged_now

    def _expire(self, now: float) -> int:
        count = 0
        for item in self.state.overdue(now):
            again = self.state.exchange(item, item.attempts + 1)
            if again is not None:
                self.state.give(again)
                count += 1
        self.counts.expired += count
        return count

    # The end --------------------------------------------------------------------------------------
    def _stop_lane(self, lane: int, error: BaseException) -> VqError:
        """Have a lane take no more messages after an I/O error: nobody knows what is stored.

        What is durable is given and completed as before, and the other lanes go on. Without notes
        of completions nothing does.
        """
        if self._led is not None and not is_of_disk(error):
            raise error  # a signal handler raised it in the caller that commits
        if lane == NOTES:
            return self._break(error)
        if lane not in self.stopped:
            self.stopped[lane] = StorageFailed(
                f"{LOGS[lane]} of queue {self.name!r} takes no more messages after an I/O error; "
                f"what was put into it and not acknowledged may or may not be stored: {error}",
                hint="the other lanes go on, and what was acknowledged is given as before; check "
                "the disk (dmesg), then close the queue and open it again: it reads what is stored",
            )
            logger.error("lane takes no more messages", queue=self.name, lane=LOGS[lane])
        return self.stopped[lane]

    def _break(self, error: BaseException) -> VqError:
        """End all work for good: completions cannot be noted, or the thread has failed."""
        refusal = StorageFailed(
            f"queue {self.name!r} has stopped after an error, and what was not acknowledged may or "
            f"may not be stored: {error}",
            hint="nothing can be completed now; check the disk (dmesg), then close the queue and "
            "open it again: it reads what is stored",
        )
        self._end_with(refusal)
        return refusal

    def _end_with(self, refusal: VqError) -> None:
        if self.refusal is None:
            self.refusal = refusal
        for line in self.state.lines:
            line.ready.clear()
        self._refuse_waiters()
        self.takers.wake_all()
        self.spaces.wake_all()

    def _refuse_waiters(self) -> None:
        refusal = self.refusal
        while refusal is not None and self.intake.barriers and not self._thread.is_alive():
            self.intake.barriers.popleft().end(dict.fromkeys(ALL_LANES, refusal))

    def end(self) -> None:
        """Commit what came in, save a snapshot, and give the files back. May be called again.

        Raises:
            StorageFailed, DiskFull: What was not durable may be lost.
            InvalidState: A signal handler has interrupted a call of the same thread.
        """
        if isinstance(self.refusal, InvalidState) or self.sleeper.is_ending:
            return
        self.check_not_interrupting()
        self.sleeper.is_ending = True
        self.sleeper.kick()
        self._thread.join(_JOIN_S)
        has_ended = self._leading.acquire(timeout=_JOIN_S)  # a caller that commits has returned
        try:
            self._end_storage()
        finally:
            if has_ended:
                self._leading.release()
        if self.intake.unwritten is not None:
            raise DiskFull(
                f"queue {self.name!r} is closed, and its disk was full: a loss of power may have "
                f"what was completed last given again: {self.intake.unwritten}",
                hint="messages of puts that waited are stored, others may not be; free space, then "
                "open it",
            )

    def _end_storage(self) -> None:
        broken = self.refusal
        if self._storage is not None:
            storage, self._storage = self._storage, None
            try:
                if broken is None:
                    self._storage = storage
                    self.save()
                    self._storage = None
                    storage.given.keep(())  # no message has ended the process
            finally:
                self._end_with(InvalidState(f"queue {self.name!r} is closed"))
                storage.close()
        self.refusal = None
        self._end_with(InvalidState(f"queue {self.name!r} is closed"))
        self.opened.clear()

    def abandon_in_child(self) -> None:
        """Refuse every use from now on; called in the child of a fork."""
        self.refusal = InvalidState(_FORKED)
        self.opened.clear()
        self.first_line.clear()
        if self._storage is not None:
            self._storage.leave_lock()


def _abandon_all() -> None:
    for core in list(_MADE):
        core.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all)


def is_of_disk(error: BaseException) -> bool:
    """Whether the disk has failed, and not a signal handler raised something of its own."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError):
        return cause.errno is not None  # a TimeoutError of a handler has none
    return isinstance(cause, VqError) and not isinstance(cause, InvalidState)


def _name_of(directory: Path | None) -> str:
    name = "" if directory is None else directory.name
    return name if limits.is_valid_name(name) else "local"


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not 1 <= len(key) <= _KEY_CHARS_MAX:
        raise InvalidArgument(
            f"idempotency_key = {shown(key)} is no text of 1 to {_KEY_CHARS_MAX} characters"
        )


def check_item(item: object, queue: str) -> LocalItem:
    """Return an item that the application gave to the queue of a name.

    Raises:
        InvalidArgument: It is none, or one of a queue of another name.
    """
    if not isinstance(item, LocalItem):
        raise InvalidArgument(f"{shown(item)} is no item that take() returned")
    if item.topic != queue:
        raise InvalidArgument(
            f"{item!r} is an item of queue {item.topic!r}, and this is queue {queue!r}; "
            "give it to the queue that it was taken from"
        )
    return item


def content_of(message: Message) -> bytes:
    """Return the content to store.

    Raises:
        InvalidArgument: It is no bytes.
        MessageTooLarge: It has too many.
    """
    data = as_bytes(message.content)
    if len(data) > limits.MESSAGE_BYTES_MAX:
        raise MessageTooLarge(
            f"content of {len(data)} bytes; a message has at most {limits.MESSAGE_BYTES_MAX}",
            details={"size": len(data), "bound": limits.MESSAGE_BYTES_MAX},
        )
    return data


def delay_of(message: Message, clock: Clock) -> float | None:
    """Return the delay that a message asks for by itself.

    Raises:
        InvalidArgument: Its time is none.
    """
    if message.deliver_at is None:
        return message.delay_s
    now_ms = clock.wall_ms()
    return max(due_ms_of(message, now_ms) - now_ms, 0) / 1_000


def _with_properties(head: Head | None, properties: Properties) -> Head | None:
    """Return a head with the same tag and other properties."""
    encoded = encode_properties(properties, bytes_max=limits.STORED_PROPERTIES_BYTES_MAX)
    return encode_head(split_head(head)[0], encoded)
