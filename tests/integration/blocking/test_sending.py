"""What a thread sends is stored where its result says, or refused, whatever the brokers do."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.blocking import NAMES, contents, read_all, stopped
from support.cluster import ProcessCluster
from support.producers import client_of, core_of
from support.threads import in_thread, spawn
from support.topics import create_topic, delete_topic

import vq
from vq.client.config import WhenFull
from vq.errors import (
    BufferFull,
    InvalidArgument,
    MessageTooLarge,
    OutcomeUnknown,
    Refused,
    UnknownTopic,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import SendResult
from vq.testing.waiting import WAIT_S, block_until


def test_sync_and_async_sends_are_stored_where_they_say(
    factory: vq.MessageFactory, topic: str
) -> None:
    """Right after the topic was made, without publishing it first."""
    producer = factory.create_producer()
    told: list[tuple[SendResult | None, Exception | None]] = []
    results = [producer.send_sync(vq.Message(topic, b"sync"))]
    future = producer.send_async(vq.Message(topic, b"async"), lambda *outcome: told.append(outcome))
    results.append(future.result(WAIT_S))
    block_until(lambda: told == [(results[1], None)])
    consumer = factory.create_consumer()
    for result, content in zip(results, (b"sync", b"async"), strict=True):
        (message,) = consumer.get(topic, result.partition, result.offset, 100)
        assert (message.content, message.id, message.offset) == (content, result.id, result.offset)


def test_one_thread_keeps_its_order_sync_async_and_batches_mixed(
    factory: vq.MessageFactory, topic: str
) -> None:
    producer = factory.create_producer(vq.ProducerConfig(batch_records=7))
    numbers = itertools.count()

    def numbered(count: int) -> list[vq.Message]:
        some = itertools.islice(numbers, count)
        return [vq.Message(topic, b"%d" % number, key="same") for number in some]

    for turn in range(60):
        for message in numbered(turn % 4):  # with none, the next ones are sent from this thread
            producer.send_async(message)
        for way in ("batch", "sync") if turn % 2 else ("sync", "batch"):
            if way == "sync":
                producer.send_sync(*numbered(1))
            else:
                producer.send_batch(numbered(turn % 9))
    (messages,) = read_all(factory, topic).values()
    assert contents(messages) == [b"%d" % number for number in range(next(numbers))]


def test_batches_and_other_sends_of_several_threads_at_once(
    factory: vq.MessageFactory, topic: str
) -> None:
    """Each thread keeps its order, whoever sends its messages."""
    producer = factory.create_producer()

    def work(thread: int) -> None:
        for turn in range(40):
            own = [
                vq.Message(topic, b"%d.%d.%d" % (thread, turn, n), key="same") for n in range(10)
            ]
            if thread == 0:
                for each in own:
                    producer.send_async(each)
            elif thread == 1:
                producer.send_sync(own[0])
            else:
                assert len(producer.send_batch(own)) == 10

    threads = [spawn(lambda thread=n: work(thread)) for n in range(4)]
    for thread in threads:
        thread.result(WAIT_S)
    producer.flush(WAIT_S)
    (messages,) = read_all(factory, topic).values()
    sent = [tuple(map(int, each.split(b"."))) for each in contents(messages)]
    assert len(sent) == len(set(sent)) == 400 + 40 + 2 * 400
    for number in range(4):
        own = [each for each in sent if each[0] == number]
        assert own == sorted(own)


def test_many_threads_send_sync_and_async_at_once(factory: vq.MessageFactory, topic: str) -> None:
    """Every message is stored once, in the order of its thread, with ids that never meet."""
    producer = factory.create_producer()

    def work(thread: int) -> list[SendResult]:
        futures, results = [], []
        for number in range(60):
            message = vq.Message(topic, b"%d.%d" % (thread, number), key=str(number % 3))
            if thread % 3 == 2:
                futures.append(producer.send_async(message))
            else:
                results.append(producer.send_sync(message, WAIT_S))
        return results + [future.result(WAIT_S) for future in futures]

    threads = [spawn(lambda thread=n: work(thread)) for n in range(9)]
    results = [result for thread in threads for result in thread.result(60)]
    assert len({result.id for result in results}) == 540
    assert len({result[:2] for result in results}) == 540
    found = read_all(factory, topic)
    assert sum(map(len, found.values())) == 540
    for messages in found.values():
        last: dict[bytes, int] = {}
        for message in messages:
            thread, number = message.content.split(b".")
            assert int(number) > last.get(thread, -1)
            last[thread] = int(number)


def test_keys_tags_and_headers_travel(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    sent = vq.Message(topic, b"x", "tag", "key", {"trace": "ü", "empty": ""})
    partitions = {producer.send_sync(sent).partition for _ in range(5)}
    assert len(partitions) == 1, "a key always goes to the same place"
    found = read_all(factory, topic)[partitions.pop()]
    assert [message[:5] for message in found] == [sent[:5]] * 5


def test_what_cannot_be_sent_is_refused(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    for send in (producer.send_sync, producer.send_async):
        with pytest.raises(MessageTooLarge):
            send(vq.Message(topic, b"x" * (MESSAGE_BYTES_MAX + 1)))
        with pytest.raises(UnknownTopic, match="vq topic create"):
            send(vq.Message("missing", b"x"))
        with pytest.raises(InvalidArgument):
            send(vq.Message(topic, "text"))  # type: ignore[arg-type]
    largest = producer.send_sync(vq.Message(topic, b"x" * MESSAGE_BYTES_MAX), WAIT_S)
    consumer = factory.create_consumer()
    (message,) = consumer.get(topic, largest.partition, largest.offset, 100)
    assert len(message.content) == MESSAGE_BYTES_MAX


def test_a_topic_deleted_while_producing_ends_its_sends_and_nothing_else(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str
) -> None:
    producer = factory.create_producer()
    other = f"{topic}-other"
    create_topic(cluster, other, partitions=1)
    stop = threading.Event()

    def work(direct: bool) -> Exception | None:
        while not stop.wait(0.001):
            try:
                message = vq.Message(topic, b"x")
                producer.send_sync(message) if direct else producer.send_async(message)
            except vq.VqError as error:
                return error
        return None

    with in_thread(lambda: work(True)) as first, in_thread(lambda: work(False)) as second:
        block_until(lambda: topic in client_of(factory).routes.topics)
        delete_topic(cluster, topic)
        ends = [each.result(WAIT_S) for each in (first, second)]
        stop.set()
    assert all(isinstance(end, UnknownTopic | OutcomeUnknown) for end in ends), ends
    assert producer.send_sync(vq.Message(other, b"x")).partition == 0
    with in_thread(producer.close) as closing:
        assert closing.exception(WAIT_S) is None


def test_a_full_buffer_waits_and_then_refuses(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str
) -> None:
    producer = factory.create_producer(
        vq.ProducerConfig(buffer_bytes=MESSAGE_BYTES_MAX + 512, send_timeout_s=60.0)
    )
    producer.publish(topic)
    with stopped(cluster, "b1"), stopped(cluster, "b2"):
        futures = [producer.send_async(vq.Message(topic, b"x" * MESSAGE_BYTES_MAX))]
        begin = time.monotonic()
        with pytest.raises(BufferFull):
            producer.send_async(vq.Message(topic, b"y"), timeout=0.2)
        assert 0.15 < time.monotonic() - begin < WAIT_S
        with in_thread(lambda: producer.send_async(vq.Message(topic, b"z"))) as waiting:
            block_until(lambda: core_of(producer).accumulator.waiting_threads)
            assert not waiting.done()
            for group in ("b1", "b2"):
                cluster.brokers[group].signal(signal.SIGCONT)
            futures.append(waiting.result(WAIT_S))
    assert all(future.result(WAIT_S) for future in futures)


def test_a_batch_is_stored_in_its_order(factory: vq.MessageFactory, topic: str) -> None:
    """More messages than the buffer holds; a batch inside a callback would wait for itself."""
    producer = factory.create_producer(vq.ProducerConfig(buffer_messages=100, when_full="raise"))
    contents = [b"%d" % n for n in range(5_000)]
    results = producer.send_batch(vq.Message(topic, each) for each in contents)
    (partition,) = {result.partition for result in results}
    with factory.create_consumer() as consumer:
        found = consumer.get(topic, partition, results[0].offset, 1 << 20)
    assert [message.content for message in found] == contents
    raised: list[BaseException] = []
    ended = threading.Event()

    def callback(*_: object) -> None:
        try:
            producer.send_batch([vq.Message(topic, b"x")])
        except vq.InvalidState as error:
            raised.append(error)
        ended.set()

    producer.send_async(vq.Message(topic, b"x"), callback)
    assert ended.wait(WAIT_S)
    assert "would wait for itself" in str(raised[0])
    with pytest.raises(vq.BatchFailed, match="2 are stored, 1 refused, 0 unknown"):
        producer.send_batch(vq.Message(each, b"x") for each in (topic, "nowhere", topic))


def test_one_way_messages_are_stored(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    for number in range(10):
        assert producer.send_oneway(vq.Message(topic, b"%d" % number)) is None  # type: ignore[func-returns-value]
    producer.flush()
    assert producer.metrics().topics[topic].messages_stored == 10


def test_deadlines_hold_while_a_broker_stands_still(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """Sync sends of several threads, combined or waiting their turn, behind one that has time."""
    name = f"still-{next(NAMES)}"
    create_topic(cluster, name, partitions=1)
    producer = factory.create_producer()
    producer.send_sync(vq.Message(name, b"before"))
    owner = factory.get_partitions_for_topic(name)[0].writer_group
    assert owner is not None

    def fail(content: bytes, *, direct: bool = True) -> tuple[Exception | None, float]:
        begin, error = time.monotonic(), None
        try:
            if direct:
                producer.send_sync(vq.Message(name, content), 0.3)
            else:
                producer.send_async(vq.Message(name, content), timeout=0.3).result(WAIT_S)
        except vq.VqError as caught:
            error = caught
        return error, time.monotonic() - begin

    with stopped(cluster, owner):
        slow = spawn(lambda: producer.send_sync(vq.Message(name, b"slow"), 3 * WAIT_S))
        (queue,) = core_of(producer).accumulator.topics[name].queues
        block_until(lambda: queue.claimed)
        quick = [spawn(lambda: fail(b"quick")) for _ in range(4)]
        with in_thread(lambda: fail(b"behind", direct=False)) as behind:
            errors, took_s = zip(*(each.result(WAIT_S) for each in [*quick, behind]), strict=True)
        assert all(0.25 < each < WAIT_S for each in took_s), f"{took_s}: the slow one has 60 s"
        assert not slow.done()
        assert all(isinstance(error, Refused | OutcomeUnknown) for error in errors), errors
    assert slow.result(WAIT_S).partition == 0
    stored = contents(read_all(factory, name)[0])
    assert stored.count(b"before") == stored.count(b"slow") == 1
    for error, content in zip(errors, [b"quick"] * 4 + [b"behind"], strict=True):
        if isinstance(error, Refused) and content == b"behind":
            assert content not in stored


def test_what_a_full_buffer_refuses_is_counted(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """Each message whose send raised ``BufferFull``, in every way to send, and each wait."""
    name = f"full-{next(NAMES)}"
    create_topic(cluster, name, partitions=1)
    config = vq.ProducerConfig(buffer_messages=2, when_full=WhenFull.RAISE)
    producer = factory.create_producer(config)
    producer.publish(name)
    owner = factory.get_partitions_for_topic(name)[0].writer_group
    assert owner is not None
    with stopped(cluster, owner):
        for _ in range(2):
            producer.send_async(vq.Message(name, b"x"))
        for message in (vq.Message(name, b"x"), vq.Message(name, b"x", key="k")):
            with pytest.raises(BufferFull):
                producer.send_async(message)
            with pytest.raises(BufferFull):
                producer.send_oneway(message)
        assert (producer.metrics().buffer_full, producer.metrics().buffer_waits) == (4, 0)
        with pytest.raises(BufferFull):
            producer.send_sync(vq.Message(name, b"x"), 0.1)
        with pytest.raises(vq.BatchFailed):
            producer.send_batch([vq.Message(name, b"x")] * 3, 0.1)
    metrics = producer.metrics()
    assert (metrics.buffer_full, metrics.buffer_waits) == (8, 2)
    assert 0.2 <= metrics.buffer_wait_s < WAIT_S
    producer.close()
    assert producer.metrics().total.messages_stored == 2


def test_ctrl_c_in_a_send_leaves_the_other_threads_their_results(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """The main thread leads when the signal comes."""
    name = f"signal-{next(NAMES)}"
    create_topic(cluster, name, partitions=1)
    producer = factory.create_producer()
    producer.send_sync(vq.Message(name, b"before"))
    owner = factory.get_partitions_for_topic(name)[0].writer_group
    assert owner is not None
    with stopped(cluster, owner):
        others: list[Any] = []

        def interrupt() -> None:
            (queue,) = core_of(producer).accumulator.topics[name].queues
            block_until(lambda: queue.claimed)
            others.extend(
                spawn(lambda: producer.send_sync(vq.Message(name, b"other"), WAIT_S))
                for _ in range(3)
            )
            block_until(lambda: len(queue.pending) == 3)
            os.kill(os.getpid(), signal.SIGINT)

        with in_thread(interrupt), pytest.raises(KeyboardInterrupt):
            producer.send_sync(vq.Message(name, b"main"), WAIT_S)
    assert len({other.result(WAIT_S).id for other in others}) == 3
    producer.send_sync(vq.Message(name, b"after"), WAIT_S)
    stored = contents(read_all(factory, name)[0])
    assert sorted(stored) == sorted([b"before", b"main", *[b"other"] * 3, b"after"])


@pytest.mark.parametrize("way", ["flush", "close", "send_sync", "send_batch"])
def test_a_handler_may_wait_while_a_batch_is_under_way(
    cluster: ProcessCluster, factory: vq.MessageFactory, way: str
) -> None:
    """The loop sends the batch that the interrupted thread waits for; each message comes once."""
    name = f"handler-{next(NAMES)}"
    create_topic(cluster, name, partitions=1)
    producer = factory.create_producer()
    producer.send_sync(vq.Message(name, b"before"))
    owner = factory.get_partitions_for_topic(name)[0].writer_group
    assert owner is not None
    waits: dict[str, Callable[[], object]] = {
        "flush": lambda: producer.flush(WAIT_S),
        "close": producer.close,
        "send_sync": lambda: producer.send_sync(vq.Message(name, b"handler"), WAIT_S),
        "send_batch": lambda: producer.send_batch([vq.Message(name, b"handler")], WAIT_S),
    }
    handled: list[bool] = []

    def handle(*_: object) -> None:
        cluster.brokers[owner].signal(signal.SIGCONT)
        waits[way]()
        handled.append(True)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with stopped(cluster, owner):

            def interrupt() -> None:
                (queue,) = core_of(producer).accumulator.topics[name].queues
                block_until(lambda: queue.in_flight)
                os.kill(os.getpid(), signal.SIGUSR1)

            with in_thread(interrupt):
                results = producer.send_batch([vq.Message(name, b"%d" % n) for n in range(9)])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [True]
    assert [each.offset for each in results] == sorted(each.offset for each in results)
    stored = contents(read_all(factory, name)[0])
    own = [b"handler"] if way.startswith("send") else []
    assert stored == [b"before", *(b"%d" % n for n in range(9)), *own]


def test_a_killed_broker_costs_nothing_that_was_acknowledged(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    name = f"kill-{next(NAMES)}"
    create_topic(cluster, name, partitions=1)
    producer = factory.create_producer()
    owner = factory.get_partitions_for_topic(name)[0].writer_group
    assert owner is not None
    stop = threading.Event()
    acknowledged: list[list[bytes]] = [[] for _ in range(5)]

    def work(thread: int) -> None:
        mine = acknowledged[thread]
        for number in itertools.count():
            content = b"%d.%d" % (thread, number)
            if thread == 4:
                batch = [content + b".%d" % n for n in range(5)]
                producer.send_batch([vq.Message(name, each) for each in batch], WAIT_S)
                mine.extend(batch)
            elif thread % 2:
                producer.send_sync(vq.Message(name, content), WAIT_S)
                mine.append(content)
            else:
                producer.send_async(
                    vq.Message(name, content),
                    lambda result, _, content=content: result and mine.append(content),
                )
                time.sleep(0.001)
            if stop.is_set():
                return

    def more_are_acknowledged() -> None:
        """Wait until every thread has had so many more: enough to lose some."""
        counts = [len(each) for each in acknowledged]
        block_until(
            lambda: all(len(e) >= n + 20 for e, n in zip(acknowledged, counts, strict=True))
        )

    threads = [spawn(lambda thread=n: work(thread)) for n in range(5)]
    more_are_acknowledged()
    cluster.brokers[owner].kill()
    cluster.restart(owner)
    more_are_acknowledged()
    stop.set()
    for thread in threads:
        thread.result(WAIT_S)
    producer.flush(WAIT_S)
    stored = contents(read_all(factory, name)[0])
    assert len(stored) == len(set(stored)), "nothing is stored twice"
    for each in acknowledged:
        place = [stored.index(content) for content in each]
        assert place == sorted(place)
