"""Lanes with threads: how many calls may wait for one that may never answer."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from vq.broker.base import runner as module
from vq.broker.base.runner import Lane, ThreadRunner, wait_at_most
from vq.testing.waiting import until


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
    await until(lambda: not runner.threads_of(lane, "").calls)
    await runner.run(lambda: call(99), lane)
    assert 99 in made


async def test_a_call_that_is_not_waited_for_counts_until_it_has_ended(
    runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is not free before."""
    monkeypatch.setattr(module, "CALLS_MAX", 1)
    free = threading.Event()
    task = asyncio.get_running_loop().create_task(runner.run(free.wait, Lane.UPLOAD))
    threads = runner.threads_of(Lane.UPLOAD, "")
    await until(lambda: threads.calls == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        await runner.run(free.wait, Lane.UPLOAD)
    free.set()
    await until(lambda: not threads.calls)


@pytest.mark.parametrize("lane", [Lane.ELSEWHERE, Lane.UPLOAD])
async def test_a_place_that_hangs_holds_up_no_other_place(
    runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """Also not one that shares threads with others, since there are too many places."""
    monkeypatch.setattr(module, "PLACES_MAX", 2)
    free = threading.Event()
    try:
        for _ in range(lane.threads):
            with pytest.raises(TimeoutError):
                await wait_at_most(0.001, runner.run(free.wait, lane, "a"))
        for number in range(5):  # one that is idle makes room for the next
            assert await runner.run(lambda: 7, lane, f"b{number}") == 7
        with pytest.raises(TimeoutError):
            await wait_at_most(0.001, runner.run(free.wait, lane, "c"))
        assert await runner.run(lambda: 8, lane, "d") == 8
        assert await runner.run(lambda: 9, lane) == 9
    finally:
        free.set()


async def test_a_place_that_hangs_for_long_is_asked_no_more_until_it_answers(
    runner: ThreadRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls that hang are the probe."""
    free = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            await wait_at_most(0.001, runner.run(free.wait, Lane.UPLOAD, "a"))
        monkeypatch.setattr(module, "HANGS_S", 0.0)
        threads = runner.threads_of(Lane.UPLOAD, "a")
        await until(lambda: bool(threads.why_not()))
        with pytest.raises(TimeoutError, match="a: no answer for"):
            await runner.run(lambda: 7, Lane.UPLOAD, "a")
        assert await runner.run(lambda: 7, Lane.ELSEWHERE, "a") == 7
    finally:
        free.set()
    await until(lambda: not threads.calls)
    assert await runner.run(lambda: 8, Lane.UPLOAD, "a") == 8
