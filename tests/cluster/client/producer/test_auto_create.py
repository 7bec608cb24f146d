"""Topics that a producer creates: only where the cluster allows it, once, however many ask."""

import asyncio

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.producers import producer_of, stored

from vq import aio
from vq.errors import InvalidArgument, UnknownTopic
from vq.model import Message, TopicSettings


async def test_a_missing_topic_is_an_error_unless_it_is_allowed(
    factory: aio.MessageFactory,
) -> None:
    async with await producer_of(factory) as producer:
        with pytest.raises(UnknownTopic, match="vq cluster settings --auto-create on"):
            await producer.publish("new")
        await factory.admin.set_auto_create(TopicSettings(partitions=2))
        await producer.send(Message("new", b"x"))
    assert await stored(factory, "new") == [b"x"]
    found = await factory.admin.cluster_settings()
    assert found.auto_create == TopicSettings(partitions=2)
    await factory.admin.set_auto_create(None)
    async with await producer_of(factory) as producer:
        with pytest.raises(UnknownTopic):
            await producer.send(Message("newer", b"x"))
        with pytest.raises(InvalidArgument):
            await producer.publish("no/name")


async def test_many_producers_at_once_get_one_topic(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await factory.admin.set_auto_create(TopicSettings(partitions=2))
    async with factory_of(cluster, seed=12) as second:
        producers = [await producer_of(each) for each in (factory, second) * 5]
        sends = [each.send(Message("new", b"%d" % n)) for n, each in enumerate(producers)]
        await asyncio.gather(*sends)
    assert sorted(await stored(factory, "new")) == [b"%d" % n for n in range(10)]


async def test_a_consumer_creates_no_topic(factory: aio.MessageFactory) -> None:
    await factory.admin.set_auto_create(TopicSettings())
    consumer = await factory.create_consumer()
    with pytest.raises(UnknownTopic):
        await consumer.get("new", 0, 0, 1)
