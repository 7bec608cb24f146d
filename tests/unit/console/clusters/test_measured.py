"""What is measured, in the order in which it is kept: brokers first, then what reads most."""

from dataclasses import replace

from vq.console.clusters.lags import SeenGroup, unread
from vq.console.clusters.measured import measured
from vq.console.clusters.site import SiteFacts
from vq.coordination.tree.values.brokers import BrokerLoad


def group(time_ms: int, end_bytes: int | None) -> SeenGroup:
    return replace(unread(time_ms), lag_bytes=1, end_bytes=end_bytes)


def test_series_of_groups_that_read_most_come_first() -> None:
    looks = {"idle": (10, 10), "busy": (10, 9_000), "some": (10, 500), "unknown": (10, None)}
    lags = {
        name: group(61_000, now).since(group(1_000, before))
        for name, (before, now) in looks.items()
    }
    assert lags["busy"].bytes_per_s == 8_990 / 60
    load = BrokerLoad(
        disk_bytes_free=1,
        disk_bytes_total=2,
        stored_bytes=1,
        messages_per_s=1.0,
        bytes_per_s=1.0,
        busy=0.5,
        flush_ms=0.1,
        partitions=1,
    )
    found = measured(SiteFacts(loads={("b1", "n1"): load}, lags=lags))
    assert list(found) == [
        "busy b1/n1",
        "disk_used b1/n1",
        "lag_bytes busy",
        "lag_bytes some",
        "lag_bytes idle",
        "lag_bytes unknown",
    ]


def test_a_group_keeps_its_rate_while_a_broker_is_silent() -> None:
    first = group(1_000, 0)
    second = group(2_000, 500).since(first)
    assert group(3_000, None).since(second).bytes_per_s == 500.0
