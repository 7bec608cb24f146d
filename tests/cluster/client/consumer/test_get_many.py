"""``get_many``: several messages at once, none lost and none doubled, whenever a wait ends."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from support.consumers import consumer_of, send, texts, until_committed

from vq import aio
from vq.errors import InvalidArgument, InvalidState
from vq.model import Message
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


def contents(messages: list[Message]) -> list[bytes]:
    return [message.content for message in messages]


async def pulled(consumer: aio.MessageConsumer, count: int, **options: Any) -> list[bytes]:
    """Call until ``count`` messages have come."""
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += contents(await consumer.get_many(count - len(found), **options))
    return found


async def test_messages_come_in_order_and_no_more_than_asked_for(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(*range(7)))
    consumer = await consumer_of(factory)
    first = await consumer.get_many(3, timeout=WAIT_S)
    assert 1 <= len(first) <= 3
    assert contents(first) + await pulled(consumer, 7 - len(first)) == [b"%d" % n for n in range(7)]
    assert await consumer.get_many(3, timeout=0.0) == []


async def test_a_call_takes_from_many_partitions(factory: aio.MessageFactory) -> None:
    """Few messages in each of them make no small results."""
    await send(factory, *(Message("wide", b"%d" % n, key=n) for n in range(8)))
    consumer = await consumer_of(factory, topic="wide")
    await consumer.start()
    inbox = consumer._inbox
    await until(lambda: len(inbox._ready) == 4)
    found = await consumer.get_many(100, timeout=WAIT_S)
    assert {message.partition for message in found} == {0, 1, 2, 3}
    rest = await pulled(consumer, 8 - len(found))
    assert sorted(contents(found) + rest) == [b"%d" % n for n in range(8)]
    await consumer.get_many(1, timeout=0.0)
    await consumer.commit()
    committed = await consumer.get_offset("wide")
    for partition, offset in committed.items():
        bounds = await consumer.get_bounds("wide", partition.partition)
        assert offset == bounds.latest


async def test_the_messages_of_a_call_count_with_the_next_call(
    factory: aio.MessageFactory,
) -> None:
    sent = await send(factory, *texts(*range(3)))
    consumer = await consumer_of(factory, commit_interval_s=3600.0)
    first = await consumer.get_many(1, timeout=WAIT_S)
    assert contents(first) == [b"0"]
    await consumer.commit()
    await until_committed(consumer, (await consumer.get_bounds("t", 0)).earliest)
    second = await consumer.get_many(1, timeout=WAIT_S)
    assert contents(second) == [b"1"]
    await consumer.commit()
    await until_committed(consumer, first[0].next_offset)
    assert sent[1].offset > first[0].offset


async def test_a_failed_handler_gets_its_messages_again(factory: aio.MessageFactory) -> None:
    """All of the call: the consumer cannot know which of them were handled."""
    await send(factory, *texts(*range(3)))

    async def handle_badly(consumer: aio.MessageConsumer) -> None:
        async with consumer:
            handled.extend(contents(await consumer.get_many(3, timeout=WAIT_S)))
            raise KeyError

    handled: list[bytes] = []
    with pytest.raises(KeyError):
        await handle_badly(await consumer_of(factory))
    async with await consumer_of(factory) as follower:
        assert (await pulled(follower, len(handled)))[0] == handled[0] == b"0"


async def test_cancelled_waits_lose_and_double_nothing(factory: aio.MessageFactory) -> None:
    """Each wait ends in its own way while messages come: by a cancellation or a time-out."""
    consumer = await consumer_of(factory)
    found: list[bytes] = []
    for number in range(40):
        waiting = asyncio.ensure_future(consumer.get_many(5, timeout=WAIT_S))
        sending = asyncio.ensure_future(send(factory, *texts(number)))
        for _ in range(number):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            found += contents(waiting.result())
        await sending
        wait_s = 0.01 * (number % 3)
        found += contents(await asyncio.ensure_future(consumer.get_many(5, timeout=wait_s)))
    found += await asyncio.ensure_future(pulled(consumer, 40 - len(found)))
    assert found == [b"%d" % number for number in range(40)]


async def test_an_iteration_survives_a_cancelled_anext(factory: aio.MessageFactory) -> None:
    """With the same iterator, and whenever the cancellation comes."""
    consumer = await consumer_of(factory)
    messages = aiter(consumer)
    found: list[bytes] = []
    for number in range(30):
        try:
            async with asyncio.timeout(0.003 * number):
                found.append((await anext(messages)).content)
        except TimeoutError:
            pass
        await send(factory, *texts(number))
    async with asyncio.timeout(WAIT_S):
        while len(found) < 30:
            found.append((await anext(messages)).content)
    assert found == [b"%d" % number for number in range(30)]


async def test_iteration_and_calls_take_turns(factory: aio.MessageFactory) -> None:
    await send(factory, *texts(*range(4)))
    consumer = await consumer_of(factory)
    messages = aiter(consumer)
    assert (await anext(messages)).content == b"0"
    assert contents(await consumer.get_many(2, timeout=WAIT_S)) in ([b"1"], [b"1", b"2"])
    assert (await anext(messages)).content in (b"2", b"3")


async def test_another_task_is_refused(factory: aio.MessageFactory) -> None:
    await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory)
    await consumer.get_many(1, timeout=WAIT_S)
    with pytest.raises(InvalidState, match="another task"):
        await asyncio.ensure_future(consumer.get_many(1, timeout=WAIT_S))


@pytest.mark.parametrize(("most", "timeout"), [(0, 1.0), (100_001, 1.0), ("5", 1.0), (5, "1")])
async def test_arguments_out_of_range_are_refused(
    factory: aio.MessageFactory, most: Any, timeout: Any
) -> None:
    consumer = await consumer_of(factory)
    with pytest.raises(InvalidArgument):
        await consumer.get_many(most, timeout)


async def test_a_closed_consumer_refuses(factory: aio.MessageFactory) -> None:
    consumer = await consumer_of(factory)
    await consumer.close()
    with pytest.raises(InvalidState, match="closed"):
        await consumer.get_many(1, timeout=0.0)


async def test_the_last_messages_of_a_partition(factory: aio.MessageFactory) -> None:
    """Small and large ones: windows grow, and offsets inside records are no matter."""
    sizes = [10, 200_000, 5, 70_000, 70_000, 1, 300_000, 2, 3]
    await send(factory, *(Message("t", b"%d" % n * size) for n, size in enumerate(sizes)))
    consumer = await factory.create_consumer()
    assert await consumer.get_last("wide", 5) == []
    for count in (1, 2, 3, 4, 6, 9, 20):
        found = await consumer.get_last("t", count, 0)
        wanted = [(n, size) for n, size in enumerate(sizes)][-count:]
        assert [(int(each.content[:1]), len(each.content)) for each in found] == wanted
        assert found == await consumer.get_last("t", count)


async def test_the_last_messages_of_a_topic_are_the_newest(factory: aio.MessageFactory) -> None:
    for number in range(12):
        await send(factory, Message("wide", b"%d" % number, key=number * 7 % 4))
        await asyncio.sleep(0.01)
    consumer = await factory.create_consumer()
    assert contents(await consumer.get_last("wide", 5)) == [b"%d" % n for n in range(7, 12)]
    with pytest.raises(InvalidArgument, match=r"outside \[1, 10000\]"):
        await consumer.get_last("wide", 0)


async def test_ends_are_offsets_of_every_partition(factory: aio.MessageFactory) -> None:
    await send(factory, *(Message("wide", b"x", key=n) for n in range(3)))
    consumer = await factory.create_consumer()
    earliest = await consumer.offsets_at("wide", "earliest")
    latest = await consumer.offsets_at("wide", "latest")
    assert [partition.partition for partition in earliest] == [0, 1, 2, 3]
    for partition, offset in earliest.items():
        bounds = await consumer.get_bounds("wide", partition.partition)
        assert (offset, latest[partition]) == bounds


LEFT = "batch was left by the loop over it, all its messages count as handled"


@pytest.mark.parametrize("failing", [0, -1])
async def test_a_loop_that_a_handler_left_is_told_when_its_messages_count(
    factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture, failing: int
) -> None:
    """``while True: try: for message in await get_many(): … except: log``, also by the last one."""
    await send(factory, *texts(*range(6)))
    consumer = await consumer_of(factory)
    for round_ in range(2):
        messages = await consumer.get_many(3, timeout=WAIT_S)
        with contextlib.suppress(ZeroDivisionError):
            for message in messages:
                if message is messages[failing]:
                    raise ZeroDivisionError
        assert caplog.text.count(LEFT) == round_
    await consumer.get_many(3, timeout=0.0)
    assert caplog.text.count(LEFT) == 1
    assert "topic=t partition=0 offset=" in caplog.text
    assert "catch errors inside the loop" in caplog.text


async def test_messages_that_were_looped_over_or_only_looked_at_are_not_told(
    factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    await send(factory, *texts(*range(9)))
    consumer = await consumer_of(factory)
    uses: list[Callable[[list[Message]], object]] = [
        contents,
        list,
        lambda found: found[0].content,
        lambda found: [*found, *found],
        lambda found: (contents(found), next(iter(found))),
        lambda found: (next(iter(found)), contents(found)),
        lambda found: (next(iter(found)), contents(found), next(iter(found))),
        len,
    ]
    for use in uses:
        use(await consumer.get_many(1, timeout=WAIT_S))
    await consumer.get_many(1, timeout=WAIT_S)
    assert LEFT not in caplog.text
