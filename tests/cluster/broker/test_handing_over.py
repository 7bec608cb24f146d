"""A master hands over to a node in sync: no send fails, nothing is lost, nothing is there twice."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.replication.handing_over import HandOver
from vq.broker.replication.insync_set import InSyncSet
from vq.coordination.brokers.insync import MastershipRefused
from vq.coordination.brokers.leadership import Leadership
from vq.coordination.brokers.registry import change_group
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import HandOverFailed, NotMaster, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@dataclass
class Group:
    """Nodes n1, which leads, and n2; topic ``t`` with two partitions; a client of n1."""

    cluster: MemoryCluster
    nodes: dict[str, BrokerNode] = field(default_factory=dict)
    client: Any = None

    def channel(self, node: str, partition: int = 0) -> Any:
        return self.nodes[node].parts.partitions.channels["t", partition]

    def bytes_of(self, node: str, partition: int = 0) -> bytes:
        log = self.channel(node, partition).log
        return bytes(log.reader.read(log.start_offset, 1 << 23, log.end_offset))

    async def connect(self, node: str) -> Client:
        client = await Client.connect(self.cluster.network, self.nodes[node].address)
        return await self.cluster.prove(client)

    async def hand_over(self, to: str = "", *, client: Client | None = None) -> str:
        request = wire.HandOverRequest(node=to)
        answer, _ = await (client or self.client).call(Command.HAND_OVER, request)
        return str(answer.node)

    def no_claim(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Have n2 claim nothing until the list is cleared; the list has what it did not do."""
        claim, refused = Leadership.claim_mastership, ["held"]

        async def claims(self: Leadership, incarnation: int, _view: object) -> GroupState:
            while refused and self.node == "n2":
                await asyncio.sleep(0.01)
            return await claim(self, incarnation)

        monkeypatch.setattr(Leadership, "claim_mastership", claims)
        return refused


@pytest.fixture
async def group(cluster: MemoryCluster) -> AsyncIterator[Group]:
    made = Group(cluster)
    made.nodes["n1"] = await cluster.start(hand_over_timeout_s=0.5)
    await cluster.create_topic("t", partitions=2)
    await until(lambda: len(made.nodes["n1"].parts.partitions.channels) == 2)
    made.nodes["n2"] = await cluster.start(node="n2")
    made.client = await made.connect("n1")
    await made.client.put("t", 0, [message(b"first")])
    await made.cluster.until_in_sync("n1", "n2")
    yield made
    made.client.close()


async def test_the_other_node_leads_and_the_old_master_follows_it(group: Group) -> None:
    assert await group.hand_over() == "n2"
    state = await group.cluster.group_state()
    assert (state.master, state.epoch, state.successor) == ("n2", 2, "")
    assert set(state.insync) == {"n1", "n2"}
    client = await group.connect("n2")
    await until(lambda: group.nodes["n2"].epoch == 2)
    assert (await client.put("t", 0, [message(b"second")])).epoch == 2
    await until(lambda: group.bytes_of("n1") == group.bytes_of("n2"))
    assert await group.hand_over("n1", client=client) == "n1"


async def test_sends_are_held_meanwhile_and_told_where_the_new_master_is(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was taken before is acknowledged; none has an unknown outcome."""
    group.cluster.flushers["b1-n2"].held = True
    before = group.client.send_put("t", 0, [message(b"before")])
    await until(lambda: group.channel("n1").acks.waiting)
    other = await group.connect("n1")
    handing = asyncio.ensure_future(group.hand_over(client=other))
    await until(lambda: group.nodes["n1"].parts.gate.holds)
    held = group.client.send_put("t", 0, [message(b"held")])
    await asyncio.sleep(0.02)
    assert not before.done()
    assert not held.done()
    group.cluster.flushers["b1-n2"].release()
    assert decode_reply(await before).epoch == 1
    assert await handing == "n2"
    with pytest.raises(NotMaster) as caught:
        decode_reply(await asyncio.wait_for(held, WAIT_S))
    assert caught.value.details["port"] == group.nodes["n2"].address.port
    assert caught.value.details["epoch"] == 2
    assert b"held" not in group.bytes_of("n1")


async def test_a_send_that_knows_of_the_new_epoch_first_waits_for_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client was told by ZooKeeper before the new master was."""
    held = group.no_claim(monkeypatch)
    client = await group.connect("n2")
    early = client.send_put("t", 0, [message(b"early")], epoch=2)
    handing = asyncio.ensure_future(group.hand_over())
    await asyncio.sleep(0.02)
    assert not early.done()
    held.clear()
    assert await handing == "n2"
    assert decode_reply(await asyncio.wait_for(early, WAIT_S)).epoch == 2
    with pytest.raises(NotMaster):
        await group.client.put("t", 0, [message(b"late")], epoch=1)
    group.client.close()


async def test_a_send_that_waits_in_vain_for_an_epoch_is_refused(group: Group) -> None:
    client = await group.connect("n2")
    with pytest.raises(NotMaster, match="led by node n1"):
        await client.put("t", 0, [message(b"x")], epoch=9)


@pytest.mark.parametrize("how", ["switch", "drain", "stop"])
async def test_a_topic_with_too_few_nodes_in_sync_hinders_no_hand_over(
    group: Group, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What it took before waits until there are enough: here, in vain. Other topics go on."""
    cluster, n1 = group.cluster, group.nodes["n1"]
    group.nodes["n3"] = await cluster.start(node="n3")
    await cluster.create_topic("all", partitions=1, min_insync=3)
    await until(lambda: n1.parts.context.role.named == 3 and len(n1.parts.partitions.channels) == 3)
    cluster.flushers["b1-n3"].held = True
    waits = group.client.send_put("all", 0, [message(b"x")])
    await until(lambda: n1.parts.context.role.named == 2)
    assert not waits.done()
    other = await group.connect("n1")
    if how == "switch":
        assert await group.hand_over("n2", client=other) == "n2"
    elif how == "drain":
        async with cluster.admin() as coordinator:
            await change_group(coordinator, "b1", lambda value: replace(value, drained=("n1",)))
    else:
        await group.nodes.pop("n1").stop()
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=2.0)
    client = await group.connect("n2")
    await client.put("t", 0, [message(b"second")])
    with pytest.raises(VqError):  # of unknown outcome: it is sent again
        decode_reply(await waits)
    cluster.flushers["b1-n3"].release()


async def test_a_drained_master_whose_heir_does_not_come_holds_sends_seldom(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = group.no_claim(monkeypatch)
    n1, loop, held_s = group.nodes["n1"], asyncio.get_running_loop(), 0.0
    async with group.cluster.admin() as coordinator:
        await change_group(coordinator, "b1", lambda value: replace(value, drained=("n1",)))
        begun = loop.time()
        while loop.time() - begun < 120.0:
            await asyncio.sleep(0.05)
            held_s += 0.05 * n1.parts.gate.holds
        assert 0.0 < held_s < 0.05 * 120.0
        assert n1.epoch == 1
        refused.clear()
        # An operator who drains it again need not wait.
        await change_group(coordinator, "b1", lambda value: replace(value, drained=()))
        await change_group(coordinator, "b1", lambda value: replace(value, drained=("n1",)))
    await until(lambda: group.nodes["n2"].epoch == 2, timeout_s=3.0)


async def test_a_master_that_claims_its_group_anew_meanwhile_has_not_handed_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ended, and it was faster than the successor."""
    refused = group.no_claim(monkeypatch)
    n1 = group.nodes["n1"]
    handing = asyncio.ensure_future(n1.parts.hand_over.run())
    await until(lambda: n1.parts.gate.holds)
    group.cluster.ensemble.expire(group.cluster.coordinators["b1"])
    with pytest.raises(HandOverFailed, match="leads group b1 in epoch 2"):
        await handing
    assert (await group.cluster.group_state()).master == "n1"
    refused.clear()


async def test_a_node_that_does_not_catch_up_changes_nothing(group: Group) -> None:
    """The master says so, and takes what it held."""
    group.cluster.flushers["b1-n2"].held = True
    before = group.client.send_put("t", 0, [message(b"before")])
    await until(lambda: group.channel("n1").acks.waiting)
    other = await group.connect("n1")
    handing = asyncio.ensure_future(group.hand_over(client=other))
    await until(lambda: group.nodes["n1"].parts.gate.holds)
    held = group.client.send_put("t", 0, [message(b"held")])
    with pytest.raises(HandOverFailed, match="node n2 did not take over group b1"):
        await handing
    group.cluster.flushers["b1-n2"].release()
    assert decode_reply(await before).epoch == decode_reply(await held).epoch == 1
    assert (await group.cluster.group_state()).successor == ""


async def test_a_node_that_does_not_claim_changes_nothing(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offer is withdrawn, so it cannot take over later."""
    held = group.no_claim(monkeypatch)
    with pytest.raises(HandOverFailed, match="did not take over group b1"):
        await group.hand_over("n2")
    held.clear()
    assert (await group.client.put("t", 0, [message(b"x")])).epoch == 1
    state = await group.cluster.group_state()
    assert (state.master, state.epoch, state.successor) == ("n1", 1, "")


async def test_a_node_that_dies_half_way_changes_nothing(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends are held until it has left the set, not until the hand-over has taken too long."""
    group.no_claim(monkeypatch)
    monkeypatch.setattr(group.nodes["n1"].parts.hand_over, "_timeout_s", WAIT_S)
    handing = asyncio.ensure_future(group.hand_over())
    async with asyncio.timeout(WAIT_S):
        while (await group.cluster.group_state()).successor != "n2":
            await asyncio.sleep(0.01)
    await group.nodes["n2"].stop()
    with pytest.raises(HandOverFailed, match="node 'n2' is not in sync any more"):
        await handing
    await group.cluster.until_in_sync("n1")
    assert (await group.client.put("t", 0, [message(b"x")])).epoch == 1


@pytest.mark.parametrize("step", ["_until_stored", "_may_leave", "_until_followed"])
async def test_a_defect_half_way_holds_no_sends(
    group: Group, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The offer is withdrawn, and the next hand-over works."""
    held = group.no_claim(monkeypatch)

    def fail(self: HandOver, *_: object) -> None:
        assert group.nodes["n1"].parts.gate.holds
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(HandOver, step, fail)
        with pytest.raises(HandOverFailed, match="ZeroDivisionError: a bug"):
            await group.nodes["n1"].parts.hand_over.run(resigns=True)
    assert (await group.client.put("t", 0, [message(b"x")])).epoch == 1
    assert (await group.cluster.group_state()).successor == ""
    held.clear()
    assert await group.hand_over() == "n2"


async def test_a_hand_over_that_is_cancelled_holds_no_sends(group: Group) -> None:
    group.cluster.flushers["b1-n2"].held = True
    before = group.client.send_put("t", 0, [message(b"before")])
    await until(lambda: group.channel("n1").acks.waiting)
    handing = asyncio.create_task(group.nodes["n1"].parts.hand_over.run())
    await until(lambda: group.nodes["n1"].parts.gate.holds)
    held = group.client.send_put("t", 0, [message(b"held")])
    handing.cancel()
    await until(handing.done)
    group.cluster.flushers["b1-n2"].release()
    assert decode_reply(await before).epoch == decode_reply(await held).epoch == 1


async def test_a_record_without_registrations_is_refused(group: Group) -> None:
    """An operator's decision for another node leaves such a one."""
    path = GroupState.path("b1")
    async with group.cluster.admin() as coordinator:
        state = replace(await group.cluster.group_state(), incarnations={})
        await coordinator.set(path, state.encode(), version=-1)
    with pytest.raises(HandOverFailed, match="no other node is in sync, registered"):
        await group.hand_over()


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("n3", "'n3' cannot take over, it is not in sync; able: n2"),
        ("n1", "'n1' cannot take over, it leads it already"),
        ("a/b", "is not a valid name for a node"),
    ],
)
async def test_a_node_that_cannot_lead_is_refused(group: Group, to: str, reason: str) -> None:
    with pytest.raises(HandOverFailed, match=reason):
        await group.hand_over(to)
    assert (await group.client.put("t", 0, [message(b"x")])).epoch == 1


async def test_only_the_master_hands_over(group: Group) -> None:
    client = await group.connect("n2")
    with pytest.raises(NotMaster, match="n2 does not lead"):
        await group.hand_over(client=client)


async def test_a_master_alone_in_sync_goes_on(group: Group) -> None:
    await group.nodes["n2"].stop()
    await group.cluster.until_in_sync("n1")
    with pytest.raises(HandOverFailed, match="no other node is in sync, registered, without"):
        await group.hand_over()
    assert (await group.client.put("t", 0, [message(b"x")])).epoch == 1


# Stopping -----------------------------------------------------------------------------------------
async def test_a_master_that_stops_hands_over_and_leaves_the_set(group: Group) -> None:
    """The new master waits for nobody, and the old one is no candidate until it has caught up."""
    assert await group.nodes["n1"].stop()
    state = await group.cluster.group_state()
    assert (state.master, state.insync) == ("n2", ("n2",))
    assert list(state.incarnations) == ["n2"]
    client = await group.connect("n2")
    await until(lambda: group.nodes["n2"].epoch == 2)
    await client.put("t", 0, [message(b"x")])
    group.nodes["n1"] = await group.cluster.start()
    await group.cluster.until_in_sync("n1", "n2")
    assert (await group.cluster.group_state()).master == "n2"


async def test_a_master_stops_although_nobody_takes_over(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the other one claims the group as after any end of a master."""
    held = group.no_claim(monkeypatch)
    assert await group.nodes["n1"].stop()
    assert (await group.cluster.group_state()).epoch == 1
    held.clear()
    await until(lambda: group.nodes["n2"].epoch == 2)


async def test_a_master_that_is_gone_leaves_the_set_as_soon_as_another_leads(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends wait until then, so the new master does not wait for its next tick."""
    monkeypatch.setattr(BrokerNode, "hand_over_before_stop", _nothing)  # as after a kill
    monkeypatch.setattr("vq.broker.replication.insync_set.TICK_S", 1_000.0)
    await asyncio.sleep(0.3)  # the ticks that began before are over
    await group.nodes["n1"].stop()
    await leads(group, "n2")
    client = await group.connect("n2")
    assert (await client.put("t", 0, [message(b"x")])).epoch == 2


# Drained nodes ------------------------------------------------------------------------------------
async def drain(group: Group, *nodes: str) -> None:
    async with group.cluster.admin() as coordinator:
        await change_group(coordinator, "b1", lambda value: replace(value, drained=nodes))


async def leads(group: Group, node: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await group.cluster.group_state()).master != node or not group.nodes[node].epoch:
            await asyncio.sleep(0.02)


async def test_a_drained_master_hands_over_and_leads_no_more(group: Group) -> None:
    """Also when the other one stops: it comes back, or nobody leads better."""
    await drain(group, "n1")
    await leads(group, "n2")
    await group.cluster.until_in_sync("n1", "n2")
    client = await group.connect("n2")
    with pytest.raises(HandOverFailed, match="'n1' cannot take over, it is drained"):
        await group.hand_over("n1", client=client)
    with pytest.raises(HandOverFailed, match=r"no other node .* not drained.*; drained: n1"):
        await group.hand_over(client=client)
    assert (await group.cluster.group_state()).master == "n2"


async def test_a_drained_master_hands_over_after_a_defect_in_that(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, is_drained = list[str](), HandOver._is_drained

    async def fail(self: HandOver) -> bool:
        if not failed:
            failed.append("failed")
            raise KeyError("a bug")
        return await is_drained(self)

    monkeypatch.setattr(HandOver, "_is_drained", fail)
    group.nodes["n1"].parts.hand_over.start(group.nodes["n1"].epoch)
    await until(lambda: failed)
    await drain(group, "n1")
    await leads(group, "n2")


async def test_a_master_whose_session_ends_is_not_called_drained(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator would look for who drained it."""
    group.cluster.ensemble.expire(group.cluster.coordinators["b1"])
    await until(lambda: "registration lost" in caplog.text)
    await group.cluster.until_in_sync("n1", "n2")
    assert "drained node" not in caplog.text


async def test_a_drained_node_leads_if_nobody_else_can_and_then_hands_over(group: Group) -> None:
    """A group without a master helps no operator."""
    await drain(group, "n1")
    await leads(group, "n2")
    await group.cluster.until_in_sync("n1", "n2")
    await group.nodes["n2"].stop()
    await leads(group, "n1")
    client = await group.connect("n1")
    await client.put("t", 0, [message(b"x")])
    group.nodes["n2"] = await group.cluster.start(node="n2")
    await leads(group, "n2")


async def test_a_drained_node_lets_another_one_claim_a_group_without_master(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = group.nodes["n3"] = await group.cluster.start(node="n3")
    await group.cluster.until_in_sync("n1", "n2", "n3")
    await drain(group, "n2")
    monkeypatch.setattr(BrokerNode, "hand_over_before_stop", _nothing)  # as after a kill
    await group.nodes["n1"].stop()
    await leads(group, "n3")
    assert third.epoch == 2


async def test_a_node_that_is_drained_no_more_may_lead(group: Group) -> None:
    await drain(group, "n1")
    await leads(group, "n2")
    await drain(group)
    client = await group.connect("n2")
    await group.cluster.until_in_sync("n1", "n2")
    assert await group.hand_over("n1", client=client) == "n1"


async def test_a_drained_master_alone_in_sync_leads_until_another_is(group: Group) -> None:
    await group.nodes["n2"].stop()
    await group.cluster.until_in_sync("n1")
    await drain(group, "n1")
    assert (await group.client.put("t", 0, [message(b"x")])).epoch == 1
    group.nodes["n2"] = await group.cluster.start(node="n2")
    await leads(group, "n2")


# A disk was lost ----------------------------------------------------------------------------------
async def test_a_node_with_an_empty_disk_does_not_lead(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record names its directory since it joined, although it never led."""
    monkeypatch.setattr(BrokerNode, "hand_over_before_stop", _nothing)  # as after a kill
    monkeypatch.setattr(InSyncSet, "look", _nothing)  # the master is lost at the same time
    await group.nodes["n2"].stop()
    await group.nodes["n1"].stop()
    del group.cluster.disks["b1-n2"]
    with pytest.raises(MastershipRefused, match="start node 'n2' with its old directory, or n1"):
        await group.cluster.start(node="n2")
    assert (await group.cluster.group_state()).epoch == 1


async def test_a_loss_is_not_accepted_while_another_node_has_the_messages(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master came back with an empty disk before its session ended; n2 has everything."""
    monkeypatch.setattr(BrokerNode, "hand_over_before_stop", _nothing)
    group.no_claim(monkeypatch)  # n2 has not noticed yet
    await group.nodes["n1"].stop()
    del group.cluster.disks["b1"]
    with pytest.raises(MastershipRefused, match=r"another master \(n2 has the messages\)"):
        await group.cluster.start(accept_data_loss=True)
    assert (await group.cluster.group_state()).epoch == 1


async def test_a_node_with_a_new_disk_copies_everything_and_may_lead_then(group: Group) -> None:
    await group.nodes["n1"].stop()
    client = await group.connect("n2")
    await client.put("t", 0, [message(b"second")])
    del group.cluster.disks["b1"]
    group.nodes["n1"] = await group.cluster.start()
    await group.cluster.until_in_sync("n1", "n2")
    assert await group.hand_over("n1", client=client) == "n1"
    assert group.bytes_of("n1") == group.bytes_of("n2")
    assert b"first" in group.bytes_of("n1")


async def _nothing(_: object) -> None: ...
