"""What a node measures of its load, and when it publishes it."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from vq import limits
from vq.broker.base.process import Process
from vq.broker.disks.flush_meter import FlushMeter, FlushTimes
from vq.broker.observe.load import LoadMeter, LoadPublisher, has_changed
from vq.broker.partition.context import Counters
from vq.clock import ManualClock
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import CoordinationError

TICK_S = 5.0


class Used(Process):
    """A process that has used as much as the test says."""

    used_s = 0.0

    def cpu_s(self) -> float:
        return self.used_s


class Disk:
    """A flusher that flushes when it is told, and the node around it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.requests_waiting = 0
        self.process = Used()
        self.counters = Counters()
        self.on_done: Any = None
        self.stepped = 0.0
        self.flushes = FlushMeter(self, self.clock, self)
        self.flushes.start(lambda tickets, outcome: None)
        self.meter = LoadMeter(self.counters, [self.flushes], self.clock, self.process)

    def start(self, on_done: Any) -> None:
        self.on_done = on_done

    def submit(self, tickets: Sequence[Any]) -> None:
        self.tickets = tickets

    def stepped_s(self) -> float:
        return self.stepped

    def close(self) -> None: ...

    def flush(self, seconds: float, waiting: int = 0) -> None:
        self.requests_waiting = waiting
        self.flushes.submit(())
        self.clock.advance(seconds)
        self.on_done((), ())
        self.requests_waiting = 0

    def measure(self) -> BrokerLoad:
        return self.meter.measure(
            {"disk_bytes_free": 1, "disk_bytes_total": 4, "stored_bytes": 3, "partitions": 2}
        )


def test_the_first_load_is_the_rate_since_the_start():
    """Later ones are averages: what changes suddenly shows within some ten seconds."""
    disk = Disk()
    found = []
    for messages in (100, 100, 100, 100):
        disk.counters.messages_in, disk.counters.bytes_in = messages, messages * 10
        disk.clock.advance(TICK_S)
        load = disk.measure()
        assert load.bytes_per_s == pytest.approx(load.messages_per_s * 10, abs=1)
        found.append(load.messages_per_s)
    assert found == [20.0, 12.1, 7.4, 4.5]  # each is exp(-5/10) of the one before
    assert (load.disk_used_ratio, load.stored_bytes, load.partitions) == (0.75, 3, 2)
    assert load.time_ms == disk.clock.wall_ms()
    assert disk.measure().messages_per_s == found[-1]  # no time has passed


def test_busy_is_the_share_of_the_busier_thread():
    for cpu_s, flush_s, busy in ((1.0, 3.0, 0.6), (4.0, 1.0, 0.8), (0.0, 0.0, 0.0), (9.0, 0, 1.0)):
        disk = Disk()
        disk.flush(flush_s)
        disk.process.used_s += cpu_s
        disk.clock.advance(TICK_S - flush_s)
        assert disk.measure().busy == busy


def test_a_flush_that_hangs_makes_the_node_busy_before_it_ends():
    """The time before and after a measurement is counted once."""
    disk = Disk()
    disk.clock.advance(3)
    disk.flushes.submit(())
    disk.clock.advance(2)
    assert disk.flushes.take() == FlushTimes(busy_s=2.0, flush_s=2.0, depth=0.0)
    disk.clock.advance(4)
    disk.on_done((), ())
    assert disk.flushes.take() == FlushTimes(busy_s=4.0, flush_s=6.0, depth=0.0)
    assert disk.flushes.take() == FlushTimes(busy_s=0.0, flush_s=None, depth=0.0)


def test_depth_and_time_of_a_flush_are_means_over_flushes():
    disk = Disk()
    disk.flush(0.010, waiting=8)
    disk.flush(0.030, waiting=10)
    disk.clock.advance(TICK_S)
    load = disk.measure()
    assert load.flush_ms == pytest.approx(20)
    assert load.queue_depth == (8 + 10 + 0) / 3
    disk.clock.advance(TICK_S)
    assert disk.measure().flush_ms == pytest.approx(20)  # the last known while nothing is flushed


def test_the_capacity_is_the_rate_divided_by_busy():
    """6 MB/s at 60 % are 10 MB/s at 100 %; a node that does little tells nothing new."""
    disk = Disk()

    def tick(size: int, busy_s: float) -> float:
        disk.flush(busy_s)
        disk.clock.advance(TICK_S - busy_s)
        disk.counters.bytes_in += size
        return disk.measure().capacity_bytes_per_s / 1e6

    assert tick(30_000_000, 3.0) == pytest.approx(10)
    assert tick(30_000_000, 3.0) == pytest.approx(10)
    higher = tick(60_000_000, 3.0)
    assert higher > 12  # it follows the average of the rate at once
    slower = [tick(10_000_000, 5.0) for _ in range(3)]
    assert higher > slower[0] > slower[1] > slower[2] > 5
    for _ in range(20):
        last = tick(0, 0.0)
    assert last == pytest.approx(tick(0, 0.0))


def test_the_capacity_of_a_node_that_is_hardly_busy_is_a_lower_bound():
    """As if it were busy for 5 %; none is known before the first message."""
    disk = Disk()
    disk.clock.advance(TICK_S)
    assert disk.measure().capacity_bytes_per_s == 0
    disk = Disk()
    disk.counters.bytes_in = 1000
    disk.clock.advance(TICK_S)
    assert disk.measure().capacity_bytes_per_s == 1000 / TICK_S / 0.05


# When it is written ---------------------------------------------------------------------------
class Registration:
    """Notes what is written, or fails."""

    def __init__(self) -> None:
        self.incarnation: int | None = 1
        self.written: list[BrokerLoad] = []
        self.fails = False

    async def publish_load(self, load: BrokerLoad) -> None:
        if self.fails:
            raise CoordinationError("away")
        self.written.append(load)


@pytest.fixture
def told() -> SimpleNamespace:
    registration, clock = Registration(), ManualClock()
    publisher = LoadPublisher(SimpleNamespace(registration=registration), clock)  # type: ignore[arg-type]
    return SimpleNamespace(registration=registration, clock=clock, publish=publisher.publish)


async def test_an_idle_node_writes_seldom(told):
    """But before a reader takes its load for stale."""
    for tick in range(60):
        await told.publish(BrokerLoad(time_ms=tick, disk_bytes_free=limits.GIB + tick))
        told.clock.advance(TICK_S)
    assert len(told.registration.written) == 20
    assert 3 * TICK_S < limits.LOAD_STALE_S


async def test_a_changed_load_is_written_at_once(told):
    for busy in (0.1, 0.5, 0.5, 0.515, 0.9):
        await told.publish(BrokerLoad(busy=busy))
        told.clock.advance(1)
    assert [load.busy for load in told.registration.written] == [0.1, 0.5, 0.9]


async def test_nothing_is_written_without_a_registration_and_at_once_after_a_new_one(told):
    for incarnation, count in ((1, 1), (None, 1), (1, 1), (2, 2), (2, 2)):
        told.registration.incarnation = incarnation
        await told.publish(BrokerLoad())
        assert len(told.registration.written) == count


async def test_a_load_that_could_not_be_written_is_written_next(told):
    await told.publish(BrokerLoad())
    told.registration.fails = True
    with pytest.raises(CoordinationError):
        await told.publish(BrokerLoad(busy=1.0))
    told.registration.fails = False
    await told.publish(BrokerLoad())
    assert len(told.registration.written) == 2


@pytest.mark.parametrize(
    ("field", "small", "large"),
    [
        ("disk_bytes_free", 90 * limits.MIB, 120 * limits.MIB),
        ("disk_bytes_total", 0, 1),
        ("stored_bytes", 90 * limits.MIB, 110 * limits.MIB),
        ("messages_per_s", 900, 1100),
        ("bytes_per_s", limits.MIB, 2 * limits.MIB),
        ("busy", 0.01, 0.03),
        ("capacity_bytes_per_s", limits.MIB, 2 * limits.MIB),
        ("queue_depth", 1, 2),
        ("flush_ms", 0.1, 0.3),
        ("partitions", 0, 1),
    ],
)
def test_every_field_but_the_time_has_a_margin(field, small, large):
    base = BrokerLoad(
        disk_bytes_free=10 * limits.GIB,
        stored_bytes=10 * limits.GIB,
        messages_per_s=10_000.0,
        bytes_per_s=15.0 * limits.MIB,
        capacity_bytes_per_s=15.0 * limits.MIB,
    )
    for change, changed in ((small, False), (large, True)):
        for sign in (1, -1):
            load = replace(base, time_ms=7, **{field: getattr(base, field) + sign * change})
            assert has_changed(load, base) is changed


def test_a_flush_waits_only_while_it_does_not_get_on():
    """One of a thousand logs takes long on a disk that is slow, and does not hang."""
    disk = Disk()
    disk.clock.advance(30)
    assert disk.flushes.waits_s() == 0.0
    disk.flushes.submit(())
    disk.clock.advance(10)
    assert disk.flushes.waits_s() == 10.0
    disk.stepped = disk.clock.monotonic()
    disk.clock.advance(10)
    assert disk.flushes.waits_s() == 10.0
    disk.on_done((), ())
    assert disk.flushes.waits_s() == 0.0
