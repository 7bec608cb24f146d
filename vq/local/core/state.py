"""What a local queue knows, and what it decides: which message is next, when one is given again.

Pure: no I/O, no thread, no clock; times are arguments. Threads share it all the same. What many of
them do at once (``take``, ``complete``) is one operation of a deque or a set, which no other thread
can divide; everything else belongs to whoever holds the lock of the queue.

A message is in one place:

    on disk     behind ``next_number`` of its lane
    ready       in the deque of its lane, and in ``opened``
    taken       in ``opened``, with a deadline
    aside       in the heap of those that wait for a time
    done        nowhere
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from vq.local.files.notes import (
    Aside,
    LaneSnapshot,
    OpenRange,
    Range,
    Snapshot,
    code_of,
    ranges_of,
)
from vq.local.files.pad import Given
from vq.local.items import LATER, PRIORITIES, LocalItem
from vq.local.settings import LocalQueueConfig

#: So many messages are taken from the heap at once.
DUE_AT_ONCE: Final = 1_000
#: So many messages are few: they are copied, so that the blocks they lie in can go.
MOVED_AT_ONCE: Final = 1_000


class LaneLine:
    """The messages of one priority, in line.

    Attributes:
        ready: Those in memory, in order.
        next_number, next_offset: Of the first one that is on disk only.
        end_number: Of the message that is put next.
        skipped: Behind ``next_number``, merged: completed before a restart. Set with ``skip``.
    """

    __slots__ = (
        "bytes_read",
        "end_number",
        "next_number",
        "next_offset",
        "ready",
        "skipped",
        "skipped_count",
    )

    def __init__(self) -> None:
        self.ready: deque[LocalItem] = deque()
        self.bytes_read = 0  # of contents that came into ``ready`` since it was last counted
        self.next_number = self.next_offset = self.end_number = 0
        self.skipped: list[Range] = []
        self.skipped_count = 0  # of messages behind ``next_number``

    @property
    def unread(self) -> int:
        """How many messages are on disk only, and not completed."""
        return self.end_number - self.next_number - self.skipped_count

    def skip(self, ranges: list[Range]) -> None:
        """Have these count as completed; they lie behind ``next_number``."""
        self.skipped = ranges
        self.skipped_count = sum(end - start for start, end in ranges)

    def go_on(self, number: int, offset: int) -> None:
        """Have ``number`` be the next one to read; what precedes it was."""
        self.next_number, self.next_offset = number, offset
        while self.skipped and self.skipped[0][0] < number:
            start, end = self.skipped.pop(0)
            self.skipped_count -= min(end, number) - start
            if end > number:
                self.skipped.insert(0, (number, end))

    def room(self, config: LocalQueueConfig) -> int:
        """Return how many more messages may wait in memory."""
        items = config.memory_items - len(self.ready)
        if items > 0 and self.bytes_read >= config.memory_bytes:
            self.bytes_read = sum(len(each.content) for each in tuple(self.ready))
            if self.bytes_read >= config.memory_bytes:
                return 0
        return max(items, 0)


class QueueState:
    """The state of one queue.

    Attributes:
        lines: By priority.
        opened: Messages in memory that are not completed.
        asides: A heap of what waits for its time.
        failed: So many of these were given before.
        kept: The items of asides, by number, of a queue in memory.
        given: How messages on disk were handed out before a crash, by their codes.
        plain: Only the line of priority 0 may have messages.
    """

    def __init__(self, config: LocalQueueConfig, *, durable: bool) -> None:
        self._config = config
        self._durable = durable
        self.lines = [LaneLine() for _ in range(PRIORITIES)]
        self.opened: set[LocalItem] = set()
        self.asides: list[Aside] = []
        self.failed = 0
        self.kept: dict[int, LocalItem] = {}
        self.given: dict[int, Given] = {}
        self.plain = True
        self._kept_number = 0
        self._loose: set[LocalItem] = set()  # with nobody, and not in line, at the last look

    # In line --------------------------------------------------------------------------------------
    def publish(self, lane: int, items: Sequence[LocalItem]) -> int:
        """Give messages of a lane to takers that are stored now; return how many are in memory.

        Their numbers follow each other.
        """
        line = self.lines[lane]
        first = items[0].number
        first_behind = first + len(items)
        if line.next_number < first:  # takers have to read what is before them
            line.end_number = first_behind
            return 0
        room = line.room(self._config)
        some = items if room >= len(items) else items[:room]
        count, size = len(some), 0
        for each in some:
            size += len(each.content)
        following = items[count].offset if count < len(items) else line.next_offset
        self.opened.update(some)
        # A caller may be interrupted (Ctrl-C) once a call has returned: what follows is one step.
        line.end_number = first_behind
        line.bytes_read += size
        line.next_number = first + count
        line.next_offset = following
        self.plain = self.plain and not lane
        line.ready.extend(some)
        return count

    def loaded(self, lane: int, items: Sequence[LocalItem], number: int, offset: int) -> None:
        """Take messages that were read from disk; the next one to read is ``number``."""
        line = self.lines[lane]
        self.opened.update(items)
        line.ready.extend(items)
        line.bytes_read += sum([len(each.content) for each in items])
        line.go_on(number, offset)

    def wanted(self, lane: int, number: int) -> bool:
        """Whether a message that was read is not completed."""
        return not any(start <= number < end for start, end in self.lines[lane].skipped)

    def times_given(self, lane: int, number: int) -> int:
        """Return how often a message on disk was handed out before a crash."""
        was = self.given.get(code_of(lane, number))
        return 0 if was is None else was.times

    def next_ready(self, passed: Container[int] = ()) -> LocalItem | int | None:
        """Return the next message, or the lane that must be read first; None: there is nothing.

        Lanes in ``passed`` are not read.
        """
        crowded = self.crowded
        for lane in range(PRIORITIES - 1, -1, -1):
            line = self.lines[lane]
            try:
                if not crowded:
                    return line.ready.popleft()
            except IndexError:
                if line.unread and lane not in passed:
                    return lane
                continue
            for item in tuple(line.ready):
                if item.lane == LATER:
                    line.ready.remove(item)
                    return item
        self.plain = not crowded and not any(line.ready or line.unread for line in self.lines[1:])
        return None

    @property
    def crowded(self) -> bool:
        """Whether so many failed messages wait for their times that those in line wait, too."""
        return self.failed >= self._config.later_max

    @property
    def has_next(self) -> bool:
        """Whether ``next_ready`` would find something."""
        if self.crowded:
            return any(item.lane == LATER for line in self.lines for item in tuple(line.ready))
        return any(line.ready or line.unread for line in self.lines)

    @property
    def waiting(self) -> int:
        """How many messages can be taken now; one more or less while others take and put."""
        return sum(len(line.ready) + line.unread for line in self.lines)

    @property
    def size(self) -> int:
        """How many messages are not completed."""
        return len(self.opened) + sum(line.unread for line in self.lines) + len(self.asides)

    # Given again ----------------------------------------------------------------------------------
    def exchange(self, item: LocalItem, attempts: int) -> LocalItem | None:
        """Have another item stand for a message; None: this one does not stand for it any more."""
        again = item.again(attempts)
        self.opened.add(again)
        if self.remove(item):
            return again
        self.opened.discard(again)
        return None

    def give(self, item: LocalItem, *, first: bool = True) -> None:
        """Have the next taker get a message, the item of which nobody has."""
        self.opened.add(item)
        line = self.lines[item.priority].ready
        if not self._durable:
            item.offset = 0  # as in ``Puts.add_in_memory``
        if first:
            line.appendleft(item)
        else:
            line.append(item)
        if item.priority:
            self.plain = False

    def set_aside(self, item: LocalItem, due_ms: int, given: int) -> None:
        """Have a message wait for a time; it was given ``given`` times.

        It is in the lane ``LATER``, or the queue is in memory.
        """
        number = item.number
        if not self._durable:
            number = self._kept_number = self._kept_number + 1
            self.kept[number] = item
        self._wait(Aside(due_ms, number, item.offset, item.priority, given, item.id))

    def put_back(self, aside: Aside, due_ms: int) -> None:
        """Have an aside that was taken wait again."""
        self._wait(aside._replace(due_ms=due_ms))

    def _wait(self, aside: Aside) -> None:
        heapq.heappush(self.asides, aside)
        self.failed += aside.attempts > 0
        if self.crowded:
            self.plain = False  # whoever takes looks at that

    def restore_asides(self, asides: Iterable[Aside]) -> None:
        """Begin with what waited before a restart."""
        self.asides[:] = sorted(asides)
        self.failed = sum(each.attempts > 0 for each in self.asides)

    @property
    def next_due_ms(self) -> int | None:
        """When the next message is due that waits for its time; None: none waits."""
        return self.asides[0].due_ms if self.asides else None

    def take_due(self, now_ms: int) -> list[Aside]:
        """Return messages whose time has come and that have room in memory."""
        found: list[Aside] = []
        room = [line.room(self._config) for line in self.lines]
        while self.asides and self.asides[0].due_ms <= now_ms and len(found) < DUE_AT_ONCE:
            if not room[self.asides[0].priority]:
                break
            room[self.asides[0].priority] -= 1
            found.append(heapq.heappop(self.asides))
            self.failed -= found[-1].attempts > 0
        return found

    def few_in(self, ends: Sequence[int]) -> list[list[Aside]]:
        """Return what keeps each of the first blocks of the lane ``LATER``, while it is little.

        Those are asides; a block with a message that was given is let alone, and all behind it.

        Args:
            ends: Where its blocks end that take no more messages, in rising order.
        """
        if not ends:
            return []
        given = min((each.offset for each in tuple(self.opened) if each.lane == LATER), default=-1)
        usable = [end for end in ends if given < 0 or end <= given]
        found: list[list[Aside]] = [[] for _ in usable]
        for aside in self.asides:
            block = bisect_right(usable, aside.offset)
            if block < len(found):
                found[block].append(aside)
        total = 0
        for count, block_asides in enumerate(found):
            total += len(block_asides)
            if total > MOVED_AT_ONCE:
                return found[:count]
        return found

    def moved(self, places: Mapping[int, tuple[int, int]]) -> list[int]:
        """Take the new numbers and offsets of asides, by their old numbers.

        Returns:
            New numbers of messages that do not wait any more.
        """
        left = dict(places)
        for at, aside in enumerate(self.asides):
            if aside.number in left:
                number, offset = left.pop(aside.number)
                self.asides[at] = aside._replace(number=number, offset=offset)
        self.asides.sort()
        return [number for number, _ in left.values()]

    def overdue(self, now: float) -> list[LocalItem]:
        """Return messages whose lease has ended, by a monotonic clock.

        A taker that was interrupted may have a message without a deadline; it gets one, if it is
        seen so twice: the first time it may be on its way into its line. In memory that may take
        longer, so a message that was never in line has no offset there, and is let alone.
        """
        found, loose = [], set()
        ready = {item for line in self.lines for item in tuple(line.ready)}
        for item in tuple(self.opened):
            if item.deadline:
                if item.deadline <= now:
                    found.append(item)
            elif item not in ready and item.offset >= 0 and self._config.lease_s is not None:
                loose.add(item)
                if item in self._loose:
                    item.deadline = now + self._config.lease_s
        self._loose = loose
        return found

    def remove(self, item: LocalItem) -> bool:
        """Remove a message from ``opened``; whether it was there. Only one caller hears so."""
        try:
            self.opened.remove(item)
        except KeyError:
            return False
        return True

    # Snapshots ------------------------------------------------------------------------------------
    def snapshot(
        self,
        keys: Iterable[tuple[str, int]],
        ends: Sequence[int],
        later: tuple[int, int],
        notes: int,
    ) -> Snapshot:
        """Return what a restart needs, as of now.

        Args:
            keys: Idempotency keys with the time of their put in ms, the oldest first.
            ends: The ends of the logs of all priorities.
            later: Number and offset of the end of the lane ``LATER``.
            notes: Where the notes end that are considered.
        """
        opened: list[list[LocalItem]] = [[] for _ in range(LATER + 1)]
        for item in tuple(self.opened):
            opened[item.lane].append(item)
        lanes = [
            LaneSnapshot(
                line.next_number,
                line.next_offset if line.next_number < line.end_number else end,
                list(open_ranges(opened[lane])),
                list(line.skipped),
                end,
            )
            for lane, (line, end) in enumerate(zip(self.lines, ends, strict=True))
        ]
        asides = list(self.asides)
        asides += [
            Aside(
                0,
                item.number,
                item.offset,
                item.priority,
                item.attempts if item.deadline else item.attempts - 1,  # nobody took it
                item.id,
            )
            for item in opened[LATER]
        ]
        return Snapshot(lanes, asides, *later, list(keys), notes)


def open_ranges(items: Iterable[LocalItem]) -> Iterable[OpenRange]:
    """Yield the ranges of numbers of some messages of one lane, each with a place to read from."""
    offsets = {item.number: item.offset for item in items}
    for start, end in ranges_of(offsets):
        yield OpenRange(start, end, offsets[start])
