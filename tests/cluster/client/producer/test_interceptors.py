"""Interceptors of a producer against a broker in memory: one before, one after, for every send."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.producers import SMALLEST_BUFFER, core_of, producer_of, stored

from vq import aio
from vq.client.producer.interceptors import ProducerInterceptor
from vq.coordination.topics import topics
from vq.errors import InvalidArgument, MessageTooLarge, UnknownTopic, VqError
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message, SendResult
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


class Stamping(ProducerInterceptor):
    """Adds a header; notes what it is given."""

    def __init__(self) -> None:
        self.before: list[Message] = []
        self.after: list[tuple[Message, Any]] = []

    def before_send(self, message: Message) -> Message:
        self.before.append(message)
        return message._replace(headers={**(message.headers or {}), "n": str(len(self.before))})

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        self.after.append((message, result or error))


async def test_headers_are_added_and_the_outcome_is_told(factory: aio.MessageFactory) -> None:
    noting = Stamping()
    async with await producer_of(factory, interceptors=(noting,)) as producer:
        results = [await producer.send(Message("t", b"%d" % n)) for n in range(2)]
    assert [outcome for _, outcome in noting.after] == results
    consumer = await factory.create_consumer()
    for number, (_, place) in enumerate(noting.after, 1):
        [found] = await consumer.get("t", place.partition, place.offset, 1)
        assert found.headers == {"n": str(number)}


async def test_the_callback_follows_after_send(factory: aio.MessageFactory) -> None:
    noting = Stamping()
    seen: list[int] = []
    async with await producer_of(factory, interceptors=(noting,)) as producer:
        future = await producer.send_async(
            Message("t", b"x"), lambda *_: seen.append(len(noting.after))
        )
        await until(future.done)
    assert seen == [1]


async def test_a_message_that_waits_for_space_is_intercepted_once(
    factory: aio.MessageFactory,
) -> None:
    noting = Stamping()
    config = {"interceptors": (noting,), "buffer_bytes": SMALLEST_BUFFER}
    async with await producer_of(factory, **config) as producer:
        sends = [producer.send(Message("t", bytes(MESSAGE_BYTES_MAX))) for _ in range(4)]
        results = await asyncio.gather(*sends)
    assert len(noting.before) == 4
    assert sorted(place for _, place in noting.after) == sorted(results)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("t", bytes(MESSAGE_BYTES_MAX + 1)), MessageTooLarge),
        (Message("t", b"x", tag=""), InvalidArgument),
        (Message("u", b"x"), UnknownTopic),
    ],
)
async def test_a_refused_message_has_its_outcome(
    factory: aio.MessageFactory, message: Message, error: type[VqError]
) -> None:
    noting = Stamping()
    async with await producer_of(factory, interceptors=(noting,)) as producer:
        with pytest.raises(error) as refused:
            await producer.send(message)
    assert noting.before == [message]
    assert [outcome for _, outcome in noting.after] == [refused.value]


async def test_a_topic_that_is_made_again_meanwhile_counts_once(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The first try finds another topic of that name; the second one publishes it."""
    noting = Stamping()
    async with await producer_of(factory, interceptors=(noting,)) as producer:
        await producer.send(Message("t", b"0"))
        async with cluster.admin() as coordinator:
            await topics.delete_topic(coordinator, "t")
        await until(lambda: "t" not in core_of(producer).accumulator.topics)
        await cluster.create_topic("t", partitions=2)
        await producer.send(Message("t", b"1"))
    assert len(noting.before) == len(noting.after) == 2
    assert await stored(factory) == [b"1"]
