"""The coroutines of a local queue; what is shared with threads: tests/unit/local."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.waiting import WAIT_S, until

from vq.aio import LocalQueue
from vq.errors import BufferFull, InvalidState
from vq.local import LocalQueueConfig


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


async def test_many_waiting_takers_get_one_message_each(queue: LocalQueue) -> None:
    takers = [asyncio.create_task(taken(queue)) for _ in range(20)]
    await until(lambda: queue.metrics().takers == 20)
    assert await queue.put_many([b"%d" % number for number in range(20)]) == 20
    assert sorted(await asyncio.gather(*takers)) == sorted(b"%d" % n for n in range(20))


async def test_a_cancelled_take_loses_no_message(queue: LocalQueue) -> None:
    waiting = asyncio.create_task(queue.take())
    await until(lambda: queue.metrics().takers == 1)
    waiting.cancel()
    await queue.put(b"x")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await taken(queue) == b"x"


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
