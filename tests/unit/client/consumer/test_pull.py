"""``get_many`` from threads: whatever interrupts a call, each message is handed out once."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.delivery import endless
from support.inbox import Partition, nothing
from support.interrupts import Interrupted, Interrupter

from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.pull import Pull, ThreadPull
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
@pytest.mark.parametrize("calls", [1, 2, 3], ids=["on the loop", "at hand", "at hand again"])
def test_an_interrupt_anywhere_in_a_call_neither_loses_nor_doubles_a_message(
    runtime: LoopThread, calls: int
) -> None:
    """What the call before returned is consumed; what this one was to return comes next."""
    places, at = 0, 2 * calls
    for place in itertools.count():
        consumer = Consumer(runtime)
        for number in range(calls):
            assert consumer.get(2) == contents(2 * number, 2 * number + 1)
        interrupter = Interrupter(place, "consumer/pull.py", "client/runtime.py")
        found: list[Any] = []
        try:
            found = interrupter.run(lambda of=consumer: of.get_many(2))  # type: ignore[misc]
        except Interrupted:
            places += 1
        following = consumer.get(2)
        if not interrupter.reached:
            assert [each.content for each in found] == contents(at, at + 1)
            assert following == contents(at + 2, at + 3)
            break
        assert following == contents(at, at + 1), interrupter.reached
    assert places > 5


def test_messages_at_hand_need_no_turn_of_the_loop(runtime: LoopThread) -> None:
    """Lists as long as the one before; the last may be short. Each counts with the next call."""
    consumer = Consumer(runtime)
    assert consumer.get(1) == contents(0)
    assert consumer.get(4) == contents(1, 2, 3, 4)
    go_on, waits = threading.Event(), threading.Event()
    runtime.loop.call_soon_threadsafe(lambda: (waits.set(), go_on.wait(WAIT_S)))
    assert waits.wait(WAIT_S)
    assert consumer.get(4) == contents(5, 6, 7, 8)
    assert consumer.partition.delivery.delivered == 5
    assert consumer.get(4) == contents(9)
    assert consumer.partition.delivery.delivered == 9
    go_on.set()
    assert consumer.close() == 10


def test_another_length_of_a_list_goes_on_where_the_one_before_ended(runtime: LoopThread) -> None:
    consumer = Consumer(runtime)
    found = [consumer.get(count) for count in (1, 2, 2, 3, 1, 1)]
    assert found == [contents(*each) for each in ([0], [1, 2], [3, 4], [5, 6, 7], [8], [9])]
    assert consumer.close() == 10


def test_of_lists_at_hand_the_last_one_is_in_hand(runtime: LoopThread) -> None:
    """For a transaction, for what is put back, and for a thread that has ended."""
    consumer = Consumer(runtime)
    for number in range(3):
        assert consumer.get(2) == contents(2 * number, 2 * number + 1)
    consumer.pull.put_down()
    assert consumer.get(2) == contents(4, 5)
    assert consumer.get(2) == contents(6, 7)
    assert consumer.get(2) == contents(8, 9)
    ((_, messages),) = runtime.call(consumer.inbox.take)
    assert [each.content for each in messages] == contents(8, 9)
    assert consumer.partition.delivery.delivered == 8


def test_lists_at_hand_end_with_the_permit_and_with_a_stop(runtime: LoopThread) -> None:
    consumer = Consumer(runtime)
    for number in range(2):
        assert consumer.get(2) == contents(2 * number, 2 * number + 1)
    until, consumer.inbox.permit.until = consumer.inbox.permit.until, 0.0
    assert consumer.pull.get_many(2, 0.0) == []
    consumer.inbox.permit.until = until
    assert consumer.get(2) == contents(4, 5)
    assert consumer.get(2) == contents(6, 7)
    runtime.call(consumer.partition.stop)
    assert not consumer.partition.stopped, "two are in hand"
    assert consumer.pull.get_many(2, 0.0) == []
    assert consumer.partition.stopped
    assert consumer.partition.delivery.delivered == 8


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


async def called(pull: Pull, call: int, received: int) -> list[bytes]:
    """Call as a thread does, each time in a task of its own."""
    found = pull.at_once(2, call, received)
    if not found:
        found = await asyncio.ensure_future(pull.get_many(2, WAIT_S, call=call, received=received))
    return [each.content for each in found]


@pytest.mark.parametrize("turns", range(7))
async def test_of_calls_that_were_interrupted_one_after_the_other_only_the_last_counts(
    turns: int,
) -> None:
    """The second one was ending the first one when it was interrupted, too."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(1)
    pull = Pull(inbox, nothing)
    assert await called(pull, 1, 0) == contents(0)
    waiting = asyncio.ensure_future(pull.get_many(2, WAIT_S, call=2, received=1))
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(pull.get_many(3, WAIT_S, call=3, received=1))
    for _ in range(turns):
        await asyncio.sleep(0)
    partition.add(4)
    assert await called(pull, 4, 1) == contents(1, 2)
    await asyncio.wait([waiting, ending])
    assert await called(pull, 5, 4) == contents(3, 4)
    assert partition.delivery.delivered == 3


async def test_a_call_goes_on_after_two_that_were_interrupted_while_nothing_came() -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    pull = Pull(inbox, nothing)
    calls = []
    for call in (1, 2, 3):
        calls.append(asyncio.ensure_future(pull.get_many(2, WAIT_S, call=call, received=0)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    partition.add(2)
    assert [each.content for each in await calls[2]] == contents(0, 1)
    assert await calls[1] == []
