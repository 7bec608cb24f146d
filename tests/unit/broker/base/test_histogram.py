"""Histogram: a value goes into the first bucket whose bound it does not exceed."""

from vq.broker.base.histogram import Histogram


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 99.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert histogram.sum == 106.5
