"""The load of a partition: which numbers can be one."""

import pytest

from vq.client.producer.spread.partitioner import NUMBER_MAX, PartitionLoad


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), NUMBER_MAX * 2])
def test_a_number_that_is_no_load_is_refused(value):
    with pytest.raises(ValueError, match="busy"):
        PartitionLoad(busy=value)


def test_bounds_are_loads() -> None:
    assert PartitionLoad(busy=0.0, flush_ms=NUMBER_MAX).flush_ms == NUMBER_MAX
