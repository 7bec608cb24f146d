"""Key indexes made in the background: of which blocks, when, and what becomes of them."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from support.batches import keyed
from support.broker import Client, MemoryCluster

from vq.broker.history import key_indexing
from vq.errors import DiskFull
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.care.key_index import KeyIndex
from vq.store.log.log import Log
from vq.store.records.format import keys_name
from vq.store.records.record import encode_record
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

DIRECTORY = Path("/data/t/0")


async def fill(client: Client, log_of: Any, blocks: int = 3, each: int = 4) -> list[int]:
    """Put messages with keys, and end a block now and then; return where the blocks begin."""
    starts = []
    for block in range(blocks):
        starts.append(log_of().end_offset if log_of() is not None else 0)
        for number in range(each):
            record = encode_record(
                block * each + number + 1, b"x" * 500, b"tag", keyed(f"k{block}-{number}")
            )
            await client.put("t", 0, [record])
        log_of().roll()
    return starts


def log_of(served: Any) -> Log:
    log = served.node.parts.partitions.channels["t", 0].log
    assert isinstance(log, Log)
    return log


def indexed(served: Any) -> list[int]:
    """The start offsets of the blocks that have an index."""
    names = served.disk.listdir(DIRECTORY) if served.disk.exists(DIRECTORY) else []
    return [int(name.removesuffix(".keys")) for name in names if name.endswith(".keys")]


async def find(client: Client, key: str) -> Any:
    request = wire.FindRequest(topic="t", partition=0, key_kind=1, key=key.encode())
    return (await client.call(Command.FIND, request))[0]


async def filled(served: Any) -> list[int]:
    starts = await fill(served.client, lambda: served.node.parts.partitions.channels["t", 0].log)
    await until(lambda: indexed(served) == starts)
    return starts


async def test_closed_blocks_get_an_index_and_searches_use_it(served):
    """The block that takes appends has none, and is read."""
    starts = await filled(served)
    await served.client.put("t", 0, [encode_record(99, b"", None, keyed("last"))])
    await asyncio.sleep(3 * key_indexing.LOOK_S)
    assert indexed(served) == starts
    log = log_of(served)
    open_bytes = log.end_offset - log.closed_blocks[-1].end_offset
    answer = await find(served.client, "k1-2")
    assert len(answer.offsets) == 1
    assert starts[1] < answer.offsets[0] < starts[2]
    block = log.closed_blocks[1]
    assert answer.read_bytes == block.length + open_bytes
    assert answer.read_bytes + answer.skipped_bytes == log.end_offset
    assert (await find(served.client, "nobody")).read_bytes == open_bytes
    assert len((await find(served.client, "last")).offsets) == 1


async def test_a_block_that_is_not_durable_gets_no_index_yet(served):
    """What is in it may be cut off again."""
    await served.client.put("t", 0, [encode_record(1, b"x")])
    served.flusher.held = True
    waiting = served.client.send_put("t", 0, [encode_record(2, b"y")])
    log = log_of(served)
    await until(lambda: log.end_offset > log.synced_offset)
    log.roll()
    await asyncio.sleep(3 * key_indexing.LOOK_S)
    assert len(log.closed_blocks) == 1
    assert indexed(served) == []
    served.flusher.release()
    await waiting
    await until(lambda: indexed(served) == [0])


async def test_an_index_goes_with_its_block(served):
    starts = await filled(served)
    channel = served.node.parts.partitions.channels["t", 0]
    await served.node.parts.partitions.logs.drop_before(channel, starts[2])
    await until(lambda: indexed(served) == starts[2:])
    await until(lambda: f"{0:016d}.block" not in served.disk.listdir(DIRECTORY))


async def test_an_index_that_is_finished_after_its_block_went_does_not_stay(served):
    """Nothing is left that nobody would delete."""
    await fill(served.client, lambda: served.node.parts.partitions.channels["t", 0].log, 1)
    log = log_of(served)
    await served.client.put("t", 0, [encode_record(50, b"x")])
    runner = served.cluster.runners["b1"]
    write = key_indexing.write_key_index
    written = []

    def drop_then_write(disk: Any, path: Path, data: bytes) -> None:
        log.drop_before(log.closed_blocks[0].end_offset)
        write(disk, path, data)
        written.append(path)

    key_indexing.write_key_index = drop_then_write
    try:
        await until(lambda: written)
        await until(lambda: not runner.waiting and indexed(served) == [])
    finally:
        key_indexing.write_key_index = write


async def test_indexes_are_there_after_a_restart_and_are_not_made_again(served, monkeypatch):
    starts = await filled(served)
    await served.node.stop()
    made = []
    monkeypatch.setattr(key_indexing, "write_key_index", lambda *args: made.append(args))
    node = await served.cluster.start()
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    await asyncio.sleep(3 * key_indexing.LOOK_S)
    assert indexed(served) == starts
    assert made == []


async def test_the_index_of_a_block_that_grew_again_is_made_again(served):
    """After a restart the last block takes appends once more."""
    starts = await filled(served)
    await served.node.stop()
    node = served.node = await served.cluster.start()
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(served.cluster.network, node.address)
    await client.put("t", 0, [encode_record(77, b"", None, keyed("grown"))])
    assert len(log_of(served).closed_blocks) == 2
    assert len((await find(client, "grown")).offsets) == 1
    log_of(served).roll()
    end = log_of(served).end_offset
    path = DIRECTORY / keys_name(starts[2])

    async def is_made_again() -> bool:
        return KeyIndex(served.disk.read_bytes(path)).end_offset == end

    await until_true(is_made_again)
    answer = await find(client, "grown")
    assert len(answer.offsets) == 1
    assert answer.skipped_bytes > 0


@pytest.mark.parametrize("data", [b"", b"garbage", None])
async def test_an_index_that_is_damaged_is_made_again_when_a_search_meets_it(served, data):
    """The search itself reads the block."""
    starts = await filled(served)
    path = DIRECTORY / keys_name(starts[1])
    good = served.disk.read_bytes(path)
    file = served.disk.open(path)
    if data is None:
        file.pwrite([bytes([good[60] ^ 1])], 60)
    else:
        file.truncate(0)
        file.pwrite([data], 0)
    file.close()
    answer = await find(served.client, "k1-1")
    assert len(answer.offsets) == 1
    await until(lambda: served.disk.read_bytes(path) == good)


async def test_an_index_that_a_search_misses_right_after_a_start_is_made_again(served):
    """Before the node has looked which indexes there are."""
    starts = await filled(served)
    path = DIRECTORY / keys_name(starts[1])
    good = served.disk.read_bytes(path)
    await served.node.stop()
    file = served.disk.open(path)
    file.pwrite([bytes([good[60] ^ 1])], 60)
    file.close()
    node = await served.cluster.start()
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(served.cluster.network, node.address)
    assert len((await find(client, "k1-1")).offsets) == 1
    await until(lambda: served.disk.read_bytes(path) == good)


async def test_an_index_that_was_deleted_is_made_again_after_a_search(served):
    """Somebody removed the file."""
    starts = await filled(served)
    served.disk.unlink(DIRECTORY / keys_name(starts[1]))
    assert len((await find(served.client, "k1-1")).offsets) == 1
    await until(lambda: indexed(served) == starts)


async def test_a_log_that_goes_away_while_its_index_is_written_is_no_trouble(
    served, monkeypatch, caplog
):
    await fill(served.client, lambda: served.node.parts.partitions.channels["t", 0].log, 1)
    channel = served.node.parts.partitions.channels["t", 0]
    tried = []

    def gone(*_: Any) -> None:
        channel.detach()
        tried.append(1)
        raise FileNotFoundError(errno.ENOENT, "no such directory")

    log = log_of(served)
    monkeypatch.setattr(key_indexing, "write_key_index", gone)
    await until(lambda: tried)
    await asyncio.sleep(1)
    assert "key index" not in caplog.text
    channel.attach(log)


async def test_a_damaged_block_gets_no_index(served):
    """Searches must meet the damage."""
    await fill(served.client, lambda: served.node.parts.partitions.channels["t", 0].log)
    log = log_of(served)
    block = log.closed_blocks[1]
    file = served.disk.open(block.path)
    file.pwrite([b"\xff\xff"], 200)
    file.close()
    starts = [each.start_offset for each in log.closed_blocks]
    await until(lambda: indexed(served) == [starts[0], starts[2]])
    answer = await find(served.client, "nobody")
    assert [(each.start, each.reason != "") for each in answer.damage] == [(starts[1], True)]


async def test_no_index_is_made_while_the_disk_is_short_of_space(served):
    await fill(served.client, lambda: served.node.parts.partitions.channels["t", 0].log)
    node = served.node
    for each in node.parts.disks.all:
        each.look = lambda: None
    node.parts.context.main.refusal = DiskFull("for this test")
    await asyncio.sleep(3 * key_indexing.LOOK_S)
    assert indexed(served) == []
    node.parts.context.main.refusal = None
    await until(lambda: len(indexed(served)) == 3)


async def test_what_has_no_index_yet_is_counted(served):
    """For metrics: it falls with each block, and is nothing when all have one."""
    indexer = served.node.parts.upkeep.indexer
    assert not indexer.unindexed_bytes
    await fill(served.client, lambda: served.node.parts.partitions.channels["t", 0].log)
    seen = []
    write = key_indexing.write_key_index

    def noted(*args: Any) -> None:
        seen.append(indexer.unindexed_bytes)
        write(*args)

    key_indexing.write_key_index = noted
    try:
        await until(lambda: len(indexed(served)) == 3)
    finally:
        key_indexing.write_key_index = write
    sizes = [block.length for block in log_of(served).closed_blocks]
    assert seen == [sum(sizes), sum(sizes[1:]), sizes[2]]
    await until(lambda: indexer.unindexed_bytes == 0)
    await asyncio.sleep(2 * key_indexing.LOOK_S)
    assert indexer.unindexed_bytes == 0


async def test_a_full_disk_is_told_and_the_index_made_later(served, monkeypatch, caplog):
    await fill(served.client, lambda: served.node.parts.partitions.channels["t", 0].log, 1)
    write = key_indexing.write_key_index

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(key_indexing, "write_key_index", full)
    await until(lambda: "key index cannot be written" in caplog.text)
    assert indexed(served) == []
    monkeypatch.setattr(key_indexing, "write_key_index", write)
    await until(lambda: indexed(served) == [0])


async def test_a_node_without_key_indexes_searches_all_the_same(cluster: MemoryCluster):
    node = await cluster.start(key_index_bytes_per_s=0)
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    await fill(client, lambda: node.parts.partitions.channels["t", 0].log)
    await asyncio.sleep(3 * key_indexing.LOOK_S)
    names = cluster.disks["b1"].listdir(DIRECTORY)
    assert not [name for name in names if name.endswith(".keys")]
    assert len((await find(client, "k2-3")).offsets) == 1


async def test_copies_make_indexes_of_their_own(node_pair):
    """One of them may lead tomorrow."""
    for name in ("n1", "n2"):
        node_pair.nodes[name].parts.partitions.channels["t", 0].log.roll()
    await node_pair.put(3)
    disks = node_pair.cluster.disks
    for key in ("b1", "b1-n2"):
        await until(lambda key=key: f"{0:016d}.keys" in disks[key].listdir(DIRECTORY))
