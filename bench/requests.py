"""A request and its reply beside two one-way trips, in turns in one process."""

import asyncio
import threading
import time
from statistics import median
from typing import Any, Final

import vq
from bench.context import Context, Rounds
from bench.figures import Figure, Target
from vq import aio
from vq.cli.bench.workload import Ready, contents

SIZE: Final = 128
UNIT: Final = "ms"
ONE: Final = "one request at a time, p50"
MANY: Final = "requests at once"
TARGETS: Final = {ONE: Target(ratio_max=1.3)}


def ask(ready: Ready, *, client: dict[str, Any], topic: str, turns: int) -> dict[str, Any]:
    """Send a message to a listener, and a request to it, ``turns`` times each; the medians.

    A one-way trip is from the send to the listener. The listener belongs to another factory.
    """
    (content,) = contents(0, 0, 1, SIZE)
    config = vq.MessageFactoryConfig(**client)
    arrived = threading.Semaphore(0)
    with (
        vq.MessageFactory(config) as factory,
        vq.MessageFactory(config) as other,
        factory.create_producer() as producer,
        other.create_producer() as answers,
        other.create_consumer(vq.ConsumerConfig(group=f"{topic}.answers")) as consumer,
    ):

        def listen(message: vq.Message) -> None:
            if message.reply_to is None:
                arrived.release()
            else:
                answers.reply(message, content)

        def one_way() -> None:
            producer.send_sync(vq.Message(topic, content))
            arrived.acquire()

        def request() -> None:
            producer.request(vq.Message(topic, content), timeout=30.0)

        consumer.subscribe(topic, 1 << 20, listen).start()
        for way in (one_way, request):
            way()
        ready()
        times = [(_timed_ms(one_way), _timed_ms(request)) for _ in range(turns)]
    return {"one_way": median(e[0] for e in times), "request": median(e[1] for e in times)}


def _timed_ms(way: Any) -> float:
    begin = time.perf_counter()
    way()
    return (time.perf_counter() - begin) * 1e3


def ask_at_once(
    ready: Ready, *, client: dict[str, Any], topic: str, count: int, at_once: int, askers: int
) -> dict[str, Any]:
    """Send ``count`` requests by coroutines, so many at once, of so many producers."""

    async def run() -> float:
        (content,) = contents(0, 0, 1, SIZE)
        config = vq.MessageFactoryConfig(**client)
        group = vq.ConsumerConfig(group=f"{topic}.answers", mode="concurrent", workers=at_once)
        async with aio.MessageFactory(config) as factory, aio.MessageFactory(config) as other:
            answers = await other.create_producer()
            consumer = await other.create_consumer(group)

            async def listen(message: vq.Message) -> None:
                await answers.reply(message, content)

            await consumer.subscribe(topic, listener=listen).start()
            producers = [await factory.create_producer() for _ in range(askers)]
            for producer in producers:
                await producer.request(vq.Message(topic, content), timeout=30.0)
            left = iter(range(count))

            async def work(producer: aio.MessageProducer) -> None:
                for _ in left:
                    await producer.request(vq.Message(topic, content), timeout=30.0)

            ready()
            begin = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for number in range(at_once):
                    tasks.create_task(work(producers[number % askers]))
            return time.perf_counter() - begin

    return {"seconds": asyncio.run(run())}


def requests(context: Context) -> Rounds:
    """One after the other; then two hundred at once, of one producer and of twenty."""
    turns, count = context.pick(500, 20), context.pick(20_000, 200)
    for _ in range(context.rounds):
        with context.cluster() as cluster:
            topic = cluster.topic()
            took = cluster.run("ask", topic=topic, turns=turns)
            figures = [Figure(ONE, took["request"], UNIT, 2 * took["one_way"])]
            for askers in (1, 20):
                topic = cluster.topic()
                load = {"count": count, "at_once": 200, "askers": askers}
                seconds = cluster.run("ask_at_once", topic=topic, **load)["seconds"]
                figures.append(Figure(f"200 {MANY}, {askers} producers", count / seconds, "1/s"))
            yield figures


WORKS: Final = {each.__name__: each for each in (ask, ask_at_once)}
