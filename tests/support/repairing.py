"""Nodes in memory whose logs a test damages, and what their repair made of it."""

from support.broker import Client, MemoryCluster, message

from vq.broker.health.repairing import Repairer
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.coordination.topics.placement import move
from vq.coordination.topics.topics import change_placement, describe_topic
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.disk.memory_disk import keep_all
from vq.testing.waiting import until


def repairer(node: BrokerNode) -> Repairer:
    found = node.parts.repairer
    assert isinstance(found, Repairer)
    return found


def channel(node: BrokerNode) -> Channel:
    return node.parts.partitions.channels["t", 0]


async def put(cluster: MemoryCluster, node: BrokerNode, count: int = 5) -> list[int]:
    """Put messages; return where their batches begin."""
    client = await Client.connect(cluster.network, node.address)
    await until(lambda: channel(node).takes_puts)
    starts = [
        (await client.put("t", 0, [message(b"%04d" % n * 50)])).offset - 88 for n in range(count)
    ]
    client.close()
    return starts


async def move_to(cluster: MemoryCluster, old: BrokerNode, new: BrokerNode) -> int:
    """Move the partition to another group; return where the range ends."""
    clients = [await Client.connect(cluster.network, each.address) for each in (old, new)]
    for client in clients:
        await cluster.prove(client)
    async with cluster.admin() as coordinator:
        view = await describe_topic(coordinator, "t")
        version = view.partition_versions[0]
        seal = wire.SealRequest(topic="t", partition=0, placement_version=version)
        sealed = (await clients[0].call(Command.SEAL, seal))[0]
        adopt = wire.AdoptRequest(
            topic="t",
            partition=0,
            topic_id=view.id,
            start_offset=sealed.end_offset,
            producers=sealed.producers,
            placement_version=version,
        )
        await clients[1].call(Command.ADOPT, adopt)
        group = new.config.group
        await change_placement(
            coordinator, view, move(view.partitions[0], sealed.end_offset, group)
        )
    await until(lambda: channel(new).takes_puts)
    for client in clients:
        client.close()
    return int(sealed.end_offset)


async def two_ranges(cluster: MemoryCluster) -> tuple[BrokerNode, list[int]]:
    """A node that holds two ranges of ``t``; also where the batches of the first one begin."""
    first, second = await cluster.start(), await cluster.start("b2")
    await cluster.create_topic("t", partitions=1)
    await until(
        lambda: len(first.parts.partitions.channels) + len(second.parts.partitions.channels) == 1
    )
    if not first.parts.partitions.channels:
        first, second = second, first
    starts = await put(cluster, first)
    await move_to(cluster, first, second)
    await put(cluster, second)
    await move_to(cluster, second, first)
    await put(cluster, first)
    return first, starts


# Damage that is found while the logs are open -----------------------------------------------------
async def pair_with(cluster: MemoryCluster, count: int = 9) -> tuple[BrokerNode, BrokerNode, list]:
    """A master and a copy in sync, topic ``t``, and where its batches begin."""
    master = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in master.parts.partitions.channels)
    copy = await cluster.start(node="n2")
    starts = await put(cluster, master, count)
    await until(lambda: master.parts.context.role.named == 2 and same(master, copy))
    return master, copy, starts


def same(*nodes: BrokerNode) -> bool:
    """Whether all have the same bytes."""
    return len({whole(node) for node in nodes}) == 1


def whole(node: BrokerNode) -> bytes:
    found = node.parts.partitions.channels.get(("t", 0))
    log = None if found is None else found.log
    if log is None:
        return b""
    offset, parts = log.start_offset, []
    while offset < log.end_offset:
        parts.append(bytes(log.reader.read(offset, 1 << 20, log.end_offset)))
        offset += len(parts[-1])
    return b"".join(parts)


async def kill(cluster: MemoryCluster, *names: str) -> None:
    """End nodes at once; what they wrote stays."""
    for name in names:
        await cluster.nodes[name].parts.tasks.close()
        cluster.ensemble.crash(cluster.coordinators[name])
        cluster.network.kill(name)
        cluster.disks[name] = cluster.disks[name].crash(keep_all)
