"""Reads of bytes that are not in memory wait for them beside the event loop."""

import asyncio
import threading

import pytest
from support.broker import Client, MemoryCluster, fetched, message

from vq.broker.base.runner import InlineRunner, Lane, ThreadRunner
from vq.errors import OffsetOutOfRange
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.store.disk.memory_disk import MemoryFile
from vq.store.log import log_reader
from vq.testing.waiting import WAIT_S, until

WHERE = {"handle": 1, "topic": "t", "partition": 0}


class Cold:
    """A node whose disk has nothing in memory, and a runner that a test can hold."""

    def __init__(self, cluster: MemoryCluster, client: Client, starts: list[int]) -> None:
        self.node = cluster.nodes["b1"]
        self.disk = cluster.disks["b1"]
        self.runner = cluster.runners["b1"]
        self.client = client
        self.starts = starts
        self.reads = self.node.parts.cold_reads
        self.disk.cold = True


@pytest.fixture
async def cold(cluster: MemoryCluster, monkeypatch) -> Cold:
    monkeypatch.setattr(log_reader, "RECENT_BYTES", 0)
    await cluster.start()
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    starts = [(await client.put("t", 0, [message(b"x" * 50, n, tag="x")])).offset for n in range(5)]
    return Cold(cluster, client, starts)


async def test_a_get_of_cold_bytes_waits_beside_the_loop(cold):
    """Others are served meanwhile; the bytes are looked at once they are there."""
    with cold.runner.held():
        waiting = cold.client.send_get("t", 0, cold.starts[0])
        await until(lambda: cold.runner.waiting)
        await cold.client.put("t", 0, [message(b"y")])
        assert not waiting.done()
        assert not cold.disk.fetched
    assert len((await asyncio.wait_for(waiting, WAIT_S)).body) > 0
    assert len(cold.disk.fetched) == 1
    await cold.client.get("t", 0, cold.starts[0])
    assert len(cold.disk.fetched) == 1, "warm bytes are not fetched again"


async def test_cold_reads_of_one_connection_come_one_after_the_other(cold):
    """Many requests at once do not have everything brought into memory at once."""
    with cold.runner.held():
        waiting = [cold.client.send_get("t", 0, start) for start in cold.starts]
        await until(lambda: cold.runner.waiting)
        await cold.client.status()
        assert cold.runner.waiting == 1
    frames = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert all(frame.status == 0 and frame.body for frame in frames)


async def test_a_read_that_fails_as_nobody_expected_keeps_nobody_waiting(cold, monkeypatch):
    """Neither its own request nor those behind it: the bytes are there on the disk still."""
    fetch, failures = MemoryFile.fetch, ["once"]

    def fails_once(file, position, length):
        if failures:
            raise ValueError(failures.pop())
        fetch(file, position, length)

    monkeypatch.setattr(MemoryFile, "fetch", fails_once)
    waiting = [cold.client.send_get("t", 0, start) for start in cold.starts]
    frames = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert not failures
    assert all(frame.status == 0 and frame.body for frame in frames)


async def test_what_nobody_waits_for_is_not_fetched(cold):
    """A connection that ends takes its cold reads along."""
    with cold.runner.held():
        waiting = [cold.client.send_get("t", 0, start) for start in cold.starts]
        await until(lambda: cold.runner.waiting)
        await until(lambda: cold.reads.waiting == 4)
        cold.client.close()
        await until(lambda: cold.client.closed.is_set())
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: not cold.reads.waiting)
    assert len(cold.disk.fetched) <= 1


async def test_a_filter_fetches_what_it_looks_through(cold):
    """Step by step, and its time-out does not make it answer twice."""
    with cold.runner.held():
        waiting = cold.client.send_get("t", 0, cold.starts[0], tags=["no"], max_wait_ms=1)
        await until(lambda: cold.runner.waiting)
        (session,) = cold.node.parts.server.sessions
        (get,) = session.waiting
        await until(lambda: get._waiting.timed_out)
        assert not cold.reads.waiting, "the time-out had the same bytes fetched once more"
        assert not waiting.done()
    frame = await asyncio.wait_for(waiting, WAIT_S)
    assert frame.status == 0
    assert not frame.body
    assert len(cold.disk.fetched) == 1


@pytest.mark.parametrize("tags", [[], ["x"]])
async def test_a_fetch_of_cold_bytes_waits_beside_the_loop(cold, tags):
    """The session answers what is there meanwhile, and this when it is."""
    with cold.runner.held():
        item = wire.FetchPartition(**WHERE, offset=cold.starts[0], tags=tags)
        waiting = cold.client.send_fetch(0, item)
        await until(lambda: cold.runner.waiting)
        await cold.client.put("t", 0, [message(b"y")])
        assert not waiting.done()
    frame = await asyncio.wait_for(waiting, WAIT_S)
    assert frame.status == 0
    assert frame.body


async def test_a_partition_removed_while_its_bytes_are_fetched_is_not_answered(cold, caplog):
    """Nor does it disturb what comes after."""
    with cold.runner.held():
        cold.client.send_fetch(0, wire.FetchPartition(**WHERE, offset=cold.starts[0]))
        await until(lambda: cold.runner.waiting)
        waiting = cold.client.send_fetch(1, removed=[1], max_wait_ms=50)
    frame = await asyncio.wait_for(waiting, WAIT_S)
    assert frame.status == 0
    assert not frame.body
    assert "failed" not in caplog.text


async def test_lanes_do_not_wait_for_each_other():
    """A long recovery holds up neither moves nor reads nor the purge."""
    runner, gate = ThreadRunner(), threading.Event()
    try:
        held = asyncio.ensure_future(runner.run(gate.wait))
        for lane in set(Lane) - {Lane.LOGS}:
            assert await asyncio.wait_for(runner.run(lambda: 7, lane), WAIT_S) == 7
        assert not held.done()
    finally:
        gate.set()
        await held
        await runner.close()
    assert await InlineRunner().run(lambda: 7, Lane.READ) == 7


async def test_a_call_that_hangs_does_not_hold_up_the_loop_at_the_end():
    """Closing waits for calls under way, beside the loop; whoever does not want to wait may go."""
    runner, gate = ThreadRunner(), threading.Event()
    held = asyncio.ensure_future(runner.run(lambda: gate.wait(2 * WAIT_S), Lane.PURGE))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):  # it would return, late, if the loop stood still
        async with asyncio.timeout(0.01):
            await runner.close()
    with pytest.raises(RuntimeError):
        await runner.run(lambda: 7)
    closing = asyncio.ensure_future(runner.close())
    gate.set()
    await asyncio.wait_for(closing, WAIT_S)
    assert held.done()


@pytest.mark.parametrize("tags", [[], ["x"]])
async def test_bytes_that_are_deleted_while_they_are_fetched_are_out_of_range(cold, tags):
    """GET and FETCH, with and without a filter; what is left can be read."""
    channel = cold.node.parts.partitions.channels["t", 0]
    with cold.runner.held():
        get = cold.client.send_get("t", 0, cold.starts[0], tags=tags)
        item = wire.FetchPartition(**WHERE, offset=cold.starts[0], tags=tags)
        fetch = cold.client.send_fetch(0, item)
        await until(lambda: cold.runner.waiting)
        await cold.node.parts.partitions.logs.drop_before(channel, channel.log.end_offset)
    begin = channel.start_offset
    assert begin > cold.starts[-1]
    with pytest.raises(OffsetOutOfRange) as caught:
        decode_reply(await asyncio.wait_for(get, WAIT_S))
    assert caught.value.details["earliest"] == begin
    [(result, body)] = fetched(await asyncio.wait_for(fetch, WAIT_S)).values()
    assert (result.status, body) == (OffsetOutOfRange.status, b"")
    assert result.numbers["earliest"] == begin
    await cold.client.put("t", 0, [message(b"z" * 50, tag="x")])
    assert b"z" * 50 in (await cold.client.get("t", 0, begin, tags=tags))[1]


async def test_an_index_that_is_gone_is_built_beside_the_loop_and_saved(cluster):
    """Who needs it waits, others are served; readers are told epochs as before."""
    starts = []
    for epoch in (1, 2):
        node = await cluster.start()
        if epoch == 1:
            await cluster.create_topic("t")
        client = await Client.connect(cluster.network, node.address)
        starts += [(await client.put("t", 0, [message(b"x" * 50)])).offset for _ in range(4)]
        if epoch == 1:
            client.close()
            await node.stop()
    channel = node.parts.partitions.channels["t", 0]
    log = channel.log
    log.roll()
    await client.put("t", 0, [message(b"end")])
    (block,) = log.closed_blocks
    await until(lambda: block.index_saved)
    place = wire.FetchPartition(**WHERE, offset=starts[6], validate=True, last_epoch=1)
    question = wire.EpochEndRequest(
        node="n2", incarnation=5, epoch=2, topic="t", of_epoch=1, new=True
    )

    def count(client):
        fields = {"from_offset": starts[1], "to_offset": starts[6]}
        return client.offsets("t", 0, count=True, **fields)

    async def epoch_end(client):
        return await (await cluster.prove(client, "b1", "n2")).call(Command.EPOCH_END, question)

    for ask in (
        count,
        epoch_end,
        lambda client: client.get("t", 0, starts[6]),
        lambda client: client.get("t", 0, starts[6], validate=True),
        lambda client: client.get("t", 0, starts[6], tags=["none"]),
        lambda client: client.fetch(0, wire.FetchPartition(**WHERE, offset=starts[6])),
        lambda client: client.fetch(0, place),
    ):
        asker = await Client.connect(cluster.network, node.address)
        right = await ask(asker)
        asker.close()
        asker = await Client.connect(cluster.network, node.address)
        block.close()
        log.reader._epochs.clear()
        cluster.disks["b1"].unlink(block.index_path)
        with cluster.runners["b1"].held():
            waiting = asyncio.ensure_future(ask(asker))
            await until(lambda: cluster.runners["b1"].waiting)
            await client.status()
            assert not waiting.done()
        assert await asyncio.wait_for(waiting, WAIT_S) == right
        assert cluster.disks["b1"].exists(block.index_path)
        asker.close()
