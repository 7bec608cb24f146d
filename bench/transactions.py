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


def half(ready: Ready, *, client: dict[str, Any], topic: str, turns: int) -> dict[str, Any]:
    """Send a message plainly and as a half message, ``turns`` times each; return the medians.

    Its local work does nothing, and commits.
    """
    (content,) = contents(0, 0, 1, SIZE)
    message = vq.Message(topic, content)
    listener = vq.TransactionListener(lambda _message, _arg: vq.COMMIT, lambda _: vq.UNKNOWN)
    config = vq.ProducerConfig(producer_group="bench", transaction_listener=listener)
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer(config) as producer,
    ):

        def plain() -> None:
            producer.send_sync(message)

        def send_half() -> None:
            producer.send_half(message)

        for way in (plain, send_half):
            _timed(way)
        ready()
        times = [(_timed(plain), _timed(send_half)) for _ in range(turns)]
    return {"plain": median(e[0] for e in times), "half": median(e[1] for e in times)}


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
            took = cluster.run("half", topic=topic, turns=turns)
            figures.append(Figure("half message and its commit", took["half"], UNIT, took["plain"]))
            yield figures


WORKS: Final = {each.__name__: each for each in (transact, half)}
