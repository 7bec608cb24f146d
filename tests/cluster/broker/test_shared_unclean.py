"""A journal of shared groups loses its end: a node leads that lacks what was noted last.

n1 leads, n2 has all:   group begun          both in sync
n2 stops                group begun | got    n1 gives messages to a member, and is lost
n2 leads, by decision   group begun          it gives the same numbers to another member
"""

import pytest
from support.broker import MemoryCluster
from support.client import started
from support.shared_member import ACK, EXTEND, RELEASE, SharedMember, with_shared_topic

from vq.operations.brokers.unclean import elect_uncleanly
from vq.reserved import SHARED_TOPIC
from vq.testing.waiting import until_true

pytestmark = pytest.mark.virtual_time


async def test_who_has_lost_its_messages_settles_none_of_who_has_them_now(
    cluster: MemoryCluster,
) -> None:
    """The partition may have lost its end, too: then these are other messages."""
    await cluster.start()
    await with_shared_topic(cluster)
    second = await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    one, two = (SharedMember(cluster, number, [4]) for number in (1, 2))
    assert await one.receive(0) == []  # the group begins
    await second.stop()
    await cluster.until_in_sync("n1")
    (lost,) = await one.receive(3, lease_ms=60_000)

    cluster.ensemble.crash(cluster.coordinators["b1"])
    await cluster.nodes.pop("b1").stop()
    await cluster.start(node="n2")
    async with started(cluster, host="operator") as operator:

        async def is_gone() -> bool:
            return await operator.coordinator.exists("brokers/b1/nodes/n1") is None

        await until_true(is_gone)
        await elect_uncleanly(operator, "b1", "n2", [SHARED_TOPIC])
    (got,) = await two.receive(3, lease_ms=60_000)
    assert got[:3] == lost[:3]
    for kind, time_ms in ((ACK, 0), (RELEASE, 0), (EXTEND, 5_000)):
        assert await one.settle(lost, kind, time_ms) == [(0, 0, 3)]
    assert await two.settle(got, ACK) == []
