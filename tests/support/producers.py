"""Short ways to use a producer of a cluster in memory, and to read back what it stored."""

from typing import Any

from support.broker import MemoryCluster

from vq import MessageFactory, MessageProducer, aio
from vq.client.cluster import ClusterClient
from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.future import SendFuture
from vq.client.producer.core import ProducerCore
from vq.coordination.topics import topics
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message
from vq.testing.waiting import until

SMALLEST_BUFFER = MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES


def core_of(producer: aio.MessageProducer | MessageProducer) -> ProducerCore:
    """What a producer is made of, with public names for its parts."""
    return producer._core


def client_of(factory: aio.MessageFactory | MessageFactory) -> ClusterClient:
    """What the producers and consumers of an open factory share."""
    assert factory._cluster is not None
    return factory._cluster


async def producer_of(factory: aio.MessageFactory, **settings: Any) -> aio.MessageProducer:
    return await factory.create_producer(ProducerConfig(**settings))


async def published(factory: aio.MessageFactory, **settings: Any) -> ProducerCore:
    producer = await producer_of(factory, **settings)
    await producer.publish("t")
    return core_of(producer)


async def ended(future: SendFuture) -> Any:
    await until(future.done)
    return future.outcome


async def stored(factory: aio.MessageFactory, topic: str = "t", partitions: int = 2) -> list[bytes]:
    """Every message of a topic, partition by partition."""
    found: list[bytes] = []
    for partition in range(partitions):
        found += await stored_in(factory, partition, topic)
    return found


async def stored_in(factory: aio.MessageFactory, partition: int, topic: str = "t") -> list[bytes]:
    """Every message of a partition."""
    consumer = await factory.create_consumer()
    found: list[bytes] = []
    offset = 0
    while messages := await consumer.get(topic, partition, offset, 1 << 20):
        found += [message.content for message in messages]
        offset = messages[-1].next_offset
    return found


def send(core: ProducerCore, message: Message, *args: Any, **options: Any) -> SendFuture:
    """Send as the producers that users see do: plain messages first go to ``append``."""
    if not options:
        callback, timeout = (*args, None, None)[:2]
        future = core.append(message, callback, timeout)
        if future is not None:
            return future
    return core.append_any(message, *args, **options)


def queue_of(core: ProducerCore, partition: int = 0) -> Any:
    return core.accumulator.topics["t"].queues[partition]


async def delete_topic(cluster: MemoryCluster, name: str = "t") -> None:
    async with cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, name)


def space(core: ProducerCore) -> int:
    """Bytes that are left in the buffer."""
    return core.accumulator.appender.space
