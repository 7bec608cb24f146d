"""What a producer has done so far: counts for each topic, made batch by batch.

No count costs anything for a plain message: a ``TopicMeter`` is called when a batch is sent again
or ended, and when a content is compressed; the ``Meter`` when a full buffer refuses a message.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from vq.clock import Clock
from vq.errors import InvalidArgument, OutcomeUnknown, VqError
from vq.shown import shown

#: Upper bounds of the classes of a latency, in seconds; one class more is above the last one.
LATENCY_BOUNDS_S: Final = (
    *(0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A histogram of seconds.

    Attributes:
        bounds_s: Upper bounds of the classes, inclusive, in rising order.
        counts: How many are in each class; one class more than bounds, for longer ones.
        sum_s: The sum of all.
    """

    bounds_s: tuple[float, ...] = LATENCY_BOUNDS_S
    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_S) + 1)
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        """How many were measured."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the bound below which ``share`` of all are, as in 0.99; infinite above the last.

        None: nothing was measured. Example: with 9 in the class up to 1 ms and 1 in the class up to
        5 ms, the quantiles 0.5 and 0.9 are 0.001, and 0.99 is 0.005.

        Raises:
            InvalidArgument: ``share`` is not a number in [0, 1].
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidArgument(
                f"share = {shown(share)} is not a number in [0, 1]; 0.99 is the 99th percentile"
            )
        wanted, reached = share * self.count, 0
        for bound, count in zip((*self.bounds_s, float("inf")), self.counts, strict=True):
            reached += count
            if count and reached >= wanted:
                return bound
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetrics:
    """Counts of one topic, or of all, since the producer was made.

    Every number only rises. Each accepted message is counted once, with its outcome, however it
    was sent. Bytes are payloads as they are stored, with encoded tags, keys and headers. Messages
    that were not accepted are not counted: the sender got the error.

    Attributes:
        messages_stored, bytes_stored: Acknowledged.
        messages_diverted: Of those stored: in another partition than that of their key or
            partitioner, because it was unavailable (``on_unavailable="any"``).
        messages_refused, bytes_refused: Accepted, and then certainly not stored.
        messages_unknown, bytes_unknown: They may be stored.
        resends: How often a batch was sent again.
        messages_compressed: How often a content was compressed, because it has
            ``compression_threshold`` bytes or more. Counted before the message is accepted. A
            content that did not get smaller counts, too; it is stored as it was. A message that
            waits for space may be compressed again behind the wait.
        bytes_before_compression, bytes_after_compression: Of these contents; the same for one that
            did not get smaller.
        latency: From the append of a batch's first message to the acknowledgement of the batch, of
            stored batches.
    """

    messages_stored: int = 0
    bytes_stored: int = 0
    messages_diverted: int = 0
    messages_refused: int = 0
    bytes_refused: int = 0
    messages_unknown: int = 0
    bytes_unknown: int = 0
    resends: int = 0
    messages_compressed: int = 0
    bytes_before_compression: int = 0
    bytes_after_compression: int = 0
    latency: Latency = field(default_factory=Latency)

    @property
    def batches_stored(self) -> int:
        """Stored batches: those that ``latency`` has measured."""
        return self.latency.count

    @property
    def mean_batch_messages(self) -> float | None:
        """Messages in a stored batch, in the mean; None before the first one."""
        batches = self.batches_stored
        return self.messages_stored / batches if batches else None

    @property
    def compression_ratio(self) -> float | None:
        """Bytes before compression for each byte after it; None before the first one.

        Of the contents that were compressed, not of all.
        """
        after = self.bytes_after_compression
        return self.bytes_before_compression / after if after else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Counts of the requests of one producer.

    Attributes:
        waiting: Requests that wait for a reply now.
        answered: Requests that got one.
        unanswered: Requests whose time was up before a reply came.
        late: Replies to a request that waited no more; nobody got them.
        doubled: Further replies to a request that was answered a moment ago; nobody got them.
    """

    waiting: int = 0
    answered: int = 0
    unanswered: int = 0
    late: int = 0
    doubled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics:
    """Counts of one producer, and what waits now.

    Attributes:
        total: The counts of all topics, also of deleted ones.
        messages_waiting, bytes_waiting: Accepted, without an outcome yet: in the buffer or in
            flight. They are what is used of ``buffer_messages`` and of ``buffer_bytes`` without the
            overhead of each message.
        buffer_full: Messages that were not accepted, because the buffer was full: their send raised
            ``BufferFull``, or ``send_batch`` gave it to them.
        buffer_waits: How often a send waited for space in the buffer. ``send_batch`` may wait
            several times.
        buffer_wait_s: Seconds that these waits took, together; a wait counts when it ends.
        topics: The counts of each topic that this producer has published and that exists.
        requests: The counts of ``request``.
    """

    total: TopicMetrics
    messages_waiting: int
    bytes_waiting: int
    buffer_full: int
    buffer_waits: int
    buffer_wait_s: float
    topics: Mapping[str, TopicMetrics]
    requests: RequestMetrics = RequestMetrics()

    @property
    def messages_accepted(self) -> int:
        """Accepted messages: stored, refused, unknown and waiting ones."""
        total = self.total
        ended = total.messages_stored + total.messages_refused + total.messages_unknown
        return ended + self.messages_waiting

    @property
    def bytes_accepted(self) -> int:
        """Bytes of accepted messages that have their outcome, and ``bytes_waiting``."""
        total = self.total
        ended = total.bytes_stored + total.bytes_refused + total.bytes_unknown
        return ended + self.bytes_waiting


class Waiting(NamedTuple):
    """What is in a producer's buffer now, and the waits for space in it so far."""

    messages: int
    size: int
    waits: int
    wait_s: float


class _Tally:
    """Numbers that only rise."""

    __slots__ = ("classes", "counts", "sum_s")

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(_COUNTED, 0)
        self.classes = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, other: "_Tally") -> None:
        """Add the numbers of another one."""
        for name, count in other.counts.items():
            self.counts[name] += count
        for number, count in enumerate(other.classes):
            self.classes[number] += count
        self.sum_s += other.sum_s


class TopicMeter:
    """Counts one topic. Any thread.

    Args:
        lock: Of the ``Meter``; reentrant, because a signal handler may send.
        clock: Measures latencies.
    """

    def __init__(self, lock: AbstractContextManager[object], clock: Clock) -> None:
        self._lock = lock
        self._clock = clock
        self._tally = _Tally()

    def batch_resent(self) -> None:
        """Count a batch that is sent again."""
        with self._lock:
            self._tally.counts["resends"] += 1

    def compressed(self, before: int, after: int) -> None:
        """Count a content that was compressed: its bytes, and those that are stored."""
        with self._lock:
            counts = self._tally.counts
            counts["messages_compressed"] += 1
            counts["bytes_before_compression"] += before
            counts["bytes_after_compression"] += after

    def stored(self, messages: int, size: int, since: float, *, diverted: int = 0) -> None:
        """Count a stored batch whose first message was appended at the time ``since``."""
        seconds = self._clock.monotonic() - since
        with self._lock:
            tally = self._tally
            tally.counts["messages_stored"] += messages
            tally.counts["bytes_stored"] += size
            tally.counts["messages_diverted"] += diverted
            tally.classes[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
            tally.sum_s += seconds

    def failed(self, messages: int, size: int, error: VqError) -> None:
        """Count messages that got an error as their outcome."""
        kind = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
        with self._lock:
            counts = self._tally.counts
            counts[f"messages_{kind}"] += messages
            counts[f"bytes_{kind}"] += size

    def read(self) -> TopicMetrics:
        """Return the counts so far."""
        with self._lock:
            tally = self._tally
            latency = Latency(counts=tuple(tally.classes), sum_s=tally.sum_s)
            return TopicMetrics(**tally.counts, latency=latency)

    def join(self, other: "TopicMeter") -> None:
        """Add the counts to those of another meter, and count there from now on."""
        with self._lock:
            other._tally.add(self._tally)
            self._tally = other._tally


_COUNTED: Final = tuple(each.name for each in fields(TopicMetrics) if each.name != "latency")


class Meter:
    """Counts one producer. Any thread.

    Args:
        clock: Measures latencies.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._topics: dict[str, TopicMeter] = {}
        self._gone = TopicMeter(self._lock, clock)  # of topics that were deleted
        self._buffer_full = 0

    def topic(self, name: str) -> TopicMeter:
        """Return the meter of a topic; the same one until ``forget``."""
        with self._lock:
            return self._topics.setdefault(name, TopicMeter(self._lock, self._clock))

    def forget(self, name: str) -> None:
        """Keep the counts of a topic only in those of the producer.

        The last messages of a deleted topic may get their outcome later. They count, too.
        """
        with self._lock:
            meter = self._topics.pop(name, None)
            if meter is not None:
                meter.join(self._gone)

    def buffer_full(self, messages: int) -> None:
        """Count messages that were not accepted, because the buffer was full."""
        with self._lock:
            self._buffer_full += messages

    def read(
        self, waiting: Waiting, requests: RequestMetrics = RequestMetrics()
    ) -> ProducerMetrics:
        """Return the counts so far."""
        with self._lock:
            buffer_full = self._buffer_full
            topics = {name: meter.read() for name, meter in self._topics.items()}
            total = _sum((self._gone.read(), *topics.values()))
        return ProducerMetrics(
            total=total,
            messages_waiting=waiting.messages,
            bytes_waiting=waiting.size,
            buffer_full=buffer_full,
            buffer_waits=waiting.waits,
            buffer_wait_s=waiting.wait_s,
            topics=topics,
            requests=requests,
        )


def _sum(parts: Iterable[TopicMetrics]) -> TopicMetrics:
    parts = list(parts)
    latency = Latency(
        counts=tuple(map(sum, zip(*(each.latency.counts for each in parts), strict=True))),
        sum_s=sum(each.latency.sum_s for each in parts),
    )
    counts = {name: sum(getattr(each, name) for each in parts) for name in _COUNTED}
    return TopicMetrics(**counts, latency=latency)
