"""The in-sync set shrinks below the ``min_insync`` of a topic with flush ``async`` (R9).

Messages count there that are in the page caches of ``min_insync`` nodes. With fewer nodes in sync,
one loss of power could take them: so before, the master flushes what may have been acknowledged,
and counts what it has flushed until ZooKeeper has agreed. Then it takes no messages of that topic.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.broker import Client, HeldFlusher, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.replication.insync_set import FLUSH_WAIT_S, TICK_S, InSyncSet
from vq.coordination.brokers.registry import read_state
from vq.coordination.topics.placement import move
from vq.coordination.topics.topics import change_placement, change_settings, describe_topic
from vq.coordination.tree.coordinator import ConnectionLost
from vq.errors import NotEnoughInSync
from vq.model import FlushMode, Replication
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.store.disk.memory_disk import keep_none
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


class Pair:
    """Nodes n1, which leads, and n2, both in sync; topic ``t`` with one partition."""

    client: Client

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, BrokerNode] = {}

    async def start(self, node: str) -> None:
        self.nodes[node] = await self.cluster.start(node=node)

    async def in_sync(self, *names: str) -> None:
        """Return once the record names just these nodes, and the master knows."""
        async with self.cluster.admin() as coordinator:
            while True:
                state = await read_state(coordinator, "b1")
                assert state is not None
                role = self.nodes[state.master].parts.context.role
                if set(state.insync) == set(names) and role.named == len(names):
                    return
                await asyncio.sleep(0.02)

    async def named(self) -> set[str]:
        return set((await self.cluster.group_state()).insync)

    async def lose_power(self, node: str) -> None:
        """What is not flushed is gone; the machine comes up again."""
        host = "b1" if node == "n1" else f"b1-{node}"
        disk = self.cluster.disks[host].crash(keep_none)
        self.cluster.ensemble.crash(self.cluster.coordinators[host])
        self.flusher(node).release()
        await self.nodes[node].stop()
        self.cluster.disks[host] = disk
        await self.start(node)
        await until(lambda: self.nodes[node].epoch > 0)

    def flusher(self, node: str) -> HeldFlusher:
        return self.cluster.flushers["b1" if node == "n1" else f"b1-{node}"]

    def channel(self, node: str) -> Channel:
        return self.nodes[node].parts.partitions.channels["t", 0]

    def end(self, node: str) -> int:
        log = self.channel(node).log
        return 0 if log is None else log.end_offset

    async def connect(self, node: str) -> Client:
        return await Client.connect(self.cluster.network, self.nodes[node].address)

    async def put(self, count: int) -> int:
        """Return the end of the log when so many more messages are acknowledged."""
        for number in range(count):
            await self.client.put("t", 0, [message(b"%d" % number)])
        return self.end("n1")

    async def end_after_reading(self, node: str) -> int:
        """Return where the log of a node that has started ends."""
        client = await self.connect(node)
        latest = (await client.offsets("t", 0)).latest
        client.close()
        return int(latest)


@pytest.fixture
async def pair(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    made = Pair(cluster)
    await made.start("n1")
    await cluster.create_topic("t", partitions=1, flush=FlushMode.ASYNC, min_insync=2)
    await until(lambda: len(made.nodes["n1"].parts.partitions.channels) == 1)
    await made.start("n2")
    await made.in_sync("n1", "n2")
    made.client = await made.connect("n1")
    yield made
    made.client.close()


def put_out(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Have the master put out nodes that copy, as if they were slow; no more once that is empty."""
    is_well, slow = InSyncSet.is_well, [True]

    async def look(self, node, copying):
        return not slow and await is_well(self, node, copying)

    monkeypatch.setattr(InSyncSet, "is_well", look)
    return slow


async def test_the_last_node_in_sync_may_lose_power(pair: Pair) -> None:
    """All that was acknowledged while there were two of them is on its disk by then."""
    acknowledged = await pair.put(10)
    await pair.nodes["n2"].stop()
    await pair.in_sync("n1")
    with pytest.raises(NotEnoughInSync):
        await pair.put(1)
    await pair.lose_power("n1")
    assert await pair.end_after_reading("n1") == acknowledged


async def test_a_node_that_took_over_may_be_the_last_one_and_lose_power(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes durable what the last master had acknowledged and it had copied."""
    acknowledged = await pair.put(10)
    monkeypatch.setattr(BrokerNode, "hand_over_before_stop", _nothing)  # as after a kill
    await pair.nodes["n1"].stop()
    await pair.in_sync("n2")
    await pair.lose_power("n2")
    assert await pair.end_after_reading("n2") == acknowledged


async def test_a_node_leaves_after_the_flush(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged = await pair.put(10)
    pair.flusher("n1").held = True
    put_out(monkeypatch)
    await until(lambda: pair.nodes["n1"].parts.context.role.leaving == 1)
    await asyncio.sleep(2)
    assert await pair.named() == {"n1", "n2"}
    pair.flusher("n1").release()
    await pair.in_sync("n1")
    log = pair.channel("n1").log
    assert log is not None
    assert log.synced_offset >= acknowledged


@pytest.mark.parametrize("replication", Replication)
async def test_what_is_taken_while_a_node_leaves_counts_when_it_is_flushed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, replication: Replication
) -> None:
    """The record may not name the other node any more, which has it in its page cache.

    Also of a topic whose messages the master acknowledges alone.
    """
    async with pair.cluster.admin() as coordinator:
        settings = (await describe_topic(coordinator, "t")).settings
        await change_settings(coordinator, "t", replace(settings, replication=replication))
    await until(lambda: pair.channel("n1").settings.replication is replication)
    change, asked, goes_on = InSyncSet.change, asyncio.Event(), asyncio.Event()

    async def slow(self, epoch, decide, checks):
        asked.set()
        await goes_on.wait()
        return await change(self, epoch, decide, checks)

    await pair.put(1)
    monkeypatch.setattr(InSyncSet, "change", slow)
    put_out(monkeypatch)
    await asked.wait()
    pair.flusher("n1").held = True
    sent = pair.client.send_put("t", 0, [message(b"meanwhile")])
    await until(lambda: pair.end("n2") == pair.end("n1"))
    await asyncio.sleep(1)
    shown = pair.channel("n1").high_watermark
    assert not sent.done()
    assert shown < pair.end("n1")
    pair.flusher("n1").release()
    async with asyncio.timeout(2):  # not after the interval of flushes
        assert decode_reply(await sent).offset >= shown
    acknowledged = pair.end("n1")
    goes_on.set()
    await pair.in_sync("n1")
    await pair.lose_power("n1")
    assert await pair.end_after_reading("n1") == acknowledged


async def test_a_removal_of_unknown_outcome_is_carried_out(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node keeps up again; but the record may not name it, so its copy does not count alone."""
    change, slow = InSyncSet.change, put_out(monkeypatch)
    lost, goes_on = asyncio.Event(), asyncio.Event()

    async def unknown(self, epoch, decide, checks):
        if lost.is_set():
            await goes_on.wait()
            return await change(self, epoch, decide, checks)
        await change(self, epoch, decide, checks)
        slow.clear()
        lost.set()
        raise ConnectionLost("cut")

    monkeypatch.setattr(InSyncSet, "change", unknown)
    await lost.wait()
    assert await pair.named() == {"n1"}
    pair.flusher("n1").held = True
    sent = pair.client.send_put("t", 0, [message(b"meanwhile")])
    await until(lambda: pair.end("n2") == pair.end("n1") > 0)
    await asyncio.sleep(1)
    assert not sent.done()
    pair.flusher("n1").release()
    await sent
    goes_on.set()
    await pair.in_sync("n1", "n2")
    assert pair.nodes["n1"].parts.context.role.leaving == 0
    await pair.put(1)


async def test_a_master_that_stops_leaves_after_the_flush_of_the_next(pair: Pair) -> None:
    acknowledged = await pair.put(10)
    pair.flusher("n2").held = True
    await pair.nodes["n1"].stop()
    await until(lambda: pair.nodes["n2"].epoch == 2)
    await asyncio.sleep(2)
    assert await pair.named() == {"n1", "n2"}
    pair.flusher("n2").release()
    await pair.in_sync("n2")
    await pair.lose_power("n2")
    assert await pair.end_after_reading("n2") == acknowledged


async def test_a_log_that_failed_keeps_nobody_in_sync(pair: Pair) -> None:
    """It can be flushed no more; the other partitions of the group have to go on."""
    await pair.put(1)
    pair.channel("n1").fail(OSError("broken"))
    await pair.nodes["n2"].stop()
    await pair.in_sync("n1")


async def test_a_node_that_comes_back_while_a_flush_hangs_stays(pair: Pair) -> None:
    """Messages count again when they are in two page caches; the disk of the master may hang on."""
    await pair.put(10)
    pair.flusher("n1").held = True
    await pair.nodes["n2"].stop()
    role = pair.nodes["n1"].parts.context.role
    await until(lambda: role.leaving)
    waiting = pair.client.send_put("t", 0, [message(b"waits")])
    await asyncio.sleep(3 * FLUSH_WAIT_S)
    assert not waiting.done()
    assert await pair.named() == {"n1", "n2"}, "what it leaves behind is not durable yet"
    await pair.start("n2")
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))
    await until(lambda: not role.leaving)
    assert await pair.put(1) == pair.end("n2")
    assert await pair.named() == {"n1", "n2"}
    pair.flusher("n1").release()


async def test_a_node_leaves_when_a_flush_that_hung_has_ended(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says meanwhile what it waits for, once."""
    acknowledged = await pair.put(10)
    pair.flusher("n1").held = True
    await pair.nodes["n2"].stop()
    await until(lambda: pair.nodes["n1"].parts.context.role.leaving)
    await asyncio.sleep(5 * FLUSH_WAIT_S)
    pair.flusher("n1").release()
    await pair.in_sync("n1")
    assert caplog.text.count("stays until a flush here ends") == 1
    await pair.lose_power("n1")
    assert await pair.end_after_reading("n1") == acknowledged


async def test_a_topic_that_asks_for_one_node_has_no_flush(
    cluster: MemoryCluster,
) -> None:
    pair = Pair(cluster)
    await pair.start("n1")
    await cluster.create_topic("t", partitions=1, flush=FlushMode.ASYNC)
    await until(lambda: len(pair.nodes["n1"].parts.partitions.channels) == 1)
    await pair.start("n2")
    await pair.in_sync("n1", "n2")
    pair.client = await pair.connect("n1")
    await pair.put(1)
    pair.flusher("n1").held = True
    await pair.nodes["n2"].stop()
    await pair.in_sync("n1")
    await pair.put(1)
    pair.client.close()


async def _nothing(*_: object) -> None:
    pass


async def test_a_log_that_was_prepared_too_far_keeps_nobody_in_sync(cluster: MemoryCluster) -> None:
    """A move that came to nothing began it; the one that counts begins at an earlier offset."""
    old = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in old.parts.partitions.channels)
    new, copy = await cluster.start("b2"), await cluster.start("b2", "n2")
    clients = [await Client.connect(cluster.network, each.address) for each in (old, new)]
    for client in clients:
        await cluster.prove(client)
    await clients[0].put("t", 0, [message(b"first")])
    async with cluster.admin() as coordinator:
        view = await describe_topic(coordinator, "t")
        version = view.partition_versions[0]
        seal = wire.SealRequest(topic="t", partition=0, placement_version=version)
        sealed, _ = await clients[0].call(Command.SEAL, seal)
        for beyond in (1_000_000, 0):
            start = sealed.end_offset + beyond
            adopt = wire.AdoptRequest(
                topic="t",
                partition=0,
                topic_id=view.id,
                start_offset=start,
                producers=sealed.producers,
                placement_version=version,
            )
            await clients[1].call(Command.ADOPT, adopt)
            await asyncio.sleep(2 * TICK_S)
        placement = move(view.partitions[0], sealed.end_offset, "b2")
        await change_placement(coordinator, view, placement)
        channels = new.parts.partitions.channels
        await until(lambda: ("t", 0) in channels and channels["t", 0].takes_puts)
        await clients[1].put("t", 0, [message(b"goes on")])
        await until(lambda: new.parts.context.role.named == 2)
        await change_settings(coordinator, "t", replace(view.settings, min_insync=2))
    await until(lambda: channels["t", 0].settings.min_insync == 2)
    await copy.stop()
    await until(lambda: new.parts.context.role.named == 1)
    for client in clients:
        client.close()
