"""Threads read at a position, and members of a group get each message that is theirs."""

import threading
import time
from collections import Counter
from typing import Any

import pytest
from support.blocking import NAMES, config_of, contents
from support.cluster import ProcessCluster
from support.topics import create_topic

import vq
from vq.errors import InvalidState, OffsetNotBoundary, OffsetOutOfRange
from vq.model import TopicPartition
from vq.testing.waiting import WAIT_S, block_until


class Sink:
    """A listener that keeps what it was called with."""

    def __init__(self) -> None:
        self.messages: list[vq.Message] = []

    def __call__(self, message: vq.Message) -> None:
        self.messages.append(message)


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
    first = group_of(factory, topic, workers=2).subscribe(topic, 1 << 20, sinks[0]).start()
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


def is_at_the_end(consumer: vq.MessageConsumer, topic: str) -> bool:
    """Whether everything in the topic's four partitions was handled or left out."""
    consumer.commit()
    committed = consumer.get_offset(topic)
    return len(committed) == 4 and all(
        offset == consumer.get_bounds(topic, partition.partition).latest
        for partition, offset in committed.items()
    )


def test_only_wanted_tags_come(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    for number in range(90):
        producer.send_async(vq.Message(topic, b"%d" % number, ("red", "blue", None)[number % 3]))
    producer.flush(WAIT_S)
    sink = Sink()
    with group_of(factory, topic).subscribe(topic, 1000, sink, "red || green").start() as consumer:
        block_until(lambda: is_at_the_end(consumer, topic))
    assert [message.tag for message in sink.messages] == ["red"] * 30


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
    name = f"wide-{next(NAMES)}"
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


@pytest.mark.parametrize("mode", list(vq.WorkingMode))
def test_threads_whose_listeners_raise_anything_or_hang_lose_nothing(
    factory: vq.MessageFactory, topic: str, mode: vq.WorkingMode
) -> None:
    """What hangs holds up its partition, its key, or nothing; it is told, and counts at its end."""
    producer = factory.create_producer()
    stored = [
        producer.send_sync(vq.Message(topic, b"%d" % each, key=f"k{each % 6}"))
        for each in range(60)
    ]
    hung, go_on = 13, threading.Event()
    behind = {
        number
        for number in range(hung, 60)
        if (mode is vq.WorkingMode.ORDERLY and stored[number].partition == stored[hung].partition)
        or (mode is vq.WorkingMode.KEYED and number % 6 == hung % 6)
        or number == hung
    }
    raised = {5: SystemExit(1), 6: KeyboardInterrupt(), 7: GeneratorExit(), 8: MemoryError()}
    done: Counter[int] = Counter()

    def handle(message: vq.Message) -> None:
        number = int(message.content)
        if number in raised and message.attempts == 1:
            raise raised[number]
        if number == hung:
            assert go_on.wait(WAIT_S)
        done[number] += 1

    settings = {"workers": 5, "listener_timeout_s": 0.2, "retry_backoff": (0.01, 0.02)}
    consumer = group_of(factory, topic, mode=mode, **settings)
    with consumer.subscribe(topic, 1 << 20, handle).start():
        block_until(lambda: done.keys() == {*range(60)} - behind)
        block_until(lambda: TopicPartition(topic, stored[hung].partition) in consumer.troubles())
        assert done.keys().isdisjoint(behind)
        go_on.set()
        block_until(lambda: done.keys() == {*range(60)})
        block_until(lambda: not consumer.troubles())
    assert max(done.values()) == 1
