"""What a transaction takes beside a plain send of the same messages, in turns in one process."""

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import vq
from bench.context import Context, Rounds
from bench.figures import Figure
from vq.cli.bench.workload import Ready, contents

SIZE: Final = 128
#: Messages of a large transaction.
TOGETHER: Final = 100
UNIT: Final = "ms"
TRANSFORMED: Final = f"consume, transform, produce: {TOGETHER} messages"


def transact(
    ready: Ready, *, client: dict[str, Any], topic: str, also: str, turns: int, messages: int
) -> dict[str, Any]:
    """Send messages plainly and in a transaction, ``turns`` times each; return the median times.

    They go to two topics in turn, which may be the same one.
    """
    topics = itertools.cycle((topic, also))
    each = [vq.Message(next(topics), content) for content in contents(0, 0, messages, SIZE)]
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
    ):

        def plain() -> None:
            if messages == 1:
                producer.send_sync(each[0])
            else:
                producer.send_batch(each)

        def transaction() -> None:
            with producer.transaction():
                for message in each:
                    producer.send_async(message)

        for way in (plain, transaction):
            _timed(way)
        ready()
        times = [(_timed(plain), _timed(transaction)) for _ in range(turns)]
    return {"plain": median(e[0] for e in times), "transaction": median(e[1] for e in times)}


def transform(
    ready: Ready, *, client: dict[str, Any], topic: str, also: str, turns: int, messages: int
) -> dict[str, Any]:
    """Consume messages and send as many, ``turns`` times: plainly, and with offsets committed.

    Both take the next messages of one group, in turn; the median times of so many messages are
    returned.
    """
    contents_ = contents(0, 0, messages, SIZE)
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
        factory.create_consumer(vq.ConsumerConfig(group=f"{topic}.transform")) as consumer,
    ):
        for _ in range(2 * turns + 4):
            producer.send_batch([vq.Message(topic, each) for each in contents_])
        consumer.subscribe(topic)

        def plain() -> int:
            found = _take(consumer, messages)
            producer.send_batch([vq.Message(also, each.content) for each in found])
            return len(found)

        def transaction() -> int:
            found = _take(consumer, messages)
            with producer.transaction():
                producer.send_offsets(consumer)
                for each in found:
                    producer.send_async(vq.Message(also, each.content))
            return len(found)

        def timed(way: Callable[[], int]) -> float:
            begin = time.perf_counter()
            count = way()
            return (time.perf_counter() - begin) * 1e3 * messages / count

        for way in (plain, transaction):
            timed(way)
        ready()
        times = [(timed(plain), timed(transaction)) for _ in range(turns)]
    return {"plain": median(e[0] for e in times), "transaction": median(e[1] for e in times)}


def _take(consumer: vq.MessageConsumer, messages: int) -> list[vq.Message]:
    found = consumer.get_many(messages, timeout=10.0)
    if not found:
        raise RuntimeError("no messages within 10 s")
    return found


def _timed(way: Callable[[], None]) -> float:
    begin = time.perf_counter()
    way()
    return (time.perf_counter() - begin) * 1e3


def transactions(context: Context) -> Rounds:
    """One message, then a hundred; of one partition, which needs no journal, and of two."""
    turns = context.pick(300, 10)
    for _ in range(context.rounds):
        with context.cluster() as cluster:
            figures = []
            topic, other = cluster.topic(), cluster.topic()
            for count, also, name in (
                (1, topic, "of one message"),
                (TOGETHER, topic, f"of {TOGETHER} messages"),
                (2, other, "of two messages to two topics"),
                (TOGETHER, other, f"of {TOGETHER} messages to two topics"),
            ):
                took = cluster.run("transact", topic=topic, also=also, turns=turns, messages=count)
                figures.append(Figure(name, took["transaction"], UNIT, took["plain"]))
            topic, other = cluster.topic(), cluster.topic()
            took = cluster.run("transform", topic=topic, also=other, turns=turns, messages=TOGETHER)
            figures.append(Figure(TRANSFORMED, took["transaction"], UNIT, took["plain"]))
            yield figures


WORKS: Final = {each.__name__: each for each in (transact, transform)}
