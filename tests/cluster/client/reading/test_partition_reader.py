"""What all who read a partition by position have: moves, both directions, and places."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from support.broker import MemoryCluster
from support.columns import rows_of

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig, StartPosition
from vq.client.reading.partition_reader import PartitionReader
from vq.client.reading.positions import AtTime
from vq.errors import OffsetNotBoundary, OffsetOutOfRange, UnknownPartition, UnknownTopic
from vq.model import Message, TopicPartition
from vq.operations.messages import streams

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)
CONTENTS = [b"%d" % number * 300 for number in range(9)]


async def send_and_move(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    """Store messages in ``t-0``, three each in b1, in b2, and in b1 again; seconds apart."""
    await cluster.start("b2")
    config = ProducerConfig(batch_records=1, partitioner=lambda *_: 0)
    for first, group in ((0, None), (3, "b2"), (6, "b1")):
        if group is not None:
            await factory.admin.move(await factory.admin.plan_moves("t", [0], group))
        async with await factory.create_producer(config) as producer:
            for content in CONTENTS[first : first + 3]:
                await producer.send(Message("t", content))
                await asyncio.sleep(1.0)


async def by_get(factory: aio.MessageFactory, client: ClusterClient) -> list[bytes]:
    found: list[bytes] = []
    async with await factory.create_consumer() as consumer:
        offset, latest = await consumer.get_bounds("t", 0)
        while offset < latest:
            messages = await consumer.get("t", 0, offset, 700)
            found += [each.content for each in messages]
            offset = messages.next_offset
    return found


async def by_get_last(factory: aio.MessageFactory, client: ClusterClient) -> list[bytes]:
    async with await factory.create_consumer() as consumer:
        return [each.content for each in await consumer.get_last("t", 100, 0)]


async def by_stream(factory: aio.MessageFactory, client: ClusterClient) -> list[bytes]:
    found = streams.messages(client, "t", streams.Begin())
    return [each.content async for some in found for each in some]


async def by_the_end_of_a_stream(factory: aio.MessageFactory, client: ClusterClient) -> list[bytes]:
    found = streams.messages(client, "t", streams.Begin(last=100))
    return [each.content async for some in found for each in some]


async def by_columns(factory: aio.MessageFactory, client: ClusterClient) -> list[bytes]:
    _, latest = await PartitionReader(client, T0).bounds()
    found = factory.admin.read_columns("t", 0, 0, latest, max_bytes=1_024)
    return [row[-1] async for each in found for row in rows_of(each.table)]


async def by_range(factory: aio.MessageFactory, client: ClusterClient) -> list[bytes]:
    found: list[bytes] = []
    offset, latest = await PartitionReader(client, T0).bounds()
    while offset < latest:
        some = await factory.admin.read_range("t", 0, offset, max_bytes=700)
        found += [each.content for each in some.messages()]
        offset = some.next_offset
    return found


Reader = Callable[[aio.MessageFactory, ClusterClient], Awaitable[list[bytes]]]


@pytest.mark.parametrize(
    "reader",
    [by_get, by_get_last, by_stream, by_the_end_of_a_stream, by_columns, by_range],
)
async def test_every_reader_reads_a_partition_that_was_moved(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient, reader: Reader
) -> None:
    """Forward and backward, in pieces smaller than what a broker group has, each message once."""
    await send_and_move(cluster, factory)
    assert await reader(factory, client) == CONTENTS


async def test_places_are_found_in_all_broker_groups(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    await send_and_move(cluster, factory)
    reader = PartitionReader(client, T0)
    earliest, latest = await reader.bounds()
    assert (earliest, await reader.place(StartPosition.EARLIEST)) == (0, 0)
    assert await reader.place(StartPosition.LATEST) == latest
    async with await factory.create_consumer() as consumer:
        messages = await consumer.get_last("t", 100, 0)
    for number, message in enumerate(messages):
        assert message.append_time is not None
        assert await reader.back(latest, len(messages) - number, 0) == message.offset
        assert await reader.forward(message.offset, 1, latest) == message.next_offset
        assert await reader.place(message.offset) == message.offset
        ms = int(message.append_time.timestamp() * 1_000)
        assert message.offset - 100 < await reader.place(AtTime(ms)) <= message.offset
        with pytest.raises(OffsetNotBoundary):
            await reader.place(message.offset + 1)
        assert await reader.boundary(message.offset + 1) == message.next_offset
    later = int(datetime.now(UTC).timestamp() * 1_000) + 10**10
    assert await reader.place(AtTime(later)) == latest


async def test_what_is_not_there_is_refused(client: ClusterClient) -> None:
    """Also an offset that no request has room for."""
    reader = PartitionReader(client, T0)
    for offset in (1, -1, 1 << 70):
        with pytest.raises(OffsetOutOfRange):
            await reader.check(offset)
    with pytest.raises(UnknownPartition):
        await PartitionReader(client, TopicPartition("t", 7)).check(0)
    with pytest.raises(UnknownTopic):
        await PartitionReader(client, TopicPartition("x", 0)).check(0)
    with pytest.raises(UnknownTopic, match="its id was another"):
        await PartitionReader(client, T0, "another").check(0)


async def test_a_partition_that_was_just_added_is_found(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    """Also before the watch of the topic has told of it."""
    await cluster.create_topic("grows", partitions=1)
    reader = PartitionReader(client, TopicPartition("grows", 1))
    with pytest.raises(UnknownPartition, match="0 to 0, not 1"):
        await reader.bounds()
    cluster.ensemble.hold_events(client.coordinator)
    await factory.admin.add_partitions("grows", 1)
    assert await reader.bounds() == (0, 0)
    cluster.ensemble.release_events(client.coordinator)
