"""A producer whose last acknowledged messages a take-over has lost goes on.

The topic has ``replication = async``. The new master lacks the last batches of the producer,
so it does not take the next one: it is not the next one there.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster
from support.producers import producer_of, stored_in

from vq import aio
from vq.broker.partition.channel import Channel
from vq.broker.replication import following, insync_set
from vq.errors import OutcomeUnknown
from vq.model import Message
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def producer(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[aio.MessageProducer]:
    """A producer of topic ``fast``; three of its messages are acknowledged and not copied."""
    monkeypatch.setattr(insync_set, "TICK_S", 0.02)
    monkeypatch.setattr(following, "AUDIT_S", 0.05)
    await cluster.create_topic("fast", replication="async")
    await cluster.start(node="n2")
    producer = await producer_of(factory)
    await producer.publish("fast")
    await send(producer, b"0")
    master = channel(cluster, "b1")
    await until(lambda: master.role.named == 2)
    await until(lambda: master.high_watermark == master.log.end_offset)
    cluster.flushers["b1-n2"].held = True
    await send(producer, b"1")
    copy = channel(cluster, "b1-n2")
    await until(lambda: copy.log.end_offset == master.log.end_offset)
    for content in (b"2", b"3", b"4"):
        await send(producer, content)
    assert copy.log.end_offset < master.log.end_offset
    yield producer
    await asyncio.wait_for(producer.close(), WAIT_S)


def channel(cluster: MemoryCluster, node: str) -> Channel:
    return cluster.nodes[node].parts.partitions.channels["fast", 0]


async def send(producer: aio.MessageProducer, content: bytes) -> None:
    await producer.send(Message("fast", content), timeout=WAIT_S)


async def lead(cluster: MemoryCluster) -> None:
    """Have the other node lead, without what it has not copied."""
    cluster.network.kill("b1")
    cluster.ensemble.expire(cluster.coordinators["b1"])
    await until(lambda: cluster.nodes["b1-n2"].parts.context.role.epoch)
    cluster.flushers["b1-n2"].release()


async def stored(cluster: MemoryCluster, factory: aio.MessageFactory) -> list[bytes]:
    """Return what the new master has, once its readers see all of it."""
    part = channel(cluster, "b1-n2")
    assert part.log is not None
    end = part.log.end_offset
    await until(lambda: part.high_watermark >= end)
    return await stored_in(factory, 0, "fast")


async def test_the_next_message_is_stored_once(
    cluster: MemoryCluster, factory: aio.MessageFactory, producer: aio.MessageProducer
) -> None:
    """The producer numbers its batches anew, and no caller sees anything of it."""
    await lead(cluster)
    for content in (b"5", b"6"):
        await send(producer, content)
    assert await stored(cluster, factory) == [b"0", b"1", b"5", b"6"]


async def test_one_that_waited_for_its_outcome_is_unknown(
    cluster: MemoryCluster, factory: aio.MessageFactory, producer: aio.MessageProducer
) -> None:
    """The old master may have it, and lead again: sent again, it could be there twice."""
    cluster.flushers["b1"].held = True
    log = channel(cluster, "b1").log
    assert log is not None
    before = log.end_offset
    waiting = asyncio.create_task(send(producer, b"5"))
    await until(lambda: log.end_offset > before)
    await lead(cluster)
    with pytest.raises(OutcomeUnknown, match=r"sent sequence 5, 2 comes next"):
        await asyncio.wait_for(waiting, WAIT_S)
    for content in (b"6", b"7"):
        await send(producer, content)
    assert await stored(cluster, factory) == [b"0", b"1", b"6", b"7"]
