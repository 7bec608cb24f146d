"""Tasks that vq runs by itself."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

from vq.client.shared_calls import SharedCalls
from vq.tasks import begin_task, in_turns
from vq.testing.loop import VirtualLoop


def run_at_once(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **_: Any
) -> "asyncio.Future[Any]":
    """A task factory that is eager with coroutines that do not wait, as that of Python 3.12 is."""
    ended = loop.create_future()
    try:
        work.send(None)
    except StopIteration as end:
        ended.set_result(end.value)
        return ended
    raise AssertionError("the coroutine waits")


async def test_a_task_begins_after_its_caller_whatever_factory_the_loop_has() -> None:
    steps: list[str] = []

    async def work() -> int:
        steps.append("work")
        return 3

    loop = asyncio.get_running_loop()
    loop.set_task_factory(run_at_once)  # type: ignore[arg-type]
    task = begin_task(work())
    steps.append("caller")
    loop.set_task_factory(None)
    assert await task == 3
    assert steps == ["caller", "work"]


async def test_others_run_while_many_items_are_worked_through() -> None:
    """They wait for so many items at most, and never until the last one."""
    done: list[int] = []
    seen: list[int] = []

    async def other() -> None:
        while len(done) < 25:
            seen.append(len(done))
            await asyncio.sleep(0)

    task = begin_task(other())
    async for each in in_turns(range(25), 10):
        done += [each]
    await task
    assert done == list(range(25))
    assert seen == [10, 20]


async def test_a_shared_call_that_does_not_wait_is_made_again() -> None:
    """With an eager factory its task would be kept, and end every later call with its error."""
    calls = SharedCalls()
    made: list[int] = []

    async def call() -> int:
        made.append(1)
        return len(made)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(run_at_once)  # type: ignore[arg-type]
    try:
        assert [await calls.share(call) for _ in range(3)] == [1, 2, 3]
    finally:
        loop.set_task_factory(None)
    assert calls.tasks() == []


def test_a_simulation_keeps_a_task_that_waits_for_ever() -> None:
    """Of a killed process, its ``finally`` would run after death."""
    ended = list[bool]()

    async def wait_for_ever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    async def run(loop: VirtualLoop) -> None:
        begin_task(wait_for_ever())
        await asyncio.sleep(1)
        gc.collect()
        assert not ended
        me = asyncio.current_task()
        (task,) = [each for each in loop.unfinished() if each is not me]
        task.cancel()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(run(loop))
    finally:
        loop.close()
