"""What a producer counts: by topic, by outcome, and how long batches take."""

import math
from typing import Any

import pytest

from vq.client.producer.metrics import (
    LATENCY_BOUNDS_S,
    Latency,
    Meter,
    TopicMetrics,
    Waiting,
)
from vq.clock import ManualClock
from vq.errors import Busy, InvalidArgument, TimedOut

NOTHING = Waiting(0, 0, 0, 0.0)


def latency_of(*seconds: float) -> Latency:
    meter = Meter(ManualClock()).topic("t")
    for each in seconds:
        meter.stored(1, 1, -each)
    return meter.read().latency


def test_a_new_producer_has_counted_nothing() -> None:
    metrics = Meter(ManualClock(monotonic=0.0)).read(NOTHING)
    assert (metrics.messages_accepted, metrics.bytes_accepted) == (0, 0)
    assert (metrics.buffer_full, metrics.buffer_waits, metrics.buffer_wait_s) == (0, 0, 0.0)
    assert metrics.total.batches_stored == 0
    assert metrics.total.compression_ratio is None
    assert metrics.total.mean_batch_messages is None
    assert metrics.total.latency.quantile(0.5) is None
    assert metrics.topics == {}


def test_outcomes_are_counted_by_kind() -> None:
    meter = Meter(ManualClock(monotonic=2.0))
    topic = meter.topic("t")
    topic.batch_resent()
    topic.stored(3, 30, 1.0, diverted=2)
    topic.compressed(100, 20)
    topic.compressed(50, 50)
    topic.failed(1, 7, TimedOut("late"))
    topic.failed(2, 5, Busy("no"))
    assert topic.read() == TopicMetrics(
        messages_stored=3,
        bytes_stored=30,
        messages_diverted=2,
        messages_unknown=1,
        bytes_unknown=7,
        messages_refused=2,
        bytes_refused=5,
        resends=1,
        messages_compressed=2,
        bytes_before_compression=150,
        bytes_after_compression=70,
        latency=latency_of(1.0),
    )
    meter.buffer_full(1)
    meter.buffer_full(5)
    metrics = meter.read(Waiting(4, 40, 3, 1.5))
    assert metrics.messages_accepted == 3 + 1 + 2 + 4
    assert metrics.bytes_accepted == 30 + 7 + 5 + 40
    assert (metrics.buffer_full, metrics.buffer_waits, metrics.buffer_wait_s) == (6, 3, 1.5)
    assert metrics.total.batches_stored == 1
    assert metrics.total.mean_batch_messages == 3.0
    assert metrics.total.compression_ratio == 150 / 70


def test_what_a_deleted_topic_counts_later_counts() -> None:
    meter = Meter(ManualClock(monotonic=1.0))
    first = meter.topic("a")
    meter.forget("a")
    second = meter.topic("a")
    second.failed(1, 10, Busy("no"))
    first.stored(2, 20, 0.5)
    first.failed(3, 30, TimedOut("late"))
    meter.forget("a")
    first.batch_resent()
    metrics = meter.read(NOTHING)
    assert metrics.messages_accepted == 6
    assert metrics.topics == {}
    assert (metrics.total.batches_stored, metrics.total.resends) == (1, 1)
    assert metrics.total.latency == latency_of(0.5)


def test_the_producer_is_the_sum_of_its_topics_also_of_deleted_ones() -> None:
    meter = Meter(ManualClock(monotonic=1.0))
    meter.topic("a").stored(1, 2, 0.0)
    meter.topic("b").stored(10, 20, 0.9)
    both = meter.read(NOTHING)
    assert both.total.messages_stored == 11
    assert both.total.latency.count == 2
    assert both.total.latency.sum_s == pytest.approx(1.1)
    meter.forget("a")
    meter.forget("a")
    after = meter.read(NOTHING)
    assert after.total.messages_stored == 11
    assert after.total.latency == both.total.latency
    assert list(after.topics) == ["b"]
    assert meter.topic("b") is meter.topic("b")


def test_a_latency_counts_up_to_and_with_its_bound() -> None:
    latency = latency_of(0.0, 0.000_5, 0.000_6, 31.0)
    assert latency.counts[:2] == (2, 1)
    assert latency.counts[-1] == 1
    assert latency.count == 4
    assert list(LATENCY_BOUNDS_S) == sorted(LATENCY_BOUNDS_S)


def test_a_quantile_is_the_bound_of_its_class() -> None:
    latency = latency_of(*[0.000_8] * 9, 0.004)
    assert [latency.quantile(share) for share in (0.5, 0.9, 0.99, 1.0)] == [
        *(0.001, 0.001, 0.005, 0.005)
    ]
    assert latency_of(60.0).quantile(0.5) == math.inf


@pytest.mark.parametrize("share", [99, -0.1, 1.000_1, math.nan, "0.5", None, True], ids=repr)
def test_a_quantile_is_a_share(share: Any) -> None:
    """``quantile(99)`` looks like the 99th percentile, which is ``quantile(0.99)``."""
    for latency in (Latency(), latency_of(0.001)):
        with pytest.raises(InvalidArgument, match=rf"share = {share!r} is not .* \[0, 1\]"):
            latency.quantile(share)
        for least_or_most in (0, 1):
            latency.quantile(least_or_most)
