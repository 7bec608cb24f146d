"""What the load of a broker tells, and what a broker group may be given."""

import pytest

from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.values.brokers import BrokerGroup, BrokerLoad


def test_the_share_of_a_disk_is_unknown_without_its_size() -> None:
    """Unknown is None, not 0."""
    assert BrokerLoad(disk_bytes_free=3).disk_used_ratio is None
    assert BrokerLoad(disk_bytes_free=1, disk_bytes_total=4).disk_used_ratio == 0.75
    assert BrokerLoad(disk_bytes_free=5, disk_bytes_total=4).disk_used_ratio == 0


def test_the_common_pool_has_one_form_and_a_pool_without_a_name_is_refused() -> None:
    """Whoever wrote the value: placements compare pools."""
    assert BrokerGroup(pool="common") == BrokerGroup()
    assert BrokerGroup.decode("brokers/b1", b'{"v": 1, "pool": "common"}').pool is None
    with pytest.raises(Unreadable, match=r"brokers/b1.*pool = ''"):
        BrokerGroup.decode("brokers/b1", b'{"v": 1, "pool": ""}')
