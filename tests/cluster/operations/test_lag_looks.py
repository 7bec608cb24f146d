"""A look at many groups tells what each group's own description does, at a bounded cost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.broker import MemoryCluster
from support.client import started
from support.consumers import consumer_of, send, take, texts
from support.large_tree import LargeBrokers, TreeSize, large_cluster

from vq import aio
from vq.admin import Target
from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.brokers import GroupState
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import Message
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.cluster.lag_memory import LagMemory
from vq.operations.groups.groups import GroupDescription, describe_group

SIZE = TreeSize(groups=5, topics=8, partitions=40, consumer_groups=16, member_of_each=2)


def ageless(found: GroupDescription) -> GroupDescription:
    """A description without what changes with the clock."""
    partitions = [
        replace(each, lag_s=None if each.lag_s is None else round(each.lag_s / 60))
        for each in found.partitions
    ]
    return replace(found, partitions=tuple(partitions))


class Large:
    """A large cluster that stands still."""

    def __init__(self, cluster: MemoryCluster, client: ClusterClient, brokers: LargeBrokers):
        self.cluster, self.client, self.brokers = cluster, client, brokers
        self.memory = LagMemory()

    async def look(self) -> tuple[dict[str, GroupDescription], dict[str, int], int]:
        """Look at all groups; return them, requests of brokers, and calls of ZooKeeper."""
        before, served = self.brokers.answered.copy(), self.cluster.ensemble.served
        found = await look_at_groups(self.client, count=True, memory=self.memory)
        asked = self.brokers.answered - before
        return found.groups, dict(asked), self.cluster.ensemble.served - served


@pytest.fixture
async def large() -> AsyncIterator[Large]:
    async with large_cluster(SIZE) as (cluster, _, brokers), started(cluster) as client:
        brokers.rates = dict.fromkeys(brokers.rates, 0.0)
        yield Large(cluster, client, brokers)


async def test_a_look_tells_what_descriptions_tell(large: Large) -> None:
    """Also the second one, which knows most of it from the first."""
    described = {
        f"readers-{number:05}": ageless(await describe_group(large.client, f"readers-{number:05}"))
        for number in range(SIZE.consumer_groups)
    }
    for _ in range(2):
        found, _, _ = await large.look()
        assert {name: ageless(each) for name, each in found.items()} == described


async def test_a_group_that_stands_still_costs_reads_of_its_offsets(large: Large) -> None:
    """Brokers are asked once for all their partitions, and for nothing of a single one."""
    _, first, _ = await large.look()
    places = SIZE.consumer_groups * SIZE.partitions // SIZE.topics
    assert first == {"STATUS": SIZE.groups, "GET": places, "OFFSETS": places}
    _, again, calls = await large.look()
    assert again == {"STATUS": SIZE.groups}
    # The list of groups, their contracts, parents of members, topics, offsets, owners; and of each
    # broker group its record and its master.
    assert calls == 1 + 5 + 2 * SIZE.groups


async def test_of_a_group_that_goes_on_only_what_moved_is_asked(large: Large) -> None:
    await large.look()
    path = CommittedOffset.path("readers-00003", "topic-0004", 2)
    offset = CommittedOffset.decode(path, (await large.client.coordinator.get(path)).data)
    moved = replace(offset, offset=offset.offset + 1_000)
    await large.client.coordinator.set(path, moved.encode())
    found, asked, _ = await large.look()
    assert asked == {"STATUS": SIZE.groups, "GET": 1, "OFFSETS": 1}
    assert found["readers-00003"].partitions[2].committed == moved.offset


async def test_another_master_is_asked_again(large: Large) -> None:
    """Its log may have other messages at the same offsets."""
    await large.look()
    large.brokers.epochs["b001"] = 2
    state = GroupState.path("b001")
    node = await large.client.coordinator.get(state)
    led = replace(GroupState.decode(state, node.data), epoch=2)
    await large.client.coordinator.set(state, led.encode())
    _, asked, _ = await large.look()
    held = len(large.brokers.held["b001"]) * SIZE.consumer_groups // SIZE.topics
    assert asked == {"STATUS": SIZE.groups, "GET": held, "OFFSETS": held}


async def test_of_a_silent_broker_the_lag_is_unknown(large: Large) -> None:
    """It stays unknown although an earlier look knew it."""
    await large.look()
    large.brokers.kill("b002")
    found, _, _ = await large.look()
    silent = set(large.brokers.held["b002"])
    for each in (each for group in found.values() for each in group.partitions):
        unknown = (each.topic, each.partition) in silent
        assert (each.lag_bytes is None, each.lag_s is None) == (unknown, unknown)


@pytest.mark.virtual_time
async def test_groups_of_all_kinds_are_told_alike(
    two_groups: MemoryCluster,
) -> None:
    """By pattern, from the latest message on, broadcasting, moved partitions, closed topics."""
    await two_groups.create_topic("u-1", partitions=2)
    async with started(two_groups) as client:
        factory = aio.MessageFactory.on_cluster(client)
        admin = factory.admin
        await send(factory, *texts(1, 2, 3, 4), Message("u-1", b"5"))
        async with await consumer_of(factory, group="some") as consumer:
            await take(consumer, 2)
        for group, terms in {"all": {"model": "broadcasting"}, "none": {}}.items():
            planned = await admin.plan_create_group(
                group, {"t": "*", "u-1": "a"}, Target(goal="earliest"), **terms
            )
            await admin.make_group(planned)
        async with await consumer_of(factory, "new", "u-*", start_position="latest") as consumer:
            await consumer.start()
        moved = await admin.plan_moves("t", [0], "b2")
        await admin.move(moved)
        await send(factory, *texts(6, 7, 8))
        for _ in range(2):
            found = await look_at_groups(client, count=True)
            assert sorted(found.groups) == ["all", "new", "none", "some"]
            for name, each in found.groups.items():
                assert ageless(each) == ageless(await describe_group(client, name))
            await admin.alter_topic("u-1", readable=False)  # the next time


@pytest.mark.virtual_time
async def test_a_topic_that_was_made_anew_is_asked_again(two_groups: MemoryCluster) -> None:
    """Its first message lies where that of the old one lay, and is younger."""
    memory = LagMemory()
    await two_groups.create_topic("u", partitions=4)
    messages = [Message("u", b"%d" % each, key=f"k{each}") for each in range(20)]
    async with started(two_groups) as client:
        factory = aio.MessageFactory.on_cluster(client)
        async with await consumer_of(factory, topic="u", start_position="earliest") as consumer:
            await consumer.start()
        await send(factory, *messages)
        before = await look_at_groups(client, count=True, memory=memory)
        await asyncio.sleep(300)
        await factory.admin.delete_topic("u", now=True)
        await two_groups.create_topic("u", partitions=4)
        await send(factory, *messages)
        found = await look_at_groups(client, count=True, memory=memory)
        assert ageless(found.groups["g"]) == ageless(await describe_group(client, "g"))
        assert before.groups["g"].lag_bytes
        assert found.groups["g"].lag_s is not None
        assert found.groups["g"].lag_s < 60


async def test_what_is_remembered_is_bounded_by_what_groups_read(
    two_groups: MemoryCluster,
) -> None:
    """A topic that came and went with its group is forgotten."""
    memory = LagMemory()
    async with started(two_groups) as client:
        factory = aio.MessageFactory.on_cluster(client)
        for number in range(3):
            await two_groups.create_topic(f"u-{number}", partitions=1)
            planned = await factory.admin.plan_create_group(
                "g", {f"u-{number}": "*"}, Target(goal="earliest")
            )
            await factory.admin.make_group(planned)
            await look_at_groups(client, count=True, memory=memory)
            await factory.admin.delete_group("g")
            await factory.admin.delete_topic(f"u-{number}", now=True)
        await look_at_groups(client, count=True, memory=memory)
        assert not memory.topics
        assert not memory.reads
