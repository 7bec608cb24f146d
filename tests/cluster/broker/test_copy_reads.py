"""A node that copies answers readers that ask for it, up to what its master told it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from support.broker import Client, MemoryCluster, fetched, message

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.errors import FetchSessionLost, LogTruncated, NotMaster
from vq.remoting import wire_pb2 as wire
from vq.remoting.messages import decode_reply
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@dataclass
class Pair:
    """A master n1, a copy n2 in sync, topic ``t`` with one partition; a client of each."""

    cluster: MemoryCluster
    master: BrokerNode
    copy: BrokerNode
    to_master: Client
    to_copy: Client

    async def put(self, text: bytes = b"x", **fields: object) -> int:
        found = await self.to_master.put("t", 0, [message(text)], **fields)
        return int(found.offset)

    def send_read(self, offset: int = 0, **fields: object) -> "asyncio.Future[object]":
        values = {"max_wait_ms": 20_000, "from_copy": True, **fields}
        return self.to_copy.send_get("t", 0, offset, **values)

    @property
    def copied(self) -> Channel:
        return self.copy.parts.partitions.channels["t", 0]

    @property
    def end(self) -> int:
        log = self.master.parts.partitions.channels["t", 0].log
        assert log is not None
        return log.end_offset


@pytest.fixture
async def pair(cluster: MemoryCluster) -> AsyncIterator[Pair]:
    master = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in master.parts.partitions.channels)
    copy = await cluster.start(node="n2")
    to_master = await Client.connect(cluster.network, master.address)
    to_copy = await Client.connect(cluster.network, copy.address)
    await to_master.put("t", 0, [message(b"first")])
    await until(lambda: master.parts.context.role.named == 2)
    yield Pair(cluster, master, copy, to_master, to_copy)
    to_master.close()
    to_copy.close()


def item(offset: int = 0, **fields: object) -> wire.FetchPartition:
    return wire.FetchPartition(handle=1, topic="t", partition=0, offset=offset, **fields)


async def answered(waiting: "asyncio.Future[object]") -> tuple[wire.GetResponse, bytes]:
    frame = await asyncio.wait_for(waiting, WAIT_S)
    return decode_reply(frame), frame.body


async def test_who_does_not_ask_for_it_is_sent_to_the_master(pair):
    with pytest.raises(NotMaster) as caught:
        await pair.to_copy.get("t", 0, 0)
    assert caught.value.details["master"] == "n1"
    frame = await pair.to_copy.send_fetch(0, item())
    with pytest.raises(NotMaster):
        decode_reply(frame)


async def test_a_copy_gives_the_bytes_and_the_epoch_of_its_master(pair):
    await pair.put()
    expected, body = await pair.to_master.get("t", 0, 0)
    got, same = await answered(pair.send_read(min_bytes=len(body)))
    assert same == body
    assert (got.epoch, got.high_watermark, got.last_epoch) == (
        expected.epoch,
        expected.high_watermark,
        expected.last_epoch,
    )


async def test_a_reader_that_waits_at_a_copy_gets_the_next_message(pair):
    """Not ten seconds later: the copy has the master tell its high watermark."""
    for number in range(5):
        waiting = pair.send_read(pair.end, max_wait_ms=5_000)
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await pair.put(b"%d" % number * 50)
        got, body = await answered(waiting)
        assert body
        assert got.high_watermark == pair.end


async def test_a_fetch_session_that_waits_at_a_copy_gets_the_next_message(pair):
    got = fetched(await pair.to_copy.send_fetch(0, item(), from_copy=True))[1]
    assert got[1]
    for sequence in range(1, 6):
        ask = wire.FetchPartition(handle=1, offset=pair.end)
        waiting = pair.to_copy.send_fetch(sequence, ask, from_copy=True)
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await pair.put()
        result, body = fetched(await asyncio.wait_for(waiting, WAIT_S))[1]
        assert (result.next_offset, bool(body)) == (pair.end, True)


async def test_a_filter_works_at_a_copy(pair):
    ask = item(tags=["red"])
    waiting = pair.to_copy.send_fetch(0, ask, from_copy=True)
    await asyncio.sleep(0.5)
    await pair.to_master.put("t", 0, [message(b"no", tag="blue"), message(b"yes", tag="red")])
    result, body = fetched(await asyncio.wait_for(waiting, WAIT_S))[1]
    assert (len(result.offsets), b"yes" in body, b"no" in body) == (1, True, False)


async def test_a_copy_shows_nothing_that_is_not_committed(pair):
    """It has the bytes; another node in sync has not stored them yet."""
    third = await pair.cluster.start(node="n3")
    await until(lambda: pair.master.parts.context.role.named == 3)
    before = pair.end
    pair.cluster.flushers["b1-n3"].held = True
    sent = pair.to_master.send_put("t", 0, [message(b"x")])
    await until(lambda: pair.copied.log.synced_offset == pair.end > before)
    waiting = pair.send_read(before, max_wait_ms=1_000)
    got, body = await answered(waiting)
    assert (body, got.high_watermark) == (b"", before)
    again = pair.send_read(before)
    pair.cluster.flushers["b1-n3"].release()
    got, body = await answered(again)
    assert body
    decode_reply(await asyncio.wait_for(sent, WAIT_S))
    await third.stop()


async def test_a_copy_that_started_again_learns_what_is_committed(pair):
    """No message comes meanwhile: a reader has the copy ask."""
    pair.to_copy.close()
    await pair.copy.stop()
    pair.copy = await pair.cluster.start(node="n2")
    pair.to_copy = await Client.connect(pair.cluster.network, pair.copy.address)
    await until(
        lambda: ("t", 0) in pair.copy.parts.partitions.channels and pair.copied.copies.epoch
    )
    got, body = await answered(pair.send_read(0))
    assert body
    assert got.next_offset == pair.end


async def test_readers_are_sent_to_the_master_when_copying_ends(pair):
    """At once, not when their time is up."""
    waiting = pair.send_read(pair.end)
    fetching = pair.to_copy.send_fetch(0, item(pair.end), from_copy=True)
    await asyncio.sleep(0.5)
    pair.cluster.network.kill("b1")
    with pytest.raises(NotMaster):
        await answered(waiting)
    result, _ = fetched(await asyncio.wait_for(fetching, WAIT_S))[1]
    assert result.status == NotMaster.status


async def test_readers_of_a_copy_that_begins_to_lead_go_on_there(pair):
    waiting = pair.send_read(pair.end)
    await asyncio.sleep(0.5)
    await pair.master.stop()
    await until(lambda: pair.copy.epoch)
    client = await Client.connect(pair.cluster.network, pair.copy.address)
    await client.put("t", 0, [message(b"later")])
    got, body = await answered(waiting)
    assert b"later" in body
    assert got.epoch == pair.copy.epoch


async def test_a_copy_of_an_older_master_than_the_reader_knows_refuses(pair):
    epoch = pair.copied.copies.epoch
    assert (await answered(pair.send_read(epoch=epoch)))[1]
    with pytest.raises(NotMaster):
        await answered(pair.send_read(epoch=epoch + 1))


async def test_a_copy_tells_a_reader_what_is_gone(pair):
    with pytest.raises(LogTruncated):
        await answered(pair.send_read(pair.end + 1_000, last_epoch=pair.copied.copies.epoch))


async def test_a_session_is_read_from_copies_or_not(pair):
    await pair.to_copy.send_fetch(0, item(), from_copy=True)
    frame = await pair.to_copy.send_fetch(1, wire.FetchPartition(handle=1, offset=0))
    with pytest.raises((FetchSessionLost, NotMaster)):
        decode_reply(frame)
    await pair.to_master.send_fetch(0, item())
    frame = await pair.to_master.send_fetch(1, item(), from_copy=True)
    with pytest.raises(FetchSessionLost):
        decode_reply(frame)


async def test_the_master_answers_readers_that_take_copies_too(pair):
    assert (await pair.to_master.get("t", 0, 0, from_copy=True))[1]


async def test_messages_keep_coming_in_order_while_readers_wait(pair):
    """Asking the master twice for the same bytes gives them to the copy once."""
    offset, read = 0, b""
    sent = 0
    for _ in range(50):
        waiting = pair.send_read(offset, max_wait_ms=100)
        if sent < 40:
            await pair.put(b"%d" % sent * 20)
            sent += 1
        got, body = await answered(waiting)
        offset, read = got.next_offset, read + body
        if offset == pair.end and sent == 40:
            break
    _, whole = await pair.to_master.get("t", 0, 0)
    assert read == whole
    assert pair.copied.copies.epoch
