"""Who is in sync has what was acknowledged, and may lead."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.broker import Client, MemoryCluster, message
from support.following import Pair, followed, whole

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import ChannelState
from vq.broker.replication.insync_set import InSyncSet
from vq.coordination.brokers.registry import read_state
from vq.coordination.topics.topics import change_settings, describe_topic
from vq.errors import NotEnoughInSync
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.testing.waiting import WAIT_S, until


@pytest.fixture
async def pair(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    async with followed(cluster) as found:
        yield found


async def in_sync(pair: Pair) -> None:
    """Return once the record names both nodes."""
    await pair.cluster.until_in_sync("n1", "n2")


async def test_a_node_that_has_everything_joins_the_in_sync_set(pair):
    await pair.put(3)
    await in_sync(pair)
    async with pair.cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
    assert state.incarnations["n2"] == pair.copy.parts.presence.registration.incarnation
    assert state.epoch == 1


async def test_a_send_is_acknowledged_when_all_in_sync_have_flushed_it(pair):
    """And readers see it then, not before."""
    await pair.put()
    await in_sync(pair)
    channel: Channel = pair.master.parts.partitions.channels["t", 0]
    before = channel.high_watermark
    pair.cluster.flushers["b1-n2"].held = True
    sent = pair.client.send_put("t", 0, [message(b"x")])
    await until(lambda: channel.log.synced_offset > before)
    await until(lambda: pair.log(pair.copy).end_offset == channel.log.end_offset)
    assert not sent.done()
    assert channel.high_watermark == before
    pair.cluster.flushers["b1-n2"].release()
    decode_reply(await asyncio.wait_for(sent, WAIT_S))
    assert channel.high_watermark == channel.log.end_offset


async def test_a_node_that_is_gone_leaves_and_sends_go_on(pair):
    await pair.put()
    await in_sync(pair)
    await pair.copy.stop()
    await pair.put()
    async with pair.cluster.admin() as coordinator:
        assert (await read_state(coordinator, "b1")).insync == ("n1",)


@pytest.mark.virtual_time
async def test_a_node_that_does_not_flush_leaves_and_sends_go_on(pair):
    """It is registered and connected; it only falls behind."""
    await pair.put()
    await in_sync(pair)
    pair.cluster.flushers["b1-n2"].held = True
    await pair.put()
    async with pair.cluster.admin() as coordinator:
        assert (await read_state(coordinator, "b1")).insync == ("n1",)
    pair.cluster.flushers["b1-n2"].release()
    await in_sync(pair)


async def test_a_node_comes_into_sync_under_load(cluster, monkeypatch):
    """With many busy partitions it is hardly ever at all high watermarks at once."""
    monkeypatch.setattr("vq.broker.replication.insync_set.TICK_S", 0.02)
    master = await cluster.start()
    await cluster.create_topic("t", partitions=16)
    await until(lambda: len(master.parts.partitions.channels) == 16)
    client = await Client.connect(cluster.network, master.address)
    puts: list[asyncio.Task[None]] = []

    async def put(partition: int) -> None:
        while master.parts.context.role.named == 1:
            await client.put("t", partition, [message(b"x")])

    puts = [asyncio.create_task(put(number)) for number in range(16)]
    await cluster.start(node="n2")
    await asyncio.wait_for(asyncio.gather(*puts), WAIT_S)
    client.close()


async def test_a_node_that_is_awaited_and_does_not_come_holds_up_nothing_for_long(
    pair, monkeypatch
):
    """It was nearly there; then it flushes nothing. Nobody has named it, so the lease is as was."""
    monkeypatch.setattr("vq.broker.replication.insync_set.AWAITED_MAX_S", 0.2)
    monkeypatch.setattr(InSyncSet, "ready", lambda *_: None)
    await pair.put(3)
    role = pair.master.parts.context.role
    await until(lambda: role.insync)
    assert role.alone
    pair.cluster.flushers["b1-n2"].held = True
    await asyncio.wait_for(pair.put(), WAIT_S)
    assert role.named == 1


@pytest.mark.virtual_time
async def test_a_copy_whose_registration_is_gone_holds_up_nobody(served):
    """It was nearly there and hangs since: others come into sync, and sends wait for a moment."""
    ghost = await served.cluster.prove(await served.connect(), "b1", "n0")
    partitions = [wire.FetchPartition(handle=n, topic="t", partition=n) for n in range(2)]
    request = wire.ReplicateRequest(
        session=1, node="n0", incarnation=5, epoch=1, partitions=partitions, max_wait_ms=1
    )
    await ghost.call(Command.REPLICATE, request)
    await until(lambda: "n0" in served.node.parts.context.role.insync)
    await served.cluster.start(node="n2")
    await served.cluster.until_in_sync("n1", "n2")
    await served.client.put("t", 0, [message(b"x")])


async def test_a_node_in_sync_takes_over_with_all_that_was_acknowledged(pair):
    await pair.put(5)
    await in_sync(pair)
    await pair.put(5)
    before = whole(pair.log(pair.master))
    await pair.master.stop()
    await until(lambda: pair.copy.epoch == 2)
    client = await Client.connect(pair.cluster.network, pair.copy.address)
    assert whole(pair.log(pair.copy)) == before
    answer = await client.put("t", 0, [message(b"new")])
    assert answer.epoch == 2
    found, body = await client.get("t", 0, 0)
    assert len(body) == found.high_watermark == pair.log(pair.copy).end_offset
    pair.master = await pair.cluster.start()
    await until(lambda: whole(pair.log(pair.master)) == whole(pair.log(pair.copy)))
    await in_sync(pair)


async def _nothing(_: BrokerNode) -> None: ...


async def test_a_new_master_shows_nothing_that_the_others_may_not_have(pair, monkeypatch):
    """It does not know yet what was committed; the node that led counts until it has left."""
    await pair.put()
    await in_sync(pair)
    await pair.put(3)
    look, held = InSyncSet.look, [True]

    async def waits(self: InSyncSet) -> None:
        if not held:
            await look(self)

    monkeypatch.setattr(InSyncSet, "look", waits)
    monkeypatch.setattr(BrokerNode, "hand_over_before_stop", _nothing)  # as after a kill
    await pair.master.stop()
    await until(lambda: pair.copy.epoch == 2)
    channel: Channel = pair.copy.parts.partitions.channels["t", 0]
    end = channel.log.end_offset
    assert channel.high_watermark == channel.copies.told < end
    client = await Client.connect(pair.cluster.network, pair.copy.address)
    sent = client.send_put("t", 0, [message(b"new")])
    reading = client.send_get("t", 0, end, max_wait_ms=20_000)  # a reader came so far before
    await until(lambda: channel.log.synced_offset > end)
    assert not sent.done()
    assert not reading.done()
    held.clear()
    assert decode_reply(await asyncio.wait_for(sent, WAIT_S)).epoch == 2
    assert decode_reply(await asyncio.wait_for(reading, WAIT_S)).next_offset > end


async def test_a_move_counts_on_an_end_that_all_in_sync_have(pair):
    """Otherwise the node that takes over would lack the end of the range."""
    await pair.put()
    await in_sync(pair)
    pair.cluster.flushers["b1-n2"].held = True
    sent = pair.client.send_put("t", 0, [message(b"x")])
    channel: Channel = pair.master.parts.partitions.channels["t", 0]
    await until(lambda: channel.log.synced_offset == channel.log.end_offset)
    other = await Client.connect(pair.cluster.network, pair.master.address)
    await pair.cluster.prove(other)
    request = wire.SealRequest(topic="t", partition=0, topic_id=channel.topic_id)
    sealing = other.send(Command.SEAL, request)
    await until(lambda: channel.state is ChannelState.SEALED)
    await asyncio.sleep(0.1)
    assert not sealing.done()
    pair.cluster.flushers["b1-n2"].release()
    await asyncio.wait_for(asyncio.shield(sealing), WAIT_S)
    assert decode_reply(sealing.result()).end_offset == pair.log(pair.copy).synced_offset
    decode_reply(await sent)


async def test_a_node_that_registered_again_meanwhile_does_not_join(pair, monkeypatch):
    """It may have lost since what it told; it joins with what it tells then."""
    change, struck = InSyncSet.change, []

    async def registers_again(self, epoch, decide, checks):
        if checks and not struck:
            struck.append(self._role.insync)
            ensemble, client = pair.cluster.ensemble, pair.cluster.coordinators["b1-n2"]
            before = pair.copy.parts.presence.registration.incarnation
            ensemble.expire(client)
            await until(
                lambda: pair.copy.parts.presence.registration.incarnation not in (None, before)
            )
        found = await change(self, epoch, decide, checks)
        if struck and len(struck) == 1:
            struck.append(found)
        return found

    monkeypatch.setattr(InSyncSet, "change", registers_again)
    await pair.put()
    await in_sync(pair)
    assert struck == [frozenset({"n2"}), None]
    async with pair.cluster.admin() as coordinator:
        state = await read_state(coordinator, "b1")
    assert state.incarnations["n2"] == pair.copy.parts.presence.registration.incarnation


async def test_with_too_few_nodes_in_sync_messages_are_refused_and_read(pair):
    """Until one more is in sync; its joining is not enough, it must be agreed."""
    await pair.put()
    await in_sync(pair)
    async with pair.cluster.admin() as coordinator:
        settings = (await describe_topic(coordinator, "t")).settings
        await change_settings(coordinator, "t", replace(settings, min_insync=3))
    channel: Channel = pair.master.parts.partitions.channels["t", 0]
    await until(lambda: channel.settings.min_insync == 3)
    with pytest.raises(NotEnoughInSync, match=r"2 node\(s\) of group b1 in sync.*is 3") as caught:
        await pair.put()
    assert caught.value.retriable
    assert caught.value.details == {"in_sync": 2, "min_insync": 3}
    assert (await pair.client.get("t", 0, 0))[1]
    third = await pair.cluster.start(node="n3")
    await until(lambda: channel.role.named == 3)
    await pair.put()
    await until(lambda: whole(third.parts.partitions.channels["t", 0].log) == whole(channel.log))
    pair.copy, stopped = third, pair.copy
    await stopped.stop()
    await until(lambda: channel.role.named == 2)
    with pytest.raises(NotEnoughInSync):
        await pair.put()


async def test_a_new_master_with_too_few_nodes_in_sync_shows_what_it_has(pair):
    """Writes are refused, reads go on: also by a node that never showed anything before."""
    await pair.put()
    await in_sync(pair)
    async with pair.cluster.admin() as coordinator:
        settings = (await describe_topic(coordinator, "t")).settings
        await change_settings(coordinator, "t", replace(settings, min_insync=2))
    await pair.put()
    end = pair.master.parts.partitions.channels["t", 0].log.end_offset
    await pair.master.stop()
    await pair.copy.stop()
    alone = await pair.cluster.start(node="n2")
    await until(lambda: alone.parts.context.role.named == 1 and alone.epoch)
    channel: Channel = alone.parts.partitions.channels["t", 0]
    await until(lambda: channel.high_watermark == end)
    client = await Client.connect(pair.cluster.network, alone.address)
    assert (await client.get("t", 0, 0))[1]
    with pytest.raises(NotEnoughInSync):
        await client.put("t", 0, [message(b"x")])
    pair.master = pair.copy = alone


@pytest.mark.virtual_time
async def test_what_waits_when_too_few_are_left_is_not_acknowledged(pair):
    """It was taken while there were enough; the last of them is gone before it was stored there.

    Readers see it, as no master can lack it from now on.
    """
    await pair.put()
    await in_sync(pair)
    async with pair.cluster.admin() as coordinator:
        settings = (await describe_topic(coordinator, "t")).settings
        await change_settings(coordinator, "t", replace(settings, min_insync=2))
    channel: Channel = pair.master.parts.partitions.channels["t", 0]
    await until(lambda: channel.settings.min_insync == 2)
    pair.cluster.flushers["b1-n2"].held = True
    before = channel.high_watermark
    sent = pair.client.send_put("t", 0, [message(b"x")])
    await until(lambda: channel.role.named == 1)
    assert channel.log.synced_offset == channel.log.end_offset > before
    await until(lambda: channel.high_watermark == channel.log.end_offset)
    assert not sent.done()
    pair.cluster.flushers["b1-n2"].release()
    decode_reply(await asyncio.wait_for(sent, WAIT_S))


@pytest.mark.virtual_time
async def test_with_too_few_in_sync_no_more_waits_than_was_under_way(pair):
    """New sends and resends are refused at once, so what waits needs no bound of time on the node.

    Its sender has one; and it is counted with all that waits until its connection ends.
    """
    stamp = {"producer_id": 5, "producer_epoch": 1, "sequence": 0}
    await pair.put()
    await in_sync(pair)
    async with pair.cluster.admin() as coordinator:
        settings = (await describe_topic(coordinator, "t")).settings
        await change_settings(coordinator, "t", replace(settings, min_insync=2))
    channel: Channel = pair.master.parts.partitions.channels["t", 0]
    await until(lambda: channel.settings.min_insync == 2)
    pair.cluster.flushers["b1-n2"].held = True
    sent = pair.client.send_put("t", 0, [message(b"x")], **stamp)
    await until(lambda: channel.role.named == 1)
    other = await Client.connect(pair.cluster.network, pair.master.address)
    for resend in (False, True):
        for _ in range(3):
            with pytest.raises(NotEnoughInSync):
                await other.put("t", 0, [message(b"x")], **stamp, resend=resend)
    server = pair.master.parts.server
    assert not sent.done()
    assert len(channel.acks.waiting) == 1
    assert server.put_bytes == channel.acks.waiting[0].request_id.size > 0
    pair.client.close()
    await until(lambda: server.put_bytes == 0)
    pair.cluster.flushers["b1-n2"].release()
    await until(lambda: not channel.acks.waiting)
    other.close()
