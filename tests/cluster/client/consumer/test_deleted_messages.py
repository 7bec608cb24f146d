"""Consumers, and messages that retention has deleted: they do not jump over them by themselves."""

import asyncio

import pytest
from support.broker import MemoryCluster
from support.consumers import consumer_of, send, take, texts

from vq import aio
from vq.errors import OffsetOutOfRange
from vq.model import TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)


async def delete_all(cluster: MemoryCluster) -> int:
    """Delete what partition 0 holds, on its only node; return where it begins then."""
    node = cluster.nodes["b1"]
    channel = node.parts.partitions.channels["t", 0]
    assert channel.log is not None
    await node.parts.partitions.logs.drop_before(channel, channel.log.end_offset)
    return channel.start_offset


async def test_a_group_that_lacks_deleted_messages_stands_still_and_says_why(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Until an operator, or the application, has it go on."""
    await send(factory, *texts(*range(4)))
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        assert await take(consumer, 2) == [b"0", b"1"]
    start = await delete_all(cluster)
    await send(factory, *texts(7, 8))
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        await until(lambda: T0 in consumer.troubles())
        trouble = consumer.troubles()[T0]
        assert isinstance(trouble.error, OffsetOutOfRange)
        assert trouble.error.details["earliest"] == start
        await asyncio.sleep(0.3)
        assert consumer.assignment()
        await consumer.seek(T0, "earliest")
        assert await take(consumer, 2) == [b"7", b"8"]


async def test_a_group_that_has_read_all_goes_on_at_the_new_start(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The message before its offset is deleted, which proves no loss."""
    await send(factory, *texts(*range(4)))
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        assert await take(consumer, 4) == [b"0", b"1", b"2", b"3"]
    await delete_all(cluster)
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        await send(factory, *texts(7))
        assert await take(consumer, 1) == [b"7"]
        assert consumer.troubles() == {}


async def test_a_member_that_waits_at_the_end_does_not_notice(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(*range(4)))
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        assert await take(consumer, 4) == [b"0", b"1", b"2", b"3"]
        await delete_all(cluster)
        await send(factory, *texts(7))
        assert await take(consumer, 1) == [b"7"]
        assert consumer.troubles() == {}


async def test_a_new_group_begins_with_the_first_message_that_is_kept(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(*range(4)))
    await delete_all(cluster)
    await send(factory, *texts(7))
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        assert await take(consumer, 1) == [b"7"]
