"""ZooKeeper is away, for all or for the master alone: what a group with copies does meanwhile.

Topic ``safe`` is acknowledged by all nodes in sync, ``fast`` by the master alone.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.replication.insync_set import LAG_MAX_S, InSyncSet
from vq.coordination.brokers.leadership import Following
from vq.coordination.tree.coordinator import SessionState
from vq.errors import ConnectionCut, NotMaster, OutcomeUnknown
from vq.remoting.messages import decode_reply
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

SESSION_S = 4.0  # of ``MemoryCluster``
AWAY_S = 300.0


@dataclass
class Pair:
    """A master and a node in sync, and a connection to the master."""

    cluster: MemoryCluster
    master: BrokerNode
    copy: BrokerNode
    client: Client

    def channel(self, node: BrokerNode, topic: str = "safe") -> Channel:
        return node.parts.partitions.channels[topic, 0]

    async def put(self, topic: str = "safe", text: bytes = b"x", **fields: Any) -> Any:
        return await self.client.put(topic, 0, [message(text)], **fields)

    def hold(self) -> None:
        """Have the copy flush nothing, so that it confirms nothing new."""
        self.cluster.flushers["b1-n2"].held = True

    def release(self) -> None:
        self.cluster.flushers["b1-n2"].release()

    async def lose_zookeeper(self) -> None:
        """ZooKeeper goes away; return when the lease of the master is over."""
        self.cluster.ensemble.stop()
        await asyncio.sleep(SESSION_S)
        assert self.cluster.coordinators["b1"].state is SessionState.SUSPENDED
        assert not self.master.parts.context.role.holds()


@pytest.fixture
async def pair(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    master = await cluster.start()
    await cluster.create_topic("safe")
    await cluster.create_topic("fast", replication="async")
    await until(lambda: len(master.parts.partitions.channels) == 2)
    copy = await cluster.start(node="n2")
    pair = Pair(cluster, master, copy, await Client.connect(cluster.network, master.address))
    await pair.put("safe")
    await pair.put("fast")
    await until(lambda: master.parts.context.role.named == 2)
    yield pair
    pair.release()
    pair.client.close()


# ZooKeeper is away for all ----------------------------------------------------------------------
async def test_what_the_copies_confirm_is_acknowledged_however_long_zookeeper_is_away(pair):
    """And shown to readers. Afterwards the same node leads in the same epoch."""
    await pair.lose_zookeeper()
    for _ in range(10):
        answer = await pair.put()
        await asyncio.sleep(AWAY_S / 10)
    assert answer.epoch == 1
    log = pair.channel(pair.copy).log
    assert log.synced_offset == pair.channel(pair.master).log.end_offset
    found, body = await pair.client.get("safe", 0, 0)
    assert len(body) == found.high_watermark > answer.offset
    assert (await pair.client.status()).master
    assert (await pair.client.offsets("safe", 0)).latest == found.high_watermark
    pair.cluster.ensemble.start()
    await until(lambda: pair.master.parts.context.role.holds())
    await pair.put()


async def test_what_the_master_acknowledges_alone_needs_its_lease(pair):
    """Another node could be elected without it."""
    await pair.lose_zookeeper()
    with pytest.raises(NotMaster, match=r"not answered group b1 .* replication = sync"):
        await pair.put("fast")
    pair.cluster.ensemble.start()
    await until(lambda: pair.master.parts.context.role.holds())
    await pair.put("fast")


async def test_without_a_node_in_sync_nothing_is_taken_and_nothing_waits(pair):
    """It cannot be put out of the set. What waits for it has no outcome; the rest is refused."""
    await pair.lose_zookeeper()
    pair.hold()
    waiting = pair.client.send_put("safe", 0, [message(b"y")], producer_id=7)
    await asyncio.sleep(LAG_MAX_S / 2)
    assert not waiting.done()
    await asyncio.sleep(LAG_MAX_S)
    with pytest.raises(OutcomeUnknown, match="not all nodes in sync"):
        decode_reply(await waiting)
    with pytest.raises(NotMaster, match=r"all nodes in sync \(n2\)"):
        await pair.put(text=b"z")
    assert not (await pair.client.status()).master
    pair.release()
    await until(lambda: not pair.master.parts.context.role.silent)
    assert (await pair.put(text=b"y", producer_id=7)).duplicate
    await pair.put(text=b"z")


async def test_a_copy_connects_to_its_master_again(pair):
    """Neither of both needs ZooKeeper for it."""
    await pair.lose_zookeeper()
    (session,) = [each for each in pair.master.parts.server.sessions if each.principal.proved]
    session.end(ConnectionCut("a network has a moment's trouble"))
    assert not pair.channel(pair.master).copies.positions
    await asyncio.sleep(LAG_MAX_S)
    await pair.put()
    await asyncio.sleep(AWAY_S)
    await pair.put()


async def test_nobody_waits_for_a_node_that_cannot_join_now(pair, monkeypatch):
    """It is nearly there when ZooKeeper goes; nobody can name it, so it does not count."""
    monkeypatch.setattr(InSyncSet, "ready", lambda *_: None)
    await pair.cluster.start(node="n3")
    role = pair.master.parts.context.role
    await until(lambda: "n3" in role.insync)
    pair.cluster.ensemble.stop()
    pair.cluster.flushers["b1-n3"].held = True
    await pair.put()
    assert role.insync == {"n2"}


# The master alone does not reach ZooKeeper --------------------------------------------------------
async def test_a_master_that_zookeeper_gave_up_hears_it_from_its_copy(pair):
    """Its session has ended there, and it cannot know. What it has no answer to is unknown."""
    copy = pair.channel(pair.copy)
    pair.cluster.ensemble.disconnect(pair.cluster.coordinators["b1"])
    while not pair.copy.epoch:
        acknowledged = await pair.put()
        await asyncio.sleep(0.05)
    assert copy.log.end_offset > acknowledged.offset
    assert pair.copy.epoch == 2
    await until(lambda: pair.master.parts.context.role.refusal)
    for topic in ("safe", "fast"):
        with pytest.raises(NotMaster, match="epoch 2, as node n2 says"):
            await pair.put(topic)
    assert not (await pair.client.status()).master
    pair.cluster.ensemble.reconnect(pair.cluster.coordinators["b1"])
    await until(lambda: pair.master.parts.context.role.follows == "n2")
    await until(lambda: pair.copy.parts.context.role.named == 2)


async def test_a_master_that_does_not_hear_it_acknowledges_nothing_either(pair, monkeypatch):
    """Nobody in sync confirms anything of an epoch that is over."""
    monkeypatch.setattr(pair.master.parts.mastership, "hear", lambda *_: False)
    pair.cluster.ensemble.disconnect(pair.cluster.coordinators["b1"])
    while not pair.copy.epoch:
        await asyncio.sleep(0.05)
    shown = pair.channel(pair.master).high_watermark
    waiting = pair.client.send_put("safe", 0, [message(b"y")])
    await asyncio.sleep(2 * LAG_MAX_S)
    with pytest.raises(OutcomeUnknown):
        decode_reply(await waiting)
    with pytest.raises(NotMaster):
        await pair.put()
    assert pair.channel(pair.master).high_watermark == shown


async def test_a_copy_that_has_registered_anew_confirms(pair):
    """The master knows nothing of its registration, but what it says of its epoch."""
    pair.cluster.ensemble.disconnect(pair.cluster.coordinators["b1"])
    pair.cluster.ensemble.expire(pair.cluster.coordinators["b1-n2"])
    before = pair.channel(pair.master).copies.positions["n2"].incarnation

    def again() -> bool:
        known = pair.channel(pair.master).copies.positions.get("n2")
        return known is not None and known.incarnation != before

    await until(again)
    await pair.put()


async def test_a_copy_takes_nothing_of_an_epoch_that_is_over(pair):
    """Its own file says so, whatever somebody tells it."""
    acting = pair.copy.parts.mastership.acting
    assert isinstance(acting, Following)
    pair.copy.parts.epoch_file.accept(2)
    old = replace(acting, incarnation=acting.incarnation + 1)
    pair.copy.parts.mastership.stands(old)
    await asyncio.sleep(3)
    assert pair.copy.parts.mastership.acting == acting
    assert "followed or acted in 2" in pair.copy.parts.context.role.problem
