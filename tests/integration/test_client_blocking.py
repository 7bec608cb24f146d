"""The blocking API against real brokers, sockets and ZooKeeper."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import ProcessCluster, process_cluster
from support.threads import in_thread, spawn
from support.topics import create_topic, delete_topic
from support.waiting import PROCESSES_WAIT_S, WAIT_S, block_until
from support.zookeeper import ZooKeeperService

import vq
from vq.client.config import WhenFull
from vq.errors import (
    BufferFull,
    CoordinationError,
    InvalidArgument,
    InvalidState,
    MessageTooLarge,
    OffsetNotBoundary,
    OffsetOutOfRange,
    OutcomeUnknown,
    Refused,
    UnknownTopic,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import SendResult, TopicPartition

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    """Two brokers for all tests of this module; a test that hurts one heals it."""
    with process_cluster(tmp_path_factory.mktemp("brokers"), zookeeper.hosts) as cluster:
        cluster.add("b1")
        cluster.add("b2")
        yield cluster


@pytest.fixture
def factory(cluster: ProcessCluster) -> Iterator[vq.MessageFactory]:
    before = threading.active_count()
    with vq.MessageFactory(config_of(cluster)) as factory:
        yield factory
    block_until(lambda: threading.active_count() <= before)


@pytest.fixture
def topic(cluster: ProcessCluster) -> str:
    """A topic of four partitions, made just now."""
    name = f"topic-{next(_names)}"
    create_topic(cluster, name, partitions=4)
    return name


def config_of(cluster: ProcessCluster, **settings: Any) -> vq.MessageFactoryConfig:
    return vq.MessageFactoryConfig(
        zookeeper=cluster.zookeeper, cluster=cluster.name, **{"session_timeout_s": 30.0, **settings}
    )


def read_all(factory: vq.MessageFactory, topic: str) -> dict[int, list[vq.Message]]:
    """Every message of a topic, by partition."""
    found: dict[int, list[vq.Message]] = defaultdict(list)
    with factory.create_consumer() as consumer:
        for placement in factory.get_partitions_for_topic(topic):
            number, offset = placement.partition, 0
            while messages := consumer.get(topic, number, offset, 1 << 20):
                found[number] += messages
                offset = messages[-1].next_offset
    return found


def contents(messages: list[vq.Message]) -> list[bytes]:
    return [message.content for message in messages]


class Sink:
    """A listener that keeps what it was called with."""

    def __init__(self) -> None:
        self.messages: list[vq.Message] = []

    def __call__(self, message: vq.Message) -> None:
        self.messages.append(message)


# Sending ------------------------------------------------------------------------------------------
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


def test_one_thread_keeps_its_order_sync_and_async_mixed(
    factory: vq.MessageFactory, topic: str
) -> None:
    producer = factory.create_producer(vq.ProducerConfig(batch_records=7))
    for number in range(300):
        message = vq.Message(topic, b"%d" % number, key="same")
        if number % 10 == 9:
            producer.send_sync(message)
        else:
            producer.send_async(message)
    producer.flush(WAIT_S)
    (messages,) = read_all(factory, topic).values()
    assert contents(messages) == [b"%d" % number for number in range(300)]


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
        block_until(lambda: topic in factory._cluster.routes.topics)  # type: ignore[union-attr]
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
            time.sleep(0.05)
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


class stopped:
    """The broker of a group stands still meanwhile."""

    def __init__(self, cluster: ProcessCluster, group: str) -> None:
        self._broker = cluster.brokers[group]

    def __enter__(self) -> None:
        self._broker.signal(signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        self._broker.signal(signal.SIGCONT)


def test_deadlines_hold_while_a_broker_stands_still(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """Sync sends of several threads, combined or waiting their turn, behind one that has time."""
    name = f"still-{next(_names)}"
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
        (queue,) = producer._core._accumulator.topics[name].queues
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
    name = f"full-{next(_names)}"
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
    name = f"signal-{next(_names)}"
    create_topic(cluster, name, partitions=1)
    producer = factory.create_producer()
    producer.send_sync(vq.Message(name, b"before"))
    owner = factory.get_partitions_for_topic(name)[0].writer_group
    assert owner is not None
    with stopped(cluster, owner):
        others: list[Any] = []

        def interrupt() -> None:
            (queue,) = producer._core._accumulator.topics[name].queues
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


def test_a_killed_broker_costs_nothing_that_was_acknowledged(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    name = f"kill-{next(_names)}"
    create_topic(cluster, name, partitions=1)
    producer = factory.create_producer()
    owner = factory.get_partitions_for_topic(name)[0].writer_group
    assert owner is not None
    stop = threading.Event()
    acknowledged: list[list[bytes]] = [[] for _ in range(4)]

    def work(thread: int) -> None:
        mine = acknowledged[thread]
        for number in itertools.count():
            content = b"%d.%d" % (thread, number)
            if thread % 2:
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

    threads = [spawn(lambda thread=n: work(thread)) for n in range(4)]
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


# Factories ----------------------------------------------------------------------------------------
def test_closing_under_load_gives_every_message_its_outcome(
    cluster: ProcessCluster, topic: str
) -> None:
    factory = vq.MessageFactory().open(config_of(cluster))
    producer = factory.create_producer()
    producer.publish(topic)
    futures: list[vq.SendFuture] = []

    sent = [0] * 6

    def work(number: int) -> None:
        with contextlib.suppress(InvalidState):
            while True:
                if number % 2:
                    futures.append(producer.send_async(vq.Message(topic, b"x")))
                else:
                    producer.send_sync(vq.Message(topic, b"x"), WAIT_S)
                sent[number] += 1

    threads = [spawn(lambda number=n: work(number)) for n in range(len(sent))]
    block_until(lambda: all(sent) and sum(sent) >= 200)
    closers = [spawn(factory.shutdown) for _ in range(2)]
    for closer in closers:
        closer.result(WAIT_S)
    for thread in threads:
        thread.result(WAIT_S)
    assert all(isinstance(future.outcome, SendResult) for future in futures)
    with vq.MessageFactory(config_of(cluster)) as second:
        stored = sum(map(len, read_all(second, topic).values()))
    assert stored == sum(sent), "what was refused is not stored, what was taken in is"
    factory.shutdown()
    producer.close()
    with pytest.raises(InvalidState, match="closed"):
        producer.send_async(vq.Message(topic, b"x"))
    with pytest.raises(InvalidState):
        producer.send_sync(vq.Message(topic, b"x"))
    with pytest.raises(InvalidState):
        factory.create_producer()


def test_two_factories_in_one_process_do_not_meet(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str
) -> None:
    with vq.MessageFactory(config_of(cluster, client_id="second")) as second:
        producers = [factory.create_producer(), second.create_producer()]
        futures = [
            producers[number % 2].send_async(vq.Message(topic, b"%d" % number))
            for number in range(2_000)
        ]
        assert len({future.result(WAIT_S).id for future in futures}) == 2_000
    assert producers[0].send_sync(vq.Message(topic, b"goes on")).id > 0


def test_a_factory_opened_again_and_one_that_cannot_be_opened(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    with pytest.raises(InvalidState, match="open already"):
        factory.open()
    again = vq.MessageFactory(config_of(cluster))
    for _ in range(2):
        with again:
            assert len(again.get_status()) == 2  # type: ignore[arg-type]
    before = threading.active_count()
    nowhere = vq.MessageFactoryConfig(zookeeper="127.0.0.1:1", start_timeout_s=0.3)
    with pytest.raises(CoordinationError):
        vq.MessageFactory(nowhere).open()
    block_until(lambda: threading.active_count() <= before)


def test_what_is_refused_inside_a_callback(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    producer.publish(topic)
    refused: list[type[Exception]] = []
    done = threading.Event()

    def callback(*_: object) -> None:
        for call in (
            lambda: producer.send_sync(vq.Message(topic, b"x")),
            producer.flush,
            producer.close,
            factory.shutdown,
            factory.create_producer,
            lambda: producer.send_async(vq.Message(topic, b"allowed")).result(),
        ):
            try:
                call()
            except InvalidState as error:
                refused.append(type(error))
        done.set()

    producer.send_async(vq.Message(topic, b"x"), callback)
    assert done.wait(WAIT_S)
    assert refused == [InvalidState] * 6
    producer.flush(WAIT_S)
    assert sum(map(len, read_all(factory, topic).values())) == 2


FORK = """
import os, sys
import vq
from vq.errors import InvalidState

config = vq.MessageFactoryConfig(zookeeper=sys.argv[1], cluster=sys.argv[2])
topic = sys.argv[3]
factory = vq.MessageFactory(config).open()
producer = factory.create_producer()
consumer = factory.create_consumer()
producer.send_sync(vq.Message(topic, b"parent"))
pending = producer.send_async(vq.Message(topic, b"parent"))
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: producer.send_sync(vq.Message(topic, b"child")),
        lambda: producer.send_async(vq.Message(topic, b"child")),
        lambda: consumer.get(topic, 0, 0, 100),
        lambda: factory.create_producer(),
        producer.flush,
    ):
        try:
            call()
        except InvalidState as error:
            refused += "fork" in str(error)
    try:
        pending.result(60)
    except InvalidState:
        pass
    producer.close()
    consumer.close()
    factory.shutdown()
    with vq.MessageFactory(config) as own:
        own.create_producer().send_sync(vq.Message(topic, b"child"))
    os._exit(0 if refused == 5 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
producer.send_sync(vq.Message(topic, b"parent"))
pending.result(60)
factory.shutdown()
"""


def test_a_forked_child_is_refused_and_may_open_its_own(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str, tmp_path: Path
) -> None:
    program = tmp_path / "fork.py"
    program.write_text(textwrap.dedent(FORK))
    ended = subprocess.run(
        [sys.executable, str(program), cluster.zookeeper, cluster.name, topic],
        timeout=PROCESSES_WAIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = [m.content for messages in read_all(factory, topic).values() for m in messages]
    assert sorted(found) == [b"child", b"parent", b"parent", b"parent"]


#: What the loop would do between the end of the interpreter and that of the process is drawn out:
#: the C library sleeps in between, longer than the pause between two heartbeats.
NO_SHUTDOWN = """
    import ctypes, sys, time
    import vq

    zookeeper, cluster = sys.argv[1:]
    factory = vq.MessageFactory(
        vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, session_timeout_s=4.0)
    ).open()
    time.sleep(0.2)  # until the loop waits for its next heartbeat
    libc = ctypes.CDLL(None)
    getattr(libc, "__cxa_atexit")(libc.sleep, ctypes.c_void_p(2), None)
"""


@pytest.mark.slow
def test_a_program_that_ends_without_shutdown_ends_in_order(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """No loop wakes up in an interpreter that is gone, which was a segmentation fault."""
    program = tmp_path / "no_shutdown.py"
    program.write_text(textwrap.dedent(NO_SHUTDOWN))
    ended = subprocess.run(
        [sys.executable, str(program), cluster.zookeeper, cluster.name],
        timeout=PROCESSES_WAIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# Reading by position ------------------------------------------------------------------------------
def test_get_at_boundaries_and_elsewhere(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    results = [producer.send_sync(vq.Message(topic, b"x" * 500, key="k")) for _ in range(3)]
    number = results[0].partition
    consumer = factory.create_consumer()
    for index, result in enumerate(results):
        found = consumer.get(topic, number, result.offset, 1 << 20)
        assert [message.offset for message in found] == [each.offset for each in results[index:]]
    assert len(consumer.get(topic, number, 0, 1)[0].content) == 500, "longer than what was asked"
    bounds = consumer.get_bounds(topic, number)
    assert consumer.get(topic, number, bounds.latest, 100) == []
    begin = time.monotonic()
    assert consumer.get(topic, number, bounds.latest, 100, timeout=0.2) == []
    assert 0.15 < time.monotonic() - begin < WAIT_S
    with pytest.raises(OffsetNotBoundary) as refused:
        consumer.get(topic, number, results[1].offset + 1, 100)
    (second,) = consumer.get(topic, number, results[1].offset, 1)
    assert refused.value.details["next"] == second.next_offset
    with pytest.raises(OffsetOutOfRange) as beyond:
        consumer.get(topic, number, bounds.latest + 1, 100)
    assert beyond.value.details == {"earliest": 0, "latest": bounds.latest}


# Groups -------------------------------------------------------------------------------------------
def group_of(factory: vq.MessageFactory, name: str, **settings: Any) -> vq.MessageConsumer:
    return factory.create_consumer(
        vq.ConsumerConfig(**{"group": name, "max_wait_s": 1.0, **settings})
    )


def test_two_members_share_and_hand_over_without_a_repetition(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str
) -> None:
    """The second one comes and goes; every message is handled once, in order of its key."""
    producer = factory.create_producer()
    sinks = [Sink(), Sink()]
    first = group_of(factory, topic, listener_threads=2).subscribe(topic, 1 << 20, sinks[0]).start()
    block_until(lambda: len(first.assignment()) == 4)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.send_async(vq.Message(topic, b"%d" % sent, key=str(sent % 8)))
            sent += 1

    def handled() -> int:
        return sum(len(sink.messages) for sink in sinks)

    send(400)
    with vq.MessageFactory(config_of(cluster)) as other:
        second = group_of(other, topic).subscribe(topic, 1 << 20, sinks[1]).start()
        block_until(lambda: len(second.assignment()) == len(first.assignment()) == 2)
        send(400)
        block_until(lambda: len(sinks[1].messages) >= 50)
        second.close()
        send(400)
        block_until(lambda: handled() >= sent)
    block_until(lambda: len(first.assignment()) == 4)
    first.close()
    assert handled() == sent == 1_200
    everything = [int(m.content) for sink in sinks for m in sink.messages]
    assert sorted(everything) == list(range(sent))
    last: dict[tuple[int, int], int] = {}
    for index, sink in enumerate(sinks):
        for message in sink.messages:
            key = (index, message.partition)
            assert message.offset > last.get(key, -1)
            last[key] = message.offset


@pytest.mark.parametrize("start", list(vq.StartPosition))
def test_where_a_group_begins_and_where_it_goes_on(
    factory: vq.MessageFactory, topic: str, start: vq.StartPosition
) -> None:
    producer = factory.create_producer()

    def send(content: bytes) -> None:
        producer.send_sync(vq.Message(topic, content, key="k"))

    send(b"before")
    sink = Sink()
    with group_of(factory, topic, start_position=start).subscribe(topic, 1000, sink).start() as one:
        block_until(lambda: len(one.get_offset(topic)) == 4)
        send(b"during")
        block_until(lambda: sink.messages and sink.messages[-1].content == b"during")
        one.commit()
        partition = TopicPartition(topic, sink.messages[-1].partition)
        assert one.get_offset(topic)[partition] == sink.messages[-1].next_offset
    send(b"between")
    again = Sink()
    with group_of(factory, topic, start_position=start).subscribe(topic, 1000, again).start():
        block_until(lambda: again.messages)
    expected = [b"before", b"during"] if start is vq.StartPosition.EARLIEST else [b"during"]
    assert contents(sink.messages) == expected
    assert contents(again.messages) == [b"between"]


def test_only_wanted_tags_come(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    for number in range(90):
        producer.send_async(vq.Message(topic, b"%d" % number, ("red", "blue", None)[number % 3]))
    producer.flush(WAIT_S)
    sink = Sink()
    with group_of(factory, topic).subscribe(topic, 1000, sink, "red || green").start():
        block_until(lambda: len(sink.messages) == 30)
        time.sleep(0.05)
    assert {message.tag for message in sink.messages} == {"red"}


def test_closing_inside_a_listener_is_refused(factory: vq.MessageFactory, topic: str) -> None:
    refused: list[str] = []

    def listener(_: vq.Message) -> None:
        for close in (consumer.close, factory.shutdown):
            try:
                close()
            except InvalidState as error:
                refused.append(str(error))

    consumer = group_of(factory, topic).subscribe(topic, 1000, listener).start()
    factory.create_producer().send_sync(vq.Message(topic, b"x"))
    block_until(lambda: len(refused) == 2)
    assert all("its own listener" in each for each in refused)
    consumer.close()
    assert consumer.closed


def test_five_hundred_partitions(cluster: ProcessCluster, factory: vq.MessageFactory) -> None:
    name = f"wide-{next(_names)}"
    create_topic(cluster, name, partitions=500)
    producer = factory.create_producer()
    futures = [producer.send_async(vq.Message(name, b"%d" % n), None, WAIT_S) for n in range(2_000)]
    results = [future.result(30) for future in futures]
    assert {result.partition for result in results} == set(range(500))
    sink = Sink()
    consumer = group_of(factory, name).subscribe(name, 1 << 16, sink).start()
    block_until(lambda: len(sink.messages) >= 2_000)
    assert len(consumer.assignment()) == 500
    consumer.close()
    assert sorted(int(m.content) for m in sink.messages) == list(range(2_000))
