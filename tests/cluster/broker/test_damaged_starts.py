"""Damage that a start finds: who leads then, and where the lost bytes come from."""

import asyncio

import pytest
from support.broker import DATA, Client, MemoryCluster
from support.repairing import channel, kill, pair_with, put, repairer, same, two_ranges, whole

from vq.broker.node import BrokerNode
from vq.broker.replication import following
from vq.broker.replication.insync_set import InSyncSet
from vq.coordination.brokers.registry import read_state
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.records.format import CHECKPOINT_NAME
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


def cut(disk: MemoryDisk, how: str, starts: list[int]) -> None:
    """Damage a log that nobody has open."""
    directory = DATA / "t" / "0"
    if how == "directory":
        disk.rmtree(directory)
        return
    blocks = [each for each in disk.listdir(directory) if each.endswith(".block")]
    if how in {"block", "blocks"}:
        for each in blocks:
            disk.unlink(directory / each)
        return
    [block] = blocks
    path = directory / block
    file = disk.open(path)
    if how == "middle":
        file.pwrite([b"damage"], starts[4] + 120)
        disk.unlink(directory / CHECKPOINT_NAME)
    elif how == "cut":
        file.truncate(starts[6])
    elif how == "zeros":
        file.pwrite([bytes(file.size() - starts[6])], starts[6])
    file.close()


@pytest.mark.parametrize("how", ["middle", "cut", "block", "directory"])
async def test_a_copy_that_starts_damaged_gets_what_it_lacks(cluster, how):
    """From its master, which goes on meanwhile."""
    master, copy, starts = await pair_with(cluster)
    await copy.stop()
    cut(cluster.disks["b1-n2"], how, starts)
    await put(cluster, master)
    copy = await cluster.start(node="n2")
    await until(lambda: same(master, copy))
    await until(lambda: not copy.parts.verifier.any_damage())
    await put(cluster, master)
    await until(lambda: same(master, copy) and master.parts.context.role.named == 2)


async def test_a_damaged_earlier_range_of_the_master_is_repaired_from_a_copy(cluster):
    node, starts = await two_ranges(cluster)
    group = node.config.group
    copy = await cluster.start(group, "n2")
    await until(lambda: node.parts.context.role.named == 2)
    [older] = channel(node).older
    path = next(iter(older.log.reader.pieces(0, older.log.end_offset))).path
    file = node.parts.disk.open(path)
    file.pwrite([b"damage"], starts[2] + 120)
    file.close()
    node.parts.context.suspect(channel(node), starts[2] + 100)
    await until(lambda: repairer(node).count == 1 and not node.parts.verifier.any_damage())
    assert node.parts.disk.read_bytes(path) == copy.parts.disk.read_bytes(path)


async def until_named(cluster: MemoryCluster, node: BrokerNode) -> None:
    """Wait until the group's record names the present registration of a node."""
    async with cluster.admin() as coordinator:
        async with asyncio.timeout(WAIT_S):
            while True:
                state = await read_state(coordinator, node.config.group)
                acting = node.parts.mastership.acting
                assert state is not None
                if acting and state.incarnations.get(node.config.node) == acting.incarnation:
                    return
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", ["n1", "n2"])
@pytest.mark.parametrize("how", ["middle", "cut", "zeros", "block", "directory"])
async def test_a_master_that_starts_damaged_leads_after_another_node_only(cluster, how, first):
    """Whoever starts first: nothing is lost, and nothing is cut that the other node has."""
    master, _, starts = await pair_with(cluster)
    good = whole(master)
    await kill(cluster, "b1", "b1-n2")
    cut(cluster.disks["b1"], how, starts)
    if first == "n2":
        await cluster.start(node="n2")
    master = await cluster.start()
    assert not master.epoch or how in {"cut", "zeros"}, "nobody told it yet what is missing"
    copy = cluster.nodes["b1-n2"] if first == "n2" else await cluster.start(node="n2")
    if first == "n1" and how in {"cut", "zeros"}:
        return  # see docs: alone, it cannot know
    await until(lambda: copy.epoch > 0)
    await until(lambda: same(master, copy) and not master.parts.verifier.any_damage())
    assert whole(copy) == good
    await put(cluster, copy)
    await until(lambda: same(master, copy))
    await until_named(cluster, master)
    await kill(cluster, "b1-n2")
    await until(lambda: master.epoch > copy.epoch)
    await put(cluster, master)


@pytest.mark.parametrize("how", ["cut", "zeros"])
async def test_a_node_that_learnt_of_a_loss_knows_it_after_the_next_start(
    cluster, monkeypatch, how
):
    """It is killed before it has copied what it lacks, and the other one is down then."""
    master, copy, starts = await pair_with(cluster)
    end = channel(master).log.end_offset
    await kill(cluster, "b1", "b1-n2")
    cut(cluster.disks["b1"], how, starts)
    with monkeypatch.context() as still:
        still.setattr(following.Follower, "_copy", nothing)
        still.setattr(InSyncSet, "look", nothing)  # its master has not put it out yet
        copy = await cluster.start(node="n2")
        await cluster.start()
        await until(lambda: copy.epoch > 0)
        await kill(cluster, "b1", "b1-n2")
    master = await cluster.start()
    await asyncio.sleep(5)
    assert not master.epoch
    assert "it waits for n2" in master.parts.context.role.waits
    copy = await cluster.start(node="n2")
    await until(lambda: channel(master).log and channel(master).log.end_offset == end)
    await until_named(cluster, master)
    await kill(cluster, "b1-n2")
    await until(lambda: master.epoch > copy.epoch)


async def nothing(*_):
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", ["cut", "zeros", "block"])
async def test_what_a_clean_stop_promised_is_missed_at_the_start(cluster, how):
    """The checkpoint tells how far the log reached."""
    master, copy, starts = await pair_with(cluster)
    good = whole(master)
    await asyncio.gather(master.stop(), copy.stop())
    cut(cluster.disks["b1"], how, starts)
    master = await cluster.start()
    assert channel(master).state == "quarantined"
    copy = await cluster.start(node="n2")
    await until(lambda: same(master, copy) and not master.parts.verifier.any_damage())
    assert whole(copy) == good


@pytest.mark.parametrize("how", ["cut", "zeros", "block", "blocks"])
async def test_a_node_in_sync_alone_gets_what_its_clean_stop_promised(cluster, how):
    """From a node that has left the set; until then no other one could come in."""
    master, copy, starts = await pair_with(cluster)
    if how == "blocks":
        for _ in range(2):
            channel(master).log.roll()
            await put(cluster, master)
        await until(lambda: same(master, copy))
    good = whole(master)
    await copy.stop()
    await until(lambda: master.parts.context.role.named == 1)
    await master.stop()
    cut(cluster.disks["b1"], how, starts)
    master = await cluster.start()
    assert master.epoch
    assert channel(master).state == "quarantined"
    copy = await cluster.start(node="n2")
    await until(lambda: same(master, copy) and not master.parts.verifier.any_damage())
    assert whole(master) == good
    await until(lambda: master.parts.context.role.named == 2)
    await put(cluster, master)
    await until(lambda: same(master, copy))


async def test_a_damaged_node_that_is_in_sync_alone_leads(cluster):
    """Nobody has more than it has: what is whole is served."""
    master, copy, starts = await pair_with(cluster)
    await copy.stop()
    await until(lambda: master.parts.context.role.named == 1)
    await kill(cluster, "b1")
    cut(cluster.disks["b1"], "middle", starts)
    master = await cluster.start()
    assert master.epoch
    client = await Client.connect(cluster.network, master.address)
    assert (await client.get("t", 0, 0))[0].next_offset == starts[4]


async def test_of_nodes_that_are_all_damaged_one_leads(cluster):
    _, _, starts = await pair_with(cluster)
    await kill(cluster, "b1", "b1-n2")
    cut(cluster.disks["b1"], "middle", starts)
    cut(cluster.disks["b1-n2"], "middle", starts)
    master, copy = await cluster.start(), await cluster.start(node="n2")
    await until(lambda: master.epoch or copy.epoch)
