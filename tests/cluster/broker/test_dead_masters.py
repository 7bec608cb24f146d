"""A copy takes over when the machine of its master says that nobody listens there any more.

n1 is killed ──▶ n2 is refused twice ──▶ n1's registration goes ──▶ n2 leads, long before
                                                                    n1's session ends
n1 lives, and only seems dead ──▶ the same ──▶ n1 registers anew and copies; nothing is lost
"""

import asyncio
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, message
from support.node_pair import NodePair

from vq.broker.replication.following import WELL_S
from vq.coordination.brokers.leadership import Leadership
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.values.brokers import GroupState
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: Sessions in the cluster in memory last 4 s.
LONG_BEFORE_S = 2.0


@pytest.fixture
async def pair(cluster: MemoryCluster) -> NodePair:
    pair = NodePair(cluster)
    for name in ("n1", "n2"):
        pair.nodes[name] = await cluster.start(node=name)
        if name == "n1":
            await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in pair.nodes["n1"].parts.partitions.channels)
    await pair.put(5)
    await pair.in_sync()
    await until(pair.same)
    return pair


async def kill(pair: NodePair) -> None:
    cluster = pair.cluster
    await pair.nodes["n1"].parts.tasks.close()
    cluster.ensemble.crash(cluster.coordinators["b1"])
    cluster.network.kill("b1")
    del pair.nodes["n1"]


async def seem_dead(pair: NodePair) -> None:
    """Have the machine of n1 refuse n2 for a moment, while n1 lives."""
    master = pair.nodes["n1"]
    pair.cluster.network.refuse(master.address)
    pair.cluster.network.reset_connections("b1-n2")
    await asyncio.sleep(0.5)
    pair.cluster.network.accept(master.address)


@pytest.fixture
def slow_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have n1, which lives, be registered anew and claim its group before n2 does."""
    claim = Leadership.claim_mastership

    async def claims(self: Leadership, incarnation: int, view: Any) -> GroupState:
        if self.node == "n2":
            await asyncio.sleep(0.2)
        return await claim(self, incarnation, view)

    monkeypatch.setattr(Leadership, "claim_mastership", claims)


async def record(cluster: MemoryCluster) -> GroupState:
    async with cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
    assert state is not None
    return state


async def test_a_copy_takes_over_from_a_killed_master_at_once(pair: NodePair) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await kill(pair)
    await until(lambda: pair.nodes["n2"].epoch == 2)
    assert loop.time() - begin < LONG_BEFORE_S
    await pair.put(3)
    assert pair.log("n2").messages == 8


async def test_one_refusal_is_not_enough(pair: NodePair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started again with the same name and port is refused for a moment, too."""
    monkeypatch.setattr("vq.broker.replication.following.REFUSALS", 1 << 30)
    await kill(pair)
    await asyncio.sleep(LONG_BEFORE_S)
    assert pair.nodes["n2"].epoch == 0


@pytest.mark.usefixtures("slow_copy")
async def test_a_master_that_only_seems_dead_loses_nothing(pair: NodePair) -> None:
    """A firewall may refuse connections in its place. It registers anew and claims the group."""
    old = pair.nodes["n1"]
    client = await Client.connect(pair.cluster.network, old.address)
    pair.cluster.network.refuse(old.address)
    pair.cluster.network.reset_connections("b1-n2")
    await until(lambda: old.epoch == 2)
    await until(lambda: not old.parts.context.role.insync)
    for number in range(3):
        await client.put("t", 0, [message(b"%d" % number)])
    client.close()
    state = await record(pair.cluster)
    assert (state.master, state.insync, pair.log("n1").messages) == ("n1", ("n1",), 8)
    assert pair.nodes["n2"].epoch == 0


async def test_a_copy_that_takes_over_from_a_living_master_loses_nothing(pair: NodePair) -> None:
    """It is faster than one that registers anew; that one becomes its copy."""
    await seem_dead(pair)
    await until(lambda: pair.nodes["n2"].epoch == 2 and not pair.nodes["n1"].epoch)
    await pair.put(3)
    await pair.in_sync()
    await until(pair.same)
    state = await record(pair.cluster)
    assert (state.master, {*state.insync}, pair.log("n1").messages) == ("n2", {"n1", "n2"}, 8)


async def test_a_copy_that_is_not_in_sync_removes_nobody(pair: NodePair) -> None:
    """It could not lead; the master may only restart."""
    pair.nodes["n2"].parts.follower.suspend("for this test")
    await until(lambda: not pair.nodes["n1"].parts.context.role.insync)
    await pair.put(3)
    await kill(pair)
    pair.nodes["n2"].parts.follower.suspend("")
    await asyncio.sleep(30.0)
    state = await record(pair.cluster)
    assert (state.master, state.epoch, state.insync) == ("n1", 1, ("n1",))


async def test_what_was_seen_long_ago_removes_nobody(pair: NodePair) -> None:
    """A firewall on the machine of the copy begins anew: for a moment, all others refuse.

    The copy goes on copying, too, while ZooKeeper does not answer.
    """
    cluster = pair.cluster
    cluster.ensemble.disconnect(cluster.coordinators["b1-n2"])
    await seem_dead(pair)
    positions = pair.channel("n1").copies.positions
    await until(lambda: "n2" in positions, timeout_s=LONG_BEFORE_S)
    cluster.ensemble.reconnect(cluster.coordinators["b1-n2"])
    await asyncio.sleep(LONG_BEFORE_S)
    state = await record(cluster)
    assert (state.master, state.epoch, state.insync) == ("n1", 1, ("n1", "n2"))
    assert pair.nodes["n2"].epoch == 0


async def test_cuts_of_long_ago_delay_nothing(pair: NodePair) -> None:
    """A connection that lasted was well: its next failure is a first one."""
    for _ in range(8):
        pair.cluster.network.reset_connections("b1-n2")
        await asyncio.sleep(30.0)
    await pair.in_sync()
    begin = asyncio.get_running_loop().time()
    await kill(pair)
    await until(lambda: pair.nodes["n2"].epoch == 2)
    assert asyncio.get_running_loop().time() - begin < LONG_BEFORE_S


@pytest.mark.usefixtures("slow_copy")
async def test_failures_with_another_master_delay_nothing(pair: NodePair) -> None:
    await seem_dead(pair)
    await until(lambda: pair.nodes["n1"].epoch == 2)
    positions = pair.channel("n1").copies.positions
    await until(lambda: "n2" in positions)
    pair.cluster.network.reset_connections("b1-n2")
    await until(lambda: "n2" not in positions)
    await until(lambda: "n2" in positions, timeout_s=1.0)


@pytest.mark.usefixtures("slow_copy")
async def test_a_master_that_only_seems_dead_is_removed_once(pair: NodePair) -> None:
    """What refuses in its place may do so again and again; each time, sends would be unknown."""
    for _ in range(4):
        await seem_dead(pair)
        await asyncio.sleep(2 * WELL_S)
        await pair.in_sync()
    state = await record(pair.cluster)
    assert (state.master, state.epoch, state.insync) == ("n1", 2, ("n1", "n2"))
