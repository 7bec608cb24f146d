"""The cluster's picture: brokers that answer, that are silent, and groups without one."""

import pytest
from support.broker import memory_cluster
from support.client import started

from vq.model import Address, GroupView, NodeInfo, StatusResult
from vq.operations.brokers.brokers import Damage
from vq.operations.cluster.cluster import BrokerReport, ClusterStatus, cluster_status

pytestmark = pytest.mark.virtual_time


async def test_a_silent_broker_and_an_empty_group_are_part_of_the_picture() -> None:
    async with memory_cluster() as cluster:
        for group in ("b1", "b2", "b3"):
            await cluster.start(group)
        async with started(cluster, host="operator") as client:
            found = await cluster_status(client)
            assert [each.error for each in found.brokers] == ["", "", ""]
            assert found.silent == []
            await cluster.nodes["b2"].stop()
            cluster.network.kill("b3")
            found = await cluster_status(client)
    assert [each.group.group for each in found.brokers] == ["b1", "b2", "b3"]
    one, two, three = found.brokers
    assert one.status is not None
    assert (one.epoch, one.status.group, one.error) == (1, "b1", "")
    assert (two.node, two.status, two.error) == (None, None, "no broker is registered")
    assert three.node is not None
    assert (three.status, three.problems, three.damage) == (None, [], [])
    assert three.error
    assert found.silent == [two, three]


def report(name: str, *problems: str, state: str = "rw", ranges: int = 0) -> BrokerReport:
    damage = [{"start": 1, "end": 2, "file": "f", "reason": "r", "found_ms": 0}] if ranges else []
    part = {
        "topic": "t",
        "partition": 0,
        "state": state,
        "reason": "why",
        "damage": damage,
        "damaged_ranges": ranges,
        "not_copied": "",
    }
    address = Address(name, 1)
    raw = {"partitions": [part], "problems": list(problems)}
    status = StatusResult(address, name, "n1", "", 0.0, 1, raw=raw)
    return BrokerReport(GroupView(name), NodeInfo(name, "n1", address), 1, status)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("state", ["rw", "ro", "closed", "sealed", "failed", "quarantined"])
def test_the_troubles_of_all_brokers_are_put_together(state: str, kept: bool) -> None:
    """A seal ends by itself, so it is shown and is no failure.

    Whoever keeps the status without the plain partitions is told the same.
    """
    found = ClusterStatus((report("b1", "no descriptor"), report("b2", state=state, ranges=4)))
    if kept:
        found = found.without_plain()
        assert [len(each.status.raw["partitions"]) for each in found.brokers if each.status] == [
            0,
            1,
        ]
    assert found.closed_topics == (["t"] if state == "closed" else [])
    assert found.problems == ["b1/n1: no descriptor"]
    assert found.damage == [Damage("t", 0, "b2", 1, 2, "f", "r", node="n1")]
    assert found.damaged_ranges == 4
    assert len(found.brokers[1].bad_partitions) == (state not in {"rw", "ro", "closed"})
    assert len(found.failed_partitions) == (state in {"failed", "quarantined"})
