"""Topics with ``replication = async``: the master alone acknowledges; what is lost is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.broker import DATA, Client, MemoryCluster, message

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import ChannelState
from vq.broker.replication import following, insync_set
from vq.coordination.topics.topics import change_settings, describe_topic
from vq.errors import NotEnoughInSync, SequenceGap, UnknownProducer
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@dataclass
class Pair:
    """A master and a node in sync; topic ``fast`` acknowledges alone, topic ``safe`` does not."""

    cluster: MemoryCluster
    master: BrokerNode
    copy: BrokerNode
    client: Client

    def channel(self, topic: str = "fast", node: BrokerNode | None = None) -> Channel:
        return (node or self.master).parts.partitions.channels[topic, 0]

    async def put(self, topic: str = "fast", text: str = "x", **fields: Any) -> Any:
        return await asyncio.wait_for(
            self.client.put(topic, 0, [message(text.encode())], **fields), WAIT_S
        )

    def send(self, topic: str = "fast", text: str = "x", **fields: Any) -> "asyncio.Future[Any]":
        return self.client.send_put(topic, 0, [message(text.encode())], **fields)

    def hold(self) -> None:
        """Have the copy flush nothing, so that it tells the master of nothing new."""
        self.cluster.flushers["b1-n2"].held = True

    def release(self) -> None:
        self.cluster.flushers["b1-n2"].release()

    async def change(self, topic: str, **settings: Any) -> None:
        """Change the settings of a topic; return when the master has them."""
        async with self.cluster.admin() as coordinator:
            before = (await describe_topic(coordinator, topic)).settings
            wanted = replace(before, **settings)
            await change_settings(coordinator, topic, wanted)
        await until(lambda: self.channel(topic).settings == wanted)

    async def take_over(self) -> None:
        """Stop the master; return when the other node leads, alone."""
        await self.master.stop()
        self.client.close()
        await until(
            lambda: self.copy.parts.context.role.epoch and self.copy.parts.context.role.holds()
        )
        await until(lambda: self.copy.parts.context.role.named == 1)
        self.client = await Client.connect(self.cluster.network, self.copy.address)

    async def start_old_master(self) -> BrokerNode:
        """Start the first master again; return it when it is in sync."""
        old = await self.cluster.start()
        await until(lambda: self.copy.parts.context.role.named == 2)
        return old


@pytest.fixture
async def pair(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(insync_set, "TICK_S", 0.02)
    monkeypatch.setattr(following, "AUDIT_S", 0.05)
    master = await cluster.start(hand_over_timeout_s=0.05)  # it stops without a successor
    await cluster.create_topic("fast", replication="async")
    await cluster.create_topic("safe")
    await until(lambda: len(master.parts.partitions.channels) == 2)
    copy = await cluster.start(node="n2")
    client = await Client.connect(cluster.network, master.address)
    pair = Pair(cluster, master, copy, client)
    for topic in ("fast", "safe"):
        await pair.put(topic, "first", producer_id=7)
    await until(lambda: master.parts.context.role.named == 2)
    for topic in ("fast", "safe"):
        channel = pair.channel(topic)
        await until(lambda: channel.high_watermark == channel.log.end_offset)  # noqa: B023
    yield pair
    pair.release()
    pair.client.close()


async def lose(pair: Pair, count: int = 3) -> int:
    """Have messages acknowledged, lose the last ones in a take-over; return where those begin."""
    pair.hold()
    kept = (await pair.put(text="kept", producer_id=7, sequence=1)).offset
    await until(lambda: pair.channel(node=pair.copy).log.end_offset > kept)
    begin = pair.channel().log.end_offset
    for sequence in range(2, 2 + count):
        await pair.put(text="lost", producer_id=7, sequence=sequence)
    await pair.take_over()
    pair.release()
    assert pair.channel(node=pair.copy).log.end_offset == begin
    return begin


# Acknowledging ----------------------------------------------------------------------------------
async def test_the_master_alone_acknowledges_and_readers_wait_for_the_others(pair):
    """The other topic of the same group waits for all nodes in sync."""
    pair.hold()
    fast, safe = pair.channel("fast"), pair.channel("safe")
    shown = fast.high_watermark
    put = await pair.put("fast")
    waiting = pair.send("safe")
    reading = pair.client.send_get("fast", 0, put.offset, max_wait_ms=60_000)
    await until(lambda: safe.log.synced_offset == safe.log.end_offset)
    assert fast.high_watermark == shown
    assert not waiting.done()
    assert not reading.done()
    pair.release()
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))
    assert (await asyncio.wait_for(reading, WAIT_S)).body
    assert fast.high_watermark == fast.log.end_offset


async def test_with_flush_async_it_is_acknowledged_when_it_is_written(pair):
    """Readers see it when the other node has written it, too."""
    await pair.change("fast", flush="async")
    channel = pair.channel()
    shown = channel.high_watermark
    pair.cluster.network.cut("b1", "b1-n2")
    await pair.put()
    assert channel.high_watermark == shown
    pair.cluster.network.heal()
    await until(lambda: channel.high_watermark == channel.log.end_offset)
    assert channel.log.synced_offset < channel.log.end_offset


async def test_a_flush_comes_first(pair):
    """A resend of what waits for the flush waits, too; then it gets the first result."""
    pair.cluster.flushers["b1"].held = True
    answer = pair.send(producer_id=7, sequence=1)
    again = pair.send(producer_id=7, sequence=1, resend=True)
    await until(lambda: len(pair.channel().acks.waiting) == 2)
    pair.hold()
    pair.cluster.flushers["b1"].release()
    first = decode_reply(await asyncio.wait_for(answer, WAIT_S))
    second = decode_reply(await asyncio.wait_for(again, WAIT_S))
    assert (second.offset, second.duplicate) == (first.offset, True)
    third = await pair.put(producer_id=7, sequence=1, resend=True)
    assert (third.offset, third.duplicate) == (first.offset, True)


async def test_with_too_few_nodes_in_sync_messages_are_refused(pair):
    """``min_insync`` counts for both kinds of topics."""
    await pair.change("fast", min_insync=3)
    with pytest.raises(NotEnoughInSync):
        await pair.put("fast")
    await pair.change("fast", min_insync=2)
    pair.hold()
    await pair.put("fast")


async def test_a_copy_that_falls_behind_leaves_the_set(pair, monkeypatch):
    """As with other topics: only a node that was at the end lately may take over."""
    monkeypatch.setattr(insync_set, "LAG_MAX_S", 0.3)
    pair.hold()
    await pair.put("fast")
    await until(lambda: pair.master.parts.context.role.named == 1)
    channel = pair.channel()
    assert channel.high_watermark == channel.log.end_offset
    pair.release()
    await until(lambda: pair.master.parts.context.role.named == 2)


# Changing the setting ---------------------------------------------------------------------------
async def test_what_waits_is_acknowledged_when_the_topic_becomes_async(pair):
    """Nothing else has to happen in the partition."""
    pair.hold()
    waiting = pair.send("safe")
    channel = pair.channel("safe")
    await until(lambda: channel.log.synced_offset == channel.log.end_offset)
    assert not waiting.done()
    shown = channel.high_watermark
    await pair.change("safe", replication="async")
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))
    assert channel.high_watermark == shown


async def test_what_is_not_flushed_waits_when_the_topic_becomes_async(pair):
    """The change leaves out the other nodes and no flush."""
    pair.cluster.flushers["b1"].held = True
    waiting = pair.send("safe")
    await until(lambda: len(pair.channel("safe").acks.waiting) == 1)
    await pair.change("safe", replication="async")
    assert not waiting.done()
    pair.cluster.flushers["b1"].release()
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))


async def test_what_comes_after_the_topic_became_sync_waits_for_all(pair):
    """Its acknowledgement stands for what the master had acknowledged alone before, too."""
    pair.hold()
    early = await pair.put("fast")
    await pair.change("fast", replication="sync")
    waiting = pair.send("fast")
    channel = pair.channel()
    await until(lambda: channel.log.synced_offset == channel.log.end_offset)
    assert not waiting.done()
    assert channel.high_watermark <= early.offset
    pair.release()
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))
    assert channel.high_watermark == channel.log.end_offset


async def test_what_waits_for_a_flush_waits_for_all_when_the_topic_becomes_sync(pair):
    """It was not acknowledged under the weaker setting."""
    pair.hold()
    pair.cluster.flushers["b1"].held = True
    waiting = pair.send("fast")
    channel = pair.channel()
    await until(lambda: len(channel.acks.waiting) == 1)
    await pair.change("fast", replication="sync")
    pair.cluster.flushers["b1"].release()
    await until(lambda: channel.log.synced_offset == channel.log.end_offset)
    assert not waiting.done()
    pair.release()
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))


async def test_a_lower_min_insync_lets_what_waits_go(pair, monkeypatch):
    """It was taken while there were enough; then the last of them left."""
    monkeypatch.setattr(insync_set, "LAG_MAX_S", 0.3)
    await pair.change("safe", min_insync=2)
    pair.hold()
    waiting = pair.send("safe")
    await until(lambda: pair.master.parts.context.role.named == 1)
    assert not waiting.done()
    await pair.change("safe", min_insync=1)
    decode_reply(await asyncio.wait_for(waiting, WAIT_S))


# Take-over --------------------------------------------------------------------------------------
async def test_what_a_take_over_lost_is_told_when_the_old_master_returns(pair, caplog):
    """In the log and in STATUS, with the range and the number; also after a restart."""
    begin = await lose(pair)
    lost_end = (await pair.put(text="new", producer_id=9)).offset  # something is in its place
    assert lost_end > begin
    old = await pair.start_old_master()
    (line,) = [each for each in caplog.records if "lost in a take-over" in each.getMessage()]
    assert line.levelname == "ERROR"
    assert f"partition=fast-0 file={DATA}/fast/0/{begin:016}.diverged" in line.getMessage()
    assert f"start_offset={begin}" in line.getMessage()
    assert "messages=3" in line.getMessage()
    for _ in range(2):
        (told,) = [each for each in await problems(pair, old) if "take-over" in each]
        assert "up to 3 acknowledged messages of partition fast-0" in told
        assert f"offsets [{begin}, " in told
        assert f"{begin:016}.diverged" in told
        await old.stop()
        old = await pair.start_old_master()
    pair.cluster.disks["b1"].unlink(DATA / "fast" / "0" / f"{begin:016}.diverged")
    await old.parts.partitions.look_at_losses()
    assert not await problems(pair, old)


async def test_a_loss_is_told_no_more_when_an_operator_has_its_file_deleted(pair):
    begin = await lose(pair)
    await pair.put(text="new", producer_id=9)
    old = await pair.start_old_master()
    (told,) = await problems(pair, old)
    assert "vq cluster diverged" in told
    client = await pair.cluster.prove(await Client.connect(pair.cluster.network, old.address))
    file = f"fast/0/{begin:016}.diverged"
    await client.call(Command.DIVERGED, wire.DivergedRequest(file=file, delete=True))
    client.close()
    assert not await problems(pair, old)


async def problems(pair: Pair, node: BrokerNode) -> list[str]:
    client = await Client.connect(pair.cluster.network, node.address)
    found = list((await client.status()).problems)
    client.close()
    return found


async def test_what_was_never_acknowledged_is_no_loss(pair, caplog):
    """Of a topic with ``replication = sync``, the bytes are cut and kept, and that is all."""
    pair.hold()
    first = pair.send("safe", "kept", producer_id=7, sequence=1)
    copied = pair.channel("safe", pair.copy).log
    before = copied.end_offset
    await until(lambda: copied.end_offset > before)
    second = pair.send("safe", "cut", producer_id=7, sequence=2)
    log = pair.channel("safe").log
    await until(lambda: log.synced_offset == log.end_offset > copied.end_offset)
    await pair.take_over()
    pair.release()
    old = await pair.start_old_master()
    assert any("does not have are cut" in each.getMessage() for each in caplog.records)
    assert not await problems(pair, old)
    assert first.cancelled() or first.exception()
    assert second.cancelled() or second.exception()


async def test_a_producer_that_is_ahead_of_the_new_master_is_told_the_gap(pair):
    """A new epoch of the producer goes on; what is lost stays lost, and nothing is there twice."""
    begin = await lose(pair)
    with pytest.raises(SequenceGap, match="sent sequence 5, 2 comes next") as caught:
        await pair.put(text="next", producer_id=7, sequence=5)
    assert caught.value.details == {"expected": 2}
    answer = await pair.put(text="next", producer_id=7, producer_epoch=1, sequence=0)
    assert answer.offset > begin
    assert not answer.duplicate


async def test_a_producer_all_of_whose_messages_are_lost_is_told_so(pair):
    pair.hold()
    await pair.put(text="kept", producer_id=7, sequence=1)
    await until(
        lambda: pair.channel(node=pair.copy).log.end_offset == pair.channel().log.end_offset
    )
    await pair.put(producer_id=8)
    await pair.take_over()
    pair.release()
    with pytest.raises(UnknownProducer):
        await pair.put(producer_id=8, sequence=1)
    await pair.put(producer_id=8, producer_epoch=1, sequence=0)


async def test_a_master_that_stops_hands_over_all_that_it_acknowledged(pair):
    """It waits until the successor has stored that."""
    pair.master.parts.hand_over._timeout_s = WAIT_S
    pair.hold()
    await pair.put(text="kept", producer_id=7, sequence=1)
    await pair.put(text="later", producer_id=7, sequence=2)
    end = pair.channel().log.end_offset
    stopping = asyncio.create_task(pair.master.stop())
    await until(lambda: pair.master.parts.gate.holds)
    pair.release()
    await asyncio.wait_for(stopping, WAIT_S)
    await until(lambda: pair.copy.parts.context.role.epoch)
    assert pair.channel(node=pair.copy).log.end_offset == end


# Moving -----------------------------------------------------------------------------------------
async def test_a_seal_waits_until_all_in_sync_have_what_the_master_acknowledged(pair):
    """Otherwise the end of the range could be lost behind the begin of the next one."""
    pair.hold()
    await pair.put()
    channel = pair.channel()
    other = await Client.connect(pair.cluster.network, pair.master.address)
    await pair.cluster.prove(other)
    request = wire.SealRequest(topic="fast", partition=0, topic_id=channel.topic_id)
    sealing = other.send(Command.SEAL, request)
    await until(lambda: channel.state is ChannelState.SEALED)
    await asyncio.sleep(0.1)
    assert not sealing.done()
    pair.release()
    end = decode_reply(await asyncio.wait_for(sealing, WAIT_S)).end_offset
    assert end == channel.log.end_offset == pair.channel(node=pair.copy).log.synced_offset
    other.close()
