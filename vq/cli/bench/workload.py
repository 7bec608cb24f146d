"""What ``vq bench`` lets one client process do: send, receive, measure, read back and compare.

Each work is a function from plain values to plain values, so that it can run in a process of its
own (``worker``). All of them use the public blocking API and nothing else. Contents carry their own
number; everything sent can be proved to be there, once, unaltered and in order.

A content: stream u24 | number u40 | filler; the filler is the same everywhere.
"""

import array
import functools
import mmap
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import vq
from vq.errors import VqError

NUMBER_BYTES: Final = 8
_STREAM_SHIFT: Final = 40
_FILLER: Final = random.Random(1).randbytes(1 << 20)  # nosec B311
_READ_BYTES: Final = 4 << 20
_SEND_S: Final = 60.0
_SHOWN_ERRORS: Final = 3
#: Room for messages that should not have come, so that they can be told of.
_MORE_THAN_SENT: Final = 1 << 20
_IN_MEMORY: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)

Ready = Callable[[], Mapping[str, Any]]
"""Called by a work when it is set up; returns when it shall begin, with what it is told then."""


class WorkFailed(VqError):
    """A measurement is worth nothing: messages are missing, doubled, altered or refused."""


def content(stream: int, number: int, size: int) -> bytes:
    """Return the content of one message; ``size`` is at least ``NUMBER_BYTES``."""
    return (stream << _STREAM_SHIFT | number).to_bytes(8, "big") + _FILLER[: size - NUMBER_BYTES]


def contents(
    stream: int, first: int, count: int, size: int, filler: bytes = _FILLER
) -> list[bytes]:
    """Return ``count`` contents numbered from ``first``; ``filler`` has at least their size."""
    filler = filler[: size - NUMBER_BYTES]
    base = (stream << _STREAM_SHIFT) + first
    return [number.to_bytes(8, "big") + filler for number in range(base, base + count)]


class Audit:
    """Takes contents in the order of one partition after the other, and judges them."""

    def __init__(self, size: int, filler: bytes = _FILLER) -> None:
        self.messages = self.altered = self.disordered = 0
        self._filler = filler[: size - NUMBER_BYTES]
        self._numbers: dict[int, bytearray] = {}  # per stream: times seen, by number
        self._last: dict[int, int] = {}

    def begin_partition(self) -> None:
        """What comes next is from another partition: numbers may start low again."""
        self._last.clear()

    def take_unordered(self, content: bytes) -> None:
        """Judge one content of those that several partitions gave in turns."""
        self._last.clear()
        self.take(content)

    def take(self, content: bytes) -> None:
        """Judge one content."""
        self.messages += 1
        value = int.from_bytes(content[:NUMBER_BYTES], "big")
        stream, number = value >> _STREAM_SHIFT, value & ((1 << _STREAM_SHIFT) - 1)
        if content[NUMBER_BYTES:] != self._filler or number > 1 << 30:
            self.altered += 1
            return
        seen = self._numbers.setdefault(stream, bytearray())
        if number >= len(seen):
            seen.extend(bytes(max(number + 1 - len(seen), len(seen))))
        seen[number] = min(255, seen[number] + 1)
        self.disordered += number <= self._last.get(stream, -1)
        self._last[stream] = number

    def check(self, sent: dict[int, int]) -> None:
        """Return if every stream is there: numbers ``0..count-1`` once each, in order.

        Raises:
            WorkFailed: Something is missing, doubled, altered, out of order, or was never sent.
        """
        missing = doubled = strange = 0
        for stream in sent.keys() | self._numbers.keys():
            seen = self._numbers.get(stream, bytearray())
            count = sent.get(stream, 0)
            missing += count - min(count, len(seen)) + seen[:count].count(0)
            strange += sum(map(bool, seen[count:]))
            doubled += sum(times - 1 for times in seen if times > 1)
        if missing or doubled or strange or self.altered or self.disordered:
            raise WorkFailed(
                f"of {sum(sent.values())} messages acknowledged {missing} are missing, {doubled} "
                f"are doubled, {self.disordered} are out of order; {self.altered} altered and "
                f"{strange} never acknowledged ones were found"
            )


class Outcomes:
    """The callback of asynchronous sends: counts acknowledgements, keeps the first errors."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.errors: list[VqError] = []

    def __call__(self, result: vq.SendResult | None, error: VqError | None) -> None:
        """Count one outcome; called on the factory's thread, once per message."""
        if error is None:
            self.acknowledged += 1
        elif len(self.errors) < _SHOWN_ERRORS:
            self.errors.append(error)

    def check(self, sent: int) -> None:
        """Return if everything was acknowledged.

        Raises:
            WorkFailed: Something was not.
        """
        if self.acknowledged != sent:
            raise WorkFailed(
                f"of {sent} messages {self.acknowledged} were acknowledged; first errors: "
                f"{[str(error) for error in self.errors]}"
            )


# Works ----------------------------------------------------------------------------------------
def send_async(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    count: int,
    size: int,
    threads: int = 1,
    first: int = 0,
    stream: int = 0,
) -> dict[str, Any]:
    """Send ``count`` messages with a callback each; the clock stops at the last callback.

    Every thread is a stream of its own with an equal share.
    """
    share = count // threads
    outcomes = Outcomes()
    with _factory(client) as factory, factory.create_producer() as producer:
        producer.publish(topic)
        work = [contents(stream + each, first, share, size) for each in range(threads)]

        def send(own: Sequence[bytes]) -> None:
            send_one, message = producer.send_async, vq.Message
            for each in own:
                send_one(message(topic, each), outcomes)

        ready()
        begin = time.perf_counter()
        _run_threads([functools.partial(send, own) for own in work])
        producer.flush()
        seconds = time.perf_counter() - begin
    outcomes.check(share * threads)
    return {
        "sent": {str(stream + each): first + share for each in range(threads)},
        "messages": share * threads,
        "seconds": seconds,
    }


def send_sync(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    seconds: float,
    size: int,
    threads: int = 1,
) -> dict[str, Any]:
    """Send one by one from each thread for ``seconds``; every send is timed."""
    times: list[list[float]] = [[] for _ in range(threads)]
    with _factory(client) as factory, factory.create_producer() as producer:
        producer.publish(topic)

        def send(stream: int) -> None:
            own, clock, send_one = times[stream], time.perf_counter, producer.send_sync
            end = clock() + seconds
            number = 0
            while (begin := clock()) < end:
                send_one(vq.Message(topic, content(stream, number, size)), _SEND_S)
                own.append(clock() - begin)
                number += 1

        ready()
        begin = time.perf_counter()
        _run_threads([functools.partial(send, stream) for stream in range(threads)])
        took = time.perf_counter() - begin
    flat = sorted(taken for own in times for taken in own)
    return {
        "sent": {str(stream): len(own) for stream, own in enumerate(times)},
        "messages": len(flat),
        "seconds": took,
        "latency_ms": percentiles(flat, unit_s=1e-3),
    }


def consume(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    group: str,
    count: int,
    size: int,
    sent: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Receive ``count`` messages as a group's only member, a listener call each.

    See ``receive``; ``sent`` is one stream if it is None.
    """
    expected = {int(stream): each for stream, each in (sent or {"0": count}).items()}
    options: dict[str, Any] = {"client": client, "topic": topic, "group": group}
    return receive(ready, Audit(size), size=size, expected=expected, **options)


def receive(
    ready: Ready,
    audit: Audit,
    *,
    client: dict[str, Any],
    topic: str,
    group: str,
    size: int,
    expected: dict[int, int],
) -> dict[str, Any]:
    """Receive what is ``expected`` (messages per stream) as a group's only member.

    Wall clock and processor time run from the first call to the last one. The client checks every
    record's checksum; afterwards ``audit`` judges the contents themselves.
    """
    count = sum(expected.values())
    total = count * size
    # One buffer instead of a million objects: the collector would walk them again and again. And
    # one whose pages are there before the clock starts: to get them is no work of the client.
    received = mmap.mmap(-1, total + _MORE_THAN_SENT, flags=_IN_MEMORY)
    marks: list[tuple[float, float]] = []
    ended = threading.Event()
    write, tell = received.write, received.tell

    def listener(message: vq.Message) -> None:
        write(message.content)
        there = tell()
        if there == size or there >= total:
            marks.append((time.perf_counter(), time.process_time()))
            if there >= total:
                ended.set()

    with _factory(client) as factory:
        consumer = factory.create_consumer(vq.ConsumerConfig(group=group))
        consumer.subscribe(topic, 1 << 20, listener)
        ready()
        consumer.start()
        if not ended.wait(_SEND_S + count / 10_000):
            raise WorkFailed(f"only {tell()} of {total} bytes arrived in time")
    for at in range(0, tell(), size):
        audit.take_unordered(received[at : at + size])
    audit.check(expected)
    (begin, begin_s), (end, end_s) = marks[0], marks[-1]
    return {
        "messages": count - 1,
        "seconds": max(end - begin, 1e-9),
        "processor_s": end_s - begin_s,
    }


def verify(
    ready: Ready, *, client: dict[str, Any], topic: str, size: int, sent: dict[str, int]
) -> dict[str, Any]:
    """Read a topic back from its first byte and compare with what was acknowledged."""
    audit = Audit(size)
    with _factory(client) as factory:
        reader = factory.create_consumer()
        ready()
        for placement in factory.get_partitions_for_topic(topic):
            audit.begin_partition()
            bounds = reader.get_bounds(topic, placement.partition)
            offset = bounds.earliest
            while messages := reader.get(topic, placement.partition, offset, _READ_BYTES):
                for message in messages:
                    audit.take(message.content)
                offset = messages[-1].next_offset
    audit.check({int(stream): count for stream, count in sent.items()})
    return {"messages": audit.messages}


def send_on_schedule(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    rate: float,
    seconds: float,
    size: int,
) -> dict[str, Any]:
    """Send ``rate`` messages a second by the clock, number by number from ``begin_ns`` on.

    A send that is late because an earlier one took long is still measured from when it was due, so
    that waiting is not left out (coordinated omission).
    """
    outcomes = Outcomes()
    count = int(rate * seconds)
    late_ns = 0
    with _factory(client) as factory, factory.create_producer() as producer:
        producer.publish(topic)
        begin = int(ready()["begin_ns"])
        for number in range(count):
            due = due_ns(begin, rate, number)
            wait = due - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait * 1e-9)
            else:
                late_ns = max(late_ns, -wait)
            producer.send_async(vq.Message(topic, content(0, number, size)), outcomes)
        producer.flush()
        took = (time.monotonic_ns() - begin) * 1e-9
    outcomes.check(count)
    return {
        "sent": {"0": count},
        "messages": count,
        "seconds": took,
        "latest_send_ms": late_ns * 1e-6,
    }


def receive_on_schedule(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    group: str,
    count: int,
    warm_up: int,
    rate: float,
    size: int,
) -> dict[str, Any]:
    """Receive what ``send_on_schedule`` sends, time each message, leave out the first ones.

    What arrived is compared with what was to be sent when everything is there.
    """
    times = array.array("q")
    arrived: list[tuple[int, bytes]] = []
    ended = threading.Event()
    now = time.monotonic_ns

    def listener(message: vq.Message) -> None:
        times.append(now())
        arrived.append((message.partition, message.content))
        if len(arrived) == count:
            ended.set()

    with _factory(client) as factory:
        consumer = factory.create_consumer(vq.ConsumerConfig(group=group))
        consumer.subscribe(topic, 1 << 20, listener).start()
        deadline = time.monotonic() + _SEND_S
        while not consumer.assignment():
            if time.monotonic() > deadline:
                raise WorkFailed("the consumer was given no partition")
            time.sleep(0.01)
        begin = int(ready()["begin_ns"])
        if not ended.wait(_SEND_S + count / 1_000):
            raise WorkFailed(f"only {len(arrived)} of {count} messages arrived in time")
    audit_partitions(arrived, size).check({0: count})
    numbers = [number_of(each) for _, each in arrived]
    taken = zip(numbers, times, strict=True)
    counted = sorted(
        (at - due_ns(begin, rate, number)) * 1e-9 for number, at in taken if number >= warm_up
    )
    return {"messages": len(counted), "latency_ms": percentiles(counted, unit_s=1e-3)}


def due_ns(begin_ns: int, rate: float, number: int) -> int:
    """Return when a message is due, by the clock that all processes of a machine share."""
    return begin_ns + int(number * 1e9 / rate)


def number_of(content: bytes) -> int:
    """Return the number that a content carries."""
    return int.from_bytes(content[:NUMBER_BYTES], "big") & ((1 << _STREAM_SHIFT) - 1)


def audit_partitions(arrived: Sequence[tuple[int, bytes]], size: int) -> Audit:
    """Return the audit of contents that several partitions gave in turns, each in its order."""
    audit = Audit(size)
    for partition in sorted({partition for partition, _ in arrived}):
        audit.begin_partition()
        for place, each in arrived:
            if place == partition:
                audit.take(each)
    return audit


# Helpers --------------------------------------------------------------------------------------
def percentiles(values: Sequence[float], *, unit_s: float) -> dict[str, float]:
    """Return p50, p90, p99, p99.9 and max of sorted seconds, in units of ``unit_s``."""
    if not values:
        raise WorkFailed("nothing was measured")
    last = len(values) - 1
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: values[round(last * share)] / unit_s for name, share in shares.items()}


def _factory(client: dict[str, Any]) -> vq.MessageFactory:
    return vq.MessageFactory(vq.MessageFactoryConfig(**client))


def _run_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run all at once, one on this thread when it is the only one; re-raise the first failure."""
    if len(works) == 1:
        works[0]()
        return
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  told to the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


#: What a worker process may be asked for.
WORKS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    work.__name__: work
    for work in (send_async, send_sync, consume, verify, send_on_schedule, receive_on_schedule)
}
