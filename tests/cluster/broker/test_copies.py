"""What a master gives to the nodes that copy its logs, and what it learns of them."""

from typing import Any

import pytest
from support.broker import Client, fetched, message

from vq.broker.partition.channel import Channel
from vq.coordination.topics.topics import change_settings
from vq.errors import (
    FetchSessionLost,
    InvalidRequest,
    NotMaster,
    OffsetOutOfRange,
    StaleEpoch,
    UnknownTopic,
)
from vq.model import ProducerStamp, TopicSettings
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply, described_error
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def add(offset: int = 0, *, partition: int = 0, **fields: Any) -> wire.FetchPartition:
    """Add a partition of ``t``; its handle is its number."""
    return wire.FetchPartition(
        handle=partition, topic="t", partition=partition, offset=offset, **fields
    )


def request(sequence: int, *partitions: wire.FetchPartition, **fields: Any) -> Any:
    values = {"session": 1, "max_wait_ms": 20_000, "node": "n2", "incarnation": 5, "epoch": 1}
    return wire.ReplicateRequest(sequence=sequence, partitions=partitions, **{**values, **fields})


async def connect(served) -> Client:
    """Return another connection of node n2."""
    return await served.cluster.prove(await served.connect(), "b1", "n2")


@pytest.fixture
async def served(served):
    """As elsewhere, and its client is node n2 of the group."""
    await served.cluster.prove(served.client, "b1", "n2")
    return served


async def replicate(client: Client, sequence: int, *partitions: Any, **fields: Any) -> Any:
    """Return result and bytes of each handle that was answered."""
    return fetched(await client.send(Command.REPLICATE, request(sequence, *partitions, **fields)))


async def epoch_end(client: Client, **fields: Any) -> Any:
    values = {"node": "n2", "incarnation": 5, "epoch": 1, "topic": "t"}
    return (await client.call(Command.EPOCH_END, wire.EpochEndRequest(**{**values, **fields})))[0]


def channel(served, partition: int = 0) -> Channel:
    return served.node.parts.partitions.channels["t", partition]


async def test_a_copy_reads_what_is_not_flushed_and_clients_do_not(served):
    """The copy flushes beside the master, not after it."""
    served.flusher.held = True
    put = served.client.send_put("t", 0, [message(b"new")])
    await until(lambda: channel(served).acks.waiting)
    found = await replicate(await connect(served), 0, add())
    log = channel(served).log
    assert bytes(found[0][1]) == bytes(log.reader.read(0, 1 << 20, log.end_offset))
    result = found[0][0]
    assert (result.next_offset, result.high_watermark, result.epoch) == (log.end_offset, 0, 1)
    other = await connect(served)
    assert await other.fetch(0, add(), max_wait_ms=1) == {}
    served.flusher.release()
    decode_reply(await put)


async def test_an_append_wakes_the_copies_that_wait(served):
    """Also one that waits for many partitions; it is answered by those that grew."""
    copy = await connect(served)
    waiting = copy.send(Command.REPLICATE, request(0, add(), add(partition=1)))
    await until(lambda: channel(served, 1).copies.parked)
    server = served.node.parts.server
    assert (server.reads_waiting, server.requests_waiting) == (1, 0), "a PUT is the only request"
    served.flusher.held = True
    put = served.client.send_put("t", 1, [message(b"x")])
    assert list(fetched(await waiting)) == [1]
    served.flusher.release()
    await put


async def test_what_a_copy_asks_for_tells_what_it_has(served):
    """And nothing is told of it once its connection has ended."""
    await served.client.put("t", 0, [message(b"x")])
    end = channel(served).log.end_offset
    copy = await connect(served)
    await replicate(copy, 0, add())
    assert channel(served).copies.positions["n2"].offset == 0
    again = wire.FetchPartition(handle=0, offset=end)
    await replicate(copy, 1, again, max_wait_ms=1)
    position = channel(served).copies.positions["n2"]
    assert (position.offset, position.incarnation) == (end, 5)
    copy.close()
    await until(lambda: not channel(served).copies.positions)


async def test_the_end_of_an_old_session_takes_nothing_from_a_new_one(served):
    """A node connects again before the end of its first connection was noticed."""
    old, new = await connect(served), await connect(served)
    await replicate(old, 0, add(), max_wait_ms=1)
    await replicate(new, 0, add(), max_wait_ms=1, incarnation=6)
    old.close()
    await until(lambda: len(served.node.parts.server.sessions) == 2)
    assert channel(served).copies.positions["n2"].incarnation == 6


@pytest.mark.parametrize("offset", [1, 1_000_000])
async def test_an_offset_behind_the_log_is_refused_and_counts_for_nothing(served, offset):
    """A copy that is longer has to be cut first; it has not what the master has."""
    found = await replicate(served.client, 0, add(offset))
    error = described_error(found[0][0])
    assert isinstance(error, OffsetOutOfRange)
    assert error.details == {"earliest": 0, "latest": 0}
    assert not channel(served).copies.positions


async def test_topics_that_are_not_readable_are_copied(served):
    await served.client.put("t", 0, [message(b"x")])
    async with served.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", TopicSettings(partitions=2, readable=False))
    await until(lambda: not channel(served).settings.readable)
    assert (await replicate(served.client, 0, add()))[0][1]


async def test_other_epochs_are_refused(served):
    """A copy that knows a newer master, and one that has not heard of this one."""
    with pytest.raises(StaleEpoch, match=r"'n2' follows epoch 2 .* leads in epoch 1") as caught:
        await replicate(served.client, 0, add(), epoch=2)
    assert caught.value.details == {"epoch": 1}
    with pytest.raises(NotMaster, match="'n2' follows epoch 0"):
        await replicate(served.client, 0, add(), epoch=0)
    with pytest.raises(StaleEpoch):
        await epoch_end(served.client, epoch=2)


async def test_a_fetch_session_of_a_copy_gives_nothing_to_a_client(served):
    """Otherwise a client would see what is not committed."""
    await replicate(served.client, 0, add(), max_wait_ms=1)
    with pytest.raises(FetchSessionLost, match="begun by another command"):
        await served.client.fetch(1)
    await served.client.fetch(0, add(), max_wait_ms=1)
    with pytest.raises(FetchSessionLost, match="begun by another command"):
        await replicate(served.client, 1)


async def test_a_copy_takes_all_records(served):
    found = await replicate(served.client, 0, add(tags=["a"]))
    error = described_error(found[0][0])
    assert isinstance(error, InvalidRequest)
    assert "send no filter" in str(error)


async def test_the_end_of_an_epoch_is_told(served):
    """With the log's start, and who wrote before it."""
    told = await epoch_end(served.client, of_epoch=1)
    assert (told.found, told.end_epoch, told.end_offset, told.log_start_offset) == (True, 0, 0, 0)
    await served.client.put("t", 0, [message(b"x")], producer_id=7)
    end = channel(served).log.end_offset
    for asked in (1, 2):
        told = await epoch_end(served.client, of_epoch=asked)
        assert (told.found, told.end_epoch, told.end_offset, told.epoch) == (True, 1, end, 1)
    assert not (await epoch_end(served.client, of_epoch=0)).found
    assert channel(served).log.producers.check(ProducerStamp(7, 0, 0)) == 0
    with pytest.raises(UnknownTopic):
        await epoch_end(served.client, topic="unknown")
