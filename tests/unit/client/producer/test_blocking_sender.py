"""The blocking way to a broker: whoever leads, and whatever happens to it, nobody is left waiting.

The connection is a script; the loop's side is a list of what was given back to it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from support.threads import in_thread, spawn

from vq.client.config import ProducerConfig
from vq.client.future import SendFuture
from vq.client.producer.batch import Batch
from vq.client.producer.blocking_sender import BlockingConnection, LaneHooks, SyncLane
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.puts import settle
from vq.clock import ManualClock
from vq.errors import (
    Busy,
    InvalidArgument,
    MessageTooLarge,
    NotSent,
    OutcomeUnknown,
    ProtocolError,
    ShuttingDown,
    Unreachable,
    VqError,
)
from vq.model import Address, SendResult, TopicPartition
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import encode_error
from vq.remoting.wire_pb2 import PutRequest, PutResponse


class ScriptedConnection:
    """Answers every batch with the offset 88, unless ``act`` says otherwise."""

    def __init__(self) -> None:
        self.exchanges: list[list[PutRequest]] = []
        self.timeouts: list[float] = []
        self.act: Callable[[list[PutRequest]], list[Frame] | None] = lambda _: None
        self.closed = 0
        self.interrupted = 0

    def exchange(
        self, command: int, requests: list[tuple[bytes, bytes]], timeout: float
    ) -> list[Frame]:
        assert command == Command.PUT
        headers = [PutRequest.FromString(header) for header, _ in requests]
        self.exchanges.append(headers)
        self.timeouts.append(timeout)
        answers = self.act(headers)
        return [stored(88) for _ in headers] if answers is None else answers

    def close(self) -> None:
        self.closed += 1

    def interrupt(self) -> None:
        self.interrupted += 1


def stored(offset: int) -> Frame:
    return Frame(Command.PUT, 0, 1, 0, PutResponse(offset=offset).SerializeToString(), b"")


def refused(error: VqError) -> Frame:
    status, header = encode_error(error)
    return Frame(Command.PUT, status, 1, 0, header, b"")


class Producer:
    """What a lane needs of a producer, and what it did to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clock = ManualClock(monotonic=100.0)
        self.ids = 0
        self.given_back: list[tuple[PartitionQueue, list[SendFuture]]] = []
        self.ended: list[int] = []
        self.connection = ScriptedConnection()
        self.queues = [self.queue(number) for number in range(3)]
        hooks = LaneHooks(
            lock=self.lock,
            now=self.clock.monotonic,
            take_ids=self.take_ids,
            settle=self.settle,
            give_back=self.give_back,
            give_up=self.give_up,
        )
        connection: Any = self.connection
        self.lane = SyncLane(connection, hooks)

    def queue(self, number: int) -> PartitionQueue:
        config = ProducerConfig()
        where = TopicPartition("t", number)
        return PartitionQueue(where, lambda: 7, config, lambda count, _: self.ended.append(count))

    def take_ids(self, count: int) -> list[int]:
        self.ids += count
        return list(range(self.ids - count + 1, self.ids + 1))

    def settle(self, queue: PartitionQueue, batch: Batch, answer: Frame | VqError | None) -> None:
        settle(queue, batch, answer, self.clock.monotonic())

    def give_back(self, queue: PartitionQueue, futures: list[SendFuture]) -> None:
        with self.lock:
            queue.pending += futures
            self.given_back.append((queue, futures))

    def give_up(self, queue: PartitionQueue, future: SendFuture) -> None:
        future.fail(NotSent("too late"))
        self.ended.append(1)

    def resolve_given_back(self) -> None:
        """Play the loop: refuse whatever was given back."""
        for queue in self.queues:
            queue.close(Busy("the loop could not either"))

    def send(self, number: int = 0, *, within: float = 30.0) -> SendFuture:
        """What ``send_blocking`` does once it has chosen the lane."""
        future = SendFuture(b"x", None, None, self.clock.monotonic() + within)
        with self.lock:
            entry = self.lane.join(self.queues[number], future)
        self.lane.run(entry)
        return future

    def until_waiting(self, count: int) -> None:
        """Return once ``count`` messages wait for their turn."""
        deadline = threading.Event()
        for _ in range(2_000):
            with self.lock:
                if len(self.lane._waiting) == count:
                    return
            deadline.wait(0.001)
        raise AssertionError(f"{len(self.lane._waiting)} wait, not {count}")

    @property
    def idle(self) -> bool:
        with self.lock:
            return not (
                self.lane.futures or self.lane._leader or any(queue.held for queue in self.queues)
            )


class Gate:
    """Holds an exchange up until ``open``."""

    def __init__(self, then: Callable[[list[PutRequest]], list[Frame] | None]) -> None:
        self.reached = threading.Event()
        self._go_on = threading.Event()
        self._then = then

    def __call__(self, headers: list[PutRequest]) -> list[Frame] | None:
        self.reached.set()
        assert self._go_on.wait(20)
        return self._then(headers)

    def open(self) -> None:
        self._go_on.set()


def as_usual(_: list[PutRequest]) -> None:
    return None


def once(then: Callable[[list[PutRequest]], list[Frame] | None]) -> Any:
    """Act so for the first exchange, as usual afterwards."""
    acts = iter([then])
    return lambda headers: next(acts, as_usual)(headers)


def raising(error: BaseException) -> Callable[[list[PutRequest]], None]:
    def act(_: list[PutRequest]) -> None:
        raise error

    return act


@pytest.fixture
def producer() -> Iterator[Producer]:
    producer = Producer()
    yield producer
    assert producer.idle, "the lane must be free for the next one"


def test_one_sender_leads_and_returns_with_its_result(producer: Producer) -> None:
    assert producer.send().outcome == SendResult(0, 88, 1)
    assert producer.send().outcome == SendResult(0, 88, 2)
    assert [[(h.partition, h.sequence) for h in each] for each in producer.connection.exchanges] \
        == [[(0, 0)], [(0, 1)]]  # fmt: skip
    assert producer.ended == [1, 1]


def test_what_comes_meanwhile_goes_out_together_one_batch_a_partition(producer: Producer) -> None:
    gate = Gate(as_usual)
    producer.connection.act = once(gate)
    with in_thread(producer.send) as first:
        assert gate.reached.wait(5)
        later = [spawn(lambda number=n % 2: producer.send(number)) for n in range(6)]
        producer.until_waiting(6)
        gate.open()
        results = [each.result(5).result(0) for each in later]
    assert first.result(5).done()
    assert len({result.id for result in results}) == 6
    second = producer.connection.exchanges[1]
    assert sorted((h.partition, h.record_count) for h in second) == [(0, 3), (1, 3)]
    assert len(producer.connection.exchanges) == 2


def test_the_lead_is_handed_over_to_one_that_waits(producer: Producer) -> None:
    """The first one does not serve the others for ever: it returns with its own result."""
    gates = [Gate(as_usual), Gate(as_usual)]
    acts = iter(gates)
    producer.connection.act = lambda headers: next(acts, as_usual)(headers)
    with in_thread(producer.send) as first:
        assert gates[0].reached.wait(5)
        with in_thread(lambda: producer.send(1)) as second:
            producer.until_waiting(1)
            gates[0].open()
            assert first.result(5).done()
            assert gates[1].reached.wait(5), "the second one leads now"
            gates[1].open()
            assert second.result(5).done()


@pytest.mark.parametrize("error", [ConnectionResetError("cut"), TimeoutError(), ProtocolError()])
def test_without_an_answer_the_loop_goes_on_with_the_same_batch(
    producer: Producer, error: Exception
) -> None:
    producer.connection.act = raising(error)
    with in_thread(producer.send) as sending:
        while not producer.given_back:
            threading.Event().wait(0.001)
        (batch,) = producer.queues[0].in_flight
        assert (batch.sent, batch.unknown, batch.stamp.sequence) == (False, True, 0)
        producer.resolve_given_back()
        assert sending.result(5).done()


def test_a_broker_that_stops_after_the_lane_has_sent_leaves_the_outcome_open(
    producer: Producer,
) -> None:
    """It closes the connection with a refusal, but of the connection: the batch may be stored."""
    producer.connection.act = raising(ShuttingDown("broker b1/n1 is stopping"))
    with in_thread(producer.send) as sending:
        while not producer.given_back:
            threading.Event().wait(0.001)
        (batch,) = producer.queues[0].in_flight
        assert (batch.sent, batch.unknown) == (False, True)
        producer.resolve_given_back()
        assert isinstance(sending.result(5).outcome, OutcomeUnknown)


def test_a_broker_that_cannot_be_reached_leaves_no_doubt(producer: Producer) -> None:
    """Nothing was sent, so the message cannot be stored."""
    producer.connection.act = raising(Unreachable("nobody listens"))
    with in_thread(producer.send) as sending:
        while not producer.given_back:
            threading.Event().wait(0.001)
        (batch,) = producer.queues[0].in_flight
        assert (batch.sent, batch.unknown) == (False, False)
        producer.resolve_given_back()
        assert isinstance(sending.result(5).outcome, Unreachable)


def test_what_does_not_fit_into_one_batch_goes_back_to_the_loop(producer: Producer) -> None:
    """Threads that send large messages at the same time: no batch is too large for a broker."""
    queue = producer.queues[0]
    with producer.lock:
        entries = [
            producer.lane.join(queue, SendFuture(bytes(200 << 10), None, None, 1e9))
            for _ in range(4)
        ]
    with ExitStack() as threads:
        for entry in entries[1:]:
            threads.enter_context(in_thread(partial(producer.lane.run, entry)))
        producer.lane.run(entries[0])
        ((header,),) = producer.connection.exchanges
        assert header.record_count == 2
        assert [entry.future.done() for entry in entries] == [True, True, False, False]
        assert queue.pending == [entry.future for entry in entries[2:]]
        assert not queue.held
        producer.resolve_given_back()


def test_a_final_refusal_comes_back_at_once(producer: Producer) -> None:
    producer.connection.act = lambda headers: [refused(MessageTooLarge("no")) for _ in headers]
    assert isinstance(producer.send().outcome, MessageTooLarge)
    assert not producer.given_back


def test_a_reply_that_cannot_be_read_is_no_answer(producer: Producer) -> None:
    producer.connection.act = once(lambda headers: [Frame(Command.PUT, 0, 1, 0, b"\xff\xff", b"")])
    with in_thread(producer.send) as sending:
        while not producer.given_back:
            threading.Event().wait(0.001)
        assert producer.queues[0].in_flight[0].unknown
        producer.resolve_given_back()
        assert sending.result(5).done()


def test_a_queue_the_loop_is_at_goes_back_to_it(producer: Producer) -> None:
    producer.queues[0].busy = True
    with in_thread(producer.send) as sending:
        while not producer.given_back:
            threading.Event().wait(0.001)
        assert len(producer.queues[0].pending) == 1
        assert not producer.connection.exchanges
        producer.resolve_given_back()
        assert isinstance(sending.result(5).outcome, Busy)


def test_ids_that_cannot_be_made_leave_the_message_to_the_loop(producer: Producer) -> None:
    def no_ids(count: int) -> list[int]:
        raise InvalidArgument("the clock is wrong")

    object.__setattr__(producer.lane._hooks, "take_ids", no_ids)
    with in_thread(producer.send) as sending:
        while not producer.given_back:
            threading.Event().wait(0.001)
        assert not producer.queues[0].held
        producer.resolve_given_back()
        assert isinstance(sending.result(5).outcome, Busy)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("a bug")])
def test_a_leader_that_fails_strands_nobody(producer: Producer, error: BaseException) -> None:
    """Ctrl-C in the thread that leads: what it had in hand is given back, another one leads."""
    gate = Gate(raising(error))
    producer.connection.act = once(gate)
    with in_thread(producer.send) as leader:
        assert gate.reached.wait(5)
        with in_thread(lambda: producer.send(1)) as other, in_thread(producer.send) as same:
            producer.until_waiting(2)
            gate.open()
            assert type(leader.exception(5)) is type(error)
            assert other.result(5).outcome == SendResult(1, 88, 2)
            (batch,) = producer.queues[0].in_flight
            assert (batch.sent, batch.unknown) == (False, True), "it is the loop's to send again"
            producer.resolve_given_back()
            assert same.result(5).done()
    assert batch.items[0].done()


def test_a_leader_that_fails_with_several_in_hand_gives_all_back(producer: Producer) -> None:
    gate = Gate(as_usual)
    acts = iter([gate, raising(KeyboardInterrupt())])
    producer.connection.act = lambda headers: next(acts, as_usual)(headers)
    with in_thread(producer.send):
        assert gate.reached.wait(5)
        later = [spawn(lambda number=n: producer.send(number)) for n in range(3)]
        producer.until_waiting(3)
        gate.open()
        while len(producer.given_back) < 3:
            threading.Event().wait(0.001)
    producer.resolve_given_back()
    ends = [type(each.exception(5)).__name__ for each in later]
    assert sorted(ends) == ["KeyboardInterrupt", "NoneType", "NoneType"]


def test_a_sender_that_waits_and_goes_away_does_not_take_the_lead_with_it(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a thread that waits for its turn: the lead passes it by."""
    gate = Gate(as_usual)
    producer.connection.act = once(gate)

    class Interrupted:
        """A lock whose wait is interrupted by a signal handler."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.lock.acquire()

        def acquire(self, timeout: float = -1) -> bool:
            gone.wait(5)
            raise KeyboardInterrupt

        def release(self) -> None:
            self.lock.release()

    gone = threading.Event()

    def interrupted() -> SendFuture:
        future = SendFuture(b"x", None, None, producer.clock.monotonic() + 30)
        with producer.lock:
            entry = producer.lane.join(producer.queues[0], future)
            turn: Any = Interrupted()
            entry.turn, future.waiters = turn, [turn.release]
        producer.lane.run(entry)
        return future

    with in_thread(producer.send) as leader:
        assert gate.reached.wait(5)
        with in_thread(interrupted) as leaving:
            producer.until_waiting(1)
            with in_thread(lambda: producer.send(1)) as behind:
                producer.until_waiting(2)
                gone.set()
                assert isinstance(leaving.exception(5), KeyboardInterrupt)
                gate.open()
                assert leader.result(5).done()
                assert behind.result(5).outcome == SendResult(1, 88, 2)
    assert producer.given_back[0][1], "its message is the loop's now"
    producer.resolve_given_back()


def test_a_sender_given_the_lead_as_it_goes_away_passes_it_on(producer: Producer) -> None:
    future = SendFuture(b"x", None, None, producer.clock.monotonic() + 30)
    with producer.lock:
        first = producer.lane.join(producer.queues[0], future)
    with in_thread(lambda: producer.send(1)) as behind:
        producer.until_waiting(2)
        producer.lane._drop_out(first)
        assert behind.result(5).outcome == SendResult(1, 88, 1)
    producer.resolve_given_back()
    assert future.done()


def test_one_that_waits_past_its_deadline_is_told_it_was_not_sent(producer: Producer) -> None:
    """Whatever the leader's own deadline is."""
    gate = Gate(as_usual)
    producer.connection.act = once(gate)
    with in_thread(producer.send) as leader:
        assert gate.reached.wait(5)
        assert isinstance(producer.send(1, within=0.02).outcome, NotSent)
        gate.open()
        assert leader.result(5).done()
    assert len(producer.connection.exchanges) == 1


def test_a_late_message_in_hand_does_not_spoil_the_exchange_of_the_others(
    producer: Producer,
) -> None:
    """It is left out; the others get their full time."""
    gate = Gate(as_usual)
    producer.connection.act = once(gate)
    with in_thread(producer.send):
        assert gate.reached.wait(5)
        with in_thread(lambda: producer.send(0, within=4)) as late:
            producer.until_waiting(1)
            with in_thread(lambda: producer.send(1, within=9)) as other:
                producer.until_waiting(2)
                producer.clock.advance(5)
                gate.open()
                assert isinstance(late.result(5).outcome, NotSent)
                assert other.result(5).outcome == SendResult(1, 88, 2)
    assert producer.connection.timeouts == [10, 4], "and none longer than the patience of a lane"


def test_closing_interrupts_the_thread_that_leads(producer: Producer) -> None:
    """Its socket is closed by itself; a closed descriptor's number may be somebody else's."""
    gate = Gate(raising(ConnectionResetError("interrupted")))
    producer.connection.act = once(gate)
    with in_thread(producer.send) as leader:
        assert gate.reached.wait(5)
        producer.lane.close()
        assert (producer.connection.interrupted, producer.connection.closed) == (1, 0)
        gate.open()
        while not producer.given_back:
            threading.Event().wait(0.001)
        producer.resolve_given_back()
        assert leader.result(5).done()
    assert producer.connection.closed == 1


def test_closing_an_idle_lane_closes_its_connection(producer: Producer) -> None:
    producer.send()
    producer.lane.close()
    assert (producer.connection.interrupted, producer.connection.closed) == (0, 1)
    with producer.lock:
        assert producer.lane.close_idle()


@pytest.mark.parametrize("threads", [2, 8])
def test_many_threads_each_get_their_own_result(producer: Producer, threads: int) -> None:
    """Every message is sent once, in order per partition, whoever led."""
    offsets = {0: 0, 1: 0, 2: 0}

    def act(headers: list[PutRequest]) -> list[Frame]:
        answers = []
        for header in headers:
            answers.append(stored(offsets[header.partition]))
            offsets[header.partition] += header.record_count * 21
        return answers

    producer.connection.act = act

    def work(number: int) -> list[SendResult]:
        return [producer.send((number + n) % 3).result(0) for n in range(100)]

    with in_thread(lambda: work(0)) as mine:
        others = [spawn(lambda number=n: work(number)) for n in range(1, threads)]
        results = [each for other in (mine, *others) for each in other.result(20)]
    assert len({(each.partition, each.offset) for each in results}) == threads * 100
    assert len({each.id for each in results}) == threads * 100
    stamps = [(h.partition, h.sequence) for each in producer.connection.exchanges for h in each]
    for partition in range(3):
        sequences = [sequence for number, sequence in stamps if number == partition]
        assert sequences == list(range(len(sequences)))
    assert not producer.given_back


@pytest.mark.parametrize(("connect_s", "exchange_s"), [(1e3, 1e6), (1e6, 1e3)])
def test_connecting_has_a_bound_of_its_own_and_that_of_the_message(
    monkeypatch: pytest.MonkeyPatch, connect_s: float, exchange_s: float
) -> None:
    connection = BlockingConnection(Address("b", 1), client_id="c", cluster="c", timeout=connect_s)
    deadlines: list[float] = []

    def connect(deadline: float) -> Any:
        deadlines.append(deadline)
        raise Unreachable("b")

    monkeypatch.setattr(connection, "_connect", connect)
    begin = time.monotonic()
    with pytest.raises(Unreachable):
        connection.exchange(Command.PUT, [(b"", b"")], exchange_s)
    assert begin + 1e3 <= deadlines[0] <= time.monotonic() + 1e3
