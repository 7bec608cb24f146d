"""The loop behind the blocking API: what it refuses, and that nobody waits for ever for it."""

import asyncio
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.interrupts import Interrupted, Interrupter
from support.raising_logs import raising_logs
from support.threads import in_thread, spawn

from vq.client.future import CALLBACK_THREADS, SendFuture
from vq.client.runtime import LoopThread
from vq.errors import InvalidArgument, InvalidState, TimedOut
from vq.testing.waiting import WAIT_S, block_until
from vq.waits import LoopWork


@pytest.fixture
def runtime() -> Iterator[LoopThread]:
    runtime = LoopThread("test")
    yield runtime
    runtime.stop()


async def value(result: object) -> object:
    await asyncio.sleep(0)
    return result


def test_results_and_errors_come_back_to_the_caller(runtime: LoopThread) -> None:
    async def fail() -> None:
        raise TimeoutError("of the work itself")

    assert runtime.run(value(5)) == 5
    with pytest.raises(TimeoutError, match="of the work itself"):
        runtime.run(fail(), 5)


def test_work_that_ends_just_at_its_time_has_its_result(
    runtime: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the waiting and the look at what came of it."""

    class Late(LoopWork[int]):
        def has_ended(self, timeout: float | None) -> bool:
            self.call(lambda: 5)
            return False

    def hand_over(work: Any) -> Late:
        work.close()
        return Late()

    monkeypatch.setattr(runtime, "_hand_over", hand_over)
    assert runtime.run(value(5), 0.01) == 5


def test_work_past_its_time_is_cancelled(runtime: LoopThread) -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimedOut, match=r"0\.01 s"):
        runtime.run(work(), 0.01)
    assert ended.wait(WAIT_S)


def test_an_interrupt_ends_a_wait_that_does_not_hear_of_it(
    runtime: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread gets the signal; one that comes just before the wait is as silent."""
    monkeypatch.setattr("vq.waits.SIGNALS_S", 0.01)

    async def interrupt() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # the loop's own thread
        await asyncio.sleep(WAIT_S)

    with pytest.raises(KeyboardInterrupt):
        runtime.run(interrupt())


@pytest.mark.filterwarnings("ignore:coroutine 'value' was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_task", [True, False], ids=["a coroutine", "a function"])
def test_an_interrupt_anywhere_in_a_wait_is_raised_and_leaves_the_loop_going(
    runtime: LoopThread, is_task: bool
) -> None:
    """The loop shares no condition with the thread: one that is left locked would stop it."""

    def wait() -> object:
        return runtime.run(value(5)) if is_task else runtime.call(lambda: time.sleep(0.001) or 5)

    for place in itertools.count():
        interrupter = Interrupter(
            place, "client/runtime.py", "vq/waits.py", f"{os.sep}threading.py", "concurrent/futures"
        )
        if is_task:
            runtime.loop.call_soon_threadsafe(time.sleep, 0.001)
        try:
            found = interrupter.run(wait)
        except Interrupted:
            found = None
        goes_on = threading.Event()
        runtime.loop.call_soon_threadsafe(goes_on.set)
        assert goes_on.wait(WAIT_S), interrupter.reached
        if not interrupter.reached:
            assert found == 5
            break
    assert place > 10


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**400], ids=repr)
def test_an_endless_time_out_is_as_good_as_a_long_one(runtime: LoopThread, timeout: float) -> None:
    assert runtime.run(value(5), timeout) == 5


@pytest.mark.parametrize("timeout", [math.nan, "1"], ids=repr)
def test_a_time_out_that_is_no_number_is_refused(runtime: LoopThread, timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        runtime.run(value(5), timeout)


def test_a_blocking_call_inside_a_callback_is_refused(runtime: LoopThread) -> None:
    """It would wait for itself; so would a wait for a message's outcome."""

    async def callback() -> None:
        with pytest.raises(InvalidState, match="inside a callback"):
            runtime.run(value(1))
        with pytest.raises(InvalidState, match="inside a callback"):
            SendFuture(b"", None, None, 0.0).result()

    runtime.run(callback())


def test_whoever_waits_when_the_loop_stops_is_told(runtime: LoopThread) -> None:
    """Another thread shuts the factory down: nobody is left waiting for ever."""
    begun = threading.Barrier(4)

    async def work() -> None:
        await asyncio.to_thread(begun.wait)
        await asyncio.Event().wait()

    calls = [spawn(lambda: runtime.run(work())) for _ in range(3)]
    begun.wait(WAIT_S)
    runtime.stop()
    for call in calls:
        assert isinstance(call.exception(WAIT_S), InvalidState)
    with pytest.raises(InvalidState, match="shut down"):
        runtime.run(value(1))
    runtime.stop()


def test_callers_that_race_with_the_stop_end(runtime: LoopThread) -> None:
    """Handed over before the last turn of the loop or refused, never lost in between."""
    stop = threading.Event()

    def call() -> int:
        done = 0
        while True:
            try:
                runtime.run(value(1))
            except InvalidState:
                return done
            done += 1
            if done == 50:
                stop.set()

    with in_thread(call) as first, in_thread(call) as second:
        assert stop.wait(WAIT_S)
        runtime.stop()
        assert first.result(WAIT_S) + second.result(WAIT_S) >= 50


def test_a_stopped_thread_no_longer_counts_as_one_that_tells(runtime: LoopThread) -> None:
    """Thread numbers are used again; a later thread must not be refused."""
    ident = runtime._thread.ident
    runtime.run(value(None))
    assert ident in CALLBACK_THREADS
    runtime.stop()
    assert ident not in CALLBACK_THREADS
    runtime._ident = threading.get_ident()  # as if this were that later thread
    with pytest.raises(InvalidState, match="shut down"):
        runtime.check()


FORK = """
import asyncio, os, sys
from vq.client.runtime import LoopThread
from vq.errors import InvalidState

async def one():
    return 1

runtime = LoopThread("test")
assert runtime.run(one()) == 1
told, forgotten, ended = [], [], []
runtime.on_loss(forked=told.append, ended=ended.append)
runtime.on_loss(forked=forgotten.append, ended=forgotten.append)()
child = os.fork()
if child == 0:
    try:
        runtime.run(one())
    except InvalidState as error:
        ok = "open a new one in the child" in str(error) and told == [str(error)] and not forgotten
        own = LoopThread("own")
        ok = ok and own.run(one()) == 1
        own.stop()
        runtime.stop()
        os._exit(0 if ok else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not told
assert runtime.run(one()) == 1, "the parent goes on"
assert not ended
runtime.stop()
assert ended == ["the factory is shut down"]
assert not forgotten
"""


FORK_AND_WAIT = """
import os, threading
from vq.client import future
from vq.client.runtime import LoopThread
from vq.errors import TimedOut
from vq.model import SendResult

runtime = LoopThread("test")
async def one():
    return 1
runtime.run(one())
before = set(future.CALLBACK_THREADS)
future._first_waiter.acquire()  # as another thread of the parent may at any time
child = os.fork()
if child == 0:
    timed_out = []
    def wait():
        pending = future.SendFuture(b"", None, None, 1e9)
        try:
            pending.result(0.01)
        except TimedOut:
            timed_out.append(threading.get_ident())
    for _ in range(4):
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(60)
    os._exit(0 if len(timed_out) == 4 and not future.CALLBACK_THREADS else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert future.CALLBACK_THREADS == before and before, "the parent's thread still tells outcomes"
runtime.stop()
"""


def test_in_a_forked_child_threads_may_wait_for_outcomes() -> None:
    """Whatever identifiers they get, and whatever lock was held."""
    subprocess.run([sys.executable, "-c", FORK_AND_WAIT], check=True, timeout=60)


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def test_a_callback_that_fails_ends_no_loop_whose_log_handler_raises(runtime: LoopThread) -> None:
    """asyncio logs what a callback raised; what the handler raises would end the loop."""

    def fail() -> None:
        raise ValueError("a bug")

    with raising_logs("") as handler:
        runtime.loop.call_soon_threadsafe(fail)
        assert runtime.run(value(7), WAIT_S) == 7
        block_until(lambda: any("a bug" in line for line in handler.lines))


def test_at_the_end_each_loop_is_stopped_whatever_becomes_of_the_others() -> None:
    """Another thread stops one while its last work is waited for."""
    program = """
import asyncio, threading, time
from vq.client import runtime

first, second = runtime.LoopThread("first"), runtime.LoopThread("second")
working, done = threading.Event(), []

async def never() -> None:
    working.set()
    await asyncio.Event().wait()

async def work() -> None:
    await asyncio.sleep(0.2)
    done.append("second")

for each, what in ((first, never), (second, work)):
    each.on_loss(forked=print, ended=lambda _: None, exiting=(what, 60.0))
runtime._OPEN = [first, second]  # in this order

def stop() -> None:
    working.wait()
    first.stop()

threading.Thread(target=stop, daemon=True).start()
runtime._stop_all()
print(done, second.gone)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=WAIT_S, check=False
    )
    assert (ended.stdout, ended.returncode) == (b"['second'] True\n", 0), ended.stderr.decode()


def test_last_work_does_not_wait_for_a_callback_that_never_returns(
    runtime: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback may wait for a lock that the caller holds; the caller gets its turn again."""
    monkeypatch.setattr("vq.client.runtime.LOOK_S", 0.01)
    monkeypatch.setattr("vq.client.runtime.HANGS_S", 0.01)
    held = threading.Lock()
    with held:
        runtime.loop.call_soon_threadsafe(held.acquire)
        with pytest.raises(TimedOut, match="a callback does not return"):
            runtime.finish(lambda: asyncio.sleep(0))


def test_last_work_may_take_long_while_the_loop_runs(
    runtime: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer waits for the outcomes of its messages."""
    monkeypatch.setattr("vq.client.runtime.LOOK_S", 0.01)
    runtime.finish(lambda: asyncio.sleep(0.1))
