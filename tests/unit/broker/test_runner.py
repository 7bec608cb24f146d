"""Lanes with threads: how many calls may wait for one that may never answer."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from support.waiting import until

from vq.broker import runner as module
from vq.broker.runner import Lane, ThreadRunner, wait_at_most


@pytest.fixture
async def runner() -> AsyncIterator[ThreadRunner]:
    runner = ThreadRunner()
    yield runner
    await runner.close()


@pytest.mark.parametrize("lane", [Lane.ELSEWHERE, Lane.UPLOAD])
async def test_calls_that_nobody_waits_for_any_more_do_not_pile_up(
    runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """A place that never answers leaves a call behind for each request that gave up."""
    monkeypatch.setattr(module, "CALLS_MAX", 6)
    free = threading.Event()
    made: list[int] = []

    def call(number: int) -> None:
        free.wait()
        made.append(number)

    try:
        for number in range(20):
            with pytest.raises(TimeoutError, match="no answer" if number < 6 else "6 calls"):
                await wait_at_most(0.001, runner.run(lambda number=number: call(number), lane))
        assert await runner.run(lambda: 7, Lane.READ) == 7
    finally:
        free.set()
    await until(lambda: len(made) == 6)
    await until(lambda: not runner._calls[lane])
    await runner.run(lambda: call(99), lane)
    assert 99 in made


async def test_a_call_that_is_not_waited_for_counts_until_it_has_ended(
    runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is not free before."""
    monkeypatch.setattr(module, "CALLS_MAX", 1)
    free = threading.Event()
    task = asyncio.get_running_loop().create_task(runner.run(free.wait, Lane.UPLOAD))
    await until(lambda: runner._calls[Lane.UPLOAD] == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        await runner.run(free.wait, Lane.UPLOAD)
    free.set()
    await until(lambda: not runner._calls[Lane.UPLOAD])
