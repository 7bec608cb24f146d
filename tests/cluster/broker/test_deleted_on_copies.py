"""A copy deletes what its master's retention has deleted, block by block, and nothing else."""

import pytest
from support.broker import DATA
from support.node_pair import NodePair, settled, whole
from support.store import blocks_of

from vq.broker.partition.copied import begin_copying
from vq.broker.partition.ranges import earliest
from vq.errors import VqError
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def blocks(pair: NodePair, name: str) -> list[str]:
    names = pair.disk(name).listdir(DATA / "t" / "0")
    return sorted(each for each in names if each.endswith(".block"))


async def three_blocks(pair: NodePair) -> list[int]:
    """Both nodes have blocks of five messages; return where these begin, and the end."""
    starts = [0]
    for _ in range(3):
        for name in pair.nodes:
            pair.log(name).roll()
        await pair.put(5)
        await until(pair.same)
        starts.append(pair.log("n1").end_offset)
    return [block.start_offset for block in blocks_of(pair.log("n1"))] + starts[-1:]


async def test_a_copy_deletes_when_nothing_is_sent(node_pair):
    """The master tells it at once."""
    starts = await three_blocks(node_pair)
    before = whole(node_pair.log("n2"), starts[2])
    await node_pair.delete(starts[2])
    await until(lambda: node_pair.log("n2").start_offset == starts[2])
    assert node_pair.channel("n2").start_offset == starts[2]
    await until(lambda: blocks(node_pair, "n2") == blocks(node_pair, "n1"))
    assert whole(node_pair.log("n2"), starts[2]) == before
    await node_pair.put(3)
    await until(node_pair.same)


async def test_a_copy_keeps_a_block_that_the_start_of_its_master_lies_in(node_pair):
    """It is never ahead of its master. The block ends, so that it can go later."""
    starts = await three_blocks(node_pair)
    copy = node_pair.log("n2")
    assert copy.open_block is not None
    channel = node_pair.channel("n1")
    offset = starts[-2] + 100
    channel.tell_deleted(offset)
    await until(lambda: copy.start_offset == starts[-2])
    assert copy.open_block is None
    await node_pair.put(2)
    channel.tell_deleted(node_pair.log("n1").end_offset)
    await until(lambda: copy.start_offset == copy.end_offset == node_pair.log("n1").end_offset)


async def test_a_copy_that_was_away_is_told_when_it_comes_back(node_pair):
    starts = await three_blocks(node_pair)
    await node_pair.stop("n2")
    await node_pair.delete(starts[1])
    await node_pair.start("n2")
    await until(node_pair.same)
    await until(lambda: node_pair.log("n2").start_offset == starts[1])


async def test_what_a_master_lacks_without_a_decision_stays_on_the_copy(node_pair):
    """Its first blocks may be lost: the copy may be the last one that has them."""
    starts = await three_blocks(node_pair)
    await node_pair.drop("n1", starts[2])  # and no word about it
    await node_pair.put(3)
    await until(node_pair.same)
    await node_pair.stop("n2")
    await node_pair.start("n2")
    await until(node_pair.same)
    assert (node_pair.log("n1").start_offset, node_pair.log("n2").start_offset) == (starts[2], 0)


async def test_a_range_that_a_copy_put_aside_is_deleted_with_its_directory(node_pair):
    """All of what the copy had was deleted while it was away."""
    await node_pair.stop("n2")
    await node_pair.put(5)
    await node_pair.delete(node_pair.log("n1").end_offset)
    begin = node_pair.log("n1").start_offset
    await node_pair.put(3)
    await node_pair.start("n2")
    await until(node_pair.same)
    await until(lambda: node_pair.channel("n2").older == [])
    assert earliest(node_pair.channel("n2")) == begin
    await until(lambda: node_pair.disk("n2").listdir(DATA / "t") == ["0", "topic.json"])
    await node_pair.stop("n2")
    await node_pair.start("n2")
    await until(node_pair.same)
    assert earliest(node_pair.channel("n2")) == begin


async def test_after_a_fail_over_in_between_the_new_master_goes_on_from_its_start(node_pair):
    """The copy was not told any more; the old master, which begins later, follows."""
    starts = await three_blocks(node_pair)
    await node_pair.drop("n1", starts[2])
    await node_pair.stop("n1")
    await until(lambda: node_pair.nodes["n2"].epoch > 0)
    assert node_pair.log("n2").start_offset == 0
    await node_pair.put(3)
    await node_pair.start("n1")
    await until(node_pair.same)
    await node_pair.in_sync()
    assert node_pair.log("n1").start_offset == starts[2]
    await node_pair.delete(starts[3])
    await until(lambda: node_pair.log("n1").start_offset == starts[3])


async def test_a_copy_that_could_not_delete_tries_again(node_pair, monkeypatch):
    starts = await three_blocks(node_pair)
    logs, tries = node_pair.nodes["n2"].parts.partitions.logs, []
    real = logs.drop_before

    async def drop_before(channel, offset, still):
        tries.append(offset)
        if len(tries) == 1:
            raise VqError("an index cannot be read")
        return await real(channel, offset, still)

    monkeypatch.setattr(logs, "drop_before", drop_before)
    await node_pair.delete(starts[1])
    await until(lambda: tries)
    await node_pair.put(1)
    await until(lambda: node_pair.log("n2").start_offset == starts[1])
    assert len(tries) == 2


async def test_a_copy_deletes_only_what_is_committed(node_pair):
    """A master's word is checked: nothing above the copy's high watermark goes."""
    starts = await three_blocks(node_pair)
    channel = node_pair.channel("n2")
    channel.high_watermark = starts[1]
    freed = await node_pair.nodes["n2"].parts.partitions.logs.drop_before(channel, starts[3])
    assert (channel.log.start_offset, freed.size_bytes, freed.blocks) == (starts[1], starts[1], 1)
    await settled(channel)


async def test_what_a_former_master_told_deletes_nothing_of_another_log(node_pair):
    """The log may be another one by the time at which it can be changed."""
    starts = await three_blocks(node_pair)
    channel, logs = node_pair.channel("n2"), node_pair.nodes["n2"].parts.partitions.logs
    async with logs.changes.lock(channel.partition):
        logs.drop_soon(channel, starts[2])
        await until(lambda: channel in logs.dropping)
        begin_copying(channel, channel.copies.epoch + 1, lambda: None)
    await until(lambda: channel not in logs.dropping)
    assert (node_pair.log("n2").start_offset, channel.copies.deleted) == (0, 0)
