"""``MessageFactoryConfig(local=...)``: code of a cluster with queues of one process."""

import asyncio
import contextlib
import itertools
import linecache
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.interrupts import Interrupted, Interrupter
from support.raising_logs import raising_logs

import vq
from vq.errors import BufferFull, FilterFailed, InvalidArgument, InvalidState
from vq.local.core import commits
from vq.local.factory import consumer as module
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until


@pytest.fixture
def config(tmp_path: Path) -> vq.MessageFactoryConfig:
    return vq.MessageFactoryConfig(local=str(tmp_path))


def test_a_listener_gets_what_a_producer_sends(config: vq.MessageFactoryConfig) -> None:
    """The lines between are those of a program with a cluster."""
    seen, called = [], threading.Event()

    def listener(message: Message) -> object:
        seen.append((message.topic, message.content, message.key, message.attempts))
        called.set()
        if message.content == b"1" and message.attempts == 1:
            raise ValueError("once")
        return vq.RETRY if message.content == b"2" and message.attempts == 1 else None

    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        producer.publish("orders")
        first = producer.send_sync(Message("orders", b"1", key="k"))
        outcomes: list[object] = []
        future = producer.send_async(
            Message("orders", b"2", key="k"), lambda *got: outcomes.append(got)
        )
        second = future.result()
        third, fourth = producer.send_batch([Message("orders", b"3"), Message("other", b"4")])
        producer.send_oneway(Message("orders", b"5"))
        producer.flush()
        assert first.id < second.id < third.id
        assert fourth.partition == 0
        block_until(lambda: outcomes == [(second, None)])
        with factory.create_consumer(vq.ConsumerConfig(group="shop", workers=2)) as consumer:
            consumer.subscribe("orders", listener=listener)
            consumer.start()
            block_until(lambda: len(seen) == 6)
        assert called.wait(WAIT_S)
    assert [each[1:] for each in seen if each[2] == "k"] == [
        (b"1", "k", 1),
        (b"1", "k", 2),
        (b"2", "k", 1),
        (b"2", "k", 2),
    ]


def test_messages_that_are_pulled_count_with_the_next_call(
    config: vq.MessageFactoryConfig,
) -> None:
    with vq.MessageFactory(config) as factory:
        factory.create_producer().send_batch([Message("t", b"%d" % n) for n in range(5)])
        consumer = factory.create_consumer(vq.ConsumerConfig(group="g")).subscribe("t")
        consumer.start()
        assert [each.content for each in consumer.get_many(2, 1)] == [b"0", b"1"]
        assert [each.content for each in consumer.get_many(2, 1)] == [b"2", b"3"]
    with vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(vq.ConsumerConfig(group="g")).subscribe("t")
        assert [each.content for each in consumer.get_many(9, 1)] == [b"4"]
        consumer.commit()
        assert consumer.get_many(9, 0) == []


def test_what_needs_a_cluster_is_refused_by_name(config: vq.MessageFactoryConfig) -> None:
    with vq.MessageFactory(config) as factory:
        producer = factory.create_producer()
        with pytest.raises(InvalidState, match="no transaction: that needs a cluster"):
            producer.transaction()
        with pytest.raises(InvalidState, match="needs a cluster"):
            factory.get_partitions_for_topic("t")
        with pytest.raises(InvalidArgument, match="transactional_id = 'x' needs a cluster"):
            factory.create_producer(vq.ProducerConfig(transactional_id="x"))
        first = factory.create_consumer(vq.ConsumerConfig(group="a"))
        first.subscribe("t")
        with pytest.raises(InvalidArgument, match="which group 'a' reads"):
            factory.create_consumer(vq.ConsumerConfig(group="b")).subscribe("t")
        second = factory.create_consumer(vq.ConsumerConfig(group="a"))
        with pytest.raises(InvalidArgument, match="with another message_filter"):
            second.subscribe("t", message_filter="tag")
        with pytest.raises(InvalidArgument, match=r"pattern 't\*' needs a cluster"):
            first.subscribe("t*")
        with pytest.raises(InvalidArgument, match=r"cannot read '_vq\.dlq\.a'"):
            first.subscribe("_vq.dlq.a")
        with pytest.raises(InvalidArgument, match="are reserved"):
            producer.send_sync(Message("_vq.dlq.a", b""))
        with pytest.raises(InvalidArgument, match=r"timeout = 1\.0 needs a cluster"):
            producer.send_async(Message("t", b""), timeout=1.0)
        with pytest.raises(InvalidState, match="open already"):
            factory.open()


@pytest.mark.parametrize(
    "settings",
    [
        {"on_failure": "stop"},
        {"on_bad_record": "stop"},
        {"start_position": "latest"},
        {"batch_size": 2},
        {"listener_timeout_s": 1.0},
        {"model": "shared"},
        {"read_from": "any"},
        {"window_bytes": 1 << 20},
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(
    config: vq.MessageFactoryConfig, settings: dict[str, Any]
) -> None:
    (name,) = settings
    with (
        vq.MessageFactory(config) as factory,
        pytest.raises(InvalidArgument, match=f"{name} = .* needs a cluster"),
    ):
        factory.create_consumer(vq.ConsumerConfig(group="g", **settings))


def test_a_failed_message_of_one_key_holds_up_no_other_key(
    config: vq.MessageFactoryConfig,
) -> None:
    seen: list[bytes] = []

    def listener(message: Message) -> object:
        seen.append(message.content)
        return vq.Retry(after_s=3600.0) if message.content == b"a1" else None

    with vq.MessageFactory(config) as factory:
        factory.create_producer().send_batch(
            [Message("t", b"a1", key="a"), Message("t", b"a2", key="a"), Message("t", b"b1")]
        )
        settings = vq.ConsumerConfig(group="g", mode="keyed", workers=2)
        with factory.create_consumer(settings) as consumer:
            consumer.subscribe("t", listener=listener).start()
            block_until(lambda: sorted(seen) == [b"a1", b"b1"])


def test_redeliveries_go_on_after_a_restart(config: vq.MessageFactoryConfig) -> None:
    """The schedule is not begun anew: the second delivery is the last one before it is given up."""
    calls: list[int] = []

    def listener(message: Message) -> None:
        calls.append(message.attempts)
        raise SystemExit("not even this ends the thread")

    settings = vq.ConsumerConfig(
        group="g",
        mode="concurrent",
        max_attempts=1,
        on_failure="retry-topic",
        retry_schedule=(0.3,),
    )
    with vq.MessageFactory(config) as factory:
        factory.create_producer().send_sync(Message("t", b"bad"))
        with factory.create_consumer(settings) as consumer:
            consumer.subscribe("t", listener=listener).start()
            block_until(lambda: calls == [1])
    with vq.MessageFactory(config) as factory:
        with factory.create_consumer(settings) as consumer:
            consumer.subscribe("t", listener=listener).start()
            block_until(lambda: calls == [1, 2])
        reader = factory.create_consumer(vq.ConsumerConfig(group="of-g")).subscribe("_vq.dlq.g")
        (letter,) = reader.get_many(9, WAIT_S)
        assert (letter.content, reader.get_many(9, 0)) == (b"bad", [])


def test_messages_that_are_pulled_pass_the_filter(config: vq.MessageFactoryConfig) -> None:
    with vq.MessageFactory(config) as factory:
        tags = "abab"
        factory.create_producer().send_batch([Message("t", tag.encode(), tag) for tag in tags])
        consumer = factory.create_consumer(vq.ConsumerConfig(group="g"))
        consumer.subscribe("t", message_filter="b").start()
        assert [each.content for each in consumer.get_many(1, 1)] == [b"b"]
        assert [each.content for each in consumer.get_many(9, 1)] == [b"b"]
        assert consumer.get_many(9, 0) == []


def test_a_message_on_its_way_cannot_be_cancelled(config: vq.MessageFactoryConfig) -> None:
    """It would end the thread that commits for all."""
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        futures = [producer.send_async(Message("t", b"%d" % number)) for number in range(20)]
        assert not any(future.cancel() for future in futures)
        assert len({future.result(WAIT_S).id for future in futures}) == 20


def test_callbacks_that_exit_harm_no_other_message(config: vq.MessageFactoryConfig) -> None:
    """They run on the thread that commits for everybody; the log of the application fails, too."""
    told: list[object] = []

    def leave(*_: object) -> None:
        sys.exit("enough")

    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        producer.send_sync(Message("t", b"0"))
        with raising_logs(error=SystemExit):
            exiting = producer.send_async(Message("t", b"1"), leave)
            exiting.add_done_callback(leave)
            futures = [
                producer.send_async(Message("t", b"%d" % number), lambda *got: told.append(got))
                for number in range(2, 5)
            ]
            assert len({each.result(WAIT_S).id for each in (exiting, *futures)}) == 4
            producer.flush(WAIT_S)
        assert told == [(each.result(), None) for each in futures]


def test_a_callback_may_send_again_but_not_wait(
    config: vq.MessageFactoryConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a cluster. It runs on the thread that commits, which no call must wait for there."""
    told: list[vq.SendResult | None] = []
    refused: list[type] = []

    def again(result: vq.SendResult | None, _: object) -> None:
        told.append(result)
        if len(told) < 3:
            producer.send_async(Message("t", b"again"), again)
            return
        queue = factory._local.queues.queue("t")
        monkeypatch.setattr(commits, "_INTAKE_ITEMS", 0)
        for call in (
            lambda: producer.send_sync(Message("t", b"x")),
            producer.flush,
            lambda: consumer.get_many(1),
            queue.drain,
            queue.close,
            lambda: producer.send_async(Message("t", b"x")),
        ):
            try:
                call()
            except (InvalidState, BufferFull) as error:
                refused.append(type(error))
        monkeypatch.undo()

    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        consumer = factory.create_consumer(vq.ConsumerConfig(group="g")).subscribe("t")
        producer.send_sync(Message("t", b"0"))
        assert len(consumer.get_many(9, 1)) == 1
        producer.send_async(Message("t", b"1"), again)
        block_until(lambda: len(refused) == 6)
        assert refused == [InvalidState] * 5 + [BufferFull]
        assert len({each.id for each in told if each}) == 3
        producer.send_sync(Message("t", b"on"))


def test_an_interrupt_of_a_wait_for_an_outcome_leaves_the_queue_going(
    config: vq.MessageFactoryConfig,
) -> None:
    """The thread that commits for all enters each future, which nobody may leave locked."""
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        producer.send_sync(Message("t", b"0"))
        for place in itertools.count():
            future = producer.send_async(Message("t", b"1"))
            interrupter = Interrupter(place, f"{os.sep}threading.py", "concurrent/futures")
            with contextlib.suppress(Interrupted):
                interrupter.run(future.result)
            goes_on = producer.send_async(Message("t", b"2"))
            block_until(goes_on.done)
            assert future.result(WAIT_S).id < goes_on.result().id, interrupter.reached
            if not interrupter.reached:
                break
        assert place > 5


def test_an_interrupt_of_a_pull_neither_loses_nor_repeats_a_message(
    config: vq.MessageFactoryConfig,
) -> None:
    """What the call before returned is handled; what this one was to return comes next.

    But for a message that ``take`` was about to return: it comes when its lease is over.
    """
    with vq.MessageFactory(config) as factory:
        producer = factory.create_producer()
        for place in itertools.count():
            producer.send_batch([Message("t", b"%d" % number) for number in range(5)])
            group = vq.ConsumerConfig(group="g")
            with factory.create_consumer(group).subscribe("t") as consumer:
                assert [each.content for each in consumer.get_many(1, 1)] == [b"0"]
                interrupter = Interrupter(place, "factory/consumer.py")
                with contextlib.suppress(Interrupted):
                    interrupter.run(lambda of=consumer: of.get_many(2, 1))  # type: ignore[misc]
                if not interrupter.reached:
                    break
                found = [each.content for each in consumer.get_many(9, 1)]
                expected = [b"1", b"2", b"3", b"4"]
                line = int(interrupter.reached.rpartition(":")[2])
                if "queue.take(" in linecache.getline(module.__file__, line):
                    assert len({*expected} - {*found}) <= 1
                    expected = [each for each in expected if each in found]
                assert found == expected, interrupter.reached
    assert place > 20


class FailsOnce(vq.MessageFilter):
    """Fails once, at the fourth message."""

    def __init__(self) -> None:
        self.failed = False

    def matches(self, message: vq.Message) -> bool:
        """See ``MessageFilter``."""
        if message.content == b"3" and not self.failed:
            self.failed = True
            raise ValueError(message.content)
        return True


def test_a_filter_that_fails_costs_no_message_of_a_pull(config: vq.MessageFactoryConfig) -> None:
    with vq.MessageFactory(config) as factory:
        producer = factory.create_producer()
        producer.send_batch([vq.Message("t", b"%d" % n) for n in range(6)])
        consumer = factory.create_consumer(vq.ConsumerConfig(group="g"))
        consumer.subscribe("t", message_filter=FailsOnce()).start()
        with pytest.raises(FilterFailed):
            consumer.get_many(10, timeout=1)
        assert [each.content for each in consumer.get_many(10, 1)] == [b"%d" % n for n in range(6)]


def test_a_retry_without_a_pause_is_counted(config: vq.MessageFactoryConfig) -> None:
    """Behind the last delay comes the topic of dead letters, whatever a listener asks for."""
    calls = []

    def listener(message: vq.Message) -> vq.Retry:
        calls.append(message.attempts)
        return vq.Retry(after_s=0)

    with vq.MessageFactory(config) as factory:
        factory.create_producer().send_sync(vq.Message("t", b"x"))
        policy: dict[str, Any] = {
            "max_attempts": 1,
            "on_failure": "retry-topic",
            "retry_schedule": (0.01,),
        }
        consumer = factory.create_consumer(vq.ConsumerConfig(group="g", order="relaxed", **policy))
        consumer.subscribe("t", listener=listener).start()
        dead = factory.create_consumer(vq.ConsumerConfig(group="dead"))
        dead.subscribe("_vq.dlq.g").start()
        assert dead.get_many(1, timeout=WAIT_S)
        assert calls == [1, 2]


def test_the_end_of_a_loop_is_no_failed_try(config: vq.MessageFactoryConfig) -> None:
    """``asyncio.run`` cancels a listener that runs, and its loop is gone for the next try."""

    async def main() -> None:
        factory = await vq.aio.MessageFactory(config).open()
        factories.append(factory)
        await (await factory.create_producer()).send(Message("t", b"work"))
        begun = asyncio.Event()

        async def listener(_: Message) -> None:
            begun.set()
            await asyncio.sleep(3600)

        consumer = await factory.create_consumer(
            vq.ConsumerConfig(
                group="g", on_failure="dead-letter", max_attempts=1, retry_backoff=(0.01, 0.01)
            )
        )
        await consumer.subscribe("t", listener=listener).start()
        await begun.wait()

    factories: list[vq.aio.MessageFactory] = []
    asyncio.run(main())
    asyncio.run(factories[0].shutdown())
    with vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(vq.ConsumerConfig(group="g")).subscribe("t")
        assert [each.content for each in consumer.get_many(9, WAIT_S)] == [b"work"]
        of_dead = factory.create_consumer(vq.ConsumerConfig(group="d")).subscribe("_vq.dlq.g")
        assert of_dead.get_many(9, 0) == []


def test_a_child_of_a_fork_leaves_its_parents_factory(config: vq.MessageFactoryConfig) -> None:
    with (
        vq.MessageFactory(config) as factory,
        factory.create_producer() as producer,
        factory.create_consumer(vq.ConsumerConfig(group="g")) as consumer,
    ):
        producer.send_sync(Message("t", b"1"))
        consumer.subscribe("t")
        assert len(consumer.get_many(1, WAIT_S)) == 1
        if not (child := os.fork()):
            with contextlib.suppress(BaseException):
                consumer.close()
                producer.close()
                factory.shutdown()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        producer.send_sync(Message("t", b"2"))
        assert [each.content for each in consumer.get_many(9, WAIT_S)] == [b"2"]
