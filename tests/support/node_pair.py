"""Two nodes of one broker group in memory, and what retention does to their logs."""

from support.broker import Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.partition.copied import show_copied
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log import Log
from vq.testing.waiting import until


class NodePair:
    """A master ``n1`` and a copy ``n2`` of topic ``t`` with one partition."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, BrokerNode] = {}

    async def start(self, name: str) -> BrokerNode:
        self.nodes[name] = await self.cluster.start(node=name)
        return self.nodes[name]

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop()

    def channel(self, name: str) -> Channel:
        return self.nodes[name].parts.partitions.channels["t", 0]

    def log(self, name: str) -> Log:
        found = self.channel(name).log
        assert found is not None
        return found

    def disk(self, name: str) -> MemoryDisk:
        return self.cluster.disks["b1" if name == "n1" else f"b1-{name}"]

    def leader(self) -> str:
        return next(name for name, node in self.nodes.items() if node.epoch)

    async def put(self, count: int = 1, text: bytes = b"x") -> None:
        node = self.nodes[self.leader()]
        await until(lambda: ("t", 0) in node.parts.partitions.channels)
        client = await Client.connect(self.cluster.network, node.address)
        for number in range(count):
            await client.put("t", 0, [message(text + b"%d" % number * 50)])
        client.close()

    async def drop(self, name: str, offset: int) -> None:
        """Drop what lies before ``offset`` on this node alone, whole blocks."""
        channel = self.channel(name)
        channel.copies.told = max(channel.copies.told, self.channel(self.leader()).high_watermark)
        show_copied(channel)  # an idle copy may not know the last one
        self.log(name).roll()
        await settled(channel)
        await self.nodes[name].parts.partitions.logs.drop_before(channel, offset)
        await settled(channel)
        assert channel.start_offset == self.log(name).start_offset <= offset

    async def delete(self, offset: int) -> None:
        """Drop what lies before ``offset`` on the node that leads; the other one follows."""
        await self.drop(self.leader(), offset)
        self.channel(self.leader()).tell_deleted(offset)

    async def in_sync(self) -> None:
        await until(lambda: self.nodes[self.leader()].parts.context.role.named == 2)

    def same(self) -> bool:
        """Whether all nodes end alike, durably, and have equal bytes where both have some."""
        logs = [node.parts.partitions.channels["t", 0].log for node in self.nodes.values()]
        if any(log is None or log.synced_offset != logs[0].end_offset for log in logs):
            return False
        start = max(log.start_offset for log in logs)
        return len({whole(log, start) for log in logs}) == 1


async def settled(channel: Channel) -> None:
    channel.flush_now()
    await until(lambda: channel.settled and not channel.log.flushing.checkpoint_wanted)


def whole(log: Log, offset: int) -> bytes:
    found = b""
    while offset < log.end_offset:
        fetch = log.reader.cold(offset, 1 << 23, log.end_offset)
        if fetch is not None:
            fetch()
        part = bytes(log.reader.read(offset, 1 << 23, log.end_offset))
        found, offset = found + part, offset + len(part)
    return found
