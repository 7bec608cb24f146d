"""A broker in memory with one topic of two partitions, and a client of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from support.broker import Client, HeldFlusher, MemoryCluster, memory_cluster
from support.node_pair import NodePair
from support.waiting import until

from vq.broker.node import BrokerNode
from vq.store.disk.memory_disk import MemoryDisk


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
