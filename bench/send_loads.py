"""Client works of the benchmark that send, or make topics; others are ``vq.cli.bench.workload``'s.

Same form: plain values in, plain values out, ``ready`` called when set up.
"""

import array
import asyncio
import itertools
import threading
import time
from typing import Any, Final

import vq
from bench.contents import orders
from vq.cli.bench.workload import (
    Outcomes,
    Ready,
    WorkFailed,
    content,
    contents,
    percentiles,
)
from vq.coordination.topics.topics import create_topic
from vq.errors import VqError
from vq.operations.base.connect import cluster_client

_SEND_S: Final = 60.0


# Many partitions --------------------------------------------------------------------------------
class ByNumber:
    """A partitioner whose keys are partition numbers."""

    def choose(self, message: vq.Message, partitions: vq.TopicPartitions) -> int:
        """See ``vq.client.producer.spread.partitioner.Partitioner``."""
        return int(message.key or 0)


def acks_over_partitions(
    ready: Ready, *, client: dict[str, Any], topic: str, partitions: int, seconds: float, size: int
) -> dict[str, Any]:
    """Keep one message in flight in every partition; each acknowledgement sends the next one."""
    numbers = [0] * partitions
    end = 0.0
    errors: list[VqError] = []
    idle = threading.Semaphore(0)
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer(vq.ProducerConfig(partitioner=ByNumber())) as producer,
    ):
        producer.publish(topic)

        def send(partition: int) -> None:
            body = content(partition, numbers[partition], size)

            def ended(_result: vq.SendResult | None, error: VqError | None) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    numbers[partition] += 1
                if error is None and time.perf_counter() < end:
                    send(partition)
                else:
                    idle.release()

            producer.send_async(vq.Message(topic, body, key=str(partition)), ended)

        # Files are made and allocated by a first message each, outside the measure.
        for partition in range(partitions):
            send(partition)
        for _ in range(partitions):
            idle.acquire()
        warm = sum(numbers)
        ready()
        begin = time.perf_counter()
        end = begin + seconds
        for partition in range(partitions):
            send(partition)
        for _ in range(partitions):
            idle.acquire()
        took = time.perf_counter() - begin
    if errors:
        raise WorkFailed(f"{len(errors)} sends failed, the first: {errors[0]}")
    return {
        "sent": {str(partition): count for partition, count in enumerate(numbers)},
        "messages": sum(numbers) - warm,
        "seconds": took,
    }


# Features of messages ---------------------------------------------------------------------------
def send_orders(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    count: int,
    size: int,
    fields: dict[str, Any],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Send ``count`` orders, all with the same ``fields``, by a producer with ``settings``.

    Returns the processor time of this process until the last callback, and the bytes stored.
    """
    outcomes = Outcomes()
    own = contents(0, 0, count, size, orders(0, size))
    further = [fields.get(name) for name in ("tag", "key", "headers")] if fields else []
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer(vq.ProducerConfig(**settings)) as producer,
    ):
        producer.publish(topic)
        ready()
        send_one, message = producer.send_async, vq.Message
        begin, begin_s = time.process_time(), time.perf_counter()
        for each in own:
            send_one(message(topic, each, *further), outcomes)
        producer.flush()
        processor_s, seconds = time.process_time() - begin, time.perf_counter() - begin_s
        stored = factory.create_consumer().get_bounds(topic, 0).latest
    outcomes.check(count)
    return {
        "messages": count,
        "seconds": seconds,
        "processor_s": processor_s,
        "bytes": stored,
    }


# Through a restart ------------------------------------------------------------------------------
def keep_sending(
    ready: Ready, *, client: dict[str, Any], topic: str, size: int, stream: int
) -> dict[str, Any]:
    """Send one message after the other until the second ``ready``; tell the gaps between acks.

    Returns the monotonic time before and after every gap of 50 ms and more.
    """
    stop = threading.Event()
    gaps: list[tuple[float, float]] = []
    failures: list[VqError] = []
    sent = 0
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
    ):
        producer.publish(topic)

        def send() -> None:
            nonlocal sent
            last = time.monotonic()
            while not stop.is_set():
                try:
                    producer.send_sync(vq.Message(topic, content(stream, sent, size)), _SEND_S)
                except VqError as error:
                    failures.append(error)
                    return
                sent += 1
                now = time.monotonic()
                if now - last >= 0.05:
                    gaps.append((last, now))
                last = now

        ready()
        thread = threading.Thread(target=send)
        thread.start()
        ready()
        stop.set()
        thread.join()
    if failures:
        raise WorkFailed(f"after {sent} messages: {failures[0]}")
    return {"sent": {str(stream): sent}, "gaps": gaps}


def acks_on_schedule(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    rate: float,
    seconds: float,
    warm_up_s: float,
    size: int,
) -> dict[str, Any]:
    """Send ``rate`` messages a second by the clock; time each one from when it was due to its ack.

    A send that is late because an earlier one took long is measured from when it was due, too.
    """
    count = int(rate * (seconds + warm_up_s))
    taken = array.array("d", bytes(8 * count))
    outcomes = Outcomes()
    clock = time.perf_counter
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
    ):
        producer.publish(topic)
        bodies = contents(0, 0, count, size)
        ready()
        begin = clock()

        def callback(number: int) -> Any:
            due = begin + number / rate

            def ended(result: vq.SendResult | None, error: VqError | None) -> None:
                taken[number] = clock() - due
                outcomes(result, error)

            return ended

        for number, body in enumerate(bodies):
            wait = begin + number / rate - clock()
            if wait > 0:
                time.sleep(wait)
            producer.send_async(vq.Message(topic, body), callback(number))
        producer.flush()
    outcomes.check(count)
    counted = sorted(taken[int(rate * warm_up_s) :])
    return {
        "sent": {"0": count},
        "messages": len(counted),
        "latency_ms": percentiles(counted, unit_s=1e-3),
    }


def acks_over_time(
    ready: Ready, *, client: dict[str, Any], topic: str, size: int, stream: int
) -> dict[str, Any]:
    """Send one message after the other until the second ``ready``.

    Returns the monotonic time of each acknowledgement.
    """
    stop = threading.Event()
    times = array.array("d")
    failures: list[VqError] = []
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
    ):
        producer.publish(topic)

        def send() -> None:
            while not stop.is_set():
                try:
                    message = vq.Message(topic, content(stream, len(times), size))
                    producer.send_sync(message, _SEND_S)
                except VqError as error:
                    failures.append(error)
                    return
                times.append(time.monotonic())

        thread = threading.Thread(target=send)
        ready()
        thread.start()
        ready()
        stop.set()
        thread.join()
    if failures:
        raise WorkFailed(f"after {len(times)} messages: {failures[0]}")
    return {"sent": {str(stream): len(times)}, "times": list(times)}


def send_one_each(
    ready: Ready, *, client: dict[str, Any], topic: str, partitions: int, size: int
) -> dict[str, Any]:
    """Send one message to each partition, so that each has a log."""
    outcomes = Outcomes()
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer(vq.ProducerConfig(partitioner=ByNumber())) as producer,
    ):
        producer.publish(topic)
        ready()
        for partition in range(partitions):
            body = content(partition, 0, size)
            producer.send_async(vq.Message(topic, body, key=str(partition)), outcomes)
        producer.flush()
    outcomes.check(partitions)
    return {"messages": partitions}


def delayed(
    ready: Ready, *, client: dict[str, Any], topic: str, count: int, rate: float
) -> dict[str, Any]:
    """Send messages that are due at a rate, from a second on; return how late they were stored."""
    outcomes = Outcomes()
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
        factory.create_consumer() as consumer,
    ):
        producer.publish(topic)
        ready()
        start = consumer.get_bounds(topic, 0).latest
        first = time.time() + 1.0 + count / 50_000
        for number in range(count):
            at = first + number / rate
            message = vq.Message(topic, b"%d" % int(at * 1_000_000), deliver_at=at)
            producer.send_async(message, outcomes)
        producer.flush()
        outcomes.check(count)
        late: list[float] = []
        while len(late) < count:
            found = consumer.get(topic, 0, start, 1 << 20, timeout=5.0)
            start = found.next_offset
            late += [(each.append_time_ms or 0) - int(each.content) / 1_000 for each in found]
    if min(late) < -1:
        raise WorkFailed(f"a message came {-min(late):.1f} ms early")
    return {"messages": count, "late_ms": percentiles(sorted(late), unit_s=1.0)}


def wait_long(
    ready: Ready, *, client: dict[str, Any], topic: str, count: int, ahead_s: float
) -> dict[str, Any]:
    """Send messages that are due much later."""
    outcomes = Outcomes()
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
    ):
        producer.publish(topic)
        ready()
        for number in range(count):
            producer.send_async(vq.Message(topic, b"%128d" % number, delay_s=ahead_s), outcomes)
        producer.flush()
    outcomes.check(count)
    return {"messages": count}


# Metadata ---------------------------------------------------------------------------------------
def make_topics(
    ready: Ready, *, client: dict[str, Any], first: int, count: int, partitions: int
) -> dict[str, Any]:
    """Create ``count`` topics one after the other; return the duration of each."""

    async def make() -> list[float]:
        async with cluster_client(vq.MessageFactoryConfig(**client)) as cluster:
            settings = vq.TopicSettings(partitions=partitions)
            await asyncio.to_thread(ready)
            times = [time.perf_counter()]
            for number in range(first, first + count):
                await create_topic(cluster.coordinator, f"t-{number:06}", settings)
                times.append(time.perf_counter())
            return [after - before for before, after in itertools.pairwise(times)]

    return {"seconds": asyncio.run(make())}


WORKS: Final = {
    work.__name__: work
    for work in (
        acks_over_partitions,
        send_orders,
        keep_sending,
        acks_on_schedule,
        acks_over_time,
        send_one_each,
        delayed,
        wait_long,
        make_topics,
    )
}
