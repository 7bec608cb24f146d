"""A node that lost power leads only if nobody may have what it lacks (R9).

With flush ``async``, messages count that are in the page caches of all nodes in sync. A machine
that goes down loses its own; the group has them as long as that node does not lead before it has
copied them.
"""

from dataclasses import dataclass, replace

import pytest
from support.broker import DATA, Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.coordination.topics.topics import change_settings, describe_topic
from vq.errors import NotMaster
from vq.model import FlushMode
from vq.store.disk.memory_disk import keep_none
from vq.store.log.unflushed import UNFLUSHED_NAME
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@dataclass
class Group:
    """Two nodes, both in sync, by the names of their hosts; topic ``t`` with flush ``async``."""

    cluster: MemoryCluster
    nodes: dict[str, BrokerNode]

    def end(self, host: str) -> int:
        """Where the log of a node ends."""
        log = self.nodes[host].parts.partitions.channels["t", 0].log
        return 0 if log is None else log.end_offset

    def marked(self, host: str) -> bool:
        """Whether a node says that something may be unflushed."""
        return self.cluster.disks[host].exists(DATA / UNFLUSHED_NAME)

    async def put(self, host: str, count: int) -> None:
        client = await Client.connect(self.cluster.network, self.nodes[host].address)
        for number in range(count):
            await client.put("t", 0, [message(b"%d" % number)])
        client.close()

    async def lose_power(self, host: str) -> None:
        """What is not flushed is gone; ZooKeeper still has the registration."""
        disk = self.cluster.disks[host].crash(keep_none)
        self.cluster.ensemble.crash(self.cluster.coordinators[host])
        await self.nodes[host].stop()
        self.cluster.disks[host] = disk

    async def start(self, host: str, **settings: object) -> None:
        group, _, node = host.partition("-")
        self.nodes[host] = await self.cluster.start(group, node or "n1", **settings)

    async def in_sync(self) -> None:
        """Return once the record names both nodes."""
        await self.cluster.until_in_sync("n1", "n2")


@pytest.fixture
async def group(cluster: MemoryCluster) -> Group:
    found = Group(cluster, {})
    await found.start("b1")
    await cluster.create_topic("t", partitions=1, flush=FlushMode.ASYNC)
    await until(lambda: len(found.nodes["b1"].parts.partitions.channels) == 1)
    await found.start("b1-n2")
    await found.in_sync()
    return found


async def test_a_master_that_lost_power_has_the_other_one_lead(group: Group) -> None:
    """It has lost all that it had; nothing acknowledged is missing."""
    await group.put("b1", 10)
    acknowledged = group.end("b1")
    await group.lose_power("b1")
    await group.start("b1")
    await until(lambda: group.nodes["b1-n2"].epoch == 2)
    assert group.end("b1-n2") == acknowledged
    await until(lambda: group.end("b1") == acknowledged)
    await group.in_sync()


async def test_it_waits_for_the_other_one_and_says_so(group: Group) -> None:
    await group.put("b1", 10)
    acknowledged = group.end("b1")
    await group.nodes["b1-n2"].stop()
    await group.lose_power("b1")
    await group.start("b1")
    client = await Client.connect(group.cluster.network, group.nodes["b1"].address)
    with pytest.raises(NotMaster, match=r"was not stopped before its machine went down.*for n2"):
        await client.put("t", 0, [message(b"new")])
    client.close()
    await group.start("b1-n2")
    await until(lambda: group.nodes["b1-n2"].epoch == 2)
    assert group.end("b1-n2") == acknowledged


async def test_it_may_lead_again_once_it_has_caught_up(group: Group) -> None:
    """Also after another restart of its process, without a loss of power."""
    await group.put("b1", 10)
    acknowledged = group.end("b1")
    await group.lose_power("b1")
    await group.start("b1")
    await until(lambda: group.nodes["b1-n2"].epoch == 2)
    await until(lambda: group.end("b1") == acknowledged)
    await until(lambda: not group.nodes["b1"].parts.doubt.lost)
    await group.nodes["b1-n2"].stop()
    await until(lambda: group.nodes["b1"].epoch == 3)


async def test_nodes_that_all_lost_power_wait_for_nobody(group: Group) -> None:
    """What was not flushed anywhere is gone; the group goes on with what is left."""
    await group.put("b1", 10)
    await group.lose_power("b1-n2")
    await group.lose_power("b1")
    await group.start("b1")
    assert group.nodes["b1"].epoch == 0
    await group.start("b1-n2")
    await until(lambda: 2 in {node.epoch for node in group.nodes.values()})
    await group.in_sync()


async def test_an_operator_may_have_it_lead_without_the_others(group: Group) -> None:
    await group.put("b1", 10)
    await group.nodes["b1-n2"].stop()
    await group.lose_power("b1")
    await group.start("b1", accept_data_loss=True)
    assert group.nodes["b1"].epoch == 2


async def test_a_clean_stop_and_topics_with_flush_sync_leave_no_mark(
    cluster: MemoryCluster,
) -> None:
    """The setting counts from the moment it changes."""
    group = Group(cluster, {})
    await group.start("b1")
    await cluster.create_topic("t", partitions=1)
    await until(lambda: len(group.nodes["b1"].parts.partitions.channels) == 1)
    await group.put("b1", 1)
    assert not group.marked("b1")
    async with cluster.admin() as coordinator:
        settings = (await describe_topic(coordinator, "t")).settings
        await change_settings(coordinator, "t", replace(settings, flush=FlushMode.ASYNC))
    await until(lambda: not group.nodes["b1"].parts.partitions.channels["t", 0].sync)
    assert group.marked("b1")
    await group.put("b1", 1)
    await group.nodes["b1"].stop()
    assert not group.marked("b1")
