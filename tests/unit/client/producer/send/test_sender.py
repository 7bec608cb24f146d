"""The sender on the loop: what wakes it, and what waits for an answer instead."""

import asyncio
import contextvars
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.queues import meter_of

from vq.client.config import ProducerConfig
from vq.client.future import SendFuture
from vq.client.producer.intake.stages import Stages
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.client.producer.send import sender as senders
from vq.client.producer.send.sender import Sender
from vq.client.producer.spread.spread import Ring
from vq.errors import DiskFull, MessageTooLarge, NotMaster, NotSent, VqError
from vq.model import (
    Address,
    Message,
    PartitionPlacement,
    SendResult,
    Span,
    TopicSettings,
)
from vq.remoting.broker_connection import SMALL_BYTES
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import encode_error
from vq.remoting.wire_pb2 import PutRequest, PutResponse
from vq.store.records.format import RECORD_HEADER_BYTES
from vq.testing.waiting import until

HERE = Address("b1", 1)
PARTITIONS = 1_000


class Connection:
    """Notes the batches that are sent; the test answers them."""

    def __init__(self) -> None:
        self.address = HERE
        self.sent: list[PutRequest] = []
        self.takes_small = False
        self.waits = 0.0
        self._callbacks: list[Callable[[Frame], None]] = []

    def waits_s(self) -> float:
        return self.waits

    def send(self, command: int, header: bytes, body: bytes, on_reply: Any) -> None:
        assert command == Command.PUT
        self.sent.append(PutRequest.FromString(header))
        self._callbacks.append(on_reply)

    def afterwards(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def answer(self) -> None:
        """Say that the oldest batch is stored."""
        header = PutResponse(offset=88).SerializeToString()
        self._callbacks.pop(0)(Frame(Command.PUT, 0, 1, 0, header, b""))

    def refuse(self) -> None:
        """Say that the oldest batch is refused for good."""
        status, header = encode_error(MessageTooLarge("no"))
        self._callbacks.pop(0)(Frame(Command.PUT, status, 1, 0, header, b""))


class Loop:
    """The running loop, which counts how often a thread wakes it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken = 0
        self.delays: list[float] = []

    def call_later(self, delay: float, callback: Any, *arguments: Any) -> Any:
        self.delays.append(delay)
        return self._loop.call_later(delay, callback, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, **options: Any) -> None:
        self.woken += 1
        self._loop.call_soon(callback, *arguments, **options)


class Producer:
    """A sender, and topics with a queue per partition."""

    def __init__(self, *topics: str, config: ProducerConfig | None = None) -> None:
        self.connection = Connection()
        self.config = config or ProducerConfig()
        self.now = 100.0
        spans = (Span("b1", 0),)
        views = {
            topic: SimpleNamespace(
                partitions=[PartitionPlacement(topic, n, spans) for n in range(PARTITIONS)]
            )
            for topic in ("t", "u", *topics)
        }
        numbers = itertools.count(1)
        cluster: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.now),
            routes=SimpleNamespace(topics=views, master=lambda _: (HERE, 1)),
            context=contextvars.copy_context(),
            ids_ready=True,
            unreachable={},
            rng=random.Random(1),
            take_ids=lambda count: [next(numbers) for _ in range(count)],
            live_connection=lambda _: self.connection,
            refresh=lambda *_: None,
        )
        self.sender = Sender(cluster, self.config, stages=Stages(self.config), future=SendFuture)
        self.loop: Any = Loop()
        self.sender.loop = self.loop
        for topic in topics:
            self.open(topic)

    def open(self, topic: str, partitions: int = 1) -> None:
        queues = TopicQueues(topic, "id", self.sender, meter_of())
        queues.update(TopicSettings(), partitions, list(range(partitions)))
        self.sender.accumulator.open(queues)

    def send(self, topic: str = "t", size: int = 1) -> SendFuture:
        future = self.sender.accumulator.append(Message(topic, b"x" * size), None, None)
        assert future is not None
        return future

    def count_looks(self) -> Counter[str]:
        """Count from now on how often all topics are looked at for appended messages."""
        accumulator, looks = self.sender.accumulator, Counter[str]()
        drain = accumulator.drain

        def counted() -> Any:
            looks["all"] += 1
            return drain()

        accumulator.drain = counted  # type: ignore[method-assign]
        return looks

    @property
    def counts(self) -> list[int]:
        """How many messages each batch on the wire has."""
        return [header.record_count for header in self.connection.sent]


@pytest.fixture
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest ends by what happens, not by its time."""
    monkeypatch.setattr(senders, "REST_S", 600.0)
    monkeypatch.setattr(senders, "TICK_S", 600.0)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("long_rest")
async def test_while_a_small_batch_is_in_flight_appends_wake_nobody() -> None:
    """They leave as one batch with its answer; each of them would cost the loop an iteration."""
    producer = Producer("t")
    first = producer.send()
    await turn()
    assert (producer.counts, producer.loop.woken) == ([1], 1)
    futures = [producer.send() for _ in range(20)]
    await turn()
    assert (producer.counts, producer.loop.woken) == ([1], 1)
    producer.connection.answer()
    await turn()
    assert producer.counts == [1, 20]
    producer.connection.answer()
    await turn()
    assert all(isinstance(each.outcome, SendResult) for each in [first, *futures])
    producer.send()
    assert producer.loop.woken == 2, "nothing is in flight: it is sent at once"
    producer.sender.close()


@pytest.mark.usefixtures("long_rest")
async def test_no_append_waits_for_the_answer_of_another_partition() -> None:
    producer = Producer("t", "u")
    producer.send("t")
    await turn()
    producer.send("u")
    await turn()
    assert [header.topic for header in producer.connection.sent] == ["t", "u"]
    producer.sender.close()


@pytest.mark.usefixtures("long_rest")
async def test_many_messages_do_not_wait_for_an_answer() -> None:
    """They are worth a batch of their own beside the one in flight."""
    producer = Producer("t")
    for _ in range(400):
        producer.send()
    await turn()
    for _ in range(1_000):
        producer.send()
    await turn()
    assert producer.counts == [400, 1_000]
    producer.sender.close()


async def test_a_rest_ends_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is silent; a topic that was published meanwhile does not wait for it."""
    monkeypatch.setattr(senders, "TICK_S", 600.0)
    producer = Producer("t")
    producer.send()
    await turn()
    producer.open("u")
    producer.send("u")
    await until(lambda: len(producer.connection.sent) == 2)
    producer.sender.close()


async def test_a_rest_is_longer_the_more_queues_are_looked_at_after_it() -> None:
    producer = Producer()
    producer.open("t", PARTITIONS)
    for _ in range(PARTITIONS):
        producer.send()
    await turn()
    assert len(producer.connection.sent) == PARTITIONS
    assert senders.REST_S + 0.1 in producer.loop.delays
    producer.sender.close()


@pytest.mark.usefixtures("long_rest")
async def test_an_answer_of_an_ordered_producer_looks_at_all_topics_once() -> None:
    producer = Producer("t", config=ProducerConfig(ordered=True))
    producer.send()
    await turn()
    looks = producer.count_looks()
    producer.connection.answer()
    await turn()
    assert looks["all"] == 1
    producer.sender.close()


@pytest.mark.usefixtures("long_rest")
async def test_a_tick_looks_at_all_topics_once_however_many_of_them_fail() -> None:
    """With a look for each of them, a tick would cost the square of their number."""
    topics = [f"t{number}" for number in range(20)]
    producer = Producer(*topics, config=ProducerConfig(ordered=True))
    futures = [producer.send(topic) for topic in topics]
    await turn()
    looks = producer.count_looks()
    producer.now += 1_000.0
    producer.sender.tick()
    assert all(isinstance(each.outcome, VqError) for each in futures)
    assert looks["all"] == 1
    producer.sender.close()


@pytest.mark.usefixtures("long_rest")
@pytest.mark.parametrize("cause", ["refusal", "deadline"])
async def test_what_was_just_appended_fails_with_what_is_before_it(cause: str) -> None:
    """It is in the topic's list and in no queue yet when the message before it fails."""
    producer = Producer("t", config=ProducerConfig(ordered=True))
    first = producer.send()
    await turn()
    if cause == "deadline":
        producer.now += 1_000.0
    second = producer.send()
    if cause == "refusal":
        producer.connection.refuse()
    else:
        producer.sender.tick()
    assert isinstance(first.outcome, VqError)
    assert isinstance(second.outcome, NotSent)
    assert "an earlier message" in str(second.outcome)
    await turn()
    assert producer.counts == [1]
    producer.sender.close()


# What raises in one part harms no other -----------------------------------------------------------
def break_spread(producer: Producer) -> None:
    queues = producer.sender.accumulator.topics["t"]

    class Broken(Ring):
        def deal(self, items: list[Any]) -> Any:
            raise IndexError("list index out of range")

    queues.spread = Broken(first=0)


async def test_a_topic_whose_messages_cannot_be_dealt_out_fails_alone() -> None:
    """Its messages fail at once, and it is dropped: the next send publishes it anew."""
    producer = Producer("s", "t", "u")
    break_spread(producer)
    futures = {topic: producer.send(topic) for topic in ("s", "t", "u")}
    await until(lambda: len(producer.connection.sent) == 2)
    assert isinstance(futures["t"].outcome, NotSent)
    assert "IndexError: list index out of range" in str(futures["t"].outcome)
    producer.connection.answer()
    producer.connection.answer()
    assert all(isinstance(futures[topic].outcome, SendResult) for topic in ("s", "u"))
    assert list(producer.sender.accumulator.topics) == ["s", "u"]
    assert not producer.sender.without_outcome()
    assert producer.sender.accumulator.appender.space == producer.config.buffer_bytes
    producer.open("t")
    again = producer.send("t")
    await until(lambda: len(producer.connection.sent) == 3)
    producer.connection.answer()
    assert isinstance(again.outcome, SendResult)
    producer.sender.close()


async def test_a_message_that_cannot_be_encoded_fails_alone() -> None:
    producer = Producer("t")
    futures = [producer.send() for _ in range(3)]
    futures[1].content = "text"  # type: ignore[assignment]
    await until(lambda: producer.counts == [2])
    producer.connection.answer()
    assert isinstance(futures[1].outcome, NotSent)
    assert "TypeError" in str(futures[1].outcome)
    assert isinstance(futures[0].outcome, SendResult)
    assert isinstance(futures[2].outcome, SendResult)
    assert producer.sender.accumulator.appender.space == producer.config.buffer_bytes
    producer.sender.close()


async def test_deadlines_hold_whatever_one_queue_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer("s", "t", "u")
    queue = producer.sender.accumulator.topics["t"].queues[0]
    on_tick = queue.on_tick

    def broken(now: float) -> None:
        raise KeyError("t")

    monkeypatch.setattr(queue, "on_tick", broken)
    futures = [producer.send(topic) for topic in ("s", "t", "u")]
    await until(lambda: len(producer.connection.sent) == 3)
    producer.now += 1_000.0
    with pytest.raises(KeyError):
        producer.sender.tick()
    assert all(isinstance(future.outcome, VqError) for future in futures)
    monkeypatch.setattr(queue, "on_tick", on_tick)
    producer.sender.tick()
    producer.sender.close()


@pytest.mark.parametrize("takes_small", [True, False])
async def test_only_small_batches_pass_a_connection_that_waits(takes_small: bool) -> None:
    """As before the first answer; the size of a batch is that of its messages and their headers."""
    producer = Producer("large", "many", "small")
    producer.connection.waits = 9.0
    producer.connection.takes_small = takes_small
    producer.send("large", SMALL_BYTES - RECORD_HEADER_BYTES + 1)
    for _ in range(5):
        producer.send("many", SMALL_BYTES // 5)
    producer.send("small", SMALL_BYTES - RECORD_HEADER_BYTES)
    producer.sender.send_waiting()
    assert [each.topic for each in producer.connection.sent] == ["small"] * takes_small
    producer.connection.waits = 0.0
    producer.sender.send_waiting()
    sent = [each.topic for each in producer.connection.sent]
    assert sorted(sent) == ["large", "many", "small"]
    producer.sender.close()


async def test_a_thread_may_end_its_send_behind_the_end_of_the_loop() -> None:
    """A signal handler shuts the factory down and raises: what it raised comes out."""
    producer = Producer("t")
    sender = producer.sender
    queue = producer.sender.accumulator.queues()[0]
    queue.pending.append(SendFuture(b"x", None, None, math.inf))
    batch = queue.next_to_send(producer.now, lambda count: [1] * count)
    assert batch is not None
    sender.close()
    sender.accumulator.close("the factory was shut down")
    sender.loop = ended = asyncio.new_event_loop()
    ended.close()
    sender.waiters[asyncio.get_running_loop().create_future()] = None
    sender.check_all()
    for error in (DiskFull("full"), NotMaster("moved")):
        sender.apply_answer(queue, batch, error)
    sender.apply_answer(queue, batch, Frame(Command.PUT, 0, 1, 0, stored(), b""))
    assert batch.done


def stored() -> bytes:
    """The header of an answer that says so."""
    return PutResponse(offset=88).SerializeToString()
