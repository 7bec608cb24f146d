"""What is measured of a large cluster, what it costs, and that unknown stays unknown."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster
from support.client import started
from support.large_tree import LargeBrokers, LargeTree, TreeSize, large_cluster

from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import InvalidArgument
from vq.model import TopicPartition
from vq.operations.allocation.advisor import propose
from vq.operations.allocation.goals import AllocationGoals, LoadGoal
from vq.operations.allocation.measuring import group_loads, measure_allocation

pytestmark = pytest.mark.virtual_time

SIZE = TreeSize(
    groups=12,
    nodes=2,
    topics=40,
    partitions=400,
    consumer_groups=0,
    busy_shape=3.0,
    pools=2,
    bytes_per_s=20e6,
)


@pytest.fixture
async def large() -> AsyncIterator[tuple[MemoryCluster, ClusterClient, LargeTree, LargeBrokers]]:
    async with large_cluster(SIZE) as (cluster, made, brokers), started(cluster) as client:
        yield cluster, client, made, brokers


async def test_rates_are_those_of_the_partitions_and_a_plan_evens_them_out(large) -> None:
    _, client, made, _ = large
    facts = await measure_allocation(client, window_s=20.0)
    assert facts.partitions.keys() == made.partitions.keys()
    for key, load in facts.partitions.items():
        rate = made.partitions[key].bytes_per_s
        assert load.bytes_per_s == pytest.approx(rate, rel=0.01, abs=2)
        assert load.messages_per_s == pytest.approx(rate / 500, rel=0.01, abs=2)
        assert load.stored_bytes >= made.partitions[key].stored_bytes
    group = facts.groups["b000"]
    assert group.bytes_per_s == pytest.approx(made.bytes_per_s()["b000"])
    assert group.copied_bytes_per_s == group.bytes_per_s, "one node copies it"
    assert group.disk_growth_bytes_per_hour == 1 << 30
    plan = propose(facts, AllocationGoals())
    assert plan.skew(LoadGoal.BYTES) <= 1.1 < plan.skew(LoadGoal.BYTES, after=False)


async def test_a_silent_master_leaves_unknown_what_only_it_knows(large) -> None:
    _, client, made, brokers = large
    brokers.silent.add("b003")
    facts = await measure_allocation(client, window_s=1.0)
    assert "does not answer" in facts.groups["b003"].error
    for key, load in facts.partitions.items():
        is_silent = made.partitions[key].group == "b003"
        assert (load.bytes_per_s is None) is is_silent
        assert (load.messages_per_s is None) is is_silent
        assert (load.stored_bytes is None) is is_silent
    plan = propose(facts, AllocationGoals())
    assert not {"b003"} & {name for each in plan.moves for name in (each.source, each.target)}
    assert any("b003" in note for note in plan.notes)


async def test_what_is_asked_for_is_bounded_by_what_is_shown(large) -> None:
    """Groups alone cost ZooKeeper a call for each, and no broker; one topic only its masters."""
    cluster, client, made, brokers = large
    before = cluster.ensemble.served
    assert [each.group for each in await group_loads(client)] == made.groups
    assert cluster.ensemble.served - before <= SIZE.groups + 3
    assert not brokers.answered
    before = cluster.ensemble.served
    facts = await measure_allocation(client, window_s=1.0, topics={"topic-0001"})
    assert {key.topic for key in facts.partitions} == {"topic-0001"}
    holders = {each.group for each in facts.partitions.values()}
    assert brokers.answered == {"STATUS": 2 * len(holders)}
    masters = 2 * 2 * len(holders)  # state and registration, twice
    assert cluster.ensemble.served - before <= SIZE.groups + 6 + masters


async def test_an_old_load_is_unknown(large) -> None:
    """Its process has not written it again for half a minute; by ZooKeeper's clock."""
    cluster, client, _, _ = large
    async with cluster.admin() as coordinator:
        path = BrokerLoad.path("b001", "n1")
        node = await coordinator.get(path)
        await asyncio.sleep(31.0)
        await coordinator.set(path, node.data)
    found = {each.group: each for each in await group_loads(client)}
    assert found["b001"].bytes_per_s is not None
    assert found["b002"].bytes_per_s is None
    assert found["b002"].error == "its load is not known"
    assert found["b002"].disk_bytes_free is None


async def test_a_window_out_of_bounds_is_refused(large) -> None:
    _, client, _, _ = large
    for window_s in (0, -1, 601, float("nan"), "5", True):
        says = r"window_s = .* (is outside \[0.1, 600\] s|is (str|bool); give a number)"
        with pytest.raises(InvalidArgument, match=says):
            await measure_allocation(client, window_s=window_s)
    assert TopicPartition("topic-0000", 0) in (await measure_allocation(client)).partitions
