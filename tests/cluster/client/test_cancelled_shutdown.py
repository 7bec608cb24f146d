"""A shutdown of ``vq.aio`` that is cancelled: it closes everything nevertheless, and in order."""

import asyncio
import logging

import pytest
from support.broker import MemoryCluster
from support.client import started

from vq import aio
from vq.client.config import ConsumerConfig
from vq.coordination.groups import groups
from vq.model import Message
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("steps", [*range(12), 15, 20, 30, 50])
@pytest.mark.parametrize("way", ["shutdown", "async with"])
async def test_a_cancelled_shutdown_goes_on_in_order(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, steps: int, way: str
) -> None:
    """The task that waits is cancelled after so many turns of the loop."""
    async with started(cluster) as client:
        factory = aio.MessageFactory.on_cluster(client)
        producer = await factory.create_producer()
        consumer = (await factory.create_consumer(ConsumerConfig(group="g"))).subscribe("t")
        for number in range(20):
            await producer.send(Message("t", b"%d" % number))
        iterator, leaves = aiter(consumer), asyncio.Event()
        futures = [await producer.send_async(Message("t", b"x")) for _ in range(10)]

        async def leave() -> None:
            await anext(iterator)
            leaves.set()
            if way == "shutdown":
                await factory.shutdown()
            else:
                async with factory:
                    pass

        task = asyncio.create_task(leave())
        await leaves.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=WAIT_S)
        assert task.cancelled() or task.exception() is None
        await asyncio.gather(*futures)
        await until(lambda: client._closing is not None and client._closing.done())
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not texts
    async with cluster.admin() as coordinator:
        assert not await groups.members(coordinator, "g"), "it has left its group"
