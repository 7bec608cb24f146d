"""Bad input to the two APIs: each method refuses it in the same words, and nothing is sent."""

import asyncio
import functools
import math
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.cases import case
from support.client import cluster_client
from support.producers import producer_of, published, send, stored

import vq
from vq import aio, blocking
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.client.future import check_callback
from vq.errors import BatchFailed, InvalidArgument, NotSent, TimedOut, UnknownTopic
from vq.limits import TIMEOUT_S_MAX
from vq.model import Message, TopicSettings, check_timeout
from vq.serializers import Json
from vq.testing.waiting import WAIT_S


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[vq.MessageFactory]:
    """The blocking API, open, on a cluster in memory that lives on its loop."""
    made: list[MemoryCluster] = []

    async def open_cluster(_: MessageFactoryConfig) -> ClusterClient:
        cluster = MemoryCluster()
        made.append(cluster)
        await cluster.start()
        await cluster.create_topic("t", partitions=2)
        client = cluster_client(cluster)
        await client.start()
        return client

    monkeypatch.setattr(blocking.factory, "open_cluster", open_cluster)
    factory = vq.MessageFactory().open()
    runtime = factory._runtime
    assert runtime is not None
    yield factory
    for producer in factory._producers:
        producer.close()
    runtime.run(made[0].stop())
    factory.shutdown()


def call_blocking(factory: vq.MessageFactory, name: str, timeout: Any) -> Any:
    """Call a method that takes a time-out; producers publish their topic first."""
    message = Message("t", b"x")
    if name == "get":
        return factory.create_consumer().get("t", 0, 0, 100, timeout)
    producer = factory.create_producer()
    if name == "send_batch":
        return producer.send_batch([message], timeout)
    if name in {"result", "exception"}:
        return getattr(producer.send_async(message), name)(timeout)
    if name == "flush":
        return producer.flush(timeout)
    return getattr(producer, name)(message, timeout=timeout)


async def call_aio(factory: aio.MessageFactory, name: str, timeout: Any) -> Any:
    message = Message("t", b"x")
    if name == "get":
        return await (await factory.create_consumer()).get("t", 0, 0, 100, timeout)
    producer = await factory.create_producer()
    if name == "send_batch":
        return await producer.send_batch([message], timeout)
    if name == "flush":
        return await producer.flush(timeout)
    return await getattr(producer, name)(message, timeout=timeout)


# Time-outs ----------------------------------------------------------------------------------------
BAD_TIMES = [math.nan, True, False, "1", b"1", [], 1j, int]
BLOCKING = ["send_sync", "send_async", "send_oneway", "send_batch", "flush", "get", "result"]
AIO = ["send", "send_async", "send_oneway", "send_batch", "flush", "get"]


@pytest.mark.parametrize("timeout", BAD_TIMES, ids=repr)
def test_a_bad_time_out_is_shown_with_its_bound(timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^timeout = .* is not a number of seconds; give 0"):
        check_timeout(timeout)


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (0, 0.0),
        (-1, 0.0),
        (-(10**400), 0.0),
        (-math.inf, 0.0),
        (0.5, 0.5),
        (Fraction(1, 2), 0.5),
        (TIMEOUT_S_MAX, TIMEOUT_S_MAX),
        (math.inf, TIMEOUT_S_MAX),
        (10**400, TIMEOUT_S_MAX),
    ],
    ids=repr,
)
def test_a_time_out_has_a_least_and_a_largest_value(timeout: Any, seconds: float) -> None:
    assert check_timeout(timeout) == seconds
    assert type(check_timeout(timeout)) is float


def test_every_method_of_threads_has_the_same_rule(threads: vq.MessageFactory) -> None:
    for name in [*BLOCKING, "exception"]:
        for timeout in (math.nan, True, "1"):
            with pytest.raises(InvalidArgument, match=r"^timeout = "):
                call_blocking(threads, name, timeout)
    for name in ("send_async", "send_oneway", "flush", "get"):
        for timeout in (None, math.inf):
            if name == "get" and timeout is not None:
                continue  # it waits for a message
            call_blocking(threads, name, timeout)


async def test_every_coroutine_has_the_same_rule(factory: aio.MessageFactory) -> None:
    for name in AIO:
        for timeout in (math.nan, True, "1"):
            with pytest.raises(InvalidArgument, match=r"^timeout = "):
                await call_aio(factory, name, timeout)
    assert await stored(factory) == []
    for name in ("send", "send_async", "send_oneway", "send_batch", "flush"):
        for timeout in (None, math.inf):
            await call_aio(factory, name, timeout)


async def test_a_plain_and_a_published_message_have_the_same_rule(
    factory: aio.MessageFactory,
) -> None:
    """The fast way to append leaves them to the other one."""
    core = await published(factory)
    for message in (Message("t", b"x"), Message("t", b"x", key="k")):
        for timeout in (math.nan, True, "1"):
            with pytest.raises(InvalidArgument, match=r"^timeout = "):
                send(core, message, None, timeout)


def test_a_blocking_send_without_a_time_out_has_the_one_of_the_settings(
    threads: vq.MessageFactory,
) -> None:
    """Before the topic is published, too."""
    producer = threads.create_producer()
    for _ in range(2):
        assert producer.send_sync(Message("t", b"x"), None).partition in {0, 1}


# Kinds --------------------------------------------------------------------------------------------
async def coroutine_function(*_: object) -> None:
    """Nothing would await it."""


def generator(*_: object) -> Iterator[int]:
    yield 1


class Asynchronous:
    async def __call__(self, *_: object) -> None:
        """Nothing would await it."""


NO_FUNCTIONS = {
    "number": 3,
    "text": "print",
    "coroutine": coroutine_function,
    "partial": functools.partial(coroutine_function, 1),
    "object": Asynchronous(),
    "generator": generator,
}


@pytest.mark.parametrize("given", NO_FUNCTIONS.values(), ids=NO_FUNCTIONS)
def test_what_cannot_be_a_function_is_refused_where_it_is_given(
    threads: vq.MessageFactory, given: Any
) -> None:
    producer, consumer = threads.create_producer(), threads.create_consumer()
    with pytest.raises(InvalidArgument, match=r"^callback = .* give a plain function of the resul"):
        producer.send_async(Message("t", b"x"), given)
    future = producer.send_async(Message("t", b"x"))
    with pytest.raises(InvalidArgument, match=r"^callback = .* give a plain function of the futur"):
        future.add_done_callback(given)
    with pytest.raises(InvalidArgument, match=r"^listener = .* give a plain function of the messa"):
        consumer.subscribe("t", 100, given)
    if not isinstance(given, str):
        with pytest.raises(InvalidArgument, match=r"^partitioner = .* give "):
            ProducerConfig(partitioner=given)
    producer.flush()
    assert producer.metrics().messages_accepted == 1


@pytest.mark.parametrize("given", NO_FUNCTIONS.values(), ids=NO_FUNCTIONS)
async def test_a_coroutine_refuses_the_same_callbacks(
    factory: aio.MessageFactory, given: Any
) -> None:
    producer = await producer_of(factory)
    with pytest.raises(InvalidArgument, match=r"^callback = "):
        await producer.send_async(Message("t", b"x"), given)
    assert await stored(factory) == []


@pytest.mark.parametrize(
    "given",
    [print, [].append, lambda *_: 1, functools.partial(print, 1), Counter],
    ids=["builtin", "method", "lambda", "partial", "class"],
)
def test_everything_that_a_call_runs_is_a_callback(given: Any) -> None:
    check_callback(given)


def test_what_an_interceptor_or_serializer_cannot_be() -> None:
    class Later(vq.ProducerInterceptor):
        async def after_send(self, *_: object) -> None:  # type: ignore[override]
            """Nothing would await it."""

    class Slow(Json):
        async def dumps(self, value: object) -> bytes:  # type: ignore[override]
            return b""

    with pytest.raises(InvalidArgument, match=r"^after_send of interceptor Later = .* a coroutine"):
        ProducerConfig(interceptors=(Later(),))
    with pytest.raises(InvalidArgument, match=r"^dumps of serializer Slow = .* a coroutine"):
        ProducerConfig(serializer=Slow())


@pytest.mark.parametrize("given", [{}, {"a": 1}, 0, "", ConsumerConfig, TopicSettings()], ids=repr)
def test_settings_of_another_class_are_refused(given: Any, threads: vq.MessageFactory) -> None:
    for make, name in (
        (vq.MessageFactory, "MessageFactoryConfig"),
        (vq.MessageFactory().open, "MessageFactoryConfig"),
        (aio.MessageFactory, "MessageFactoryConfig"),
        (threads.create_producer, "ProducerConfig"),
        (threads.create_consumer, "ConsumerConfig"),
    ):
        with pytest.raises(InvalidArgument, match=rf"^config = .*; give vq.{name}\(...\)"):
            make(given)


async def test_settings_of_another_class_are_refused_in_a_coroutine(
    factory: aio.MessageFactory,
) -> None:
    wrong: Any = {}
    for make in (factory.create_producer, factory.create_consumer, aio.MessageFactory().open):
        with pytest.raises(InvalidArgument, match=r"^config = \{\} is no "):
            await make(wrong)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (MessageFactoryConfig, "zookeeper"),
        (MessageFactoryConfig, "cluster"),
        (MessageFactoryConfig, "client_id"),
        (ConsumerConfig, "group"),
        (ConsumerConfig, "member_id"),
    ],
)
def test_a_name_is_text(kind: Any, name: str) -> None:
    for value in (3, 0, None, b"x", ["x"]):
        with case(value), pytest.raises(InvalidArgument, match=r"; give text$"):
            kind(**{name: value})


@pytest.mark.parametrize("messages", [3, None, "ab", b"ab", Message("t", b"x")], ids=repr)
def test_a_batch_is_a_list_of_messages(threads: vq.MessageFactory, messages: Any) -> None:
    """One message is a tuple, and would be taken apart."""
    with pytest.raises(InvalidArgument, match=r"^messages .*; give a list of (vq.Message|them)"):
        threads.create_producer().send_batch(messages)


Call = Callable[[vq.MessageFactory], Any]
WRONG_KINDS: dict[str, Call] = {
    "send_sync": lambda f: f.create_producer().send_sync(3),  # type: ignore[arg-type]
    "send_async": lambda f: f.create_producer().send_async(None),  # type: ignore[arg-type]
    "send_oneway": lambda f: f.create_producer().send_oneway("x"),  # type: ignore[arg-type]
    "topic": lambda f: f.create_producer().send_sync(Message(3, b"x")),  # type: ignore[arg-type]
    "oneway topic": lambda f: f.create_producer().send_oneway(Message([], b"x")),  # type: ignore[arg-type]
    "publish": lambda f: f.create_producer().publish(3),  # type: ignore[arg-type]
    "get topic": lambda f: f.create_consumer().get(3, 0, 0, 1),  # type: ignore[arg-type]
    "get partition": lambda f: f.create_consumer().get("t", "0", 0, 1),  # type: ignore[arg-type]
    "get offset": lambda f: f.create_consumer().get("t", 0, 1.5, 1),  # type: ignore[arg-type]
    "get length": lambda f: f.create_consumer().get("t", 0, 0, None),  # type: ignore[arg-type]
    "bounds topic": lambda f: f.create_consumer().get_bounds(None, 0),  # type: ignore[arg-type]
    "bounds partition": lambda f: f.create_consumer().get_bounds("t", "0"),  # type: ignore[arg-type]
    "subscribe topic": lambda f: f.create_consumer().subscribe([], 1, print),  # type: ignore[arg-type]
    "subscribe length": lambda f: f.create_consumer().subscribe("t", "1", print),  # type: ignore[arg-type]
    "filter": lambda f: f.create_consumer().subscribe("t", 1, print, 3),  # type: ignore[arg-type]
    "get_offset": lambda f: f.create_consumer(ConsumerConfig(group="g")).get_offset(3),  # type: ignore[arg-type]
    "placements": lambda f: f.get_partitions_for_topic(3),  # type: ignore[arg-type]
    "status": lambda f: f.get_status(3),  # type: ignore[arg-type]
    "status pair": lambda f: f.get_status(("b1", 1)),  # type: ignore[arg-type]
    "admin create": lambda f: f.admin.create_topic("u", {}),  # type: ignore[arg-type]
    "admin topic": lambda f: f.admin.describe_topic(3),  # type: ignore[arg-type]
    "admin delete": lambda f: f.admin.delete_topic(3),  # type: ignore[arg-type]
    "admin add": lambda f: f.admin.add_partitions("t", "2"),  # type: ignore[arg-type]
    "admin settings": lambda f: f.admin.change_settings("t", {}),  # type: ignore[arg-type]
    "admin no settings": lambda f: f.admin.change_settings("t", None),  # type: ignore[arg-type]
    "admin auto create": lambda f: f.admin.set_auto_create(True),  # type: ignore[arg-type]
    "admin auto create class": lambda f: f.admin.set_auto_create(TopicSettings),  # type: ignore[arg-type]
    "topic settings": lambda _: TopicSettings(partitions="2"),  # type: ignore[arg-type]
    "admin group": lambda f: f.admin.describe_group(3),  # type: ignore[arg-type]
    "admin status": lambda f: f.admin.broker_status(3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG_KINDS)
def test_an_argument_of_a_wrong_kind_is_shown(threads: vq.MessageFactory, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        WRONG_KINDS[name](threads)
    assert "give" in str(caught.value) or "is a vq.Message, not" in str(caught.value)


# Flush --------------------------------------------------------------------------------------------
async def test_flush_says_how_many_messages_are_open(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await producer_of(factory)
    await producer.flush(0)
    await producer.send(Message("t", b"x"))
    await producer.flush(0)
    flusher = cluster.flushers["b1"]
    flusher.held = True
    futures = [await producer.send_async(Message("t", b"x")) for _ in range(3)]
    for timeout in (0, 0.01):
        with pytest.raises(TimedOut, match=rf"without an outcome after {timeout} s: 3;") as caught:
            await producer.flush(timeout)
        assert caught.value.details == {"open": 3}
        assert "flush again" in caught.value.hint
    flusher.release()
    await producer.flush(WAIT_S)
    assert all(future.done() for future in futures)


def test_flush_of_threads_only_looks_with_zero(threads: vq.MessageFactory) -> None:
    producer = threads.create_producer()
    for _ in range(3):
        producer.flush(0)
        producer.send_sync(Message("t", b"x"))


def test_flush_says_that_a_callback_keeps_the_thread_busy(
    threads: vq.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking.producer, "ANSWER_S", 0.01)
    producer = threads.create_producer()
    begun, go_on = threading.Event(), threading.Event()

    def callback(*_: object) -> None:
        begun.set()
        go_on.wait(WAIT_S)

    producer.send_async(Message("t", b"x"), callback)
    assert begun.wait(WAIT_S)
    with pytest.raises(
        TimedOut, match=r"keeps the factory's thread busy for more than 0 s"
    ) as caught:
        producer.flush(0)
    assert "callback" in caught.value.hint
    go_on.set()
    producer.flush(WAIT_S)


# What an error shows of the way it came ------------------------------------------------------
def chain_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("name", ["send_sync", "send_async", "send_oneway"])
def test_an_error_of_a_first_send_has_no_inner_one(threads: vq.MessageFactory, name: str) -> None:
    """The producer publishes the topic by itself; an application does not see that step."""
    producer = threads.create_producer()
    with pytest.raises(UnknownTopic) as caught:
        getattr(producer, name)(Message("none", b"x"))
    assert "During handling" not in chain_of(caught.value)
    assert "NotPublished" not in chain_of(caught.value)


async def test_an_error_of_a_first_send_has_no_inner_one_in_a_coroutine(
    factory: aio.MessageFactory,
) -> None:
    producer = await producer_of(factory)
    for call in (producer.send, producer.send_async):
        with pytest.raises(UnknownTopic) as caught:
            await call(Message("none", b"x"))
        assert "During handling" not in chain_of(caught.value)


async def test_routes_that_cannot_be_read_name_zookeeper(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await producer_of(factory)

    async def never(_: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(producer._core, "publish_existing", never)
    with pytest.raises(
        NotSent, match=r"routes of t could not .* ZooKeeper within 0.01 s"
    ) as caught:
        await producer.send(Message("t", b"x"), 0.01)
    assert "127.0.0.1:2181" in caught.value.hint


# Fields of received messages ----------------------------------------------------------------------
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_message_that_names_its_partition_is_refused(
    factory: aio.MessageFactory, key: str | None
) -> None:
    """It would go elsewhere, and nobody would notice."""
    producer = await producer_of(factory)
    message = Message("t", b"x", key=key, partition=1)
    for call in (producer.send, producer.send_async, producer.send_oneway):
        for _ in range(2):  # the second time, the topic is published
            with pytest.raises(InvalidArgument, match=r"^partition = 1 .* message\.partition\)$"):
                await call(message)
    with pytest.raises(BatchFailed, match="partition = 1 of a message to send"):
        await producer.send_batch([message])
    assert await stored(factory) == []


async def test_a_partitioner_may_look_at_the_partition_of_a_message(
    factory: aio.MessageFactory,
) -> None:
    producer = await producer_of(factory, partitioner=lambda message, _: message.partition)
    for number in (0, 1, 1, 0):
        assert (await producer.send(Message("t", b"x", partition=number))).partition == number


async def test_a_received_message_may_be_sent_again(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    for key in (None, "k"):
        place = await producer.send(Message("t", b"x", key=key))
        consumer = await factory.create_consumer()
        [received] = await consumer.get("t", place.partition, place.offset, 1)
        assert received.partition == place.partition
        again = await producer.send(received)
        assert again.offset > place.offset or again.partition != place.partition
