"""Time as a constructor argument: the ``Clock`` port, the system's clock, and one moved by hand.

Nothing that decides reads the time itself. Safety never depends on wall-clock time; it is used for
message ids, append times and retention only. Waiting is done with timers of the event loop, so a
simulation replaces the loop for waits and the clock for readings.
"""

import time
from typing import Final, Protocol

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
#: The longest year.
YEAR_S: Final = 366 * 86_400


class Clock(Protocol):
    """Where the time comes from."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC; may step in both directions."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never decreases."""
        ...


class SystemClock:
    """The machine's clocks. Safe from any thread."""

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        return time.time_ns() // 1_000_000

    #: See ``Clock.monotonic``; the C function itself, since producers read it for every message.
    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that moves only when told. For tests and simulations; not thread-safe."""

    def __init__(self, *, wall_ms: int = 1_750_000_000_000, monotonic: float = 0.0) -> None:
        self._wall_ms = float(wall_ms)
        self._monotonic = monotonic

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        return int(self._wall_ms)

    def monotonic(self) -> float:
        """See ``Clock.monotonic``."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by ``seconds`` (>= 0)."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} s: time only moves forward here")
        self._monotonic += seconds
        self._wall_ms += seconds * 1000

    def step_wall_ms(self, delta_ms: int) -> None:
        """Step the wall clock alone by ``delta_ms``, forward or back, as an operator would."""
        self._wall_ms += delta_ms
