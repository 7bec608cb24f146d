"""Blocks of a broker are archived and restored while it serves, and readers do not notice."""

import asyncio
import errno
import threading
import zlib
from types import SimpleNamespace

import pytest
from support.broker import DATA, Client, fetched, message
from support.client import factory_of
from support.node_pair import NodePair, settled

from vq.broker.base.runner import ThreadRunner
from vq.broker.logs import archiving
from vq.broker.logs.archiving import PAUSE_S_MIN, PAUSE_SHARE, Archived, _Pace
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.partition.copied import show_copied
from vq.client.config import ConsumerConfig
from vq.clock import ManualClock
from vq.errors import (
    Busy,
    CorruptData,
    DiskFull,
    InvalidState,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionFailed,
)
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Place
from vq.store.archive import archive_writer
from vq.store.log.block import Block
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.testing.waiting import WAIT_S, until

WHERE = {"handle": 1, "topic": "t", "partition": 0}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small block has several."""
    monkeypatch.setattr(archive_writer, "CHUNK_BYTES", 2000)


def channel_of(node: BrokerNode) -> Channel:
    return node.parts.partitions.channels["t", 0]


def log_of(node: BrokerNode) -> Log:
    log = channel_of(node).log
    assert log is not None
    return log


def logs_of(node: BrokerNode) -> ChannelLogs:
    return node.parts.partitions.logs


async def fill(served, blocks: int = 3, messages: int = 20) -> list[int]:
    """Write closed blocks; return the offset of each message."""
    offsets = []
    for number in range(blocks):
        for each in range(messages):
            text = b"%02d-%02d " % (number, each) * 40
            answer = await served.client.put("t", 0, [message(text, 100 * number + each, tag="x")])
            offsets.append(answer.offset)
        log_of(served.node).roll()
    await settled(channel_of(served.node))
    return offsets


async def archive_all(node: BrokerNode) -> list[Archived]:
    blocks = [block for block in log_of(node).closed_blocks if not block.is_archived]
    return [await logs_of(node).archiving.archive(channel_of(node), block) for block in blocks]


def names(served, suffix: str = "") -> list[str]:
    return [n for n in served.disk.listdir(DATA / "t" / "0") if n.endswith(suffix)]


async def read_all(client: Client, begin: int = 0) -> bytes:
    found, offset = b"", begin
    while True:
        answer, body = await client.get("t", 0, offset, max_bytes=1 << 20)
        found += body
        if not body:
            return found
        offset = answer.next_offset


async def test_a_closed_block_is_archived_and_read_as_before(served):
    """Its file goes when stub, zip and a checkpoint that names it are there."""
    await fill(served)
    before = await read_all(served.client)
    blocks = list(log_of(served.node).closed_blocks)
    done = await archive_all(served.node)
    assert [each.size_bytes for each in done] == [block.length for block in blocks]
    assert all(0 < each.archive_bytes < each.size_bytes for each in done)
    assert [block.is_archived for block in blocks] == [True] * 3
    assert blocks[0].archive.messages == 20
    assert (names(served, ".block"), len(names(served, ".zip"))) == ([], 3)
    assert await read_all(served.client) == before
    await served.client.put("t", 0, [message(b"live")])
    assert len(await read_all(served.client)) > len(before)
    assert names(served, ".tmp") == []


async def test_what_is_archived_is_there_after_a_restart(served):
    await fill(served)
    before = await read_all(served.client)
    await archive_all(served.node)
    await served.node.stop()
    node = await served.cluster.start()
    client = await Client.connect(served.cluster.network, node.address)
    assert await read_all(client) == before
    assert all(block.is_archived for block in log_of(node).closed_blocks)
    await client.put("t", 0, [message(b"more")])


async def test_a_block_that_takes_appends_is_not_archived(served):
    await fill(served, 1)
    await served.client.put("t", 0, [message(b"live")])
    block = log_of(served.node).open_block
    with pytest.raises(InvalidState, match="appends"):
        await logs_of(served.node).archiving.archive(channel_of(served.node), block)
    assert names(served, ".zip") == []


async def test_a_block_that_is_not_committed_is_not_archived(served):
    """Another node in sync lacks it: it may have to be cut off again."""
    await fill(served, 1)
    channel = channel_of(served.node)
    block = log_of(served.node).closed_blocks[0]
    channel.high_watermark = block.end_offset - 1
    with pytest.raises(InvalidState, match="committed"):
        await logs_of(served.node).archiving.archive(channel, block)


async def test_a_block_that_is_dropped_meanwhile_is_left_alone(served):
    """Nothing of an archive stays."""
    await fill(served)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    runner = served.cluster.runners["b1"]
    with runner.held():
        task = asyncio.create_task(logs_of(served.node).archiving.archive(channel, block))
        await until(lambda: runner.waiting)
        log_of(served.node).drop_before(block.end_offset)
    with pytest.raises(InvalidState, match="not here"):
        await task
    await settled(channel)
    assert len(names(served, ".block")) == 2
    assert names(served, ".zip") == names(served, ".archive") == names(served, ".tmp") == []


async def test_what_is_not_wanted_any_more_is_left_alone(served):
    """Also at the last moment, when the zip has its name."""
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    for left in range(40):
        looks = iter(range(left))
        try:
            await logs_of(served.node).archiving.archive(
                channel, block, still=lambda looks=looks: next(looks, None) is not None
            )
        except InvalidState:
            assert not block.is_archived
            assert names(served, ".zip") == names(served, ".archive") == names(served, ".tmp") == []
        else:
            break
    assert left > 5
    assert block.is_archived


async def test_a_block_is_archived_once_at_a_time(served):
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    runner = served.cluster.runners["b1"]
    with runner.held():
        task = asyncio.create_task(logs_of(served.node).archiving.archive(channel, block))
        await until(lambda: runner.waiting)
        with pytest.raises(Busy):
            await logs_of(served.node).archiving.archive(channel, block)
    await task
    with pytest.raises(InvalidState, match="already"):
        await logs_of(served.node).archiving.archive(channel, block)


async def test_whoever_waits_for_an_archive_may_go(served):
    """It is left alone, or done as a whole."""
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    for turns in range(0, 60, 3):
        task = asyncio.create_task(logs_of(served.node).archiving.archive(channel, block))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not logs_of(served.node).changes.is_changing(TopicPartition("t", 0)))
        await settled(channel)
        assert names(served, ".tmp") == []
        if block.is_archived:
            break
        assert names(served, ".zip") == names(served, ".archive") == []
    assert len(await read_all(served.client)) == block.length


async def test_a_damaged_block_is_not_archived_and_is_looked_into(served):
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    served.disk.open(block.path).pwrite([b"\xff"], 3000)
    with pytest.raises(CorruptData):
        await logs_of(served.node).archiving.archive(channel, block)
    assert not block.is_archived
    await until(lambda: served.node.parts.verifier.damage(channel))


async def test_a_full_disk_leaves_the_block_as_it_is(served):
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    served.disk.capacity_bytes = served.disk.used_bytes() + 700
    with pytest.raises(DiskFull):
        await logs_of(served.node).archiving.archive(channel, block)
    assert (block.is_archived, names(served, ".tmp")) == (False, [])
    served.disk.capacity_bytes = None
    await logs_of(served.node).archiving.archive(channel, block)
    assert block.is_archived


async def test_an_error_of_the_disk_ends_no_log(served):
    """Only what archiving itself wrote is in doubt, and goes."""
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    for kind in ("pwrite", "datasync", "rename", "sync_directory"):
        served.disk.fail(kind, name="" if kind == "sync_directory" else ".zip.tmp")
        with pytest.raises(OSError, match="told to fail"):
            await logs_of(served.node).archiving.archive(channel, block)
        assert log_of(served.node).state is LogState.OK
        assert names(served, ".tmp") == names(served, ".archive") == []
    await logs_of(served.node).archiving.archive(channel, block)


async def test_a_block_is_restored(served):
    """Its file is what it was; the archive goes."""
    await fill(served)
    block = log_of(served.node).closed_blocks[1]
    before, raw = await read_all(served.client), served.disk.read_bytes(block.path)
    await archive_all(served.node)
    await logs_of(served.node).archiving.restore(channel_of(served.node), block)
    assert (block.is_archived, block.archive) == (False, None)
    assert served.disk.read_bytes(block.path) == raw
    assert len(names(served, ".zip")) == len(names(served, ".archive")) == 2
    assert await read_all(served.client) == before
    with pytest.raises(InvalidState, match="not archived"):
        await logs_of(served.node).archiving.restore(channel_of(served.node), block)
    assert (await archive_all(served.node))[0].size_bytes == block.length
    assert await read_all(served.client) == before


@pytest.mark.virtual_time
async def test_what_a_full_disk_kept_of_a_quiet_log_goes_later(served):
    """Files go when a checkpoint says so; a log without appends would not write the next one."""
    await fill(served, 2)
    disk, log, channel = served.disk, log_of(served.node), channel_of(served.node)
    retainer = served.node.parts.upkeep.retainer
    disk.fail("pwrite", error=errno.ENOSPC, name="checkpoint.tmp")
    await logs_of(served.node).archiving.archive(channel, log.closed_blocks[0])
    await settled(channel)
    assert log.closed_blocks[0].is_archived
    assert (len(names(served, ".block")), len(names(served, ".zip"))) == (2, 1)
    await retainer.look()
    await until(lambda: len(names(served, ".block")) == 1)
    disk.fail("pwrite", error=errno.ENOSPC, name="checkpoint.tmp")
    await logs_of(served.node).drop_before(channel, log.end_offset)
    await settled(channel)
    assert not log.size_bytes
    assert (len(names(served, ".block")), len(names(served, ".zip"))) == (1, 1)
    await retainer.look()
    await until(lambda: not (names(served, ".block") or names(served, ".zip")))


async def test_nothing_is_restored_on_a_disk_that_takes_no_messages(served):
    """It would fill up: a block file is larger than its archive."""
    await fill(served, 1)
    (block,) = log_of(served.node).closed_blocks
    await logs_of(served.node).archiving.archive(channel_of(served.node), block)
    for each in served.node.parts.disks.all:
        each.look = lambda: None
    served.node.parts.context.main.refusal = DiskFull("for this test")
    with pytest.raises(DiskFull, match="for this test"):
        await logs_of(served.node).archiving.restore(channel_of(served.node), block)
    assert block.is_archived
    served.node.parts.context.main.refusal = None
    await logs_of(served.node).archiving.restore(channel_of(served.node), block)
    assert not block.is_archived


async def test_a_damaged_archive_is_found_and_not_restored(served):
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    await archive_all(served.node)
    good = await logs_of(served.node).archiving.verify(channel, block)
    assert good == (block.length, block.archive.zip_bytes, 20, "")
    path = block.path.with_suffix(".zip")
    served.disk.open(path).pwrite([b"\xff\xff\xff"], 700)
    found = await logs_of(served.node).archiving.verify(channel, block)
    assert found.problem
    with pytest.raises(CorruptData):
        await logs_of(served.node).archiving.restore(channel, block)
    assert block.is_archived
    verifier = served.node.parts.verifier
    await until(lambda: verifier.damage(channel))
    assert verifier.damage(channel)[0].file.endswith(".archive")


async def test_a_zip_that_is_gone_is_told_by_verify(served):
    await fill(served, 1)
    channel, block = channel_of(served.node), log_of(served.node).closed_blocks[0]
    await archive_all(served.node)
    served.disk.unlink(block.path.with_suffix(".zip"))
    found = await logs_of(served.node).archiving.verify(channel, block)
    assert "no such file" in found.problem
    with pytest.raises(PartitionFailed):
        await served.client.get("t", 0, 0)


# Readers ----------------------------------------------------------------------------------------
async def test_a_consumer_reads_across_archives_and_live_blocks(served):
    """Every message once and in order."""
    await fill(served)
    await archive_all(served.node)
    await served.client.put("t", 0, [message(b"live", 999)])
    async with factory_of(served.cluster) as factory:
        consumer = await factory.create_consumer(ConsumerConfig(group="g"))
        seen = []
        async with asyncio.timeout(WAIT_S):
            async for got in consumer.subscribe("t"):
                seen.append(got.id)
                if got.id == 999:
                    break
    assert seen == [100 * block + each for block in range(3) for each in range(20)] + [999]


async def test_lookups_in_archives_answer_as_before(served):
    """OFFSETS by time, with a count, and of a place; GET that checks its offset."""
    offsets = await fill(served)
    ask = [
        {"by_time": True, "time_ms": 1},
        {"by_time": True, "time_ms": served.node.parts.context.clock.wall_ms()},
        {"count": True, "from_offset": offsets[3], "to_offset": offsets[47]},
        {
            "place": True,
            "place_offset": offsets[25] - 88,
            "place_epoch": 1,
            "place_message_id": 104,
            "place_tags": ["x"],
        },
        {"place": True, "place_offset": offsets[25] - 88, "place_epoch": 1, "place_message_id": 7},
    ]
    before = [await served.client.offsets("t", 0, **each) for each in ask]
    assert before[3].place == Place.SAME
    await archive_all(served.node)
    assert [await served.client.offsets("t", 0, **each) for each in ask] == before
    await served.client.get("t", 0, offsets[5], validate=True)
    with pytest.raises(OffsetNotBoundary) as caught:
        await served.client.get("t", 0, offsets[5] + 1, validate=True)
    assert caught.value.details["next"] > offsets[5]


@pytest.mark.parametrize("tags", [[], ["x"], ["none"]])
async def test_fetches_of_archives_answer_as_before(served, tags):
    """Also with a check of the offset, and a filter."""
    offsets = await fill(served)
    await archive_all(served.node)
    item = wire.FetchPartition(
        **WHERE, offset=offsets[4], tags=tags, validate=True, last_epoch=1, at_once=True
    )
    frame = await asyncio.wait_for(served.client.send_fetch(0, item), WAIT_S)
    result, body = fetched(frame)[1]
    assert result.offset == offsets[4]
    assert bool(body) is (tags != ["none"])
    assert b"00-04" in body or tags == ["none"]


async def test_a_read_of_what_was_dropped_is_refused_as_before(served):
    await fill(served)
    await archive_all(served.node)
    channel = channel_of(served.node)
    end = log_of(served.node).closed_blocks[0].end_offset
    await logs_of(served.node).drop_before(channel, end)
    await settled(channel)
    assert len(names(served, ".zip")) == len(names(served, ".archive")) == 2
    assert len(names(served, ".index")) == 2
    with pytest.raises(OffsetOutOfRange):
        await served.client.get("t", 0, 0)
    assert (await served.client.get("t", 0, end))[1]


async def test_the_loop_decompresses_nothing(cluster, monkeypatch):
    """With the threads of a real broker, every way to read finds its bytes decompressed."""
    runner = ThreadRunner()
    cluster_node = cluster.node(runner=runner)
    await cluster_node.start()
    try:
        await cluster.create_topic("t", partitions=1)
        await until(lambda: ("t", 0) in cluster_node.parts.partitions.channels)

        client = await Client.connect(cluster.network, cluster_node.address)
        offsets = await fill(SimpleNamespace(node=cluster_node, client=client))
        loop_thread = threading.get_ident()
        inflated: list[int] = []
        real = zlib.decompressobj

        def decompressobj(*args):
            inflated.append(threading.get_ident())
            return real(*args)

        compressed: list[int] = []
        deflate = zlib.compressobj

        def compressobj(*args):
            compressed.append(threading.get_ident())
            return deflate(*args)

        monkeypatch.setattr(zlib, "decompressobj", decompressobj)
        monkeypatch.setattr(zlib, "compressobj", compressobj)
        await archive_all(cluster_node)
        checked = len(inflated)
        for at in (3, 17, 33, 55):
            await client.get("t", 0, offsets[at], validate=True)
            await client.get("t", 0, offsets[at], tags=["none"], max_wait_ms=1)
            await client.offsets("t", 0, count=True, from_offset=offsets[at], to_offset=offsets[-1])
            place = {"place_offset": offsets[at], "place_epoch": 1, "place_message_id": 3}
            await client.offsets("t", 0, place=True, **place)
            await client.offsets(
                "t", 0, by_time=True, time_ms=cluster_node.parts.context.clock.wall_ms()
            )
        await read_all(client)
        channel = channel_of(cluster_node)
        block = log_of(cluster_node).closed_blocks[0]
        await logs_of(cluster_node).archiving.verify(channel, block)
        await logs_of(cluster_node).archiving.restore(channel, block)
        assert len(inflated) > checked + 10
        assert compressed
        assert loop_thread not in {*inflated, *compressed}
    finally:
        await cluster_node.stop()
        await runner.close()


# Copies -----------------------------------------------------------------------------------------
async def pair_with_archives(node_pair: NodePair, *who: str) -> None:
    await node_pair.put(30)
    await until(node_pair.same)
    for name in who:
        channel = node_pair.channel(name)
        channel.copies.told = max(channel.copies.told, node_pair.channel("n1").high_watermark)
        show_copied(channel)
        node_pair.log(name).roll()
        await settled(channel)
        for block in list(node_pair.log(name).closed_blocks):
            await node_pair.nodes[name].parts.partitions.logs.archiving.archive(channel, block)
    await node_pair.put(3)
    await until(node_pair.same)


async def test_a_copy_and_its_master_archive_alike_and_stay_readable(node_pair):
    """Also when the copy takes over."""
    await pair_with_archives(node_pair, "n1", "n2")
    client = await Client.connect(node_pair.cluster.network, node_pair.nodes["n1"].address)
    before = await read_all(client)
    await node_pair.stop("n1")
    await until(lambda: node_pair.nodes["n2"].epoch > 0)
    client = await Client.connect(node_pair.cluster.network, node_pair.nodes["n2"].address)
    await until(lambda: node_pair.channel("n2").high_watermark > 0)
    assert (await read_all(client))[: len(before)] == before
    assert len(node_pair.log("n2").closed_blocks) >= 1


async def test_a_new_node_copies_from_archives(node_pair):
    """It was away, and its disk is new."""
    await pair_with_archives(node_pair, "n1")
    await node_pair.stop("n2")
    del node_pair.cluster.disks["b1-n2"]
    await until(lambda: node_pair.nodes["n1"].parts.context.role.named == 1)
    await node_pair.start("n2")
    await until(node_pair.same)
    assert not any(block.is_archived for block in node_pair.log("n2").closed_blocks)


def blocks(log: Log) -> list[Block]:
    return list(log.closed_blocks)


async def test_a_damaged_archive_is_repaired_from_another_node(node_pair):
    """It is a block file afterwards, which the next run archives again."""
    await pair_with_archives(node_pair, "n1", "n2")
    disk, block = node_pair.disk("n2"), blocks(node_pair.log("n2"))[0]
    disk.open(block.path.with_suffix(".zip")).pwrite([b"\xff\xff\xff\xff"], 400)
    found = await node_pair.nodes["n2"].parts.partitions.logs.archiving.verify(
        node_pair.channel("n2"), block
    )
    assert found.problem
    await until(lambda: not block.is_archived)
    await until(lambda: not node_pair.nodes["n2"].parts.verifier.any_damage())
    await until(node_pair.same)
    assert not disk.exists(block.path.with_suffix(".archive"))
    again = await node_pair.nodes["n2"].parts.partitions.logs.archiving.archive(
        node_pair.channel("n2"), block
    )
    assert again.size_bytes == block.length


# The pace -----------------------------------------------------------------------------------------
class Work:
    """Steps that take time; ends after so many."""

    def __init__(self, clock: ManualClock, count: int, seconds: float) -> None:
        self._clock = clock
        self._count = count
        self._seconds = seconds
        self.done = False

    def step(self) -> int:
        self._clock.advance(self._seconds)
        self._count -= 1
        self.done = not self._count
        return 0

    def close(self) -> None:
        pass


@pytest.mark.parametrize("late_s", [0.0, 0.000_06])
@pytest.mark.parametrize("step_s", [0.000_08, 0.000_4, 0.02])
def test_others_get_as_much_time_as_the_steps_take(monkeypatch, step_s: float, late_s: float):
    """In small pieces, also where a pause takes longer than it should."""
    clock, pauses = ManualClock(), []

    def sleep(seconds: float) -> None:
        clock.advance(seconds + late_s)
        pauses.append(seconds + late_s)

    monkeypatch.setattr(archiving.time, "sleep", sleep)
    work, pace = Work(clock, 1_000, step_s), _Pace(clock)
    while not work.done:
        pace.take(work)
    worked = 1_000 * step_s
    assert sum(pauses) == pytest.approx(PAUSE_SHARE * worked, rel=0.05)
    assert len(pauses) >= worked / (PAUSE_S_MIN + step_s) / 2
