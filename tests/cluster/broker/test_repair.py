"""Damage in one copy of a log: the others go on, and give back what is damaged."""

import asyncio
import dataclasses

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import started
from support.waiting import WAIT_S, until

from vq.broker.health import repairing
from vq.broker.health.repairing import Repairer
from vq.broker.health.scrubbing import SCRUB_NAME, Position
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.partition.channel_logs import ChannelLogs
from vq.broker.replication import following
from vq.broker.replication.insync_set import InSyncSet
from vq.coordination.brokers.registry import read_state
from vq.coordination.topics.placement import move
from vq.coordination.topics.topics import change_placement, describe_topic
from vq.errors import CorruptData, PartitionQuarantined
from vq.operations.topics.verification import verify
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.disk.memory_disk import MemoryDisk, keep_all
from vq.store.records.format import CHECKPOINT_NAME

pytestmark = pytest.mark.virtual_time


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
    heal, read, give_up = Repairer._heal, repairing.read_state, ChannelLogs.give_up
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
    monkeypatch.setattr(Repairer, "_heal", heal_then)
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
    multi, heal, named = cluster.coordinators[group].multi, Repairer._heal, asyncio.Event()

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
    monkeypatch.setattr(Repairer, "_heal", heal_then)
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


def scratch(node: BrokerNode, offset: int, data: bytes = b"#") -> None:
    """Change stored bytes behind the back of a running node."""
    log = channel(node).log
    piece = next(p for p in log.reader.pieces(0, log.end_offset) if p.start <= offset < p.end)
    file = node.parts.disk.open(piece.path)
    file.pwrite([data], offset - piece.block_start)
    file.close()


def kept(node: BrokerNode, directory: str = "0") -> list[bytes]:
    """The files of damaged bytes."""
    path = DATA / "t" / directory
    return [
        node.parts.disk.read_bytes(path / n)
        for n in node.parts.disk.listdir(path)
        if ".damaged" in n
    ]


async def test_a_verification_tells_what_was_repaired_since(cluster):
    """Damage that another node repairs at once would look as if there had been none."""
    _, copy, starts = await pair_with(cluster)
    scratch(copy, starts[4] + 120, b"damage")
    scratch(copy, starts[7] + 120, b"damage")
    async with started(cluster) as client:

        async def counts() -> list[tuple[str, int | None, int | None]]:
            found = await verify(client, ["t"], again=True)
            return [(each.node, each.damaged, each.repaired) for each in found]

        first = await counts()
        assert first[0] == ("n1", 0, 0)
        node, damaged, repaired = first[1]
        assert node == "n2"
        assert (damaged or 0) + (repaired or 0) == 2, "whatever of it is repaired already"
        await until(lambda: repairer(copy).count == 2)
        topic_id = channel(copy).topic_id
        request = wire.VerifyRequest(topic="t", partition=0, topic_id=topic_id, whole=True)
        answer, _ = await client.request(copy.address, Command.VERIFY, request)
        assert (len(answer.damage), answer.repaired) == (0, 2)
        assert await counts() == [("n1", 0, 0), ("n2", 0, 0)], "the next one finds nothing"


@pytest.mark.parametrize("where", ["master", "copy"])
@pytest.mark.parametrize("batch", [0, 4, 8])
async def test_damage_is_repaired_from_another_node(cluster, where, batch):
    """In place, while the log is open; what was there is kept."""
    master, copy, starts = await pair_with(cluster)
    damaged = master if where == "master" else copy
    good = whole(damaged)
    scratch(damaged, starts[batch] + 120, b"damage")
    assert whole(damaged) != good
    damaged.parts.context.suspect(channel(damaged), starts[batch] + 100)
    await until(lambda: repairer(damaged).count == 1)
    await until(lambda: not damaged.parts.verifier.any_damage())
    assert whole(damaged) == good
    [was] = kept(damaged)
    assert b"damage" in was
    [repair] = repairer(damaged).repairs
    assert (repair.start, repair.source) == (starts[batch], "n2" if where == "master" else "n1")
    await put(cluster, master)
    await until(lambda: same(master, copy))


@pytest.mark.parametrize("at", [0, 4])
async def test_damage_that_hinders_the_comparison_with_the_master_is_repaired(
    cluster, monkeypatch, at
):
    """The epochs of a log are looked up in its batches; nobody else may read there for days."""
    master, copy, starts = await pair_with(cluster)
    for node in (copy, master):  # so each log has batches of three epochs
        await cluster.nodes["b1-n2" if node is master else "b1"].parts.hand_over.run()
        await until(lambda n=node: n.epoch > 0 and n.parts.context.role.named == 2)
        await put(cluster, node)
    await until(lambda: same(master, copy))
    good, last = whole(copy), following.common_end

    def lacks_the_newer_ones(last_epoch, own, other):
        own(1)  # where the end of this epoch is, if the master has no newer one
        return last(last_epoch, own, other)

    monkeypatch.setattr(following, "common_end", lacks_the_newer_ones)
    scratch(copy, starts[at] + 8, b"damage")
    assert whole(copy) != good
    cluster.network.reset_connections("b1")
    await until(lambda: whole(copy) == good)
    await until(lambda: not copy.parts.verifier.any_damage())


async def test_batches_side_by_side_are_repaired_together(cluster):
    _, copy, starts = await pair_with(cluster)
    good = whole(copy)
    scratch(copy, starts[2] + 5, bytes(starts[5] - starts[2]))
    copy.parts.context.suspect(channel(copy), starts[2])
    await until(lambda: repairer(copy).count > 0 and not copy.parts.verifier.any_damage())
    assert whole(copy) == good


@pytest.mark.parametrize("lost", ["bytes", "file"])
async def test_what_retention_drops_during_its_repair_stays_away(cluster, lost, monkeypatch):
    """The block does not come back, and nobody misses it."""
    master, copy, starts = await pair_with(cluster)
    log = channel(master).log
    log.roll()
    await put(cluster, master)
    await until(lambda: same(master, copy))
    directory = DATA / "t" / "0"
    first = next(name for name in master.parts.disk.listdir(directory) if name.endswith(".block"))
    real = Repairer._ask

    async def ask(repairer: Repairer, *about: object) -> tuple[bytes, bytes]:
        found = await real(repairer, *about)
        await master.parts.partitions.logs.drop_before(channel(master), log.end_offset)
        await until(lambda: not master.parts.disk.exists(directory / first))
        return found

    monkeypatch.setattr(Repairer, "_ask", ask)
    if lost == "bytes":
        scratch(master, starts[1] + 120, b"damage")
    else:
        master.parts.disk.unlink(directory / first)
    master.parts.context.suspect(channel(master), starts[1] + 100)
    await until(lambda: log.start_offset > starts[-1])
    await until(lambda: not master.parts.verifier.any_damage())
    await asyncio.sleep(30)
    assert [n for n in master.parts.disk.listdir(directory) if n.startswith(first[:16])] == []
    await put(cluster, master)


async def test_bytes_that_are_damaged_at_both_nodes_are_left_alone(cluster):
    """Nothing is put into a log that fails a check."""
    master, copy, starts = await pair_with(cluster)
    for node in (master, copy):
        scratch(node, starts[4] + 120, b"damage")
        node.parts.context.suspect(channel(node), starts[4] + 100)
    was = whole(copy)
    await asyncio.sleep(5)
    assert whole(copy) == was
    assert copy.parts.verifier.any_damage()
    assert repairer(copy).count == 0


# Damage that a start finds ------------------------------------------------------------------------
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


async def kill(cluster: MemoryCluster, *names: str) -> None:
    """End nodes at once; what they wrote stays."""
    for name in names:
        await cluster.nodes[name].parts.tasks.close()
        cluster.ensemble.crash(cluster.coordinators[name])
        cluster.network.kill(name)
        cluster.disks[name] = cluster.disks[name].crash(keep_all)


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


# The slow pass over everything --------------------------------------------------------------------
@pytest.mark.parametrize("min_insync", [1, 2])
async def test_a_scrub_finds_damage_that_nobody_reads_and_has_it_repaired(cluster, min_insync):
    master = await cluster.start(scrub_interval_s=30.0)
    await cluster.create_topic("t", partitions=1, min_insync=min_insync)
    await until(lambda: ("t", 0) in master.parts.partitions.channels)
    copy = await cluster.start(node="n2", scrub_interval_s=30.0)
    await until(lambda: master.parts.context.role.named == 2)
    starts = await put(cluster, master, 9)
    await until(lambda: master.parts.context.role.named == 2 and same(master, copy))
    good = whole(copy)
    for node, batch in ((master, 2), (copy, 5)):
        scratch(node, starts[batch] + 120, b"damage")
    await until(lambda: repairer(master).count == repairer(copy).count == 1, timeout_s=3 * WAIT_S)
    await until(
        lambda: not master.parts.verifier.any_damage() and not copy.parts.verifier.any_damage()
    )
    assert whole(master) == whole(copy) == good
    client = await Client.connect(cluster.network, copy.address)
    told = await client.status()
    assert told.repairs == 1
    assert told.scrub_begun_ms
    assert told.scrub_read_bytes == len(good)


async def test_a_scrub_goes_on_after_a_restart_where_it_was(cluster):
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    await put(cluster, node, 9)
    await node.stop()
    position = Position(begun_ms=1_000, read_bytes=77, topic="t", partition=0, offset=400)
    cluster.disks["b1"].write_atomic(DATA / SCRUB_NAME, position.to_bytes())
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    while not (told := await client.status()).scrub_ended_ms:
        await asyncio.sleep(0.1)
    assert told.scrub_begun_ms == 1_000
    assert told.scrub_read_bytes > 77
    found = Position.from_bytes(cluster.disks["b1"].read_bytes(DATA / SCRUB_NAME))
    assert found.ended_ms == told.scrub_ended_ms
    with pytest.raises(CorruptData):
        Position.from_bytes(position.to_bytes().replace(b"400", b"500"))
