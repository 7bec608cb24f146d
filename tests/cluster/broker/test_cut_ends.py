"""What a start takes off the end of a log may have been acknowledged: it is told, and fetched.

n1 leads, n2 copies; both are killed; a bit of n1's last batch flips
n1 starts alone  ──▶ waits for n2
n2 starts, too   ──▶ leads, and n1 copies the batch from it
"""

import asyncio
import errno
from pathlib import Path

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.client import started
from support.store import payloads

from vq.broker.logs.logs import Logs
from vq.broker.node import BrokerNode
from vq.broker.partition.places import lost_at_start
from vq.errors import CorruptData, NotMaster
from vq.operations.brokers import diverged as admin
from vq.operations.cluster.cluster import cluster_status
from vq.store.disk.memory_disk import MemoryDisk, keep_all
from vq.store.log.unflushed import UNFLUSHED_NAME
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

PARTITION = DATA / "t" / "0"
SENT = [b"%04d" % number * 30 for number in range(5)]


class Group:
    """Nodes of group b1, by the names of their hosts; topic ``t`` with one partition."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, BrokerNode] = {}

    async def begin(self, *hosts: str) -> None:
        """Start nodes, of which the first leads, and put messages."""
        for host in hosts:
            node = await self.start(host)
            if len(self.nodes) == 1:
                await self.cluster.create_topic("t", partitions=1)
                await until(lambda node=node: ("t", 0) in node.parts.partitions.channels)  # type: ignore[misc]
        await self.cluster.until_in_sync(*(host.partition("-")[2] or "n1" for host in hosts))
        await self.put(hosts[0], *SENT)
        await until(lambda: all(self.has(host) == SENT for host in hosts))

    async def start(self, host: str) -> BrokerNode:
        group, _, node = host.partition("-")
        self.nodes[host] = await self.cluster.start(group, node or "n1", scrub_bytes_per_s=0)
        return self.nodes[host]

    async def put(self, host: str, *contents: bytes) -> None:
        client = await Client.connect(self.cluster.network, self.nodes[host].address)
        for each in contents:
            await client.put("t", 0, [message(each)])
        client.close()

    def has(self, host: str) -> list[bytes]:
        log = self.nodes[host].parts.partitions.channels["t", 0].log
        return [] if log is None else payloads(log)

    def problems(self, host: str) -> list[str]:
        return self.nodes[host].parts.partitions.told_problems()

    async def kill(self, host: str) -> MemoryDisk:
        """End a node as kill -9 does; return its disk."""
        disk = self.cluster.disks[host].crash(keep_all)
        self.cluster.ensemble.crash(self.cluster.coordinators[host])
        await self.nodes[host].stop()
        self.cluster.disks[host] = disk
        return disk


def flip(disk: MemoryDisk, content: bytes) -> None:
    """Change a bit of a stored message."""
    (name,) = [each for each in disk.listdir(PARTITION) if each.endswith(".block")]
    at = disk.read_bytes(PARTITION / name).index(content)
    file = disk.open(PARTITION / name)
    file.pwrite([bytes([content[0] ^ 1])], at)
    file.close()


def cut_files(disk: MemoryDisk) -> list[Path]:
    return [PARTITION / each for each in disk.listdir(PARTITION) if ".cut-" in each]


@pytest.fixture
def group(cluster: MemoryCluster) -> Group:
    return Group(cluster)


async def test_a_node_alone_tells_it_until_an_operator_has_seen_it(group: Group) -> None:
    """It leads, as nobody has more; also its next start tells it, until the file is deleted."""
    await group.begin("b1")
    flip(await group.kill("b1"), SENT[-1])
    for _ in range(2):
        await group.start("b1")
        await group.put("b1", b"new")
        assert group.has("b1")[:5] == [*SENT[:-1], b"new"]
        (told,) = group.problems("b1")
        (path,) = cut_files(group.cluster.disks["b1"])
        assert "with 1 whole messages" in told
        assert str(path) in told
        await group.kill("b1")
    await group.start("b1")
    async with started(group.cluster, host="operator") as operator:
        (report,) = (await cluster_status(operator)).brokers
        assert "took the end of partition t-0 off" in " ".join(report.problems)
        ([file], silent) = await admin.list_cut(operator)
        assert (file.at_start, file.messages, silent) == (True, 1, [])
        assert file.name == f"b1/n1/t/0/{path.name}"
        with pytest.raises(CorruptData):
            await admin.read_part(operator, file)
        await admin.delete_cut(operator, file)
        assert await admin.list_cut(operator) == ([], [])
    assert group.problems("b1") == []


async def test_a_file_of_which_nothing_can_be_read_is_told_too(group: Group) -> None:
    """A write that was cut short, or a damaged control record."""
    await group.begin("b1")
    disk = await group.kill("b1")
    (name,) = [each for each in disk.listdir(PARTITION) if each.endswith(".block")]
    at = disk.read_bytes(PARTITION / name).index(SENT[-1])
    file = disk.open(PARTITION / name)
    file.pwrite([b"\xff"], at - 60)
    file.close()
    await group.start("b1")
    (told,) = group.problems("b1")
    assert "with 0 whole messages" in told
    async with started(group.cluster, host="operator") as operator:
        ([found], _) = await admin.list_cut(operator)
        assert (found.messages, found.size > len(SENT[-1])) == (0, True)


async def test_a_node_that_cut_something_waits_for_another_one_and_copies_it(group: Group) -> None:
    await group.begin("b1", "b1-n2")
    await group.kill("b1-n2")
    flip(await group.kill("b1"), SENT[-1])
    for _ in range(2):  # the second start finds nothing to cut, and knows it all the same
        await group.start("b1")
        client = await Client.connect(group.cluster.network, group.nodes["b1"].address)
        with pytest.raises(NotMaster, match=r"may lack acknowledged messages; it waits for n2"):
            await client.put("t", 0, [message(b"new")])
        client.close()
        assert len(group.problems("b1")) == 1
        await group.kill("b1")
    await group.start("b1")
    await group.start("b1-n2")
    await until(lambda: group.nodes["b1-n2"].epoch > 1)
    await until(lambda: group.has("b1") == SENT)
    await group.cluster.until_in_sync("n1", "n2")
    assert group.problems("b1") == [], "it is back"
    assert len(cut_files(group.cluster.disks["b1"])) == 1
    await until(lambda: not group.cluster.disks["b1"].exists(DATA / UNFLUSHED_NAME))
    await group.put("b1-n2", b"new")
    await until(lambda: group.has("b1") == [*SENT, b"new"])
    assert group.has("b1-n2") == [*SENT, b"new"]


@pytest.mark.parametrize("first", ["b1", "b1-n2"])
async def test_of_nodes_that_all_cut_something_the_one_with_more_leads(
    group: Group, first: str
) -> None:
    """Whichever comes first; the other one copies what it lacks."""
    await group.begin("b1", "b1-n2")
    flip(await group.kill("b1-n2"), SENT[-1])
    disk = await group.kill("b1")
    flip(disk, SENT[-1])
    flip(disk, SENT[-2])
    second = "b1-n2" if first == "b1" else "b1"
    await group.start(first)
    await asyncio.sleep(30)
    assert group.nodes[first].epoch == 0
    await group.start(second)
    await until(lambda: group.nodes["b1-n2"].epoch > 1)
    await until(lambda: group.has("b1") == SENT[:-1])
    assert group.has("b1-n2") == SENT[:-1]
    await group.cluster.until_in_sync("n1", "n2")


async def test_a_node_that_waits_for_one_with_more_goes_on_when_an_operator_says_so(
    group: Group,
) -> None:
    """That one is gone for good."""
    await group.begin("b1", "b1-n2")
    flip(await group.kill("b1-n2"), SENT[-1])
    disk = await group.kill("b1")
    flip(disk, SENT[-1])
    flip(disk, SENT[-2])
    await group.start("b1-n2")
    await group.kill("b1-n2")
    node = await group.cluster.start("b1", "n1", scrub_bytes_per_s=0, accept_data_loss=True)
    group.nodes["b1"] = node
    assert node.epoch == 2
    assert group.has("b1") == SENT[:-2]


async def test_a_copy_that_cut_something_follows_and_tells_nothing(group: Group) -> None:
    """Its master has it. What is there by chance, of another epoch, is not the same."""
    await group.begin("b1", "b1-n2")
    flip(await group.kill("b1-n2"), SENT[-1])
    await group.start("b1-n2")
    await until(lambda: group.has("b1-n2") == SENT)
    channel = group.nodes["b1-n2"].parts.partitions.channels["t", 0]
    (file,) = channel.copies.cut
    assert file.at_start
    assert lost_at_start(channel) == []


async def test_nothing_is_cut_that_the_next_start_would_not_know(group: Group) -> None:
    """A crash between the cut and the note of it would have this node lead without the batch."""
    await group.begin("b1", "b1-n2")
    await group.kill("b1-n2")
    disk = await group.kill("b1")
    flip(disk, SENT[-1])
    written: list[str] = []
    real = disk.write_atomic

    def write_atomic(path: Path, data: bytes) -> None:
        written.append(path.name)
        real(path, data)

    disk.write_atomic = write_atomic  # type: ignore[method-assign]
    await group.start("b1")
    (cut,) = cut_files(disk)
    assert written.index(UNFLUSHED_NAME) < written.index(cut.name)


async def test_the_messages_before_the_damaged_one_can_be_read(group: Group) -> None:
    """Of a batch that was cut."""
    await group.begin("b1")
    client = await Client.connect(group.cluster.network, group.nodes["b1"].address)
    await client.put("t", 0, [message(each) for each in (b"one", b"two", b"three")])
    client.close()
    flip(await group.kill("b1"), b"three")
    await group.start("b1")
    async with started(group.cluster, host="operator") as operator:
        ([file], _) = await admin.list_cut(operator)
        found: list[bytes] = []

        async def read() -> None:
            async for some in admin.read_cut(operator, file):
                found.extend(each.content for each in some)

        with pytest.raises(CorruptData):
            await read()
        assert found == [b"one", b"two"]
        part = await admin.read_part(operator, file)
        assert [each.content for each in part.messages] == found
        assert part.position is not None
        with pytest.raises(CorruptData):
            await admin.read_part(operator, file, part.position)


async def test_retention_keeps_what_a_start_cut_until_somebody_has_seen_it(group: Group) -> None:
    """The bytes are kept, and told, until an operator has the file deleted."""
    await group.begin("b1")
    flip(await group.kill("b1"), SENT[-1])
    node = await group.start("b1")
    await group.put("b1", b"new")
    disk = group.cluster.disks["b1"]
    assert len(cut_files(disk)) == 1
    channel, logs = node.parts.partitions.channels["t", 0], node.parts.partitions.logs
    assert channel.log is not None
    assert channel.log.open_block is not None
    await logs.roll(channel, channel.log.open_block)
    await group.put("b1", b"newer")
    await logs.drop_before(channel, channel.log.closed_blocks[-1].end_offset)  # as retention does
    await until(lambda: channel.log is not None and not channel.log.flushing.deletes)
    assert len(group.problems("b1")) == 1
    assert len(cut_files(disk)) == 1


async def test_a_log_is_cut_only_if_the_mark_is_durable(group: Group) -> None:
    """The mark could not be written at the first try (a full or failing disk)."""
    await group.begin("b1", "b1-n2")
    await group.kill("b1-n2")
    disk = await group.kill("b1")
    flip(disk, SENT[-1])
    real, fails = disk.write_atomic, [True]

    def write_atomic(path: Path, data: bytes) -> None:
        if path.name == UNFLUSHED_NAME and fails:
            raise OSError(errno.ENOSPC, "full", str(path))
        real(path, data)

    disk.write_atomic = write_atomic  # type: ignore[method-assign]
    await group.start("b1")
    assert cut_files(disk) == []
    fails.clear()  # there is space again
    await until(lambda: len(cut_files(disk)) == 1)
    is_marked = disk.exists(DATA / UNFLUSHED_NAME)
    await group.kill("b1")
    await group.start("b1")
    await asyncio.sleep(5.0)
    await group.start("b1-n2")
    await group.cluster.until_in_sync("n1", "n2")
    await asyncio.sleep(5.0)
    assert (is_marked, len(group.has("b1")), len(group.has("b1-n2"))) == (True, 5, 5)


def failing_logs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Have no topic be followed until the list that is returned is empty."""
    prepare, is_broken = Logs.prepare, [True]

    def fails(self: Logs, *args: object) -> object:
        if is_broken:
            raise OSError(errno.EIO, "the disk has a moment's trouble")
        return prepare(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Logs, "prepare", fails)
    return is_broken


async def test_a_log_that_is_cut_late_does_not_cost_the_good_batch_of_another_node(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic could not be followed at the start, for a moment; so nothing was known to be cut
    when this node took the group."""
    await group.begin("b1", "b1-n2")
    await group.kill("b1-n2")
    flip(await group.kill("b1"), SENT[-1])
    is_broken = failing_logs(monkeypatch)
    await group.start("b1")
    is_broken.clear()
    await until(lambda: ("t", 0) in group.nodes["b1"].parts.partitions.channels)
    await until(lambda: bool(group.has("b1")))
    await group.start("b1-n2")
    await group.cluster.until_in_sync("n1", "n2")
    await until(lambda: group.has("b1") == group.has("b1-n2"))
    assert (len(group.has("b1")), len(group.has("b1-n2"))) == (5, 5)


async def test_a_master_does_not_cut_a_log_that_it_opens_while_others_are_in_sync(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could open the topic at the start, so one of them leads; then it can be opened."""
    await group.begin("b1", "b1-n2")
    await group.kill("b1-n2")
    flip(await group.kill("b1"), SENT[-1])
    is_broken = failing_logs(monkeypatch)
    await group.start("b1")
    assert not group.nodes["b1"].epoch  # it does not know what it has, and n2 may have all
    await group.start("b1-n2")
    await until(lambda: any(each.epoch for each in group.nodes.values()))
    is_broken.clear()
    await asyncio.sleep(15.0)
    assert group.nodes["b1"].epoch
    assert cut_files(group.cluster.disks["b1"]) == []
    (told,) = group.problems("b1")
    assert "restart it" in told
    await group.kill("b1")
    await group.start("b1")
    await group.cluster.until_in_sync("n1", "n2")
    await until(lambda: group.has("b1") == group.has("b1-n2"))
    assert len(group.has("b1")) == 5
