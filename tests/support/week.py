"""Days of a broker group in seconds: what looks at a node often looks seldom, and clocks step."""

from typing import Any

from vq.broker.config import ConnectionLimits
from vq.clock import Clock

HOUR_S = 3_600
#: What looks at a node many times a second or a minute looks so much less often.
SLOWER = 120
QUIET: dict[str, Any] = {
    "refresh_interval_s": 600.0,
    "disk_interval_s": 3_600.0,
    "load_interval_s": 1_200.0,
    "retention_interval_s": 600.0,
    "connections": ConnectionLimits(sweep_interval_s=3_600.0),
}


class SteppedClock:
    """The clock of the loop, set back by some hours."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.back_hours = 0.0

    def wall_ms(self) -> int:
        return self._clock.wall_ms() - int(self.back_hours * HOUR_S * 1_000)

    def monotonic(self) -> float:
        return self._clock.monotonic()
