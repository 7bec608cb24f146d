"""Callbacks that do what they should not, and producers that are closed while they send.

    threads ──▶ producer ──▶ broker          callbacks raise, send again, close
                   ✗ close                    also twice, with the broker stopped, the buffer full

Goal: every accepted message has one outcome, a true one; no thread waits for ever.
"""

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cluster import ProcessCluster, process_cluster
from support.faults import client_of, judge_run, read_back, times
from support.history import History, read_history
from support.judge import Fault
from support.producers import core_of
from support.threads import spawn
from support.topics import create_topic
from support.zookeeper import ZooKeeperService

import vq
from vq.errors import InvalidState
from vq.testing.waiting import PROCESSES_WAIT_S, WAIT_S, block_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    """One broker for all tests of this module; a test that stops it lets it go on."""
    with process_cluster(tmp_path_factory.mktemp("brokers"), zookeeper.hosts) as cluster:
        cluster.add("b1")
        yield cluster


@pytest.fixture
def topic(cluster: ProcessCluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions, made just now."""
    name = "".join(each for each in request.node.name if each.isalnum() or each in "-_")
    create_topic(cluster, name, partitions=2)
    return name


@contextmanager
def stopped(cluster: ProcessCluster) -> Iterator[None]:
    """The broker stands still meanwhile."""
    cluster.brokers["b1"].signal(signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.brokers["b1"].signal(signal.SIGCONT)


# Callbacks ----------------------------------------------------------------------------------------
class GreenletExit(BaseException):
    """What gevent raises in a greenlet that is killed has no ``Exception`` above it either."""


class Mute(BaseException):
    """Cannot be shown."""

    def __repr__(self) -> str:
        raise GreenletExit

    __str__ = __repr__


RAISED = (
    ValueError("a callback's"),
    vq.OutcomeUnknown("a callback's"),
    StopIteration(),
    GeneratorExit(),
    MemoryError(),
    RecursionError(),
    KeyboardInterrupt(),
    SystemExit(3),
    asyncio.CancelledError(),
    GreenletExit(),
    Mute(),
)


class Acting(History):
    """A history whose callbacks do something else once they have noted an outcome."""

    def __init__(self, path: Path, act: Callable[[], object]) -> None:
        super().__init__(path)
        self.path = path
        self.acted = 0
        self._act = act

    def note(self, kind: str, **fields: Any) -> None:
        """Note an event; act if it is an outcome."""
        super().note(kind, **fields)
        if kind not in {"send", "end"}:
            self.done(None)

    def done(self, _: vq.SendFuture | None) -> None:
        """Act, as a done callback."""
        self.acted += 1
        self._act()


def raises(error: BaseException) -> Callable[[], object]:
    """Return a function that raises ``error``, each time as if it were the first.

    Otherwise its traceback grows with each raise, and so does each log line.
    """

    def act() -> None:
        raise error.with_traceback(None)

    return act


@pytest.mark.parametrize("answered", [True, False], ids=["stored", "given up"])
def test_whatever_callbacks_do_each_message_has_one_outcome(
    cluster: ProcessCluster, topic: str, tmp_path: Path, answered: bool
) -> None:
    """They raise anything, send again, close and shut down; with outcomes of both kinds."""
    histories = tmp_path / "h"
    rounds = times(20, 100)
    config = vq.ProducerConfig(send_timeout_s=PROCESSES_WAIT_S if answered else 0.3)
    with (
        client_of(cluster) as factory,
        factory.create_producer(config) as producer,
        History(histories / "again.jsonl") as again,
        contextlib.ExitStack() as stack,
    ):
        producer.publish(topic)
        numbers = itertools.count()

        def send_again() -> None:
            again.send(producer, vq.Message(topic, b"again-%d" % next(numbers), key="k"))

        acts = [producer.close, factory.shutdown, send_again, *map(raises, RAISED)]
        again.send(producer, vq.Message(topic, b"first"))  # it connects
        producer.flush(WAIT_S)
        acting = [
            stack.enter_context(Acting(histories / f"act{kind}.jsonl", act))
            for kind, act in enumerate(acts)
        ]
        with contextlib.nullcontext() if answered else stopped(cluster):
            for number in range(rounds):
                for kind, history in enumerate(acting):
                    key = "k" if number % 2 else None
                    message = vq.Message(topic, b"act%d-%d" % (kind, number), key=key)
                    future = history.send(producer, message)
                    assert future is not None
                    future.add_done_callback(history.done)
            producer.flush(WAIT_S)
            block_until(lambda: all(each.acted == 2 * rounds for each in acting))
            producer.flush(WAIT_S)
        assert next(numbers) == 2 * rounds
        assert not producer.closed, "no callback can close it"
        log = read_back(factory, topic)
    events = [event for each in acting for event in read_history(each.path)]
    outcomes = {event["kind"] for event in events} - {"send", "end"}
    assert outcomes <= ({"sent"} if answered else {"refused", "unknown"})
    judge_run(histories, log, Fault("callbacks that misbehave", 2 * rounds * len(acts)))


# Close --------------------------------------------------------------------------------------------
class Flood:
    """Threads that send with one producer until it is closed, half of them in ``send_sync``.

    Args:
        factory: Makes the producer.
        topic: The topic to send to.
        histories: The directory of the histories, one for each thread.
        name: Begins the names of the histories and of the messages.
        settings: The configuration of the producer, whose buffer is small: threads wait for space.
    """

    def __init__(
        self,
        factory: vq.MessageFactory,
        topic: str,
        histories: Path,
        name: str = "w",
        **settings: Any,
    ) -> None:
        config = vq.ProducerConfig(buffer_messages=50, **settings)
        self.producer = factory.create_producer(config)
        self.producer.publish(topic)
        self._topic = topic
        self._path = histories / name
        self._begun = [0] * 4
        self._threads = [
            spawn(lambda thread=thread: self._send(thread)) for thread in range(len(self._begun))
        ]
        block_until(lambda: min(self._begun) > 20, "every thread sends")

    def _history(self, name: str) -> Path:
        return self._path.with_name(f"{self._path.name}-{name}.jsonl")

    def _send(self, thread: int) -> None:
        path = self._history(str(thread))
        timeout = self.producer.config.send_timeout_s
        with History(path) as history:
            closed = False
            while not closed:
                closed = self.producer.closed  # the last send begins when it is closed
                number = self._begun[thread]
                key = str(number % 3) if number % 2 else None
                message = vq.Message(self._topic, f"{path.stem}-{number}".encode(), key=key)
                if thread % 2:
                    history.send_sync(self.producer, message, timeout)
                else:
                    history.send(self.producer, message)
                self._begun[thread] += 1
            self.producer.close()  # again; then each message has its outcome

    @property
    def stands(self) -> bool:
        """Whether no thread has begun a send for some time: all of them wait."""
        before = list(self._begun)
        time.sleep(0.1)
        return before == self._begun

    def wait_ended(self) -> None:
        """Wait until every thread was refused and has ended."""
        for thread in self._threads:
            thread.result(WAIT_S)

    def close_in_callback(self) -> None:
        """Have a callback try it, and a thread that it starts do it."""
        tried: list[object] = []

        def try_it() -> None:
            with pytest.raises(InvalidState, match="callback"):
                self.producer.close()
            tried.append(spawn(self.producer.close))

        with Acting(self._history("closing"), try_it) as history:
            history.send(self.producer, vq.Message(self._topic, self._path.name.encode()))
            block_until(lambda: tried, "the callback ran")


CLOSES: dict[str, Callable[[vq.MessageFactory, Flood], object]] = {
    "once": lambda _, flood: flood.producer.close(),
    "twice at a time": lambda _, flood: [
        each.result(WAIT_S) for each in [spawn(flood.producer.close) for _ in range(2)]
    ],
    "in a callback": lambda _, flood: flood.close_in_callback(),
    "with its factory": lambda factory, _: factory.shutdown(),
}


@pytest.mark.parametrize("way", CLOSES)
def test_a_producer_that_is_closed_while_it_sends_strands_nobody(
    cluster: ProcessCluster, topic: str, tmp_path: Path, way: str
) -> None:
    """Each message is stored or refused; none is unknown, because the broker answers."""
    rounds = times(2, 30)
    for number in range(rounds):
        with client_of(cluster) as factory:
            flood = Flood(factory, topic, tmp_path / "h", f"round{number}")
            CLOSES[way](factory, flood)
            flood.wait_ended()
    judge_closed(cluster, topic, tmp_path / "h", rounds)


@pytest.mark.parametrize("way", ["once", "twice at a time", "with its factory"])
def test_a_producer_that_is_closed_while_its_broker_stands_still_is_so_at_the_deadlines(
    cluster: ProcessCluster, topic: str, tmp_path: Path, way: str
) -> None:
    """What is on the wire is unknown, the rest is refused; the broker goes on afterwards."""
    with client_of(cluster) as factory:
        flood = Flood(factory, topic, tmp_path / "h", send_timeout_s=1.0)
        with stopped(cluster):
            block_until(lambda: flood.stands, "every thread waits")
            closing = spawn(lambda: CLOSES[way](factory, flood))
            closing.result(WAIT_S)
            flood.wait_ended()
    judge_closed(cluster, topic, tmp_path / "h", 1, unknown=True)


def test_closing_ends_the_waits_for_space_at_once(
    cluster: ProcessCluster, topic: str, tmp_path: Path
) -> None:
    """The waits would last as long as the broker stands still; what was accepted is stored."""
    with client_of(cluster) as factory:
        flood = Flood(factory, topic, tmp_path / "h", send_timeout_s=PROCESSES_WAIT_S)
        with stopped(cluster):
            block_until(lambda: flood.stands, "every thread waits")
            closing = spawn(flood.producer.close)
            block_until(lambda: flood.producer.closed)
            block_until(
                lambda: not core_of(flood.producer).accumulator.waiting_threads, timeout_s=WAIT_S
            )
            assert not closing.done(), "what was accepted has no outcome yet"
        closing.result(WAIT_S)
        flood.wait_ended()
    judge_closed(cluster, topic, tmp_path / "h", 1)


def judge_closed(
    cluster: ProcessCluster, topic: str, histories: Path, rounds: int, *, unknown: bool = False
) -> None:
    """Judge the histories of all rounds together."""
    with client_of(cluster) as factory:
        log = read_back(factory, topic)
    verdict = judge_run(histories, log, Fault("close", rounds), acknowledged_min=20)
    assert verdict.counts["refused"] >= 4 * rounds, "each thread is refused at last"
    assert bool(verdict.counts["unknown"]) == unknown
