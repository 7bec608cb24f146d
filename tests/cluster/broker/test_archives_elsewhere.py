"""Archives at a URL: read through the broker, removed by it, and a place that does not answer."""

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fsspec.implementations.local import LocalFileSystem
from support.archive_places import URL, Failing, stored
from support.archives_elsewhere import (
    archive,
    channel_of,
    fill,
    log_of,
    names,
    read_all,
    small_chunks,
)
from support.broker import Client, message
from support.client import factory_of
from support.node_pair import settled, whole
from support.store import blocks_of

from vq.broker.partition.copied import show_copied
from vq.errors import Busy, InvalidArgument, OffsetOutOfRange, UnknownTopic, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.store.log.log_config import LogState
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with small_chunks(monkeypatch):
        yield


async def test_a_node_reads_what_it_archived_elsewhere(served):
    """The zip has a name of its own in the whole cluster; nothing of it is on the node's disk."""
    blocks = await fill(served)
    before = await read_all(served.client)
    for block in blocks:
        await archive(served, block)
    topic_id = channel_of(served).topic_id
    owner = served.node.parts.directory.archives.own()
    assert blocks[1].archive.url == (
        f"{URL}/test/b1/n1.{owner}/t.{topic_id}/0/{blocks[1].start_offset:016d}.zip"
    )
    assert (names(served, ".zip"), names(served, ".block")) == ([], [])
    assert len(stored()) == 3
    assert await read_all(served.client) == before
    await served.node.stop()
    node = await served.cluster.start()
    client = await Client.connect(served.cluster.network, node.address)
    assert await read_all(client) == before


async def test_a_place_that_does_not_answer_refuses_these_reads_alone(served):
    """The client can try again; the partition takes messages, and the node is sound."""
    blocks = await fill(served)
    before = await read_all(served.client)
    await archive(served, blocks[0])
    Failing.down = True
    for _ in range(2):
        with pytest.raises(Busy, match="nobody answers") as caught:
            await served.client.get("t", 0, 0)
        assert caught.value.retriable
    with pytest.raises(Busy):
        await served.client.get("t", 0, 0, validate=True, tags=["x"])
    with pytest.raises(Busy):
        await served.node.parts.partitions.logs.archiving.verify(channel_of(served), blocks[0])
    assert await read_all(served.client, blocks[1].start_offset)
    await served.client.put("t", 0, [message(b"live")])
    assert log_of(served).state is LogState.OK
    assert not served.node.parts.verifier.any_damage()
    Failing.down = False
    assert (await read_all(served.client))[: len(before)] == before


async def test_a_verification_does_not_take_silence_for_damage(served):
    """It says what it could not read, and reads that the next time."""
    blocks = await fill(served)
    await archive(served, blocks[0])
    channel = channel_of(served)
    verifier = served.node.parts.verifier
    Failing.down = True

    async def verified() -> object:
        ask = {"topic": "t", "partition": 0, "topic_id": channel.topic_id, "whole": True}
        await served.client.call(Command.VERIFY, wire.VerifyRequest(begin=True, **ask))
        await until(lambda: verifier.passes[channel].ended)
        return (await served.client.call(Command.VERIFY, wire.VerifyRequest(**ask)))[0]

    told = await verified()
    assert "nobody answers" in told.unverified
    assert not told.damage
    Failing.down = False
    told = await verified()
    assert told.unverified == ""
    assert told.verified_bytes == log_of(served).size_bytes


async def test_a_block_is_archived_when_the_place_answers_again(served):
    blocks = await fill(served, 1)
    Failing.down = True
    with pytest.raises(Busy, match="nobody answers"):
        await archive(served, blocks[0])
    assert not blocks[0].is_archived
    Failing.down = False
    await archive(served, blocks[0])
    assert blocks[0].is_archived


async def test_a_place_that_the_broker_was_not_given_is_not_opened(cluster):
    """Whoever may write to ZooKeeper chooses the URL; the credentials are the broker's own."""
    node = await cluster.start(archive_places=("file:///mnt/archive",))
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    served = SimpleNamespace(node=node, client=client, disk=cluster.disks["b1"])
    (block,) = await fill(served, 1)
    asked: list[object] = []
    Failing.asked = asked.append
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"archive_places = file:///mnt/archive; add"):
            await archive(served, block)
    assert asked == []
    assert not block.is_archived
    assert names(served, ".upload") == []


async def test_what_retention_drops_is_removed_elsewhere(served):
    """Beside everything else, when the place answers."""
    blocks = await fill(served)
    for block in blocks:
        await archive(served, block)
    Failing.down = True
    await served.node.parts.partitions.logs.drop_before(channel_of(served), blocks[1].end_offset)
    await settled(channel_of(served))
    assert len(names(served, ".discard")) == 2
    assert log_of(served).start_offset == blocks[2].start_offset
    Failing.down = False
    await until(lambda: not names(served, ".discard"))
    assert stored() == [f"{blocks[2].start_offset:016d}.zip"]
    await until(lambda: not log_of(served).flushing.discards)


async def test_a_zip_that_is_written_again_is_not_removed(served):
    """A block was restored and archived again before its old zip was gone."""
    (block,) = await fill(served, 1)
    before = await read_all(served.client)
    await archive(served, block)
    logs, channel = served.node.parts.partitions.logs, channel_of(served)
    log = log_of(served)

    class Kept(list):  # nobody removes anything meanwhile
        def __iter__(self):
            return iter(())

    log.flushing.discards = kept = Kept()
    await logs.archiving.restore(channel, block)
    assert len(kept) == len(stored()) == 1
    await archive(served, block)
    log.flushing.discards = [kept[0]]
    await until(lambda: not log.flushing.discards)
    assert len(stored()) == 1
    assert await read_all(served.client) == before


async def move(cluster, group: str) -> None:
    async with factory_of(cluster) as factory:
        await factory.admin.move(await factory.admin.plan_moves("t", [0], group))


async def test_an_earlier_range_goes_when_its_archives_elsewhere_are_gone(cluster):
    """Its last block is archived, too: nothing is appended to it any more."""
    first = await cluster.start(retention_interval_s=1e6)
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in first.parts.partitions.channels)
    client = await Client.connect(cluster.network, first.address)
    for each in range(5):
        await client.put("t", 0, [message(b"%d" % each * 500)])
    end = (await client.put("t", 0, [message(b"last")])).offset
    second = await cluster.start("b2", retention_interval_s=1e6)
    await move(cluster, "b2")
    between = await Client.connect(cluster.network, second.address)
    there = second.parts.partitions.channels
    await until(lambda: ("t", 0) in there and there["t", 0].takes_puts)
    await between.put("t", 0, [message(b"elsewhere")])
    await move(cluster, "b1")
    here = first.parts.partitions.channels
    await until(lambda: here["t", 0].takes_puts and here["t", 0].older)
    channel = here["t", 0]
    await client.put("t", 0, [message(b"new")])
    older = channel.older[0].log
    block = blocks_of(older)[0]
    logs = first.parts.partitions.logs
    await logs.archiving.archive(channel, block, URL)
    assert block.is_archived
    assert b"444" in await read_all_of(client, 0, end)
    Failing.down = True
    await logs.drop_before(channel, block.end_offset)
    await until(lambda: older.flushing.discards)
    await logs.drop_before(channel, block.end_offset)
    assert channel.older
    Failing.down = False
    await until(lambda: not older.flushing.discards)
    await logs.drop_before(channel, block.end_offset)
    assert not channel.older
    assert stored() == []


async def read_all_of(client: Client, begin: int, end: int) -> bytes:
    found = b""
    while begin < end:
        answer, body = await client.get("t", 0, begin)
        found, begin = found + body, answer.next_offset
    return found


async def test_a_reader_is_told_where_an_archive_is_instead_of_its_bytes(served):
    """If it asks for that, and of archives at URLs alone: as if it had asked for bytes."""
    blocks = await fill(served)
    await archive(served, blocks[0])
    await served.node.parts.partitions.logs.archiving.archive(channel_of(served), blocks[1], None)
    sent = served.node.parts.context.counters.bytes_out
    Failing.down = True
    start, end = blocks[0].start_offset, blocks[0].end_offset
    for offset in (start, start + 7, end - 1):  # also inside of a record
        answer, body = await served.client.get("t", 0, offset, archives=True, validate=True)
        assert (answer.offset, answer.next_offset, body) == (offset, offset, b"")
        assert (answer.archive_start, answer.archive_end) == (start, end)
        assert answer.archive_url == blocks[0].archive.url
        assert answer.archive_bytes == blocks[0].archive.zip_bytes
        assert answer.high_watermark == log_of(served).end_offset
    assert served.node.parts.context.counters.bytes_out == sent
    for block in blocks[1:]:  # beside the log, and no archive
        answer, body = await served.client.get("t", 0, block.start_offset, archives=True)
        assert body
        assert answer.archive_url == ""
    for wanted in ({"archives": True, "tags": ["x"]}, {}):
        with pytest.raises(Busy):
            await served.client.get("t", 0, start, **wanted)


async def test_a_reader_is_not_told_an_archive_that_it_may_not_read(served):
    """Of another topic of that name, of deleted messages, and behind what is committed."""
    blocks = await fill(served)
    for block in blocks[:2]:
        await archive(served, block)
    channel = channel_of(served)
    with pytest.raises(UnknownTopic):
        await served.client.get("t", 0, 0, archives=True, topic_id="0" * 16)
    limit, channel.high_watermark = channel.high_watermark, blocks[1].end_offset - 1
    try:
        answer, _ = await served.client.get("t", 0, 0, archives=True)
        assert answer.archive_url
        answer, body = await served.client.get("t", 0, blocks[1].start_offset, archives=True)
        assert (answer.archive_url, bool(body)) == ("", True)
    finally:
        channel.high_watermark = limit
    await served.node.parts.partitions.logs.drop_before(channel, blocks[1].start_offset)
    with pytest.raises(OffsetOutOfRange):
        await served.client.get("t", 0, 0, archives=True)


@pytest.mark.parametrize("how", ["medium", "damage"])
@pytest.mark.parametrize("where", ["n1", "n2"])
async def test_a_zip_whose_bytes_are_lost_is_repaired_from_the_other_node(
    node_pair, tmp_path, monkeypatch, how, where
) -> None:
    """Each node has a zip of its own in the place, which answers: only these bytes are lost."""
    await node_pair.put(10)
    await until(node_pair.same)
    good = whole(node_pair.log(where), 0)
    for name, node in node_pair.nodes.items():
        channel = node_pair.channel(name)
        channel.copies.told = node_pair.channel("n1").high_watermark
        show_copied(channel)  # an idle copy may not know the last one
        node_pair.log(name).roll()
        await settled(channel)
        (block,) = node_pair.log(name).closed_blocks
        await node.parts.partitions.logs.archiving.archive(channel, block, f"file://{tmp_path}")
    lost = str(node_pair.log(where).closed_blocks[0].archive.url).removeprefix("file://")
    read = LocalFileSystem.cat_file

    def cat_file(self: object, path: str, *args: object, **kwargs: object) -> bytes:
        if how == "medium" and str(path).endswith(lost):
            raise OSError(errno.EIO, "Input/output error")
        return read(self, path, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "cat_file", cat_file)
    if how == "damage":
        data = bytearray(Path(lost).read_bytes())
        data[len(data) // 4 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 4)
        Path(lost).write_bytes(data)
    node = node_pair.nodes[where]
    client = await Client.connect(node_pair.cluster.network, node.address)
    with pytest.raises(VqError) as caught:
        await client.get("t", 0, 0, from_copy=True)
    assert not isinstance(caught.value, Busy), "the place is not away"
    await until(lambda: node.parts.repairer.count == 1)
    await until(lambda: not node.parts.verifier.any_damage())
    assert whole(node_pair.log(where), 0) == good
    (_, body) = await client.get("t", 0, 0, from_copy=True)
    assert body
    client.close()
