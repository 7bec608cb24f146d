"""Nodes of one broker group in memory, whose logs a test damages while they run."""

import asyncio

from support.broker import Client, MemoryCluster, message

from vq.broker.health.repairing import Repairer
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.coordination.tree.values.brokers import Registration
from vq.remoting import wire_pb2 as wire
from vq.store.disk.memory_disk import keep_all
from vq.store.log.log_config import LogConfig
from vq.testing.waiting import WAIT_S, until


class Group:
    """Nodes in sync by name, and where the batches of topic ``t`` begin."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, BrokerNode] = {}
        self.starts: list[int] = []

    async def begin(self, *names: str) -> None:
        """Start nodes, the first one leads; put some messages."""
        for name in names:
            await self.start(name)
            if len(self.nodes) == 1:
                await self.cluster.create_topic("t", partitions=1)
                channels = self.nodes[name].parts.partitions.channels
                await until(lambda channels=channels: ("t", 0) in channels)  # type: ignore[misc]
        await self.cluster.until_in_sync(*names)
        await self.put(names[0], 5)
        await until(lambda: len({self.end(each) for each in names}) == 1)

    def channel(self, name: str) -> Channel:
        return self.nodes[name].parts.partitions.channels["t", 0]

    def end(self, name: str) -> int:
        log = self.channel(name).log
        return 0 if log is None else log.end_offset

    async def put(self, name: str, count: int = 1) -> None:
        client = await Client.connect(self.cluster.network, self.nodes[name].address)
        await until(lambda: self.channel(name).takes_puts)
        for number in range(count):
            put = await client.put("t", 0, [message(b"%04d" % number * 50)])
            self.starts.append(put.offset - 88)
        client.close()

    def damage(self, name: str, batch: int = 1) -> None:
        """Change stored bytes of a running node, and have it find that."""
        channel = self.channel(name)
        assert channel.log is not None
        pieces = channel.log.reader.pieces(0, channel.log.end_offset)
        at = self.starts[batch] + 120
        piece = next(each for each in pieces if each.start <= at < each.end)
        file = self.nodes[name].parts.disk.open(piece.path)
        file.pwrite([b"damage"], at - piece.block_start)
        file.close()
        self.nodes[name].parts.context.suspect(channel, self.starts[batch])

    async def until_told(self, name: str, damaged: bool) -> None:
        """Return once a node's registration says whether it has damage."""
        path = Registration.path("b1", name)
        async with self.cluster.admin() as coordinator, asyncio.timeout(WAIT_S):
            while True:
                data = (await coordinator.get(path)).data
                if Registration.decode(path, data).damaged is damaged:
                    return
                await asyncio.sleep(0.02)

    async def kill(self, name: str) -> None:
        key = "b1" if name == "n1" else f"b1-{name}"
        await self.nodes[name].parts.tasks.close()
        self.cluster.ensemble.crash(self.cluster.coordinators[key])
        self.cluster.network.kill(key)
        self.cluster.disks[key] = self.cluster.disks[key].crash(keep_all)

    async def start(self, name: str, log_config: LogConfig | None = None) -> None:
        node = self.nodes[name] = self.cluster.node(
            node=name, scrub_bytes_per_s=0, log_config=log_config
        )
        await node.start()

    def repairer(self, name: str) -> Repairer:
        found = self.nodes[name].parts.repairer
        assert isinstance(found, Repairer)
        return found

    async def status(self, name: str) -> wire.StatusResponse:
        client = await Client.connect(self.cluster.network, self.nodes[name].address)
        found = await client.status()
        client.close()
        return found
