"""A place of archives that never answers holds up nobody but who reads what lies there."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
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
from support.broker import DATA, Client, message
from support.client import factory_of
from support.node_pair import settled

from vq import limits
from vq.broker import upkeep
from vq.broker.base import steps
from vq.broker.base.runner import Lane, ThreadRunner
from vq.broker.history import key_indexing
from vq.broker.logs import archiving
from vq.broker.partition import cold_reads
from vq.broker.serving import finding
from vq.errors import Busy
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.testing.waiting import until, until_true


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with small_chunks(monkeypatch):
        yield


@contextmanager
def little_patience(step_s: float = 0.2) -> Iterator[None]:
    """Have the broker wait a moment only for places elsewhere: around what is to hang there.

    All else has the time that it has in a real broker, which a slow machine needs, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (cold_reads, steps, finding):
            patch.setattr(module, "ELSEWHERE_TIMEOUT_S", 0.2)
        patch.setattr(archiving, "STEP_TIMEOUT_S", step_s)
        patch.setattr(archiving, "CLOSE_TIMEOUT_S", 0.2)
        yield


async def test_a_place_that_never_answers_holds_up_nothing_else(cluster):
    """Threads that wait there are of lanes that nothing else needs; requests are answered."""
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
        await logs.archiving.archive(channel, blocks[4])
        Failing.free.clear()
        with little_patience():
            for _ in range(5):  # more than the lane has threads
                with pytest.raises(Busy, match="no answer"):
                    await client.get("t", 0, 0)
        assert await read_all(client, blocks[4].start_offset)
        await client.put("t", 0, [message(b"live")])
        with little_patience():
            with pytest.raises(Busy):
                await archive(served, blocks[5])
            with pytest.raises(Busy):
                await logs.archiving.verify(channel, blocks[0])
        await logs.archiving.restore(channel, blocks[4])
        await logs.archiving.archive(channel, blocks[4])
        verifier = node.parts.verifier
        with little_patience():
            await logs.drop_before(channel, blocks[0].end_offset)
            await settled(channel)
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
    """A broker with threads and six closed blocks."""
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
    with little_patience():
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
    name = blocks[5].index_path.with_suffix(".keys").name
    with little_patience():
        await until(lambda: name in names(threaded, ".keys"))
    assert len(names(threaded, ".keys")) == 5


OTHER = "failing://other"


async def test_a_place_that_never_answers_holds_up_no_other_place(threaded):
    """Each has threads of its own: to read, search, archive, verify and remove there."""
    blocks, client, logs = threaded.blocks, threaded.client, threaded.node.parts.partitions.logs
    channel = channel_of(threaded)
    before = await read_all(client, blocks[1].start_offset)
    for block in blocks[:2]:
        await archive(threaded, block)
    for block in blocks[2:4]:
        await archive(threaded, block, OTHER)
    Failing.held = frozenset({"bucket"})
    Failing.free.clear()
    with little_patience():
        for _ in range(5):  # more than a lane has threads
            with pytest.raises(Busy, match="no answer"):
                await client.get("t", 0, 0)
        with pytest.raises(Busy):
            await archive(threaded, blocks[4])
    assert await read_all(client, blocks[2].start_offset) == before[blocks[1].length :]
    _, unreachable = await find(threaded, blocks[2].start_offset)
    assert unreachable == []
    assert (await logs.archiving.verify(channel, blocks[2])).problem == ""
    await archive(threaded, blocks[5], OTHER)
    with little_patience(step_s=1.0):
        await logs.drop_before(channel, blocks[2].end_offset)
        await settled(channel)
        await until(lambda: len(channel.log.flushing.discards) == 2)
    assert len(stored(OTHER)) == 2, "what is removed here waits for no other place"


async def test_deleted_topics_with_archives_in_another_place_are_purged(cluster, monkeypatch):
    """One place hangs; data of a topic that had archives in another one go."""
    monkeypatch.setattr(upkeep, "TIDY_LEAST_S", 0.05)
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
            await node.parts.partitions.logs.archiving.archive(
                channel, channel.log.closed_blocks[0], place
            )
        Failing.held = frozenset({"bucket"})
        Failing.free.clear()
        monkeypatch.setattr(archiving, "STEP_TIMEOUT_S", 0.2)
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
    archiving = threaded.node.parts.partitions.logs.archiving
    verify = archiving.verify

    async def noted(*args: object) -> object:
        try:
            found = await verify(*args)
        except Exception as error:
            ended.append(str(error))
            raise
        ended.append("verified")
        return found

    monkeypatch.setattr(archiving, "verify", noted)
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
    with little_patience():
        told = await verifier._verify(
            channel, log_of(threaded), piece, steps.NO_PAUSES, lambda _: None
        )
    assert "no answer" in told
    assert not verifier.damage(channel)
    assert await threaded.node.parts.runner.run(lambda: 7, Lane.VERIFY) == 7
