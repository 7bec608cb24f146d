"""Which broker groups a plan may use, and of which topics all copies are known; without Spark."""

from typing import Any

import pytest

from pyspark_vq.reports.capacity import groups_of, told_disks, without_copies
from pyspark_vq.reports.holdings import Cluster, Home
from vq import Address, StatusResult
from vq.admin import BrokerReport, GroupView, NodeInfo

GIB = 1 << 30


def broker(group: str, *levels: str, **view: Any) -> BrokerReport:
    """A node with a disk for each level; without one it did not answer."""
    address = Address("host", 1)
    disks = [
        {
            "directory": f"/{number}",
            "bytes_total": 100 * GIB,
            "bytes_free": (number + 1) * GIB,
            "level": level,
            "growth_known": False,
            "fills": False,
            "excess_bytes": 0,
        }
        for number, level in enumerate(levels)
    ]
    status = StatusResult(address, group, "n1", "1", 1.0, 1, {"disks": disks}) if levels else None
    return BrokerReport(
        GroupView(group, **view), NodeInfo(group, "n1", address), 1, status, name="n1"
    )


def cluster(*brokers: BrokerReport, homes: tuple[Home, ...] = ()) -> Cluster:
    return Cluster(brokers, {}, homes)


@pytest.mark.parametrize("level", ["refuse", "stop", "gone"])
def test_a_group_with_a_disk_that_refuses_messages_gets_nothing(level: str) -> None:
    groups, notes = groups_of(cluster(broker("b1", "ok", level), broker("b2", "warn")), {})
    assert [(each.name, bool(each.closed)) for each in groups] == [("b1", True), ("b2", False)]
    assert notes == [f"b1 gets nothing: a disk of it is at the step {level}"]
    assert groups[0].free_bytes == GIB


def test_a_group_of_unknown_growth_gets_nothing() -> None:
    groups, notes = groups_of(cluster(broker("b1", "ok"), broker("b2", "ok")), {"b2": 3})
    assert [bool(each.closed) for each in groups] == [False, True]
    assert notes == ["b2 gets nothing: how fast 3 of its partitions grow is not known"]


def test_groups_that_drain_or_are_away_are_left_out() -> None:
    groups, notes = groups_of(
        cluster(broker("b1", "ok", draining=True), broker("b2", "ok", alive=False), broker("b3")),
        {},
    )
    assert groups == []
    assert [note.partition(":")[0] for note in notes] == [
        f"b{number} is left out" for number in (1, 2, 3)
    ]


def test_copies_of_a_topic_are_known_if_every_node_that_may_have_some_answered() -> None:
    homes = (
        Home("near", 0, "b1", ("b1",)),
        Home("far", 0, "b1", ("b2", "b1")),
        Home("lost", 0, None, (), "the znode is missing"),
    )
    found = without_copies(cluster(homes=homes), {("b2", "n2"): "TimedOut"})
    assert found == {"far", "lost"}


def test_disks_of_nodes_that_told_all_their_blocks_are_known_to_be_empty() -> None:
    """Not those of a node that did not answer, nor of one that told its disks alone."""
    made = cluster(broker("b1", "ok", "ok"), broker("b2", "ok"), broker("b3"))
    silent = {("b2", "n1"): "TimedOut", ("b3", "n1"): "TimedOut"}
    assert told_disks(made, silent) == [("b1", "n1", "/0"), ("b1", "n1", "/1")]
