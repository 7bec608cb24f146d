"""Who waits, by address: addresses take turns, so one that has many keeps out no other. Pure."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class AddressLines(Generic[T]):
    """A line for each address.

    Args:
        waiting_max: How many may wait in all.

    *Example*: A has five that wait, B one. They go on as A, B, A, A, A, A.
    """

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # the next address comes first
        self._count = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def add(self, address: str, item: T) -> T | None:
        """Append one; return the one that must go instead, the last of the longest line."""
        self._lines.setdefault(address, deque()).append(item)
        self._count += 1
        if self._count <= self._waiting_max:
            return None
        longest = max(self._lines, key=lambda each: len(self._lines[each]))
        gone = self._lines[longest].pop()
        self._count -= 1
        if not self._lines[longest]:
            del self._lines[longest]
        return gone

    def take(self) -> T:
        """Return the first one of the next address; somebody must wait."""
        address, line = next(iter(self._lines.items()))
        item = line.popleft()
        self._count -= 1
        if line:
            self._lines.move_to_end(address)
        else:
            del self._lines[address]
        return item
