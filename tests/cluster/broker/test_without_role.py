"""A node that does not know yet whether it leads tells nobody what its logs end with.

It listens before it is registered. What another node in sync lacks may never be committed: whoever
read it here would have a message that nobody else ever gets.
"""

import asyncio
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, message
from support.cases import case
from support.node_pair import NodePair

from vq.broker.replication.mastership import Mastership
from vq.broker.standing.node_state import NodeState
from vq.errors import InvalidState, NotMaster
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.reserved import SHARED_TOPIC, TRANSACTIONS_TOPIC
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: What is asked of a partition without a word of its master.
ASKED: dict[str, tuple[Command, Any]] = {
    "GET": (Command.GET, wire.GetRequest(topic="t", max_bytes=1_000)),
    "GET of a copy": (Command.GET, wire.GetRequest(topic="t", max_bytes=1_000, from_copy=True)),
    "OFFSETS": (Command.OFFSETS, wire.OffsetsRequest(topic="t")),
    "FIND": (Command.FIND, wire.FindRequest(topic="t", message_id=1)),
    "TRANSACTIONS": (Command.TRANSACTIONS, wire.TransactionsRequest(topic=TRANSACTIONS_TOPIC)),
    "SHARED": (Command.SHARED, wire.SharedRequest(topic=SHARED_TOPIC, group="g")),
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """While it is not set, no node that starts takes an epoch."""
    go = asyncio.Event()
    go.set()
    take_first = Mastership.take_first

    async def takes_later(self: Mastership) -> None:
        await go.wait()
        await take_first(self)

    monkeypatch.setattr(Mastership, "take_first", takes_later)
    return go


async def kill(pair: NodePair, name: str, host: str) -> None:
    await pair.nodes.pop(name).parts.tasks.close()
    pair.cluster.ensemble.crash(pair.cluster.coordinators[host])
    pair.cluster.network.kill(host)
    pair.cluster.disks[host].release_locks()


async def test_nobody_reads_what_another_node_in_sync_may_lack(
    node_pair: NodePair, held: asyncio.Event
) -> None:
    cluster = node_pair.cluster
    for topic in (SHARED_TOPIC, TRANSACTIONS_TOPIC):
        await cluster.create_topic(topic)
    committed = node_pair.channel("n1").high_watermark
    client = await Client.connect(cluster.network, node_pair.nodes["n1"].address)
    await kill(node_pair, "n2", "b1-n2")
    sent = client.send_put("t", 0, [message(b"stored here alone")])
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())
    log = node_pair.log("n1")
    await until(lambda: log.synced_offset > committed)
    await kill(node_pair, "n1", "b1")
    held.clear()
    starting = asyncio.ensure_future(node_pair.start("n1"))
    await until(lambda: is_claimed(cluster))
    node = cluster.nodes["b1"]
    client = await Client.connect(cluster.network, node.address)
    for what, (command, header) in ASKED.items():
        with case(what), pytest.raises(NotMaster):
            await client.call(command, header)
    assert not starting.done()
    held.set()
    await starting
    assert (await client.get("t", 0, 0))[0].high_watermark <= committed


async def test_a_node_that_is_alone_in_sync_is_read_before_it_leads(
    cluster: MemoryCluster, held: asyncio.Event
) -> None:
    """Also while a full disk keeps it from leading."""
    node = await cluster.start()
    await cluster.create_topic("t")
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x")])
    await cluster.nodes.pop("b1").stop()
    held.clear()
    starting = asyncio.ensure_future(cluster.start())
    await until(lambda: is_claimed(cluster))
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    header, body = await client.get("t", 0, 0)
    assert header.high_watermark > 0
    assert body
    held.set()
    await starting


def is_claimed(cluster: MemoryCluster) -> bool:
    """Whether the record names the node that starts, which has no epoch yet."""
    node = cluster.nodes.get("b1")
    try:
        role = node.parts.context.role if node is not None else None
    except InvalidState:
        return False
    return role is not None and role.state is NodeState.CLAIMS and not role.epoch
