"""The producer's core against a broker in memory: every message gets its outcome, once."""

import asyncio
import contextlib
import math
import threading
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import HOST
from support.threads import in_thread
from support.timers import NotedTimers
from support.waiting import WAIT_S, until, until_true

from vq import aio
from vq.client import future as future_module
from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.ids import IdsUsedUp
from vq.client.producer import accumulator, sender
from vq.client.producer import batch as batch_module
from vq.client.producer.blocking_sender import BlockingConnections
from vq.client.producer.core import ProducerCore
from vq.client.producer.partitioner import key_partition
from vq.coordination import topics
from vq.coordination.memory import MemoryCoordinator
from vq.errors import (
    BufferFull,
    Busy,
    ConnectionCut,
    InvalidArgument,
    InvalidState,
    MessageTooLarge,
    NotPublished,
    NotSent,
    OutcomeUnknown,
    PermissionRefused,
    Refused,
    TimedOut,
    UnknownProducer,
    UnknownTopic,
    VqError,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Address, Message, SendResult, TopicPartition, TopicSettings
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import encode_error
from vq.remoting.wire_pb2 import PutRequest, PutResponse

SMALLEST_BUFFER = MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES


async def producer_of(factory: aio.MessageFactory, **settings: Any) -> aio.MessageProducer:
    return await factory.create_producer(ProducerConfig(**settings))


async def published(factory: aio.MessageFactory, **settings: Any) -> ProducerCore:
    producer = await producer_of(factory, **settings)
    await producer.publish("t")
    return producer._core


async def ended(future: SendFuture) -> Any:
    await until(future.done)
    return future.outcome


async def stored(factory: aio.MessageFactory, topic: str = "t", partitions: int = 2) -> list[bytes]:
    """Every message of a topic, partition by partition."""
    found: list[bytes] = []
    for partition in range(partitions):
        found += await stored_in(factory, partition, topic)
    return found


async def stored_in(factory: aio.MessageFactory, partition: int, topic: str = "t") -> list[bytes]:
    """Every message of a partition."""
    consumer = await factory.create_consumer()
    found: list[bytes] = []
    offset = 0
    while messages := await consumer.get(topic, partition, offset, 1 << 20):
        found += [message.content for message in messages]
        offset = messages[-1].next_offset
    return found


def send(core: ProducerCore, message: Message, *args: Any, **options: Any) -> SendFuture:
    """Send as the producers that users see do: plain messages first go to ``append``."""
    if not options:
        callback, timeout = (*args, None, None)[:2]
        future = core.append(message, callback, timeout)
        if future is not None:
            return future
    return core.append_any(message, *args, **options)


def line_of(core: ProducerCore, partition: int = 0) -> Any:
    return core._accumulator.topics["t"].queues[partition]


async def delete_topic(cluster: MemoryCluster, name: str = "t") -> None:
    async with cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, name)


def space(core: ProducerCore) -> int:
    """Bytes that are left in the buffer."""
    return core._accumulator._appender.space


# Outcomes ---------------------------------------------------------------------------------------
async def test_messages_are_stored_and_told_where(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    results = [await producer.send(Message("t", b"%d" % n, key="k")) for n in range(5)]
    assert len({result.partition for result in results}) == 1
    assert sorted(result.offset for result in results) == [result.offset for result in results]
    assert await stored(factory) == [b"0", b"1", b"2", b"3", b"4"]


async def test_callbacks_get_the_result_or_the_error_once(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    told: list[tuple[Any, Any]] = []
    await producer.send_async(Message("t", b"1"), lambda *outcome: told.append(outcome))
    await producer.flush()
    core = producer._core
    core._cluster.ids_ready = False  # nothing can be sent now
    await producer.send_async(Message("t", b"2"), lambda *outcome: told.append(outcome), 0.05)
    await until(lambda: len(told) == 2)
    assert told[0][0].partition in {0, 1}
    assert told[0][1] is None
    assert told[1][0] is None
    assert isinstance(told[1][1], NotSent)


class Failed(BaseException):
    """As gevent's time-outs and the failures of test frameworks: no ``Exception``."""


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), Failed(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("make", [accumulator.make_appender, accumulator.PythonAppender])
@pytest.mark.parametrize("stored", [True, False])
async def test_whatever_a_callback_raises_its_neighbours_get_their_outcome(
    factory: aio.MessageFactory,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    make: Any,
    stored: bool,
) -> None:
    """Once; the connection stays, and the buffer gets its space back."""
    monkeypatch.setattr(accumulator, "make_appender", make)
    core = await published(factory)
    await ended(send(core, Message("t", b"first")))
    (connection,) = core._cluster._connections.values()
    core._cluster.ids_ready = stored
    told: list[bytes] = []

    def callback(number: int) -> Any:
        def tell(*_: object) -> None:
            told.append(b"%d" % number)
            if number % 2:
                raise raised

        return tell

    timeout = None if stored else 0.05
    futures = [send(core, Message("t", b"%d" % n), callback(n), timeout) for n in range(6)]
    await core.flush()
    assert {type(future.outcome) for future in futures} == {SendResult if stored else NotSent}
    assert sorted(told) == [b"%d" % n for n in range(6)]
    assert not connection.closed
    assert list(core._cluster._connections.values()) == [connection]
    assert space(core) == core.config.buffer_bytes
    core._cluster.ids_ready = True
    assert (await ended(send(core, Message("t", b"last")))).id > 0
    await core.close()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("t", "text"), InvalidArgument),  # type: ignore[arg-type]
        (Message("t", b"x" * (MESSAGE_BYTES_MAX + 1)), MessageTooLarge),
        (Message("t", b"x", tag=""), InvalidArgument),
        (Message("t", b"x", tag="t" * 256), InvalidArgument),
        (Message("t", b"x", tag="\ud800"), InvalidArgument),
        (Message("t", b"x", tag=b"bytes"), InvalidArgument),  # type: ignore[arg-type]
        (Message("t", b"x", key="\ud800"), InvalidArgument),
        (Message("t", b"x", key=5), InvalidArgument),  # type: ignore[arg-type]
        (Message("t", b"x", headers={"a": 5}), InvalidArgument),  # type: ignore[dict-item]
        (Message("t", b"x", headers={"a": "b" * 40_000}), MessageTooLarge),
        *(
            (Message("t", b"x", **{name: value}), InvalidArgument)
            for name in ("tag", "key", "headers")
            for value in (5, 0, [], ["k"], b"", {1: "a"}, {"a": None})
        ),
        (Message("t", None), InvalidArgument),  # type: ignore[arg-type]
        (Message("t", 5), InvalidArgument),  # type: ignore[arg-type]
        (Message("missing", b"x"), UnknownTopic),
        (Message("bad name", b"x"), InvalidArgument),
        (Message([], b"x"), InvalidArgument),  # type: ignore[arg-type]
        (Message(b"t", b"x"), InvalidArgument),  # type: ignore[arg-type]
        ("hello", InvalidArgument),
        (b"x", InvalidArgument),
        (None, InvalidArgument),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_anything_is_taken(
    factory: aio.MessageFactory, message: Message, error: type[Exception]
) -> None:
    producer = await producer_of(factory)
    with pytest.raises(error):
        await producer.send(message)
    assert space(producer._core) == producer.config.buffer_bytes
    await producer.close()


async def test_a_send_carries_the_epoch_of_the_master_it_was_made_for(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await producer_of(factory)
    await producer.send(Message("t", b"x"))
    await producer.send(Message("t", b"x"))
    master = factory._cluster.routes.master("b1")  # type: ignore[union-attr]
    assert master is not None
    assert {queue.epoch for queue in producer._core._accumulator.topics["t"].queues} == {master[1]}
    assert master[1] > 0
    await producer.close()


async def test_bytes_like_contents_are_copied(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    content = bytearray(b"before")
    message = Message("t", content)  # type: ignore[arg-type]
    future = await producer.send_async(message)
    content[:] = b"behind"
    await ended(future)
    assert await stored(factory) == [b"before"]


async def test_the_bytes_of_a_derived_type_are_those_it_holds(
    factory: aio.MessageFactory,
) -> None:
    """Whatever its methods say: the message would hold up all that stand behind it."""

    class Odd(bytes):
        def __len__(self) -> int:
            return 1

        def __bytes__(self) -> bytes:
            return Odd(bytes(3 << 20))

    core = await published(factory)
    await ended(core.append_any(Message("t", Odd(b"abc"))))
    released = memoryview(b"x")
    released.release()
    with pytest.raises(InvalidArgument, match="released"):
        core.append_any(Message("t", released))  # type: ignore[arg-type]
    await core.close()
    assert await stored(factory) == [b"abc"]


async def test_a_topic_that_is_not_writable_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("frozen", writable=False)
    producer = await producer_of(factory)
    with pytest.raises(PermissionRefused, match="frozen"):
        await producer.send(Message("frozen", b"x"))


async def test_a_topic_must_be_published_before_the_core_takes_anything(
    factory: aio.MessageFactory,
) -> None:
    core = (await producer_of(factory))._core
    with pytest.raises(NotPublished):
        send(core, Message("t", b"x"))


async def test_no_broker_within_the_deadline_means_not_sent(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory, send_timeout_s=600.0)
    cluster.network.kill("b1")
    begin = asyncio.get_running_loop().time()
    outcome = await ended(send(core, Message("t", b"x"), None, 0.2))
    assert isinstance(outcome, Refused), "no connection, hence no doubt"
    assert 0.15 < asyncio.get_running_loop().time() - begin < WAIT_S


async def test_wrong_clock_tells_the_reason_and_heals(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No id can be made; the message is not lost without a word, the next ones are sent."""
    core = await published(factory)
    ids = core._cluster._ids
    assert ids is not None
    with monkeypatch.context() as wrong:
        wrong.setattr(core._cluster.clock, "wall_ms", lambda: 0)
        outcome = await ended(send(core, Message("t", b"x")))
    assert isinstance(outcome, NotSent)
    assert "clock" in str(outcome)
    result = await ended(send(core, Message("t", b"y")))
    assert result.id > 0
    await core.close()


async def test_a_coordinator_that_gave_up_ends_sending_with_its_reason(
    factory: aio.MessageFactory,
) -> None:
    """Without it there will be no ids: nobody waits for a deadline in vain."""
    core = await published(factory)
    assert (await ended(send(core, Message("t", b"before")))).offset > 0
    coordinator = core._cluster.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    coordinator.give_up("its clients died")
    begin = asyncio.get_running_loop().time()
    for _ in range(3):
        outcome = await ended(send(core, Message("t", b"x"), None, 60.0))
        assert isinstance(outcome, NotSent)
        assert "its clients died" in str(outcome)
    assert asyncio.get_running_loop().time() - begin < 5
    assert await stored(factory) == [b"before"]


async def test_a_bug_in_one_queue_stops_neither_the_others_nor_the_deadlines(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = await published(factory)

    def stumble(*_: object) -> None:
        raise RuntimeError("a bug")

    broken, sound = (
        next(key for key in "abcdefgh" if key_partition(key, 2) == number) for number in (0, 1)
    )
    monkeypatch.setattr(line_of(core, 0), "next_to_send", stumble)
    first = send(core, Message("t", b"x", key=broken), None, 0.05)
    second = send(core, Message("t", b"x", key=sound))
    assert isinstance(await ended(first), NotSent)
    assert (await ended(second)).partition == 1
    assert "sending from a queue failed" in caplog.text
    await core.close()


ENDLESS = [math.inf, 1e300, 10**400, 2.0**63]


@pytest.mark.parametrize("timeout", ENDLESS, ids=repr)
async def test_an_endless_time_out_is_as_good_as_a_long_one(
    factory: aio.MessageFactory, timeout: Any
) -> None:
    producer = await producer_of(factory)
    assert (await producer.send(Message("t", b"1"), timeout)).id > 0
    future = await producer.send_async(Message("t", b"2", key="k"), timeout=timeout)
    assert (await ended(future)).id > 0
    assert future.deadline < math.inf
    core = producer._core
    async with asyncio.timeout(WAIT_S):
        await core.wait_for_space(timeout)
    blocking = await asyncio.to_thread(core.send_blocking, Message("t", b"3"), timeout)
    assert blocking.result(0).id > 0
    consumer = await factory.create_consumer()
    assert len(await consumer.get("t", 0, 0, 1 << 20, timeout)) > 0


@pytest.mark.parametrize("timeout", [math.nan, "1", [], None.__class__], ids=repr)
async def test_a_time_out_that_is_no_number_is_refused(
    factory: aio.MessageFactory, timeout: Any
) -> None:
    """Not-a-number most of all: no deadline of its batch would ever pass."""
    producer = await producer_of(factory)
    consumer = await factory.create_consumer()
    for published_before in (False, True):
        for call in (
            producer.send(Message("t", b"x"), timeout),
            producer.send_async(Message("t", b"x"), timeout=timeout),
            producer.send_async(Message("t", b"x", key="k"), timeout=timeout),
            producer._core.wait_for_space(timeout),
            consumer.get("t", 0, 0, 1 << 20, timeout),
        ):
            with pytest.raises(InvalidArgument, match="timeout"):
                await call
        if not published_before:
            await producer.publish("t")
    assert space(producer._core) == producer.config.buffer_bytes


async def test_a_time_out_below_zero_has_gone_by(factory: aio.MessageFactory) -> None:
    core = await published(factory)
    core._cluster.ids_ready = False
    for timeout in (-1, -math.inf, -(10**400), 0):
        assert isinstance(await ended(send(core, Message("t", b"x"), None, timeout)), NotSent)
    assert space(core) == core.config.buffer_bytes


async def test_waiting_for_an_outcome_on_the_loop_is_refused(factory: aio.MessageFactory) -> None:
    """It would keep the loop from getting it."""
    producer = await producer_of(factory)
    for message in (Message("t", b"x"), Message("t", b"x", key="k")):
        future = await producer.send_async(message)
        with pytest.raises(InvalidState, match="event loop"):
            future.result()
        await ended(future)
        assert future.result().id > 0


# Answers and attempts -----------------------------------------------------------------------------
class Wire:
    """A connection whose answers the test gives, in any order and as late as it likes."""

    def __init__(self) -> None:
        self.sent: list[tuple[PutRequest, Any]] = []

    def send(self, command: int, header: bytes, body: bytes, on_reply: Any) -> int:
        assert command == Command.PUT
        self.sent.append((PutRequest.FromString(header), on_reply))
        return len(self.sent)

    def stored(self, number: int, offset: int) -> None:
        header = PutResponse(offset=offset).SerializeToString()
        self.sent[number][1](Frame(Command.PUT, 0, 1, 0, header, b""))

    def refused(self, number: int, error: VqError) -> None:
        status, header = encode_error(error)
        self.sent[number][1](Frame(Command.PUT, status, 1, 0, header, b""))

    def stamps(self, begin: int = 0) -> list[tuple[int, int]]:
        return [(header.producer_epoch, header.sequence) for header, _ in self.sent[begin:]]


@pytest.fixture
def wire(factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(factory._cluster, "live_connection", lambda _: wire)
    return wire


@pytest.mark.parametrize("late", [UnknownProducer("late"), MessageTooLarge("late"), None], ids=repr)
async def test_an_answer_to_an_earlier_attempt_settles_nothing(
    factory: aio.MessageFactory, wire: Wire, late: VqError | None
) -> None:
    """Three batches on their way; the first is refused as of an unknown producer, all are sent
    again under the next epoch, and then come the answers to the first attempts of the others."""
    core = await published(factory, batch_records=1, retry_backoff_s=0.001)
    futures = [core.append_any(Message("t", b"%d" % n, key="k")) for n in range(3)]
    await until(lambda: len(wire.sent) == 3)
    assert wire.stamps() == [(0, 0), (0, 1), (0, 2)]
    wire.refused(0, UnknownProducer("forgotten"))
    await until(lambda: len(wire.sent) == 6)
    assert wire.stamps(3) == [(1, 0), (1, 1), (1, 2)]
    for number in (1, 2):
        if late is None:
            wire.stored(number, 7_000)
        else:
            wire.refused(number, late)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(future.done() for future in futures)
    assert len(wire.sent) == 6
    for number in range(3):
        wire.stored(3 + number, 88 + number)
    assert [future.result(0).offset for future in futures] == [88, 89, 90]
    assert space(core) == core.config.buffer_bytes
    await core.close()


async def test_a_connection_that_takes_no_batch_costs_no_message(
    factory: aio.MessageFactory, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent over one that has just ended, or is full: the batch goes out later."""
    core = await published(factory, retry_backoff_s=0.001)
    timers: Any = NotedTimers(core._sender._loop)
    core._sender._loop = timers
    send_over, refusals = wire.send, [Busy("full"), ConnectionCut("ended")]

    def refuse_at_first(*request: Any) -> int:
        if refusals:
            raise refusals.pop()
        return send_over(*request)

    monkeypatch.setattr(wire, "send", refuse_at_first)
    future = core.append_any(Message("t", b"x"))
    await until(lambda: wire.sent or future.done())
    assert not future.done()
    ((header, _),) = wire.sent
    assert not header.resend, "no copy of it can be stored"
    wire.stored(0, 88)
    assert future.result(0).offset == 88
    watch = core._sender._no_answer
    assert (timers.started(watch), timers.left(watch)) == (3, 0)
    await core.close()


async def test_messages_wait_when_a_burst_has_used_all_ids(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await published(factory)
    take_ids = core._cluster.take_ids
    asked: list[int] = []

    def none_left(count: int) -> list[int]:
        asked.append(count)
        raise IdsUsedUp("all ids up to the mark are used")

    monkeypatch.setattr(core._cluster, "take_ids", none_left)
    future = send(core, Message("t", b"x"))
    await until(lambda: asked)
    assert not future.done()
    monkeypatch.setattr(core._cluster, "take_ids", take_ids)
    assert (await ended(future)).id > 0
    await core.close()


@pytest.mark.parametrize("fate", ["never sent", "no answer", "refused again and again", "one left"])
async def test_a_given_up_send_gives_its_buffer_space_back(
    factory: aio.MessageFactory, wire: Wire, fate: str
) -> None:
    core = await published(factory)
    core._cluster.ids_ready = fate != "never sent"
    message = Message("t", b"x" * 1_000, key="k", headers={"h": "y" * 500})
    futures = [core.append_any(message, None, 0.05) for _ in range(3)]
    if fate == "one left":  # of the same batch
        futures.append(core.append_any(message, None, 60.0))
    assert space(core) < core.config.buffer_bytes - 3 * 1_500
    if fate != "never sent":
        await until(lambda: wire.sent)
    if fate == "refused again and again":
        wire.refused(0, Busy("later"))
    await until(lambda: all(future.done() for future in futures[:3]))
    kept = futures[3].size + MESSAGE_OVERHEAD_BYTES if fate == "one left" else 0
    assert space(core) == core.config.buffer_bytes - kept
    if wire.sent:  # an answer that comes after all gives nothing twice
        if fate != "refused again and again":
            wire.stored(0, 88)
        assert space(core) == core.config.buffer_bytes
    for queue in core._accumulator.topics["t"].queues:
        queue.close(NotSent())
    assert space(core) == core.config.buffer_bytes
    await core.close()


async def test_a_blocking_send_that_is_given_up_gives_its_buffer_space_back(
    factory: aio.MessageFactory,
) -> None:
    core = await published(factory)
    core._cluster.ids_ready = False
    message = Message("t", b"x" * 1_000, key="k", headers={"h": "y" * 500})
    future = await asyncio.to_thread(core.send_blocking, message, 0.05)
    assert isinstance(future.outcome, NotSent)
    assert space(core) == core.config.buffer_bytes
    await core.close()


# A topic that goes --------------------------------------------------------------------------------
async def test_a_deleted_topic_gives_up_what_waits_for_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    core._cluster.ids_ready = False  # so that it waits
    future = send(core, Message("t", b"x"))
    await delete_topic(cluster)
    assert isinstance(await ended(future), UnknownTopic)
    await core.close()


async def test_a_caller_overtaken_by_the_deletion_is_told(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It waited for space meanwhile; its message must not go where nobody looks again."""
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)
    core._cluster.ids_ready = False
    send(core, Message("t", b"x" * MESSAGE_BYTES_MAX), None, 30.0)
    with in_thread(lambda: send(core, Message("t", b"y"), None, 30.0)) as waiting:
        await until(lambda: core._accumulator._waiting)
        await delete_topic(cluster)
        assert isinstance(await asyncio.to_thread(waiting.exception, WAIT_S), NotPublished)
    assert space(core) == core.config.buffer_bytes
    await core.flush()


async def test_plain_messages_are_taken_at_once(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """While their topic is published and their tag is known; ``append_any`` takes any."""
    core = await published(factory)
    plain, tagged = Message("t", b"1"), Message("t", b"2", "tag")
    assert core.append(tagged, None, None) is None, "a tag is checked once"
    futures = [
        core.append_any(tagged),
        core.append(plain, None, None),
        core.append(tagged, None, None),
    ]
    for future in futures:
        assert future is not None
        assert (await ended(future)).offset >= 0
    assert sorted(await stored(factory)) == [b"1", b"2", b"2"]
    await delete_topic(cluster)
    await until(lambda: "t" not in core._accumulator.topics)
    assert core.append(plain, None, None) is None


async def test_a_smaller_bound_of_a_topic_reaches_append(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    async with cluster.admin() as coordinator:
        view = await topics.describe_topic(coordinator, "t")
        smaller = replace(view.settings, max_message_bytes=100)
        await topics.change_settings(coordinator, "t", smaller)
    await until(lambda: core._accumulator.topics["t"].content_bytes_max == 100)
    assert core.append(Message("t", b"x" * 101), None, None) is None
    future = core.append(Message("t", b"x" * 100), None, None)
    assert future is not None
    assert (await ended(future)).offset >= 0


async def test_a_topic_made_again_is_another_topic(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer partitions, too; even when the picture changes in one step."""
    producer = await producer_of(factory)
    for _ in range(4):
        await producer.send(Message("t", b"old"))
    core = producer._core
    watcher = core._cluster._watcher
    publish = watcher._publish_topic
    monkeypatch.setattr(
        watcher, "_publish_topic", lambda name, view: publish(name, view) if view else None
    )
    old = core._accumulator.topics["t"].topic_id
    await delete_topic(cluster)
    await cluster.create_topic("t", partitions=1)
    await until(
        lambda: "t" not in core._accumulator.topics or core._accumulator.topics["t"].topic_id != old
    )
    consumer = await factory.create_consumer()

    async def has_heard() -> bool:
        return not (await consumer.get_bounds("t", 0)).latest

    await until_true(has_heard)  # the broker, of the new topic
    for number in range(4):
        async with asyncio.timeout(WAIT_S):
            await producer.send(Message("t", b"new%d" % number, key=str(number)))
    assert await stored(factory, partitions=1) == [b"new0", b"new1", b"new2", b"new3"]
    await producer.close()


async def test_a_topic_that_goes_while_a_blocking_sender_has_it_waits_for_that_one(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    queue, future = core._accumulator.append_waited(Message("t", b"x"), None)
    future.leads = True
    assert core._accumulator.claim(queue, future)
    await delete_topic(cluster)
    await until(lambda: "t" not in core._accumulator.topics)
    assert queue in core._sender._dropped
    assert not future.done()
    core._accumulator.leave(queue, future)
    assert isinstance(await ended(future), UnknownTopic)
    await until(lambda: not core._sender._dropped)
    await core.close()


# Partitioners -------------------------------------------------------------------------------------
class Chooses:
    def __init__(self, number: int | Exception) -> None:
        self.number = number

    def choose(self, key: str | None, partitions: int, writable: Sequence[int]) -> int:
        if isinstance(self.number, Exception):
            raise self.number
        return self.number


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_partitioner_of_ones_own_is_asked(
    factory: aio.MessageFactory, key: str | None
) -> None:
    producer = await factory.create_producer(partitioner=Chooses(1))
    assert (await producer.send(Message("t", b"x", key=key))).partition == 1


async def test_nothing_is_appended_past_a_partitioner_of_ones_own(
    factory: aio.MessageFactory,
) -> None:
    producer = await factory.create_producer(partitioner=Chooses(1))
    await producer.publish("t")
    assert producer._core.append(Message("t", b"x"), None, None) is None


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(
    ("choice", "error"),
    [(2, InvalidArgument), (-1, InvalidArgument), (ZeroDivisionError(), ZeroDivisionError)],
)
async def test_a_partitioner_that_fails_takes_no_space(
    factory: aio.MessageFactory, choice: Any, error: type[Exception], key: str | None
) -> None:
    """``close`` waits for what was taken: it must not wait for this one."""
    producer = await factory.create_producer(partitioner=Chooses(choice))
    with pytest.raises(error):
        await producer.send(Message("t", b"x", key=key))
    assert space(producer._core) == producer.config.buffer_bytes
    async with asyncio.timeout(WAIT_S):
        await producer.close()


@pytest.mark.parametrize("choice", [0.5, 1.0, "1", None])
async def test_a_partitioner_that_chooses_no_number_is_told(
    factory: aio.MessageFactory, choice: Any
) -> None:
    """Its message would take those before it along, when they are drained."""
    producer = await factory.create_producer(partitioner=Chooses(choice))
    with pytest.raises(InvalidArgument, match="chose partition"):
        await producer.send(Message("t", b"x", key="k"))
    await producer.close()


async def test_a_partitioner_may_send(factory: aio.MessageFactory) -> None:
    """It is called without a lock: it tells another partition what it does, for one."""

    class Sends(Chooses):
        def choose(self, key: str | None, partitions: int, writable: Sequence[int]) -> int:
            if key is not None:
                producer._core.append_any(Message("t", b"note"))
            return 1 if key is None else 0

    producer = await factory.create_producer(partitioner=Sends(0))
    await producer.publish("t")
    with in_thread(lambda: producer._core.append_any(Message("t", b"x", key="k"))) as sending:
        await until(sending.done)
    await producer.close()
    assert await stored(factory) == [b"x", b"note"]


async def test_a_partitioner_that_waits_holds_up_nobody_else(factory: aio.MessageFactory) -> None:
    waiting, go_on = threading.Event(), threading.Event()

    class Waits(Chooses):
        def choose(self, key: str | None, partitions: int, writable: Sequence[int]) -> int:
            if key == "slow":
                waiting.set()
                assert go_on.wait(20)
            return 0

    producer = await factory.create_producer(partitioner=Waits(0))
    await producer.publish("t")
    core = producer._core
    with in_thread(lambda: core.append_any(Message("t", b"2", key="slow"))) as slow:
        await until(waiting.is_set)
        assert (await producer.send(Message("t", b"1", key="k"))).partition == 0
        await producer.flush()
        go_on.set()
        await until(slow.done)
    await producer.close()
    assert await stored(factory) == [b"1", b"2"]


# Finalizers and signal handlers -------------------------------------------------------------------
async def test_whatever_runs_in_the_middle_of_a_send_may_append(
    factory: aio.MessageFactory,
) -> None:
    """A log handler that sends, called by a finalizer, while its thread has the producer's lock."""
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)

    def inside() -> None:
        with core._accumulator.lock:
            core.append_any(Message("t", b"x", key="k"))
            with pytest.raises(InvalidState, match="send_async"):
                core.send_blocking(Message("t", b"y", key="k"))
            core._accumulator._appender.use(SMALLEST_BUFFER)
            with pytest.raises(BufferFull):
                core.append_any(Message("t", b"z", key="k"))
            core._accumulator._appender.use(-SMALLEST_BUFFER)

    with in_thread(inside) as running:
        await until(running.done)
        running.result()
    await core.close()
    assert await stored(factory) == [b"x"]


# The buffer ---------------------------------------------------------------------------------------
async def test_a_full_buffer_makes_senders_wait_and_then_goes_on(
    factory: aio.MessageFactory,
) -> None:
    producer = await producer_of(factory, buffer_bytes=SMALLEST_BUFFER)
    await producer.publish("t")
    core = producer._core
    core._cluster.ids_ready = False
    await producer.send_async(Message("t", b"x" * MESSAGE_BYTES_MAX))
    waiting = [asyncio.create_task(producer.send(Message("t", b"%d" % n))) for n in range(3)]
    with pytest.raises(BufferFull):
        await core.wait_for_space(0.02)
    assert not any(task.done() for task in waiting)
    core._cluster.ids_ready = True
    core._sender.send_waiting()
    await asyncio.gather(*waiting)
    await producer.close()
    assert space(core) == core.config.buffer_bytes


@pytest.mark.parametrize("topics", [1, 8])
async def test_small_messages_fill_the_buffer_by_one_message_too_far_at_most(
    cluster: MemoryCluster, factory: aio.MessageFactory, topics: int
) -> None:
    """However many topics they go to; the sender has no turn in between here."""
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)
    names = ["t", *(f"t{number}" for number in range(1, topics))]
    for name in names[1:]:
        await cluster.create_topic(name)
        await core.publish(name)
    core._cluster.ids_ready = False
    taken = 0
    with contextlib.suppress(BufferFull):
        while taken < SMALLEST_BUFFER:
            send(core, Message(names[taken % topics], b"x" * 100))
            taken += 1
    assert taken == SMALLEST_BUFFER // (100 + MESSAGE_OVERHEAD_BYTES) + 1
    core._cluster.ids_ready = True
    core._sender.send_waiting()
    await core.close()
    assert (
        sum([len(await stored(factory, name, 1)) for name in names[1:]])
        + len(await stored(factory))
        == taken
    )


async def test_order_is_kept_whatever_way_messages_are_taken(factory: aio.MessageFactory) -> None:
    """Plain ones are appended without a lock, the others under it."""
    producer = await producer_of(factory)
    await producer.publish("t")
    core = producer._core
    key = next(key for key in "abcdefgh" if key_partition(key, 2) == 0)
    sizes = [10, 4_000, 8_000, 20, 50_000, 30]
    for number in range(60):
        content = b"%04d" % number + bytes(sizes[number % 6])
        kind: Any = bytearray if number % 5 == 0 else bytes
        send(core, Message("t", kind(content), key=key if number % 7 == 0 else None))
    await producer.flush()
    for partition in range(2):
        found = [content[:4] for content in await stored_in(factory, partition)]
        assert found == sorted(found)
        assert len(found) > 20


async def test_a_callback_that_meets_a_full_buffer_is_told_at_once(
    factory: aio.MessageFactory,
) -> None:
    """It runs where room is made: waiting there would stop everything until the deadline."""
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER, send_timeout_s=30.0)
    core._cluster.ids_ready = False
    send(core, Message("t", b"x" * MESSAGE_BYTES_MAX))
    begin = asyncio.get_running_loop().time()
    with pytest.raises(BufferFull):
        send(core, Message("t", b"y"))
    assert asyncio.get_running_loop().time() - begin < core.config.send_timeout_s / 2
    core._cluster.ids_ready = True
    core._sender.send_waiting()
    await core.close()


async def test_a_thread_that_waits_for_space_is_woken_by_the_end(
    factory: aio.MessageFactory,
) -> None:
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)
    core._cluster.ids_ready = False
    send(core, Message("t", b"x" * MESSAGE_BYTES_MAX), None, 30.0)
    with in_thread(lambda: send(core, Message("t", b"y"), None, 30.0)) as waiting:
        await until(lambda: core._accumulator._waiting)
        closing = asyncio.create_task(core.close())
        await until(lambda: not core._accumulator._waiting)
        core._cluster.ids_ready = True
        core._sender.send_waiting()
        await closing
        assert isinstance(await asyncio.to_thread(waiting.exception, WAIT_S), InvalidState)


async def test_every_thread_that_waits_for_room_goes_on_when_there_is_enough(
    factory: aio.MessageFactory,
) -> None:
    """One outcome makes room for all of them."""
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)
    core._cluster.ids_ready = False
    large = send(core, Message("t", b"x" * MESSAGE_BYTES_MAX), None, 30.0)

    def send_small() -> SendFuture:
        return send(core, Message("t", b"y"), None, 30.0)

    with in_thread(send_small) as one, in_thread(send_small) as two:
        await until(lambda: core._accumulator._waiting == 2)
        core._accumulator.drain()
        large.deadline = 0.0  # the only outcome while both wait
        core._sender._tick()
        assert large.done()
        async with asyncio.timeout(WAIT_S):
            futures = [await asyncio.wrap_future(each) for each in (one, two)]
    core._cluster.ids_ready = True
    core._sender.send_waiting()
    assert [type(await ended(future)) for future in futures] == [SendResult] * 2
    assert space(core) == core.config.buffer_bytes


async def test_a_send_has_one_deadline_for_routes_room_and_outcome(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await producer_of(factory)
    core = producer._core
    publish, wait_for_space, append_any = core.publish, core.wait_for_space, core.append_any
    left: list[float] = []

    async def slow(topic: str) -> None:
        await asyncio.sleep(0.001)
        await publish(topic)

    async def noted_wait(timeout: float | None) -> None:
        assert timeout is not None
        left.append(timeout)
        await asyncio.sleep(0.001)
        await wait_for_space(timeout)

    def noted(message: Message, callback: Any, timeout: float, **options: Any) -> SendFuture:
        left.append(timeout)
        return append_any(message, callback, timeout, **options)

    monkeypatch.setattr(core, "publish", slow)
    monkeypatch.setattr(core, "wait_for_space", noted_wait)
    monkeypatch.setattr(core, "append_any", noted)
    assert (await producer.send(Message("t", b"x"), timeout=30.0)).id > 0
    first, room, outcome = left
    assert first == 30.0 > room > outcome > 0.0


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


HEADERS = {"h": "x" * 3_000}


async def test_headers_count_towards_a_batch(factory: aio.MessageFactory) -> None:
    """2 000 messages with 3 KB of headers each: no batch of them is too large."""
    core = await published(factory)
    futures = [core.append_any(Message("t", b"x", key="k", headers=HEADERS)) for _ in range(2_000)]
    await core.flush()
    assert {type(future.outcome) for future in futures} == {SendResult}
    assert space(core) == core.config.buffer_bytes
    await core.close()


@pytest.mark.parametrize("under_way", [True, False])
@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", headers=HEADERS),
        Message("t", b"x", key="k" * 3_000),
        Message("t", b"x", tag="t" * 255),
        Message("t", b"x" * 1_000),
        Message("t", b""),
    ],
    ids=["headers", "key", "tag", "content", "empty"],
)
async def test_the_buffer_bounds_the_memory_of_what_waits(
    factory: aio.MessageFactory,
    monkeypatch: pytest.MonkeyPatch,
    message: Message,
    under_way: bool,
) -> None:
    """Two and a half times its size at most, whatever the messages are made of."""
    core = await published(factory, buffer_bytes=2 * SMALLEST_BUFFER)
    await ended(core.append_any(message))  # what is made once is there
    if under_way:  # batches are made, and never answered
        monkeypatch.setattr(BrokerConnection, "send", lambda *_: 1)
    else:
        core._cluster.ids_ready = False
    taken = 0
    tracemalloc.start()
    try:
        with pytest.raises(BufferFull):  # noqa: PT012 - until there is no room
            while True:
                copy = message._replace(content=bytes(bytearray(message.content)))
                send(core, copy, None, 60.0)
                taken += 1
                if under_way and taken % 100 == 0:
                    await asyncio.sleep(0)
        _, memory = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken > 100
    assert memory < 2.5 * core.config.buffer_bytes
    core._accumulator.drain()
    for queue in core._accumulator.topics["t"].queues:
        queue.close(NotSent())
    await until(lambda: space(core) == core.config.buffer_bytes)
    await core.close()


async def test_flush_of_nothing_returns_at_once(factory: aio.MessageFactory) -> None:
    core = (await producer_of(factory))._core
    async with asyncio.timeout(WAIT_S):
        await core.flush()


def claimed(core: ProducerCore, future: BlockingSendFuture) -> None:
    """Have a thread send a message just now."""
    queue = line_of(core)
    future.leads = True
    queue.pending.append(future)
    assert core._accumulator.claim(queue, future)
    assert core._accumulator.take(queue) == [future]


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
        turns += len(core._sender._waiters)
    assert not flushing.done()
    assert turns <= 20
    future.fail(NotSent())
    core._sender.on_ended(0, 0)
    async with asyncio.timeout(WAIT_S):
        await flushing


async def test_blocking_connections_end_with_the_mastership_of_their_broker(
    factory: aio.MessageFactory,
) -> None:
    """Except one that a thread is at."""
    core = await published(factory)
    (master,) = (each.address for each in core._cluster.routes.masters.values())
    former, busy = Address("former", 1), Address("busy", 1)
    closed: list[Address] = []

    class Connection:
        def __init__(self, address: Address) -> None:
            self.address = address

        def interrupt(self) -> None: ...

        def close(self) -> None:
            closed.append(self.address)

    connect: Any = Connection

    connections = core._connections = BlockingConnections(connect)
    for address in (master, former):
        made = connections.borrow(address)
        assert made is not None
        connections.give_back(made)
    assert connections.borrow(busy) is not None
    core._cluster._changed()
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
                core._sender.on_ended(0, 0)
            return seen

    claimed(core, Overtaken(b"x", None, None, 1e9))
    async with asyncio.timeout(WAIT_S):
        await core.flush()
    assert core._sender._waiters == {}


async def test_space_between_the_look_and_the_wait_wakes_a_sender(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await published(factory)
    looks = 0

    def overtaken() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            core._sender.on_ended(0, 0)  # another thread made space when this one had looked
        return looks > 1

    monkeypatch.setattr(core._accumulator, "has_space", overtaken)
    async with asyncio.timeout(WAIT_S):
        await core.wait_for_space(60.0)
    assert core._sender._waiters == {}


async def test_a_sender_interrupted_while_it_wakes_the_loop_does_not_put_it_to_sleep(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the main thread: the next message wakes the loop, and both are sent."""
    core = await published(factory)
    await ended(send(core, Message("t", b"first")))
    await until(lambda: not core._accumulator.awake)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as signal:
        loop = SimpleNamespace(call_soon_threadsafe=interrupted)
        signal.setattr(core._sender, "_loop", loop)
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
    await until(lambda: not core._accumulator.awake)
    _, future = core._accumulator.append_waited(Message("t", b"x"), None)
    async with asyncio.timeout(5):
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
    monkeypatch.setattr(batch_module, "report", report)
    core = await published(factory)
    core._cluster.ids_ready = not late
    futures = [
        send(core, Message("t", b"%d" % n), callback, 0.01 if late else 30.0) for n in range(4)
    ]
    async with asyncio.timeout(5):
        await core.flush()
    assert all(each.done() for each in futures)
    assert raised or not late
    await until(lambda: space(core) == core.config.buffer_bytes)
    await core.close()


async def test_the_end_of_the_loop_leaves_nobody_waiting(factory: aio.MessageFactory) -> None:
    """As when a factory's ``shutdown`` is interrupted, and threads still wait for outcomes."""
    core = await published(factory)
    core._cluster.ids_ready = False
    future = send(core, Message("t", b"x"))
    with in_thread(lambda: core.send_blocking(Message("t", b"y"), 30.0)) as sending:
        await until(lambda: sum(len(queue.pending) for queue in core._accumulator.queues()) == 2)
        core.abandon("the factory is shut down")
        await until(sending.done)
        assert isinstance(sending.result().outcome, NotSent)
    assert isinstance(future.outcome, NotSent)
    with pytest.raises(InvalidState, match="shut down"):
        send(core, Message("t", b"z"))
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
    before = len(factory._cluster._listeners)  # type: ignore[union-attr]
    core = await published(factory)
    await ended(send(core, Message("t", b"x")))
    await core.close()
    assert len(core._cluster._listeners) == before
    timer = core._sender._tick_timer
    assert timer is None or timer.cancelled()


async def test_a_producer_that_is_closed_while_it_publishes_takes_nothing(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await producer_of(factory)
    core = producer._core
    track = core._cluster.track

    async def closed_meanwhile(topic: str) -> Any:
        routes = await track(topic)
        await core.close()
        return routes

    monkeypatch.setattr(core._cluster, "track", closed_meanwhile)
    with pytest.raises(InvalidState, match="closed"):
        await producer.publish("t")
    with pytest.raises(InvalidState, match="closed"):
        send(core, Message("t", b"x"))
    assert core._accumulator.topics == {}


async def test_in_a_forked_child_nobody_waits_for_an_answer(factory: aio.MessageFactory) -> None:
    core = await published(factory)
    core._cluster.ids_ready = False
    future = send(core, Message("t", b"x"))
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with core._accumulator.lock:  # by a thread that is not there in the child
            held.set()
            assert forked.wait(20)

    with in_thread(hold):
        assert held.wait(20)
        core.forsake("forked")
        forked.set()
    with pytest.raises(InvalidState, match="forked"):
        future.result(0)
    core._accumulator.topics.clear()


# Brokers that fall silent -------------------------------------------------------------------------
async def test_a_broker_that_falls_silent_is_asked_on_a_new_connection(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host is cut off without a word; what it stored before is not stored twice."""
    monkeypatch.setattr(sender, "_SILENCE_S", 0.05)
    core = await published(factory)
    await ended(send(core, Message("t", b"0", key="k")))
    cluster.network.cut_one_way("b1", HOST)  # it still gets what is sent, its answers are lost
    future = send(core, Message("t", b"1", key="k"))
    client = factory._cluster
    assert client is not None
    await until(lambda: not client._connections)  # given up
    assert not future.done()
    cluster.network.heal()
    assert (await ended(future)).id > 0
    assert await stored(factory) == [b"0", b"1"]


async def test_an_answer_ends_the_watch_for_a_silent_broker(factory: aio.MessageFactory) -> None:
    """It would cut a connection that works, ten seconds after each batch."""
    core = await published(factory)
    timers: Any = NotedTimers(core._sender._loop)
    core._sender._loop = timers
    await ended(send(core, Message("t", b"x")))
    assert (timers.started(core._sender._no_answer), timers.left(core._sender._no_answer)) == (1, 0)


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
    await until(lambda: len(core._accumulator.topics["t"].queues) == 3)
    used = {(await ended(send(core, Message("t", b"x")))).partition for _ in range(6)}
    assert used == {0, 1, 2}


async def test_the_master_of_a_partition_that_is_not_there_is_nobody(
    factory: aio.MessageFactory,
) -> None:
    core = await published(factory)
    for partition in (TopicPartition("t", 9), TopicPartition("gone", 0)):
        assert core._sender.master_of(core._make_queue(partition)) is None


async def test_settings_of_the_topic_are_followed(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("small", max_message_bytes=10)
    producer = await producer_of(factory)
    with pytest.raises(MessageTooLarge, match="at most 10"):
        await producer.send(Message("small", b"x" * 11))
    assert TopicSettings(max_message_bytes=10).max_message_bytes == 10
