"""``get`` reads the messages at a position, waits for them, and says what it cannot read."""

import asyncio
from typing import Any

import pytest
from support.broker import Client, MemoryCluster
from support.client import HOST, factory_of
from support.consumers import client_of_factory, consumer_of, send, take, texts

from vq import aio
from vq.broker.partition.channel import Channel
from vq.errors import (
    Busy,
    ConnectionCut,
    InvalidArgument,
    OffsetNotBoundary,
    OffsetOutOfRange,
    StaleEpoch,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.limits import FETCH_BYTES_MAX, MESSAGE_BYTES_MAX
from vq.model import Message
from vq.store.records.compression import compress
from vq.store.records.format import COMPRESSION_ZLIB
from vq.store.records.record import encode_record
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def test_get_returns_messages_with_all_they_were_sent_with(
    factory: aio.MessageFactory,
) -> None:
    sent = Message("t", b"content", "tag", "key", {"a": "b"})
    (result,) = await send(factory, sent)
    consumer = await factory.create_consumer()
    (found,) = await consumer.get("t", 0, 0, 1 << 20)
    assert found[:5] == sent[:5]
    assert (found.partition, found.offset, found.id) == result
    assert await consumer.get("t", 0, found.next_offset, 1 << 20) == []


async def test_get_returns_no_more_than_a_few_messages_that_expand(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """They are far larger than what was read; reading on behind the last one gives the others."""
    payload = compress(bytes(MESSAGE_BYTES_MAX), COMPRESSION_ZLIB)
    records = [
        encode_record(number, payload, None, None, COMPRESSION_ZLIB) for number in range(1, 11)
    ]
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    await client.put("t", 0, records)
    consumer = await factory.create_consumer()
    found, counts, offset = [], [], 0
    while messages := await consumer.get("t", 0, offset, 1 << 20):
        counts.append(len(messages))
        found += [message.id for message in messages]
        offset = messages.next_offset
    assert counts == [4, 4, 2]
    assert found == list(range(1, 11))
    client.close()


@pytest.mark.parametrize("empty", [1, 3])
async def test_a_loop_of_gets_comes_to_the_end_where_batches_have_no_message(
    cluster: MemoryCluster, factory: aio.MessageFactory, empty: int
) -> None:
    """A producer that begins an epoch stores such a batch; Spark's sink leaves it at the end."""
    await send(factory, *texts(1, 2))
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    for epoch in range(empty):
        await client.put("t", 0, [], producer_id=7, producer_epoch=epoch, sequence=0)
    client.close()
    consumer = await factory.create_consumer()
    bounds = await consumer.get_bounds("t", 0)
    offset, found = bounds.earliest, []
    while offset < bounds.latest:
        some = await consumer.get("t", 0, offset, 1 << 20)
        assert some.next_offset > offset, "each step goes on"
        found += some
        offset = some.next_offset
    assert offset == bounds.latest
    assert [message.content for message in found] == [b"1", b"2"]
    at_end = await consumer.get("t", 0, offset, 1 << 20)
    assert (at_end, at_end.next_offset) == ([], offset)


async def test_get_at_every_boundary_and_between_them(factory: aio.MessageFactory) -> None:
    results = await send(factory, *texts(1, 2, 3))
    consumer = await factory.create_consumer()
    bounds = await consumer.get_bounds("t", 0)
    starts = [result.offset for result in results]
    valid = {0, bounds.latest, *starts, *(start + 21 for start in starts)}
    for offset in range(bounds.latest + 1):
        expected = [start for start in starts if start >= offset]
        if offset in valid:
            found = await consumer.get("t", 0, offset, 1 << 20)
            assert [message.offset for message in found] == expected
        else:
            with pytest.raises(OffsetNotBoundary) as refused:
                await consumer.get("t", 0, offset, 1 << 20)
            assert refused.value.details["next"] in valid


async def test_get_of_less_than_a_record_returns_the_whole_record(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, Message("t", b"x" * 5_000), Message("t", b"y"))
    consumer = await factory.create_consumer()
    for length in (1, 19, 20, 87, 88, 89, 107, 108, 109, 500, 5_000):
        found = await consumer.get("t", 0, 0, length)
        assert [len(message.content) for message in found] == [5_000], f"length {length}"


async def test_get_waits_for_a_first_message(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await factory.create_consumer()
    waiting = asyncio.create_task(consumer.get("t", 0, 0, 1_000, 5.0))
    server: Any = cluster.nodes["b1"].parts.server
    await until(lambda: any(session.waiting for session in server.sessions))
    assert not waiting.done()
    await send(factory, *texts(1))
    assert [message.content for message in await waiting] == [b"1"]


async def test_get_waits_no_longer_than_it_was_told(cluster: MemoryCluster) -> None:
    async with factory_of(cluster, request_timeout_s=60.0) as factory:
        consumer = await factory.create_consumer()
        begin = asyncio.get_running_loop().time()
        assert await consumer.get("t", 0, 0, 1_000, 0.1) == []
        assert 0.08 < asyncio.get_running_loop().time() - begin < 5.0


async def test_get_past_the_end_and_where_there_is_nothing(factory: aio.MessageFactory) -> None:
    consumer = await factory.create_consumer()
    with pytest.raises(OffsetOutOfRange) as refused:
        await consumer.get("t", 0, 10_000, 1_000)
    assert refused.value.details == {"earliest": 0, "latest": 0}
    for offset in (-1, 1 << 63, 1 << 64, 10**30):  # more than a request can carry, too
        with pytest.raises(OffsetOutOfRange, match=rf"{offset} .* is outside \[0, 0\]"):
            await consumer.get("t", 0, offset, 1_000)
    with pytest.raises(UnknownPartition):
        await consumer.get("t", 7, 0, 1_000)
    with pytest.raises(UnknownPartition):
        await consumer.get("t", 1 << 80, 0, 1_000)
    with pytest.raises(UnknownTopic):
        await consumer.get("missing", 0, 0, 1_000)
    for length in (0, FETCH_BYTES_MAX + 1):
        with pytest.raises(InvalidArgument, match=str(length)):
            await consumer.get("t", 0, 0, length)


async def test_get_goes_on_after_a_cut(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    """Asking twice does no harm, so the caller need not see it."""
    await send(factory, *texts(1))
    consumer = await factory.create_consumer()
    await consumer.get("t", 0, 0, 1_000)
    waiting = asyncio.create_task(consumer.get("t", 0, 0, 1_000))
    await asyncio.sleep(0)
    cluster.network.reset_connections(HOST)
    assert len(await waiting) == 1
    assert issubclass(ConnectionCut, VqError)


async def test_a_read_that_is_tried_again_has_the_time_that_is_left(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(factory, *texts(1))
    consumer = await factory.create_consumer()
    cluster = client_of_factory(factory)
    request = cluster.request
    given: list[float] = []

    async def busy(*arguments: Any, **options: Any) -> Any:
        given.append(options["timeout"])
        if len(given) < 3:
            raise Busy("not now")
        return await request(*arguments, **options)

    monkeypatch.setattr(cluster, "request", busy)
    await consumer.get_bounds("t", 0)
    first, second, third = given
    assert cluster.config.request_timeout_s >= first > second > third > 0.0


async def test_a_reader_believes_no_broker_that_is_behind_what_it_knows(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By position, by offsets and as a member: refused meanwhile, and gone on with afterwards."""
    refused = 0
    stale_epoch = Channel.stale_epoch

    def count(channel: Channel, epoch: int) -> StaleEpoch:
        nonlocal refused
        refused += 1
        return stale_epoch(channel, epoch)

    monkeypatch.setattr(Channel, "stale_epoch", count)
    async with factory_of(cluster, request_timeout_s=60.0) as factory:
        await send(factory, *texts(1))
        reader = await factory.create_consumer()
        assert len(await reader.get("t", 0, 0, 1_000)) == 1
        role = cluster.nodes["b1"].parts.context.role
        role.epoch -= 1  # an earlier master that has not heard of the next one
        member = await consumer_of(factory)
        waiting = [
            asyncio.create_task(reader.get("t", 0, 0, 1_000)),
            asyncio.create_task(reader.get_bounds("t", 0)),
            asyncio.create_task(take(member, 1)),
        ]
        await until(lambda: refused >= 12)
        assert not any(each.done() for each in waiting)
        role.epoch += 1
        messages, bounds, taken = await asyncio.gather(*waiting)
        assert (len(messages), bounds.latest > 0, taken) == (1, True, [b"1"])


async def test_bounds_follow_what_is_stored(factory: aio.MessageFactory) -> None:
    consumer = await factory.create_consumer()
    assert await consumer.get_bounds("t", 0) == (0, 0)
    (result,) = await send(factory, *texts(1))
    assert await consumer.get_bounds("t", 0) == (0, result.offset + 21)
