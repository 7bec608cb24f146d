"""The last messages of a partition: read backwards in windows, each of them forwards.

The begin of a window is hardly ever the start of a record; the first one behind it counts. Windows
grow, so that few requests are made. Example: 3 messages are wanted, and the windows before the end
at 1,000 hold 1 and 4 of them::

    [900, 1000)  1 message      [700, 900)  4 messages: the last 2 of them are kept
"""

import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from vq import limits
from vq.bounds import check_between
from vq.model import Message, OffsetBounds, time_ms_of

#: The most messages that may be asked for, and the bytes of contents that they take at most.
LAST_MESSAGES_MAX: Final = 10_000
LAST_BYTES_MAX: Final = 64 * limits.MIB
WINDOW_BYTES: Final = 64 * limits.KIB


class Stored(Protocol):
    """A message, or what is kept of one."""

    @property
    def offset(self) -> int:
        """Where its record starts."""
        ...


S = TypeVar("S", bound=Stored)
S_co = TypeVar("S_co", bound=Stored, covariant=True)
T = TypeVar("T")


class ForwardRange(Protocol[S_co]):
    """A range that is read forwards; in practice a ``forward.ForwardRead``.

    Attributes:
        first: Where its first record begins, once it was read.
    """

    first: int

    def __aiter__(self) -> AsyncIterator[Sequence[S_co]]:
        """Yield what begins in the range, and perhaps what follows."""
        ...


def check_count(count: int) -> None:
    """Check how many messages are asked for.

    Raises:
        InvalidArgument: The number is out of range.
    """
    check_between("count", count, 1, LAST_MESSAGES_MAX)


async def read_last(
    read: Callable[[int, int], ForwardRange[S]],
    bounds: OffsetBounds,
    count: int,
    keep: Callable[[S], T],
    size_of: Callable[[S], int] = lambda _: 0,
) -> list[T]:
    """Return what ``keep`` keeps of the last ``count`` messages of a partition, oldest first.

    Fewer if it has no more, or if more would take over ``LAST_BYTES_MAX`` by ``size_of``.

    Args:
        read: Returns what reads from an offset, or the next record, to another one.
        bounds: Of what is looked at.
        count: How many messages.
        keep: What to keep of each.
        size_of: Its size.
    """
    found: deque[T] = deque()
    size = 0
    end, window = bounds.latest, WINDOW_BYTES
    while end > bounds.earliest and len(found) < count:
        start = max(bounds.earliest, end - window)
        forward = read(start, end)
        last: deque[tuple[T, int]] = deque(maxlen=count - len(found))
        async for some in forward:
            last.extend((keep(each), size_of(each)) for each in some if each.offset < end)
        for kept, bytes_of_it in reversed(last):
            size += bytes_of_it
            if size > LAST_BYTES_MAX and found:
                return list(found)
            found.appendleft(kept)
        first = min(end, forward.first)
        end, window = first, min(2 * window, limits.FETCH_BYTES_MAX)
        if first > start:  # a record is larger than the window
            window = max(window, first - start + WINDOW_BYTES)
    return list(found)


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
