"""Draining a topic: who is behind, by how much, and when all is handled."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.coordination.groups.groups import ensure_group
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.errors import InvalidState
from vq.message_filter import ALL
from vq.model import Message
from vq.operations.groups.groups import GroupProgress
from vq.operations.topics import closing, emptying
from vq.testing.waiting import WAIT_S

pytestmark = pytest.mark.virtual_time

COUNT = 20


async def send(factory: aio.MessageFactory, tag: str | None = None) -> None:
    async with await factory.create_producer() as producer:
        for number in range(COUNT):
            await producer.send(Message("t", b"%d" % number, tag=tag))


async def consume(factory: aio.MessageFactory, group: str, count: int, tag: str = "") -> None:
    """Read so many messages as a member of the group, and leave."""
    config = ConsumerConfig(group=group, max_wait_s=0.2)
    async with await factory.create_consumer(config) as consumer:
        stream = consumer.subscribe("t", message_filter=tag) if tag else consumer.subscribe("t")
        async with asyncio.timeout(WAIT_S):
            async for _ in stream:
                count -= 1
                if not count:
                    return


async def make_group(client: ClusterClient, group: str) -> None:
    await ensure_group(client.coordinator, group, ConsumerGroup(topics={"t": ALL}))


async def test_a_topic_without_groups_is_drained_when_it_is_closed(
    client: ClusterClient, factory: aio.MessageFactory
) -> None:
    await send(factory)
    found = await emptying.drain_topic(client, "t")
    assert (found.drained, found.groups) == (True, ())


async def test_a_drain_ends_when_every_group_has_committed_the_end(
    client: ClusterClient, factory: aio.MessageFactory
) -> None:
    await send(factory)
    told: list[emptying.TopicDrain] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consume(factory, "g", COUNT))
        tasks.create_task(consume(factory, "h", COUNT))
        found = await emptying.drain_topic(client, "t", on_progress=told.append)
    # A group that had not begun when the drain looked is not one of the topic yet.
    assert found.drained
    assert all(each.done for each in found.groups)


async def test_a_group_that_is_behind_is_named_with_how_far(
    client: ClusterClient, factory: aio.MessageFactory
) -> None:
    await make_group(client, "g")
    await send(factory)
    told: list[emptying.TopicDrain] = []
    found = await emptying.drain_topic(client, "t", timeout=2, on_progress=told.append)
    assert not found.drained
    (group,) = found.behind
    assert (group.group, group.members) == ("g", 0)
    assert sum(each.lag_messages or 0 for each in group.behind) == COUNT
    assert group.lag_bytes == sum(end or 0 for end in found.closed.ends.values())
    assert len(told) == 1, "nothing changed after the first look"
    await consume(factory, "g", COUNT)
    assert (await emptying.drain_topic(client, "t", timeout=0)).drained


async def test_messages_that_a_filter_leaves_out_hold_up_no_drain(
    client: ClusterClient, factory: aio.MessageFactory
) -> None:
    await send(factory, "wanted")
    await send(factory, "other")
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(stay(factory, "g", "wanted"))
        await asyncio.sleep(1)
        found = await emptying.drain_topic(client, "t", timeout=30)
        reading.cancel()
    assert found.drained
    assert [each.group for each in found.groups] == ["g"]


async def stay(factory: aio.MessageFactory, group: str, tag: str) -> None:
    config = ConsumerConfig(group=group, max_wait_s=0.2)
    async with await factory.create_consumer(config) as consumer:
        async for _ in consumer.subscribe("t", message_filter=tag):
            pass


async def test_a_group_that_cannot_be_read_is_not_taken_for_drained(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    async with cluster.admin() as coordinator:
        await coordinator.create(ConsumerGroup.path("g"), b"nonsense", parents=True)
    found = await emptying.drain_topic(client, "t", timeout=0.1)
    (group,) = found.behind
    assert (group.group, group.members) == ("g", None)
    assert "nonsense" in group.error


async def test_a_topic_that_is_opened_again_is_not_closed_by_the_drain(
    client: ClusterClient, factory: aio.MessageFactory
) -> None:
    await make_group(client, "g")
    await send(factory)

    opening: list[asyncio.Task[object]] = []

    def open_it(_: object) -> None:
        opening.append(asyncio.create_task(closing.open_topic(client, "t")))

    with pytest.raises(InvalidState, match="was opened again meanwhile"):
        await emptying.drain_topic(client, "t", on_progress=open_it)
    assert (await closing.open_topic(client, "t")).changed is False


@pytest.mark.parametrize(
    ("found", "end", "done"),
    [
        ({"committed": 90, "end": 90, "lag_bytes": 0}, 90, True),
        (
            {"committed": 90, "end": 120, "lag_bytes": 30},
            90,
            True,
        ),  # control records of a new epoch
        ({"committed": 89, "end": 90, "lag_bytes": 1}, 90, False),
        ({"committed": None, "end": 0, "lag_bytes": 0}, 0, True),
        ({"committed": None, "end": None, "lag_bytes": None}, 90, False),  # the broker is silent
        ({"committed": 50, "end": None, "lag_bytes": None}, None, False),
        ({"committed": 90, "end": 90, "lag_bytes": 0, "needs_reset": True}, 90, False),
        ({"committed": 99, "end": 90, "lag_bytes": None}, 90, False),  # messages were lost
    ],
)
async def test_a_group_is_done_only_if_that_is_known(
    found: dict[str, Any], end: int | None, done: bool
) -> None:
    progress = GroupProgress(topic="t", partition=0, **found)
    assert emptying.is_done(progress, end) is done
