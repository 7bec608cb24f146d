"""One contract over all clusters that a factory reaches: in memory, and real processes.

Code that holds it moves from one to the other by another factory.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.waiting import block_until

import vq
from vq.errors import UnknownTopic
from vq.testing import ThreadCluster
from vq.testing.fixtures import real_cluster

Open = Callable[[str], vq.MessageFactory]


@contextmanager
def in_memory(_: Path) -> Iterator[Open]:
    with ThreadCluster() as cluster:
        yield cluster.factory


@contextmanager
def in_processes(directory: Path) -> Iterator[Open]:
    with real_cluster(directory) as config, ExitStack() as stack:
        yield lambda _: stack.enter_context(vq.MessageFactory(config))


@pytest.fixture(scope="module", params=[in_memory, in_processes])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Open]:
    """What opens a factory of a name."""
    with request.param(tmp_path_factory.mktemp("contract")) as open_factory:
        yield open_factory


@pytest.fixture
def factory(opened: Open, request: pytest.FixtureRequest) -> vq.MessageFactory:
    """A factory of this test."""
    return opened(f"f-{request.node.originalname}"[:60])


@pytest.fixture
def topic(factory: vq.MessageFactory, request: pytest.FixtureRequest) -> str:
    """A topic of this test, with two partitions."""
    name = f"t-{request.node.originalname}"[:60]
    factory.admin.create_topic(name, vq.TopicSettings(partitions=2))
    return name


def consumer_of(
    factory: vq.MessageFactory, topic: str, listener: vq.Listener, **settings: object
) -> vq.MessageConsumer:
    config = vq.ConsumerConfig(
        **{"group": f"g-{topic}", "start_position": "earliest", **settings}  # type: ignore[arg-type]
    )
    consumer = factory.create_consumer(config)
    consumer.subscribe(topic, listener=listener)
    return consumer.start()


def test_what_was_sent_is_received_once_and_in_order(
    factory: vq.MessageFactory, topic: str
) -> None:
    """In the order of its key, with all that it had."""
    sent = [
        vq.Message(topic, b"%d" % each, tag="a", key=f"k{each % 3}", headers={"n": str(each)})
        for each in range(60)
    ]
    with factory.create_producer() as producer:
        for message in sent:
            producer.send_sync(message)
    seen: list[vq.Message] = []
    with consumer_of(factory, topic, seen.append):
        block_until(lambda: len(seen) >= 60)
    for key in ("k0", "k1", "k2"):
        expected = [each.content for each in sent if each.key == key]
        assert [each.content for each in seen if each.key == key] == expected
    assert {(each.content, each.tag, (each.headers or {})["n"]) for each in seen} == {
        (each.content, "a", (each.headers or {})["n"]) for each in sent
    }


def test_each_group_gets_all_and_goes_on_where_it_was(
    factory: vq.MessageFactory, topic: str
) -> None:
    with factory.create_producer() as producer:
        for group, expected in (("one", 10), ("two", 20), ("one", 20)):
            for number in range(10):
                producer.send_sync(vq.Message(topic, b"%s-%d" % (group.encode(), number)))
            seen: list[vq.Message] = []
            with consumer_of(factory, topic, seen.append, group=f"{topic}-{group}"):
                block_until(lambda seen=seen, expected=expected: len(seen) >= expected)  # type: ignore[misc]
            assert len(seen) == expected


def test_a_filter_leaves_out_the_others(factory: vq.MessageFactory, topic: str) -> None:
    with factory.create_producer() as producer:
        for number in range(20):
            producer.send_sync(vq.Message(topic, b"%d" % number, tag="ab"[number % 2]))
    seen: list[vq.Message] = []
    config = vq.ConsumerConfig(group=f"g-{topic}", start_position="earliest")
    with factory.create_consumer(config) as consumer:
        consumer.subscribe(topic, listener=seen.append, message_filter="a")
        consumer.start()
        block_until(lambda: len(seen) >= 10)
    assert {each.tag for each in seen} == {"a"}


def test_what_a_listener_fails_for_comes_again(factory: vq.MessageFactory, topic: str) -> None:
    calls: Counter[bytes] = Counter()
    lock = threading.Lock()

    def fail_first(message: vq.Message) -> None:
        with lock:
            calls[message.content] += 1
        if calls[message.content] == 1:
            raise ValueError("the first time it fails")

    with factory.create_producer() as producer:
        for number in range(3):
            producer.send_sync(vq.Message(topic, b"%d" % number))
    with consumer_of(factory, topic, fail_first, retry_backoff=(0.01, 0.1)):
        block_until(lambda: sum(calls.values()) >= 6)
    assert set(calls.values()) == {2}


def test_a_topic_that_is_not_there_is_an_error(factory: vq.MessageFactory) -> None:
    with factory.create_producer() as producer, pytest.raises(UnknownTopic):
        producer.send_sync(vq.Message("nowhere", b""))
