"""Batches that linger for an hour: what shares a batch, and for whom nothing waits."""

import asyncio
import threading
from typing import Any

import pytest
from support.producers import core_of, producer_of, stored
from support.threads import in_thread

from vq import aio, limits
from vq.client.future import SendFuture
from vq.model import Message
from vq.testing.waiting import WAIT_S, until

HOUR_S = 3_600.0


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of a producer whose batches leave within the test only if nothing lingers."""
    monkeypatch.setattr(limits, "LINGER_MS_MAX", HOUR_S * 1000)
    return {
        "linger_ms": HOUR_S * 1000,
        "send_timeout_s": 3 * HOUR_S,
        "partitioner": lambda message, partitions: 0,
    }


async def sent(producer: aio.MessageProducer, count: int) -> list[SendFuture]:
    return [await producer.send_async(Message("t", b"%d" % number)) for number in range(count)]


async def runs_of_the_sender(producer: aio.MessageProducer, count: int) -> None:
    """Wait until the sender has looked at its queues so many times."""
    sender, seen = core_of(producer).sender, 0
    look = sender.accumulator.drain

    def counting() -> None:
        nonlocal seen
        seen += 1
        look()

    sender.accumulator.drain = counting  # type: ignore[method-assign]
    await until(lambda: seen >= count)
    sender.accumulator.drain = look  # type: ignore[method-assign]


async def lingering(producer: aio.MessageProducer) -> SendFuture:
    """Return a message that lingers; from now on the sender runs only if somebody wakes it."""
    await producer.send(Message("t", b"connects"))
    (future,) = await sent(producer, 1)
    sender = core_of(producer).sender
    await until(lambda: sender.rest_timer is not None)
    stop_looking(producer)
    return future


def stop_looking(producer: aio.MessageProducer) -> None:
    """Take the timers from the sender at which it looks whether somebody waits."""
    sender = core_of(producer).sender
    for timer in (sender.rest_timer, sender.tick_timer):
        if timer is not None:
            timer.cancel()


async def test_messages_that_come_slowly_share_a_batch(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, **hour)
    for number in range(5):
        await producer.send_async(Message("t", b"%d" % number))
        await runs_of_the_sender(producer, 2)
    assert not any(queue.in_flight for queue in core_of(producer).accumulator.queues())
    await producer.flush()
    assert producer.metrics().total.batches_stored == 1
    assert await stored(factory) == [b"%d" % number for number in range(5)]


async def test_a_batch_leaves_when_its_time_is_over(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory, linger_ms=30)
    (future,) = await sent(producer, 1)
    await until(future.done)


async def test_full_batches_leave_at_once(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, batch_records=10, **hour)
    futures = await sent(producer, 35)
    await until(lambda: sum(future.done() for future in futures) == 30)
    await runs_of_the_sender(producer, 3)
    assert not any(future.done() for future in futures[30:])
    await producer.close()


async def test_what_fills_the_buffer_does_not_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    """With ``when_full = "raise"`` nobody waits for space, but only answers make space."""
    producer = await producer_of(factory, buffer_messages=10, when_full="raise", **hour)
    futures = await sent(producer, 10)
    await until(lambda: all(future.done() for future in futures))
    await sent(producer, 1)


async def test_a_send_that_waits_does_not_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    """Nor do the messages before it, also if they lingered already."""
    producer = await producer_of(factory, **hour)
    async with asyncio.timeout(WAIT_S):
        await producer.send(Message("t", b"alone"))
        (before,) = await sent(producer, 1)
        await runs_of_the_sender(producer, 3)
        assert not before.done()
        await producer.send(Message("t", b"waits"))
    assert before.done()


async def test_a_blocking_send_does_not_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, **hour)
    core = core_of(producer)
    (before,) = await sent(producer, 1)
    await runs_of_the_sender(producer, 3)
    with in_thread(lambda: core.send_blocking(Message("t", b"x"), HOUR_S)) as sending:
        await until(sending.done)
    assert before.done()


async def test_a_message_for_which_a_thread_waits_does_not_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, **hour)
    (future,) = await sent(producer, 1)
    got = threading.Event()
    future.add_done_callback(lambda _: got.set())
    await until(got.is_set)


async def test_a_send_that_waits_wakes_the_sender(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    """It is stored at once, not when the sender looks the next time."""
    producer = await producer_of(factory, **hour)
    before = await lingering(producer)
    async with asyncio.timeout(WAIT_S):
        await producer.send(Message("t", b"x"))
    assert before.done()


async def test_a_blocking_send_wakes_the_sender(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, **hour)
    before = await lingering(producer)
    core = core_of(producer)
    with in_thread(lambda: core.send_blocking(Message("t", b"x"), HOUR_S)) as sending:
        await until(sending.done)
    assert before.done()


async def test_a_thread_that_waits_for_space_wakes_the_sender(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, buffer_messages=2, **hour)
    core = core_of(producer)
    await lingering(producer)
    await sent(producer, 1)
    with in_thread(lambda: core.append_any(Message("t", b"x"))) as sending:
        await until(sending.done)
    await producer.close()


@pytest.mark.parametrize("way", ["send", "send_async"])
async def test_a_task_that_waits_for_space_wakes_the_sender(
    factory: aio.MessageFactory, hour: dict[str, Any], way: str
) -> None:
    producer = await producer_of(factory, buffer_messages=2, **hour)
    await lingering(producer)
    async with asyncio.timeout(WAIT_S):
        await sent(producer, 1)
        await getattr(producer, way)(Message("t", b"x"))
    await producer.close()


@pytest.mark.parametrize("end", ["flush", "close"])
async def test_flush_and_close_let_nothing_linger(
    factory: aio.MessageFactory, hour: dict[str, Any], end: str
) -> None:
    producer = await producer_of(factory, **hour)
    future = await lingering(producer)
    async with asyncio.timeout(WAIT_S):
        await getattr(producer, end)()
    assert future.done()


async def test_a_batch_of_one_call_does_not_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, **hour)
    async with asyncio.timeout(WAIT_S):
        await producer.send_batch([Message("t", b"1"), Message("t", b"2")])


async def test_a_full_buffer_does_not_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, buffer_messages=4, **hour)
    async with asyncio.timeout(WAIT_S):
        await sent(producer, 12)
    await producer.close()


async def test_a_thread_that_waits_for_space_lets_nothing_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, buffer_messages=4, **hour)
    await sent(producer, 4)
    core = core_of(producer)
    with in_thread(lambda: core.append_any(Message("t", b"x"))) as sending:
        await until(sending.done)
    await producer.close()


async def test_a_message_with_little_time_does_not_linger(
    factory: aio.MessageFactory, hour: dict[str, Any]
) -> None:
    producer = await producer_of(factory, **hour)
    future = await producer.send_async(Message("t", b"x"), timeout=HOUR_S - 1)
    await until(future.done)
