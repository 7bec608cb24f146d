"""One contract over all that a factory reaches: a cluster in memory, real processes, local queues.

Code that holds it moves from one to the other by another factory. Where local queues differ by
design, a test skips them with the reason; the how-to "Use a queue inside one process" has a table.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import vq
from vq.client.failed_file import FailedFile
from vq.errors import BatchFailed, InvalidArgument, InvalidState, UnknownTopic
from vq.testing import ThreadCluster
from vq.testing.fixtures import real_cluster
from vq.testing.waiting import block_until

Open = Callable[[str], vq.MessageFactory]


@contextmanager
def in_memory(_: Path) -> Iterator[Open]:
    with ThreadCluster() as cluster:
        yield cluster.factory


@contextmanager
def in_processes(directory: Path) -> Iterator[Open]:
    with real_cluster(directory) as config, ExitStack() as stack:
        yield lambda _: stack.enter_context(vq.MessageFactory(config))


@contextmanager
def local(directory: Path) -> Iterator[Open]:
    with ExitStack() as stack:
        config = vq.MessageFactoryConfig(local=str(directory))
        factory = stack.enter_context(vq.MessageFactory(config))
        yield lambda _: factory


@pytest.fixture(scope="module", params=[in_memory, in_processes, local])
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
    """A topic of this test, with two partitions; local queues make theirs, with one."""
    name = "t-" + re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    if not is_local(factory):
        factory.admin.create_topic(name, vq.TopicSettings(partitions=2))
    return name


def is_local(factory: vq.MessageFactory) -> bool:
    return factory.config.local is not None


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
    if is_local(factory):
        pytest.skip("a local queue gives each message to one taker, so it has one group")
    with factory.create_producer() as producer:
        for group, expected in (("one", 10), ("two", 20), ("one", 20)):
            for number in range(10):
                producer.send_sync(vq.Message(topic, b"%s-%d" % (group.encode(), number)))
            seen: list[vq.Message] = []
            with consumer_of(factory, topic, seen.append, group=f"{topic}-{group}"):
                block_until(lambda seen=seen, expected=expected: len(seen) >= expected)  # type: ignore[misc]
            assert len(seen) == expected


def test_a_group_goes_on_where_it_was(factory: vq.MessageFactory, topic: str) -> None:
    with factory.create_producer() as producer:
        for begin in (0, 10):
            for number in range(begin, begin + 10):
                producer.send_sync(vq.Message(topic, b"%d" % number, key="one"))
            seen: list[vq.Message] = []
            with consumer_of(factory, topic, seen.append):
                block_until(lambda seen=seen: len(seen) >= 10)
            assert [each.content for each in seen] == [b"%d" % n for n in range(begin, begin + 10)]


@pytest.mark.parametrize("wanted", ["a", "a || c", vq.Where("TAGS = 'a'")])
def test_a_filter_leaves_out_the_others(
    factory: vq.MessageFactory, topic: str, wanted: str | vq.Where
) -> None:
    with factory.create_producer() as producer:
        for number in range(20):
            producer.send_sync(vq.Message(topic, b"%d" % number, tag="ab"[number % 2]))
    seen: list[vq.Message] = []
    config = vq.ConsumerConfig(group=f"g-{topic}", start_position="earliest")
    with factory.create_consumer(config) as consumer:
        consumer.subscribe(topic, listener=seen.append, message_filter=wanted)
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


@pytest.mark.parametrize("on_failure", ["dead-letter", "retry-topic"])
def test_what_fails_too_often_is_a_dead_letter(
    factory: vq.MessageFactory, topic: str, on_failure: str
) -> None:
    """It tells where it comes from and why; the others of the topic go on."""
    attempts: list[int] = []
    others: list[bytes] = []

    def listener(message: vq.Message) -> None:
        if message.tag == "bad":
            attempts.append(message.attempts)
            raise ValueError("cannot be done")
        others.append(message.content)

    with factory.create_producer() as producer:
        place = producer.send_sync(vq.Message(topic, b"1", "bad", "k", {"h": "v"}))
        producer.send_sync(vq.Message(topic, b"2", key="k"))
    settings: dict[str, object] = {
        "max_attempts": 2,
        "retry_backoff": (0.01, 0.1),
        "on_failure": on_failure,
    }
    if on_failure == "retry-topic":
        settings |= {"mode": "concurrent", "retry_schedule": (0.2,)}
    tries = 4 if on_failure == "retry-topic" else 2
    group = f"g-{topic}"
    with consumer_of(factory, topic, listener, group=group, **settings):
        block_until(lambda: len(attempts) >= tries and others == [b"2"])
        letters = dead_letters_of(factory, group)
    assert attempts == [*range(1, tries + 1)]
    assert [(each.content, each.tag, each.key) for each in letters] == [(b"1", "bad", "k")]
    (letter,) = letters
    assert (letter.headers or {})["h"] == "v"
    assert letter.origin is not None
    assert letter.failure is not None
    assert letter.origin.topic == topic
    assert "cannot be done" in letter.failure.reason
    if on_failure == "dead-letter":
        assert (letter.origin.partition, letter.origin.offset) == (place.partition, place.offset)
        assert letter.failure.attempts == 2


def dead_letters_of(factory: vq.MessageFactory, group: str) -> list[vq.Message]:
    """Return the first dead letters of a group, once there are some."""
    topic, found = f"_vq.dlq.{group}", list[vq.Message]()
    if not is_local(factory):
        block_until(
            lambda: topic in {each.name for each in factory.admin.list_topics(reserved=True)}
        )
    with consumer_of(factory, topic, found.append, group=f"of-{group}"):
        block_until(lambda: bool(found))
    return found


def test_what_is_held_keeps_its_order(factory: vq.MessageFactory, topic: str) -> None:
    calls: list[tuple[bytes, int]] = []

    def fail_first(message: vq.Message) -> object:
        calls.append((message.content, message.attempts))
        return vq.RETRY if message.content == b"0" and message.attempts < 4 else None

    with factory.create_producer() as producer:
        for number in range(3):
            producer.send_sync(vq.Message(topic, b"%d" % number, key="k"))
    with consumer_of(factory, topic, fail_first, max_attempts=2, retry_backoff=(0.01, 0.02)):
        block_until(lambda: len(calls) >= 6)
    assert calls == [(b"0", 1), (b"0", 2), (b"0", 3), (b"0", 4), (b"1", 1), (b"2", 1)]


def test_what_is_skipped_is_in_a_file(
    factory: vq.MessageFactory,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VQ_FAILED_DIR", str(tmp_path))
    directory = tmp_path
    if is_local(factory):
        directory = Path(factory.config.local or "")
    seen: list[bytes] = []

    def listener(message: vq.Message) -> None:
        seen.append(message.content)
        if message.content == b"bad":
            raise ValueError("cannot be done")

    with factory.create_producer() as producer:
        for content in (b"bad", b"good"):
            producer.send_sync(vq.Message(topic, content, key="k"))
    settings = {"max_attempts": 2, "retry_backoff": (0.01, 0.1), "on_failure": "skip"}
    with consumer_of(factory, topic, listener, member_id="m", **settings):
        block_until(lambda: seen == [b"bad", b"bad", b"good"])
    (file,) = directory.glob(f"*/g-{topic}/m.failed")
    (skipped,) = FailedFile(file).read().messages.values()
    assert (skipped.message.content, skipped.failure.attempts) == (b"bad", 2)


def test_a_shared_group_gives_messages_to_threads_that_ask(
    factory: vq.MessageFactory, topic: str
) -> None:
    """Several of one consumer. Each message is acknowledged by itself; the others come again."""
    if is_local(factory):
        pytest.skip("in a local queue each message goes to one taker anyway; it has no groups")
    with factory.create_producer() as producer:
        producer.send_batch([vq.Message(topic, b"%d" % each, key=each) for each in range(40)])
    seen: list[vq.Message] = []
    settings = {"group": f"g-{topic}", "model": "shared", "start_position": "earliest"}

    def take(consumer: vq.MessageConsumer) -> None:
        while len(seen) < 40 and not consumer.closed:
            for message in consumer.get_many(3, timeout=0.2):
                assert isinstance(message, vq.SharedMessage)
                seen.append(message)
                if message.key != 7:
                    message.ack()

    with factory.create_consumer(vq.ConsumerConfig(**settings)) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(topic)
        threads = [threading.Thread(target=take, args=[consumer]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(each.key for each in seen) == list(range(40))  # type: ignore[type-var]
    late = next(each for each in seen if each.key == 7)
    with pytest.raises(vq.errors.InvalidState, match="closed"):
        late.ack()  # type: ignore[attr-defined]
    with factory.create_consumer(vq.ConsumerConfig(**settings)) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(topic)
        (again,) = consumer.get_many(3, timeout=30)
        assert (again.key, again.attempts) == (7, 2)
        again.ack()  # type: ignore[attr-defined]


def test_a_topic_that_is_not_there_is_an_error(factory: vq.MessageFactory) -> None:
    if is_local(factory):
        pytest.skip("a local queue is made when it is first used")
    with factory.create_producer() as producer, pytest.raises(UnknownTopic):
        producer.send_sync(vq.Message("nowhere", b""))


def test_a_close_counts_what_was_pulled_unless_an_error_ends_the_block(
    factory: vq.MessageFactory, topic: str
) -> None:
    config = vq.ConsumerConfig(group=f"g-{topic}", start_position="earliest")

    def pulled(consumer: vq.MessageConsumer, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            found += [each.content for each in consumer.get_many(count - len(found), timeout=30)]
        return found

    with factory.create_producer() as producer:
        for number in range(3):
            producer.send_sync(vq.Message(topic, b"%d" % number, key="one"))

    def failing() -> None:
        with factory.create_consumer(config) as consumer:
            assert pulled(consumer.subscribe(topic), 3) == [b"0", b"1", b"2"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    with factory.create_consumer(config) as consumer:
        assert pulled(consumer.subscribe(topic), 2) == [b"0", b"1"]
    with factory.create_consumer(config) as consumer:
        assert pulled(consumer.subscribe(topic), 1) == [b"2"]


def test_a_listener_cannot_close_its_consumer(factory: vq.MessageFactory, topic: str) -> None:
    """It would wait for itself. The consumer goes on."""
    errors: list[str] = []

    def listener(_: vq.Message) -> None:
        try:
            consumer.close()
        except InvalidState as error:
            errors.append(str(error))

    with factory.create_producer() as producer:
        for content in (b"1", b"2"):
            producer.send_sync(vq.Message(topic, content, key="one"))
    consumer = factory.create_consumer(
        vq.ConsumerConfig(group=f"g-{topic}", start_position="earliest")
    )
    with consumer.subscribe(topic, listener=listener).start():
        block_until(lambda: len(errors) == 2)
    assert all("wait for itself" in each for each in errors)


def test_unusable_arguments_are_refused_before_anything_is_sent(
    factory: vq.MessageFactory, topic: str
) -> None:
    message = vq.Message(topic, b"x")
    config = vq.ConsumerConfig(group=f"g-{topic}", start_position="earliest")
    with factory.create_producer() as producer, factory.create_consumer(config) as consumer:
        consumer.subscribe(topic).start()
        for refused in (
            lambda: producer.send_sync(message, timeout=float("nan")),
            lambda: producer.send_sync(message, timeout="1"),  # type: ignore[arg-type]
            lambda: producer.send_sync(message._replace(partition=3)),
            lambda: producer.send_sync(message._replace(deliver_at="x")),  # type: ignore[arg-type]
            lambda: producer.send_sync(message._replace(deliver_at=1.0, delay_s=1.0)),
            lambda: consumer.get_many(0, 0),
            lambda: consumer.get_many(True, 0),
            lambda: consumer.get_many(100_001, 0),
            lambda: consumer.get_many(1, "1"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgument):
                refused()
        with pytest.raises(BatchFailed) as raised:
            producer.send_batch([message, 1])  # type: ignore[list-item]
        assert (raised.value.stored, raised.value.refused) == ([0], [1])
        (found,) = consumer.get_many(9, timeout=30)
        assert found.content == b"x"
        with pytest.raises(InvalidState):
            consumer.subscribe(topic)


def test_a_commit_counts_nothing_that_is_in_hand(factory: vq.MessageFactory, topic: str) -> None:
    """And messages of a call are of one thread; if that ends, they are delivered again."""
    config = vq.ConsumerConfig(group=f"g-{topic}", start_position="earliest")
    with factory.create_producer() as producer:
        producer.send_sync(vq.Message(topic, b"1"))
    with factory.create_consumer(config) as consumer:
        consumer.subscribe(topic)
        found: list[vq.Message] = []
        called, end = threading.Event(), threading.Event()

        def call() -> None:
            found.extend(consumer.get_many(9, timeout=30))
            consumer.commit()
            called.set()
            end.wait(30)

        thread = threading.Thread(target=call)
        thread.start()
        assert called.wait(30)
        with pytest.raises(InvalidState, match="hand the messages of one thread to others"):
            consumer.get_many(9, timeout=0)
        end.set()
        thread.join(30)
        found += consumer.get_many(9, timeout=30)
    assert [each.content for each in found] == [b"1", b"1"]


def test_a_close_ends_a_call_that_waits(factory: vq.MessageFactory, topic: str) -> None:
    """It returns nothing, and takes nothing any more."""
    consumer = factory.create_consumer(vq.ConsumerConfig(group=f"g-{topic}")).subscribe(topic)
    consumer.get_many(1, timeout=0)
    found: list[list[vq.Message]] = []

    def call() -> None:
        try:
            found.append(consumer.get_many(1))
        except InvalidState:  # the close came first
            found.append([])

    waiting = threading.Thread(target=call)
    waiting.start()
    consumer.close()
    waiting.join(30)
    assert found == [[]]
