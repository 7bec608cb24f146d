"""``get_many`` from threads: whatever interrupts a call, each message is handed out once."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.inbox import Partition, nothing
from support.interrupts import Interrupted, Interrupter

from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.pull import ThreadPull
from vq.client.runtime import LoopThread
from vq.errors import InvalidArgument
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until


@pytest.fixture
def runtime() -> Iterator[LoopThread]:
    runtime = LoopThread("test")
    yield runtime
    runtime.stop()


class Consumer:
    """One partition of ten messages, to be pulled by threads."""

    def __init__(self, runtime: LoopThread, begin: Callable[[], Awaitable[None]] = nothing) -> None:
        permit = Permit(lambda: 0.0)
        permit.until = 1.0
        self.inbox = Inbox(permit)
        core = cast("ConsumerCore", SimpleNamespace(ensure_started=begin))
        self.pull = ThreadPull(core, self.inbox, runtime)
        self._runtime = runtime
        self.partition = runtime.call(lambda: Partition(self.inbox))
        runtime.call(lambda: self.partition.add(10))

    def get(self, count: int) -> list[bytes]:
        return [message.content for message in self.get_many(count)]

    def get_many(self, count: int) -> list[Message]:
        return self.pull.get_many(count, WAIT_S)

    def close(self) -> int:
        """Close in this thread; return how many messages were consumed."""

        async def nothing_more() -> None: ...

        self._runtime.run(self.pull.closing(nothing_more)())
        return self.partition.delivery.delivered


def contents(*numbers: int) -> list[bytes]:
    return [b"0.%d" % number for number in numbers]


@pytest.mark.filterwarnings("ignore:coroutine 'Pull.get_many' was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_in_a_call_neither_loses_nor_doubles_a_message(
    runtime: LoopThread,
) -> None:
    """What the call before returned is consumed; what this one was to return comes next."""
    places = 0
    for place in itertools.count():
        consumer = Consumer(runtime)
        assert consumer.get(2) == contents(0, 1)
        interrupter = Interrupter(place, "consumer/pull.py", "client/runtime.py")
        found: list[Any] = []
        try:
            found = interrupter.run(lambda of=consumer: of.get_many(2))  # type: ignore[misc]
        except Interrupted:
            places += 1
        following = consumer.get(2)
        if not interrupter.reached:
            assert ([each.content for each in found], following) == (contents(2, 3), contents(4, 5))
            break
        assert following == contents(2, 3), interrupter.reached
    assert places > 10


def test_an_interrupted_beginning_is_begun_again(runtime: LoopThread) -> None:
    """The start of the group takes long; the first call must not take messages for nobody."""
    begun: list[asyncio.Event] = []

    async def begin() -> None:
        begun.append(asyncio.Event())
        if len(begun) == 1:
            await begun[0].wait()

    consumer = Consumer(runtime, begin)
    run = runtime.run

    def interrupted(work: Any, *args: Any) -> Any:
        asyncio.run_coroutine_threadsafe(work, runtime.loop)
        block_until(lambda: begun)
        raise KeyboardInterrupt

    runtime.run = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        consumer.get(2)
    runtime.run = run  # type: ignore[method-assign]
    assert consumer.get(2) == contents(0, 1)
    runtime.loop.call_soon_threadsafe(begun[0].set)
    assert consumer.get(2) == contents(2, 3)
    assert consumer.close() == 4


def test_a_refused_call_leaves_what_is_in_hand(runtime: LoopThread) -> None:
    consumer = Consumer(runtime)
    assert consumer.get(2) == contents(0, 1)
    with pytest.raises(InvalidArgument):
        consumer.get(0)
    assert consumer.close() == 2


def test_what_a_thread_had_when_it_ended_comes_again(runtime: LoopThread) -> None:
    consumer = Consumer(runtime)
    thread = threading.Thread(target=consumer.get, args=(2,))
    thread.start()
    thread.join(WAIT_S)
    assert consumer.get(3) == contents(0, 1, 2)
    consumer.pull.put_down()
    assert consumer.close() == 0
