"""Threads pull messages, seek and pause; listeners do so, too."""

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.blocking import NAMES
from support.interrupts import Interrupted, Interrupter

import vq
from vq.errors import InvalidArgument, InvalidState
from vq.testing.waiting import WAIT_S, block_until


def sent(factory: vq.MessageFactory, topic: str, count: int) -> list[vq.SendResult]:
    """Store ``count`` messages in one partition."""
    producer = factory.create_producer()
    return [producer.send_sync(vq.Message(topic, b"%d" % n, key=0)) for n in range(count)]


def pulling(factory: vq.MessageFactory, topic: str) -> vq.MessageConsumer:
    config = vq.ConsumerConfig(group=f"g{next(NAMES)}", max_wait_s=1.0)
    return factory.create_consumer(config).subscribe(topic)


def pulled(consumer: vq.MessageConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.get_many(count - len(found), timeout=WAIT_S)
        assert messages, "nothing came in time"
        found += [message.content for message in messages]
    return found


def test_a_thread_pulls_what_its_group_has_not_handled(
    factory: vq.MessageFactory, topic: str
) -> None:
    sent(factory, topic, 5)
    consumer = pulling(factory, topic)
    assert pulled(consumer, 2) == [b"0", b"1"]
    assert pulled(consumer, 3) == [b"2", b"3", b"4"]
    assert consumer.get_many(1, timeout=0.0) == []
    consumer.commit()
    bounds = consumer.get_bounds(topic, 0)
    assert consumer.get_offset(topic)[vq.TopicPartition(topic, 0)] == bounds.latest
    consumer.close()
    with pytest.raises(InvalidState, match="closed"):
        consumer.get_many(1, timeout=0.0)


def test_messages_of_one_thread_are_not_consumed_by_another(
    factory: vq.MessageFactory, topic: str
) -> None:
    """It is refused; after the end of the first thread it gets them again."""
    sent(factory, topic, 3)
    consumer = pulling(factory, topic)
    may_end, has_some = threading.Event(), threading.Event()

    def work() -> None:
        assert pulled(consumer, 1) == [b"0"]
        has_some.set()
        may_end.wait(WAIT_S)

    worker = threading.Thread(target=work, name="worker")
    worker.start()
    assert has_some.wait(WAIT_S)
    with pytest.raises(InvalidState, match="'worker' has messages"):
        consumer.get_many(1, timeout=0.0)
    may_end.set()
    worker.join(WAIT_S)
    assert pulled(consumer, 3) == [b"0", b"1", b"2"]
    consumer.close()


def test_what_a_failed_block_has_pulled_comes_again(factory: vq.MessageFactory, topic: str) -> None:
    sent(factory, topic, 2)
    group = f"g{next(NAMES)}"

    def fail() -> None:
        with factory.create_consumer(vq.ConsumerConfig(group=group)).subscribe(topic) as consumer:
            assert pulled(consumer, 1) == [b"0"]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with factory.create_consumer(vq.ConsumerConfig(group=group)).subscribe(topic) as consumer:
        assert pulled(consumer, 2) == [b"0", b"1"]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # one that nobody waits for
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_call_loses_nothing(factory: vq.MessageFactory, topic: str) -> None:
    """A signal handler raises at each place where the thread waits for the loop.

    The next call returns them, also if a transaction took what was received before that.
    """
    consumer = pulling(factory, topic)
    assert consumer.get_many(2, timeout=0) == []
    sent(factory, topic, 2)
    found: list[vq.Message] = []
    with factory.create_producer() as producer:
        for place in itertools.count():
            interrupter = Interrupter(place, "client/runtime")
            try:
                found += interrupter.run(lambda: consumer.get_many(2, timeout=WAIT_S))
            except Interrupted:
                with producer.transaction():
                    producer.send_offsets(consumer)  # of what was received: nothing
                continue
            break
    assert place > 5, "the places are no more where they were"
    assert [each.content for each in found] + pulled(consumer, 2 - len(found)) == [b"0", b"1"]
    consumer.close()


def test_an_interrupted_call_of_a_shared_group_gives_back_what_it_took(
    factory: vq.MessageFactory, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not as delivered; a call that is interrupted while it waits takes nothing."""
    settings = {"model": "shared", "lease_s": 600.0, "start_position": "earliest"}
    config = vq.ConsumerConfig(group=f"g{next(NAMES)}", **settings)  # type: ignore[arg-type]
    with factory.create_consumer(config).subscribe(topic) as consumer:
        assert consumer.get_many(2, timeout=0) == []
        run = consumer._runtime.run

        def interrupted(*args: object) -> None:
            run(*args)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        def interrupted_early(work: Coroutine[Any, Any, object]) -> None:
            asyncio.run_coroutine_threadsafe(work, consumer._runtime.loop)
            raise KeyboardInterrupt

        for raises in (interrupted_early, interrupted):
            with monkeypatch.context() as patch:
                patch.setattr(consumer._runtime, "run", raises)
                with pytest.raises(KeyboardInterrupt):
                    consumer.get_many(2, timeout=WAIT_S)
            if raises is interrupted_early:
                sent(factory, topic, 2)
        found: list[vq.Message] = []
        while len(found) < 2:
            found += consumer.get_many(2, timeout=WAIT_S)
        assert sorted((each.content, each.attempts) for each in found) == [(b"0", 1), (b"1", 1)]
        for each in found:
            each.ack()  # type: ignore[attr-defined]


def test_listeners_and_calls_do_not_mix(factory: vq.MessageFactory, topic: str) -> None:
    consumer = pulling(factory, topic)
    with pytest.raises(InvalidArgument, match="some have none"):
        consumer.subscribe(f"{topic}-2", listener=print)
    with factory.create_consumer(vq.ConsumerConfig(group="g")) as other:
        other.subscribe(topic, listener=print)
        with pytest.raises(InvalidState, match="have listeners"):
            other.get_many(1)
    consumer.close()


def test_a_listener_seeks_and_pauses(factory: vq.MessageFactory, topic: str) -> None:
    """At its third message it goes back to the second; when that comes again, it pauses."""
    results = sent(factory, topic, 4)
    seen: list[bytes] = []

    def listen(message: vq.Message) -> None:
        where = vq.TopicPartition(message.topic, message.partition)
        seen.append(message.content)
        if seen == [b"0", b"1", b"2"]:
            consumer.seek(where, results[1].offset)
        if seen == [b"0", b"1", b"2", b"1"]:
            consumer.pause(where)

    config = vq.ConsumerConfig(group=f"g{next(NAMES)}", max_wait_s=1.0)
    with factory.create_consumer(config).subscribe(topic, listener=listen) as consumer:
        consumer.start()
        block_until(lambda: len(seen) >= 4)
        block_until(lambda: len(consumer.paused()) == 1)
        assert seen == [b"0", b"1", b"2", b"1"]
        consumer.resume()
        block_until(lambda: len(seen) >= 6)
    assert seen == [b"0", b"1", b"2", b"1", b"2", b"3"]


def test_times_ends_and_the_last_messages(factory: vq.MessageFactory, topic: str) -> None:
    before = datetime.now(UTC) - timedelta(hours=1)
    results = sent(factory, topic, 5)
    with factory.create_consumer() as consumer:
        assert consumer.offset_at(topic, 0, before) == consumer.offset_at(topic, 0, "earliest")
        assert consumer.offsets_at(topic, "latest")[vq.TopicPartition(topic, 1)] == 0
        found = consumer.get_last(topic, 2)
        assert [message.offset for message in found] == [each.offset for each in results[3:]]
        (first,) = consumer.get(topic, 0, 0, 1)
        assert first.timestamp is not None
        assert first.append_time is not None
        assert before < first.timestamp <= first.append_time + timedelta(seconds=5)
        with pytest.raises(InvalidArgument, match="no zone"):
            consumer.offset_at(topic, 0, datetime(2026, 1, 1))  # noqa: DTZ001 - refused
