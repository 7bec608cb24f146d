"""A copy and its master may begin at different offsets: what both have is equal."""

from dataclasses import replace
from pathlib import PurePath

import pytest
from support.broker import DATA, Client, MemoryCluster, message
from support.store import append as append_to
from support.waiting import until

from vq.broker.channel import Channel
from vq.broker.node import BrokerNode
from vq.clock import ManualClock
from vq.coordination.paths import GroupState
from vq.coordination.registry import read_state
from vq.store.log import Log, LogConfig
from vq.store.memory_disk import MemoryDisk


class Pair:
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
        return self.nodes[name]._partitions.channels["t", 0]

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
        await until(lambda: ("t", 0) in node._partitions.channels)
        client = await Client.connect(self.cluster.network, node.address)
        for number in range(count):
            await client.put("t", 0, [message(text + b"%d" % number * 50)])
        client.close()

    async def drop(self, name: str, offset: int) -> None:
        """End the active block and drop what lies before ``offset``, as retention does."""
        channel, log = self.channel(name), self.log(name)
        log.roll()
        await settled(channel)
        log.drop_before(offset)
        channel.start_offset = log.start_offset
        await settled(channel)
        assert log.start_offset <= offset

    async def in_sync(self) -> None:
        await until(lambda: self.nodes[self.leader()]._context.role.named == 2)

    def same(self) -> bool:
        """Whether all nodes end alike, durably, and have equal bytes where both have some."""
        logs = [node._partitions.channels["t", 0].log for node in self.nodes.values()]
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
        part = bytes(log.reader.read(offset, 1 << 23, log.end_offset))
        found, offset = found + part, offset + len(part)
    return found


def aside(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.listdir(DATA / "t") if name.startswith("0.")]


@pytest.fixture
async def pair(cluster: MemoryCluster) -> Pair:
    """Both nodes have five messages and are in sync."""
    found = Pair(cluster)
    await found.start("n1")
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in found.nodes["n1"]._partitions.channels)
    await found.start("n2")
    await found.put(5)
    await until(found.same)
    await found.in_sync()
    return found


async def test_a_copy_that_was_away_begins_where_its_master_does_now(pair):
    """Its master keeps nothing of what the copy has."""
    await pair.stop("n2")
    await pair.put(5)
    await pair.drop("n1", pair.log("n1").end_offset)
    begin = pair.log("n1").start_offset
    await pair.put(3)
    await pair.start("n2")
    await until(pair.same)
    assert pair.log("n2").start_offset == begin


async def test_a_copy_goes_on_when_its_master_begins_inside_of_it(pair):
    middle = pair.log("n1").end_offset
    pair.log("n1").roll()
    await pair.put(5)
    await until(pair.same)
    await pair.stop("n2")
    await pair.drop("n1", middle)
    await pair.put(3)
    await pair.start("n2")
    await until(pair.same)
    assert (pair.log("n2").start_offset, pair.log("n1").start_offset) == (0, middle)


@pytest.mark.parametrize("left", ["something", "nothing"])
async def test_a_copy_that_begins_behind_its_master_goes_on(pair, left):
    """Its blocks end elsewhere, so it may have dropped more."""
    pair.log("n2").roll()
    middle = pair.log("n2").end_offset
    await pair.put(5)
    await until(pair.same)
    end = pair.log("n2").end_offset
    start = middle if left == "something" else end
    await pair.drop("n2", start)
    await pair.stop("n2")
    await pair.put(3)
    await pair.start("n2")
    await until(pair.same)
    assert (pair.log("n2").start_offset, pair.log("n1").start_offset) == (start, 0)
    assert not aside(pair.disk("n2"))


async def test_the_old_master_follows_one_that_begins_earlier(pair):
    """After a fail-over the new master goes on from its own start."""
    await pair.drop("n1", pair.log("n1").end_offset)
    start = pair.log("n1").start_offset
    await pair.stop("n1")
    await until(lambda: pair.nodes["n2"].epoch > 0)
    await pair.put(3, b"new")
    await pair.start("n1")
    await until(pair.same)
    assert (pair.log("n1").start_offset, pair.log("n2").start_offset) == (start, 0)
    await pair.in_sync()
    await pair.stop("n2")
    await until(lambda: pair.nodes["n1"].epoch > 0)
    await pair.put(2, b"newer")
    await pair.start("n2")
    await until(pair.same)


async def test_an_empty_copy_behind_the_end_of_its_master_begins_anew(pair):
    """It was begun by a master of which an operator gave up the end."""
    await pair.nodes["n2"]._partitions.logs.renew_log(pair.channel("n2"), 10_000, b"")
    await pair.stop("n2")
    await pair.start("n2")
    await until(pair.same)
    assert pair.log("n2").start_offset == 0


async def test_a_copy_behind_the_end_of_a_master_that_has_less_is_put_aside_whole(pair):
    """An operator has a node lead that lacks what others dropped, and what follows."""
    await pair.stop("n2")
    await pair.put(5)
    end = pair.log("n1").end_offset
    await pair.drop("n1", end)
    await pair.put(2)  # n1 has these alone
    start, alone = pair.log("n1").start_offset, whole(pair.log("n1"), end)
    await pair.stop("n1")
    await pair.start("n2")
    async with pair.cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
        changed = replace(state, master="n2", insync=("n2",), incarnations={}, directories={})
        await coordinator.set(GroupState.path("b1"), changed.encode())
    await until(lambda: pair.nodes["n2"].epoch > 0)
    await pair.put(1, b"other")
    assert pair.log("n2").end_offset < start
    await pair.start("n1")
    await until(pair.same)
    assert pair.log("n1").start_offset == 0
    assert any(alone in data for data in kept(pair.disk("n1")).values())


async def test_a_copy_that_parts_before_its_master_begins_is_put_aside_whole(pair):
    """Where both part is among what the master dropped: nothing tells which bytes are right."""
    await pair.stop("n2")
    disk, directory = pair.disk("n2"), DATA / "t" / "0"
    topic_id = pair.log("n1").topic_id
    config, clock = LogConfig(), ManualClock(wall_ms=1_700_000_000_000)
    log = Log.open(directory, topic_id=topic_id, config=config, disk=disk, clock=clock)
    for _ in range(30):
        append_to(log, b"diverged" * 20, epoch=1)
    log.close()
    await pair.stop("n1")
    await pair.start("n1")  # epoch 2
    await until(lambda: pair.nodes["n1"].epoch > 1)
    await pair.put(5)
    await pair.drop("n1", pair.log("n1").end_offset)
    begin = pair.log("n1").start_offset
    assert begin < log.end_offset
    await pair.put(3)
    await pair.start("n2")
    await until(pair.same)
    assert pair.log("n2").start_offset == begin
    assert any(b"diverged" in data for data in kept(disk).values())


def kept(disk: MemoryDisk) -> dict[PurePath, bytes]:
    """What was put out of the way."""
    return {
        DATA / "t" / name / file: disk.read_bytes(DATA / "t" / name / file)
        for name in aside(disk)
        if ".damaged" in name
        for file in disk.listdir(DATA / "t" / name)
    }
