"""Who waits for something in a local queue, and how it is woken."""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from vq.errors import DiskFull, OutcomeUnknown, VqError
from vq.local.files.notes import LaneRange
from vq.local.items import LocalItem


class Waker(Protocol):
    """Who waits: a lock that is held, or something of a loop."""

    def release(self) -> None:
        """Wake it, once."""
        ...


class LineOfWakers:
    """Who waits, in order. Any thread, without a lock.

    Attributes:
        line: Those that nobody has woken.
        events: Changes whenever somebody is woken because something has happened. Who was woken in
            vain and waits on wakes the next one (``hand_on``) once for each of its values: else
            two of them would wake each other without an end.
    """

    def __init__(self) -> None:
        self.line: deque[Waker] = deque()
        self.events = 0

    def wake(self, count: int = 1) -> None:
        """Wake so many, if they are there."""
        self.events += 1
        self.hand_on(count)

    def hand_on(self, count: int = 1) -> None:
        """Wake others for what one was woken for and cannot use."""
        line = self.line
        try:
            for _ in range(min(count, len(line))):
                line.popleft().release()
        except IndexError:
            pass

    def wake_all(self) -> None:
        """Wake all of them."""
        self.wake(len(self.line))

    def leave(self, waker: Waker) -> bool:
        """Do not wake one any more; False: it is woken already."""
        try:
            self.line.remove(waker)
        except ValueError:
            return False
        return True


class CommitWaiter:
    """Somebody waits for the end of the next commit.

    Attributes:
        items: Their messages.
        waker: Wakes them.
        error: What went wrong.
    """

    __slots__ = ("error", "items", "waker")

    def __init__(self, items: Sequence[LocalItem], waker: Waker) -> None:
        self.items = items
        self.waker = waker
        self.error: VqError | None = None

    def end(self, errors: Mapping[int, VqError]) -> None:
        """Say how the commit ended, with errors by lane, and wake."""
        if errors:
            self.error = error_of(self.items, errors)
        self.waker.release()


def error_of(items: Sequence[LocalItem], errors: Mapping[int, VqError]) -> VqError | None:
    """Return what to tell about some messages after a commit with errors, by lane.

    Without messages somebody waits for all that was put before.
    """
    if not items:
        return next(iter(errors.values()))
    count, found = 0, None
    for item in items:
        error = errors.get(item.lane)
        if error is not None and is_unstored(item, error):
            count, found = count + 1, error
    if found is None or count == len(items) or isinstance(found, OutcomeUnknown):
        return found
    return OutcomeUnknown(f"{count} of {len(items)} messages are not stored, others are: {found}")


def is_unstored(item: LocalItem, error: VqError) -> bool:
    """Whether a message of a lane with this error is not stored, or nobody knows."""
    return item.number < 0 or isinstance(error, OutcomeUnknown)


def pop_into(found: list[int], codes: deque[int], count: int) -> None:
    """Move the first codes, at most so many, into a list, beside others that pop.

    No signal handler runs in between: each code is in one of the two.
    """
    try:
        found.extend(islice(iter(codes.popleft, None), count))
    except IndexError:  # there are no more
        pass


class Intake:
    """What callers leave for the next commit. They add to the deques, without a lock.

    Attributes:
        items: Messages.
        size_bytes: Of their contents, nearly.
        done: Codes of completed messages.
        barriers: Who waits for the commit. Who adds a message first and itself then, is told of
            the commit with that message.
        committing: How many messages the commit has that is under way.
        purged: Ranges of numbers that were completed at once.
        moves: Copies on their way to ``LATER``, and the items that they replace.
        unmoved: Copies that a full disk did not take.
        unwritten: Why the last commit before a close has left completions in here.
        wants_save: The next commit ends with a snapshot.
    """

    def __init__(self) -> None:
        self.items: deque[LocalItem] = deque()
        self.size_bytes = 0
        self.done: deque[int] = deque()
        self.purged: deque[LaneRange] = deque()
        self.barriers: deque[CommitWaiter] = deque()
        self.committing = 0
        self.moves: dict[LocalItem, LocalItem] = {}
        self.unmoved: list[LocalItem] = []
        self.unwritten: DiskFull | None = None
        self.wants_save = False

    def take(self, *, notes_due: bool) -> tuple[list[CommitWaiter], list[LocalItem], list[int]]:
        """Return what there is: who waits, messages, codes.

        Codes stay for a later round, which saves the flush of the notes, unless they are due, there
        are no messages, or somebody waits for more than his messages.
        """
        waiters = [self.barriers.popleft() for _ in range(len(self.barriers))]
        self.committing = len(self.items)
        items = [self.items.popleft() for _ in range(self.committing)]
        self.size_bytes = 0
        notes_due = notes_due or not items or not all(each.items for each in waiters)
        count = len(self.done) if notes_due else 0
        codes: list[int] = []
        pop_into(codes, self.done, count)
        return waiters, items, codes

    @property
    def size(self) -> int:
        """How many messages are in here only; a copy stands for its message."""
        return len(self.items) + self.committing + len(self.unmoved) - len(self.moves)


#: Completions wait so long for others before they are noted; the pad has them meanwhile.
DONE_LINGER_S: Final = 0.01


class Sleeper:
    """The sleep of the thread that commits. One thread sleeps, any thread wakes it.

    Attributes:
        idle: It sleeps, and a message wakes it.
        asleep: ... and a completion does, too.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._wake = threading.Lock()
        self._wake.acquire()
        self.idle = False
        self.asleep = False
        self.is_ending = False

    def kick(self) -> None:
        """Wake it."""
        self.idle = self.asleep = False
        try:
            self._wake.release()
        except RuntimeError:  # it was woken already
            pass

    def gather(self, count: int, most_s: float) -> bool:
        """Wait until so many wait for the next commit, at most ``most_s``; whether they do."""
        barriers, end = self._intake.barriers, time.monotonic() + most_s
        while len(barriers) < count and not self.is_ending:
            self.idle = True
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            if len(barriers) < count:
                self._wake.acquire(timeout=left_s)
        self.idle = False
        return len(barriers) >= count

    @property
    def has_work(self) -> bool:
        """Whether something waits that is not a completion."""
        return bool(self._intake.items or self._intake.barriers or self.is_ending)

    def sleep(self, wait_s: float) -> None:
        """Return when there is something to do, at the latest after ``wait_s``; -1: no bound."""
        self.idle = self.asleep = True
        if not self.has_work and not self._intake.done:
            self._wake.acquire(timeout=wait_s)
        self.asleep = False
        if self._intake.done and not self.has_work:
            self._wake.acquire(timeout=DONE_LINGER_S)
        self.idle = False


#: A round waits for those that the last one woke, for this part of a flush and at most so long.
_GATHER_PART: Final = 0.5
_GATHER_S_MAX: Final = 0.002
_GATHER_MESSAGES: Final = 100  # a larger round is work for the processor, best during a flush
_PAUSE: Final = 8  # rounds, once they did not come; and until a caller is taken to be alone


class Company:
    """How many callers put at the same time, as the last rounds of commits showed.

    Attributes:
        expected: So many wait for the next round soon, if those that the last one woke put again.
        flush_s: The last flush took so long.
        alone_from: From this round on, no two callers have shared one of the last rounds.
    """

    def __init__(self) -> None:
        self.expected = 0
        self.flush_s = 0.0
        self._gather_from = 0
        self.alone_from = 0

    def note(self, round_: int, waiters: int, waiting: int, *, messages: int) -> None:
        """Note that a round ended, of so many messages, for ``waiters``; others wait already."""
        few = messages < _GATHER_MESSAGES
        self.expected = waiting + waiters if waiting and waiters and few else 0
        if waiters > 1:
            self.alone_from = round_ + _PAUSE

    def gather(self, sleeper: Sleeper, round_: int) -> None:
        """Wait a moment for those that the last round woke: most of them put again at once.

        Without it two halves of the callers take turns, and each waits for two flushes.
        """
        count, self.expected = self.expected, 0
        if round_ < self._gather_from:
            return
        if not sleeper.gather(count, min(self.flush_s * _GATHER_PART, _GATHER_S_MAX)):
            self._gather_from = round_ + _PAUSE
