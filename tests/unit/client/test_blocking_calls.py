"""Calls that never return take a thread each, and nothing else: not the loop, not the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from vq.client.blocking_calls import BlockingCalls
from vq.testing.waiting import until

WAIT_S = 30.0


async def test_calls_return_or_raise_on_threads_that_are_kept() -> None:
    calls = BlockingCalls(2, "test-calls")
    names = {await calls.run(lambda: threading.current_thread().name, WAIT_S) for _ in range(5)}
    assert names == {"test-calls"}
    with pytest.raises(KeyError):
        await calls.run(lambda: {}[0], WAIT_S)
    assert [each.name for each in threading.enumerate()].count("test-calls") == 1
    calls.close()


async def test_a_call_that_hangs_is_given_up_and_others_go_on() -> None:
    """Up to the bound of threads; each that returns one day is of use again."""
    calls, free, done = BlockingCalls(2, "test-hang"), threading.Event(), []
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await calls.run(lambda: done.append(free.wait()), 0.02)
    with pytest.raises(TimeoutError):
        await calls.run(lambda: done.append("no thread is free"), 0.02)
    free.set()
    assert await asyncio.gather(*(calls.run(lambda n=n: n, WAIT_S) for n in range(9))) == [
        *range(9)
    ]
    await until(lambda: done == [True, True])
    calls.close()


async def test_without_a_thread_to_be_had_a_call_fails_as_one_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever can go on without the call does so; later ones find a thread."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = BlockingCalls(2, "test-none")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="can't start new thread"):
                await calls.run(lambda: 1, WAIT_S)
    assert await asyncio.gather(*(calls.run(lambda n=n: n, WAIT_S) for n in range(5))) == [
        *range(5)
    ]
    calls.close()


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = """
import asyncio, contextlib, threading
from vq.client.blocking_calls import BlockingCalls
async def main():
    with contextlib.suppress(TimeoutError):
        await BlockingCalls(1, "hangs").run(threading.Event().wait, 0.01)
asyncio.run(main())
print("ended")
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert found.stdout == "ended\n"
