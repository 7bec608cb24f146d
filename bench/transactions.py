"""What a transaction takes beside a plain send of the same messages, in turns in one process."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import vq
from bench.cluster import WORKER, Cluster
from bench.context import Context, Rounds
from bench.figures import Figure
from bench.peers import Missing, kafka
from bench.peers.peer import FSYNC
from vq import aio
from vq.cli.bench.worker import Worker
from vq.cli.bench.workload import Ready, WorkFailed, contents

SIZE: Final = 128
#: Messages of a large transaction.
TOGETHER: Final = 100
UNIT: Final = "ms"
#: Transactions that are made at once where only their number counts.
AT_ONCE: Final = 200
#: So long may a start take.
SETTLE_S: Final = 120.0
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
                if messages == 1:
                    producer.send_sync(each[0])
                else:
                    producer.send_batch(each)

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


def beside(
    ready: Ready, *, client: dict[str, Any], topic: str, also: str, turns: int, open: int
) -> dict[str, Any]:
    """Send batches plainly, ``turns`` times, before and while so many transactions are prepared."""
    each = [vq.Message(topic, content) for content in contents(0, 0, TOGETHER, SIZE)]
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
    ):

        def plain() -> None:
            producer.send_batch(each)

        def batches() -> float:
            return median(_timed(plain) for _ in range(turns))

        _timed(plain)
        ready()
        before = batches()
        waiting = []
        for _ in range(open):
            transaction = producer.begin_transaction()
            for name in (topic, also):
                producer.send_sync(vq.Message(name, b"waits"))
            transaction.prepare()
            waiting.append(transaction)
        during = batches()
        for transaction in waiting:
            transaction.rollback()
    return {"before": before, "during": during}


def end_and_prepare(
    ready: Ready, *, client: dict[str, Any], topic: str, also: str, ended: int, prepared: int
) -> dict[str, Any]:
    """Commit so many transactions of two messages, and leave others prepared."""

    async def run() -> None:
        left = iter(range(ended))
        async with aio.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
            producer = await factory.create_producer()

            async def fill(transaction: aio.Transaction) -> aio.Transaction:
                for name in (topic, also):
                    await producer.send(vq.Message(name, b"of a transaction"))
                return transaction

            async def commit() -> None:
                for _ in left:
                    async with producer.transaction() as transaction:
                        await fill(transaction)

            for _ in range(prepared):
                await (await fill(await producer.begin_transaction())).prepare()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(commit())

    ready()
    begin = time.perf_counter()
    asyncio.run(run())
    return {"seconds": time.perf_counter() - begin}


def settle(ready: Ready, *, client: dict[str, Any]) -> dict[str, Any]:
    """Return once every journal tells what it has, and all that is committed is stored again."""

    async def run() -> int:
        async with aio.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
            while True:
                try:
                    found = await factory.admin.list_transactions()
                    if not any(e.state is vq.TransactionState.COMMITTED for e in found):
                        return len(found)
                except vq.VqError:  # they are being read
                    if time.perf_counter() > begin + SETTLE_S:
                        raise

    ready()
    begin = time.perf_counter()
    return {"undecided": asyncio.run(run())}


def transactions(context: Context) -> Rounds:
    """One message, then a hundred; of one partition, which needs no journal, and of two.

    Then of two broker groups; beside a thousand that are prepared; and a start with many.
    """
    turns = context.pick(300, 10)
    for _ in range(context.rounds):
        figures = []
        with context.cluster() as cluster:
            topic, other = cluster.topic(), cluster.topic()
            for count, also, name in (
                (1, topic, "of one message"),
                (TOGETHER, topic, f"of {TOGETHER} messages"),
                (2, other, "of two messages to two topics"),
                (TOGETHER, other, f"of {TOGETHER} messages to two topics"),
            ):
                figures.append(_beside_plain(cluster, topic, also, turns, count, name))
            took = cluster.run("half", topic=topic, turns=turns)
            figures.append(Figure("half message and its commit", took["half"], UNIT, took["plain"]))
            topic, other = cluster.topic(), cluster.topic()
            took = cluster.run("transform", topic=topic, also=other, turns=turns, messages=TOGETHER)
            figures.append(Figure(TRANSFORMED, took["transaction"], UNIT, took["plain"]))
            few = context.pick(1_000, 10)
            took = cluster.run("beside", topic=topic, also=other, turns=turns, open=few)
            figures.append(
                Figure(f"{few} prepared, plain batches", took["during"], UNIT, took["before"])
            )
        with context.cluster(groups=2) as cluster:
            one, two = _of_two_groups(cluster)
            for count in (2, TOGETHER):
                name = f"of {count} messages to two groups"
                figures.append(_beside_plain(cluster, one, two, turns, count, name))
        figures.append(_recovery(context))
        yield figures + _of_kafka(context, turns)


def _beside_plain(
    cluster: Cluster, topic: str, also: str, turns: int, count: int, name: str
) -> Figure:
    took = cluster.run("transact", topic=topic, also=also, turns=turns, messages=count)
    return Figure(name, took["transaction"], UNIT, took["plain"])


def _of_two_groups(cluster: Cluster) -> tuple[str, str]:
    """Return two topics of one partition, which lie in different groups."""
    topics = [cluster.topic() for _ in range(2)]
    groups = cluster.groups_of(*topics)
    if len(set(groups)) != 2:
        raise WorkFailed(f"the topics lie in {groups}, and should lie in two groups")
    return topics[0], topics[1]


def _recovery(context: Context) -> Figure:
    """Kill and start a broker with many transactions; the time until all of them are told."""
    ended, prepared = context.pick(100_000, 100), context.pick(1_000, 10)
    with context.cluster() as cluster:
        topic, also = cluster.topic(), cluster.topic()
        cluster.run("end_and_prepare", topic=topic, also=also, ended=ended, prepared=prepared)
        cluster.broker.kill()
        begin = time.monotonic()
        cluster.broker.start()
        cluster.broker.wait_ready()
        served_s = time.monotonic() - begin
        found = cluster.run("settle")["undecided"]
        took_s = time.monotonic() - begin
        if found != prepared:
            raise WorkFailed(f"{found} transactions are undecided, {prepared} were prepared")
    return Figure(
        f"start with {ended} ended and {prepared} prepared",
        took_s,
        "s",
        details={"served_s": served_s},
    )


def _of_kafka(context: Context, turns: int) -> list[Figure]:
    """The first ones with Kafka, in its class that flushes, if it is here."""
    peer = next(each for each in kafka.PEERS if each.durability == FSYNC)
    figures: list[Figure] = []
    try:
        peer.check()
        with (
            tempfile.TemporaryDirectory(dir=context.directory) as scratch,
            peer.running(Path(scratch)) as values,
        ):
            for count, topics in ((1, 1), (TOGETHER, 1), (2, 2), (TOGETHER, 2)):
                name = f"{peer.name}: {count} messages to {topics} topics"
                load = {"turns": turns, "size": SIZE, "messages": count, "topics": topics}
                with Worker("kafka_transact", command=WORKER, **values, **load) as worker:
                    took = worker.wait_ready().go().result()
                figures.append(Figure(name, took["transaction"], UNIT, took["plain"]))
    except (Missing, WorkFailed) as error:
        context.say(f"{peer.name} is left out: {error}")
    return figures


_WORKS: Final = (transact, transform, half, beside, end_and_prepare, settle)
WORKS: Final = {each.__name__: each for each in _WORKS}
