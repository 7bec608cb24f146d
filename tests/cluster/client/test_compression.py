"""Messages are compressed on their way, and no reader and no broker notices.

producer ── compressed record ──▶ broker (stores it as it is) ──▶ consumer: the content
"""

from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.producers import (
    core_of,
    ended,
    producer_of,
    published,
    queue_of,
    send,
    space,
    stored_in,
)

import vq
from vq import aio
from vq.client.config import MESSAGE_OVERHEAD_BYTES, ConsumerConfig
from vq.client.reading.decode import STEP_BYTES
from vq.coordination.topics import topics
from vq.errors import MessageTooLarge
from vq.limits import MESSAGE_BYTES_MAX, MIB
from vq.model import Message
from vq.store.records.format import FLAG_COMPRESSION_SHIFT
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

KINDS = ["zlib", "zstd", "lz4"]
TEXT = b"a line of a log that says the same once more\n" * 50
MANY = [b"%d " % number * 40 for number in range(100)]


async def bytes_stored(factory: aio.MessageFactory, topic: str = "t", partition: int = 0) -> int:
    bounds = await (await factory.create_consumer()).get_bounds(topic, partition)
    return bounds.latest - bounds.earliest


async def change(cluster: MemoryCluster, name: str, **settings: Any) -> None:
    async with cluster.admin() as coordinator:
        view = await topics.describe_topic(coordinator, name)
        await topics.change_settings(coordinator, name, replace(view.settings, **settings))


@pytest.mark.parametrize("compression", KINDS)
async def test_messages_of_any_size_come_back_in_order(
    factory: aio.MessageFactory, compression: str
) -> None:
    """Below and above the threshold, with and without tag, key and headers."""
    producer = await producer_of(factory, compression=compression, compression_threshold=200)
    sent = [
        Message("t", content, tag, "k", headers)
        for content in (b"", b"x" * 199, b"x" * 200, TEXT, bytes(MESSAGE_BYTES_MAX))
        for tag in (None, "red")
        for headers in (None, {"h": "1"})
    ]
    for message in sent:
        await producer.send_async(message)
    await producer.flush()
    consumer = await factory.create_consumer()
    places = [await consumer.get_bounds("t", partition) for partition in range(2)]
    partition = 0 if places[0].latest > places[1].latest else 1
    found: list[Message] = []
    offset = 0
    while messages := await consumer.get("t", partition, offset, MIB):
        found += messages
        offset = messages[-1].next_offset
    assert [each[:5] for each in found] == [each[:5] for each in sent]
    assert places[partition].latest < 50_000, "4 MiB and more are stored compressed"


@pytest.mark.parametrize("compression", KINDS)
async def test_a_group_gets_them_filtered_by_tag(
    factory: aio.MessageFactory, compression: str
) -> None:
    """The broker finds tags without a look at the payload."""
    producer = await producer_of(factory, compression=compression, compression_threshold=0)
    for number, content in enumerate(MANY):
        tag = "red" if number % 2 else "blue"
        await producer.send_async(Message("t", content, tag, key="k"))
    await producer.flush()
    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    consumer.subscribe("t", message_filter="red")
    found: list[bytes] = []
    async for message in consumer:
        found.append(message.content)
        if len(found) == 50:
            break
    assert found == MANY[1::2]
    await consumer.close()


@pytest.mark.parametrize("compression", KINDS)
async def test_a_reader_decompresses_a_few_messages_at_a_time(
    factory: aio.MessageFactory, compression: str
) -> None:
    """Twenty messages of 1 MiB fit into one small answer."""
    producer = await producer_of(factory, compression=compression)
    await producer.publish("t")
    for _ in range(20):
        await producer.send_async(Message("t", bytes(MESSAGE_BYTES_MAX), key="k"))
    await producer.flush()
    consumer = await factory.create_consumer()
    partition = int((await consumer.get_bounds("t", 0)).latest == 0)
    messages = await consumer.get("t", partition, 0, MIB)
    assert len(messages) == STEP_BYTES // MESSAGE_BYTES_MAX


async def test_a_topic_has_defaults_that_a_producer_may_overrule(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    stored = {}
    for own in (None, "none", "lz4"):
        name = f"t-{own}"
        await cluster.create_topic(name, compression="zstd", compression_threshold=1_000)
        producer = await producer_of(factory, compression=own)
        await producer.publish(name)
        await producer.send(Message(name, TEXT))
        assert await stored_in(factory, 0, name) == [TEXT]
        stored[own] = await bytes_stored(factory, name)
        queues = core_of(producer).accumulator.topics[name]
        assert queues.plain_bytes_max == (MESSAGE_BYTES_MAX if own == "none" else 999)
    assert stored[None] < stored["lz4"] < 200 < len(TEXT) < stored["none"]


async def test_a_change_of_the_topics_default_reaches_producers(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    queues = core.accumulator.topics["t"]
    future = core.append(Message("t", TEXT), None, None)
    assert future is not None
    assert future.size == len(TEXT)
    await change(cluster, "t", compression="zstd", compression_threshold=100)
    await until(lambda: queues.plain_bytes_max == 99)
    assert core.append(Message("t", b"x" * 99), None, None) is not None
    future = send(core, Message("t", TEXT))
    assert future.size < 200
    await change(cluster, "t", compression=None)
    await until(lambda: queues.plain_bytes_max == MESSAGE_BYTES_MAX)
    assert core.append(Message("t", TEXT), None, None) is not None
    await core.flush()


async def test_the_limit_of_a_message_counts_before_compression(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("small", max_message_bytes=100)
    producer = await producer_of(factory, compression="zstd", compression_threshold=0)
    await producer.publish("small")
    with pytest.raises(MessageTooLarge, match="message of 101 bytes; topic small takes at most"):
        await producer.send(Message("small", bytes(101)))
    assert (await producer.send(Message("small", bytes(100)))).offset >= 0


async def test_buffer_space_counts_what_is_stored(factory: aio.MessageFactory) -> None:
    core = await published(factory, compression="zstd")
    core.cluster.ids_ready = False  # nothing can be sent now
    before = space(core)
    future = send(core, Message("t", bytes(MESSAGE_BYTES_MAX)))
    assert before - space(core) == future.size + MESSAGE_OVERHEAD_BYTES
    assert future.size < 1_000
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    assert (await ended(future)).offset >= 0
    assert space(core) == before


async def test_what_does_not_get_smaller_is_stored_as_it_is(factory: aio.MessageFactory) -> None:
    core = await published(factory, compression="zstd", compression_threshold=0)
    future = send(core, Message("t", b"abc", "red"))
    head = future.head
    assert head is not None
    assert head[0] >> FLAG_COMPRESSION_SHIFT == 0
    partition = (await ended(future)).partition
    assert await stored_in(factory, partition) == [b"abc"]
    assert not queue_of(core, partition).pending


def test_no_setting_means_no_compression() -> None:
    assert vq.ProducerConfig().compression is None
    assert vq.TopicSettings().compression is None
