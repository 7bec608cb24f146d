"""A producer whose user may send little: it gets that, whatever the size of its batches."""

import asyncio

import pytest
from support.access import limit
from support.broker import MemoryCluster
from support.client import factory_of

from vq import aio, limits
from vq.client.config import ProducerConfig
from vq.model import Message

pytestmark = pytest.mark.virtual_time

EACH = 20_000


async def sent(
    producer: aio.MessageProducer, count: int, partition_key: int | None = None
) -> float:
    """Send so many messages, to all partitions or to one; return how long it took."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    keys = range(count) if partition_key is None else [partition_key] * count
    await asyncio.gather(*(producer.send(Message("q", bytes(EACH), key=key)) for key in keys))
    return loop.time() - begun


@pytest.mark.parametrize("batch_bytes", [limits.MIB, 64 * limits.KIB])
@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_producer_takes_no_longer_than_its_quota_asks(
    cluster: MemoryCluster, partitions: int, batch_bytes: int
) -> None:
    """A batch of 1 MiB takes 20 s at this rate, and the broker lets none wait for more than 4."""
    await cluster.create_topic("q", partitions=partitions)
    per_s = 50 * limits.KIB
    await limit(cluster, "anonymous bytes-in=50K")
    async with factory_of(cluster) as factory:
        config = ProducerConfig(batch_bytes=batch_bytes, send_timeout_s=600.0)
        async with await factory.create_producer(config) as producer:
            count = 150
            assert await sent(producer, count) <= 1.1 * count * EACH / per_s


async def test_partitions_take_turns_under_a_quota(cluster: MemoryCluster) -> None:
    """What is sent to one does not wait for all that waits for another one."""
    await cluster.create_topic("q", partitions=2)
    await limit(cluster, "anonymous bytes-in=200K")
    async with factory_of(cluster) as factory:
        config = ProducerConfig(batch_bytes=100 * limits.KIB, send_timeout_s=600.0)
        async with await factory.create_producer(config) as producer:
            much = asyncio.create_task(sent(producer, 200, partition_key=0))
            await asyncio.sleep(1.0)
            assert await sent(producer, 1, partition_key=1) < 4.0
            assert not much.done()
            await much
