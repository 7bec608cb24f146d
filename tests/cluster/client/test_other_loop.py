"""``vq.aio`` on another loop than the one on which its factory was opened."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.broker import memory_cluster
from support.client import calls_of, factory_of

from vq import aio
from vq.client.config import ConsumerConfig
from vq.errors import InvalidState
from vq.model import Message


async def refused_elsewhere(call: Callable[[], Awaitable[object]]) -> None:
    """Assert that a call on another loop is refused at once, with the remedy."""

    async def elsewhere() -> None:
        async with asyncio.timeout(1):
            with pytest.raises(InvalidState, match=r"another one.*open a factory.*MessageFactory"):
                await call()

    await asyncio.to_thread(asyncio.run, elsewhere())


@pytest.mark.parametrize("is_published", [True, False])
async def test_no_coroutine_waits_on_another_loop(
    factory: aio.MessageFactory, is_published: bool
) -> None:
    """They would wait for ever, or fail with an error of asyncio, after part of the work."""
    producer = await factory.create_producer()
    consumer = (await factory.create_consumer(ConsumerConfig(group="g"))).subscribe("t")
    if is_published:
        await producer.publish("t")
    for made in (factory, producer, consumer, factory.admin):
        calls = calls_of(made)
        assert len(calls) > 5
        for call in calls:
            await refused_elsewhere(call)
    await refused_elsewhere(lambda: anext(aiter(consumer)))
    assert producer.metrics().messages_waiting == 0, "nothing was accepted"
    assert (await producer.send(Message("t", b"x"))).id > 0, "its own loop goes on"


def test_no_coroutine_waits_on_the_next_loop_of_a_thread() -> None:
    """As after a first ``asyncio.run``, whose loop is closed."""

    async def make() -> aio.MessageProducer:
        async with memory_cluster() as cluster:
            await cluster.start()
            await cluster.create_topic("t", partitions=1)
            async with factory_of(cluster) as factory:
                producer = await factory.create_producer()
                await producer.send(Message("t", b"x"))
                return producer

    async def use(producer: aio.MessageProducer) -> None:
        for call in calls_of(producer):
            with pytest.raises(InvalidState, match="open a factory"):
                await call()

    asyncio.run(use(asyncio.run(make())))


async def test_a_future_may_be_awaited_on_any_loop(factory: aio.MessageFactory) -> None:
    producer = await factory.create_producer()
    future = await producer.send_async(Message("t", b"x"))

    async def elsewhere() -> object:
        async with asyncio.timeout(10):
            return await future

    assert await asyncio.to_thread(asyncio.run, elsewhere()) == await future
