"""Two broker groups in memory, between which a partition moves."""

import asyncio
from typing import Any

from support.broker import Client, MemoryCluster, message

from vq.broker.partition.channel import Channel
from vq.broker.serving.moving import Mover
from vq.coordination.topics.placement import move
from vq.coordination.topics.topics import (
    change_placement,
    describe_topic,
    touch_partition,
)
from vq.operations.partitions.placements import next_number
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.testing.waiting import until


class GroupPair:
    """Two groups, topic ``t`` with one partition, a client of each; ``old`` holds it."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.clients: dict[str, Client] = {}
        self.old = self.new = ""

    async def start(self, **settings: Any) -> "GroupPair":
        for group in ("b1", "b2"):
            node = await self.cluster.start(group, **settings)
            client = await Client.connect(self.cluster.network, node.address)
            self.clients[group] = await self.cluster.prove(client)
        await self.cluster.create_topic("t")
        view = await self.view()
        self.old = view.partitions[0].writer_group or ""
        self.new = "b2" if self.old == "b1" else "b1"
        return self

    async def view(self) -> Any:
        async with self.cluster.admin() as coordinator:
            return await describe_topic(coordinator, "t")

    async def seal(self, version: int | None = None) -> Any:
        if version is None:
            version = (await self.view()).partition_versions[0]
        request = wire.SealRequest(topic="t", partition=0, placement_version=version)
        return (await self.clients[self.old].call(Command.SEAL, request))[0]

    async def adopt(
        self,
        start: int,
        producers: bytes = b"",
        topic_id: str = "",
        version: int | None = None,
        **fields: Any,
    ) -> None:
        view = await self.view()
        request = wire.AdoptRequest(
            topic="t",
            partition=0,
            topic_id=topic_id or view.id,
            start_offset=start,
            producers=producers,
            placement_version=view.partition_versions[0] if version is None else version,
            **fields,
        )
        await self.clients[self.new].call(Command.ADOPT, request)

    async def place(self, view: Any, end: int, number: int | None = None) -> None:
        moved = move(view.partitions[0], end, self.new, number)
        async with self.cluster.admin() as coordinator:
            await change_placement(coordinator, view, moved)

    async def move(self) -> int:
        view = await self.view()
        sealed = await self.seal(view.partition_versions[0])
        fields = {"number": sealed.next_number, "number_known": sealed.number_known}
        await self.adopt(sealed.end_offset, sealed.producers, **fields)
        await self.place(view, sealed.end_offset, next_number(sealed))
        return sealed.end_offset

    async def move_between_messages(self) -> int:
        """Store a message in the old place, move, store one in the new; return where it moved.

        The places change their names: the next move goes back.
        """
        await self.put(self.old)
        end = await self.move()
        await self.until_writable(self.new)
        await self.put(self.new)
        self.old, self.new = self.new, self.old
        return end

    async def put(self, group: str, **fields: Any) -> Any:
        return await self.clients[group].put("t", 0, [message(b"x")], **fields)

    def channel(self, group: str) -> Channel:
        return self.cluster.nodes[group].parts.partitions.channels["t", 0]

    def files(self, group: str) -> asyncio.Lock:
        """The lock that is held while logs of ``group`` are opened, sealed or put aside."""
        return self.cluster.nodes[group].parts.partitions.logs.changes.lock(("t", 0))

    def mover(self, group: str) -> Mover:
        mover = self.cluster.nodes[group].parts.mover
        assert isinstance(mover, Mover)
        return mover

    async def touch(self) -> None:
        """Raise the version of the partition's node, and change nothing."""
        async with self.cluster.admin() as coordinator:
            view = await describe_topic(coordinator, "t")
            await touch_partition(coordinator, "t", 0, view.partition_versions[0])

    async def until_writable(self, group: str) -> None:
        channels = self.cluster.nodes[group].parts.partitions.channels
        await until(lambda: ("t", 0) in channels and channels["t", 0].takes_puts)

    async def until_known(self, group: str, writer: str) -> None:
        """Wait until ``group`` has read that ``writer`` takes the appends now."""
        channels = self.cluster.nodes[group].parts.partitions.channels
        await until(lambda: channels["t", 0].placement.writer_group == writer)
