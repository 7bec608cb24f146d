"""``vq.aio`` on a loop whose tasks begin at once: ``asyncio.eager_task_factory``."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster
from support.client import factory_of, started
from support.producers import delete_topic, stored

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.errors import UnknownTopic
from vq.model import Message, TopicSettings
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.skipif(
    not hasattr(asyncio, "eager_task_factory"), reason="Python has no eager tasks before 3.12"
)


@pytest.fixture
async def eager(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    async with factory_of(cluster) as factory:
        yield factory


@pytest.fixture
async def eager_client(cluster: MemoryCluster) -> AsyncIterator[ClusterClient]:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    async with started(cluster) as client:
        yield client


async def test_a_producer_and_a_member_of_a_group_work(eager: aio.MessageFactory) -> None:
    producer = await eager.create_producer()
    async with asyncio.timeout(WAIT_S):
        tasks = [asyncio.create_task(producer.send(Message("t", b"%d" % n))) for n in range(50)]
        for task in tasks:
            await task
        consumer = (await eager.create_consumer(ConsumerConfig(group="g"))).subscribe("t")
        found = [(await anext(aiter(consumer))).content for _ in range(50)]
        await consumer.close()
        await producer.close()
    assert sorted(found) == sorted(b"%d" % n for n in range(50))


async def test_a_topic_is_usable_after_a_first_look_in_vain(eager: aio.MessageFactory) -> None:
    """What several callers wait for together is not kept once it has ended."""
    producer = await eager.create_producer()
    async with asyncio.timeout(WAIT_S):
        for _ in range(3):
            with pytest.raises(UnknownTopic):
                await producer.send(Message("u", b"x"))
        await eager.admin.create_topic("u", TopicSettings(partitions=1))
        for content in (b"1", b"2"):
            await producer.send(Message("u", content))
    assert await stored(eager, "u", 1) == [b"1", b"2"]


async def test_routes_are_read_again_and_again(
    cluster: MemoryCluster, eager_client: ClusterClient
) -> None:
    """Also when ZooKeeper's answer is there at once."""
    await eager_client.track("t")
    for _ in range(3):
        eager_client.refresh("t")
        await until(lambda: not eager_client._refreshing)
    await delete_topic(cluster)
    eager_client.refresh("t")
    await until(lambda: "t" not in eager_client.routes.topics)
