"""Archives at a URL: read through the broker, removed by it, and a place that does not answer."""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fsspec.implementations.local import LocalFileSystem
from support.archive_places import URL, Failing, stored
from support.broker import DATA, Client, message
from support.client import factory_of
from support.node_pair import settled, whole
from support.store import blocks_of
from support.waiting import WAIT_S, until, until_true

from vq import limits
from vq.broker import upkeep
from vq.broker.base import steps
from vq.broker.base.runner import Lane, ThreadRunner
from vq.broker.history import key_indexing
from vq.broker.partition import archiving, cold_reads
from vq.broker.partition.channel import Channel
from vq.broker.serving import finding
from vq.errors import Busy, InvalidArgument, OffsetOutOfRange, UnknownTopic, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.store.archive import archive_writer
from vq.store.log.block import Block
from vq.store.log.log import Log, LogState


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place that answers; small chunks, so that a small block has several."""
    monkeypatch.setattr(archive_writer, "CHUNK_BYTES", 2000)
    monkeypatch.setattr(archiving, "DISCARD_S", 0.1)
    Failing.reset()
    yield
    Failing.reset()


def channel_of(served) -> Channel:
    return served.node.parts.partitions.channels["t", 0]


def log_of(served) -> Log:
    return channel_of(served).log


async def fill(served, blocks: int = 3) -> list[Block]:
    """Write closed blocks."""
    for number in range(blocks):
        for each in range(10):
            await served.client.put("t", 0, [message(b"%02d-%02d " % (number, each) * 60)])
        log_of(served).roll()
    await settled(channel_of(served))
    return list(log_of(served).closed_blocks)


async def archive(served, block: Block, to: str = URL) -> None:
    await served.node.parts.partitions.logs.archive(channel_of(served), block, to)


async def read_all(client: Client, begin: int = 0) -> bytes:
    found, offset = b"", begin
    while True:
        answer, body = await client.get("t", 0, offset)
        found += body
        if not body:
            return found
        offset = answer.next_offset


def names(served, suffix: str) -> list[str]:
    return [n for n in served.disk.listdir(DATA / "t" / "0") if n.endswith(suffix)]


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
        await served.node.parts.partitions.logs.verify_archive(channel_of(served), blocks[0])
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
    await logs.restore(channel, block)
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
    await logs.archive(channel, block, URL)
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


async def test_a_place_that_never_answers_holds_up_nothing_else(cluster, monkeypatch):
    """Threads that wait there are of lanes that nothing else needs; requests are answered."""
    monkeypatch.setattr(cold_reads, "ELSEWHERE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(steps, "ELSEWHERE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(archiving, "STEP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(archiving, "CLOSE_TIMEOUT_S", 0.2)
    runner = ThreadRunner()
    node = cluster.node(retention_interval_s=1e6, runner=runner)
    await node.start()
    try:
        await cluster.create_topic("t", partitions=1)
        await until(lambda: ("t", 0) in node.parts.partitions.channels)
        client = await Client.connect(cluster.network, node.address)
        served = SimpleNamespace(node=node, client=client)
        blocks = await fill(served, 6)
        before = await read_all(client)
        logs, channel = node.parts.partitions.logs, channel_of(served)
        for block in blocks[:4]:
            await archive(served, block)
        await logs.archive(channel, blocks[4])
        Failing.free.clear()
        for _ in range(5):  # more than the lane has threads
            with pytest.raises(Busy, match="no answer"):
                await client.get("t", 0, 0)
        assert await read_all(client, blocks[4].start_offset)
        await client.put("t", 0, [message(b"live")])
        with pytest.raises(Busy):
            await archive(served, blocks[5])
        with pytest.raises(Busy):
            await logs.verify_archive(channel, blocks[0])
        await logs.restore(channel, blocks[4])
        await logs.archive(channel, blocks[4])
        await logs.drop_before(channel, blocks[0].end_offset)
        await settled(channel)
        verifier = node.parts.verifier
        await verifier.look_again(
            channel, channel.log, blocks[1].start_offset, channel.log.end_offset
        )
        assert not verifier.damage(channel)
        assert await client.offsets("t", 0)
        assert not node.parts.verifier.any_damage()
        Failing.free.set()
        await until(lambda: not channel.log.flushing.discards)
        after = await read_all(client, blocks[1].start_offset)
        assert after[: len(before) - blocks[0].length] == before[blocks[0].length :]
        await archive(served, blocks[5])
    finally:
        Failing.free.set()
        await node.stop()
        await runner.close()


@pytest.fixture
async def threaded(cluster, monkeypatch):
    """A broker with threads, six closed blocks, and little patience with places elsewhere."""
    for module in (cold_reads, steps, finding):
        monkeypatch.setattr(module, "ELSEWHERE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(key_indexing, "LOOK_S", 0.05)
    runner = ThreadRunner()
    node = cluster.node(retention_interval_s=1e6, runner=runner)
    await node.start()
    try:
        await cluster.create_topic("t", partitions=1)
        await until(lambda: ("t", 0) in node.parts.partitions.channels)
        client = await Client.connect(cluster.network, node.address)
        served = SimpleNamespace(
            node=node, client=client, disk=cluster.disks["b1"], cluster=cluster
        )
        served.blocks = await fill(served, 6)
        yield served
    finally:
        Failing.free.set()
        await node.stop()
        await runner.close()


async def find(served, begin: int = 0) -> tuple[int, list[tuple[int, int]]]:
    """Search everything for a tag; return how many were found, and what could not be reached."""
    count, unreachable, done = 0, [], False
    while not done:
        request = wire.FindRequest(topic="t", partition=0, offset=begin, message_id=1)
        answer, _ = await served.client.call(Command.FIND, request)
        count += len(answer.offsets)
        unreachable += [(each.start, each.end) for each in answer.unreachable]
        begin, done = answer.next_offset, answer.done
    return count, unreachable


async def test_a_search_goes_past_a_place_that_never_answers(threaded):
    """It tells what it could not reach; other searches are not held up."""
    blocks = threaded.blocks
    before, _ = await find(threaded)
    for block in blocks[:2]:
        await archive(threaded, block)
    assert await find(threaded) == (before, [])
    Failing.free.clear()
    count, unreachable = await find(threaded)
    assert (count, len(unreachable)) == (before * 4 // 6, 2)
    assert unreachable == [(block.start_offset, block.end_offset) for block in blocks[:2]]
    for _ in range(5):  # more than the lane has threads
        await find(threaded)
    assert await find(threaded, blocks[2].start_offset) == (count, [])
    Failing.free.set()
    await until_true(lambda: is_found(threaded, before))


async def is_found(served, count: int) -> bool:
    return await find(served) == (count, [])


async def test_a_place_that_never_answers_keeps_no_other_block_without_a_key_index(threaded):
    blocks = threaded.blocks
    await until(lambda: len(names(threaded, ".keys")) == 6)
    await archive(threaded, blocks[0])
    Failing.free.clear()
    for block in (blocks[0], blocks[5]):
        threaded.disk.unlink(block.index_path.with_suffix(".keys"))
        threaded.node.parts.upkeep.indexer.rebuild(log_of(threaded), block.start_offset)
    await until(lambda: blocks[5].index_path.with_suffix(".keys").name in names(threaded, ".keys"))
    assert len(names(threaded, ".keys")) == 5


OTHER = "failing://other"


async def test_a_place_that_never_answers_holds_up_no_other_place(threaded, monkeypatch):
    """Each has threads of its own: to read, search, archive, verify and remove there."""
    monkeypatch.setattr(archiving, "STEP_TIMEOUT_S", 1.0)
    monkeypatch.setattr(archiving, "CLOSE_TIMEOUT_S", 0.2)
    blocks, client, logs = threaded.blocks, threaded.client, threaded.node.parts.partitions.logs
    channel = channel_of(threaded)
    before = await read_all(client, blocks[1].start_offset)
    for block in blocks[:2]:
        await archive(threaded, block)
    for block in blocks[2:4]:
        await archive(threaded, block, OTHER)
    Failing.held = frozenset({"bucket"})
    Failing.free.clear()
    for _ in range(5):  # more than a lane has threads
        with pytest.raises(Busy, match="no answer"):
            await client.get("t", 0, 0)
    with pytest.raises(Busy):
        await archive(threaded, blocks[4])
    assert await read_all(client, blocks[2].start_offset) == before[blocks[1].length :]
    _, unreachable = await find(threaded, blocks[2].start_offset)
    assert unreachable == []
    assert (await logs.verify_archive(channel, blocks[2])).problem == ""
    await archive(threaded, blocks[5], OTHER)
    await logs.drop_before(channel, blocks[2].end_offset)
    await settled(channel)
    await until(lambda: len(channel.log.flushing.discards) == 2)
    assert len(stored(OTHER)) == 2, "what is removed here waits for no other place"


async def test_deleted_topics_with_archives_in_another_place_are_purged(cluster, monkeypatch):
    """One place hangs; data of a topic that had archives in another one go."""
    monkeypatch.setattr(upkeep, "TIDY_LEAST_S", 0.05)
    monkeypatch.setattr(archiving, "STEP_TIMEOUT_S", 0.2)
    runner = ThreadRunner()
    node = cluster.node(
        retention_interval_s=1e6, trash_keep_s=0.1, grace_interval_s=0.1, runner=runner
    )
    await node.start()
    try:
        client = await Client.connect(cluster.network, node.address)
        for name, place in (("a", URL), ("z", OTHER)):
            await cluster.create_topic(name, partitions=1)
            await until(lambda name=name: (name, 0) in node.parts.partitions.channels)
            channel = node.parts.partitions.channels[name, 0]
            await client.put(name, 0, [message(b"x" * 500)])
            channel.log.roll()
            await settled(channel)
            await node.parts.partitions.logs.archive(channel, channel.log.closed_blocks[0], place)
        Failing.held = frozenset({"bucket"})
        Failing.free.clear()
        async with factory_of(cluster) as factory:
            for name in ("a", "z"):
                await factory.admin.delete_topic(name, now=True)
        trash = DATA / "@trash"
        disk = cluster.disks["b1"]
        await until(lambda: disk.exists(trash) and stored(OTHER) == [])
        await until(lambda: [each.partition(".")[0] for each in disk.listdir(trash)] == ["a"])
        assert len(stored()) == 1
        Failing.free.set()
        await until(lambda: disk.listdir(trash) == [])
        assert stored() == []
    finally:
        Failing.free.set()
        await node.stop()
        await runner.close()


async def test_few_archives_are_verified_for_one_connection_at_a_time(threaded, monkeypatch):
    """More are refused at once; what nobody waits for any more ends."""
    for block in threaded.blocks[:4]:
        await archive(threaded, block)
    ended: list[str] = []
    logs = threaded.node.parts.partitions.logs
    verify = logs.verify_archive

    async def noted(*args: object) -> object:
        try:
            found = await verify(*args)
        except Exception as error:
            ended.append(str(error))
            raise
        ended.append("verified")
        return found

    monkeypatch.setattr(logs, "verify_archive", noted)
    Failing.free.clear()
    cluster = threaded.cluster
    other = await cluster.prove(await Client.connect(cluster.network, threaded.node.address))
    await cluster.prove(threaded.client)

    def ask(client: Client, number: int) -> "asyncio.Future[object]":
        start = threaded.blocks[number].start_offset
        request = wire.ArchiveRequest(action=1, topic="t", partition=0, start_offset=start)
        return client.send(Command.ARCHIVE, request)

    most = limits.ARCHIVES_PER_CONNECTION_MAX
    waiting = [ask(other, number) for number in range(most)]
    with pytest.raises(Busy, match="at most 2"):
        decode_reply(await ask(other, most))
    waiting.append(ask(threaded.client, most))
    other.close()
    await until(lambda: len(threaded.node.parts.server.sessions) == 1)
    Failing.free.set()
    assert decode_reply(await waiting[-1]).problem == ""
    await until(lambda: len(ended) == most + 1)
    assert ended.count("verified") == 1
    assert decode_reply(await ask(threaded.client, 0)).problem == ""


async def test_what_became_an_archive_elsewhere_during_a_pass_is_read_on_its_own_lane(
    threaded, monkeypatch
):
    """The pieces of a pass may wait for days."""
    channel, block = channel_of(threaded), threaded.blocks[0]
    verifier = threaded.node.parts.verifier
    (piece,) = log_of(threaded).reader.pieces(0, block.end_offset)
    await archive(threaded, block)
    Failing.free.clear()
    async with asyncio.timeout(WAIT_S):
        told = await verifier._verify(
            channel, log_of(threaded), piece, steps.NO_PAUSES, lambda _: None
        )
    assert "no answer" in told
    assert not verifier.damage(channel)
    assert await threaded.node.parts.runner.run(lambda: 7, Lane.VERIFY) == 7


async def test_a_reader_is_told_where_an_archive_is_instead_of_its_bytes(served):
    """If it asks for that, and of archives at URLs alone: as if it had asked for bytes."""
    blocks = await fill(served)
    await archive(served, blocks[0])
    await served.node.parts.partitions.logs.archive(channel_of(served), blocks[1], None)
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
        channel.show_copied()  # an idle copy may not know the last one
        node_pair.log(name).roll()
        await settled(channel)
        (block,) = node_pair.log(name).closed_blocks
        await node.parts.partitions.logs.archive(channel, block, f"file://{tmp_path}")
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
