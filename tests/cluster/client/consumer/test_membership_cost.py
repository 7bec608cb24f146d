"""What a rebalance costs ZooKeeper: calls counted at its twin, for groups of many sizes.

A member that comes has to read the group once: up to ``READS_PER_CALL_MAX`` nodes at a time. The
others read the names of the members and of the owner nodes, all members, and what was to move. So
the calls of one change are bounded by

    members x a few + a few for each partition that moves

and not by members x partitions, members x members, or members x partitions that move.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.group.hold_states import State
from vq.client.consumer.group.holds import Hold, Holds
from vq.client.consumer.group.membership import Membership
from vq.client.consumer.group.settling import CHECK
from vq.client.departures import Departures
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import READS_PER_CALL_MAX
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import VqError
from vq.message_filter import ALL
from vq.model import TopicPartition
from vq.testing.loop import clock_of_loop
from vq.testing.waiting import until

LIMIT_S = 120.0


class CountedCluster:
    """What a membership needs of its cluster: the real coordinator's twin, and fixed routes."""

    def __init__(self, coordinator: MemoryCoordinator, partitions: int) -> None:
        self.coordinator = coordinator
        self.offsets = ZooKeeperOffsets(coordinator)
        self.clock = clock_of_loop()
        self.rng = random.Random(7)
        self.departures = Departures(coordinator, self.rng)
        self._routes = SimpleNamespace(
            partitions=lambda _: [SimpleNamespace(partition=n) for n in range(partitions)]
        )

    async def track(self, _: str) -> Any:
        return self._routes

    def on_change(self, _: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class CountedMember:
    """A member that holds what it is given."""

    def __init__(self, cluster: CountedCluster, name: str) -> None:
        self.cluster = cluster
        self.held: set[TopicPartition] = set()
        self.membership = Membership(
            cluster,  # type: ignore[arg-type]
            ConsumerConfig(group="g", member_id=name, audit_interval_s=3600.0),
            member=name,
            filters={"t": ALL},
            offsets=cluster.offsets,
            holds=Holds("g", name),
            consumer=self,
            permit=Permit(cluster.clock.monotonic),
        )

    async def claimed(self, hold: Hold) -> None:
        self.held.add(hold.partition)

    async def drain(self, hold: Hold) -> None:
        if hold.state is State.LOST:
            self.held.discard(hold.partition)

    async def commit_last(self, hold: Hold) -> None:
        self.held.discard(hold.partition)

    def follow(self, failure: FailurePolicy) -> None:
        pass

    def suspend(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def ended(self, error: VqError) -> None:
        pass


class CountedGroup:
    """A group over one ensemble, whose calls are counted."""

    def __init__(self, partitions: int, delay_s: float = 0.0) -> None:
        self.ensemble = MemoryEnsemble(clock=clock_of_loop(), delay=lambda: delay_s)
        self.partitions = partitions
        self.members: list[CountedMember] = []
        self.shared_at = 0.0  # when the partitions were shared out after the last change
        self._names = itertools.count()

    async def join(self, count: int = 1) -> int:
        """Let ``count`` members join at once; returns the calls until all are content."""
        before = self.ensemble.served
        for _ in range(count):
            client = self.ensemble.coordinator("test", session_timeout_s=3600.0)
            await client.start()
            cluster = CountedCluster(client, self.partitions)
            self.members.append(CountedMember(cluster, f"m{next(self._names):03d}"))
        await asyncio.gather(*(each.membership.start() for each in self.members[-count:]))
        await self.settled()
        return self.ensemble.served - before

    async def leave(self) -> int:
        """Let the member that came last leave; returns the calls until all is shared out."""
        before = self.ensemble.served
        member = self.members.pop()
        await member.membership.close(LIMIT_S)
        await member.cluster.coordinator.close()
        await self.settled()
        return self.ensemble.served - before

    async def settled(self) -> None:
        """Wait until the partitions are shared out evenly, and nobody calls any more."""
        base, larger = divmod(self.partitions, len(self.members))
        shares = sorted([base] * (len(self.members) - larger) + [base + 1] * larger)
        await until(
            lambda: sorted(len(each.held) for each in self.members) == shares, timeout_s=LIMIT_S
        )
        self.shared_at = asyncio.get_running_loop().time()
        served = -1
        while served != self.ensemble.served:
            served = self.ensemble.served
            await asyncio.sleep(2 * CHECK.first_s)  # until the last check is over

    async def close(self) -> None:
        for each in self.members:
            task = each.membership._task
            assert task is not None
            task.cancel()
            each.cluster.coordinator.vanish(age=False)


_LONG = (pytest.mark.long, pytest.mark.timeout(600))
_MARKS = {"": (), "slow": (pytest.mark.slow,), "long": _LONG}
SIZES = [
    pytest.param(partitions, members, marks=_MARKS[mark])
    for partitions, row in {
        10: {2: "", 10: "", 50: "slow"},
        100: {2: "", 10: "slow", 50: "slow"},
        1_000: {2: "slow", 10: "long", 50: "long"},
        4_000: {2: "long", 10: "long", 50: "long"},
    }.items()
    for members, mark in row.items()
]


def calls_allowed(partitions: int, members: int, moved: int, *, all_join: bool = False) -> int:
    """Return the bound of the calls that a change costs, which moves so many partitions.

    Each member looks twice, after the change and once it is carried out, with a few calls; when all
    join, each reads all partitions up to twice, too.
    """
    bulk = math.ceil(partitions / READS_PER_CALL_MAX)
    each = 32 + 2 * bulk if all_join else 10
    return members * each + 2 * moved + 40


@pytest.mark.virtual_time
@pytest.mark.parametrize(("partitions", "members"), SIZES)
async def test_a_change_costs_few_calls(partitions: int, members: int) -> None:
    """One more member comes, and leaves: all members look, and read many nodes at a time."""
    group = CountedGroup(partitions)
    try:
        await group.join(members)
        moved = -(-partitions // (members + 1))
        bound = calls_allowed(partitions, members, moved)
        for name, change in (("join", group.join), ("leave", group.leave)):
            cost = await change()
            print(f"{name}: {partitions} partitions, {members} members: {cost} of {bound} calls")
            assert cost <= bound
    finally:
        await group.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("partitions", "members"),
    [(100, 20), pytest.param(1_000, 200, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
async def test_a_large_group_is_stable_soon_and_reads_and_writes_little(
    partitions: int, members: int
) -> None:
    """All join at once, one more comes, one leaves; an answer of ZooKeeper takes 2 ms.

    A partition that is handed over costs a commit, a release and a claim; many share one write.
    """
    group = CountedGroup(partitions, delay_s=0.001)
    loop = asyncio.get_running_loop()
    try:
        for name, change, moved in (
            ("all join", lambda: group.join(members), partitions),
            ("one joins", group.join, -(-partitions // members)),
            ("one leaves", group.leave, -(-partitions // members)),
        ):
            begin, before = loop.time(), group.ensemble.tree.zxid
            calls = await change()
            took_s = group.shared_at - begin
            writes = group.ensemble.tree.zxid - before
            print(f"{name}: {members} x {partitions}: {calls} calls, {writes} writes, {took_s} s")
            all_join = name == "all join"
            assert calls <= calls_allowed(partitions, members, moved, all_join=all_join)
            assert writes <= 3 * moved + (2 * members if all_join else 5)
            assert took_s <= 5.0
    finally:
        await group.close()
