"""What all parts of a local queue use: its messages in memory and on disk, its locks, who waits.

``lock`` guards the state and the logs, not the waits for the disk. A put, a take and a completion
take no lock: each is one operation of a deque or a set. That relies on the interpreter's own lock
(vq refuses to run without it).
"""

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vq import limits
from vq.clock import Clock
from vq.errors import CorruptData, InvalidArgument, InvalidState, StorageFailed, VqError
from vq.local.core.keys import IdempotencyKeys
from vq.local.core.state import QueueState
from vq.local.core.waits import Intake, LineOfWakers, Sleeper
from vq.local.files.damage import DamagedMessages
from vq.local.files.lanes import ALL_LANES
from vq.local.files.notes import Aside, code_of
from vq.local.files.pad import Given, given_of
from vq.local.files.storage import Storage
from vq.local.items import LATER, LocalItem, copy_for_later
from vq.local.settings import LocalQueueConfig, WhenCrowded
from vq.store.disk.disk import Disk

#: Capacity of a queue in memory without one of its own.
MEMORY_CAPACITY: Final = 100_000
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


class QueueBase:
    """The messages of one queue, and who may use them.

    Args:
        directory: Where it is; None: in memory only.
        config: How it behaves.
        disk: The disk.
        clock: The clock.

    Attributes:
        name: The topic of its messages.
        capacity: So many messages may be in it; None: as many as the disk holds.
        lock: Guards the state and the logs. Never taken twice: see ``check_not_interrupting``.
        leading: Held by whoever commits.
        state: Where each message in memory is.
        opened: Those of ``state``.
        storage: The files; None: in memory only.
        keys: Idempotency keys.
        intake: What callers leave for the next commit.
        sleeper: The thread that commits.
        takers: Who waits for a message.
        spaces: Who waits until messages are completed.
        counts: What happened.
        following: Returns the number of the next message in memory.
        stopped: Lanes that take no more messages, and why.
        refusal: Why the queue cannot be used any more.
        thread: The identifier of the thread that commits; 0: it has not begun.
    """

    def __init__(
        self, directory: Path | None, config: LocalQueueConfig, disk: Disk, clock: Clock
    ) -> None:
        self.name = config.name or _name_of(directory)
        self.directory = directory
        self.config = config
        self.clock = clock
        self.in_memory = directory is None
        self.capacity = config.capacity
        if directory is None:
            self.capacity = config.capacity or MEMORY_CAPACITY
        elif config.when_full is WhenCrowded.DROP_OLDEST:
            raise InvalidArgument(
                "when_full = 'drop-oldest' is for a queue in memory only: one in a directory keeps "
                "what it was given; give 'block' or 'raise'"
            )
        self.lease_s = _no_lease if config.lease_s is None else config.lease_s
        self.lock = threading.RLock()
        self.leading = threading.RLock()
        self._is_locking: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self._is_leading: Callable[[], bool] = self.leading._is_owned  # type: ignore[attr-defined]
        self.state = QueueState(config, durable=directory is not None)
        self.opened = self.state.opened
        self.keys = IdempotencyKeys(config)
        self.intake = Intake()
        self.sleeper = Sleeper(self.intake)
        self.takers = LineOfWakers()
        self.spaces = LineOfWakers()
        self.counts = LocalCounts()
        self._numbers = itertools.count()
        self.following = self._numbers.__next__
        self.stopped: dict[int, StorageFailed] = {}
        self.refusal: VqError | None = None
        self.thread = 0
        self._thread_ended = False
        self._numbers_at_open = 0
        self.storage = None if directory is None else self._opened_storage(directory, disk)
        self.size_at_open = self.state.size

    # Opening --------------------------------------------------------------------------------------
    def _opened_storage(self, directory: Path, disk: Disk) -> Storage:
        storage, found = Storage.open(directory, disk, self.clock)
        try:
            state = self.state
            for lane, was in enumerate(found.lanes):
                line = state.lines[lane]
                line.end_number = storage.end_number(lane)
                self._numbers_at_open += line.end_number
                line.skip(was.skipped)
                items = storage.reader.open_items(lane, was, self.name)
                items = self._told_how_often(items, found.given)
                state.loaded(lane, items, was.next_number, was.next_offset)
            state.plain = False
            state.restore_asides(self._given_before(each, found.given) for each in found.asides)
            state.given = {code: was for code, was in found.given.items() if code & 3 != LATER}
            self.keys.seen.update(found.keys)
        except BaseException:
            storage.close()
            raise
        return storage

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
                    self.set_aside(item, again, self.retry_ms())
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
            due_ms = max(due_ms, self.retry_ms())
        return aside._replace(due_ms=due_ms, attempts=max(aside.attempts, was.times))

    def retry_ms(self) -> int:
        """Return when a message that has used up its retries is given again."""
        return self.clock.wall_ms() + math.ceil(self.config.retry_s * 1000)

    # Messages -------------------------------------------------------------------------------------
    @property
    def size(self) -> int:
        """How many messages are not completed."""
        return self.state.size + self.intake.size

    def counted(self) -> int:
        """Return how many messages were put since the queue was opened."""
        if self.in_memory:
            return int(self._numbers.__reduce__()[1][0])  # without taking one
        stored = sum(line.end_number for line in self.state.lines) - self._numbers_at_open
        return stored + self.counts.delayed

    @property
    def identity(self) -> str:
        """What no other queue has; "" of a queue in memory."""
        return "" if self.storage is None else self.storage.identity

    @property
    def size_bytes(self) -> int:
        """Bytes of all logs."""
        return 0 if self.storage is None else self.storage.size_bytes

    @property
    def damaged(self) -> Sequence[DamagedMessages]:
        """What was set aside because it could not be read."""
        return () if self.storage is None else tuple(self.storage.damage.found)

    @property
    def damaged_now(self) -> int:
        """How many messages that is since the queue was opened."""
        return 0 if self.storage is None else self.storage.damage.messages_now

    def load(self, lane: int) -> int:
        """Read some messages of a lane; return how many. Under the lock."""
        storage, state = self.storage, self.state
        assert storage is not None
        line = state.lines[lane]
        room = max(line.room(self.config), 1)
        found, offset, number = storage.reader.read(lane, line.next_offset, line.next_number, room)
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
        line, storage = self.state.lines[lane], self.storage
        if storage is None or not line.unread:
            return []
        items: list[LocalItem] = []
        number, offset = line.next_number, line.next_offset
        while number < line.end_number and len(items) < count:
            found, offset, number = storage.reader.read(lane, offset, number, count)
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
        if self.storage is None:
            return self.state.kept[aside.number]
        return self.storage.reader.read_aside(aside, self.name)

    def set_aside(self, item: LocalItem, again: LocalItem, due_ms: int) -> None:
        """Have a message that was given wait for a time. Under the lock.

        Args:
            item: The message.
            again: Stands for it, in ``opened``.
            due_ms: When it is given again, in ms since 1970.
        """
        if self.in_memory or item.lane == LATER:
            self.opened.discard(again)
            self.state.set_aside(again, due_ms, item.attempts)
            return
        again.deadline = _no_lease  # nobody gets it before its copy is stored
        copy = copy_for_later(item, due_ms, item.attempts)
        self.intake.moves[copy] = again
        self.intake.items.append(copy)

    def note_given(self, item: LocalItem, tries: int = 0, *, keeps_place: bool = False) -> None:
        """Note that somebody begins to handle a message: a crash counts as a failure then.

        Args:
            item: The message.
            tries: So often it failed since it was taken.
            keeps_place: It stays where it is in line, however often it fails so.
        """
        storage = self.storage
        if storage is not None:
            code = code_of(item.lane, item.number)
            try:
                storage.given.note(given_of(code, item.attempts + tries, keeps_place))
            except ValueError:  # it was closed just now
                pass

    # Who may use it -------------------------------------------------------------------------------
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

    def is_usable(self) -> bool:
        """Return True, or raise as ``check`` does."""
        self.check()
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
    def is_committing(self) -> bool:
        """Whether this is the thread that commits: a callback of a send runs on it."""
        return threading.get_ident() == self.thread

    def check_may_wait(self) -> None:
        """Refuse a wait on the thread that commits, which calls the callbacks of sends.

        Raises:
            InvalidState: It would wait for itself; or as ``check_not_interrupting``.
        """
        self.check_not_interrupting()
        if self.is_committing:
            raise InvalidState(
                f"a callback of a send to queue {self.name!r} would wait for itself: it runs on "
                "the thread that commits",
                hint="a callback may call send_async, but nothing that waits",
            )

    def end_with(self, refusal: VqError) -> None:
        """Refuse every use from now on, and wake who waits."""
        if self.refusal is None:
            self.refusal = refusal
        for line in self.state.lines:
            line.ready.clear()
        self.refuse_waiters()
        self.takers.wake_all()
        self.spaces.wake_all()

    def refuse_waiters(self) -> None:
        """Wake who waits for a commit that nobody will make."""
        refusal = self.refusal
        while refusal is not None and self.intake.barriers and self._thread_ended:
            self.intake.barriers.popleft().end(dict.fromkeys(ALL_LANES, refusal))

    def thread_ended(self) -> None:
        """Note that nobody commits any more."""
        self._thread_ended, self.thread = True, 0
        self.refuse_waiters()


def _name_of(directory: Path | None) -> str:
    name = "" if directory is None else directory.name
    return name if limits.is_valid_name(name) else "local"
