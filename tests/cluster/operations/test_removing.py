"""Draining and removing brokers from Python, over a cluster in memory."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster

from vq import aio
from vq.coordination.brokers import registry
from vq.coordination.topics import topics
from vq.coordination.tree.values.brokers import BrokerGroup, OpenPartitions
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.model import Message, TopicSettings
from vq.operations.brokers import removing
from vq.operations.brokers.removing import GivenUp
from vq.operations.messages import streams
from vq.testing.waiting import until_true

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as cluster:
        await cluster.start("b1")
        await cluster.start("b2")
        yield cluster


async def names(factory: aio.MessageFactory) -> list[str]:
    return [each.group.group for each in (await factory.admin.cluster_status()).brokers]


async def test_a_group_is_drained_emptied_stopped_and_removed(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Each step that is missing is named, and then nothing is changed."""
    operator = factory.admin
    await operator.create_topic("t", TopicSettings(partitions=2))
    drained = await operator.drain_group("b2")
    assert (drained.draining, drained.partitions) == (True, 1)
    placed = await operator.create_topic("later", TopicSettings(partitions=2))
    assert {each.writer_group for each in placed.partitions} == {"b1"}
    with pytest.raises(InvalidState, match="b2/n1 runs: stop it first"):
        await operator.remove_broker("b2")
    moved = await operator.move(await operator.plan_emptying("b2"))
    assert [(each.source, each.target) for each in moved] == [("b2", "b1")]
    assert (await operator.plan_removal("b2")).obstacle == "b2/n1 runs: stop it first"
    await cluster.nodes["b2"].stop()
    assert (await operator.plan_removal("b2")).obstacle == ""
    await operator.remove_broker("b2")
    assert await names(factory) == ["b1"]
    with pytest.raises(InvalidArgument, match="there is no broker group 'b2'"):
        await operator.remove_broker("b2")


async def test_a_group_with_stored_messages_is_not_removed(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    operator = factory.admin
    await operator.create_topic("t", TopicSettings(partitions=2))
    async with await factory.create_producer() as producer:
        await producer.send_batch([Message("t", b"1"), Message("t", b"2")])
    await cluster.nodes["b2"].stop()
    with pytest.raises(InvalidState, match=r"1 partition\(s\) are open on b2"):
        await operator.remove_broker("b2")
    await cluster.start("b2")
    await until_true(lambda: answers(factory))
    await operator.move(await operator.plan_emptying("b2"))
    await cluster.nodes["b2"].stop()
    with pytest.raises(InvalidState, match="b2 has stored messages of t, and no other group"):
        await operator.remove_broker("b2")
    assert await names(factory) == ["b1", "b2"]
    await operator.delete_topic("t", now=True)
    await operator.remove_broker("b2")
    assert await names(factory) == ["b1"]


async def answers(factory: aio.MessageFactory) -> bool:
    return not (await factory.admin.cluster_status()).silent


async def test_a_broker_of_a_removed_group_makes_it_anew(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """With an empty data directory; one that was used in the removed group is refused."""
    await cluster.nodes["b2"].stop()
    await factory.admin.remove_broker("b2")
    with pytest.raises(CoordinationError, match="this data directory has acted in 1"):
        await cluster.start("b2")
    await cluster.nodes["b2"].stop()
    await factory.admin.remove_broker("b2")
    del cluster.disks["b2"]
    await cluster.start("b2")
    await until_true(lambda: answers(factory))
    assert await names(factory) == ["b1", "b2"]


async def test_a_node_that_left_is_removed(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """One that runs, or is in sync, is not; nothing remembers one that was removed."""
    operator = factory.admin
    coordinator = cluster.coordinators["b1"]
    await registry.change_group(coordinator, "b1", lambda before: replace(before, drained=("n9",)))
    with pytest.raises(InvalidState, match="b1/n1 is registered or in sync: stop it"):
        await operator.remove_broker("b1", "n1")
    await operator.remove_broker("b1", "n9")
    with pytest.raises(InvalidArgument, match="has no node 'n9'; known: n1"):
        await operator.remove_broker("b1", "n9")
    assert (await registry.read_group(coordinator, "b1") or BrokerGroup()).drained == ()


async def test_a_node_that_stopped_is_missed_until_it_is_removed(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its group would be down to one copy, and nobody would hear of it."""
    operator = factory.admin

    async def unsafe() -> list[str]:
        return [each.kind for each in (await operator.cluster_status()).unsafe]

    async def in_sync() -> bool:
        state = await registry.read_state(cluster.coordinators["b1"], "b1")
        return state is not None and set(state.insync) == {"n1", "n2"}

    async def missed() -> bool:
        return await unsafe() == ["away"]

    await cluster.create_topic("t", partitions=2)
    node = await cluster.start(node="n2")
    await until_true(in_sync)
    assert await unsafe() == []
    await node.stop()
    await until_true(missed)
    node = await cluster.start(node="n2")
    await until_true(in_sync)
    assert await unsafe() == []
    await node.stop()
    await until_true(missed)
    await operator.remove_broker("b1", "n2")
    assert await unsafe() == []


async def test_a_drain_is_taken_back(factory: aio.MessageFactory) -> None:
    operator = factory.admin
    await operator.drain_group("b1")
    assert not (await operator.undrain_group("b1")).draining
    assert not (await operator.undrain_node("b1", "n1")).drained
    (first, _) = (await operator.cluster_status()).brokers
    assert (first.group.draining, first.group.drained) == (False, ())


async def given_away(cluster: MemoryCluster, factory: aio.MessageFactory) -> list[GivenUp]:
    """Stop b2, which has messages of ``t`` and takes no more; return where they are."""
    operator = factory.admin
    await operator.create_topic("t", TopicSettings(partitions=2))
    async with await factory.create_producer() as producer:
        await producer.send_batch([Message("t", b"%d" % n, key=n) for n in range(4)])
        await operator.move(await operator.plan_emptying("b2"))
        await producer.send_batch([Message("t", b"%d" % n, key=n) for n in range(4, 8)])
    await cluster.nodes["b2"].stop()
    placements = await factory.get_partitions_for_topic("t")
    return [
        GivenUp("t", each.partition, span.start, span.end or 0)
        for each in placements
        for span in each.spans
        if span.group == "b2"
    ]


async def test_a_group_with_a_lost_disk_is_removed_and_what_is_lost_is_told(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Its partitions begin behind it; all other messages are there."""
    operator = factory.admin
    lost = await given_away(cluster, factory)
    assert len(lost) == 1
    planned = await operator.plan_removal("b2")
    assert (planned.obstacle_to_loss, list(planned.ranges), planned.needed) == ("", lost, ())
    with pytest.raises(InvalidState, match="--accept-data-loss gives them up"):
        await operator.remove_broker("b2")
    await operator.remove_broker("b2", accept_data_loss=True)
    (told,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert "given up" in told.getMessage()
    assert f"start={lost[0].start} end={lost[0].end}" in told.getMessage()
    assert await names(factory) == ["b1"]
    found = []
    async for some in streams.messages(operator.cluster, "t", streams.Begin()):
        found += [int(each.content) for each in some]
    assert sorted(found) == [n for n in range(8) if n >= 4 or n % 2 != lost[0].partition]


async def test_what_other_groups_have_is_not_given_up_with_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A partition may not begin behind messages that can be read."""
    operator = factory.admin
    (lost,) = await given_away(cluster, factory)
    async with cluster.admin() as coordinator:
        view = await topics.describe_topic(coordinator, "t")
        first, *rest = view.partitions[lost.partition].spans
        cut = first.end // 2
        spans = (replace(first, group="b1", end=cut), replace(first, start=cut), *rest)
        placement = replace(view.partitions[lost.partition], spans=spans)
        await topics.change_placement(coordinator, view, placement)
    with pytest.raises(InvalidState, match="cannot be given up"):
        await operator.remove_broker("b2", accept_data_loss=True)
    assert await names(factory) == ["b1", "b2"]


async def test_a_group_that_was_changed_since_the_plan_is_not_removed(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition was placed on it: the count of its open ones has another version."""
    await cluster.nodes["b2"].stop()
    plan = removing.plan_removal

    async def late(*arguments: Any) -> removing.Removal:
        planned = await plan(*arguments)
        async with cluster.admin() as coordinator:
            path = OpenPartitions.path("b2")
            await coordinator.set(path, (await coordinator.get(path)).data)
        return planned

    monkeypatch.setattr(removing, "plan_removal", late)
    with pytest.raises(CoordinationError, match="was changed meanwhile"):
        await factory.admin.remove_broker("b2")
    assert await names(factory) == ["b1", "b2"]
