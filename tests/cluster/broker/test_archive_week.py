"""Eight days of archives in seconds: a message each half hour, archived after a day, kept three.

Meanwhile the clock is set back and put right, and the node with the lease stops for days.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.archives import archiver_of
from support.broker import Client, MemoryCluster, memory_cluster, message
from support.node_pair import NodePair, whole
from support.simulation.loop import clock_of_loop
from support.waiting import until
from support.week import HOUR_S, QUIET, SteppedClock, look_seldom

from vq.coordination.runs import read_results, read_runs
from vq.coordination.values.runs import RunState

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

KEPT_HOURS = 72


class Week(NodePair):
    """The group, and when which message was sent."""

    def __init__(self, cluster: MemoryCluster, clock: SteppedClock) -> None:
        super().__init__(cluster)
        self.clock = clock
        self.sent: list[tuple[float, int]] = []  # when, and where its batch ends

    async def start(self, name: str):
        self.nodes[name] = await self.cluster.start(node=name, **QUIET)
        return self.nodes[name]

    async def send(self) -> None:
        node = self.nodes[self.leader()]
        client = await Client.connect(self.cluster.network, node.address)
        await client.put("t", 0, [message(b"%06d" % len(self.sent) * 100)])
        client.close()
        end = node._partitions.channels["t", 0].log.end_offset
        self.sent.append((asyncio.get_running_loop().time(), end))

    def archived(self, name: str) -> int:
        """Up to which offset all that a node has is archived."""
        log = self.log(name)
        end = log.start_offset
        for block in log.closed_blocks:
            if not block.is_archived:
                break
            end = block.end_offset
        return end

    def check(self, *, slack_hours: float) -> None:
        """What is old is archived on both nodes, what is young is not; both have equal bytes."""
        now = asyncio.get_running_loop().time()
        for name in self.nodes:
            log, archived, begin = self.log(name), self.archived(name), 0
            for at, end in self.sent:
                age_hours = (now - at) / HOUR_S
                if end <= log.start_offset:
                    assert age_hours >= KEPT_HOURS - slack_hours, f"{name}: gone at {age_hours} h"
                elif end <= archived:
                    assert age_hours >= 22 - slack_hours, f"{name}: archived at {age_hours} h"
                elif begin >= archived:
                    # An idle copy learns a little later that its last message is committed.
                    assert age_hours < 48 + 3 + slack_hours, f"{name}: no archive at {age_hours} h"
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
        await cluster.create_topic(
            "t", partitions=1, retention_hours=KEPT_HOURS, retention_policy="archive"
        )
        await until(lambda: ("t", 0) in found.nodes["n1"]._partitions.channels, timeout_s=2_000)
        await found.start("n2")
        await found.send()
        await until(found.same, timeout_s=2_000)
        yield found


async def in_sync(week: Week) -> None:
    await until(lambda: week.nodes[week.leader()]._context.role.named == 2, timeout_s=9_000)


async def test_a_week(week: Week) -> None:
    slack_hours = 0.0
    for hour in range(8 * 24):
        for _ in range(2):
            await week.send()
            await asyncio.sleep(HOUR_S / 2)
        if hour == 40:
            week.clock.back_hours = slack_hours = 5.0
        elif hour == 60:
            week.clock.back_hours = 0.0
        elif hour == 80:  # with the lease, and as master
            await in_sync(week)
            await week.stop("n1")
            await until(lambda: week.nodes["n2"].epoch > 0, timeout_s=9_000)
        elif hour == 120:
            # It was away for a daily run or two. What it copies now is in one block, which the next
            # run ends, and the one after that archives.
            slack_hours = 45.0
            await week.start("n1")
            await in_sync(week)
            await until(lambda: archiver_of(week.nodes["n1"]).last is not None, timeout_s=9_000)
        elif hour == 170:
            slack_hours = 5.0
        await until(week.same, timeout_s=9_000)
        week.check(slack_hours=slack_hours)
    async with week.cluster.admin() as coordinator:
        runs = (await read_runs(coordinator)).known
        results = [await read_results(coordinator, number) for number in runs]
    due = [each.due_ms for each in runs.values()]
    assert len(due) == len(set(due)) in {7, 8}, "one each day"
    assert len({each.by for each in runs.values()}) == 2, "the other node took the lease"
    states = {each.state for found in results for each in found.values()}
    assert states <= {RunState.DONE, RunState.COVERED}
    for name in week.nodes:
        assert week.archived(name) > week.log(name).start_offset > 0
