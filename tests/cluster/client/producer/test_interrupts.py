"""Ctrl-C anywhere in a send: each message keeps one outcome, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.interrupts import Interrupted, Interrupter
from support.producers import core_of

from vq import MessageProducer, aio
from vq.client.config import ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.core import ProducerCore
from vq.client.producer.intake import appender
from vq.client.producer.send import sender
from vq.client.runtime import LoopThread
from vq.errors import ConnectionCut, InvalidState
from vq.model import Message, SendResult
from vq.remoting.broker_connection import BrokerConnection
from vq.testing.waiting import until
from vq.waits import LoopWork

INSIDE = (
    "vq/client/producer/",
    "vq/client/future.py",
    "vq/remoting/blocking_connection.py",
    "vq/blocking/producer.py",
)
#: A send passes fewer places than this; behind the last one, so many sends in turn pass none.
PLACES_MAX, MISSES_MAX = 2_000, 5


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker and the topic ``t`` of one partition."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        yield cluster


@pytest.fixture
async def core(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ProducerCore]:
    monkeypatch.setattr(sender, "TICK_S", 0.01)
    async with factory_of(cluster) as factory:
        producer = await factory.create_producer()
        await producer.publish("t")
        yield core_of(producer)


@pytest.fixture
def producer(core: ProducerCore) -> Iterator[MessageProducer]:
    """The blocking API of the core."""
    runtime = LoopThread("test")
    yield MessageProducer(core, runtime)
    runtime.stop()


@pytest.fixture(params=["send_sync", "send_batch"])
def send(
    request: pytest.FixtureRequest, producer: MessageProducer
) -> Callable[[bytes], list[SendResult]]:
    """Sends a message, or two, whose contents begin so, and waits."""
    if request.param == "send_sync":
        return lambda content: [producer.send_sync(Message("t", content), 20.0)]
    return lambda content: producer.send_batch(
        [Message("t", content), Message("t", content + b"+")], 20.0
    )


@pytest.fixture(
    params=[
        pytest.param(7, marks=pytest.mark.slow),
        pytest.param(1, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids="step={}".format,
)
def step(request: pytest.FixtureRequest) -> int:
    """One place in so many is tried."""
    return int(request.param)


async def stored(cluster: MemoryCluster) -> list[bytes]:
    """Every message of the partition."""
    found: list[bytes] = []
    async with factory_of(cluster) as factory:
        consumer: aio.MessageConsumer = await factory.create_consumer()
        offset = 0
        while messages := await consumer.get("t", 0, offset, 1 << 20):
            found += [message.content for message in messages]
            offset = messages[-1].next_offset
    return found


async def everywhere(
    core: ProducerCore,
    step: int,
    send: Callable[[Interrupter, int], Awaitable[Any]],
    check: Callable[[], Awaitable[None]],
) -> int:
    """Interrupt ``send`` at every ``step``-th place; return how many were reached.

    The sender on the loop may be faster than the thread, whose way is a shorter one then.
    """
    reached = missed = 0
    for place in range(0, PLACES_MAX, step):
        await until(lambda: core.sender.tick_timer is None and not core.accumulator.awake)
        interrupter = Interrupter(place, *INSIDE)
        try:
            await send(interrupter, place)
        except Interrupted:
            reached += 1
            missed = 0
        else:
            missed += 1
        try:
            await check()
        except BaseException as error:
            error.add_note(f"interrupted at {interrupter.reached}")
            raise
        if missed == MISSES_MAX:
            return reached
    raise AssertionError


def is_idle(core: ProducerCore) -> bool:
    """Whether nothing is left in any queue."""
    return not any(
        queue.owner or queue.claimed or queue.pending or queue.in_flight
        for queue in core.accumulator.queues()
    )


async def settled(core: ProducerCore) -> None:
    """Return once nothing is left; all of the buffer that was used is free again."""
    async with asyncio.timeout(5):
        await core.flush()
    await until(lambda: is_idle(core))
    if appender.COMPILED:  # in Python, the account may be interrupted as well
        assert core.accumulator.waiting()[:2] == (0, 0)


async def test_a_blocking_send_may_be_interrupted_anywhere(
    core: ProducerCore,
    cluster: MemoryCluster,
    step: int,
    send: Callable[[bytes], list[SendResult]],
) -> None:
    """What was appended is stored once; the next send, ``flush`` and ``close`` go on."""

    async def interrupted(interrupter: Interrupter, place: int) -> None:
        await asyncio.to_thread(interrupter.run, lambda: send(b"%d" % place))

    assert await everywhere(core, step, interrupted, lambda: settled(core)) > 150 // step
    last = await asyncio.to_thread(send, b"last")
    async with asyncio.timeout(5):
        await core.close()
    contents = await stored(cluster)
    assert len(contents) == len(set(contents)), "none is stored twice"
    assert contents[-len(last) :] == [b"last", b"last+"][: len(last)]
    for whole in (each for each in contents if each + b"+" in contents):
        assert contents[contents.index(whole) + 1] == whole + b"+", "the order of the call"


class Flusher(Interrupter):
    """A handler that waits for all messages, and does not raise."""

    def __init__(self, place: int, core: ProducerCore, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(place, *INSIDE)
        self.core = core
        self.loop = loop
        self.flushed = False
        self.refused = False

    def handle(self) -> None:
        try:
            self.core.accumulator.check_not_inside()
        except InvalidState:
            self.refused = True
            return
        work: LoopWork[None] = LoopWork()
        self.loop.call_soon_threadsafe(work.begin, self.core.flush())
        self.flushed = work.has_ended(5.0)


async def test_a_handler_may_wait_anywhere_in_a_blocking_send(
    core: ProducerCore,
    cluster: MemoryCluster,
    step: int,
    send: Callable[[bytes], list[SendResult]],
) -> None:
    """It has what it waits for, or an error at once; each message is stored once."""
    loop = asyncio.get_running_loop()
    flushed = refused = missed = count = 0
    for place in range(0, PLACES_MAX, step):
        flusher = Flusher(place, core, loop)
        content = b"%d" % place
        results: list[SendResult] = await asyncio.to_thread(
            flusher.run, lambda content=content: send(content)
        )
        count += len(results)
        assert flusher.flushed or flusher.refused or not flusher.reached, flusher.reached
        flushed += flusher.flushed
        refused += flusher.refused
        await settled(core)
        missed = 0 if flusher.reached else missed + 1
        if missed == MISSES_MAX:
            break
    assert flushed > 20 // step
    assert refused > 20 // step
    contents = await stored(cluster)
    assert len(contents) == len(set(contents)) == count


@pytest.mark.skipif(not appender.COMPILED, reason="the reference holds a lock while it appends")
async def test_a_handler_may_wait_anywhere_in_a_send_that_does_not(
    core: ProducerCore, cluster: MemoryCluster, step: int
) -> None:
    """It always has what it waits for: no step of the append of any message is interrupted."""
    loop = asyncio.get_running_loop()
    flushed = missed = 0
    for place in range(0, PLACES_MAX, step):
        flusher = Flusher(place, core, loop)
        message = Message("t", b"%d" % place, key="no ASCII: é")
        future = await asyncio.to_thread(flusher.run, partial(core.append_any, message))
        assert not flusher.refused, flusher.reached
        flushed += flusher.flushed
        await settled(core)
        assert isinstance(future.outcome, SendResult), flusher.reached
        missed = 0 if flusher.reached else missed + 1
        if missed == MISSES_MAX:
            break
    assert flushed > 10 // step
    contents = await stored(cluster)
    assert len(contents) == len(set(contents)) == place // step + 1


async def test_a_thread_that_is_interrupted_strands_none_of_its_batch(
    core: ProducerCore, cluster: MemoryCluster, step: int
) -> None:
    """Its batch carries the message of another thread, which gets its result."""
    queue = core.accumulator.topics["t"].queues[0]
    outcomes: list[object] = []

    async def send(interrupter: Interrupter, place: int) -> None:
        before = BlockingSendFuture(b"", None, None, 1e9)
        before.leads = True
        queue.owner = before
        message, other = Message("t", b"%d" % place), Message("t", b"other %d" % place)
        async with asyncio.TaskGroup() as group:
            leader = asyncio.ensure_future(
                asyncio.to_thread(interrupter.run, lambda: core.send_blocking(message, 20.0))
            )
            await until(lambda: queue.pending or leader.done())
            count = len(queue.pending)
            sharing = group.create_task(asyncio.to_thread(core.send_blocking, other, 20.0))
            await until(lambda: len(queue.pending) > count)
            core.accumulator.leave(queue, before)
            async with asyncio.timeout(5):
                outcomes.append((await sharing).outcome)
        await leader

    assert await everywhere(core, step, send, lambda: settled(core)) > 150 // step
    assert all(isinstance(each, SendResult) for each in outcomes)
    contents = await stored(cluster)
    assert len(contents) == len(set(contents)), "none is stored twice"


@pytest.mark.parametrize("message", [Message("t", b"x"), Message("t", b"x", key="k")], ids=repr)
async def test_an_append_may_be_interrupted_anywhere(core: ProducerCore, message: Message) -> None:
    """``flush`` ends, and so does every message that was appended."""

    async def send(interrupter: Interrupter, place: int) -> None:
        def append() -> None:
            if core.append(message, told.append, 20.0) is None:
                core.append_any(message, told.append, 20.0)

        await asyncio.to_thread(interrupter.run, append)

    told: Any = []
    assert await everywhere(core, 1, send, lambda: settled(core)) >= 3
    async with asyncio.timeout(5):
        await core.close()


async def test_a_thread_interrupted_again_and_again_leaves_its_queue(core: ProducerCore) -> None:
    """Whatever it did not come to do: the sender takes the queue of a thread that has gone."""
    queue = core.accumulator.topics["t"].queues[0]

    def interrupted(*_: object) -> None:
        raise Interrupted

    with pytest.MonkeyPatch.context() as signals:
        for name in ("leave", "hand_to_sender"):
            signals.setattr(core.accumulator, name, interrupted)
        signals.setattr(core.sender, "check_all", interrupted)
        signals.setattr(core.connections, "borrow", interrupted)
        with pytest.raises(Interrupted):
            await asyncio.to_thread(core.send_blocking, Message("t", b"x"), 20.0)
    assert isinstance(queue.owner, BlockingSendFuture)
    await settled(core)
    await core.close()


def cut(*_: object) -> None:
    raise ConnectionCut("a test")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("where", ["pending", "in flight", "not sent"])
async def test_a_tick_may_be_interrupted_anywhere(
    core: ProducerCore, cluster: MemoryCluster, step: int, where: str, ordered: bool
) -> None:
    """With ``vq.aio`` the loop runs in the main thread: late messages have one outcome each."""
    async with factory_of(cluster) as factory:
        for place in range(0, PLACES_MAX, step):
            producer = await factory.create_producer(ProducerConfig(ordered=ordered))
            core = core_of(producer)
            await producer.publish("t")
            await producer.send(Message("t", b"first"))
            told: list[int] = []

            def submit(number: int, core: ProducerCore = core, told: Any = told) -> SendFuture:
                timeout = 0.0 if number % 2 else 20.0
                message = Message("t", b"%d" % number, key="k")
                return core.append_any(message, lambda *_: told.append(number), timeout)

            core.cluster.ids_ready = where != "pending"
            cluster.flushers["b1"].held = True
            interrupter = Interrupter(place, *INSIDE)
            with pytest.MonkeyPatch.context() as network:
                if where == "not sent":
                    network.setattr(BrokerConnection, "send", cut)
                futures = [submit(number) for number in range(4)]
                core.sender.send_waiting()
                try:
                    interrupter.run(core.sender.tick)
                except Interrupted:
                    pass
                else:
                    break
                finally:
                    core.cluster.ids_ready = True
                    cluster.flushers["b1"].release()
            try:
                await settled(core)
            except BaseException as error:
                error.add_note(f"interrupted at {interrupter.reached}")
                raise
            assert all(future.done() for future in futures), interrupter.reached
            assert sorted(told) == [0, 1, 2, 3], interrupter.reached
            await producer.close()
        assert place > 40
