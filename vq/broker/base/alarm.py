"""The port through which jobs are rung: at what time, and by what clock.

A real broker has APScheduler behind it (``scheduler``); in memory the timers of the loop are
enough, whose time may be a number. One contract suite runs over both.

Not in here: what is done when it rings, and when it is to ring next (``jobs``).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    """Rings once for each name that is set. Loop-bound."""

    def set(self, name: str, delay_s: float, ring: Callable[[], None]) -> None:
        """Call ``ring`` on the loop after so many seconds; what was set for the name is forgotten.

        Seconds are those of a clock that only goes on, whatever the time of day is set to. A ring
        whose time has passed while nothing ran comes as soon as possible, and once.
        """
        ...

    def cancel(self, name: str) -> None:
        """Do not ring for this name."""
        ...

    def close(self) -> None:
        """Ring no more."""
        ...


class LoopAlarm:
    """An ``Alarm`` of the running loop's own timers."""

    def __init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def set(self, name: str, delay_s: float, ring: Callable[[], None]) -> None:
        """See ``Alarm.set``."""
        self.cancel(name)
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(delay_s, self._ring, name, ring)

    def _ring(self, name: str, ring: Callable[[], None]) -> None:
        del self._timers[name]
        ring()

    def cancel(self, name: str) -> None:
        """See ``Alarm.cancel``."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """See ``Alarm.close``."""
        self._closed = True
        for name in list(self._timers):
            self.cancel(name)
