"""What proves that a producer's clock is too far ahead."""

import pyarrow as pa
import pytest

from pyspark_vq.clocks import CLOCK_AHEAD_S, told_ahead

NOW_S = 1_795_700_000.0
TIMES = pa.timestamp("us", tz="UTC")


def batch(*seconds: float) -> pa.RecordBatch:
    times = pa.array([int((NOW_S + each) * 1_000_000) for each in seconds], TIMES)
    return pa.record_batch([times], names=["timestamp"])


@pytest.mark.parametrize(
    ("seconds", "is_told"),
    [((), False), ((-5.0, 0.0), False), ((3_600.0, 1.0), False), ((0.0, 3_600.5, -9.0), True)],
)
def test_a_time_that_comes_later_than_a_clock_may_be_ahead(
    seconds: tuple[float, ...], is_told: bool
) -> None:
    told = told_ahead(batch(*seconds), NOW_S, CLOCK_AHEAD_S)
    assert bool(told) == is_told
    if is_told:
        assert "3600.5 s in the future" in told
        assert "clockAhead = 3600 s" in told


def test_without_times_nothing_is_told() -> None:
    assert told_ahead(pa.record_batch([pa.array([1])], names=["offset"]), NOW_S, 1.0) == ""
