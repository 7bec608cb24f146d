"""The accumulator of a whole producer: partitioners, reentrant sends, the bound of the buffer."""

import asyncio
import contextlib
import threading
import tracemalloc
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.counting import check_linear
from support.producers import (
    SMALLEST_BUFFER,
    core_of,
    ended,
    producer_of,
    published,
    send,
    space,
    stored,
    stored_in,
)
from support.threads import in_thread

from vq import aio
from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig, WhenFull
from vq.client.future import SendFuture
from vq.client.producer.intake.accumulator import Accumulator
from vq.client.producer.queue.batch import Ended
from vq.client.producer.spread.partitioner import TopicPartitions, key_partition
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    NotSent,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message, SendResult
from vq.remoting.broker_connection import BrokerConnection
from vq.testing.waiting import WAIT_S, until

HEADERS = {"h": "x" * 3_000}


# Partitioners -------------------------------------------------------------------------------------
class Chooses:
    def __init__(self, number: int | Exception) -> None:
        self.number = number

    def choose(self, message: Message, partitions: TopicPartitions) -> int:
        if isinstance(self.number, Exception):
            raise self.number
        return self.number


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_partitioner_of_ones_own_is_asked(
    factory: aio.MessageFactory, key: str | None
) -> None:
    producer = await factory.create_producer(ProducerConfig(partitioner=Chooses(1)))
    assert (await producer.send(Message("t", b"x", key=key))).partition == 1


async def test_nothing_is_appended_past_a_partitioner_of_ones_own(
    factory: aio.MessageFactory,
) -> None:
    producer = await factory.create_producer(ProducerConfig(partitioner=Chooses(1)))
    await producer.publish("t")
    assert core_of(producer).append(Message("t", b"x"), None, None) is None


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("choice", [2, -1, ZeroDivisionError()], ids=repr)
async def test_a_partitioner_that_fails_takes_no_space(
    factory: aio.MessageFactory, choice: Any, key: str | None
) -> None:
    """``close`` waits for what was taken: it must not wait for this one."""
    producer = await factory.create_producer(ProducerConfig(partitioner=Chooses(choice)))
    with pytest.raises(InvalidArgument, match="partitioner"):
        await producer.send(Message("t", b"x", key=key))
    assert space(core_of(producer)) == producer.config.buffer_bytes
    async with asyncio.timeout(WAIT_S):
        await producer.close()


@pytest.mark.parametrize("choice", [0.5, 1.0, "1", None])
async def test_a_partitioner_that_chooses_no_number_is_told(
    factory: aio.MessageFactory, choice: Any
) -> None:
    """Its message would take those before it along, when they are drained."""
    producer = await factory.create_producer(ProducerConfig(partitioner=Chooses(choice)))
    with pytest.raises(InvalidArgument, match="chose partition"):
        await producer.send(Message("t", b"x", key="k"))
    await producer.close()


async def test_a_partitioner_may_send(factory: aio.MessageFactory) -> None:
    """It is called without a lock: it tells another partition what it does, for one."""

    class Sends(Chooses):
        def choose(self, message: Message, partitions: TopicPartitions) -> int:
            if message.key is not None:
                core_of(producer).append_any(Message("t", b"note"))
            return 1 if message.key is None else 0

    producer = await factory.create_producer(ProducerConfig(partitioner=Sends(0)))
    await producer.publish("t")
    with in_thread(lambda: core_of(producer).append_any(Message("t", b"x", key="k"))) as sending:
        await until(sending.done)
    await producer.close()
    assert await stored(factory) == [b"x", b"note"]


async def test_a_partitioner_that_waits_holds_up_nobody_else(factory: aio.MessageFactory) -> None:
    waiting, go_on = threading.Event(), threading.Event()

    class Waits(Chooses):
        def choose(self, message: Message, partitions: TopicPartitions) -> int:
            if message.key == "slow":
                waiting.set()
                assert go_on.wait(20)
            return 0

    producer = await factory.create_producer(ProducerConfig(partitioner=Waits(0)))
    await producer.publish("t")
    core = core_of(producer)
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
        with core.accumulator.lock:
            core.append_any(Message("t", b"x", key="k"))
            with pytest.raises(InvalidState, match="send_async"):
                core.send_blocking(Message("t", b"y", key="k"))
            core.accumulator.appender.use(SMALLEST_BUFFER, 0)
            with pytest.raises(BufferFull):
                core.append_any(Message("t", b"z", key="k"))
            core.accumulator.appender.use(-SMALLEST_BUFFER, 0)

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
    core = core_of(producer)
    core.cluster.ids_ready = False
    await producer.send_async(Message("t", b"x" * MESSAGE_BYTES_MAX))
    waiting = [asyncio.create_task(producer.send(Message("t", b"%d" % n))) for n in range(3)]
    with pytest.raises(BufferFull):
        await core.space_line.wait(0.02)
    assert not any(task.done() for task in waiting)
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    await asyncio.gather(*waiting)
    await producer.close()
    assert space(core) == core.config.buffer_bytes
    metrics = producer.metrics()
    assert (metrics.total.messages_stored, metrics.buffer_waits) == (4, 4)
    assert metrics.buffer_wait_s >= 0.02 * 4, "all waits, one beside the other"
    assert metrics.buffer_full == 0, "no send raised it"


async def test_many_sends_that_wait_for_space_are_woken_once_or_twice(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each batch with an outcome woke all of them."""
    count = 500
    producer = await producer_of(factory, buffer_messages=5)
    await producer.publish("t")
    loop = asyncio.get_running_loop()
    create, waits = loop.create_future, 0

    def create_future() -> Any:
        nonlocal waits
        waits += 1
        return create()

    monkeypatch.setattr(loop, "create_future", create_future)
    sends = [producer.send(Message("t", b"%d" % n, key=0)) for n in range(count)]
    results = await asyncio.gather(*sends)
    assert sorted(results, key=lambda each: each.offset) == results
    assert waits < 10 * count


async def test_a_send_that_waits_for_space_does_not_publish_its_topic_again(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await producer_of(factory, buffer_messages=1)
    await producer.publish("t")

    async def publish(_: str) -> None:
        raise AssertionError

    monkeypatch.setattr(core_of(producer), "publish", publish)
    await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(3)))


async def test_a_gather_of_many_sends_costs_no_more_a_send_than_one_of_few(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose message waits for space runs twice: at its begin and with the outcome."""
    producer = await producer_of(factory, buffer_messages=50)
    await producer.publish("t")
    loop, real = asyncio.get_running_loop(), asyncio.get_running_loop().call_soon
    called = 0

    def call_soon(*args: Any, **named: Any) -> asyncio.Handle:
        nonlocal called
        called += 1
        return real(*args, **named)

    monkeypatch.setattr(loop, "call_soon", call_soon)
    costs = {}
    for count in (500, 5_000):
        called = 0
        await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(count)))
        costs[count] = called
    check_linear("steps of the event loop for sends", costs)
    assert costs[5_000] < 3.6 * 5_000  # a task's begin, its wake-up and its end, and the batches


async def test_a_full_buffer_refuses_at_once_if_the_application_says_so(
    factory: aio.MessageFactory,
) -> None:
    """Only a send that does not wait for its outcome is refused: ``send`` waits for space too."""
    producer = await producer_of(factory, buffer_messages=2, when_full=WhenFull.RAISE)
    core = core_of(producer)
    core.cluster.ids_ready = False  # nothing can be sent now
    accepted = [await producer.send_async(Message("t", b"%d" % n)) for n in range(2)]
    with pytest.raises(BufferFull, match="buffer_messages is 2"):
        await producer.send_async(Message("t", b"2"))
    waiting = asyncio.create_task(producer.send(Message("t", b"3")))
    await until(lambda: core.sender.space_line.waiting)
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    assert (await waiting).id > 0
    assert all([(await ended(each)).id for each in accepted])
    assert (await ended(await producer.send_async(Message("t", b"4")))).id > 0
    metrics = producer.metrics()
    assert (metrics.buffer_full, metrics.buffer_waits, metrics.messages_accepted) == (1, 1, 4)


async def test_a_full_buffer_names_the_partition_that_takes_nothing(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """To slow down would not help."""
    producer = await producer_of(factory, buffer_messages=2, when_full=WhenFull.RAISE)
    await producer.publish("t")
    core = core_of(producer)
    cluster.network.kill("b1")
    messages = [Message("t", b"%d" % n, key=0) for n in range(3)]
    for each in messages[:2]:
        await producer.send_async(each, timeout=600)
    await until(lambda: core.cluster.unreachable)
    core.sender.tick()
    cause = r"; t-0 takes none: its broker .* cannot be reached"
    with pytest.raises(BufferFull, match=f"buffer_bytes is .*{cause}") as full:
        await producer.send_async(messages[2])
    assert "vq cluster status" in full.value.hint
    with pytest.raises(BufferFull, match=f"within 0.02 s{cause}"):
        await core.space_line.wait(0.02)
    core.abandon("the test is over")


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
    core.cluster.ids_ready = False
    taken = 0
    with contextlib.suppress(BufferFull):
        while taken < SMALLEST_BUFFER:
            send(core, Message(names[taken % topics], b"x" * 100))
            taken += 1
    assert taken == SMALLEST_BUFFER // (100 + MESSAGE_OVERHEAD_BYTES) + 1
    core.cluster.ids_ready = True
    core.sender.send_waiting()
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
    core = core_of(producer)
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
    core.cluster.ids_ready = False
    send(core, Message("t", b"x" * MESSAGE_BYTES_MAX))
    begin = asyncio.get_running_loop().time()
    with pytest.raises(BufferFull):
        send(core, Message("t", b"y"))
    assert asyncio.get_running_loop().time() - begin < core.config.send_timeout_s / 2
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    await core.close()


async def test_a_thread_that_waits_for_space_is_woken_by_the_end(
    factory: aio.MessageFactory,
) -> None:
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)
    core.cluster.ids_ready = False
    send(core, Message("t", b"x" * MESSAGE_BYTES_MAX), None, 30.0)
    with in_thread(lambda: send(core, Message("t", b"y"), None, 30.0)) as waiting:
        await until(lambda: core.accumulator.waiting_threads)
        closing = asyncio.create_task(core.close())
        await until(lambda: not core.accumulator.waiting_threads)
        core.cluster.ids_ready = True
        core.sender.send_waiting()
        await closing
        assert isinstance(await asyncio.to_thread(waiting.exception, WAIT_S), InvalidState)


async def test_every_thread_that_waits_for_room_goes_on_when_there_is_enough(
    factory: aio.MessageFactory,
) -> None:
    """One outcome makes room for all of them."""
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)
    core.cluster.ids_ready = False
    large = send(core, Message("t", b"x" * MESSAGE_BYTES_MAX), None, 30.0)

    def send_small() -> SendFuture:
        return send(core, Message("t", b"y"), None, 30.0)

    with in_thread(send_small) as one, in_thread(send_small) as two:
        await until(lambda: core.accumulator.waiting_threads == 2)
        core.accumulator.drain()
        large.deadline = 0.0  # the only outcome while both wait
        core.sender.tick()
        assert large.done()
        async with asyncio.timeout(WAIT_S):
            futures = [await asyncio.wrap_future(each) for each in (one, two)]
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    assert [type(await ended(future)) for future in futures] == [SendResult] * 2
    assert space(core) == core.config.buffer_bytes


async def test_a_send_has_one_deadline_for_routes_room_and_outcome(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await producer_of(factory)
    core = core_of(producer)
    publish, wait_for_space, append = core.publish, core.space_line.wait, core.append
    left: list[float] = []

    async def slow(topic: str) -> None:
        await asyncio.sleep(0.001)
        await publish(topic)

    async def noted_wait(timeout: float | None) -> None:
        assert timeout is not None
        left.append(timeout)
        await asyncio.sleep(0.001)
        await wait_for_space(timeout)

    def noted(message: Message, callback: Any, timeout: float) -> SendFuture | None:
        left.append(timeout)
        return append(message, callback, timeout)

    monkeypatch.setattr(core, "publish_existing", slow)
    monkeypatch.setattr(core.space_line, "wait", noted_wait)
    monkeypatch.setattr(core, "append", noted)
    assert (await producer.send(Message("t", b"x"), timeout=30.0)).id > 0
    first, room, outcome = left
    assert first == 30.0 > room > outcome > 0.0


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
        core.cluster.ids_ready = False
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
    core.accumulator.drain()
    for queue in core.accumulator.topics["t"].queues:
        queue.close(NotSent())
    await until(lambda: space(core) == core.config.buffer_bytes)
    await core.close()


async def test_space_between_the_look_and_the_wait_wakes_a_sender(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await published(factory)
    looks = 0

    def overtaken() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            core.sender.on_ended(Ended(0, 0))  # another thread made space when this one had looked
        return looks > 1

    places_left = property(lambda _: overtaken())
    monkeypatch.setattr(Accumulator, "places_left", places_left)
    async with asyncio.timeout(WAIT_S):
        await core.space_line.wait(60.0)
    assert not core.sender.space_line.waiting
