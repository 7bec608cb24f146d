"""Earlier ranges of a partition: a copy gets them, and gives up no log for want of one."""

import asyncio
import dataclasses

import pytest
from support.broker import DATA, Client, MemoryCluster
from support.repairing import channel, kill, pair_with, same, two_ranges

from vq.broker.health import repairing
from vq.broker.health.repairing import Repairer
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.coordination.brokers.registry import read_state
from vq.errors import CorruptData, PartitionQuarantined
from vq.store.records.format import CHECKPOINT_NAME
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


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
    await until(lambda: node.parts.context.role.named == 2)
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
    await until(lambda: node.parts.context.role.named == 2)
    ours, theirs = channel(node).older, channel(copy).older
    assert [each.log.end_offset for each in theirs] == [each.log.end_offset for each in ours]
    assert theirs[0].log.size_bytes


async def copy_without_its_first_range(cluster: MemoryCluster) -> tuple[BrokerNode, BrokerNode]:
    """A master, and a copy that starts, was in sync, and has lost the directory of a range."""
    master, _ = await two_ranges(cluster)
    group = master.config.group
    copy = await cluster.start(group, "n2")
    await until(lambda: master.parts.context.role.named == 2)
    await copy.stop()
    await until(lambda: master.parts.context.role.named == 1)
    cluster.disks[f"{group}-n2"].rmtree(DATA / "t" / "0.from-0")
    return master, cluster.node(group, "n2")


async def last_node_keeps_all(cluster: MemoryCluster, master: BrokerNode, copy: BrokerNode) -> None:
    """End the master: whether the copy leads then or waits for it, nothing is forgotten."""
    end, group = channel(master).log.end_offset, master.config.group
    async with cluster.admin() as coordinator:
        state = await read_state(coordinator, group)
    assert state is not None
    if "n2" in state.insync:
        assert channel(copy).log is not None
        assert channel(copy).log.end_offset == end, "it is in sync, and gave up everything"
    await kill(cluster, group)
    await asyncio.sleep(WAIT_S)
    assert not copy.epoch or channel(copy).log.end_offset == end


@pytest.mark.parametrize("late", [False, True])
async def test_a_copy_that_joins_at_this_moment_gives_up_no_log(cluster, monkeypatch, late):
    """Its master asked ZooKeeper to name it before it knew that a log is given up."""
    master, copy = await copy_without_its_first_range(cluster)
    multi = cluster.coordinators[master.config.group].multi
    heal, read, give_up = Repairer.heal, repairing.read_state, ChannelLogs.give_up
    joining, reads, given_up = asyncio.Event(), list[str](), list[Channel]()

    async def join(operations):
        if not joining.is_set() and any("state" in each.path for each in operations):
            joining.set()
            await until(lambda: given_up if late else reads)
        return await multi(operations)

    async def heal_then(self, *arguments):
        await joining.wait()
        return await heal(self, *arguments)

    async def slow(coordinator, group):
        found = await read(coordinator, group)
        if not reads:
            reads.append(group)
            await asyncio.sleep(1)  # the answer takes its time
        return found

    async def give(self, each):
        paths = await give_up(self, each)
        given_up.append(each)
        await asyncio.sleep(1)
        return paths

    monkeypatch.setattr(cluster.coordinators[master.config.group], "multi", join)
    monkeypatch.setattr(Repairer, "heal", heal_then)
    monkeypatch.setattr(repairing, "read_state", slow)
    monkeypatch.setattr(ChannelLogs, "give_up", give)
    await copy.start()
    await until(lambda: reads)
    await asyncio.sleep(2)
    await last_node_keeps_all(cluster, master, copy)


async def test_a_copy_whose_zookeeper_lags_behind_gives_up_no_log(cluster, monkeypatch):
    """The record names it already."""
    master, copy = await copy_without_its_first_range(cluster)
    group = master.config.group
    multi, heal, named = cluster.coordinators[group].multi, Repairer.heal, asyncio.Event()

    async def join(operations):
        is_join = any("state" in each.path for each in operations)
        if is_join:
            cluster.ensemble.lag(cluster.coordinators[f"{group}-n2"])
        try:
            return await multi(operations)
        finally:
            if is_join:
                named.set()

    async def heal_then(self, *arguments):
        await named.wait()
        return await heal(self, *arguments)

    monkeypatch.setattr(cluster.coordinators[group], "multi", join)
    monkeypatch.setattr(Repairer, "heal", heal_then)
    await copy.start()
    await named.wait()
    await asyncio.sleep(0.2)
    await last_node_keeps_all(cluster, master, copy)


async def test_a_copy_without_an_earlier_range_is_copied_anew(cluster):
    """When it is not in sync any more; then it joins with everything."""
    master, copy = await copy_without_its_first_range(cluster)
    await copy.start()
    await until(lambda: len(channel(copy).older) == 1 and not copy.parts.verifier.any_damage())
    await until(lambda: master.parts.context.role.named == 2)
    [ours], [theirs] = channel(master).older, channel(copy).older
    assert theirs.log.end_offset == ours.log.end_offset
    assert same(master, copy)


async def test_a_copy_that_is_repaired_after_all_is_copied_again(cluster, monkeypatch):
    """It was to be given up, and stood still for that."""
    master, copy, _ = await pair_with(cluster)
    await copy.stop()
    await until(lambda: master.parts.context.role.named == 1)
    damage(cluster, "b1-n2", "0", 130)
    replace, fails = Repairer._replace, [True]

    async def fail(self, *arguments):
        if fails:
            raise CorruptData("the other node has it, and it does not fit")
        return await replace(self, *arguments)

    async def named(coordinator, group):
        found = await read_state(coordinator, group)
        return (
            found if not fails or found is None else dataclasses.replace(found, insync=("n1", "n2"))
        )

    monkeypatch.setattr(Repairer, "_replace", fail)
    monkeypatch.setattr(repairing, "read_state", named)
    copy = await cluster.start(node="n2")
    await until(lambda: copy.parts.repairer.retries.failed)
    fails.clear()
    await until(lambda: not copy.parts.verifier.any_damage())
    await until(lambda: master.parts.context.role.named == 2 and same(master, copy))
