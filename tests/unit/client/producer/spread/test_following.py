"""What the load of a partition is made of, and when nothing is known."""

import math

import pytest

from vq.client.producer.spread.following import INTERVAL_S, load_of
from vq.client.producer.spread.partitioner import PartitionLoad, Sense
from vq.coordination.tree.values.brokers import BrokerLoad


def test_every_sense_has_an_interval():
    assert set(INTERVAL_S) == {*Sense, None}


def test_the_load_of_a_partition_is_that_of_its_broker():
    load = BrokerLoad(
        disk_bytes_free=1,
        disk_bytes_total=4,
        bytes_per_s=5.0,
        capacity_bytes_per_s=9.0,
        busy=0.5,
        queue_depth=3,
        flush_ms=0.2,
    )
    assert load_of("b1", load) == PartitionLoad(
        broker="b1",
        known=True,
        disk_used_ratio=0.75,
        bytes_per_s=5.0,
        capacity_bytes_per_s=9.0,
        busy=0.5,
        queue_depth=3,
        flush_ms=0.2,
    )


@pytest.mark.parametrize(
    "load", [None, BrokerLoad(busy=-1.0), BrokerLoad(bytes_per_s=math.inf)], ids=str
)
def test_a_load_that_cannot_be_is_unknown(load):
    """Whoever writes nonsense into ZooKeeper does not stop producers."""
    assert load_of("b1", load) == PartitionLoad(broker="b1")


@pytest.mark.parametrize(
    ("free", "total", "used"),
    [(10**400, 1, 0.0), (-(10**400), 1, 1.0), (1, 10**400, 1.0), (10**400, 2 * 10**400, 0.5)],
    ids=["empty", "full", "huge", "half"],
)
def test_a_disk_of_any_size_has_a_share_in_use(free, total, used):
    load = BrokerLoad(disk_bytes_free=free, disk_bytes_total=total)
    assert load_of("b1", load).disk_used_ratio == used
