"""The load of a node: what it measures, and when it publishes a measurement.

``LoadMeter`` makes a ``BrokerLoad`` of measured flushes (``flush_meter``) and of counters, and
``LoadPublisher`` writes it; ``NodeLoad`` has both done. All work is done per flush or per
measurement, none per message.

    rates, busy, queue_depth, flush_ms   moving averages with a time constant of ``AVERAGE_S``
    busy                    the larger of two shares of the time since the last measurement: the
                            processor time of the loop's thread, and the time with a flush in flight
    capacity_bytes_per_s    bytes_per_s / busy. It follows a higher value at once and a lower one
                            with a time constant of ``CAPACITY_S``. A node that is busy for less
                            than ``limits.LOAD_BUSY_MIN`` counts as busy for so much, and can only
                            raise its estimate: its quotient means little.

Example: 6 MB/s come in while the loop is busy for 20 % and the flusher for 60 % of the time. So
``busy`` is 0.6 and the capacity 6 / 0.6 = 10 MB/s.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vq import limits
from vq.broker.base.facts import Table
from vq.broker.base.jobs import Every, Jobs, While
from vq.broker.base.process import Process
from vq.broker.disks.flush_meter import FlushMeter, FlushTimes
from vq.broker.partition.context import Counters
from vq.broker.replication.mastership import Mastership
from vq.broker.replication.presence import Presence
from vq.clock import Clock
from vq.coordination.tree.values.brokers import BrokerLoad

#: Time constants of the moving averages.
AVERAGE_S: Final = 10.0
CAPACITY_S: Final = 60.0

#: A field has changed if it differs by more than the first number and by more than this share of
#: its last published value. ``time_ms`` is not here: it always differs.
_MARGINS: Final[dict[str, tuple[float, float]]] = {
    "disk_bytes_free": (16 * limits.MIB, 0.01),
    "disk_bytes_total": (0, 0),
    "disk_excess_bytes": (0, 0.01),
    "stored_bytes": (limits.MIB, 0.01),
    "messages_per_s": (1, 0.1),
    "bytes_per_s": (limits.KIB, 0.1),
    "busy": (0.02, 0),
    "capacity_bytes_per_s": (limits.KIB, 0.1),
    "queue_depth": (1, 0.1),
    "flush_ms": (0.2, 0.1),
    "partitions": (0, 0),
}


class LoadMeter:
    """Turns counters that only rise, and measured times, into a load.

    Args:
        counters: What the node counts.
        flushes: Measure its flushes, one for each data directory.
        clock: Time.
        process: Whose loop this is; if it measures nothing, only flushes count as ``busy``.
    """

    def __init__(
        self,
        counters: Counters,
        flushes: Sequence[FlushMeter],
        clock: Clock,
        process: Process,
    ) -> None:
        self._counters = counters
        self._flushes = flushes
        self._clock = clock
        self._process = process
        self._load = BrokerLoad()
        self._depth = 0.0
        self._first = True
        self._time = clock.monotonic()
        self._cpu = process.cpu_s()
        self._messages = counters.messages_in
        self._bytes = counters.bytes_in

    def measure(self, told: Mapping[str, Any]) -> BrokerLoad:
        """Return the load; the averages include the time since the last call.

        Args:
            told: What is read, not measured: fields of the load.
        """
        now, cpu, counters, before = (
            self._clock.monotonic(),
            self._process.cpu_s(),
            self._counters,
            self._load,
        )
        times = _together([each.take() for each in self._flushes])
        elapsed_s = now - self._time
        messages = counters.messages_in - self._messages
        size = counters.bytes_in - self._bytes
        busy_s = max(cpu - self._cpu, times.busy_s)
        if elapsed_s > 0:
            weight = 1.0 if self._first else 1 - math.exp(-elapsed_s / AVERAGE_S)
            rate = _average(before.bytes_per_s, size / elapsed_s, weight)
            busy = _average(before.busy, min(1.0, busy_s / elapsed_s), weight)
            flush_ms = before.flush_ms
            if times.flush_s is not None:
                flush_ms = _average(flush_ms, times.flush_s * 1000, weight if flush_ms else 1.0)
            self._depth = _average(self._depth, times.depth, weight)
            self._load = BrokerLoad(
                messages_per_s=_average(before.messages_per_s, messages / elapsed_s, weight),
                bytes_per_s=rate,
                busy=busy,
                capacity_bytes_per_s=_capacity(before.capacity_bytes_per_s, rate, busy, elapsed_s),
                flush_ms=flush_ms,
            )
            self._first = False
            self._time, self._cpu = now, cpu
            self._messages, self._bytes = counters.messages_in, counters.bytes_in
        load = self._load
        return BrokerLoad(
            time_ms=self._clock.wall_ms(),
            messages_per_s=round(load.messages_per_s, 1),
            bytes_per_s=round(load.bytes_per_s, 1),
            busy=round(load.busy, 3),
            capacity_bytes_per_s=round(load.capacity_bytes_per_s, 1),
            queue_depth=round(self._depth),
            flush_ms=round(load.flush_ms, 3),
            **told,
        )


def _together(times: Sequence[FlushTimes]) -> FlushTimes:
    """Return what counts of several flushers: the busiest one limits the node."""
    lasted = [each.flush_s for each in times if each.flush_s is not None]
    return FlushTimes(
        busy_s=max(each.busy_s for each in times),
        flush_s=sum(lasted) / len(lasted) if lasted else None,
        depth=max(each.depth for each in times),
    )


def _average(before: float, now: float, weight: float) -> float:
    return before + weight * (now - before)


def _capacity(before: float, rate: float, busy: float, elapsed_s: float) -> float:
    """Return the new estimate of the capacity; see the module's text."""
    found = rate / max(busy, limits.LOAD_BUSY_MIN)
    if found > before:
        return found
    if busy < limits.LOAD_BUSY_MIN:
        return before
    return _average(before, found, 1 - math.exp(-elapsed_s / CAPACITY_S))


def has_changed(load: BrokerLoad, published: BrokerLoad) -> bool:
    """Return whether a load differs from the published one by more than the margins."""
    for name, (least, share) in _MARGINS.items():
        before = getattr(published, name)
        change = abs(getattr(load, name) - before)
        if change > least and change > share * before:
            return True
    return False


class LoadPublisher:
    """Writes the load of a registered node, seldom while it does not change.

    Args:
        presence: Knows the registration, if there is one.
        clock: Time.
    """

    def __init__(self, presence: Presence, clock: Clock) -> None:
        self._presence = presence
        self._clock = clock
        self._published: tuple[BrokerLoad, float, int] | None = None  # when, incarnation

    async def publish(self, load: BrokerLoad) -> None:
        """Write ``load`` if it is the first of this registration, has changed, or it is time to.

        Raises:
            CoordinationError, InvalidState: It may not be written; the next call writes.
        """
        registration = self._presence.registration
        incarnation = None if registration is None else registration.incarnation
        if registration is None or incarnation is None or not self._is_due(load, incarnation):
            return
        self._published = None
        await registration.publish_load(load)
        self._published = load, self._clock.monotonic(), incarnation

    def _is_due(self, load: BrokerLoad, incarnation: int) -> bool:
        if self._published is None:
            return True
        published, at, before = self._published
        return (
            incarnation != before
            or self._clock.monotonic() - at >= limits.LOAD_IDLE_INTERVAL_S
            or has_changed(load, published)
        )


class NodeLoad:
    """Has the load of a node published, and its group looked at. Loop-bound.

    Args:
        jobs: Has it done.
        meter: Measures.
        publisher: Writes.
        table: The facts of the node.
        mastership: Looks at the group.
        interval_s: Between two measurements, about.
    """

    def __init__(
        self,
        jobs: Jobs,
        meter: LoadMeter,
        publisher: LoadPublisher,
        *,
        table: Table,
        mastership: Mastership,
        interval_s: float,
    ) -> None:
        self._meter = meter
        self._publisher = publisher
        self._fields = [(each, fact) for each in table for fact in each.facts if fact.load]
        self._mastership = mastership
        every = Every(interval_s, limits.LOAD_JITTER)
        jobs.add("load", self.look, every, While.REGISTERED, at_once=True)

    async def look(self) -> None:
        """Measure and publish the load, then look at the group.

        Raises:
            CoordinationError, InvalidState: That cannot be done now.
        """
        told = {fact.load: fact.read(facts.things()[()]) for facts, fact in self._fields}
        await self._publisher.publish(self._meter.measure(told))
        await self._mastership.look_at_group()
