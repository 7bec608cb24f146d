"""What waits for ZooKeeper goes on although each call takes long: take-over, switch, stop.

Bounds that are fixed end such a wait at the same place each time, however often it is tried.
"""

import asyncio
import logging

import pytest
from support.broker import Client, MemoryCluster, message
from support.node_pair import NodePair

from vq.blocking.producer import SEND_SYNC_S
from vq.coordination.tree.memory import MemoryEnsemble
from vq.errors import NotMaster
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.testing.waiting import until

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.parametrize("three", [0.4, 0.8], indirect=True, ids=["400 ms", "800 ms"]),
]


@pytest.fixture
async def three(cluster: MemoryCluster, request: pytest.FixtureRequest) -> NodePair:
    """A master n1, with n2 and n3 in sync, and a slow ZooKeeper: so long there and back."""
    three = NodePair(cluster)
    for name in ("n1", "n2", "n3"):
        await three.start(name)
        if name == "n1":
            await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in three.nodes["n1"].parts.partitions.channels)
    await three.put(3)
    await until(lambda: three.nodes["n1"].parts.context.role.named == 3)
    cluster.ensemble.delay = lambda: request.param / 2
    await asyncio.sleep(3.0)  # heartbeats measure it
    return three


def round_trip_s(three: NodePair) -> float:
    return 2 * three.cluster.ensemble.delay()


async def test_a_copy_takes_over_from_a_killed_master(
    three: NodePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session does not end by itself here: a copy that is refused twice removes it."""
    monkeypatch.setattr(MemoryEnsemble, "age", lambda *_: None)
    cluster, loop = three.cluster, asyncio.get_running_loop()
    begin = loop.time()
    await three.nodes.pop("n1").parts.tasks.close()
    cluster.ensemble.crash(cluster.coordinators["b1"])
    cluster.network.kill("b1")
    await until(lambda: any(each.epoch == 2 for each in three.nodes.values()), timeout_s=10.0)
    # Read, remove, tell, read, claim.
    assert loop.time() - begin < 1.0 + 5 * round_trip_s(three)
    await three.put(1)


async def test_a_switch_succeeds_and_sends_are_held_for_less_than_their_deadline(
    three: NodePair, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, loop = three.cluster, asyncio.get_running_loop()
    asker = await Client.connect(cluster.network, three.nodes["n1"].address)
    await cluster.prove(asker)
    client = await Client.connect(cluster.network, three.nodes["n1"].address)
    handing = asyncio.ensure_future(asker.call(Command.HAND_OVER, wire.HandOverRequest(node="n2")))
    await until(lambda: three.nodes["n1"].parts.gate.holds)
    begin = loop.time()
    with pytest.raises(NotMaster) as caught:
        await client.put("t", 0, [message(b"held")])
    held_s = loop.time() - begin
    answer, _ = await handing
    assert answer.node == "n2"
    assert caught.value.details["port"] == three.nodes["n2"].address.port
    assert held_s < 0.1 + 4 * round_trip_s(three)  # offer, tell, read, claim, tell, read
    if round_trip_s(three) <= 0.5:
        assert held_s < SEND_SYNC_S - 0.5
    for each in (asker, client):
        each.close()
    await three.put(1)
    await asyncio.sleep(5.0)
    assert three.log("n2").messages == 4
    assert "not in sync any more" not in caplog.text


async def test_a_stop_hands_over(three: NodePair, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await three.stop("n1")
    assert "without a successor" not in caplog.text
    assert three.leader() in {"n2", "n3"}
    state = await three.cluster.group_state()
    assert (state.epoch, {*state.insync}) == (2, {"n2", "n3"})
    await three.put(1)
