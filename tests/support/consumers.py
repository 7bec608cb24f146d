"""Short ways to use a consumer of a cluster in memory."""

import asyncio
from typing import Any

from support.broker import MemoryCluster

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.group.membership import Membership
from vq.coordination.tree.memory import MemoryCoordinator
from vq.model import Message, TopicPartition
from vq.testing.waiting import WAIT_S, until_true


async def send(factory: aio.MessageFactory, *messages: Message) -> list[Any]:
    """Store messages, one batch each."""
    async with await factory.create_producer(ProducerConfig(batch_records=1)) as producer:
        return [await producer.send(message) for message in messages]


async def consumer_of(
    factory: aio.MessageFactory, group: str = "g", topic: str = "t", **settings: Any
) -> aio.MessageConsumer:
    """Return a consumer that has subscribed; it starts with its first use."""
    consumer = await factory.create_consumer(
        ConsumerConfig(**{"group": group, "max_wait_s": 0.5, **settings})
    )
    return consumer.subscribe(topic)


async def take(consumer: aio.MessageConsumer, count: int) -> list[bytes]:
    """Consume ``count`` messages; the last one stays in hand."""
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            found.append(message.content)
            if len(found) == count:
                break
    return found


async def ask_for_more(consumer: aio.MessageConsumer) -> None:
    """Let the message in hand be consumed: ask for the next one, and wait for it no longer."""
    waiting = asyncio.ensure_future(anext(aiter(consumer)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert waiting.cancel(), "there was a next one"
    await asyncio.wait([waiting])


async def until_committed(consumer: aio.MessageConsumer, offset: int) -> None:
    """Wait until the group's progress in ``t-0`` is ``offset``."""

    async def is_there() -> bool:
        return (await consumer.get_offset("t")).get(TopicPartition("t", 0)) == offset

    await until_true(is_there)


def texts(*numbers: int) -> list[Message]:
    """Return a message of topic ``t`` for each number."""
    return [Message("t", b"%d" % number) for number in numbers]


# What lies below the public API ------------------------------------------------------------------
def core_of(consumer: aio.MessageConsumer) -> ConsumerCore:
    """Return the core of a consumer."""
    return consumer._core


def membership_of(consumer: aio.MessageConsumer) -> Membership:
    """Return the membership of a consumer that was started."""
    membership = consumer._core._membership
    assert membership is not None
    return membership


def client_of_factory(factory: aio.MessageFactory) -> ClusterClient:
    """Return what an open factory knows of its cluster."""
    assert factory._cluster is not None
    return factory._cluster


def coordinator_of(factory: aio.MessageFactory) -> MemoryCoordinator:
    """Return the ZooKeeper client of an open factory."""
    coordinator = client_of_factory(factory).coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    return coordinator


def cut_off_for_long(
    cluster: MemoryCluster, factory: aio.MessageFactory, consumer: aio.MessageConsumer
) -> MemoryCoordinator:
    """Cut a factory off ZooKeeper, as if that were longer ago than its session may live."""
    coordinator = coordinator_of(factory)
    cluster.ensemble.disconnect(coordinator)
    coordinator._last_reply = -1e9
    membership_of(consumer)._on_session(coordinator.state)
    return coordinator
