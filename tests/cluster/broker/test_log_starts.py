"""A copy and its master may begin at different offsets: what both have is equal."""

from dataclasses import replace
from pathlib import PurePath

import pytest
from support.broker import DATA
from support.node_pair import whole
from support.store import append as append_to

from vq.clock import ManualClock
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.values.brokers import GroupState
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin, LogConfig
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def aside(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.listdir(DATA / "t") if name.startswith("0.")]


async def test_a_copy_that_was_away_begins_where_its_master_does_now(node_pair):
    """Its master keeps nothing of what the copy has."""
    await node_pair.stop("n2")
    await node_pair.put(5)
    await node_pair.drop("n1", node_pair.log("n1").end_offset)
    begin = node_pair.log("n1").start_offset
    await node_pair.put(3)
    await node_pair.start("n2")
    await until(node_pair.same)
    assert node_pair.log("n2").start_offset == begin


async def test_a_copy_goes_on_when_its_master_begins_inside_of_it(node_pair):
    middle = node_pair.log("n1").end_offset
    node_pair.log("n1").roll()
    await node_pair.put(5)
    await until(node_pair.same)
    await node_pair.stop("n2")
    await node_pair.drop("n1", middle)
    await node_pair.put(3)
    await node_pair.start("n2")
    await until(node_pair.same)
    assert (node_pair.log("n2").start_offset, node_pair.log("n1").start_offset) == (0, middle)


@pytest.mark.parametrize("left", ["something", "nothing"])
async def test_a_copy_that_begins_behind_its_master_goes_on(node_pair, left):
    """Its blocks end elsewhere, so it may have dropped more."""
    node_pair.log("n2").roll()
    middle = node_pair.log("n2").end_offset
    await node_pair.put(5)
    await until(node_pair.same)
    end = node_pair.log("n2").end_offset
    start = middle if left == "something" else end
    await node_pair.drop("n2", start)
    await node_pair.stop("n2")
    await node_pair.put(3)
    await node_pair.start("n2")
    await until(node_pair.same)
    assert (node_pair.log("n2").start_offset, node_pair.log("n1").start_offset) == (start, 0)
    assert not aside(node_pair.disk("n2"))


async def test_the_old_master_follows_one_that_begins_earlier(node_pair):
    """After a fail-over the new master goes on from its own start."""
    await node_pair.drop("n1", node_pair.log("n1").end_offset)
    start = node_pair.log("n1").start_offset
    await node_pair.stop("n1")
    await until(lambda: node_pair.nodes["n2"].epoch > 0)
    await node_pair.put(3, b"new")
    await node_pair.start("n1")
    await until(node_pair.same)
    assert (node_pair.log("n1").start_offset, node_pair.log("n2").start_offset) == (start, 0)
    await node_pair.in_sync()
    await node_pair.stop("n2")
    await until(lambda: node_pair.nodes["n1"].epoch > 0)
    await node_pair.put(2, b"newer")
    await node_pair.start("n2")
    await until(node_pair.same)


async def test_an_empty_copy_behind_the_end_of_its_master_begins_anew(node_pair):
    """It was begun by a master of which an operator gave up the end."""
    await node_pair.nodes["n2"].parts.partitions.logs.renew_log(
        node_pair.channel("n2"), LogBegin(10_000)
    )
    await node_pair.stop("n2")
    await node_pair.start("n2")
    await until(node_pair.same)
    assert node_pair.log("n2").start_offset == 0


async def test_a_copy_behind_the_end_of_a_master_that_has_less_is_put_aside_whole(node_pair):
    """An operator has a node lead that lacks what others dropped, and what follows."""
    await node_pair.stop("n2")
    await node_pair.put(5)
    end = node_pair.log("n1").end_offset
    await node_pair.drop("n1", end)
    await node_pair.put(2)  # n1 has these alone
    start, alone = node_pair.log("n1").start_offset, whole(node_pair.log("n1"), end)
    await node_pair.stop("n1")
    await node_pair.start("n2")
    async with node_pair.cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
        changed = replace(state, master="n2", insync=("n2",), incarnations={}, directories={})
        await coordinator.set(GroupState.path("b1"), changed.encode())
    await until(lambda: node_pair.nodes["n2"].epoch > 0)
    await node_pair.put(1, b"other")
    assert node_pair.log("n2").end_offset < start
    await node_pair.start("n1")
    await until(node_pair.same)
    assert node_pair.log("n1").start_offset == 0
    assert any(alone in data for data in kept(node_pair.disk("n1")).values())


async def test_a_copy_that_parts_before_its_master_begins_is_put_aside_whole(node_pair):
    """Where both part is among what the master dropped: nothing tells which bytes are right."""
    await node_pair.stop("n2")
    disk, directory = node_pair.disk("n2"), DATA / "t" / "0"
    topic_id = node_pair.log("n1").topic_id
    config, clock = LogConfig(), ManualClock(wall_ms=1_700_000_000_000)
    log = Log.open(directory, topic_id=topic_id, config=config, disk=disk, clock=clock)
    for _ in range(30):
        append_to(log, b"diverged" * 20, epoch=1)
    log.close()
    await node_pair.stop("n1")
    await node_pair.start("n1")  # epoch 2
    await until(lambda: node_pair.nodes["n1"].epoch > 1)
    await node_pair.put(5)
    await node_pair.drop("n1", node_pair.log("n1").end_offset)
    begin = node_pair.log("n1").start_offset
    assert begin < log.end_offset
    await node_pair.put(3)
    await node_pair.start("n2")
    await until(node_pair.same)
    assert node_pair.log("n2").start_offset == begin
    assert any(b"diverged" in data for data in kept(disk).values())


def kept(disk: MemoryDisk) -> dict[PurePath, bytes]:
    """What was put out of the way."""
    return {
        DATA / "t" / name / file: disk.read_bytes(DATA / "t" / name / file)
        for name in aside(disk)
        if ".damaged" in name
        for file in disk.listdir(DATA / "t" / name)
    }
