"""The sender of a whole producer: flush, close, silent brokers, and routes that change."""

import asyncio
import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import HOST
from support.producers import (
    client_of,
    core_of,
    delete_topic,
    ended,
    producer_of,
    published,
    queue_of,
    send,
    space,
    stored,
)
from support.queues import meter_of
from support.threads import in_thread
from support.timers import NotedTimers

from vq import aio
from vq.client import future as future_module
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.core import ProducerCore
from vq.client.producer.queue import futures as passes_module
from vq.client.producer.queue.batch import Ended
from vq.client.producer.queue.partition_queue import PartitionQueue
from vq.client.producer.send import sender
from vq.client.producer.spread.partitioner import key_partition
from vq.coordination.topics import topics
from vq.errors import (
    InvalidState,
    MessageTooLarge,
    NotSent,
    OutcomeUnknown,
    TimedOut,
)
from vq.model import Address, Message, SendResult, TopicPartition, TopicSettings
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import PutRequest
from vq.testing.waiting import WAIT_S, until


# Flush and close ----------------------------------------------------------------------------------
async def test_flush_waits_for_what_was_taken_and_for_nothing_later(
    factory: aio.MessageFactory,
) -> None:
    """Somebody who sends without end does not keep it."""
    core = await published(factory)
    futures = [send(core, Message("t", b"%d" % n)) for n in range(100)]
    sending = True

    def send_again(*_: object) -> None:
        if sending:
            send(core, Message("t", b"again"), send_again)

    for _ in range(10):
        send(core, Message("t", b"again"), send_again)
    async with asyncio.timeout(WAIT_S):
        await core.flush()
    assert all(future.done() for future in futures)
    sending = False
    await core.close()
    assert space(core) == core.config.buffer_bytes


async def test_flush_of_nothing_returns_at_once(factory: aio.MessageFactory) -> None:
    core = core_of(await producer_of(factory))
    async with asyncio.timeout(WAIT_S):
        await core.flush()


def claimed(core: ProducerCore, future: BlockingSendFuture) -> None:
    """Have a thread send a message just now."""
    queue = queue_of(core)
    future.leads = True
    queue.pending.append(future)
    assert core.accumulator.claim(queue, future) == [future]


async def test_flush_sleeps_while_a_blocking_sender_is_at_it(
    factory: aio.MessageFactory,
) -> None:
    """Waiting for another thread's message must not take a whole core."""
    core = await published(factory)
    future = BlockingSendFuture(b"x", None, None, 1e9)
    claimed(core, future)
    turns = 0
    flushing = asyncio.create_task(core.flush())
    for _ in range(20):
        await asyncio.sleep(0)
        turns += len(core.sender.waiters)
    assert not flushing.done()
    assert turns <= 20
    future.fail(NotSent())
    core.sender.on_ended(Ended(0, 0))
    async with asyncio.timeout(WAIT_S):
        await flushing


async def test_blocking_connections_end_with_the_mastership_of_their_broker(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except one that a thread is at."""
    core = await published(factory)
    (master,) = (each.address for each in core.cluster.routes.masters.values())
    former, busy = Address("former", 1), Address("busy", 1)
    closed: list[Address] = []

    class Connection:
        def __init__(self, address: Address) -> None:
            self.address = address

        def interrupt(self) -> None: ...

        def close(self) -> None:
            closed.append(self.address)

    connections = core.connections
    monkeypatch.setattr(connections, "connect", Connection)
    for address in (master, former):
        made = connections.borrow(address)
        assert made is not None
        connections.give_back(made)
    assert connections.borrow(busy) is not None
    core.cluster.changed()
    assert closed == [former]


async def test_an_outcome_between_the_look_and_the_wait_wakes_flush(
    factory: aio.MessageFactory,
) -> None:
    """A blocking sender's own thread gives the outcome, just after ``flush`` looked at it."""
    core = await published(factory)

    class Overtaken(BlockingSendFuture):
        def done(self) -> bool:
            seen = super().done()
            if not seen:
                self.fail(NotSent())
                core.sender.on_ended(Ended(0, 0))
            return seen

    claimed(core, Overtaken(b"x", None, None, 1e9))
    async with asyncio.timeout(WAIT_S):
        await core.flush()
    assert core.sender.waiters == {}


async def test_a_sender_interrupted_while_it_wakes_the_loop_does_not_put_it_to_sleep(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the main thread: the next message wakes the loop, and both are sent."""
    core = await published(factory)
    await ended(send(core, Message("t", b"first")))
    await until(lambda: not core.accumulator.awake)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as signal:
        loop = SimpleNamespace(call_soon_threadsafe=interrupted)
        signal.setattr(core.sender, "loop", loop)
        with pytest.raises(KeyboardInterrupt):
            core.append(Message("t", b"second"), None, None)
    await ended(send(core, Message("t", b"third")))
    assert sorted(await stored(factory)) == [b"first", b"second", b"third"]
    await core.close()


async def test_flush_looks_after_a_message_that_nobody_spoke_of(
    factory: aio.MessageFactory,
) -> None:
    """Ctrl-C between the append and what its thread does next."""
    core = await published(factory)
    await until(lambda: not core.accumulator.awake)
    _, future = core.accumulator.append_waited(Message("t", b"x"), None)
    async with asyncio.timeout(WAIT_S):
        await core.flush()
    assert isinstance(future.outcome, SendResult)
    await core.close()


@pytest.mark.parametrize("late", [False, True])
async def test_logging_that_raises_ends_no_deadline(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """A callback raises, and so does the application's log handler that is told."""

    def report(what: str, error: BaseException) -> None:
        raise OSError("the log is full")

    def callback(*_: object) -> None:
        raise ValueError

    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    monkeypatch.setattr(future_module, "report", report)
    monkeypatch.setattr(passes_module, "report", report)
    core = await published(factory)
    core.cluster.ids_ready = not late
    futures = [
        send(core, Message("t", b"%d" % n), callback, 0.01 if late else 30.0) for n in range(4)
    ]
    async with asyncio.timeout(WAIT_S):
        await core.flush()
    assert all(each.done() for each in futures)
    assert raised or not late
    await until(lambda: space(core) == core.config.buffer_bytes)
    await core.close()


async def test_the_end_of_the_loop_leaves_nobody_waiting(factory: aio.MessageFactory) -> None:
    """As when a factory's ``shutdown`` is interrupted, and threads still wait for outcomes."""
    core = await published(factory)
    core.cluster.ids_ready = False
    future = send(core, Message("t", b"x"))
    with in_thread(lambda: core.send_blocking(Message("t", b"y"), 30.0)) as sending:
        await until(lambda: sum(len(queue.pending) for queue in core.accumulator.queues()) == 2)
        core.abandon("the factory is shut down")
        await until(sending.done)
        assert isinstance(sending.result().outcome, NotSent)
    assert isinstance(future.outcome, NotSent)
    with pytest.raises(InvalidState, match="shut down"):
        send(core, Message("t", b"z"))
    assert space(core) == core.config.buffer_bytes


@pytest.mark.parametrize("closed", [False, True])
async def test_threads_that_lead_when_the_loop_ends_get_their_outcome(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """The loop runs nothing that they schedule: it has stopped, or is closed already."""
    core = await published(factory)
    may_end = [threading.Event(), threading.Event()]
    keys = [next(key for key in "abcdefgh" if key_partition(key, 2) == n) for n in range(2)]

    def call_soon_threadsafe(*_: object) -> None:
        if closed:
            raise RuntimeError("Event loop is closed")

    def exchange(_: int, header: bytes, *__: object) -> Frame:
        may_end[PutRequest.FromString(header).partition].wait(WAIT_S)
        raise ConnectionResetError("interrupted")

    monkeypatch.setattr(core.connections, "borrow", lambda _: SimpleNamespace(exchange=exchange))
    monkeypatch.setattr(core.connections, "give_back", lambda _: None)
    with contextlib.ExitStack() as threads:
        sending = [
            threads.enter_context(
                in_thread(lambda key=key: core.send_blocking(Message("t", b"x", key=key), 0.05))
            )
            for key in keys
        ]
        await until(lambda: all(queue_of(core, n).in_flight for n in range(2)))
        core.abandon("the factory is shut down")
        stopped = SimpleNamespace(call_soon_threadsafe=call_soon_threadsafe)
        monkeypatch.setattr(core.sender, "loop", stopped)
        for each, event in zip(sending, may_end, strict=True):
            event.set()
            await until(each.done)
            assert isinstance(each.result().outcome, OutcomeUnknown)
    assert space(core) == core.config.buffer_bytes


async def test_close_waits_for_every_message_and_refuses_new_ones(
    factory: aio.MessageFactory,
) -> None:
    core = await published(factory)
    futures = [send(core, Message("t", b"%d" % n)) for n in range(100)]
    first = asyncio.create_task(core.close())
    second = asyncio.create_task(core.close())
    await asyncio.sleep(0)
    with pytest.raises(InvalidState, match="closed"):
        send(core, Message("t", b"late"))
    await second
    assert all(future.done() for future in futures), "the second one waits as well"
    await first
    with pytest.raises(InvalidState):
        await core.publish("t")
    assert len(await stored(factory)) == 100


async def test_nothing_is_taken_after_close(factory: aio.MessageFactory) -> None:
    """``send_sync`` would wait for ever for its message."""
    core = await published(factory)
    await core.close()
    with pytest.raises(InvalidState, match="closed"):
        send(core, Message("t", b"x"))
    with pytest.raises(InvalidState, match="closed"):
        core.send_blocking(Message("t", b"x", key="k"))


async def test_close_leaves_neither_timers_nor_listeners(factory: aio.MessageFactory) -> None:
    before = len(client_of(factory).listeners)
    core = await published(factory)
    await ended(send(core, Message("t", b"x")))
    await core.close()
    assert len(core.cluster.listeners) == before
    timer = core.sender.tick_timer
    assert timer is None or timer.cancelled()


async def test_a_producer_that_is_closed_while_it_publishes_takes_nothing(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await producer_of(factory)
    core = core_of(producer)
    track = core.cluster.track

    async def closed_meanwhile(topic: str) -> Any:
        routes = await track(topic)
        await core.close()
        return routes

    monkeypatch.setattr(core.cluster, "track", closed_meanwhile)
    with pytest.raises(InvalidState, match="closed"):
        await producer.publish("t")
    with pytest.raises(InvalidState, match="closed"):
        send(core, Message("t", b"x"))
    assert core.accumulator.topics == {}


async def test_in_a_forked_child_nobody_waits_for_an_answer(factory: aio.MessageFactory) -> None:
    core = await published(factory)
    core.cluster.ids_ready = False
    future = send(core, Message("t", b"x"))
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with core.accumulator.lock:  # by a thread that is not there in the child
            held.set()
            assert forked.wait(20)

    with in_thread(hold):
        assert held.wait(20)
        core.abandon_in_child("forked")
        forked.set()
    with pytest.raises(InvalidState, match="forked"):
        future.result(0)
    core.accumulator.topics.clear()


async def test_a_fork_strands_no_message_between_the_list_of_its_topic_and_its_queue(
    factory: aio.MessageFactory,
) -> None:
    """A thread of the parent had dealt it out and not yet moved it."""
    core = await published(factory)
    core.cluster.ids_ready = False
    future = send(core, Message("t", b"x"))
    queues = core.accumulator.topics["t"]
    queues.drain()
    queue = next(each for each in queues.queues if each.pending)
    queues.shares = [(queue, queue.pending[:])]
    queue.pending.clear()
    core.abandon_in_child("forked")
    assert isinstance(future.outcome, InvalidState)
    core.accumulator.topics.clear()


@pytest.mark.parametrize("case", ["pending", "in flight", "in flight with others", "deleted"])
async def test_a_fork_strands_no_message_that_is_just_given_its_outcome(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Another thread forks while the callback of a message runs that is failed with others."""
    core = await published(factory)
    if case.startswith("in flight"):
        monkeypatch.setattr(BrokerConnection, "send", lambda *_: 1)  # it is never answered
    else:
        core.cluster.ids_ready = False
    futures: list[SendFuture] = []

    def fork(*_: object) -> None:
        core.abandon_in_child("forked")

    bound = 60.0 if case == "deleted" else 0.2
    message = Message("t", b"x", key="same")
    futures = [send(core, message, fork, bound), *(send(core, message, None, bound) for _ in "ab")]
    if case == "in flight with others":
        futures.append(send(core, message, None, 60.0))
    if case == "deleted":
        await delete_topic(cluster)
    await until(futures[0].done)
    for future in futures[1:]:
        assert isinstance(future.outcome, InvalidState), "it waits for ever in the child"
    core.accumulator.topics.clear()


# Brokers that fall silent -------------------------------------------------------------------------
async def test_a_broker_that_falls_silent_is_asked_on_a_new_connection(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host is cut off without a word; what it stored before is not stored twice."""
    monkeypatch.setattr(sender, "SILENCE_S", 0.05)
    core = await published(factory)
    await ended(send(core, Message("t", b"0", key="k")))
    cluster.network.cut_one_way("b1", HOST)  # it still gets what is sent, its answers are lost
    future = send(core, Message("t", b"1", key="k"))
    client = client_of(factory)
    assert client is not None
    (master,) = (each.address for each in client.routes.masters.values())
    await until(lambda: client.connections.live(master) is None)  # given up
    assert not future.done()
    cluster.network.heal()
    assert (await ended(future)).id > 0
    assert await stored(factory) == [b"0", b"1"]


async def test_an_answer_ends_the_watch_for_a_silent_broker(factory: aio.MessageFactory) -> None:
    """It would cut a connection that works, ten seconds after each batch."""
    core = await published(factory)
    timers: Any = NotedTimers(core.sender.loop)
    core.sender.loop = timers
    await ended(send(core, Message("t", b"x")))
    assert (timers.started(core.sender.on_silence), timers.left(core.sender.on_silence)) == (1, 0)


async def test_deadlines_hold_while_the_broker_is_silent(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    await ended(send(core, Message("t", b"0")))
    cluster.network.cut("b1", HOST)
    outcome = await ended(send(core, Message("t", b"1"), None, 0.2))
    assert isinstance(outcome, TimedOut | OutcomeUnknown)
    cluster.network.heal()
    await core.close()


async def test_everything_is_stored_once_and_in_order_over_many_cuts(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory, batch_records=5, retry_backoff_s=0.001)
    futures: list[SendFuture] = []
    for number in range(300):
        futures.append(send(core, Message("t", b"%03d" % number, key="k")))
        if number % 30 == 0:
            await asyncio.sleep(0.002)
            cluster.network.reset_connections(HOST)
    await core.flush()
    assert [type(future.outcome).__name__ for future in futures] == ["SendResult"] * 300
    assert await stored(factory) == [b"%03d" % number for number in range(300)]


# Partitions come and go ---------------------------------------------------------------------------
async def test_turns_follow_new_partitions(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    async with cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 1)
    await until(lambda: len(core.accumulator.topics["t"].queues) == 3)
    used = {(await ended(send(core, Message("t", b"x")))).partition for _ in range(6)}
    assert used == {0, 1, 2}


async def test_the_master_of_a_partition_that_is_not_there_is_nobody(
    factory: aio.MessageFactory,
) -> None:
    core = await published(factory)
    for partition in (TopicPartition("t", 9), TopicPartition("gone", 0)):
        queue = PartitionQueue(partition, core.sender, meter_of())
        assert core.sender.master_of(queue) is None


async def test_settings_of_the_topic_are_followed(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("small", max_message_bytes=10)
    producer = await producer_of(factory)
    with pytest.raises(MessageTooLarge, match="at most 10"):
        await producer.send(Message("small", b"x" * 11))
    assert TopicSettings(max_message_bytes=10).max_message_bytes == 10
