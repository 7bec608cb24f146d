"""A broker in memory with one topic of two partitions, and a client of it."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from support.broker import Client, HeldFlusher, MemoryCluster, memory_cluster
from support.node_pair import NodePair

from vq.broker.health.repairing import Repairer
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.errors import PartitionQuarantined
from vq.store.care.walk import BadRange
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log import Log
from vq.testing.waiting import until


@dataclass
class Served:
    """What most tests need."""

    cluster: MemoryCluster
    node: BrokerNode
    client: Client

    @property
    def flusher(self) -> HeldFlusher:
        """The node's flusher."""
        return self.cluster.flushers["b1"]

    @property
    def disk(self) -> MemoryDisk:
        """The node's disk."""
        return self.cluster.disks["b1"]

    async def connect(self) -> Client:
        """Return another connection."""
        return await Client.connect(self.cluster.network, self.node.address)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster without nodes."""
    async with memory_cluster() as found:
        yield found


@pytest.fixture
async def served(cluster: MemoryCluster) -> Served:
    """One node, topic ``t`` with two partitions, a connection."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(node.parts.partitions.channels) == 2)
    return Served(cluster, node, await Client.connect(cluster.network, node.address))


@pytest.fixture
async def node_pair(cluster: MemoryCluster) -> NodePair:
    """Both nodes have five messages and are in sync."""
    found = NodePair(cluster)
    await found.start("n1")
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in found.nodes["n1"].parts.partitions.channels)
    await found.start("n2")
    await found.put(5)
    await until(found.same)
    await found.in_sync()
    return found


@pytest.fixture
async def wide(cluster: MemoryCluster, served: Served) -> Served:
    """Topic ``w`` with many partitions, and ``t`` with two."""
    await cluster.create_topic("w", partitions=200)
    channels = served.node.parts.partitions.channels
    await until(lambda: len(channels) == 202)
    return served


@pytest.fixture
def no_repair(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have every repair fail; the function that is returned ends that."""
    repair = Repairer._replace
    fails = [True]

    async def replace(
        self: Repairer, channel: Channel, damage: BadRange, log: Log | None = None
    ) -> None:
        if fails:
            raise PartitionQuarantined("no other node has it")
        await repair(self, channel, damage, log)

    monkeypatch.setattr(Repairer, "_replace", replace)
    return fails.clear
