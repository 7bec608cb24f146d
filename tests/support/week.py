"""Days of a broker group in seconds: what looks at a node often looks seldom, and clocks step."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, memory_cluster, message
from support.node_pair import NodePair, whole

from vq import limits
from vq.broker import upkeep
from vq.broker.base.config import ConnectionLimits
from vq.broker.health import repairing, scrubbing
from vq.broker.history import acts, archive_runs, early_archives, key_indexing, retaining
from vq.broker.logs import archiving
from vq.broker.node import BrokerNode
from vq.broker.replication import (
    catching_up,
    copying,
    following,
    handing_over,
    insync_set,
    lag,
    soundness,
)
from vq.broker.security import known_rules, users
from vq.broker.security.known_value import KnownValue
from vq.clock import Clock
from vq.coordination.brokers import leadership, registry
from vq.coordination.leases import leases
from vq.coordination.tree.memory import MemoryEnsemble
from vq.testing.loop import clock_of_loop
from vq.testing.waiting import until

HOUR_S = 3_600
#: What looks at a node many times a second or a minute looks so much less often.
SLOWER = 300
#: What looks so, where.
LOOKS: Any = (
    (acts, "LOOK_S"),
    (archiving, "DISCARD_S"),
    (copying, "WAIT_S"),
    (early_archives, "LOOK_S"),
    (following, "AUDIT_S"),
    (handing_over, "_AUDIT_S"),
    (catching_up, "COMPARE_MAX_S"),
    (catching_up, "LAG_MAX_S"),
    (catching_up, "NEAR_S"),  # at least a tick: so old is what a copy is compared with
    (insync_set, "ARRIVAL_S"),
    (insync_set, "AWAITED_MAX_S"),
    (insync_set, "LAG_MAX_S"),
    (insync_set, "SILENT_S"),
    (insync_set, "TICK_S"),
    (key_indexing, "LOOK_S"),
    (lag, "TICK_S"),
    (leadership, "AUDIT_INTERVAL_S"),
    (limits, "LOAD_INTERVAL_S_MAX"),
    (registry, "AUDIT_INTERVAL_S"),
    (retaining, "PRESSED_S"),
    (scrubbing, "LOOK_S"),
)
#: What looks twice a second for damage, of which there is none, looks even more seldom.
DAMAGE_SLOWER = 3_000
DAMAGE: Any = ((repairing, "LOOK_S"), (soundness, "LOOK_S"))
#: What looks once a minute decides by the hour; it looks so many times less often.
AUDITS_SLOWER = 10
AUDITS: Any = (
    (archive_runs, "AUDIT_S"),
    (known_rules, "AUDIT_S"),
    (leases, "AUDIT_S"),
    (upkeep, "TIDY_INTERVAL_S"),
    (users, "AUDIT_S"),
)
QUIET: dict[str, Any] = {
    "refresh_interval_s": 600.0,
    "disk_interval_s": 3_600.0,
    "load_interval_s": 1_200.0,
    "retention_interval_s": 600.0,
    "grace_interval_s": 3_600.0,
    "rules_age_max_s": 3_600.0,
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


@dataclass(frozen=True)
class Sent:
    """A message: when it was sent, where its batch ends, how far behind the clock was then."""

    time_s: float
    end: int
    back_hours: float


class Week(NodePair):
    """The group, its clock, and what was sent."""

    def __init__(self, cluster: MemoryCluster, clock: SteppedClock) -> None:
        super().__init__(cluster)
        self.clock = clock
        self.sent: list[Sent] = []

    async def start(self, name: str) -> BrokerNode:
        self.nodes[name] = await self.cluster.start(node=name, **QUIET)
        return self.nodes[name]

    async def in_sync(self) -> None:
        await until(
            lambda: self.nodes[self.leader()].parts.context.role.named == 2, timeout_s=9_000
        )

    async def send(self) -> None:
        node = self.nodes[self.leader()]
        client = await Client.connect(self.cluster.network, node.address)
        await client.put("t", 0, [message(b"%06d" % len(self.sent) * 100)])
        client.close()
        end = node.parts.partitions.channels["t", 0].log.end_offset
        self.sent.append(Sent(asyncio.get_running_loop().time(), end, self.clock.back_hours))

    async def send_for_an_hour(self) -> None:
        """Send a message each half hour."""
        for _ in range(2):
            await self.send()
            await asyncio.sleep(HOUR_S / 2)

    def check_bytes(self) -> None:
        """All nodes have equal bytes where both have some."""
        logs = [self.log(name) for name in self.nodes]
        start = max(log.start_offset for log in logs)
        assert len({whole(log, start) for log in logs}) == 1


@asynccontextmanager
async def started_week(monkeypatch: pytest.MonkeyPatch, **retention: Any) -> AsyncIterator[Week]:
    """Two nodes that look seldom and have one message of topic ``t``."""
    look_seldom(monkeypatch)
    async with memory_cluster() as cluster:
        clock = SteppedClock(clock_of_loop())
        cluster.ensemble.clock = clock
        week = Week(cluster, clock)
        await week.start("n1")
        await cluster.create_topic("t", partitions=1, **retention)
        await until(lambda: ("t", 0) in week.nodes["n1"].parts.partitions.channels, timeout_s=2_000)
        await week.start("n2")
        await week.send()
        await until(week.same, timeout_s=2_000)
        yield week


def look_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything look less often, and let sessions live longer by as much."""
    for looks, slower in ((LOOKS, SLOWER), (DAMAGE, DAMAGE_SLOWER), (AUDITS, AUDITS_SLOWER)):
        for module, name in looks:
            monkeypatch.setattr(module, name, slower * getattr(module, name))
    usual = KnownValue.__init__.__kwdefaults__
    monkeypatch.setitem(usual, "audit_s", AUDITS_SLOWER * usual["audit_s"])
    real = MemoryEnsemble.coordinator

    def coordinator(ensemble: MemoryEnsemble, cluster: str, *, session_timeout_s: float) -> Any:
        return real(ensemble, cluster, session_timeout_s=SLOWER * session_timeout_s)

    monkeypatch.setattr(MemoryEnsemble, "coordinator", coordinator)
