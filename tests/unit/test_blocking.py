"""What the blocking API does itself: sends that read their topic's routes first, and ends."""

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vq.blocking import MessageConsumer, MessageProducer
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.workers import Workers
from vq.client.consumer.pull import ThreadPull
from vq.client.future import SendFuture
from vq.client.producer.core import ProducerCore
from vq.client.producer.interceptors import Interceptors, ProducerInterceptor
from vq.client.runtime import LoopThread
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    NotPublished,
    NotSent,
    OutcomeUnknown,
    VqError,
)
from vq.model import Message, SendResult


class Core:
    """A producer's core whose topic is not published yet; notes the time that each try has."""

    def __init__(self) -> None:
        self.config: Any = ProducerConfig(send_timeout_s=30.0)
        self.interceptors: Interceptors | None = None
        self.transactions = SimpleNamespace(open=0)
        self.accumulator = SimpleNamespace(check_not_inside=lambda: None)
        self.is_shared = False
        self.given: list[float | None] = []

    def append(self, *_: object) -> None:
        """Append nothing: the topic is not published."""

    def abandon_in_child(self, _: str) -> None:
        """Nothing was taken."""

    def abandon(self, _: str) -> None:
        """Nothing was taken."""

    async def flush_at_exit(self) -> None:
        """Nothing was taken."""

    async def publish_existing(self, _: str) -> None:
        """Publish a topic that exists, which takes a moment."""
        time.sleep(0.001)

    def missing(self, message: Message) -> list[str]:
        """Return the topic, which is not published."""
        return [message.topic]

    publishing = ProducerCore.publishing
    check = ProducerCore.check  # only a topic that is missing needs it

    async def close(self) -> None:
        """Nothing was taken."""

    def append_any(self, message: Message, callback: object, timeout: float | None) -> SendFuture:
        return self.send_blocking(message, timeout)

    def send_blocking(self, _message: Message, timeout: float | None) -> SendFuture:
        self.given.append(timeout)
        if len(self.given) == 1:
            raise NotPublished("t")
        future = SendFuture(b"x", None, None, 0.0)
        future.succeed(SendResult(0, 0, 1))
        return future


@pytest.mark.parametrize(
    ("send", "bound"),
    [
        (lambda producer, message: producer.send_sync(message), 3.0),
        (lambda producer, message: producer.send_sync(message, 5.0), 5.0),
        (lambda producer, message: producer.send_async(message), 30.0),
        (lambda producer, message: producer.send_async(message, timeout=5.0), 5.0),
    ],
)
def test_a_send_has_one_deadline_for_routes_and_outcome(
    send: Callable[[MessageProducer, Message], Any], bound: float
) -> None:
    core = Core()
    runtime = LoopThread("test")
    try:
        producer = MessageProducer(cast("ProducerCore", core), runtime)
        send(producer, Message("t", b"x"))
    finally:
        runtime.stop()
    first, second = core.given
    assert first in {None, bound}
    assert second is not None
    assert 0.0 < second < bound


@pytest.mark.parametrize("way", ["send_sync", "send_async", "send_oneway"])
def test_a_topic_that_cannot_be_published_refuses_the_message(way: str) -> None:
    """Nothing was sent, so the outcome is certain."""

    class Failing(Core):
        def __init__(self) -> None:
            super().__init__()
            self.oneway = SimpleNamespace(callbacks={}, callback_for=lambda _: None)

        async def publish_existing(self, _: str) -> None:
            raise CoordinationError("no answer", hint="look")

    runtime = LoopThread("test")
    try:
        producer = MessageProducer(cast("ProducerCore", Failing()), runtime)
        with pytest.raises(NotSent, match="could not be published, nothing was sent: no") as caught:
            getattr(producer, way)(Message("t", b"x"))
        assert caught.value.hint == "look"
    finally:
        runtime.stop()


def test_a_closed_producer_is_forgotten() -> None:
    """A factory may make one for each request that it serves."""
    core = Core()
    runtime = LoopThread("test")
    try:
        producer = MessageProducer(cast("ProducerCore", core), runtime)
        assert len(runtime.losses) == 1
        producer.close()
        assert runtime.losses == {}
    finally:
        runtime.stop()


def no_pull() -> ThreadPull:
    """Stand in for what nobody calls."""
    return cast("ThreadPull", SimpleNamespace(closing=lambda close: close))


class Probe:
    """Stands in line for a worker."""

    def __init__(self) -> None:
        self.ran = threading.Event()

    def enter(self) -> bool:
        self.ran.set()
        return False


def in_callback(runtime: LoopThread, call: Callable[[], Any]) -> BaseException:
    """Call on the factory's own thread; return what that raised."""
    raised: list[BaseException] = []
    done = threading.Event()

    def callback() -> None:
        try:
            call()
        except InvalidState as error:
            raised.append(error)
        done.set()

    runtime.loop.call_soon_threadsafe(callback)
    assert done.wait(10.0)
    return raised[0]


def test_a_close_that_a_callback_is_refused_ends_nothing() -> None:
    """The consumer holds its partitions on, so its threads have to go on as well."""
    core = Core()
    runtime, workers = LoopThread("test"), Workers(1, name="test")
    try:
        core.config = ConsumerConfig()
        consumer = MessageConsumer(cast("ConsumerCore", core), runtime, workers, no_pull())
        assert "would wait for itself" in str(in_callback(runtime, consumer.close))
        probe = Probe()
        workers.put(cast("InTurn", probe))
        assert probe.ran.wait(10.0)
        consumer.close()
        producer = MessageProducer(cast("ProducerCore", Core()), runtime)
        in_callback(runtime, producer.close)
        assert len(runtime.losses) == 1, "it is still refused after a fork"
        producer.close()
    finally:
        runtime.stop()
        workers.close(0.0)


class AsyncListener:
    async def __call__(self, message: Message) -> None:
        """Nothing awaits it."""


async def async_listener(message: Message) -> None:
    """Nothing awaits it."""


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (async_listener, "coroutine function.*vq.aio"),
        (AsyncListener(), "coroutine function.*vq.aio"),
        (7, "cannot be called"),
        ("print", "cannot be called"),
        (
            lambda topic, message: None,
            r"listener <lambda>\(topic, message\) cannot be called: missing a required argument: "
            "'message'; give a function of one argument, the message",
        ),
        (lambda: None, "too many positional"),
    ],
)
def test_what_is_no_listener_is_refused_at_once(listener: Any, said: str) -> None:
    """Not for each message: some would be skipped, or dead letters, before anybody looks."""
    runtime, workers = LoopThread("test"), Workers(1, name="test")
    core: Any = SimpleNamespace(ensure_started=None, is_shared=False, config=ConsumerConfig())
    pull = ThreadPull(core, cast("Inbox", None), runtime)
    try:
        consumer = MessageConsumer(core, runtime, workers, pull)
        with pytest.raises(InvalidArgument, match=said):
            consumer.subscribe("t", listener=listener)
    finally:
        runtime.stop()
        workers.close(0.0)


def test_counts_in_the_child_of_a_fork_are_refused() -> None:
    """A thread that the child does not have may have held a lock of theirs."""
    runtime = LoopThread("test")
    producer = MessageProducer(cast("ProducerCore", Core()), runtime)
    runtime.mark_forked()
    try:
        with pytest.raises(InvalidState, match="before the process forked"):
            producer.metrics()
    finally:
        runtime.forked = False
        runtime.stop()


class Ending(Core):
    """A core whose loop ends before it is closed."""

    def __init__(self, runtime: LoopThread) -> None:
        super().__init__()
        self._runtime = runtime

    async def close(self) -> None:
        self._runtime.loop.stop()
        await asyncio.sleep(60.0)


def as_consumer(core: Any) -> Any:
    core.config = ConsumerConfig()
    return core


def test_a_close_that_meets_the_end_of_its_factory_returns() -> None:
    """Another thread shuts the factory down; everything has its outcome then."""
    for make in (
        lambda core, runtime: MessageProducer(core, runtime),
        lambda core, runtime: MessageConsumer(
            as_consumer(core), runtime, Workers(1, name="test"), no_pull()
        ),
    ):
        runtime = LoopThread("test")
        each = make(cast("Any", Ending(runtime)), runtime)
        each.close()
        each.close()
        runtime.stop()


class Noting(ProducerInterceptor):
    """Notes its calls with their thread."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def before_send(self, message: Message) -> Message:
        self.notes.append((message, threading.get_ident()))
        return message

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        self.notes.append((result or error, threading.get_ident()))


def test_a_blocking_send_is_intercepted_once_in_its_own_thread() -> None:
    """Also when its topic must be published first."""
    core = Core()
    noting = Noting()
    core.interceptors = Interceptors([noting])
    runtime = LoopThread("test")
    message = Message("t", b"x")
    try:
        place = MessageProducer(cast("ProducerCore", core), runtime).send_sync(message)
    finally:
        runtime.stop()
    assert len(core.given) == 2
    here = threading.get_ident()
    assert noting.notes == [(message, here), (place, here)]


def test_an_interrupted_blocking_send_is_unknown_to_interceptors() -> None:
    core = Core()
    noting = Noting()
    core.interceptors = Interceptors([noting])

    def interrupted(*_: object, **__: object) -> SendFuture:
        raise KeyboardInterrupt

    core.send_blocking = interrupted  # type: ignore[method-assign]
    runtime = LoopThread("test")
    try:
        with pytest.raises(KeyboardInterrupt):
            MessageProducer(cast("ProducerCore", core), runtime).send_sync(Message("t", b"x"))
    finally:
        runtime.stop()
    assert isinstance(noting.notes[1][0], OutcomeUnknown)
