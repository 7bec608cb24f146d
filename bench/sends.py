"""What each way to send costs per message, beside ``send_async`` with a callback in the same run.

Messages of 128 bytes to one partition. The ways of ``vq.aio`` run on asyncio's own loop. Only
processor time is measured: other programs on the machine change it little. The rates of the usual
ways are in ``scenarios``. What asyncio itself takes for so many tasks at once is beside them: the
garbage collector and the caches of the processor make each of many tasks dearer than one of few.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import vq
from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure
from vq import aio
from vq.cli.bench.workload import Outcomes, Ready, WorkFailed, contents

SIZE: Final = 128
#: Messages of one ``send_batch``, and sends of ``vq.aio`` that wait at once.
TOGETHER: Final = 500
#: Sends of ``vq.aio`` in one ``gather``, few and many.
GATHERED: Final = (1_000, 100_000)
UNIT: Final = "µs"  # processor time of the process per message
_TIMEOUT_S: Final = 60.0

Messages = list[vq.Message]


# Ways -------------------------------------------------------------------------------------------
def _send_sync(producer: vq.MessageProducer, messages: Messages) -> int:
    return len([producer.send_sync(message) for message in messages])


def _callbacks(producer: vq.MessageProducer, messages: Messages) -> int:
    outcomes = Outcomes()
    for message in messages:
        producer.send_async(message, outcomes)
    producer.flush()
    return outcomes.acknowledged


def _futures(producer: vq.MessageProducer, messages: Messages) -> int:
    futures = [producer.send_async(message) for message in messages]
    producer.flush()
    return sum(future.exception() is None for future in futures)


def _oneway(producer: vq.MessageProducer, messages: Messages) -> int:
    for message in messages:
        producer.send_oneway(message)
    producer.flush()
    return producer.metrics().total.messages_stored


def _batches(producer: vq.MessageProducer, messages: Messages) -> int:
    return sum(len(producer.send_batch(some, _TIMEOUT_S)) for some in _parts(messages))


async def _aio_one(producer: aio.MessageProducer, messages: Messages) -> int:
    return len([await producer.send(message) for message in messages])


def _aio_gather(together: int) -> Callable[[aio.MessageProducer, Messages], Awaitable[int]]:
    async def send_all(producer: aio.MessageProducer, messages: Messages) -> int:
        stored = 0
        for some in _parts(messages, together):
            stored += len(await asyncio.gather(*map(producer.send, some)))
        return stored

    return send_all


def _asyncio_alone(together: int) -> Callable[[aio.MessageProducer, Messages], Awaitable[int]]:
    """Return a way that sends nothing: as many tasks wait for futures, which get a result."""

    async def wait_all(producer: aio.MessageProducer, messages: Messages) -> int:
        loop = asyncio.get_running_loop()
        waited = 0
        for some in _parts(messages, together):
            futures: list[asyncio.Future[vq.Message]] = []

            async def wait(futures: "list[asyncio.Future[vq.Message]]" = futures) -> vq.Message:
                futures.append(loop.create_future())
                return await futures[-1]

            waits = asyncio.gather(*(wait() for _ in some))
            await asyncio.sleep(0)  # every task has begun
            for future, message in zip(futures, some, strict=True):
                future.set_result(message)
            waited += len(await waits)
        return waited

    return wait_all


async def _aio_callbacks(producer: aio.MessageProducer, messages: Messages) -> int:
    outcomes = Outcomes()
    for message in messages:
        await producer.send_async(message, outcomes)
    await producer.flush()
    return outcomes.acknowledged


async def _aio_batches(producer: aio.MessageProducer, messages: Messages) -> int:
    stored = 0
    for some in _parts(messages):
        stored += len(await producer.send_batch(some, _TIMEOUT_S))
    return stored


def _parts(messages: Messages, together: int = TOGETHER) -> Iterable[Messages]:
    return (messages[begin : begin + together] for begin in range(0, len(messages), together))


BASE: Final = "send_async, a callback each"
BLOCKING: Final[dict[str, Callable[[vq.MessageProducer, Messages], int]]] = {
    BASE: _callbacks,
    "send_async, the futures": _futures,
    "send_oneway": _oneway,
    f"send_batch of {TOGETHER}": _batches,
    "send_sync": _send_sync,
}
ASYNCIO: Final[dict[str, Callable[[aio.MessageProducer, Messages], Awaitable[int]]]] = {
    "aio: send_async, a callback each": _aio_callbacks,
    f"aio: gather of {TOGETHER} send": _aio_gather(TOGETHER),
    **{f"aio: gather of {count} send": _aio_gather(count) for count in GATHERED},
    **{f"asyncio alone: gather of {count}": _asyncio_alone(count) for count in GATHERED},
    f"aio: send_batch of {TOGETHER}": _aio_batches,
    "aio: await send": _aio_one,
}
#: Ways that wait for each message before the next one: fewer messages.
ONE_BY_ONE: Final = frozenset({"send_sync", "aio: await send"})
WAYS: Final = (*BLOCKING, *ASYNCIO)


# The work and the scenario ----------------------------------------------------------------------
def send_by(
    ready: Ready, *, client: dict[str, Any], topic: str, count: int, way: str
) -> dict[str, Any]:
    """Send ``count`` messages in one of the ``WAYS``; return the processor time."""
    messages = [vq.Message(topic, each) for each in contents(0, 0, count, SIZE)]
    config = vq.MessageFactoryConfig(**client)
    if way in BLOCKING:
        with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
            producer.publish(topic)
            ready()
            begin = time.process_time()
            stored = BLOCKING[way](producer, messages)
            processor_s = time.process_time() - begin
    else:
        stored, processor_s = asyncio.run(_on_a_loop(ready, config, messages, way))
    if stored != count:
        raise WorkFailed(f"{way}: of {count} messages {stored} were stored")
    return {"messages": count, "processor_s": processor_s}


async def _on_a_loop(
    ready: Ready, config: vq.MessageFactoryConfig, messages: Messages, way: str
) -> tuple[int, float]:
    async with aio.MessageFactory(config) as factory, await factory.create_producer() as producer:
        await producer.publish(messages[0].topic)
        ready()
        begin = time.process_time()
        stored = await ASYNCIO[way](producer, messages)
        return stored, time.process_time() - begin


def sends(context: Context) -> Rounds:
    """Send the same messages in one way after the other."""
    with context.cluster() as cluster:
        _cost(cluster, context.pick(50_000, 1_000), BASE)  # imports, allocations
        for _ in range(context.rounds):
            costs = {}
            for way in WAYS:
                full = 4_000 if way in ONE_BY_ONE else 200_000
                costs[way] = _cost(cluster, context.pick(full, 500), way)
            yield [Figure(way, cost, UNIT, costs[BASE]) for way, cost in costs.items()]


def _cost(cluster: Cluster, count: int, way: str) -> float:
    topic = cluster.topic()
    sent = cluster.run("send_by", topic=topic, count=count, way=way)
    cluster.drop(topic)
    return float(sent["processor_s"] / count * 1e6)


WORKS: Final = {send_by.__name__: send_by}
