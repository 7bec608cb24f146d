"""Bad input to the two APIs: each method refuses it in the same words, and nothing is sent."""

import asyncio
import math
import threading
import traceback
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import cluster_client
from support.producers import producer_of, published, send, stored
from support.waiting import WAIT_S

import vq
from vq import aio, blocking
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.errors import InvalidArgument, NotSent, TimedOut, UnknownTopic
from vq.limits import TIMEOUT_S_MAX
from vq.model import Message, check_timeout


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

    monkeypatch.setattr(blocking, "open_cluster", open_cluster)
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
BAD_TIMES = [math.nan, True, False, "1", b"1", [], 1j, object]
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
    monkeypatch.setattr(blocking, "_ANSWER_S", 0.01)
    producer = threads.create_producer()
    begun, go_on = threading.Event(), threading.Event()

    def callback(*_: object) -> None:
        begun.set()
        go_on.wait(WAIT_S)

    producer.send_async(Message("t", b"x"), callback)
    assert begun.wait(WAIT_S)
    with pytest.raises(TimedOut, match=r"thread did not answer within 0 s") as caught:
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

    monkeypatch.setattr(producer._core, "publish", never)
    with pytest.raises(
        NotSent, match=r"routes of t could not .* ZooKeeper within 0.01 s"
    ) as caught:
        await producer.send(Message("t", b"x"), 0.01)
    assert "127.0.0.1:2181" in caught.value.hint
