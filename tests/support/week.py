"""Days of a broker group in seconds: what looks at a node often looks seldom, and clocks step."""

from typing import Any

import pytest

from vq import limits
from vq.broker import (
    archive_runs,
    archiving,
    copying,
    following,
    handing_over,
    insync_set,
    key_indexing,
    lag,
    repairing,
    retaining,
    scrubbing,
    soundness,
    upkeep,
)
from vq.broker.config import ConnectionLimits
from vq.clock import Clock
from vq.coordination import leadership, leases, registry
from vq.coordination.memory import MemoryEnsemble

HOUR_S = 3_600
#: What looks at a node many times a second or a minute looks so much less often.
SLOWER = 120
#: What looks so, where.
LOOKS: Any = (
    (archiving, "DISCARD_S"),
    (copying, "WAIT_S"),
    (following, "AUDIT_S"),
    (handing_over, "_AUDIT_S"),
    (insync_set, "TICK_S"),
    (key_indexing, "LOOK_S"),
    (lag, "TICK_S"),
    (leadership, "AUDIT_INTERVAL_S"),
    (limits, "LOAD_INTERVAL_S_MAX"),
    (registry, "AUDIT_INTERVAL_S"),
    (repairing, "LOOK_S"),
    (retaining, "PRESSED_S"),
    (scrubbing, "LOOK_S"),
    (soundness, "LOOK_S"),
)
#: What looks once a minute decides by the hour; it looks so many times less often.
AUDITS_SLOWER = 10
AUDITS: Any = (
    (archive_runs, "AUDIT_S"),
    (leases, "AUDIT_S"),
    (upkeep, "TIDY_INTERVAL_S"),
)
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


def look_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything look less often, and let sessions live longer by as much."""
    for looks, slower in ((LOOKS, SLOWER), (AUDITS, AUDITS_SLOWER)):
        for module, name in looks:
            monkeypatch.setattr(module, name, slower * getattr(module, name))
    real = MemoryEnsemble.coordinator

    def coordinator(ensemble: MemoryEnsemble, cluster: str, *, session_timeout_s: float) -> Any:
        return real(ensemble, cluster, session_timeout_s=SLOWER * session_timeout_s)

    monkeypatch.setattr(MemoryEnsemble, "coordinator", coordinator)
