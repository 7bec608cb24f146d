"""The coroutines of a local queue; what is shared with threads: tests/unit/local."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import vq
from vq.aio import LocalQueue
from vq.errors import BufferFull, InvalidState
from vq.local import LocalQueueConfig
from vq.testing.waiting import WAIT_S, until


@pytest.fixture(params=["directory", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "jobs" if request.param == "directory" else None


@pytest.fixture
async def queue(directory: Path | None) -> AsyncIterator[LocalQueue]:
    config = LocalQueueConfig(memory_items=5, retries=0, retry_s=0.05, capacity=200)
    async with LocalQueue(directory, config) as opened:
        yield opened


async def taken(queue: LocalQueue) -> bytes:
    item = await queue.take(WAIT_S)
    assert item is not None
    queue.complete(item)
    return item.content


async def test_tasks_put_and_take(queue: LocalQueue) -> None:
    wanted = [b"%d" % number for number in range(100)]

    async def put_all() -> None:
        for content in wanted:
            await queue.put(content)

    putting = asyncio.create_task(put_all())
    assert [await taken(queue) for _ in wanted] == wanted
    await putting
    assert await queue.drain(WAIT_S)


async def test_two_that_drain_are_both_woken_by_the_last_completion(queue: LocalQueue) -> None:
    """And a completion before it does not have them wake each other without an end."""
    await queue.put_many([b"1", b"2"])
    items = await queue.take_many(2)
    draining = [asyncio.create_task(queue.drain(WAIT_S)) for _ in "ab"]
    spaces = queue._core.base.spaces
    await until(lambda: len(spaces.line) == 2)
    queue.complete(items[0])
    assert await queue.take(0.05) is None
    assert len(spaces.line) == 2
    queue.complete(items[1])
    assert await asyncio.gather(*draining) == [True, True]


async def test_many_waiting_takers_get_one_message_each(queue: LocalQueue) -> None:
    takers = [asyncio.create_task(taken(queue)) for _ in range(20)]
    await until(lambda: queue.metrics().takers == 20)
    assert await queue.put(b"0", wait=False)
    assert await queue.put_many([b"%d" % number for number in range(1, 20)], wait=False) == 19
    await queue.flush()
    assert sorted(await asyncio.gather(*takers)) == sorted(b"%d" % n for n in range(20))


async def test_a_cancelled_take_loses_no_message(queue: LocalQueue) -> None:
    waiting = asyncio.create_task(queue.take())
    await until(lambda: queue.metrics().takers == 1)
    waiting.cancel()
    await queue.put(b"x")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await taken(queue) == b"x"


async def test_a_cancelled_take_of_many_loses_none(queue: LocalQueue) -> None:
    """Also what it has taken already, while it reads more from the disk."""
    await queue.put_many([b"%d" % number for number in range(20)])
    for steps in range(8):
        taking = asyncio.ensure_future(queue.take_many(20))
        for _ in range(steps):
            await asyncio.sleep(0)
        if taking.cancel():
            await asyncio.wait([taking])
        else:
            for each in reversed(taking.result()):
                queue.fail(each)
    metrics = queue.metrics
    await until(lambda: metrics().taken == 0)
    found = [await taken(queue) for _ in range(20)]
    assert sorted(found, key=int) == [b"%d" % number for number in range(20)]


async def test_a_failed_message_comes_again_and_a_take_ends_in_time(queue: LocalQueue) -> None:
    await queue.put(b"x", delay_s=0.01, priority=1)
    item = await queue.take(WAIT_S)
    assert item is not None
    queue.extend(item)
    queue.fail(item)
    assert await queue.take(0) is None
    assert await taken(queue) == b"x"


async def test_a_full_queue_waits_for_room(queue: LocalQueue) -> None:
    await queue.put_many([b"x"] * 200)
    with pytest.raises(BufferFull):
        await queue.put(b"y", timeout=0.01, idempotency_key="k")
    putting = asyncio.create_task(queue.put(b"y", idempotency_key="k"))
    await taken(queue)
    assert await putting
    assert not await queue.put(b"y", idempotency_key="k")


async def test_a_queue_that_is_not_open_or_closed_refuses(directory: Path | None) -> None:
    queue = LocalQueue(directory)
    with pytest.raises(InvalidState, match="not open"):
        await queue.put(b"x")
    await queue.open()
    waiting = asyncio.create_task(queue.take())
    await until(lambda: queue.metrics().takers == 1)
    await queue.close()
    with pytest.raises(InvalidState, match="closed"):
        await waiting


async def test_messages_are_looked_at_requeued_and_purged(queue: LocalQueue) -> None:
    await queue.put_many([b"1", b"2"])
    await queue.put(b"later", delay_s=3600)
    found = await queue.peek()
    assert found is not None
    assert found.content == b"1"
    assert [each.message.content for each in await queue.list()] == [b"1", b"2", b"later"]
    assert [each.message.content for each in await queue.list(standing="later")] == [b"later"]
    assert await queue.requeue() == 1
    await until(lambda: queue.metrics().ready == 3)
    assert await queue.purge() == 3
    assert (len(queue), queue.damaged()) == (0, ())


@pytest.fixture
async def factory(tmp_path: Path) -> AsyncIterator[vq.aio.MessageFactory]:
    async with vq.aio.MessageFactory(vq.MessageFactoryConfig(local=str(tmp_path))) as opened:
        yield opened


async def test_a_coroutine_listener_gets_what_a_producer_sends(
    factory: vq.aio.MessageFactory,
) -> None:
    """On the loop; a failed one comes again, and a filter leaves out others."""
    loop, seen, told = asyncio.get_running_loop(), list[tuple[bytes, int]](), list[object]()

    async def listener(message: vq.Message) -> None:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        seen.append((message.content, message.attempts))
        if message.content == b"1" and message.attempts == 1:
            raise ValueError("once")

    producer = await factory.create_producer()
    first = await producer.send(vq.Message("t", b"1", "a"))
    second = await producer.send_async(vq.Message("t", b"2", "a"), lambda *got: told.append(got))
    assert (await second).id > first.id
    await producer.send_batch([vq.Message("t", b"3", "b"), vq.Message("t", b"4", "a")])
    config = vq.ConsumerConfig(group="g", retry_backoff=(0.01, 0.02))
    consumer = await factory.create_consumer(config)
    await consumer.subscribe("t", listener=listener, message_filter="a").start()
    await until(lambda: len(seen) == 4)
    assert seen == [(b"1", 1), (b"1", 2), (b"2", 1), (b"4", 1)]
    await until(lambda: told == [(second.result(), None)])
    with pytest.raises(InvalidState, match="needs a cluster"):
        producer.metrics()


async def test_a_cancelled_future_does_not_keep_the_outcome_from_its_callback(
    factory: vq.aio.MessageFactory,
) -> None:
    """Nothing takes back the message, so it has an outcome, which is told once."""
    told: list[tuple[object, object]] = []
    producer = await factory.create_producer()
    await producer.send(vq.Message("t", b"1"))
    future = await producer.send_async(vq.Message("t", b"2"), lambda *got: told.append(got))
    future.cancel()
    last = await producer.send(vq.Message("t", b"3"))
    await until(lambda: len(told) == 1)
    result, error = told[0]
    assert isinstance(result, vq.SendResult)
    assert (result.id < last.id, error) == (True, None)


async def test_what_is_pulled_counts_with_the_next_call_or_a_close_and_a_cancelled_call_takes_none(
    factory: vq.aio.MessageFactory,
) -> None:
    producer = await factory.create_producer()
    consumer = (await factory.create_consumer(vq.ConsumerConfig(group="g"))).subscribe("t")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await consumer.get_many(1)
    await producer.send_batch([vq.Message("t", b"%d" % n) for n in range(4)])
    async for message in consumer:
        if message.content == b"1":
            break
    assert [each.content for each in await consumer.get_many(1, 1)] == [b"2"]
    await consumer.close()
    again = (await factory.create_consumer(vq.ConsumerConfig(group="g"))).subscribe("t")
    assert [each.content for each in await again.get_many(9, 1)] == [b"3"]
    await again.commit()
    assert await again.get_many(9, 0) == []


async def test_a_listener_that_closes_its_consumer_is_told_so(
    factory: vq.aio.MessageFactory,
) -> None:
    told = asyncio.Event()

    async def listener(_: vq.Message) -> None:
        with pytest.raises(InvalidState, match="waits for it"):
            await consumer.close()
        told.set()

    consumer = await factory.create_consumer(vq.ConsumerConfig(group="g"))
    await consumer.subscribe("t", listener=listener).start()
    await (await factory.create_producer()).send(vq.Message("t", b""))
    async with asyncio.timeout(WAIT_S):
        await told.wait()
