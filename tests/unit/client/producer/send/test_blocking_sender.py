"""The blocking sender: whatever happens to a thread that sends, nobody waits for ever.

The connection is a script; the sender on the loop is whoever reads the queues afterwards.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.queues import QueueHost
from support.threads import in_thread, spawn

from vq.client.config import ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.intake import accumulator
from vq.client.producer.intake.accumulator import Accumulator
from vq.client.producer.intake.batch_send import BatchSend
from vq.client.producer.intake.stages import Stages
from vq.client.producer.queue.batch import Batch, Ended
from vq.client.producer.queue.partition_queue import PartitionQueue
from vq.client.producer.send.blocking_sender import BlockingConnections, BlockingSender
from vq.clock import ManualClock
from vq.errors import (
    Busy,
    InvalidArgument,
    InvalidState,
    MessageTooLarge,
    NotSent,
    OutcomeUnknown,
    ProtocolError,
    ShuttingDown,
    Unreachable,
    VqError,
)
from vq.model import Address, Message, SendResult, TopicSettings
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import encode_error
from vq.remoting.wire_pb2 import PutRequest, PutResponse
from vq.testing.waiting import WAIT_S, block_until
from vq.waits import step_aside

BROKER, OTHER = Address("b1", 1), Address("b2", 1)
PARTITIONS = 3


class ScriptedConnection:
    """Answers every batch with the offset 88, unless ``act`` says otherwise."""

    def __init__(self, act: Callable[[PutRequest], Frame | None]) -> None:
        self.act = act
        self.requests: list[PutRequest] = []
        self.timeouts: list[float] = []
        self.closed = 0
        self.interrupted = 0

    def exchange(self, command: int, header: bytes, body: bytes, timeout: float) -> Frame:
        assert command == Command.PUT
        request = PutRequest.FromString(header)
        self.requests.append(request)
        self.timeouts.append(timeout)
        return self.act(request) or stored(88)

    def close(self) -> None:
        self.closed += 1

    def interrupt(self) -> None:
        self.interrupted += 1


def stored(offset: int) -> Frame:
    return Frame(Command.PUT, 0, 1, 0, PutResponse(offset=offset).SerializeToString(), b"")


def refused(error: VqError) -> Frame:
    status, header = encode_error(error)
    return Frame(Command.PUT, status, 1, 0, header, b"")


def as_usual(_: PutRequest) -> None:
    return None


def raising(error: BaseException) -> Callable[[PutRequest], None]:
    def act(_: PutRequest) -> None:
        raise error

    return act


class Gate:
    """Holds an exchange up until ``open``."""

    def __init__(self, then: Callable[[PutRequest], Frame | None] = as_usual) -> None:
        self.reached = threading.Event()
        self._go_on = threading.Event()
        self._then = then

    def __call__(self, request: PutRequest) -> Frame | None:
        self.reached.set()
        assert self._go_on.wait(WAIT_S)
        return self._then(request)

    def open(self) -> None:
        self._go_on.set()


class Connections(BlockingConnections):
    """Those that a test makes."""

    def __init__(self, connect: Callable[[Address], Any]) -> None:
        nobody: Any = None
        super().__init__(nobody)
        self.connect = connect  # type: ignore[method-assign]


class Producer:
    """A blocking sender, and what it asks of the sender on the loop."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic=100.0)
        self.act: Callable[[PutRequest], Frame | None] = as_usual
        self.made: list[ScriptedConnection] = []
        self.master: Address | None = BROKER
        self.woken = 0
        self.message = Message("t", b"x")
        self.appending = threading.Lock()
        self.config = ProducerConfig()
        self.now = self.clock.monotonic
        self.accumulator = Accumulator(
            self.config, self.clock, self.wake, stages=Stages(self.config)
        )
        queues = QueueHost(self.config, on_ended=self.accumulator.give_back).topic()
        queues.update(TopicSettings(), PARTITIONS, list(range(PARTITIONS)))
        self.accumulator.open(queues)
        self.queues = queues.queues
        self.connections = Connections(self.connect)
        self.ids = 0
        on_loop: Any = self
        self.sender = BlockingSender(on_loop, self.connections)

    def master_of(self, _: PartitionQueue) -> Address | None:
        return self.master

    def wake(self) -> None:
        self.woken += 1

    def connect(self, _: Address) -> Any:
        self.made.append(ScriptedConnection(lambda request: self.act(request)))
        return self.made[-1]

    def take_ids(self, count: int) -> list[int]:
        with self.appending:
            self.ids += count
            return list(range(self.ids - count + 1, self.ids + 1))

    def apply_answer(
        self, queue: PartitionQueue, batch: Batch, answer: Frame | VqError | None
    ) -> None:
        queue.apply_answer(batch, answer, self.clock.monotonic())

    def append(self, within: float = 30.0, partition: int = 0) -> BlockingSendFuture:
        with self.appending:
            message = Message("t", self.message.content, key=partition)
            _, future = self.accumulator.append_waited(message, within)
            future.leads = True  # as its thread does next
        return future

    def send(self, within: float = 30.0, partition: int = 0) -> BlockingSendFuture:
        future = self.append(within, partition)
        self.sender.send(self.queues[partition], future)
        return future

    def send_batch(self, *keys: int, content: bytes = b"x", within: float = 30.0) -> list[Any]:
        """Send a message of each key; return the outcomes, None where the loop has the message."""
        with self.appending:
            messages = [Message("t", content, key=key) for key in keys]
            until = self.clock.monotonic() + within
            batch = BatchSend(self.accumulator, self.config, messages, until)
        while not self.sender.append(batch, "t"):
            pass
        return [each.outcome for each in batch.accepted()]

    def until_waiting(self, count: int, partition: int = 0) -> None:
        """Return once so many messages wait in a queue for the thread that leads."""
        block_until(lambda: len(self.queues[partition].pending) >= count)

    def until_left_to_the_loop(self, partition: int = 0) -> PartitionQueue:
        """Return a queue that no thread has any more, once the sender was told."""
        queue = self.queues[partition]
        block_until(lambda: self.woken and queue.owner is None)
        return queue

    def space_left(self) -> int:
        return self.config.buffer_bytes - self.accumulator.appender.space


@pytest.fixture
def producer() -> Iterator[Producer]:
    producer = Producer()
    yield producer
    assert all(queue.owner is None for queue in producer.queues), "nobody may keep a queue"
    for queue in producer.queues:
        queue.close(Busy("the test is over"))
    assert producer.space_left() == 0


def test_a_message_is_sent_by_its_own_thread(producer: Producer) -> None:
    for number in (1, 2):
        assert producer.send().outcome == SendResult(0, 88, number)
    (connection,) = producer.made
    assert [(h.partition, h.sequence, h.record_count) for h in connection.requests] == [
        (0, 0, 1),
        (0, 1, 1),
    ]
    assert connection.timeouts == [10, 10], "no longer than the patience of a blocking sender"
    assert producer.woken == 0, "the loop has nothing to do"


def test_what_comes_meanwhile_goes_out_together(producer: Producer) -> None:
    """By one of the threads that waited: the first one returns with its own result."""
    gates = [Gate(), Gate()]
    acts = iter(gates)
    producer.act = lambda request: next(acts, as_usual)(request)
    with in_thread(producer.send) as first:
        assert gates[0].reached.wait(WAIT_S)
        later = [spawn(producer.send) for _ in range(6)]
        producer.until_waiting(6)
        gates[0].open()
        assert first.result(WAIT_S).done()
        assert gates[1].reached.wait(WAIT_S), "another one leads now"
        gates[1].open()
        ids = {each.result(WAIT_S).result(0).id for each in later}
    assert len(ids) == 6
    (connection,) = producer.made
    assert [header.record_count for header in connection.requests] == [1, 6]
    assert producer.woken == 0


def test_what_does_not_fit_into_one_batch_is_the_next_ones(producer: Producer) -> None:
    """Threads that send large messages at the same time: no batch is too large for a broker."""
    content = bytes(400 << 10)
    producer.message = Message("t", content)
    gate = Gate()
    acts = iter([gate])
    producer.act = lambda request: next(acts, as_usual)(request)
    with in_thread(producer.send) as first:
        assert gate.reached.wait(WAIT_S)
        later = [spawn(producer.send) for _ in range(3)]
        producer.until_waiting(3)
        gate.open()
        assert all(each.result(WAIT_S).done() for each in [first, *later])
    (connection,) = producer.made
    assert [header.record_count for header in connection.requests] == [1, 2, 1]


def test_threads_of_other_partitions_have_connections_of_their_own(producer: Producer) -> None:
    gates = [Gate() for _ in range(PARTITIONS)]
    producer.act = lambda request: gates[request.partition](request)
    threads = [spawn(lambda n=n: producer.send(partition=n)) for n in range(PARTITIONS)]
    for gate in gates:
        assert gate.reached.wait(WAIT_S)
    for gate in gates:
        gate.open()
    assert all(thread.result(WAIT_S).done() for thread in threads)
    assert len(producer.made) == PARTITIONS
    producer.send()
    assert len(producer.made) == PARTITIONS, "they are used again"


@pytest.mark.parametrize("error", [ConnectionResetError("cut"), TimeoutError(), ProtocolError()])
def test_without_an_answer_the_loop_goes_on_with_the_same_batch(
    producer: Producer, error: Exception
) -> None:
    producer.act = raising(error)
    with in_thread(producer.send) as sending:
        queue = producer.until_left_to_the_loop()
        (batch,) = queue.in_flight
        assert (batch.sent, batch.unknown, batch.stamp.sequence) == (False, True, 0)
        queue.close(Busy("gone"))
        assert sending.result(WAIT_S).done()


def test_a_broker_that_stops_after_it_was_asked_leaves_the_outcome_open(
    producer: Producer,
) -> None:
    """It closes the connection with a refusal, but of the connection: the batch may be stored."""
    producer.act = raising(ShuttingDown("broker b1/n1 is stopping"))
    with in_thread(producer.send) as sending:
        queue = producer.until_left_to_the_loop()
        (batch,) = queue.in_flight
        assert (batch.sent, batch.unknown) == (False, True)
        queue.close(Busy("gone"))
        assert isinstance(sending.result(WAIT_S).outcome, OutcomeUnknown)


def test_a_broker_that_cannot_be_reached_leaves_no_doubt(producer: Producer) -> None:
    """Nothing was sent, so the message cannot be stored."""
    producer.act = raising(Unreachable("nobody listens"))
    with in_thread(producer.send) as sending:
        queue = producer.until_left_to_the_loop()
        (batch,) = queue.in_flight
        assert (batch.sent, batch.unknown) == (False, False)
        queue.close(Busy("gone"))
        assert isinstance(sending.result(WAIT_S).outcome, Unreachable)


def test_a_final_refusal_comes_back_at_once(producer: Producer) -> None:
    producer.act = lambda _: refused(MessageTooLarge("no"))
    assert isinstance(producer.send().outcome, MessageTooLarge)
    assert producer.woken == 0


def test_a_reply_that_cannot_be_read_is_no_answer(producer: Producer) -> None:
    producer.act = lambda _: Frame(Command.PUT, 0, 1, 0, b"\xff\xff", b"")
    with in_thread(producer.send) as sending:
        queue = producer.until_left_to_the_loop()
        assert queue.in_flight[0].unknown
        queue.close(Busy("gone"))
        assert sending.result(WAIT_S).done()


@pytest.mark.parametrize("why", ["no master", "no ids", "no time", "connections in use"])
def test_what_cannot_be_sent_here_stands_first_for_the_loop(producer: Producer, why: str) -> None:
    if why == "no master":
        producer.master = None
    elif why == "no ids":

        def no_ids(_: int) -> list[int]:
            raise InvalidArgument("the clock is wrong")

        producer.take_ids = no_ids  # type: ignore[method-assign]
    elif why == "connections in use":
        assert all(producer.connections.borrow(BROKER) for _ in range(4))
        assert producer.connections.borrow(BROKER) is None
        assert producer.connections.borrow(OTHER) is not None
    future = producer.append(within=1.0)
    if why == "no time":
        producer.clock.advance(1.0)
    with in_thread(lambda: producer.sender.send(producer.queues[0], future)) as sending:
        queue = producer.until_left_to_the_loop()
        assert queue.pending == [future]
        assert producer.accumulator.enter(queue), "the lead is not given back to the thread"
        queue.owner = None
        assert not any(connection.requests for connection in producer.made)
        queue.close(Busy("gone"))
        assert sending.exception(WAIT_S) is None


def test_one_that_waits_past_its_deadline_wakes_whoever_gives_it_up(producer: Producer) -> None:
    """Whatever the deadline is of the thread that leads."""
    gate = Gate()
    producer.act = gate
    with in_thread(producer.send) as first:
        assert gate.reached.wait(WAIT_S)
        with in_thread(lambda: producer.send(within=0.02)) as late:
            block_until(lambda: producer.woken)
            producer.queues[0].drop_late(producer.clock.monotonic() + 1)
            assert isinstance(late.result(WAIT_S).outcome, NotSent)
        gate.open()
        assert first.result(WAIT_S).done()


def test_the_nearest_deadline_of_a_shared_batch_bounds_its_exchange(producer: Producer) -> None:
    """A message that another thread carries keeps its own time-out."""
    first, hurried = producer.append(within=9.0), producer.append(within=4.0)
    producer.sender.send(producer.queues[0], first)
    (connection,) = producer.made
    assert connection.timeouts == [4.0]
    assert isinstance(first.outcome, SendResult)
    assert isinstance(hurried.outcome, SendResult)


def test_one_that_is_late_just_when_it_gets_the_lead_passes_it_on(producer: Producer) -> None:
    gate = Gate()
    acts = iter([gate])
    producer.act = lambda request: next(acts, as_usual)(request)
    with in_thread(producer.send) as first:
        assert gate.reached.wait(WAIT_S)
        futures = [producer.append() for _ in range(2)]
        gate.open()
        assert first.result(WAIT_S).done()
        queue = producer.queues[0]
        assert queue.owner is futures[0], "its thread sleeps still"
        queue.pending.remove(futures[0])
        futures[0].fail(NotSent("late"))
        producer.accumulator.give_back(Ended(1, futures[0].size))
        with in_thread(lambda: producer.sender.send(queue, futures[1])) as second:
            producer.sender.send(queue, futures[0])
            assert second.exception(WAIT_S) is None
    assert isinstance(futures[1].outcome, SendResult)


def test_one_whose_outcome_comes_just_before_it_asks_for_the_lead_wakes_nobody(
    producer: Producer,
) -> None:
    future = producer.send()
    assert producer.accumulator.claim(producer.queues[0], future) is None
    assert producer.woken == 0, "the loop has nothing to do"


def test_one_that_is_given_up_between_getting_the_lead_and_sending_has_that_outcome(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender on the loop fails late messages also of a queue that a thread has."""
    claim = producer.accumulator.claim

    def overtaken(queue: PartitionQueue, future: BlockingSendFuture) -> Any:
        producer.accumulator.drop_late(queue, producer.clock.monotonic() + 60)
        return claim(queue, future)

    monkeypatch.setattr(producer.accumulator, "claim", overtaken)
    assert isinstance(producer.send().outcome, NotSent)
    assert producer.made == [], "there is nothing to send"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("a bug")])
def test_a_thread_that_fails_strands_nobody(producer: Producer, error: BaseException) -> None:
    """Ctrl-C while it waits for the answer: its batch is the loop's, so are those behind it."""
    gate = Gate(raising(error))
    acts = iter([gate])
    producer.act = lambda request: next(acts, as_usual)(request)
    with in_thread(producer.send) as leader:
        assert gate.reached.wait(WAIT_S)
        with (
            in_thread(producer.send) as same,
            in_thread(lambda: producer.send(partition=1)) as other,
        ):
            producer.until_waiting(1)
            assert other.result(WAIT_S).outcome == SendResult(1, 88, 2)
            gate.open()
            assert type(leader.exception(WAIT_S)) is type(error)
            queue = producer.until_left_to_the_loop()
            (batch,) = queue.in_flight
            assert (batch.sent, batch.unknown) == (False, True), "it is the loop's to send again"
            assert len(queue.pending) == 1
            queue.close(Busy("gone"))
            assert same.result(WAIT_S).done()
    assert batch.items[0].done()


def test_a_sleeper_that_is_interrupted_leaves_its_message_to_the_loop(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a thread that waits for another one: the lead passes it by."""
    gate = Gate()
    acts = iter([gate])
    producer.act = lambda request: next(acts, as_usual)(request)

    class Interrupted(BlockingSendFuture):
        """A signal handler raises while its thread sleeps."""

        def sleep(self, seconds: float) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr(accumulator, "BlockingSendFuture", Interrupted)

    with in_thread(producer.send) as leader:
        assert gate.reached.wait(WAIT_S)
        with in_thread(producer.send) as leaving:
            assert isinstance(leaving.exception(WAIT_S), KeyboardInterrupt)
        gate.open()
        assert leader.result(WAIT_S).done()
    queue = producer.until_left_to_the_loop()
    assert len(queue.pending) == 1
    assert producer.accumulator.enter(queue)
    queue.owner = None


# Batches ----------------------------------------------------------------------------------------
def test_a_batch_is_sent_by_its_own_thread(producer: Producer) -> None:
    for first in (1, 3):
        assert [each.id for each in producer.send_batch(0, 0)] == [first, first + 1]
    (connection,) = producer.made
    assert [(h.sequence, h.record_count) for h in connection.requests] == [(0, 2), (1, 2)]
    assert connection.timeouts == [10, 10], "no longer than the patience of a blocking sender"
    assert producer.woken == 0, "the loop has nothing to do"


def test_what_comes_behind_a_batch_is_sent_by_its_own_thread_next(producer: Producer) -> None:
    gate = Gate()
    acts = iter([gate])
    producer.act = lambda request: next(acts, as_usual)(request)
    with in_thread(lambda: producer.send_batch(0, 0)) as first:
        assert gate.reached.wait(WAIT_S)
        with in_thread(producer.send) as behind:
            producer.until_waiting(1)
            gate.open()
            assert [each.id for each in first.result(WAIT_S)] == [1, 2]
            assert behind.result(WAIT_S).result(0).id == 3
    (connection,) = producer.made
    assert [(h.sequence, h.record_count) for h in connection.requests] == [(0, 2), (1, 1)]
    assert producer.woken == 0


@pytest.mark.parametrize("before", ["a thread leads", "in flight", "pending", "appended"])
def test_a_batch_behind_other_messages_is_left_to_the_loop(producer: Producer, before: str) -> None:
    """It does not overtake them, and no thread waits for their answer to send it."""
    queue = producer.queues[0]
    with contextlib.ExitStack() as stack:
        if before == "a thread leads":
            gate = Gate()
            producer.act = gate
            stack.enter_context(in_thread(producer.send))
            assert gate.reached.wait(WAIT_S)
            stack.callback(gate.open)
        elif before == "in flight":
            other = SendFuture(b"before", None, None, 1e9)
            queue.batch_of([other], [1])
            producer.accumulator.appender.use(other.size, 1)
        elif before == "pending":
            producer.append().leads = None
        else:
            assert producer.accumulator.append_any(Message("t", b"before", key=0)) is not None
        assert producer.send_batch(0, 0, content=b"batch") == [None, None]
        assert producer.accumulator.awake, "the sender was told"
        producer.accumulator.drain()
        contents = [each.content for each in queue.pending]
        assert contents == ([contents[0]] if len(contents) == 3 else []) + [b"batch"] * 2
        assert sum(len(each.requests) for each in producer.made) == (before == "a thread leads")


def test_a_batch_of_several_partitions_is_left_to_the_loop(producer: Producer) -> None:
    assert producer.send_batch(0, 1, 0) == [None] * 3
    assert producer.woken
    producer.accumulator.drain()
    assert [len(queue.pending) for queue in producer.queues] == [2, 1, 0]
    assert producer.made == []


def test_more_than_one_batch_is_left_to_the_loop(producer: Producer) -> None:
    """There, one goes out while the broker has the one before."""
    count = producer.config.batch_records + 1
    assert producer.send_batch(*[0] * count) == [None] * count
    assert producer.woken
    large = bytes(producer.config.batch_bytes // 2)
    assert producer.send_batch(1, 1, content=large) == [None] * 2, "with their headers"
    producer.accumulator.drain()
    assert [len(queue.pending) for queue in producer.queues] == [count, 2, 0]
    assert producer.made == []


def test_a_batch_without_an_answer_goes_on_on_the_loop(producer: Producer) -> None:
    """With the same stamp; what came behind it meanwhile stays there."""
    gate = Gate(raising(ConnectionResetError("cut")))
    producer.act = gate
    with in_thread(lambda: producer.send_batch(0, 0)) as sending:
        assert gate.reached.wait(WAIT_S)
        with in_thread(producer.send) as behind:
            producer.until_waiting(1)
            gate.open()
            assert sending.result(WAIT_S) == [None, None]
            queue = producer.until_left_to_the_loop()
            (batch,) = queue.in_flight
            assert (batch.sent, batch.unknown, batch.stamp.sequence) == (False, True, 0)
            assert len(queue.pending) == 1
            queue.close(Busy("gone"))
            assert behind.result(WAIT_S).done()


@pytest.mark.parametrize("why", ["no master", "no ids", "no time", "connections in use"])
def test_a_batch_that_cannot_be_sent_here_stands_first_for_the_loop(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "no master":
        producer.master = None
    elif why == "no ids":
        monkeypatch.setattr(producer, "take_ids", raising(InvalidArgument("the clock is wrong")))
    elif why == "connections in use":
        assert all(producer.connections.borrow(BROKER) for _ in range(4))
    assert producer.send_batch(0, 0, within=0.0 if why == "no time" else 30.0) == [None, None]
    queue = producer.until_left_to_the_loop()
    assert len(queue.pending) == 2
    assert not any(connection.requests for connection in producer.made)


def test_a_fork_while_a_batch_is_under_way_finds_all_of_its_messages(producer: Producer) -> None:
    """Those that have no outcome yet are failed in the child: see ``abandon_in_child``."""
    found: list[int] = []
    producer.act = lambda _: found.append(len(producer.queues[0].without_outcome()))
    producer.send_batch(0, 0, 0)
    assert found[0] >= 3


def test_a_final_refusal_of_a_batch_comes_back_at_once(producer: Producer) -> None:
    producer.act = lambda _: refused(MessageTooLarge("no"))
    assert [type(each) for each in producer.send_batch(0, 0)] == [MessageTooLarge] * 2
    assert producer.woken == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("a bug")])
def test_a_thread_that_fails_leaves_its_batch_to_the_loop(
    producer: Producer, error: BaseException
) -> None:
    producer.act = raising(error)
    with pytest.raises(type(error)):
        producer.send_batch(0, 0)
    queue = producer.until_left_to_the_loop()
    (batch,) = queue.in_flight
    assert (batch.sent, batch.unknown, len(batch.items)) == (False, True, 2)


def test_a_handler_that_waits_for_a_batch_under_way_has_the_loop_send_it(
    producer: Producer,
) -> None:
    """The answer that the interrupted thread gets later counts for nothing."""

    def act(_: PutRequest) -> None:
        producer.accumulator.check_not_inside()  # as every wait of a handler does
        assert producer.accumulator.enter(producer.queues[0]), "the sender takes it"
        producer.queues[0].owner = None

    producer.act = act
    assert producer.send_batch(0, 0) == [None, None]
    (batch,) = producer.queues[0].in_flight
    assert (batch.sent, batch.unknown) == (False, True)
    assert producer.woken


def test_a_handler_does_not_wait_for_a_batch_that_its_thread_is_about_to_send(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else could send it: it is refused at once."""

    def master_of(_: PartitionQueue) -> Address | None:
        with pytest.raises(InvalidState):
            producer.accumulator.check_not_inside()
        return BROKER

    monkeypatch.setattr(producer, "master_of", master_of)
    assert [each.id for each in producer.send_batch(0, 0)] == [1, 2]
    step_aside()  # nothing is left that it would do


# Connections ------------------------------------------------------------------------------------
def elsewhere(act: Callable[[], object]) -> None:
    """Act in another thread."""
    other = threading.Thread(target=act)
    other.start()
    other.join()


class Looks:
    """What happens while a leading thread waits for further messages: an act for each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
        self.count = 0
        self._act = act

        def sleep(_: BlockingSendFuture, seconds: float) -> bool:
            assert seconds < 0.001
            self.count += 1
            self._act()
            return False

        monkeypatch.setattr(BlockingSendFuture, "sleep", sleep)


def test_threads_that_shared_a_batch_share_the_next_one(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is first again waits until as many have come, instead of sending alone."""
    producer.queues[0].shared = 4
    others: list[BlockingSendFuture] = []
    looks = Looks(monkeypatch, lambda: elsewhere(lambda: others.append(producer.append())))
    assert producer.send().done()
    assert len(others) == looks.count == 3
    assert all(each.done() for each in others)
    assert [each.record_count for each in producer.made[0].requests] == [4]


@pytest.mark.parametrize("come", [0, 1])
def test_nobody_waits_for_threads_that_do_not_come_again(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, come: int
) -> None:
    producer.queues[0].shared = 9
    coming = ["another"] * come
    looks = Looks(monkeypatch, lambda: coming and coming.pop() and elsewhere(producer.append))
    producer.send()
    assert looks.count == come + 1
    assert [each.record_count for each in producer.made[0].requests] == [come + 1]


@pytest.mark.parametrize(("within", "looks_count"), [(30.0, 3), (0.0015, 2)])
def test_however_many_messages_come_a_thread_waits_two_milliseconds_for_more(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, within: float, looks_count: int
) -> None:
    """And not beyond its deadline."""
    queue = producer.queues[0]
    queue.shared = 100

    def come() -> None:
        producer.clock.advance(0.0009)
        producer.append()

    looks = Looks(monkeypatch, come)
    future = producer.append(within)
    assert queue.lead(future)
    producer.sender._gather(queue, future)
    assert looks.count == looks_count
    assert queue.leave() is False
    assert queue.owner is future, "its message stands first"
    queue.owner = None


def test_a_thread_that_is_interrupted_while_it_gathers_leaves_its_message_to_the_loop(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    producer.queues[0].shared = 2
    Looks(monkeypatch, interrupt)
    future = producer.append()
    with pytest.raises(KeyboardInterrupt):
        producer.sender.send(producer.queues[0], future)
    queue = producer.until_left_to_the_loop()
    assert queue.pending == [future]


def test_closing_interrupts_the_thread_that_sends(producer: Producer) -> None:
    """Its connection is closed by itself; a closed descriptor's number may be somebody else's."""
    gate = Gate(raising(ConnectionResetError("interrupted")))
    producer.act = gate
    with in_thread(producer.send) as sending:
        assert gate.reached.wait(WAIT_S)
        producer.connections.close()
        (connection,) = producer.made
        assert (connection.interrupted, connection.closed) == (1, 0)
        gate.open()
        producer.until_left_to_the_loop().close(Busy("gone"))
        assert sending.result(WAIT_S).done()
    assert connection.closed == 1
    assert producer.connections.borrow(BROKER) is None, "the loop tells whoever comes now"


def test_closing_closes_idle_connections(producer: Producer) -> None:
    producer.send()
    producer.connections.close()
    (connection,) = producer.made
    assert (connection.interrupted, connection.closed) == (0, 1)


def test_only_connections_to_masters_are_kept(producer: Producer) -> None:
    producer.send()
    producer.master = OTHER
    producer.send()
    producer.connections.keep_only({OTHER})
    assert [connection.closed for connection in producer.made] == [1, 0]
    producer.send()
    assert len(producer.made) == 2
    in_use = producer.connections.borrow(OTHER)
    assert in_use is not None
    producer.connections.keep_only(set())
    assert producer.made[1].closed == 0, "a thread is at it"


@pytest.mark.parametrize("threads", [2, 8])
def test_many_threads_each_get_their_own_result(producer: Producer, threads: int) -> None:
    """Every message is sent once, in order per partition, whoever led."""
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    requests: list[PutRequest] = []
    lock = threading.Lock()

    def act(request: PutRequest) -> Frame:
        with lock:
            requests.append(request)
            offset = offsets[request.partition]
            offsets[request.partition] += request.record_count * 100  # more than a record has
        return stored(offset)

    def work(number: int) -> list[SendResult]:
        return [
            producer.send(partition=(number + n) % PARTITIONS).result(WAIT_S) for n in range(100)
        ]

    producer.act = act
    workers = [spawn(lambda number=n: work(number)) for n in range(threads)]
    results = [each for worker in workers for each in worker.result(WAIT_S)]
    assert len({(each.partition, each.offset) for each in results}) == threads * 100
    assert len({each.id for each in results}) == threads * 100
    for partition in range(PARTITIONS):
        sequences = [each.sequence for each in requests if each.partition == partition]
        assert sequences == list(range(len(sequences)))
    assert producer.woken == 0
