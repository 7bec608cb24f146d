"""The last messages of a partition: read backwards in windows, each of them forwards.

An offset in the middle of a window is hardly ever the start of a record; the broker's refusal names
the next start. Windows grow, so that little is read twice and few requests are made. Example: 3
messages are wanted, and the windows before the end at 1,000 hold 1 and 4 of them::

    [900, 1000)  1 message      [700, 900)  4 messages: the last 2 of them are kept
"""

import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from vq import limits
from vq.client.kinds import check_whole
from vq.errors import InvalidArgument, OffsetNotBoundary
from vq.model import Message, OffsetBounds, time_ms_of

#: The most messages that may be asked for, and the bytes of contents that they take at most.
LAST_MESSAGES_MAX: Final = 10_000
LAST_BYTES_MAX: Final = 64 * limits.MIB
_WINDOW_BYTES: Final = 64 * limits.KIB


class Stored(Protocol):
    """A message, or what is kept of one."""

    @property
    def offset(self) -> int:
        """Where its record starts."""
        ...


T = TypeVar("T", bound=Stored)
Get = Callable[[int, int], Awaitable[tuple[Sequence[T], int]]]
"""``(offset, length)`` to what begins there, at least one if there is any, and where to read on."""


def check_count(count: int) -> None:
    """Check how many messages are asked for.

    Raises:
        InvalidArgument: The number is out of range.
    """
    check_whole("count", count)
    if not 1 <= count <= LAST_MESSAGES_MAX:
        raise InvalidArgument(f"count {count} is outside [1, {LAST_MESSAGES_MAX}]")


async def read_last(
    get: Get[T], bounds: OffsetBounds, count: int, *, size_of: Callable[[T], int] = lambda _: 0
) -> list[T]:
    """Return the last ``count`` messages of a partition, oldest first.

    Fewer if it has no more, or if more would take over ``LAST_BYTES_MAX`` by ``size_of``.
    """
    found: deque[T] = deque()
    size = 0
    end, window = bounds.latest, _WINDOW_BYTES
    while end > bounds.earliest and len(found) < count:
        start = max(bounds.earliest, end - window)
        first, messages = await _read_window(get, start, end, count - len(found))
        for message in reversed(messages):
            size += size_of(message)
            if size > LAST_BYTES_MAX and found:
                return list(found)
            found.appendleft(message)
        end, window = first, min(2 * window, limits.FETCH_BYTES_MAX)
        if first > start:  # a record is larger than the window
            window = max(window, first - start + _WINDOW_BYTES)
    return list(found)


async def _read_window(get: Get[T], start: int, end: int, count: int) -> tuple[int, deque[T]]:
    """Return where the first record begins in ``[start, end)``, and the last messages there."""
    messages: deque[T] = deque(maxlen=count)
    first: int | None = None
    offset = start
    while offset < end:
        try:
            batch, following = await get(offset, min(limits.FETCH_BYTES_MAX, max(1, end - offset)))
        except OffsetNotBoundary as error:
            if offset != start:
                raise
            offset = int(error.details["next"])
            continue
        first = offset if first is None else first
        messages.extend(each for each in batch if each.offset < end)
        if following <= offset:
            break
        offset = following
    return min(end, offset) if first is None else first, messages


def merge_last(
    partitions: Iterable[Sequence[T]], count: int, time_of: Callable[[T], int]
) -> list[T]:
    """Return the newest ``count`` messages of several partitions, oldest first.

    By their times; those of a partition keep their order: one with an earlier time than the one in
    front of it counts with the time of that one.
    """

    def with_times(messages: Sequence[T]) -> list[tuple[int, T]]:
        times, latest = [], 0
        for message in messages:
            latest = max(latest, time_of(message))
            times.append((latest, message))
        return times

    merged = heapq.merge(*map(with_times, partitions), key=lambda each: each[0])
    return [message for _, message in deque(merged, maxlen=count)]


def stored_ms(message: Message) -> int:
    """Return when a message was stored, or born where that is not known."""
    known = message.append_time_ms
    return time_ms_of(message.id) if known is None else known
