"""A member that seeks, pauses and resumes what it holds."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.consumers import consumer_of, membership_of, send, take, texts, until_committed

from vq import aio
from vq.errors import InvalidArgument, InvalidState, OffsetNotBoundary, OffsetOutOfRange
from vq.model import TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)


async def holding(
    factory: aio.MessageFactory, count: int = 1, **settings: Any
) -> aio.MessageConsumer:
    """Return a started consumer that holds ``count`` partitions of ``t``."""
    consumer = await consumer_of(factory, **settings)
    await consumer.start()
    await until(lambda: len(consumer.assignment()) == count)
    return consumer


async def test_a_group_goes_on_where_it_seeks(factory: aio.MessageFactory) -> None:
    """Back, forward, and to both ends; what follows comes from there, in order."""
    sent = await send(factory, *texts(*range(6)))
    consumer = await holding(factory)
    assert await take(consumer, 3) == [b"0", b"1", b"2"]
    await consumer.seek(T0, sent[1].offset)
    assert await take(consumer, 2) == [b"1", b"2"]
    await consumer.seek("t", sent[4].offset)
    assert await take(consumer, 2) == [b"4", b"5"]
    await consumer.seek(T0, "earliest")
    assert await take(consumer, 1) == [b"0"]
    await consumer.seek(T0, "latest")
    await send(factory, *texts(9))
    assert await take(consumer, 1) == [b"9"]


async def test_a_seek_by_time_finds_the_first_batch_stored_then(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(1))
    await asyncio.sleep(1.0)
    (second,) = await send(factory, *texts(2))
    consumer = await holding(factory)
    (message,) = await consumer.get("t", 0, (await consumer.get_bounds("t", 0)).earliest, 1)
    assert message.append_time is not None
    between = message.append_time + timedelta(seconds=0.5)
    assert await consumer.offset_at("t", 0, between) <= second.offset
    await consumer.seek("t", between)
    assert await take(consumer, 1) == [b"2"]


@pytest.mark.parametrize("microseconds", [0, 1, 500, 999])
async def test_a_seek_by_time_leaves_out_nothing_that_was_stored_at_that_time(
    factory: aio.MessageFactory, microseconds: int
) -> None:
    """An append time is a whole millisecond: the message may have been stored at its very end."""
    (sent,) = await send(factory, *texts(1))
    consumer = await holding(factory)
    (message,) = await consumer.get("t", 0, 0, 1)
    assert message.append_time is not None
    moment = message.append_time + timedelta(microseconds=microseconds)
    assert await consumer.offset_at("t", 0, moment) <= sent.offset
    assert (await consumer.offsets_at("t", moment))[T0] <= sent.offset
    await consumer.seek("t", moment)
    assert await take(consumer, 1) == [b"1"]


async def test_a_seek_back_is_committed(factory: aio.MessageFactory) -> None:
    """The next member of the group gets again what was handled."""
    sent = await send(factory, *texts(*range(4)))
    async with await holding(factory, commit_interval_s=3600.0) as consumer:
        await take(consumer, 4)
        await consumer.seek(T0, sent[1].offset)
        await consumer.commit()
        await until_committed(consumer, sent[1].offset)
    async with await holding(factory) as follower:
        assert await take(follower, 1) == [b"1"]


async def test_a_seek_back_is_committed_though_more_was(factory: aio.MessageFactory) -> None:
    """What was committed lies behind the place that was sought."""
    sent = await send(factory, *texts(*range(4)))
    async with await holding(factory, commit_interval_s=3600.0) as consumer:
        await take(consumer, 4)
        await consumer.commit()
        assert (await consumer.get_offset("t"))[T0] > sent[2].offset
        await consumer.seek(T0, sent[1].offset)
        await consumer.commit()
        assert (await consumer.get_offset("t"))[T0] == sent[1].offset
        assert await take(consumer, 2) == [b"1", b"2"]
        await consumer.commit()
        assert (await consumer.get_offset("t"))[T0] < sent[2].offset
    async with await holding(factory) as follower:
        assert await take(follower, 1) == [b"3"]


async def test_a_seek_is_not_lost_in_a_hand_over(factory: aio.MessageFactory) -> None:
    """The task is still at a message of the old place when the member leaves."""
    sent = await send(factory, *texts(*range(4)))
    consumer = await holding(factory, commit_interval_s=3600.0)
    await take(consumer, 3)
    await consumer.seek(T0, sent[1].offset)
    await consumer.close()
    async with await holding(factory) as follower:
        assert await take(follower, 1) == [b"1"]


async def test_a_place_that_cannot_be_read_changes_nothing(factory: aio.MessageFactory) -> None:
    sent = await send(factory, *texts(*range(3)))
    consumer = await holding(factory)
    assert await take(consumer, 1) == [b"0"]
    with pytest.raises(OffsetOutOfRange) as beyond:
        await consumer.seek(T0, 1 << 40)
    assert beyond.value.details["latest"] == (await consumer.get_bounds("t", 0)).latest
    with pytest.raises(OffsetNotBoundary) as inside:
        await consumer.seek(T0, sent[1].offset + 1)
    assert inside.value.details["next"] > sent[1].offset
    assert await take(consumer, 1) == [b"1"]


@pytest.mark.parametrize(
    ("where", "position", "error"),
    [
        ("t", "yesterday", "no position"),
        ("t", True, "no position"),
        ("t", -1, "negative"),
        ("t", datetime(2026, 1, 1), "no zone"),  # noqa: DTZ001 - refused
        (5, 0, "neither a topic nor a partition"),
        (("t", "0"), 0, "partition"),
    ],
)
async def test_a_position_that_is_none_is_refused(
    factory: aio.MessageFactory, where: Any, position: Any, error: str
) -> None:
    consumer = await holding(factory)
    with pytest.raises(InvalidArgument, match=error):
        await consumer.seek(where, position)


async def test_only_what_is_held_can_be_steered(factory: aio.MessageFactory) -> None:
    consumer = await consumer_of(factory)
    for call in (
        lambda: consumer.seek(T0, "earliest"),
        lambda: consumer.seek("u", datetime.now(UTC)),
    ):
        with pytest.raises(InvalidState, match="holds"):
            await call()
    with pytest.raises(InvalidState, match="holds not t-0 now; it holds none"):
        consumer.pause(T0)
    reader = await factory.create_consumer()
    with pytest.raises(InvalidState, match=r"has no group.*get\(\)"):
        reader.pause(T0)
    consumer.pause()
    assert consumer.paused() == []
    await consumer.close()
    for closed in (lambda: consumer.pause(T0), lambda: consumer.subscribe("t")):
        with pytest.raises(InvalidState, match="closed; make another one"):
            closed()


async def test_a_paused_partition_delivers_nothing_until_it_is_resumed(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(*range(3)))
    consumer = await holding(factory)
    assert await take(consumer, 1) == [b"0"]
    consumer.pause(T0)
    assert consumer.paused() == [T0]
    assert await consumer.get_many(10, timeout=1.0) == []
    assert consumer.assignment() == [T0]
    consumer.resume()
    assert consumer.paused() == []
    assert await take(consumer, 2) == [b"0", b"1"], "the loop was left at the first one"


async def test_a_seek_while_paused_counts_at_the_resume(factory: aio.MessageFactory) -> None:
    sent = await send(factory, *texts(*range(3)))
    consumer = await holding(factory)
    assert await take(consumer, 1) == [b"0"]
    consumer.pause("t")
    await consumer.seek(T0, sent[2].offset)
    assert await consumer.get_many(10, timeout=1.0) == []
    consumer.resume("t")
    assert await take(consumer, 1) == [b"2"]


async def test_a_pause_outlasts_a_doubt_about_ownership(factory: aio.MessageFactory) -> None:
    """When ownership is proved again, only what the application did not pause goes on."""
    await send(factory, *texts(*range(3)))
    consumer = await holding(factory)
    assert await take(consumer, 1) == [b"0"]
    consumer.pause()
    membership = membership_of(consumer)
    assert membership is not None
    membership._pause("a test")
    await until(lambda: not membership.is_paused)
    assert consumer.paused() == [T0]
    assert await consumer.get_many(10, timeout=1.0) == []
    consumer.resume()
    assert await take(consumer, 1) == [b"0"], "the loop was left at it"


async def test_a_pause_ends_where_the_partition_leaves(factory: aio.MessageFactory) -> None:
    """As documented: the next owner, or the same member later, gets its messages."""
    await send(factory, *texts(*range(3)))
    consumer = await holding(factory)
    consumer.pause()
    await consumer.close()
    async with await holding(factory) as follower:
        assert follower.paused() == []
        assert await take(follower, 1) == [b"0"]
