"""What a consumer asks for again and again is among its troubles once it has lasted."""

import asyncio
import contextlib

import pytest
from support.broker import Client, MemoryCluster, memory_cluster
from support.client import factory_of
from support.consumers import ask_for_more, client_of_factory, consumer_of, send, take, texts

from vq import aio
from vq.broker.base.config import ConnectionLimits
from vq.client.consumer.fetch.fetch_sessions import DELAY_TOLD_S
from vq.errors import Busy
from vq.model import TopicPartition
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time
T0 = TopicPartition("t", 0)
TOLD_S = 3 * DELAY_TOLD_S


async def hold(client: Client) -> None:
    """Have a read of a partition without messages wait at the broker, always."""
    while True:
        with contextlib.suppress(Busy):
            await client.get("idle", 0, 0, max_wait_ms=5_000)
        await asyncio.sleep(0.01)


async def test_reads_that_a_broker_refuses_are_told_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As many reads as the node takes wait already; the consumer goes on when they end."""
    async with memory_cluster() as cluster:
        node = await cluster.start(connections=ConnectionLimits(reads_waiting_max=3))
        await cluster.create_topic("t")
        await cluster.create_topic("idle")
        clients = [await Client.connect(cluster.network, node.address) for _ in range(3)]
        waiting = [asyncio.create_task(hold(each)) for each in clients]
        await until(lambda: node.parts.server.reads_waiting == 3)
        async with factory_of(cluster) as factory:
            await send(factory, *texts(1))
            consumer = await consumer_of(factory)
            task = asyncio.ensure_future(anext(aiter(consumer)))
            await asyncio.sleep(DELAY_TOLD_S / 2)
            assert consumer.troubles() == {}
            await asyncio.sleep(TOLD_S)
            trouble = consumer.troubles()[T0]
            assert isinstance(trouble.error, Busy)
            assert trouble.tries > 1
            for part in (str(node.address), "reads_waiting_max = 3", "raise reads_waiting_max"):
                assert part in str(trouble.error)
            assert caplog.text.count("partitions do not go on, trying again") == 1
            for each in waiting:
                each.cancel()
            for client in clients:
                client.close()
            async with asyncio.timeout(WAIT_S):
                assert (await task).content == b"1"
            await until(lambda: consumer.troubles() == {})


async def test_a_broker_that_is_away_is_told(cluster: MemoryCluster) -> None:
    """First its connection is cut, then no attempt succeeds, then nobody leads."""
    async with factory_of(cluster) as factory:
        await send(factory, *texts(1))
        consumer = await consumer_of(factory)
        assert await take(consumer, 1) == [b"1"]
        await ask_for_more(consumer)
        await cluster.nodes["b1"].stop()
        await asyncio.sleep(TOLD_S)
        error = consumer.troubles()[T0].error
        assert error.retriable or error.refresh_routes, error
        assert consumer.last_error is error
        await cluster.start("b1")
        await until(lambda: consumer.troubles() == {})


async def test_a_place_that_cannot_be_checked_is_told(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A member goes on at its group's progress after it has asked a broker for it."""
    await send(factory, *texts(1, 2))
    async with await consumer_of(factory) as first:
        assert await take(first, 1) == [b"1"]
    await cluster.nodes["b1"].stop()
    consumer = await consumer_of(factory)
    task = asyncio.ensure_future(anext(aiter(consumer)))
    await asyncio.sleep(TOLD_S)
    assert T0 in consumer.troubles()
    await cluster.start("b1")
    async with asyncio.timeout(WAIT_S):
        assert (await task).content == b"2"
    await until(lambda: consumer.troubles() == {})


async def test_short_interruptions_of_an_idle_partition_do_not_add_up(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A broker that has nothing new answers all the same, and that counts."""
    await send(factory, *texts(1))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    await ask_for_more(consumer)
    for _ in range(4):
        connection = client_of_factory(factory).live_connection(cluster.nodes["b1"].address)  # type: ignore[union-attr]
        assert connection is not None
        connection.close()
        await asyncio.sleep(DELAY_TOLD_S)
        assert consumer.last_error is None
