"""Damage in one copy of a log: the others go on, and give back what is damaged."""

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.waiting import until

from vq.broker.channel import Channel
from vq.broker.node import BrokerNode
from vq.coordination.placement import move
from vq.coordination.topics import change_placement, describe_topic
from vq.errors import PartitionQuarantined
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.format import CHECKPOINT_NAME

pytestmark = pytest.mark.virtual_time


def channel(node: BrokerNode) -> Channel:
    return node._partitions.channels["t", 0]


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
    await until(lambda: len(first._partitions.channels) + len(second._partitions.channels) == 1)
    if not first._partitions.channels:
        first, second = second, first
    starts = await put(cluster, first)
    await move_to(cluster, first, second)
    await put(cluster, second)
    await move_to(cluster, second, first)
    await put(cluster, first)
    return first, starts


def damage(cluster: MemoryCluster, name: str, directory: str, offset: int) -> None:
    """Change a byte of a log that nobody has open, and have its next start read all of it."""
    disk = cluster.disks[name]
    path = DATA / "t" / directory
    [block] = [each for each in disk.listdir(path) if each.endswith(".block")]
    file = disk.open(path / block)
    file.pwrite([b"#"], offset - int(block.removesuffix(".block")))
    file.close()
    disk.unlink(path / CHECKPOINT_NAME)


async def test_a_damaged_earlier_range_does_not_keep_the_last_one_from_being_copied(cluster):
    """The copy takes what is whole of it, and says later what is missing."""
    node, starts = await two_ranges(cluster)
    group = node.config.group
    end = channel(node).older[0].log.end_offset
    await node.stop()
    damage(cluster, group, "0.from-0", starts[3] + 100)
    node = await cluster.start(group)
    copy = await cluster.start(group, "n2")
    await until(lambda: node._context.role.named == 2)
    assert channel(copy).log.end_offset == channel(node).log.end_offset
    [older] = channel(copy).older
    assert older.log.end_offset == starts[3]
    await node.stop()
    await until(lambda: copy.epoch > 0)
    client = await Client.connect(cluster.network, copy.address)
    assert (await client.get("t", 0, 0))[0].next_offset == starts[3]
    for offset in (starts[3], starts[4], end - 1):
        with pytest.raises(PartitionQuarantined):
            await client.get("t", 0, offset)
    problems = (await client.status()).problems
    assert any(f"ends at {starts[3]}, not {end}" in each for each in problems)


async def test_a_new_copy_takes_the_earlier_ranges_too(cluster):
    """Also the one that begins at 0."""
    node, _ = await two_ranges(cluster)
    copy = await cluster.start(node.config.group, "n2")
    await until(lambda: node._context.role.named == 2)
    ours, theirs = channel(node).older, channel(copy).older
    assert [each.log.end_offset for each in theirs] == [each.log.end_offset for each in ours]
    assert theirs[0].log.size_bytes
