"""Weights from load: the three senses, full disks, steps."""

import itertools
from collections.abc import Sequence

import pytest

from vq.client.producer.spread.partitioner import PartitionLoad, Sense
from vq.client.producer.spread.weights import (
    DEAD_BAND,
    SHARE_DISK_HIGH,
    SHARE_MIN,
    weights,
)
from vq.limits import MIB

THIRD = 1 / 3


def loaded(broker: str = "b1", **fields: float) -> PartitionLoad:
    return PartitionLoad(broker=broker, known=True, **fields)


def stored(*sizes: float | None) -> list[PartitionLoad]:
    """Partitions with so many MiB, each on a broker of its own."""
    return [
        loaded(f"b{number}", stored_bytes=None if size is None else size * MIB)
        for number, size in enumerate(sizes)
    ]


# The senses -----------------------------------------------------------------------------------
def test_the_example_of_the_module():
    """40, 20 and 0 MiB: shares of 3, 23 and 43 in 69; one step from equal weights."""
    loads = stored(40, 20, 0)
    assert weights(Sense.STORED, loads, None) == pytest.approx([3 / 69, 23 / 69, 43 / 69])
    step = weights(Sense.STORED, loads, [THIRD] * 3)
    factor = (1 - 1 / 6) / (1 / 3 + 43 / 69)
    assert step == pytest.approx([1 / 6, factor / 3, factor * 43 / 69])


def test_traffic_raises_the_floor_of_least_stored():
    """A difference of a MiB means nothing when a partition gets more than that in a second."""
    still, busy = (
        [loaded(f"b{n}", stored_bytes=size, bytes_per_s=rate) for n, size in enumerate((0, MIB))]
        for rate in (0.0, 10.0 * MIB)
    )
    assert weights(Sense.STORED, still, None)[0] > 0.6
    assert weights(Sense.STORED, busy, None)[0] < 0.501


def test_a_capacity_estimated_while_a_broker_is_idle_is_a_lower_bound():
    """A broker with little traffic has at least the mean; a slow one does not hide behind that."""
    slow = loaded("b1", busy=1.0, bytes_per_s=1e6, capacity_bytes_per_s=1e6)
    little = loaded("b2", busy=0.01, bytes_per_s=1e5, capacity_bytes_per_s=2e6)
    more = loaded("b3", busy=0.01, bytes_per_s=9e5, capacity_bytes_per_s=18e6)
    found = weights(Sense.HEADROOM, [slow, little, more], None)
    mean = (0.05 + 1.9 + 17.1) / 3
    assert found[1] / found[2] == pytest.approx(mean / 17.1)
    assert found[0] < 0.03


def test_headroom_is_shared_by_the_partitions_of_a_broker():
    """10 - 4 and 20 - 8 MB/s are free; the second broker has two of the partitions."""
    one = {"busy": 0.4, "bytes_per_s": 4e6, "capacity_bytes_per_s": 10e6}
    two = {"busy": 0.4, "bytes_per_s": 8e6, "capacity_bytes_per_s": 20e6}
    loads = [loaded("b1", **one), loaded("b2", **two), loaded("b2", **two)]
    assert weights(Sense.HEADROOM, loads, None) == pytest.approx([THIRD] * 3)
    assert weights(Sense.HEADROOM, loads[:2], None) == pytest.approx([6 / 18, 12 / 18])


def test_a_broker_at_its_capacity_keeps_a_little_headroom():
    loads = [
        loaded("b1", busy=1.0, bytes_per_s=12e6, capacity_bytes_per_s=10e6),
        loaded("b2", busy=0.6, bytes_per_s=6e6, capacity_bytes_per_s=10e6),
    ]
    assert weights(Sense.HEADROOM, loads, None) == pytest.approx([0.5 / 4.5, 4 / 4.5])


def test_least_loaded_falls_with_busy_and_with_the_expected_wait():
    """A wait of 10 ms halves the wish."""
    loads = [
        loaded("b1", busy=0.05, flush_ms=0.0),
        loaded("b2", busy=0.05, flush_ms=2.0, queue_depth=4),
        loaded("b3", busy=0.55, flush_ms=0.0),
        loaded("b4", busy=0.55, flush_ms=2.0, queue_depth=4),
    ]
    assert weights(Sense.LOAD, loads, None) == pytest.approx([4 / 9, 2 / 9, 2 / 9, 1 / 9])


# What is not known ----------------------------------------------------------------------------
@pytest.mark.parametrize("sense", Sense)
def test_without_any_load_all_partitions_get_the_same(sense):
    assert weights(sense, [PartitionLoad()] * 4, None) == [0.25] * 4
    assert weights(sense, [PartitionLoad()] * 4, [0.25] * 4) == [0.25] * 4
    assert weights(sense, [], None) == []


def test_an_unknown_load_counts_as_the_mean_of_the_known_ones():
    assert weights(Sense.STORED, stored(40, None, 0), None)[1] == pytest.approx(THIRD)
    known = [loaded("b1", busy=0.05), loaded("b2", busy=0.55)]
    unknown = PartitionLoad(broker="b3", busy=0.9)
    assert weights(Sense.LOAD, [*known, unknown], None) == pytest.approx([4 / 9, 2 / 9, 3 / 9])
    rated = loaded("b1", bytes_per_s=5e6, capacity_bytes_per_s=10e6)
    assert weights(Sense.HEADROOM, [rated, loaded("b2")], None) == pytest.approx([0.5, 0.5])


# Disks ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("sense", Sense)
def test_a_partition_on_a_disk_that_fills_up_gets_almost_nothing_then_nothing(sense):
    for disk, share in ((0.84, 1.0), (0.85, SHARE_DISK_HIGH), (0.90, 0.0), (1.0, 0.0)):
        loads = [loaded("b1", disk_used_ratio=disk), loaded("b2", disk_used_ratio=0.1)]
        found = weights(sense, loads, None)
        assert found == pytest.approx([share / (1 + share), 1 / (1 + share)])


@pytest.mark.parametrize("sense", Sense)
def test_full_disks_change_nothing_when_all_are_full(sense):
    loads = [loaded("b1", disk_used_ratio=0.99), loaded("b2", disk_used_ratio=0.91)]
    assert weights(sense, loads, [0.5, 0.5]) == [0.5, 0.5]


def test_a_disk_that_is_full_counts_at_once_and_comes_back_in_steps():
    full = [loaded("b1", disk_used_ratio=0.95), *[loaded(f"b{n}") for n in (2, 3, 4)]]
    free = [loaded(f"b{n}") for n in (1, 2, 3, 4)]
    now = weights(Sense.LOAD, full, [0.25] * 4)
    assert now == pytest.approx([0, THIRD, THIRD, THIRD])
    history = []
    for _ in range(12):
        now = weights(Sense.LOAD, free, now)
        history.append(now[0])
    assert 0 < history[0] < 0.02
    assert history[-1] > 0.2
    steps = [b / a for a, b in itertools.pairwise(history)]
    assert all(1 <= step <= 2.000001 for step in steps)


# Steps ----------------------------------------------------------------------------------------
def test_small_changes_change_nothing():
    """Not even a rounding error: the spread would begin anew."""
    previous = [0.3333, 0.3333, 0.3334]
    assert weights(Sense.STORED, stored(10, 10, 10.1), previous) == previous


def test_one_of_many_partitions_moves_although_the_others_change_little():
    """Their change is below 10 % each, and yet they take what it gives."""
    loads = [loaded(f"b{n}", busy=0.05) for n in range(99)]
    loads.append(loaded("slow", busy=1.0))
    now: Sequence[float] = [0.01] * 100
    for _ in range(12):
        now = weights(Sense.LOAD, loads, now)
    assert now[-1] < 0.001
    assert sum(now) == pytest.approx(1)


@pytest.mark.parametrize("sense", [Sense.HEADROOM, Sense.LOAD])
def test_the_busier_the_brokers_are_the_smaller_are_the_steps(sense):
    def moved(busy: float) -> float:
        rates = [busy - 0.02, busy + 0.02]
        loads = [
            loaded(f"b{n}", busy=rate, bytes_per_s=rate * 1e6, capacity_bytes_per_s=1e6)
            for n, rate in enumerate(rates)
        ]
        share = weights(sense, loads, None)[0]
        now = weights(sense, loads, [0.4, 0.6])[0]
        return (now - 0.4) / (share - 0.4)

    steps = [moved(busy) for busy in (0.1, 0.4, 0.7, 0.9)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 0.1 < steps[0]


def test_a_topic_that_gets_more_partitions_gives_them_an_even_weight():
    assert weights(Sense.STORED, stored(0, 0, 0, 0), [0.5, 0.5]) == pytest.approx([0.25] * 4)
    fewer = weights(Sense.STORED, stored(0, 0), [0.2, 0.2, 0.6])
    assert fewer == pytest.approx([0.5, 0.5])


def test_a_share_is_at_least_one_place_of_a_ring():
    """So a slow broker gets some messages, and its load is measured."""
    loads = [loaded("b1", busy=1.0, flush_ms=1000.0), loaded("b2", busy=0.05)]
    least, most = weights(Sense.LOAD, loads, None)
    assert least / (least + most) >= SHARE_MIN / 2 * (1 - DEAD_BAND)
