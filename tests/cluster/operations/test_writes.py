"""Repeatable writes over a cluster in memory: who writes, what is stored, and what is refused."""

import asyncio

import pytest
from support.broker import MemoryCluster
from support.producers import stored, stored_in

from vq import aio
from vq.admin import WriteAttempt
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.errors import (
    InvalidArgument,
    InvalidState,
    NotMaster,
    NotSent,
    ProducerFenced,
    Refused,
)
from vq.model import Message
from vq.testing.waiting import WAIT_S

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def admin(factory: aio.MessageFactory) -> aio.Admin:
    """Of a cluster with the write ``w``."""
    await factory.admin.begin_write("w")
    return factory.admin


async def producer_of(factory: aio.MessageFactory, attempt: WriteAttempt) -> aio.MessageProducer:
    return await factory.create_producer(ProducerConfig(ordered=True, identity=attempt.identity))


async def send(producer: aio.MessageProducer, *keys: int) -> None:
    for key in keys:
        await producer.send(Message("t", b"%d" % key, key=key))


async def found(admin: aio.Admin, attempt: WriteAttempt) -> list[bytes]:
    """Return what a repeated attempt finds."""
    contents: list[bytes] = []
    for partition, (start, end) in (await admin.enter_topic(attempt, "t")).items():
        while start < end:
            part = await admin.read_written(attempt, "t", partition, start, end, max_bytes=200)
            contents += [each.content for each in part.messages]
            assert part.next_offset > start
            start = part.next_offset
    return contents


async def test_a_first_attempt_finds_nothing_and_stops_nobody(
    factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    attempt = await admin.begin_attempt("w", 0, 0)
    assert not attempt.is_repeated
    before = await admin.bounds("t")
    assert await admin.enter_topic(attempt, "t") == {}
    assert await admin.bounds("t") == before
    async with await producer_of(factory, attempt) as producer:
        await send(producer, 0, 1, 2, 3)
    assert await stored(factory) == [b"0", b"2", b"1", b"3"]


async def test_a_repeated_attempt_finds_all_and_stops_the_earlier_one(
    factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    """The zombie's messages are refused in every partition from then on; others go on."""
    first = await admin.begin_attempt("w", 0, 0)
    await admin.enter_topic(first, "t")
    async with (
        await producer_of(factory, first) as zombie,
        await factory.create_producer() as other,
    ):
        await send(zombie, 0, 1)
        await send(other, 10, 11)
        await send(zombie, 2)
        second = await admin.begin_attempt("w", 0, 0)
        assert second.is_repeated
        assert second.identity.producer_id == first.identity.producer_id
        assert second.topics == ("t",)
        assert sorted(await found(admin, second)) == [b"0", b"1", b"2"]
        for key in (4, 5):
            with pytest.raises(ProducerFenced):
                await send(zombie, key)
        with pytest.raises(Refused):  # also once it has failed
            await send(zombie, 4)
        await send(other, 12)
        async with await producer_of(factory, second) as producer:
            await send(producer, 6, 7)
        third = await admin.begin_attempt("w", 0, 0)
        assert sorted(await found(admin, third)) == [b"0", b"1", b"2", b"6", b"7"]
    contents = await stored(factory)
    assert sorted(map(int, contents)) == [0, 1, 2, 6, 7, 10, 11, 12]


async def test_what_earlier_batches_and_other_tasks_stored_is_left_out(
    factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    for batch in range(3):
        for task in range(2):
            attempt = await admin.begin_attempt("w", batch, task)
            assert not attempt.is_repeated
            await admin.enter_topic(attempt, "t")
            async with await producer_of(factory, attempt) as producer:
                await send(producer, 100 * batch + task)
    again = await admin.begin_attempt("w", 2, 1)
    assert await found(admin, again) == [b"201"]
    assert await admin.tasks_begun("w", 2) == [0, 1]
    assert await admin.tasks_begun("w", 1) == []


async def test_a_batch_that_is_over_and_a_write_that_ended_take_no_attempt(
    factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    old = await admin.begin_attempt("w", 0, 0)
    await admin.enter_topic(await admin.begin_attempt("w", 1, 1), "t")
    assert not (await admin.begin_attempt("w", 1, 0)).is_repeated
    with pytest.raises(InvalidState, match="batch 1 has begun, so batch 0 is over"):
        await admin.begin_attempt("w", 0, 0)
    with pytest.raises(InvalidState, match="batch 1 has begun, so batch 0 is over"):
        await admin.enter_topic(old, "t")
    assert await admin.list_writes() == ["w"]
    await admin.end_write("w")
    await admin.end_write("w")
    assert await admin.list_writes() == []
    with pytest.raises(InvalidState, match="write w has ended, or was never begun"):
        await admin.begin_attempt("w", 1, 0)
    await admin.begin_write("w")
    await admin.begin_write("w")
    assert not (await admin.begin_attempt("w", 0, 0)).is_repeated


async def test_a_stop_outlives_the_broker(
    cluster: MemoryCluster, factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    """A broker that was killed reads from its log that the epoch is over."""
    first = await admin.begin_attempt("w", 0, 0)
    await admin.enter_topic(first, "t")
    async with await producer_of(factory, first) as zombie:
        await send(zombie, 0)
        second = await admin.begin_attempt("w", 0, 0)
        assert await found(admin, second) == [b"0"]
        await cluster.nodes["b1"].stop()
        await cluster.start()
        with pytest.raises(ProducerFenced):
            await send(zombie, 2)
        third = await admin.begin_attempt("w", 0, 0)
        assert await found(admin, third) == [b"0"]


async def test_readers_go_over_empty_batches(factory: aio.MessageFactory, admin: aio.Admin) -> None:
    """A group gets every message, and is behind in none afterwards."""
    for _ in range(3):
        attempt = await admin.begin_attempt("w", 0, 0)
        await admin.enter_topic(attempt, "t")
    async with await producer_of(factory, attempt) as producer:
        await send(producer, 0, 2)
    await admin.enter_topic(await admin.begin_attempt("w", 0, 0), "t")
    assert await stored_in(factory, 0) == [b"0", b"2"]
    config = ConsumerConfig(group="g", commit_interval_s=0.01)
    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe("t")
        got: list[bytes] = []

        async def read() -> None:
            async for message in consumer:
                got.extend([message.content])  # now, not at the end of the loop

        async def lag() -> list[int | None]:
            described = await admin.describe_group("g")
            return [each.lag_bytes for each in described.partitions]

        task = asyncio.create_task(read())
        async with asyncio.timeout(WAIT_S):
            while not got or await lag() != [0, 0]:
                await asyncio.sleep(0.05)
        task.cancel()
    assert got == [b"0", b"2"]


async def test_a_producer_with_an_identity_ends_at_its_first_failure(
    cluster: MemoryCluster, factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    """Its batches are never numbered anew: a later attempt could take them for its own."""
    first = await admin.begin_attempt("w", 0, 0)
    async with await producer_of(factory, first) as producer:
        await send(producer, 0)
        await cluster.nodes["b1"].stop()
        with pytest.raises(Refused):
            await producer.send(Message("t", b"2", key=2), timeout=0.5)
        await cluster.start()
        for _ in range(2):
            with pytest.raises(NotSent, match="an earlier message"):
                await send(producer, 4)
        await send(producer, 1)  # the other partition
    assert await stored(factory) == [b"0", b"1"]


async def test_wrong_arguments_are_refused(admin: aio.Admin) -> None:
    with pytest.raises(InvalidArgument, match="batch = -1 is outside"):
        await admin.begin_attempt("w", -1, 0)
    with pytest.raises(InvalidArgument, match="write name 'a/b'"):
        await admin.begin_write("a/b")


async def test_every_way_to_look_at_a_partition_takes_empty_batches(
    factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    """At the start, in the middle and at the end: they hide nothing and count as nothing."""

    async def repeat() -> WriteAttempt:
        attempt = await admin.begin_attempt("w", 0, 0)
        await admin.enter_topic(attempt, "t")
        return attempt

    for key in (0, 2):
        await repeat()
        async with await producer_of(factory, await repeat()) as producer:
            await send(producer, key)
    await repeat()
    bounds = (await admin.bounds("t"))[0]
    assert bounds is not None
    assert (await admin.find_messages("t", key=2)).messages[0].content == b"2"
    assert not (await admin.find_messages("t", key=4)).messages
    table = [each async for each in admin.read_columns("t", 0, 0, bounds.latest)]
    assert sum(each.table.rows for each in table) == 2
    assert not any(each.damage for each in await admin.verify(["t"]))
    assert (await admin.offsets_at_time("t", 0))[0] == 0
    async with await factory.create_consumer() as consumer:
        assert [each.content for each in await consumer.get_last("t", 5)] == [b"0", b"2"]
        offset = (await consumer.get_last("t", 1, partition=0))[0].next_offset
        assert await consumer.get("t", 0, offset, 1000) == []


async def test_what_is_stored_and_not_shown_to_readers_yet_is_waited_for(
    cluster: MemoryCluster, factory: aio.MessageFactory, admin: aio.Admin
) -> None:
    """As behind slow copies, and at a new master: a task that went on would store it again."""
    first = await admin.begin_attempt("w", 0, 0)
    await admin.enter_topic(first, "t")
    async with await producer_of(factory, first) as producer:
        await send(producer, 0, 2, 4)
    second = await admin.begin_attempt("w", 0, 0)
    [(partition, (start, end))] = (await admin.enter_topic(second, "t")).items()
    channel = cluster.nodes["b1"].parts.partitions.channels["t", partition]
    shown = channel.high_watermark
    channel.high_watermark = start
    reading = asyncio.create_task(admin.read_written(second, "t", partition, start, end))
    await asyncio.sleep(1)
    assert not reading.done()
    channel.high_watermark = shown
    assert [each.content for each in (await reading).messages] == [b"0", b"2", b"4"]
    channel.high_watermark = start
    with pytest.raises(NotMaster, match="readers get nothing behind offset 0 yet"):
        await admin.read_written(second, "t", partition, start, end, timeout=2)
    channel.high_watermark = shown
