"""One direction of a connection to the in-memory ZooKeeper."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Wire(Protocol):
    """What the pipes of an ensemble have in common; in practice ``MemoryEnsemble``.

    Attributes:
        delay: Returns the delay of an item, in seconds; tests change it.
        context: Where items are delivered.
    """

    delay: Callable[[], float]
    context: contextvars.Context


class Pipe:
    """Delivers in a context: first in, first out, each item after a delay."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._context = wire.context
        self._items: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.Handle | None = None

    def __len__(self) -> int:
        """How many items are under way."""
        return len(self._items)

    def send(self, deliver: Callable[[], None]) -> None:
        """Call ``deliver`` after the delay, and after all that was sent before."""
        now = asyncio.get_running_loop().time()
        due = now + self._wire.delay()
        if self._items:
            due = max(due, self._items[-1][0])
        self._items.append((due, deliver))
        self._arm()

    def clear(self) -> None:
        """Lose all items under way."""
        self._items.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self._items:
            loop = asyncio.get_running_loop()
            due = self._items[0][0]
            if due <= loop.time():
                self._timer = loop.call_soon(self._run, context=self._context)
            else:
                self._timer = loop.call_at(due, self._run, context=self._context)

    def _run(self) -> None:
        """Deliver all due items in one iteration of the loop, as for data that arrived together.

        So a watch may be called before the reader that set it resumes.
        """
        self._timer = None
        now = asyncio.get_running_loop().time()
        for _ in range(len(self._items)):  # items that arrive meanwhile wait for the next iteration
            if not self._items or self._items[0][0] > now:
                break
            _, deliver = self._items.popleft()
            deliver()
        self._arm()
