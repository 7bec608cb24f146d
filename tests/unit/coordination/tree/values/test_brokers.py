"""What the load of a broker tells."""

from vq.coordination.tree.values.brokers import BrokerLoad


def test_the_share_of_a_disk_is_unknown_without_its_size() -> None:
    """Unknown is None, not 0."""
    assert BrokerLoad(disk_bytes_free=3).disk_used_ratio is None
    assert BrokerLoad(disk_bytes_free=1, disk_bytes_total=4).disk_used_ratio == 0.75
    assert BrokerLoad(disk_bytes_free=5, disk_bytes_total=4).disk_used_ratio == 0
