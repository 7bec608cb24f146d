"""Coroutines that are called once per message: order, failures, hand-overs and the end."""

import asyncio
import contextvars
import gc
from collections import Counter, defaultdict
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.consumers import consumer_of, send, take, texts, until_committed

from vq import aio
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.consumer import core as cores
from vq.errors import InvalidArgument, InvalidState, ListenerFailed
from vq.model import Message, TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)


async def listening(
    factory: aio.MessageFactory,
    listener: Any,
    topic: str = "t",
    **settings: Any,
) -> aio.MessageConsumer:
    """Return a started consumer whose messages go to a listener."""
    config = ConsumerConfig(**{"group": "g", "max_wait_s": 0.5, **settings})
    consumer = await factory.create_consumer(config)
    return await consumer.subscribe(topic, listener=listener).start()


async def test_a_listener_gets_every_message_in_order(factory: aio.MessageFactory) -> None:
    sent = await send(factory, *texts(*range(20)))
    got: list[bytes] = []

    async def listener(message: Message) -> None:
        await asyncio.sleep(0.01)
        got.append(message.content)

    async with await listening(factory, listener) as consumer:
        await until(lambda: len(got) == 20)
        await consumer.commit()
        await until_committed(consumer, sent[-1].offset + 22)
    assert got == [b"%d" % number for number in range(20)]


async def test_an_object_with_a_coroutine_method_is_a_listener(factory: aio.MessageFactory) -> None:
    class Handler:
        got = 0

        async def __call__(self, message: Message) -> None:
            self.got += 1

    await send(factory, *texts(1))
    handler = Handler()
    async with await listening(factory, handler):
        await until(lambda: handler.got == 1)


async def test_a_message_whose_listener_raises_comes_again_and_is_not_passed_by(
    factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """That is what a loop around ``async for`` that catches errors lost."""
    await send(factory, *texts(0, 1, 2))
    got: list[bytes] = []
    left = [3]

    async def listener(message: Message) -> None:
        if message.content == b"1" and left[0]:
            left[0] -= 1
            raise ZeroDivisionError
        got.append(message.content)

    async with await listening(factory, listener) as consumer:
        await until(lambda: T0 in consumer.troubles())
        trouble = consumer.troubles()[T0]
        assert isinstance(trouble.error, ListenerFailed)
        await until(lambda: len(got) == 3)
        assert got == [b"0", b"1", b"2"]
        await until(lambda: consumer.troubles() == {})
    assert caplog.text.count("listener failed") == 3


async def test_a_message_is_skipped_after_its_tries(factory: aio.MessageFactory) -> None:
    await send(factory, *texts(0, 1, 2))
    got: list[bytes] = []
    tries = 0

    async def listener(message: Message) -> None:
        nonlocal tries
        if message.content == b"1":
            tries += 1
            raise ZeroDivisionError
        got.append(message.content)

    settings = {"on_failure": "skip"}
    async with await listening(factory, listener, **settings) as consumer:
        await until(lambda: len(got) == 2)
        assert (got, tries) == ([b"0", b"2"], 3)
        assert consumer.troubles() == {}


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1)])
async def test_whatever_a_listener_raises_is_a_failed_try(
    factory: aio.MessageFactory, error: BaseException
) -> None:
    """Also the cancellation of a task that it awaits."""
    await send(factory, *texts(0))
    raised: list[BaseException] = []
    got: list[bytes] = []

    async def listener(message: Message) -> None:
        if not raised:
            raised.append(error)
            raise error
        got.append(message.content)

    async with await listening(factory, listener):
        await until(lambda: got == [b"0"])


@pytest.mark.parametrize("workers", [1, 3, 4])
async def test_so_many_partitions_are_handled_at_a_time_each_in_order(
    factory: aio.MessageFactory, workers: int
) -> None:
    config = ProducerConfig(partitioner=lambda message, partitions: int(message.content) % 4)
    async with await factory.create_producer(config) as producer:
        await asyncio.gather(*(producer.send(Message("wide", b"%d" % n)) for n in range(40)))
    got: dict[int, list[int]] = defaultdict(list)
    running: set[int] = set()
    most = 0

    async def listener(message: Message) -> None:
        nonlocal most
        assert message.partition not in running
        running.add(message.partition)
        most = max(most, len(running))
        await asyncio.sleep(0.1)
        running.discard(message.partition)
        got[message.partition].append(int(message.content))

    async with await listening(factory, listener, "wide", workers=workers) as consumer:
        await until(lambda: len(consumer.assignment()) == 4)
        await until(lambda: sum(map(len, got.values())) == 40)
    assert most == workers
    assert all(found == sorted(found) for found in got.values())


async def test_a_partition_that_waits_for_its_next_try_holds_no_other_up(
    factory: aio.MessageFactory,
) -> None:
    config = ProducerConfig(partitioner=lambda message, partitions: int(message.content) % 4)
    async with await factory.create_producer(config) as producer:
        await asyncio.gather(*(producer.send(Message("wide", b"%d" % n)) for n in range(8)))
    got: list[int] = []

    async def listener(message: Message) -> None:
        if message.partition == 1:
            raise ZeroDivisionError
        got.append(int(message.content))

    async with await listening(factory, listener, "wide"):
        await until(lambda: len(got) == 6)
    assert sorted(got) == [0, 2, 3, 4, 6, 7]


async def test_close_finishes_the_message_in_hand(factory: aio.MessageFactory) -> None:
    """And no other; nobody gets it again."""
    await send(factory, *texts(0, 1, 2))
    began, done = asyncio.Event(), []

    async def listener(message: Message) -> None:
        began.set()
        await asyncio.sleep(5.0)
        done.append(message.content)

    consumer = await listening(factory, listener)
    await began.wait()
    await consumer.close()
    assert done == [b"0"]
    async with await consumer_of(factory) as follower:
        assert await take(follower, 2) == [b"1", b"2"]


async def test_close_cancels_a_listener_that_does_not_end_and_its_message_comes_again(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "CLOSE_S", 1.0)
    await send(factory, *texts(0))
    began, cancelled = asyncio.Event(), []

    async def listener(message: Message) -> None:
        began.set()
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            cancelled.append(message.content)
            raise

    consumer = await listening(factory, listener)
    await began.wait()
    await consumer.close()
    assert cancelled == [b"0"]
    assert not [each for each in asyncio.all_tasks() if "_serve" in repr(each)]
    async with await consumer_of(factory) as follower:
        assert await take(follower, 1) == [b"0"]


async def test_a_listener_cannot_close_its_own_consumer(factory: aio.MessageFactory) -> None:
    await send(factory, *texts(0))
    refused: list[BaseException] = []

    async def listener(message: Message) -> None:
        try:
            await consumer.close()
        except InvalidState as error:
            refused.append(error)

    consumer = await listening(factory, listener)
    await until(lambda: len(refused) == 1)
    assert not consumer.closed
    await consumer.close()


async def test_a_partition_is_handed_over_when_its_listener_returns(
    factory: aio.MessageFactory,
) -> None:
    """No message is repeated or left out."""
    got: list[tuple[str, int]] = []

    def listener(name: str) -> Any:
        async def handle(message: Message) -> None:
            await asyncio.sleep(0.05)
            got.append((name, int(message.content)))

        return handle

    config = ProducerConfig(partitioner=lambda message, partitions: int(message.content) % 4)
    async with await factory.create_producer(config) as producer:
        await asyncio.gather(*(producer.send(Message("wide", b"%d" % n)) for n in range(200)))
        async with (
            await listening(factory, listener("a"), "wide", workers=4),
            await listening(factory, listener("b"), "wide", workers=4) as second,
        ):
            await until(lambda: len(second.assignment()) == 2)
            await asyncio.gather(
                *(producer.send(Message("wide", b"%d" % n)) for n in range(200, 240))
            )
            await until(lambda: len(got) >= 240)
    assert sorted(number for _, number in got) == list(range(240))
    assert {name for name, _ in got} == {"a", "b"}


async def test_seek_pause_and_resume_work_as_with_threads(factory: aio.MessageFactory) -> None:
    sent = await send(factory, *texts(*range(4)))
    got: list[bytes] = []

    async def listener(message: Message) -> None:
        got.append(message.content)

    async with await listening(factory, listener) as consumer:
        await until(lambda: len(got) == 4)
        await consumer.seek(T0, sent[2].offset)
        await until(lambda: got[4:] == [b"2", b"3"])
        consumer.pause(T0)
        await send(factory, *texts(9))
        await asyncio.sleep(5.0)
        assert len(got) == 6
        consumer.resume()
        await until(lambda: got[6:] == [b"9"])


async def test_a_listener_runs_in_the_context_of_the_factory(factory: aio.MessageFactory) -> None:
    """Whoever subscribes, starts or sends; a listener of threads does, too."""
    name = contextvars.ContextVar[str]("name", default="none")
    got: list[str] = []

    async def listener(message: Message) -> None:
        got.append(name.get())

    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.5))
    name.set("subscriber")
    consumer.subscribe("t", listener=listener)
    name.set("starter")
    async with await consumer.start():
        await send(factory, *texts(1))
        await until(lambda: got == ["none"])


async def test_what_goes_together_with_a_listener_and_what_does_not(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    async def listener(message: Message) -> None: ...

    consumer = await factory.create_consumer(ConsumerConfig(group="g"))
    for wrong in (print, "print", lambda message: None):
        with pytest.raises(InvalidArgument, match="is no coroutine function"):
            consumer.subscribe("t", listener=wrong)  # type: ignore[arg-type]

    async def of_two(topic: str, message: Message) -> None: ...

    with pytest.raises(InvalidArgument, match=r"of_two\(topic: str, .* one argument, the message"):
        consumer.subscribe("t", listener=of_two)  # type: ignore[arg-type]
    consumer.subscribe("t", listener=listener)
    with pytest.raises(InvalidArgument, match="some topics of this consumer have a listener"):
        consumer.subscribe("wide")
    with pytest.raises(InvalidState, match="have listeners"):
        aiter(consumer)
    with pytest.raises(InvalidState, match="have listeners"):
        await consumer.get_many(1)


@pytest.mark.parametrize("how", ["by a timer", "in its pause"])
async def test_a_listener_that_a_library_cancels_gets_its_message_again(
    factory: aio.MessageFactory, how: str
) -> None:
    """Whatever a listener raises, the cancellations of any library too, is a failed try."""
    await send(factory, *texts(0, 1, 2))
    got: list[bytes] = []
    tries = 0

    async def listener(message: Message) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_later(0.1, task.cancel)  # a time-out of a library
            if how == "in its pause":
                raise ZeroDivisionError
            await asyncio.sleep(60.0)
        got.append(message.content)

    settings = {"retry_backoff": (1.0, 30.0)}
    async with await listening(factory, listener, **settings) as consumer:
        await until(lambda: tries == 1)
        await asyncio.sleep(90.0)
        assert (got, consumer.troubles()) == ([b"0", b"1", b"2"], {})


def kept(partition: int) -> int:
    """Return how many messages of a partition are in memory, of consumers, say."""
    gc.collect()
    found = (each for each in gc.get_objects() if isinstance(each, Message))
    return sum(each.partition == partition for each in found)


@pytest.mark.parametrize(
    "settings",
    [{}, {"mode": "keyed"}, {"mode": "concurrent", "on_failure": "hold"}, {"batch_size": 3}],
    ids=["orderly", "keyed", "concurrent", "lists"],
)
async def test_what_waits_for_its_next_try_goes_with_its_partition(
    cluster: MemoryCluster, factory: aio.MessageFactory, settings: dict[str, Any]
) -> None:
    """However long the pause is: the next owner tries it, and this member keeps nothing of it."""
    await cluster.create_topic("pair", partitions=2)
    async with await factory.create_producer() as producer:
        sent = [await producer.send(Message("pair", b"x", key=f"k{at}")) for at in range(10)]
    counts = Counter(each.partition for each in sent)
    tried: list[int] = []

    async def fail(given: Any) -> None:
        tried.extend(each.partition for each in (given if isinstance(given, list) else [given]))
        raise ValueError("no")

    handled: list[int] = []

    async def handle(given: Any) -> None:
        handled.extend(each.partition for each in (given if isinstance(given, list) else [given]))

    pauses = {"retry_backoff": (3_600.0, 3_600.0), "max_attempts": 1}
    async with await listening(factory, fail, "pair", **pauses, **settings) as one:
        await until(lambda: set(tried) == {0, 1})
        await asyncio.sleep(1.0)
        async with await listening(factory, handle, "pair", **pauses, **settings):
            await until(lambda: bool(handled) and len(handled) == counts[handled[0]])
            await asyncio.sleep(1.0)
            (lost,) = set(handled)
            assert [each.partition for each in one.assignment()] == [1 - lost]
            assert kept(lost) == 0
            assert kept(1 - lost) > 0 or not settings, "in order they are bytes until it is tried"
