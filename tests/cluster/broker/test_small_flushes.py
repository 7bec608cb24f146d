"""Background work over many partitions gives the flusher a little at a time.

A flush that ends hundreds of blocks takes seconds, and no batch of any topic is acknowledged
meanwhile.
"""

import pytest
from support.archives import done
from support.broker import Client, MemoryCluster, message
from support.late_clock import LateClock, give_clock

from vq.broker.disks.data_disk import DataDisk
from vq.broker.history.early_archives import EarlyArchiver
from vq.broker.node import BrokerNode
from vq.errors import ShuttingDown
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

PARTITIONS = 150
#: Of one walk the flusher has one block to end at a time; a flush may have what others wrote, too.
LOGS_MAX = 4


class Widths:
    """How many logs each flush of a node had, from now on."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.seen: list[int] = []
        flusher = cluster.flushers["b1"]
        submit = flusher.submit

        def note(tickets) -> None:
            self.seen.append(len(tickets))
            submit(tickets)

        flusher.submit = note


async def filled(cluster: MemoryCluster, **settings: object) -> BrokerNode:
    """Start a node with a message in each of many partitions."""
    node = await cluster.start()
    await cluster.create_topic("t", partitions=PARTITIONS, **settings)
    await until(lambda: len(node.parts.partitions.channels) == PARTITIONS)
    client = await Client.connect(cluster.network, node.address)
    for number in range(PARTITIONS):
        await client.put("t", number, [message(b"x" * 100)])
    client.close()
    return node


def open_blocks(node: BrokerNode) -> int:
    return sum(each.log.open_block is not None for each in node.parts.partitions.channels.values())


async def test_a_run_of_the_archive_ends_blocks_one_after_the_other(cluster) -> None:
    node = await filled(cluster, retention_policy="archive")
    widths = Widths(cluster)
    async with cluster.admin() as coordinator:
        await done(coordinator, node, 1.1)
    assert open_blocks(node) == 0
    assert max(widths.seen) <= LOGS_MAX


async def test_early_archives_end_blocks_one_after_the_other(cluster) -> None:
    node = await filled(cluster, retention_policy="archive")
    clock = LateClock(node.parts.context.clock, 2.0)
    early: EarlyArchiver = node.parts.upkeep.early_archiver
    give_clock(early, clock)
    widths = Widths(cluster)
    main: DataDisk = node.parts.disks.main
    cluster.disks["b1"].free_space = lambda path: (1, 100)
    main.look_now()
    await early.look()
    assert open_blocks(node) == 0
    assert max(widths.seen) <= LOGS_MAX


async def test_retention_ends_blocks_one_after_the_other(cluster) -> None:
    node = await filled(cluster, retention_hours=10, retention_policy="delete")
    retainer = node.parts.upkeep.retainer
    give_clock(retainer, LateClock(node.parts.context.clock, 11.0))
    widths = Widths(cluster)
    await retainer.look()
    assert open_blocks(node) == 0
    assert max(widths.seen) <= LOGS_MAX


async def test_a_stop_flushes_all_partitions_together(cluster) -> None:
    """With flush async most of them are not durable yet."""
    node = await filled(cluster, flush="async")
    widths = Widths(cluster)
    await node.stop()
    assert len(widths.seen) <= LOGS_MAX
    assert sum(widths.seen) >= PARTITIONS


async def test_a_stop_without_time_for_checkpoints_loses_nothing(cluster) -> None:
    """The next start verifies what they would have said."""
    node = await filled(cluster, flush="async")
    ends = {key: each.log.end_offset for key, each in node.parts.partitions.channels.items()}
    disk = cluster.disks["b1"]
    written: list[str] = []
    write = disk.write_atomic

    def note(path, data) -> None:
        written.append(path.name)
        write(path, data)

    disk.write_atomic = note
    await node.parts.partitions.close_all(ShuttingDown("the node stops"), saves_s=0.0)
    assert "checkpoint" not in written
    assert node.parts.partitions.all_flushed
    await node.stop()
    node = await cluster.start()
    await until(lambda: len(node.parts.partitions.channels) == PARTITIONS)
    client = await Client.connect(cluster.network, node.address)
    for topic, partition in ends:
        answer = await client.offsets(topic, partition)
        assert answer.latest == ends[topic, partition]
