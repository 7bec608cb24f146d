"""The asynchronous API against real brokers, sockets and ZooKeeper."""

import asyncio
import itertools
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from support.cluster import ProcessCluster, process_cluster
from support.producers import client_of
from support.zookeeper import ZooKeeperService

import vq
from vq import aio
from vq.coordination.topics import topics
from vq.errors import (
    BufferFull,
    InvalidState,
    MessageTooLarge,
    OffsetOutOfRange,
    OutcomeUnknown,
    Refused,
    UnknownTopic,
)
from vq.limits import MESSAGE_BYTES_MAX, MIB
from vq.model import SendResult, TopicPartition, TopicSettings
from vq.testing import waiting
from vq.testing.waiting import PROCESSES_WAIT_S

until = partial(waiting.until, timeout_s=PROCESSES_WAIT_S)
_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    """A broker for all tests of this module; a test that hurts it heals it."""
    with process_cluster(tmp_path_factory.mktemp("brokers"), zookeeper.hosts) as cluster:
        cluster.add("b1")
        yield cluster


@pytest.fixture
async def factory(cluster: ProcessCluster) -> AsyncIterator[aio.MessageFactory]:
    async with aio.MessageFactory(config_of(cluster)) as factory:
        yield factory
    this = asyncio.current_task()
    await until(lambda: asyncio.all_tasks() <= {this})


@pytest.fixture
async def topic(factory: aio.MessageFactory) -> str:
    """A topic of four partitions, made just now."""
    name = f"topic-{next(_names)}"
    await topics.create_topic(_coordinator(factory), name, TopicSettings(partitions=4))
    return name


def _coordinator(factory: aio.MessageFactory) -> Any:
    return client_of(factory).coordinator


def config_of(cluster: ProcessCluster) -> vq.MessageFactoryConfig:
    return vq.MessageFactoryConfig(
        zookeeper=cluster.zookeeper, cluster=cluster.name, session_timeout_s=30.0
    )


async def read_all(factory: aio.MessageFactory, topic: str) -> list[bytes]:
    """Every message of a topic, partition by partition."""
    found: list[bytes] = []
    async with await factory.create_consumer() as consumer:
        for placement in await factory.get_partitions_for_topic(topic):
            offset = 0
            while messages := await consumer.get(topic, placement.partition, offset, 1 << 20):
                found += [message.content for message in messages]
                offset = messages[-1].next_offset
    return found


async def test_many_sends_at_once_keep_their_order_by_key(
    factory: aio.MessageFactory, topic: str
) -> None:
    async with await factory.create_producer() as producer:
        results = await asyncio.gather(
            *(producer.send(vq.Message(topic, b"%d" % n, key="k")) for n in range(500))
        )
    assert len({result.id for result in results}) == 500
    assert await read_all(factory, topic) == [b"%d" % n for n in range(500)]


async def test_a_send_that_is_cancelled_disturbs_no_other(
    factory: aio.MessageFactory, topic: str
) -> None:
    producer = await factory.create_producer()
    await producer.publish(topic)
    tasks = [asyncio.create_task(producer.send(vq.Message(topic, b"%d" % n))) for n in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(each, asyncio.CancelledError) for each in ended) == 34
    await producer.close()
    stored = await read_all(factory, topic)
    assert len(stored) == len(set(stored)) >= 66


async def test_what_cannot_be_sent_or_read_is_refused(
    factory: aio.MessageFactory, topic: str
) -> None:
    producer = await factory.create_producer()
    with pytest.raises(MessageTooLarge):
        await producer.send(vq.Message(topic, b"x" * (MESSAGE_BYTES_MAX + 1)))
    with pytest.raises(UnknownTopic):
        await producer.send(vq.Message("missing", b"x"))
    consumer = await factory.create_consumer()
    with pytest.raises(OffsetOutOfRange):
        await consumer.get(topic, 0, 1, 100)
    with pytest.raises(UnknownTopic):
        await consumer.get("missing", 0, 0, 100)
    await producer.close()
    with pytest.raises(InvalidState):
        await producer.send(vq.Message(topic, b"x"))


async def test_a_full_buffer_waits_and_then_refuses(
    cluster: ProcessCluster, factory: aio.MessageFactory, topic: str
) -> None:
    producer = await factory.create_producer(
        vq.ProducerConfig(buffer_bytes=MESSAGE_BYTES_MAX + 512)
    )
    await producer.publish(topic)
    broker = cluster.brokers["b1"]
    broker.signal(signal.SIGSTOP)
    try:
        await producer.send_async(vq.Message(topic, b"x" * MESSAGE_BYTES_MAX))
        waiting = [
            asyncio.create_task(producer.send(vq.Message(topic, b"%d" % n))) for n in range(3)
        ]
        with pytest.raises(BufferFull):  # publishing takes a part of that time
            await producer.send(vq.Message(topic, b"y"), timeout=2.0)
        late = await asyncio.gather(
            producer.send(vq.Message(topic, b"z"), timeout=0.1), return_exceptions=True
        )
        assert isinstance(late[0], Refused)
    finally:
        broker.signal(signal.SIGCONT)
    assert len(await asyncio.gather(*waiting)) == 3
    await producer.close()


async def test_large_messages_of_many_partitions_keep_to_the_memory_of_their_consumer(
    factory: aio.MessageFactory,
) -> None:
    """Each partition's share is a small part of a message; one at a time gets a whole one."""
    name, count, size = f"topic-{next(_names)}", 24, 900_000
    await topics.create_topic(_coordinator(factory), name, TopicSettings(partitions=count))
    config = vq.ConsumerConfig(group="large", buffer_bytes=MIB)
    consumer = (await factory.create_consumer(config)).subscribe(name)
    core: Any = consumer._core
    await consumer.start()
    await until(lambda: len(consumer.assignment()) == count)
    producer = await factory.create_producer()
    for n in range(2 * count):
        await producer.send(vq.Message(name, bytes(size), key=f"k{n}"))
    await producer.close()
    most, received = 0, 0
    async with asyncio.timeout(PROCESSES_WAIT_S):
        async for message in consumer:
            assert len(message.content) == size
            fetchers = [reading.fetcher for reading in core.holds.readings()]
            most = max(most, sum(each.asked + each.buffered for each in fetchers))
            received += 1
            if received == 2 * count:
                break
    await consumer.close()
    assert size < most < 2 * MIB + 100_000, f"{most} bytes"
    assert core._fetches.space.grower is None


async def test_a_group_shares_hands_over_and_repeats_nothing(
    factory: aio.MessageFactory, topic: str
) -> None:
    producer = await factory.create_producer()
    seen: list[bytes] = []

    async def consume(consumer: aio.MessageConsumer) -> None:
        async for message in consumer:
            seen.append(message.content)  # noqa: PERF401 - as they come

    async def join() -> tuple[aio.MessageConsumer, asyncio.Task[None]]:
        consumer = await factory.create_consumer(vq.ConsumerConfig(group=topic, max_wait_s=1.0))
        consumer.subscribe(topic)
        return consumer, asyncio.create_task(consume(consumer))

    sent = itertools.count()
    first, first_task = await join()
    for _ in range(300):
        await producer.send_async(vq.Message(topic, b"%d" % next(sent)))
    await until(lambda: len(first.assignment()) == 4)
    second, second_task = await join()
    await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
    for _ in range(300):
        await producer.send_async(vq.Message(topic, b"%d" % next(sent)))
    await until(lambda: len(seen) >= 400)
    await first.close()
    await until(lambda: len(seen) >= 600)
    await second.close()
    await asyncio.gather(first_task, second_task)
    assert sorted(map(int, seen)) == list(range(600))


async def test_progress_is_kept_and_a_message_in_hand_counts_at_a_clean_end(
    factory: aio.MessageFactory, topic: str
) -> None:
    producer = await factory.create_producer()
    for number in range(5):
        await producer.send(vq.Message(topic, b"%d" % number, key="k"))
    found: list[bytes] = []
    for _ in range(5):
        settings = vq.ConsumerConfig(group=topic, max_wait_s=1.0)
        async with await factory.create_consumer(settings) as consumer:
            consumer.subscribe(topic)
            async for message in consumer:
                found.append(message.content)
                break
    assert found == [b"0", b"1", b"2", b"3", b"4"]
    offsets = await consumer.get_offset(topic)
    (bounds,) = [
        await consumer.get_bounds(topic, partition.partition)
        for partition, offset in offsets.items()
        if offset
    ]
    assert max(offsets.values()) == bounds.latest
    assert TopicPartition(topic, 0) in offsets


async def test_a_killed_broker_costs_nothing_that_was_acknowledged(
    cluster: ProcessCluster, factory: aio.MessageFactory, topic: str
) -> None:
    producer = await factory.create_producer()
    acknowledged: list[bytes] = []
    enough = asyncio.Event()

    async def work(number: int) -> None:
        for count in itertools.count():
            if enough.is_set():
                return
            content = b"%d.%d" % (number, count)
            try:
                await producer.send(vq.Message(topic, content, key=str(number)))
            except OutcomeUnknown:
                continue
            acknowledged.append(content)
            await asyncio.sleep(0.002)

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await until(lambda: len(acknowledged) > 50)
    await asyncio.to_thread(cluster.brokers["b1"].kill)
    # From this thread: the kernel ties the child to the thread that starts it.
    cluster.brokers["b1"].start()
    await asyncio.to_thread(cluster.brokers["b1"].wait_ready)
    again = len(acknowledged) + 250
    await until(lambda: len(acknowledged) >= again)
    enough.set()
    await asyncio.gather(*tasks)
    stored = await read_all(factory, topic)
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)


async def test_a_factory_opened_twice_at_once_has_one_session(cluster: ProcessCluster) -> None:
    """The second one is refused, as it is later; and no session is left that nobody closes."""
    config = config_of(cluster)
    other = aio.MessageFactory(config)
    before = threading.active_count()
    opened = await asyncio.gather(other.open(), other.open(), return_exceptions=True)
    assert [type(each) for each in opened] == [aio.MessageFactory, InvalidState]
    await other.shutdown()
    await until(lambda: threading.active_count() <= before)


async def test_shutting_down_under_load_gives_every_message_its_outcome(
    cluster: ProcessCluster, factory: aio.MessageFactory, topic: str
) -> None:
    other = await aio.MessageFactory().open(config_of(cluster))
    producer = await other.create_producer()
    await producer.publish(topic)
    consumer = await other.create_consumer(vq.ConsumerConfig(group=topic))
    await consumer.subscribe(topic).start()
    tasks = [asyncio.create_task(producer.send(vq.Message(topic, b"x"))) for _ in range(500)]
    await until(lambda: any(task.done() for task in tasks))
    await other.shutdown()
    async with asyncio.timeout(PROCESSES_WAIT_S):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ended} <= {SendResult, InvalidState}
    stored = sum(isinstance(each, SendResult) for each in ended)
    assert len(await read_all(factory, topic)) == stored > 0
    await other.shutdown()
    await producer.close()
    await consumer.close()
