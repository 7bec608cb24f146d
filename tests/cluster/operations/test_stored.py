"""Stored bytes by position: what tools read, over a cluster in memory."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of

from vq import admin, aio
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.reading import tail
from vq.client.reading.partition_reader import PartitionReader
from vq.errors import InvalidArgument, OffsetNotBoundary, OffsetOutOfRange, UnknownPartition
from vq.model import Message, TopicPartition

pytestmark = pytest.mark.virtual_time

SIZE = 88 + 20 + 1  # of a batch with one message of one byte
MESSAGES = 8


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, and a topic ``t`` with one partition."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        yield cluster


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """Its client, which has sent eight messages, each a batch."""
    async with factory_of(cluster) as factory:
        await send(factory, MESSAGES)
        yield factory


async def send(factory: aio.MessageFactory, count: int) -> None:
    config = ProducerConfig(batch_records=1)
    async with await factory.create_producer(config) as producer:
        for number in range(count):
            await producer.send(Message("t", b"%d" % number))


async def test_a_range_has_whole_records_and_says_where_to_read_on(
    factory: aio.MessageFactory,
) -> None:
    """Bounded by bytes and by an end; its messages are those of a consumer."""
    read = factory.admin.read_range
    whole = await read("t", 0, 0)
    assert (whole.offset, whole.next_offset, whole.latest) == (0, MESSAGES * SIZE, MESSAGES * SIZE)
    assert len(whole.data) == MESSAGES * SIZE
    assert [each.content for each in whole.messages()] == [b"%d" % n for n in range(MESSAGES)]
    assert [each.offset for each in whole.messages()][:2] == [88, SIZE + 88]
    first = await read("t", 0, 0, max_bytes=SIZE + 30)
    assert (first.next_offset, first.data) == (SIZE, whole.data[:SIZE])
    two = await read("t", 0, SIZE, 3 * SIZE + 5)
    assert (two.next_offset, len(two.messages())) == (3 * SIZE, 2)
    assert (await read("t", 0, MESSAGES * SIZE)).data == b""
    assert (await read("t", 0, 0, 0)).data == b""


async def test_a_record_that_is_larger_than_the_bound_comes_whole(
    factory: aio.MessageFactory,
) -> None:
    found = await factory.admin.read_range("t", 0, 88, max_bytes=1)
    assert [each.content for each in found.messages()] == [b"0"]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((0, 5), {}, OffsetNotBoundary),
        ((0, 9 * SIZE), {}, OffsetOutOfRange),
        ((1, 0), {}, UnknownPartition),
        ((0, 5, 4), {}, InvalidArgument),
        ((0, -1), {}, InvalidArgument),
        ((0, 1 << 64), {}, InvalidArgument),
        ((0, 0, "9"), {}, InvalidArgument),
        ((0, 0), {"max_bytes": 0}, InvalidArgument),
        ((0, 0), {"max_bytes": 1 << 30}, InvalidArgument),
    ],
)
async def test_what_is_no_range_is_refused(
    factory: aio.MessageFactory,
    arguments: tuple[Any, ...],
    options: dict[str, int],
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        await factory.admin.read_range("t", *arguments, **options)


async def test_a_range_of_a_moved_partition_is_read_from_both_groups(
    cluster: MemoryCluster,
) -> None:
    async with factory_of(cluster) as factory:
        await cluster.start("b2")
        config = ProducerConfig(partitioner=lambda message, partitions: 0)
        async with await factory.create_producer(config) as producer:
            await producer.send(Message("t", b"a"))
            await factory.admin.move(await factory.admin.plan_moves("t", [0], "b2"))
            await producer.send(Message("t", b"b"))
        first = await factory.admin.read_range("t", 0, 0)
        second = await factory.admin.read_range("t", 0, first.next_offset)
        contents = [each.content for each in (*first.messages(), *second.messages())]
        assert contents == [b"a", b"b"]


async def test_places_are_found_by_a_number_of_messages(
    factory: aio.MessageFactory, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back and forward, also where the first window is too small, and at both ends."""
    monkeypatch.setattr(tail, "WINDOW_BYTES", 100)
    reader = PartitionReader(client, TopicPartition("t", 0))
    end = MESSAGES * SIZE
    for count in range(1, MESSAGES + 1):
        place = await reader.back(end, count, 0)
        assert place == end - count * SIZE + 88
        assert await reader.forward(place, count, end) == end
    assert await reader.back(end, MESSAGES + 1, 0) == 0
    assert await reader.forward(0, MESSAGES + 1, end) == end
    assert await reader.forward(0, 3, end) == 3 * SIZE
    assert admin.StoredRange("t", 0, 0, 0, 0, b"").messages() == []


async def test_the_message_at_or_behind_an_offset_is_found(factory: aio.MessageFactory) -> None:
    end = MESSAGES * SIZE
    for offset, left in ((0, MESSAGES), (89, MESSAGES - 1), (SIZE, MESSAGES - 1), (end, 0)):
        (found,) = (await factory.admin.boundaries("t", {0: offset})).values()
        assert offset <= found <= end
        if left:
            messages = (await factory.admin.read_range("t", 0, found)).messages()
            assert len(list(messages)) == left
    with pytest.raises(InvalidArgument, match="offset"):
        await factory.admin.boundaries("t", {0: -1})
    with pytest.raises(OffsetOutOfRange):
        await factory.admin.boundaries("t", {0: end + 1})
