"""An event loop that notes its timers, for tests of which ones are left."""

import asyncio
from collections.abc import Callable
from typing import Any


class NotedTimers:
    """Stands in for ``loop`` where only an object under test uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: list[tuple[Callable[..., object], asyncio.TimerHandle]] = []

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *arguments: Any
    ) -> asyncio.TimerHandle:
        """Start a timer and note it."""
        handle = self._loop.call_later(delay_s, callback, *arguments)
        self._timers.append((callback, handle))
        return handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def started(self, callback: Callable[..., object]) -> int:
        """Return how many timers were started for ``callback``."""
        return len(self._of(callback))

    def left(self, callback: Callable[..., object]) -> int:
        """Return how many of them were not cancelled."""
        return sum(not handle.cancelled() for handle in self._of(callback))

    def _of(self, callback: Callable[..., object]) -> list[asyncio.TimerHandle]:
        return [handle for each, handle in self._timers if each == callback]
