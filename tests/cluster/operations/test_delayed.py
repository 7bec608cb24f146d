"""What waits is listed from the log, in the order of its times, and recalled by its handle."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import Client, MemoryCluster
from support.client import factory_of

from vq import aio
from vq.errors import InvalidArgument, VqError
from vq.model import Cancellation, Message, SendResult
from vq.operations.messages.delayed import look_at_delayed
from vq.reserved import DELAYED_TOPIC
from vq.store.records.record import encode_record

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """The topic ``u``, too, and a client."""
    await cluster.create_topic("u", partitions=2)
    async with factory_of(cluster) as made:
        yield made


async def test_what_waits_is_listed_and_what_was_delivered_or_cancelled_is_not(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    admin = factory.admin
    assert (await admin.list_delayed()).first == [], "nobody has ever sent one"
    async with await factory.create_producer() as producer:
        sent = {
            (topic, delay): await producer.send(
                Message(topic, b"", "a", f"k{delay}", {"h": "1"}, delay_s=delay)
            )
            for topic in ("t", "u")
            for delay in (90_000, 5, 800, 30)
        }
    found = await admin.list_delayed("t")
    assert (found.waiting, found.unreadable) == (4, 0)
    assert [each.waits for each in found.first] == [
        sent["t", delay] for delay in (5, 30, 800, 90_000)
    ]
    first = found.first[0]
    assert (first.topic, first.key, first.tag, first.headers) == ("t", "k5", "a", {"h": "1"})
    assert [each.due_ms for each in found.first] == sorted({each.due_ms for each in found.first})

    two = await admin.list_delayed(limit=2)
    assert (two.waiting, [each.due_ms for each in two.first]) == (8, [first.due_ms] * 2)

    assert await admin.cancel_delayed(sent["t", 800]) is Cancellation.CANCELLED
    assert await admin.cancel_delayed(found.first[2].waits) is Cancellation.CANCELLED

    await asyncio.sleep(35.0)
    left = await admin.list_delayed()
    assert (left.waiting, left.unreadable) == (3, 0)
    assert [each.waits for each in left.first] == [
        sent["u", 800],
        sent["t", 90_000],
        sent["u", 90_000],
    ]
    assert await admin.cancel_delayed(sent["t", 5]) is Cancellation.DELIVERED
    gone = await admin.list_delayed("never-there")
    assert (gone.waiting, gone.first) == (0, [])


async def test_a_record_that_nobody_can_read_is_counted_and_hides_no_other_one(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    async with await factory.create_producer() as producer:
        before = await producer.send(Message("t", b"1", delay_s=1_000))
        wire = await Client.connect(cluster.network, cluster.nodes["b1"].address)
        record = encode_record(2, b"wrong", properties=b"p")
        await wire.put(DELAYED_TOPIC, before.partition, [record[:4] + b"####" + record[8:]])
        after = await producer.send(Message("t", b"2", delay_s=1_001))
    found = await factory.admin.list_delayed()
    assert [each.waits for each in found.first] == [before, after]
    assert (found.waiting, found.unreadable) == (2, 1)


async def test_what_waits_at_brokers_that_answer_is_shown(two_groups: MemoryCluster) -> None:
    async with factory_of(two_groups) as factory:
        async with await factory.create_producer() as producer:
            short = await producer.send(Message("t", b"", delay_s=60))
            long = await producer.send(Message("t", b"", delay_s=900))
        assert (short.partition % 2, long.partition % 2) == (0, 1)  # of b1, and of b2
        await two_groups.nodes["b1"].stop()
        found, silent = await look_at_delayed(factory.admin.cluster, "t", limit=100)
        assert (found.waiting, [each.waits for each in found.first]) == (1, [long])
        assert len(silent) == 4
        with pytest.raises(VqError):
            await factory.admin.list_delayed()


async def test_what_makes_no_sense_is_refused(factory: aio.MessageFactory) -> None:
    admin = factory.admin
    with pytest.raises(InvalidArgument, match=r"limit = 0 is outside \[1, 100000\]"):
        await admin.list_delayed(limit=0)
    async with await factory.create_producer() as producer:
        sent = await producer.send(Message("t", b"", delay_s=100))
    with pytest.raises(InvalidArgument, match="no delayed message with id"):
        await admin.cancel_delayed(SendResult(sent.partition, sent.offset, sent.id + 1))
    plain = SendResult((sent.partition + 1) % 8, 88, sent.id)  # nothing ever waited there
    begun = asyncio.get_running_loop().time()
    with pytest.raises(InvalidArgument, match="no delayed message with id"):
        await admin.cancel_delayed(plain)
    assert asyncio.get_running_loop().time() - begun < 1
    handle: Any = f"{sent.partition}:{sent.offset}:{sent.id}"
    with pytest.raises(InvalidArgument, match="is str; give the result of a delayed message"):
        await admin.cancel_delayed(handle)
