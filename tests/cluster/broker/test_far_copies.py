"""Copies at the other end of a slow link: comparing logs is no lag, and who keeps up may join."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.broker import Client, MemoryCluster, message
from support.node_pair import NodePair

from vq.broker.node import BrokerNode
from vq.broker.replication.insync_set import InSyncSet
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that were to leave an in-sync set."""
    leave, noted = InSyncSet.leave, list[str]()

    async def leaves(self: InSyncSet, epoch: int, node: str) -> None:
        noted.append(node)
        await leave(self, epoch, node)

    monkeypatch.setattr(InSyncSet, "leave", leaves)
    return noted


@pytest.fixture
async def cluster(cluster: MemoryCluster) -> AsyncIterator[MemoryCluster]:
    yield cluster
    cluster.network.latency_s = 0.0


async def with_partitions(cluster: MemoryCluster, count: int) -> NodePair:
    """Return two nodes in sync with so many partitions, and a message in each."""
    pair = NodePair(cluster)
    await pair.start("n1")
    await cluster.create_topic("t", partitions=count)
    channels = pair.nodes["n1"].parts.partitions.channels
    await until(lambda: len(channels) == count)
    client = await Client.connect(cluster.network, pair.nodes["n1"].address)
    await asyncio.gather(*(client.put("t", each, [message(b"x")]) for each in range(count)))
    client.close()
    await pair.start("n2")
    await pair.in_sync()
    return pair


async def switch(pair: NodePair) -> BrokerNode:
    """Have the other node lead; return it."""
    master = pair.nodes[pair.leader()]
    client = await pair.cluster.prove(await Client.connect(pair.cluster.network, master.address))
    answer, _ = await client.call(Command.HAND_OVER, wire.HandOverRequest())
    client.close()
    heir = pair.nodes[answer.node]
    await until(lambda: heir.epoch)
    return heir


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [None, 8])
async def test_a_switch_puts_nobody_out_whose_logs_are_compared(
    cluster: MemoryCluster, left: list[str], monkeypatch: pytest.MonkeyPatch, at_once: int | None
) -> None:
    """The old master asks for each partition where both logs part: 400 times 100 ms."""
    if at_once is not None:  # it takes far longer than a node in sync may be behind
        monkeypatch.setattr("vq.broker.replication.following.COMPARED_AT_ONCE", at_once)
    pair = await with_partitions(cluster, 400)
    cluster.network.latency_s = 0.05
    loop = asyncio.get_running_loop()
    heir = await switch(pair)
    begun = loop.time()
    channels = heir.parts.partitions.channels.values()
    await until(lambda: all("n1" in each.copies.positions for each in channels))
    assert (loop.time() - begun > 3.0) == (at_once is not None)
    await asyncio.sleep(1.0)
    assert not left
    assert heir.parts.context.role.named == 2


async def test_a_node_that_gets_no_further_leaves_though_it_compares(
    cluster: MemoryCluster, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await with_partitions(cluster, 20)
    old = pair.nodes["n1"]

    async def hangs(*_: object) -> None:
        await asyncio.sleep(3_600.0)

    monkeypatch.setattr(type(old.parts.partitions.logs), "settle", hangs)
    heir = await switch(pair)
    await until(lambda: left == ["n1"])
    await until(lambda: heir.parts.context.role.named == 1)
    monkeypatch.undo()


@pytest.mark.parametrize("round_trip_s", [0.1, 0.26, 0.8])
async def test_a_copy_at_the_end_of_a_long_link_joins_under_steady_load(
    cluster: MemoryCluster, left: list[str], round_trip_s: float
) -> None:
    pair = NodePair(cluster)
    await pair.start("n1")
    await cluster.create_topic("t", partitions=4)
    await until(lambda: len(pair.nodes["n1"].parts.partitions.channels) == 4)
    client = await Client.connect(cluster.network, pair.nodes["n1"].address)
    cluster.network.latency_s = round_trip_s / 2
    loop, took, waiting = asyncio.get_running_loop(), list[float](), set[asyncio.Task[None]]()

    async def put(number: int) -> None:
        begun = loop.time()
        decode_reply(await client.send_put("t", number % 4, [message(b"x")]))
        took.append(loop.time() - begun)

    async def load() -> None:
        number = 0
        while True:
            waiting.add(task := asyncio.create_task(put(number := number + 1)))
            task.add_done_callback(waiting.discard)
            await asyncio.sleep(0.01)

    sends = asyncio.create_task(load())
    try:
        await pair.start("n2")
        await pair.in_sync()
        await asyncio.sleep(10.0)
    finally:
        sends.cancel()
    await asyncio.gather(*waiting)
    client.close()
    assert not left
    assert pair.nodes["n1"].parts.context.role.named == 2
    assert max(took) < 3 * round_trip_s + 0.5, "of a send: there, to the copy and back"
