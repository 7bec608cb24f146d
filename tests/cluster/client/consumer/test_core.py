"""A consumer refuses what it cannot do, and starts and closes once, whoever asks."""

import asyncio

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import consumer_of, core_of, send, take, texts

from vq import aio
from vq.client.config import ConsumerConfig
from vq.errors import (
    InvalidArgument,
    InvalidState,
    UnknownTopic,
)
from vq.model import Message
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("message_filter", ["*", " * ", None])
async def test_a_star_lets_all_messages_pass(
    factory: aio.MessageFactory, message_filter: str | None
) -> None:
    """As no filter does: messages without a tag, too, and the same group."""
    await send(factory, Message("t", b"1", tag="a"), Message("t", b"2"))
    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.5))
    async with consumer.subscribe("t", message_filter=message_filter):
        assert await take(consumer, 2) == [b"1", b"2"]


async def test_what_a_consumer_cannot_do_yet_or_any_more(factory: aio.MessageFactory) -> None:
    alone = await factory.create_consumer()
    with pytest.raises(InvalidState, match="nothing is subscribed"):
        await alone.start()
    alone.subscribe("t")
    with pytest.raises(InvalidState, match="group"):
        await alone.start()
    with pytest.raises(InvalidState, match="group"):
        await alone.get_offset("t")
    with pytest.raises(InvalidArgument, match="subscribed already"):
        alone.subscribe("t")
    with pytest.raises(InvalidArgument, match="names no tag"):
        alone.subscribe("wide", message_filter=" || ")
    for tags, said in (
        ("ok || caf\udce9", "is not text"),  # how a shell's argument arrives that is not UTF-8
        ("é" * 128, "256 bytes"),
        ("||".join(f"t{number}" for number in range(65)), "65 tags; at most 64"),
        ("a,b", "has ',', which no filter .* give tags as in 'a \\|\\| b', or '\\*' alone"),
        ("a && b", "has '&&'"),
        ("orders.>", "has '>'"),
        ("a || *", "has '\\*'"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            alone.subscribe("wide", message_filter=tags)
    with pytest.raises(InvalidArgument):
        alone.subscribe("a/b")
    consumer = await consumer_of(factory)
    await consumer.start()
    with pytest.raises(InvalidState):
        await consumer.start()
    with pytest.raises(InvalidState):
        consumer.subscribe("wide")
    await consumer.close()
    await consumer.close()
    with pytest.raises(InvalidState):
        await consumer.start()


async def test_a_start_that_failed_may_be_tried_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(factory, topic="later")
    with pytest.raises(UnknownTopic):
        await consumer.start()
    await cluster.create_topic("later")
    await consumer.start()
    await until(consumer.assignment)


async def test_a_member_name_that_is_taken_leaves_the_other_one_alone(
    factory: aio.MessageFactory,
) -> None:
    first = await consumer_of(factory, member_id="same")
    await first.start()
    await until(first.assignment)
    second = await consumer_of(factory, member_id="same")
    with pytest.raises(InvalidState, match="group 'g' has a member 'same' that goes on"):
        await second.start()
    await second.close()
    await send(factory, *texts(1))
    assert await take(first, 1) == [b"1"]


async def test_closing_ends_a_waiting_iteration(factory: aio.MessageFactory) -> None:
    consumer = await consumer_of(factory)
    waiting = asyncio.create_task(take(consumer, 1))
    await until(consumer.assignment)
    await consumer.close()
    assert await waiting == []
    assert consumer.assignment() == []


async def test_two_that_close_at_once_both_wait_for_the_end(factory: aio.MessageFactory) -> None:
    consumer = await consumer_of(factory)
    await consumer.start()
    await until(consumer.assignment)
    await asyncio.gather(consumer.close(), consumer.close())
    assert consumer.assignment() == []


async def test_a_factory_that_shuts_down_closes_everything_whatever_fails(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    async with factory_of(cluster, host="other") as factory:
        consumers = [await consumer_of(factory, member_id=name) for name in "ab"]
        producer = await factory.create_producer()
        for consumer in consumers:
            await consumer.start()

        async def fail() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(core_of(consumers[1]), "close", fail)
        with pytest.raises(RuntimeError):
            await factory.shutdown()
        assert producer.closed
        assert consumers[0].closed
        await factory.shutdown()
        monkeypatch.undo()
        await consumers[1].close()
    await until(lambda: asyncio.all_tasks() <= before)
    assert cluster.network.connections == 0


async def test_closed_ones_are_forgotten(factory: aio.MessageFactory) -> None:
    for _ in range(10):
        await (await factory.create_producer()).close()
        await (await factory.create_consumer()).close()
    assert len(factory._producers) == len(factory._consumers) == 1
