"""The producer's core against a broker in memory: every message gets its outcome, once."""

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.key_vectors import KEY_VECTORS
from support.producers import (
    SMALLEST_BUFFER,
    delete_topic,
    ended,
    producer_of,
    published,
    queue_of,
    send,
    space,
    stored,
)
from support.threads import in_thread
from support.timers import NotedTimers
from support.waiting import WAIT_S, until, until_true

from vq import aio
from vq.client.config import MESSAGE_OVERHEAD_BYTES, ConsumerConfig
from vq.client.ids import IdsUsedUp
from vq.client.producer import accumulator
from vq.client.producer.partitioner import key_partition
from vq.coordination import topics
from vq.coordination.memory import MemoryCoordinator
from vq.errors import (
    Busy,
    ConnectionCut,
    InvalidArgument,
    InvalidState,
    MessageTooLarge,
    NotPublished,
    NotSent,
    PermissionRefused,
    Refused,
    UnknownProducer,
    UnknownTopic,
    VqError,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message, SendResult
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import encode_error
from vq.remoting.wire_pb2 import PutRequest, PutResponse
from vq.serializers import Hessian2, Json, Protobuf, Serializer
from vq.store.properties_pb2 import RecordProperties


# Outcomes ---------------------------------------------------------------------------------------
async def test_messages_are_stored_and_told_where(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    results = [await producer.send(Message("t", b"%d" % n, key="k")) for n in range(5)]
    assert len({result.partition for result in results}) == 1
    assert sorted(result.offset for result in results) == [result.offset for result in results]
    assert await stored(factory) == [b"0", b"1", b"2", b"3", b"4"]


async def test_keys_of_every_kind_come_back_from_their_partition(
    factory: aio.MessageFactory,
) -> None:
    producer = await producer_of(factory)
    keys = [vector.key for vector in KEY_VECTORS]
    for key in keys:
        for tag in (None, "tag"):
            for headers in (None, {"a": "b"}):
                message = Message("t", b"x", tag=tag, key=key, headers=headers)
                place = await producer.send(message)
                consumer = await factory.create_consumer(ConsumerConfig())
                [found] = await consumer.get("t", place.partition, place.offset, 1)
                assert (found.key, type(found.key)) == (key, type(key))
                assert (found.tag, found.headers) == (tag, headers)
                assert place.partition == key_partition(key, 2)


@dataclass
class Order:
    id: str
    count: int


@pytest.mark.parametrize(
    ("serializer", "content"),
    [
        (Json(), {"id": "o-1", "count": 3}),
        (Json(), None),
        (Protobuf(RecordProperties), RecordProperties(origin="x")),
        (Hessian2({"com.example.Order": Order}), Order("o-1", 3)),
        (Hessian2(), b"bytes"),
    ],
)
async def test_objects_are_stored_as_the_serializer_writes_them(
    factory: aio.MessageFactory, serializer: Serializer, content: Any
) -> None:
    """Each way to send: bytes are objects to a serializer, too."""
    producer = await producer_of(factory, serializer=serializer)
    await producer.send(Message("t", content))
    await producer.send_async(Message("t", content, tag="tag"))
    await producer.send_async(Message("t", content, key=1001))
    await producer.flush()
    found = await stored(factory)
    assert found == [serializer.dumps(content)] * 3
    assert serializer.loads(found[0]) == content


@pytest.mark.parametrize("content", [math.nan, b"bytes", {1: 2}, Order("o-1", 3)])
async def test_what_a_serializer_refuses_is_not_appended(
    factory: aio.MessageFactory, content: object
) -> None:
    producer = await producer_of(factory, serializer=Json())
    for send_it in (producer.send, producer.send_async):
        with pytest.raises(InvalidArgument, match="cannot be written as JSON") as caught:
            await send_it(Message("t", content))
        assert isinstance(caught.value.__cause__, TypeError | ValueError)
    assert space(producer._core) == producer.config.buffer_bytes
    with pytest.raises(MessageTooLarge, match="message of 1048577 bytes"):
        await producer.send(Message("t", "x" * (MESSAGE_BYTES_MAX - 1)))
    await producer.close()
    assert await stored(factory) == []


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
        (Message("t", b"x", key=1.5), InvalidArgument),  # type: ignore[arg-type]
        (Message("t", b"x", key=True), InvalidArgument),
        (Message("t", b"x", key=2**63), InvalidArgument),
        (Message("t", b"x", key=b"k" * 40_000), MessageTooLarge),
        (Message("t", b"x", headers={"a": 5}), InvalidArgument),  # type: ignore[dict-item]
        (Message("t", b"x", headers={"a": "b" * 40_000}), MessageTooLarge),
        *(
            (Message("t", b"x", **{name: value}), InvalidArgument)
            for name in ("tag", "key", "headers")
            for value in (5, 0, [], ["k"], b"", {1: "a"}, {"a": None})
            if name != "key" or not isinstance(value, int | bytes)
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
    monkeypatch.setattr(queue_of(core, 0), "next_to_send", stumble)
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
    assert [queue in each.queues for each in core._sender._dropped] == [True]
    assert not future.done()
    core._accumulator.leave(queue, future)
    assert isinstance(await ended(future), UnknownTopic)
    await until(lambda: not core._sender._dropped)
    await core.close()
