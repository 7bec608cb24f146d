"""A partition loses its end, since its topic does not flush: who sends there is ahead of the log.

before   0 1 2 | 3 4     the sender's next batch is number 5
after    0 1 2           the broker waits for number 3, or knows nothing of the sender
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from vq import ConsumerConfig, Message
from vq.aio import MessageConsumer, MessageProducer
from vq.errors import UnknownTopic
from vq.testing import Cluster, simulated

#: How many messages are flushed at a time, so how many of five are left.
LEFT = {"some": (3, 3), "none": (100, 0)}
MEMBERS: dict[str, dict[str, Any]] = {
    "shared": {"model": "shared", "max_deliveries": 1, "lease_s": 5},
    "in order": {"on_failure": "dead-letter", "max_attempts": 1},
}


async def _lose_the_end(cluster: Cluster) -> None:
    node = await cluster.faults.kill_broker()
    await cluster.faults.start_broker("b1", node)


async def _make_topic(cluster: Cluster, flush_interval_messages: int, partitions: int = 1) -> None:
    await cluster.create_topic(
        "t",
        partitions=partitions,
        flush="async",
        flush_interval_messages=flush_interval_messages,
        flush_interval_ms=3_600_000,
    )


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("which", LEFT)
@simulated(seeds=1)
async def test_a_member_goes_on_making_dead_letters(
    cluster: Cluster, which: str, member: str
) -> None:
    """Those that their topic has lost are lost; what fails from then on becomes one at once."""
    interval, left = LEFT[which]
    await _make_topic(cluster, interval)
    factory = await cluster.factory("app")
    producer = await factory.create_producer()
    config = ConsumerConfig(group="g", retry_backoff=(0.1, 600.0), **MEMBERS[member])
    consumer = await factory.create_consumer(config)

    async def fail(_: Message) -> None:
        raise ValueError("no")

    async def letters() -> list[bytes]:
        try:
            found = [each async for each in factory.admin.read_dead_letters("g")]
        except UnknownTopic:
            return []  # there was none
        return sorted(each.message.content for each in found)

    await consumer.subscribe("t", listener=fail).start()
    sent = [b"%d" % number for number in range(8)]
    for number in range(5):
        await producer.send(Message("t", sent[number]), 60)
        async with asyncio.timeout(60):
            while await letters() != sent[: number + 1]:
                await asyncio.sleep(0.1)
    await factory.admin.alter_topic("t", flush="sync")  # not that of the dead letters
    await _lose_the_end(cluster)
    assert await letters() == sent[:left]
    for number in range(5, 8):
        await producer.send(Message("t", sent[number]), 60)
    async with asyncio.timeout(60):
        while await letters() != sent[:left] + sent[5:]:
            await asyncio.sleep(0.1)
    await consumer.close()


# Brokers that deliver, and producers -------------------------------------------------------------
async def _stored(consumer: MessageConsumer, partitions: int) -> list[list[bytes]]:
    return [
        [each.content for each in await consumer.get("t", number, 0, 1 << 20)]
        for number in range(partitions)
    ]


@simulated(seeds=1)
async def test_delayed_messages_go_on(cluster: Cluster) -> None:
    """The journal of what is delayed is flushed, and has sent five of them; two are lost.

    The last one had no note that it is stored, so it comes again.
    """
    await _make_topic(cluster, 3)
    factory = await cluster.factory("app")
    producer, consumer = await factory.create_producer(), await factory.create_consumer()
    sent = [b"%d" % number for number in range(8)]
    for number, content in enumerate(sent):
        await producer.send(Message("t", content, delay_s=number + 1), 60)
    async with asyncio.timeout(60):
        while await _stored(consumer, 1) != [sent[:5]]:
            await asyncio.sleep(0.1)
    await _lose_the_end(cluster)
    await asyncio.sleep(60)
    assert await _stored(consumer, 1) == [sent[:3] + sent[4:]]


async def _transact(producer: MessageProducer, messages: Sequence[Message]) -> None:
    async with producer.transaction():
        for message in messages:
            await producer.send(message)


async def _transact_each(producer: MessageProducer, messages: Sequence[Message]) -> None:
    for message in messages:
        await _transact(producer, [message])


async def _delay(producer: MessageProducer, messages: Sequence[Message]) -> None:
    for message in messages:
        await producer.send(message._replace(delay_s=0.1))


async def _send(producer: MessageProducer, messages: Sequence[Message]) -> None:
    for message in messages:
        await producer.send(message)


@pytest.mark.parametrize("how", [_transact, _transact_each, _delay, _send])
@pytest.mark.parametrize("which", LEFT)
@simulated(seeds=1, groups=2)
async def test_what_is_sent_to_several_partitions_goes_on(
    cluster: Cluster, which: str, how: Callable[..., Awaitable[None]]
) -> None:
    """One broker loses its ends. The other one, and who sends there, know nothing of it."""
    interval, left = LEFT[which]
    await _make_topic(cluster, interval, partitions=4)
    factory = await cluster.factory("app")
    producer, consumer = await factory.create_producer(), await factory.create_consumer()

    async def send_some(first: int, end: int) -> list[list[bytes]]:
        for number in range(first, end):
            await how(producer, [Message("t", b"%d" % number, key=key) for key in range(4)])
            await asyncio.sleep(0.5)
        return [[b"%d" % number for number in range(first, end)] for _ in range(4)]

    before = await send_some(0, 5)
    assert await _stored(consumer, 4) == before
    await _lose_the_end(cluster)
    after = await send_some(5, 8)
    await asyncio.sleep(60)
    ends = sorted(found.index(b"5") for found in await _stored(consumer, 4))
    assert ends[2:] == [5, 5]
    assert all(left <= end < 5 for end in ends[:2])
    assert [found[-3:] for found in await _stored(consumer, 4)] == after
