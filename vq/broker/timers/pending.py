"""Messages that wait for their time, and which of them are due. Pure.

A message of far-off time lies packed in the minute in which it is due. A minute that is near is
dealt to its seconds, and a second that begins to its milliseconds, a bounded part at a time. So a
million messages take 24 bytes each, and no call takes long, also if all are due at the same time.

A message that is taken out of a minute is noted as gone. It is left out when the minute is dealt,
or when half of its messages are gone.
"""

import heapq
from collections.abc import Iterable
from struct import Struct
from typing import Final

from vq.broker.journal.items import OFFSET_AT, PACKED, Item, packed, unpacked
from vq.clock import MINUTE_MS

_OFFSET: Final = Struct("<Q")  # the second field of it
_pack = PACKED.pack
_SECOND_MS: Final = 1_000
_NEVER: Final = 2**63
#: So many messages are dealt, or taken out, at a time: some milliseconds.
STEP: Final = 2_000
#: It is known to within so many bytes from where on a log is needed.
PAGE_BYTES: Final = 1 << 20


class Pending:
    """The messages of one log that wait. Not safe for several threads.

    Invariant: a message is in one millisecond, in one second, in the minute that is being dealt, or
    in one minute that is not.
    """

    def __init__(self) -> None:
        self._minutes: dict[int, bytearray] = {}
        self._gone: dict[int, set[int]] = {}  # by minute: offsets of what was removed from it
        self._seconds: dict[int, bytearray] = {}
        self._moments: dict[int, bytearray] = {}  # by millisecond,
        self._times: list[int] = []  # and a heap of these
        self._removed: set[int] = set()  # offsets, of what is in a second or in a millisecond
        self._dealt = bytearray()  # the minute that is being dealt,
        self._at = 0  # from where on,
        self._dealt_gone: set[int] = set()  # without these
        self._minute = 0  # those before it are dealt, or being dealt
        self._second = 0  # those before it have begun
        self._count = 0
        self._pages: dict[int, int] = {}  # by page of the log: how many of its messages are needed

    def __len__(self) -> int:
        return self._count

    def add(self, delayed: Item) -> None:
        """Have a message wait; its record is needed until ``free``."""
        due_ms, offset, length, target = delayed
        minute = due_ms // MINUTE_MS
        if minute >= self._minute:  # as ``_put`` does: a broker that starts adds a million
            room = self._minutes.get(minute)
            if room is None:
                room = self._minutes[minute] = bytearray()
            room += _pack(due_ms, offset, length, target)
            self._count += 1
        else:
            self._put(delayed)
        page = offset // PAGE_BYTES
        self._pages[page] = self._pages.get(page, 0) + 1

    def add_all(self, messages: Iterable[tuple[int, int, int, int]]) -> None:
        """Do what ``add`` does, with the fields of many: a broker that starts adds a million."""
        pages, near = self._pages, self._minute
        minute, room, page, count = -1, bytearray(), -1, 0
        for each in messages:
            due_ms, offset, _, _ = each
            if due_ms // MINUTE_MS != minute:
                minute = due_ms // MINUTE_MS
                if minute < near:
                    minute = -1
                    self.add(Item(*each))
                    continue
                room = _room(self._minutes, minute)
            room += _pack(*each)
            count += 1
            if offset // PAGE_BYTES != page:
                page = offset // PAGE_BYTES
                pages.setdefault(page, 0)
            pages[page] += 1
        self._count += count

    def put_back(self, delayed: Item) -> None:
        """Have a message wait again that was removed, and is not freed."""
        minute = delayed.key // MINUTE_MS
        gone = self._gone.get(minute)
        if gone is not None and delayed.offset in gone:
            gone.discard(delayed.offset)  # it lies there still
            self._count += 1
        elif delayed.offset in self._removed:
            self._removed.discard(delayed.offset)
            self._count += 1
        else:
            self._put(delayed)

    def _put(self, delayed: Item) -> None:
        due_ms = delayed.key
        if due_ms >= self._minute * MINUTE_MS:
            _room(self._minutes, due_ms // MINUTE_MS).extend(PACKED.pack(*delayed))
        else:
            self._put_near(delayed)
        self._count += 1

    def _put_near(self, delayed: Item) -> None:
        second = delayed.key // _SECOND_MS
        if second >= self._second:
            _room(self._seconds, second).extend(PACKED.pack(*delayed))
        else:
            self._put_now(delayed)

    def _put_now(self, delayed: Item) -> None:
        due_ms = delayed.key
        if due_ms not in self._moments:
            heapq.heappush(self._times, due_ms)
        _room(self._moments, due_ms).extend(PACKED.pack(*delayed))

    def holds(self, due_ms: int, offset: int) -> bool:
        """Whether a message waits."""
        minute = due_ms // MINUTE_MS
        if minute >= self._minute:
            gone = self._gone.get(minute, ())
            return offset not in gone and _has(self._minutes.get(minute), offset)
        if offset in self._removed:
            return False
        return (
            _has(self._seconds.get(due_ms // _SECOND_MS), offset)
            or _has(self._moments.get(due_ms), offset)
            or (offset not in self._dealt_gone and _has(self._dealt, offset, self._at))
        )

    def remove(self, due_ms: int, offset: int) -> None:
        """Have a message wait no more; it must be one that waits."""
        minute = due_ms // MINUTE_MS
        if minute < self._minute:
            self._removed.add(offset)
            self._count -= 1
            return
        room = self._minutes.get(minute)
        if room is None:  # somebody made a note of a message that is none
            return
        self._count -= 1
        gone = self._gone.setdefault(minute, set())
        gone.add(offset)
        if len(gone) * PACKED.size * 2 > len(room):
            left = [each for each in unpacked(room) if each.offset not in gone]
            del self._gone[minute]
            if left:
                self._minutes[minute] = packed(left)
            else:
                del self._minutes[minute]

    def due(self, now_ms: int) -> list[Item]:
        """Take out what is due, ``STEP`` messages at most, in the order of time, then of offsets.

        Call it again while ``next_ms`` is not after ``now_ms``. If some of what is due was not
        dealt yet, it comes with a later call, behind what is due after it.
        """
        self._deal(now_ms)
        times, removed = self._times, self._removed
        found: list[Item] = []
        while times and times[0] <= now_ms and len(found) < STEP:
            room = self._moments[times[0]]
            for delayed in _cut(room, STEP - len(found)):
                if delayed.offset in removed:
                    removed.discard(delayed.offset)
                else:
                    found.append(delayed)
            if not room:
                del self._moments[heapq.heappop(times)]
        self._count -= len(found)
        return found

    def _deal(self, now_ms: int) -> None:
        """Deal a part of a minute that has begun or begins next, and of seconds that have begun."""
        if self._at >= len(self._dealt):
            self._next_minute(now_ms)
        end = min(self._at + STEP * PACKED.size, len(self._dealt))
        gone = self._dealt_gone
        for delayed in unpacked(self._dealt[self._at : end]):
            if delayed.offset not in gone:
                self._put_near(delayed)
        self._at = end
        second = now_ms // _SECOND_MS
        self._second = max(self._second, second + 1)
        left = STEP
        while left > 0 and self._seconds and (first := min(self._seconds)) <= second:
            room = self._seconds[first]
            part = _cut(room, left)
            left -= len(part)
            for delayed in part:
                self._put_now(delayed)
            if not room:
                del self._seconds[first]

    def _next_minute(self, now_ms: int) -> None:
        """Begin to deal the first minute, unless it is far off."""
        minute = min(self._minutes, default=_NEVER)
        if minute <= now_ms // MINUTE_MS + 1:
            self._dealt = self._minutes.pop(minute)
            self._dealt_gone = self._gone.pop(minute, set())
            self._minute = max(self._minute, minute + 1)
        elif self._dealt:
            self._dealt, self._dealt_gone = bytearray(), set()
        self._at = 0

    def next_ms(self, now_ms: int) -> int | None:
        """Return when to call ``due`` next; None: nothing waits."""
        if self._at < len(self._dealt):
            return now_ms
        times = self._times[:1]
        if self._seconds:
            times.append(min(self._seconds) * _SECOND_MS)
        if self._minutes:
            times.append(max(0, (min(self._minutes) - 1) * MINUTE_MS))
        return min(times, default=None)

    # What is needed of the log --------------------------------------------------------------------
    def free(self, offset: int) -> None:
        """The record of a message that waits no more is not needed any more."""
        page = offset // PAGE_BYTES
        left = self._pages.get(page, 1) - 1
        if left:
            self._pages[page] = left
        else:
            self._pages.pop(page, None)

    @property
    def needed_from(self) -> int | None:
        """The offset from which on the log is needed, at most that; None: nothing is needed."""
        return min(self._pages) * PAGE_BYTES if self._pages else None


def _cut(room: bytearray, most: int) -> list[Item]:
    """Take the first messages out of a room."""
    size = most * PACKED.size
    found = list(unpacked(room[:size]))
    del room[:size]
    return found


def _has(room: bytearray | None, offset: int, begin: int = 0) -> bool:
    """Whether a room has a message from ``begin`` on: a million are searched in milliseconds."""
    if room is None:
        return False
    wanted = _OFFSET.pack(offset)
    at = room.find(wanted, begin)
    while at >= 0 and at % PACKED.size != OFFSET_AT:
        at = room.find(wanted, at + 1)
    return at >= 0


def _room(rooms: dict[int, bytearray], number: int) -> bytearray:
    room = rooms.get(number)
    if room is None:
        room = rooms[number] = bytearray()
    return room
