"""Sends go on when a copy is lost, within the shortest deadline that a client has by default.

a copy is killed ──▶ its machine says twice that nobody listens there ──▶ it leaves at once
a copy is silent ──▶ it leaves after ``LAG_MAX_S`` ──────────────────────▶ a margin is left
"""

import asyncio

import pytest
from support.broker import Client, MemoryCluster, message
from support.node_pair import NodePair

from vq.blocking.producer import SEND_SYNC_S
from vq.broker.base.config import ConnectionLimits
from vq.broker.node import BrokerNode
from vq.broker.replication.catching_up import LAG_MAX_S
from vq.broker.replication.insync_set import InSyncSet
from vq.limits import MIB
from vq.testing.loop import VirtualLoop
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: Of a call to ZooKeeper and back.
ZOOKEEPER_S = 0.06
#: What the wait for a silent node leaves of a deadline: for flushes, and a machine that is busy.
MARGIN_S = 0.5
#: Far less than the wait for a silent node.
AT_ONCE_S = 1.0


@pytest.fixture
async def three(cluster: MemoryCluster) -> NodePair:
    """A master n1, with n2 and n3 in sync, and a slow ZooKeeper."""
    three = NodePair(cluster)
    for name in ("n1", "n2", "n3"):
        await three.start(name)
        if name == "n1":
            await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in three.nodes["n1"].parts.partitions.channels)
    await three.put(3)
    await until(lambda: three.nodes["n1"].parts.context.role.named == 3)
    cluster.ensemble.delay = lambda: ZOOKEEPER_S / 2
    return three


async def kill(three: NodePair, name: str) -> None:
    """Kill the process of a node: its machine lives, and answers for it."""
    await kill_in(three.cluster, f"b1-{name}", three.nodes.pop(name))


async def kill_in(cluster: MemoryCluster, key: str, node: BrokerNode) -> None:
    """Kill the process of a node of a cluster."""
    await node.parts.tasks.close()
    cluster.ensemble.crash(cluster.coordinators[key])
    cluster.network.kill(key)


async def longest_send(three: NodePair) -> float:
    """Return what the slowest of some sends took, one after the other."""
    loop, longest = asyncio.get_running_loop(), 0.0
    client = await Client.connect(three.cluster.network, three.nodes["n1"].address)
    for number in range(40):
        begun = loop.time()
        await client.put("t", 0, [message(b"%d" % number)])
        longest = max(longest, loop.time() - begun)
        await asyncio.sleep(0.05)
    client.close()
    return longest


async def test_a_killed_copy_stalls_sends_for_a_moment(three: NodePair) -> None:
    await kill(three, "n3")
    assert await longest_send(three) < AT_ONCE_S
    assert three.nodes["n1"].parts.context.role.insync == {"n2"}


async def test_a_silent_copy_stalls_sends_for_less_than_the_default_deadline(
    three: NodePair,
) -> None:
    """Its machine has no power: nobody answers, and its session lasts longer than any send."""
    three.cluster.ensemble.freeze(three.cluster.coordinators["b1-n3"])
    three.cluster.network.cut("b1-n3", "b1")
    assert await longest_send(three) < SEND_SYNC_S - MARGIN_S
    assert three.nodes["n1"].parts.context.role.insync == {"n2"}


async def test_a_silent_copy_without_a_session_leaves_sooner(three: NodePair) -> None:
    three.cluster.network.cut("b1-n3", "b1")
    three.cluster.ensemble.crash(three.cluster.coordinators["b1-n3"])
    three.cluster.ensemble.end_session(three.cluster.coordinators["b1-n3"].session_id)
    assert await longest_send(three) < LAG_MAX_S


@pytest.mark.parametrize(("breaks", "each_s"), [(3, 2.0), (8, 0.5)])
async def test_a_copy_whose_connection_broke_stays(
    three: NodePair, breaks: int, each_s: float
) -> None:
    """It listens, so it lives; it copies again in a moment, also if it breaks often."""
    insync, left = three.nodes["n1"].parts.context.role, list[str]()
    leave = InSyncSet.leave

    async def leaves(self: InSyncSet, epoch: int, node: str) -> None:
        left.append(node)
        await leave(self, epoch, node)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InSyncSet, "leave", leaves)
        for _ in range(breaks):
            three.cluster.network.reset_connections("b1-n3")
            await three.put(3)
            await asyncio.sleep(each_s)
    assert not left
    assert insync.insync == {"n2", "n3"}


async def test_a_master_that_stood_still_takes_no_copy_for_silent(three: NodePair) -> None:
    """Its loop was late: what the copies sent meanwhile is not read yet."""
    role = three.nodes["n1"].parts.context.role
    client = await Client.connect(three.cluster.network, three.nodes["n1"].address)
    three.cluster.network.cut("b1-n2", "b1")  # nothing of it is read …
    sent = client.send_put("t", 0, [message(b"x")])
    await asyncio.sleep(0.3)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.stand_still(2 * LAG_MAX_S)  # … while the master stands still
    three.cluster.network.heal()
    await sent
    client.close()
    assert role.insync == {"n2", "n3"}


@pytest.mark.parametrize("min_insync", [1, 2])
async def test_a_burst_of_sends_keeps_no_copy_from_confirming_them(
    cluster: MemoryCluster, min_insync: int
) -> None:
    """What waits for the copies fills the bytes of sends. The copies are not read any more then."""
    limits = ConnectionLimits(put_bytes_waiting_max=8 * MIB)
    master = await cluster.start(connections=limits)
    await cluster.create_topic("t", partitions=4, min_insync=min_insync)
    await until(lambda: len(master.parts.partitions.channels) == 4)
    await cluster.start(node="n2", connections=limits)
    if min_insync == 1:
        first = await Client.connect(cluster.network, master.address)
        await first.put("t", 0, [message(b"first")])
    await until(lambda: master.parts.context.role.named == 2)
    clients = [await Client.connect(cluster.network, master.address) for _ in range(24)]
    sent = [
        each.send_put("t", number % 4, [message(b"x" * 1_000_000)])
        for number, each in enumerate(clients)
    ]
    done, _ = await asyncio.wait(sent, timeout=60.0)
    for each in clients:
        each.close()
    await asyncio.sleep(600.0)  # all producers have gone
    for future in sent:
        assert future.done()
        future.exception()
    assert (len(done), master.parts.context.role.named, master.parts.server.put_bytes) == (24, 2, 0)


async def test_many_sends_keep_no_copy_from_confirming_them(cluster: MemoryCluster) -> None:
    """Nor do requests, of which one piece holds many, and a copy that comes again proves itself."""
    limits = ConnectionLimits(requests_waiting_max=64)
    master = await cluster.start(connections=limits)
    await cluster.create_topic("t", min_insync=2)
    await until(lambda: len(master.parts.partitions.channels) == 1)
    await cluster.start(node="n2", connections=limits)
    await until(lambda: master.parts.context.role.named == 2)
    clients = [await Client.connect(cluster.network, master.address) for _ in range(12)]
    sent = [each.send_put("t", 0, [message(b"x", n)]) for each in clients for n in range(20)]
    cluster.network.reset_connections("b1-n2")
    done, _ = await asyncio.wait(sent, timeout=60.0)
    assert (len(done), master.parts.context.role.named) == (len(sent), 2)


async def test_sends_whose_clients_have_gone_use_no_room(cluster: MemoryCluster) -> None:
    """They wait for a copy that is gone, too. Those of other topics are taken."""
    limits = ConnectionLimits(put_bytes_waiting_max=8 * MIB)
    master = await cluster.start(connections=limits)
    await cluster.create_topic("t", min_insync=2)
    await cluster.create_topic("alone", min_insync=1)
    await until(lambda: len(master.parts.partitions.channels) == 2)
    copy = await cluster.start(node="n2", connections=limits)
    await until(lambda: master.parts.context.role.named == 2)
    await kill_in(cluster, "b1-n2", copy)
    clients = [await Client.connect(cluster.network, master.address) for _ in range(12)]
    for each in clients:
        each.send_put("t", 0, [message(b"x" * 1_000_000)])
    await until(lambda: bool(master.parts.server.held.addresses))
    for each in clients:
        each.close()
    await until(lambda: master.parts.context.role.named == 1)
    await until(lambda: master.parts.server.put_bytes == 0)
    client = await Client.connect(cluster.network, master.address)
    for _ in range(2):
        await client.put("alone", 0, [message(b"y" * 1_000_000)])
    client.close()
