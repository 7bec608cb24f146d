"""A node that follows its master in memory, and what their logs have."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from support.broker import Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.store.log.log import Log
from vq.testing.waiting import until


@dataclass
class Pair:
    """A master and a node that copies its logs, topic ``t`` with two partitions, a client."""

    cluster: MemoryCluster
    master: BrokerNode
    copy: BrokerNode
    client: Client

    def log(self, node: BrokerNode, partition: int = 0) -> Log | None:
        channel = node.parts.partitions.channels.get(("t", partition))
        return None if channel is None else channel.log

    def same(self, *partitions: int) -> bool:
        """Whether the copies have the bytes of the master's logs, all of them flushed."""
        for number in partitions or (0, 1):
            ours, theirs = self.log(self.master, number), self.log(self.copy, number)
            if theirs is None or whole(theirs) != (whole(ours) if ours is not None else b""):
                return False
            if theirs.synced_offset != theirs.end_offset:
                return False
        return True

    async def put(self, count: int = 1, partition: int = 0, **fields: object) -> None:
        for number in range(count):
            await self.client.put("t", partition, [message(b"%d" % number * 50)], **fields)


def whole(log: Log) -> bytes:
    found, offset = b"", log.start_offset
    while offset < log.end_offset:
        part = bytes(log.reader.read(offset, 1 << 23, log.end_offset))
        found, offset = found + part, offset + len(part)
    return found


@contextlib.asynccontextmanager
async def followed(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    """Start both nodes."""
    master = await cluster.start()
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(master.parts.partitions.channels) == 2)
    copy = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, master.address)
    yield Pair(cluster, master, copy, client)
    client.close()
