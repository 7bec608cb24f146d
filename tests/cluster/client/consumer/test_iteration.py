"""``async for`` gives each wanted message once, and again if its handler failed."""

import asyncio
import contextlib

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import consumer_of, send, take, texts

from vq import aio
from vq.client.config import ConsumerConfig
from vq.model import Message, TopicPartition
from vq.testing.waiting import WAIT_S

pytestmark = pytest.mark.virtual_time


async def test_only_messages_with_a_wanted_tag_come(factory: aio.MessageFactory) -> None:
    await send(factory, *(Message("t", b"%d" % n, "abc"[n % 3]) for n in range(9)))
    await send(factory, *texts(100))
    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.2))
    consumer.subscribe("t", message_filter=" a || c")
    assert await take(consumer, 6) == [b"0", b"2", b"3", b"5", b"6", b"8"]
    await consumer.close()
    where = TopicPartition("t", 0)
    bounds = await consumer.get_bounds("t", 0)
    assert (await consumer.get_offset("t"))[where] <= bounds.latest


async def test_a_message_that_failed_comes_again(factory: aio.MessageFactory) -> None:
    """``async with`` is left by the exception of the loop's body."""
    await send(factory, *texts(1, 2))

    async def fail_at_the_second() -> None:
        async with await consumer_of(factory) as consumer:
            async for message in consumer:
                if message.content == b"2":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    assert await take(await consumer_of(factory), 1) == [b"2"]


@pytest.mark.parametrize("way", ["group", "aclosing", "factory", "close"])
async def test_a_message_whose_handler_failed_comes_again(cluster: MemoryCluster, way: str) -> None:
    """However the loop is left: the end of an iteration counts nothing as consumed."""

    async def work(consumer: aio.MessageConsumer) -> None:
        async for message in consumer:
            if message.content == b"2":
                raise ZeroDivisionError

    async def fail() -> None:
        async with factory_of(cluster) as factory:
            await send(factory, *texts(1, 2))
            consumer = await consumer_of(factory)
            if way == "group":
                async with consumer, asyncio.TaskGroup() as tasks:
                    tasks.create_task(work(consumer))
            elif way == "aclosing":
                async with consumer, contextlib.aclosing(aiter(consumer)) as messages:
                    async for message in messages:
                        assert message.content == b"1"
            elif way == "factory":
                await work(consumer)
            else:
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(work(consumer))
                finally:
                    await consumer.close()

    with pytest.raises((ExceptionGroup, AssertionError, ZeroDivisionError)):
        await fail()
    async with factory_of(cluster) as factory:
        assert await take(await consumer_of(factory), 1) == [b"2"]


async def test_waiting_for_a_message_in_turns_loses_none(factory: aio.MessageFactory) -> None:
    """A wait that ran out is no end of the iteration."""
    consumer = await consumer_of(factory)
    messages = aiter(consumer)
    found: list[bytes] = []
    await send(factory, *texts(*range(20)))
    async with asyncio.timeout(WAIT_S):
        while len(found) < 20:
            with contextlib.suppress(TimeoutError):
                found.append((await asyncio.wait_for(anext(messages), 0.001)).content)
    assert found == [b"%d" % number for number in range(20)]
    await consumer.close()
    assert await anext(messages, None) is None


async def test_two_iterations_of_one_consumer_follow_one_another(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(1, 2, 3))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    assert await take(consumer, 2) == [b"2", b"3"]
