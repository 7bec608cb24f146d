"""Programs of users under quotas: slower, and otherwise as ever. In virtual time."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.access import believe_names, limit
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of

from vq import aio
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.model import Message

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryCluster]:
    """Two nodes of different groups, and a topic on both."""
    believe_names(monkeypatch)
    async with memory_cluster() as made:
        await made.start("b1")
        await made.start("b2")
        await made.create_topic("orders", partitions=4)
        yield made


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """A factory of alice."""
    async with factory_of(cluster, client_id="user.alice") as made:
        yield made


def now() -> float:
    return asyncio.get_running_loop().time()


def counted(cluster: MemoryCluster, metric: str) -> int:
    """The metric of quotas of all brokers and users."""
    told = 0.0
    for node in cluster.nodes.values():
        for facts in node.parts.accounts.facts():
            for labels, thing in facts.things().items():
                told += sum(
                    float(each.read(thing) or 0)  # type: ignore[arg-type]
                    for each in facts.facts
                    if labels and each.metric == metric
                )
    return int(told)


async def test_a_producer_sends_at_its_limit_and_no_send_fails(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer(ProducerConfig(batch_records=5))
    await producer.send(Message("orders", b"first", key=1))
    await limit(cluster, "user:alice messages-in=50")
    begun = now()
    sent = [producer.send(Message("orders", b"%d" % n, key=1)) for n in range(500)]
    results = await asyncio.gather(*sent)
    assert sorted(each.offset for each in results) == [each.offset for each in results]
    assert now() - begun == pytest.approx(10.0, rel=0.1)
    assert counted(cluster, "vq_quota_refused_requests") == 0


async def test_who_sends_one_after_the_other_waits_at_the_client(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await factory.create_producer()
    await producer.send(Message("orders", b"first", key=1))
    await limit(cluster, "user:alice messages-in=10")
    begun = now()
    for _ in range(30):
        await producer.send(Message("orders", b"x", key=1))
    assert now() - begun == pytest.approx(3.0, rel=0.2)
    assert counted(cluster, "vq_quota_throttled_seconds") >= 2
    assert counted(cluster, "vq_quota_delayed_requests") == 0


async def test_many_sends_at_once_under_a_small_limit_are_all_stored(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Batches of four partitions wait for one limit, for longer than one may wait at a broker."""
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=200))
    await producer.send(Message("orders", b"first", key=1))
    await limit(cluster, "user:alice bytes-in=20000")
    content = b"x" * 10_000
    sent = [producer.send(Message("orders", content, key=n)) for n in range(100)]
    results = await asyncio.gather(*sent)
    places = {(each.partition, each.offset) for each in results}
    assert len(places) == 100
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("orders")
    read = 0
    while read < 101:
        read += len(await consumer.get_many(500))
    assert read == 101


async def test_a_consumer_reads_at_its_limit_and_reports_no_trouble(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await factory.create_producer()
    for _ in range(100):
        sent = [producer.send(Message("orders", b"x" * 10_000, key=n)) for n in range(4)]
        await asyncio.gather(*sent)
    await limit(cluster, "user:alice bytes-out=200000")
    consumer = await factory.create_consumer(ConsumerConfig(group="g", prefetch_bytes=65_536))
    consumer.subscribe("orders")
    begun, read = now(), 0
    while read < 400:
        read += len(await consumer.get_many(400))
    took, brokers = now() - begun, 2
    assert took == pytest.approx(400 * 10_000 / 200_000 / brokers, rel=0.3)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


async def test_a_members_own_traffic_is_as_fast_as_ever(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Deliveries of brokers to each other do not wait for the quotas of users."""
    producer = await factory.create_producer()
    await limit(cluster, "anonymous requests=1 bytes-in=1", "user:alice requests=1000")
    begun = now()
    for number in range(20):
        await producer.send(Message("orders", b"later", delay_s=2, key=number))
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("orders")
    read = 0
    while read < 20:
        read += len(await consumer.get_many(20))
    assert now() - begun < 5
