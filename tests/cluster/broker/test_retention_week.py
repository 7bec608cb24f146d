"""A week of a broker group in seconds: a message every half an hour, kept for a day.

Meanwhile the clock is set back and put right, nodes are restarted, and the copy takes over.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.broker import Client, MemoryCluster, memory_cluster, message
from support.node_pair import NodePair, whole
from support.simulation.loop import clock_of_loop
from support.waiting import until
from support.week import HOUR_S, QUIET, SteppedClock, look_seldom

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

KEPT_HOURS = 24


class Week(NodePair):
    """The group, and when which message was sent."""

    def __init__(self, cluster: MemoryCluster, clock: SteppedClock) -> None:
        super().__init__(cluster)
        self.clock = clock
        # When, where its batch ends, and by how many hours the clock was behind.
        self.sent: list[tuple[float, int, float]] = []

    async def start(self, name: str):
        self.nodes[name] = await self.cluster.start(node=name, **QUIET)
        return self.nodes[name]

    async def send(self) -> None:
        node = self.nodes[self.leader()]
        client = await Client.connect(self.cluster.network, node.address)
        await client.put("t", 0, [message(b"%06d" % len(self.sent) * 100)])
        client.close()
        end = node._partitions.channels["t", 0].log.end_offset
        self.sent.append((asyncio.get_running_loop().time(), end, self.clock.back_hours))

    def check(self, *, slack_hours: float) -> None:
        """Nothing young is gone, nothing is too old, and both nodes have equal bytes.

        On the node that led all the time a message stays for twice the age at most: once until its
        block ends, and once until that goes. On a copy, where blocks end elsewhere, thrice.
        """
        now = asyncio.get_running_loop().time()
        for name in self.nodes:
            log, begin = self.log(name), 0
            age_hours_max = (2 if name == "n1" else 3) * KEPT_HOURS + 1 + slack_hours
            for at, end, back_hours in self.sent:
                age_hours = (now - at) / HOUR_S
                if end <= log.start_offset:
                    # What was sent while the clock was behind looks older when it is right again.
                    least = KEPT_HOURS - (back_hours if not self.clock.back_hours else 0)
                    assert age_hours >= least, f"{name} has deleted it after {age_hours} h"
                elif begin >= log.start_offset:
                    assert age_hours < age_hours_max, f"{name} has kept it for {age_hours} h"
                begin = end
        logs = [self.log(name) for name in self.nodes]
        start = max(log.start_offset for log in logs)
        assert len({whole(log, start) for log in logs}) == 1


@pytest.fixture
async def week(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Week]:
    look_seldom(monkeypatch)
    async with memory_cluster() as cluster:
        clock = SteppedClock(clock_of_loop())
        cluster.ensemble.clock = clock
        found = Week(cluster, clock)
        await found.start("n1")
        await cluster.create_topic("t", partitions=1, retention_hours=KEPT_HOURS)
        await until(lambda: ("t", 0) in found.nodes["n1"]._partitions.channels, timeout_s=2_000)
        await found.start("n2")
        await found.send()
        await until(found.same, timeout_s=2_000)
        yield found


async def in_sync(week: Week) -> None:
    await until(lambda: week.nodes[week.leader()]._context.role.named == 2, timeout_s=9_000)


async def test_a_week(week: Week) -> None:
    slack_hours = 0.0
    for hour in range(7 * 24):
        for _ in range(2):
            await week.send()
            await asyncio.sleep(HOUR_S / 2)
        if hour == 40:
            week.clock.back_hours = slack_hours = 5.0
        elif hour == 60:
            week.clock.back_hours = 0.0
        elif hour == 80:
            await in_sync(week)
            await week.stop("n2")
            await until(lambda: week.nodes["n1"]._context.role.named == 1, timeout_s=9_000)
        elif hour == 115:  # all that n2 has was deleted meanwhile, or is about to be
            await week.start("n2")
            await in_sync(week)
        elif hour == 150:
            await week.stop("n1")
            await until(lambda: week.nodes["n2"].epoch > 0, timeout_s=9_000)
            await week.start("n1")
            await in_sync(week)
            break
        await until(week.same, timeout_s=9_000)
        week.check(slack_hours=slack_hours)
    for _ in range(24 * 2):  # the copy leads, with what it has
        await week.send()
        await asyncio.sleep(HOUR_S / 2)
    await until(week.same, timeout_s=9_000)
    week.check(slack_hours=slack_hours + KEPT_HOURS)
    assert min(week.log(name).start_offset for name in week.nodes) > 0
    deleted = sum(node._context.counters.deleted_bytes for node in week.nodes.values())
    assert deleted > 0
