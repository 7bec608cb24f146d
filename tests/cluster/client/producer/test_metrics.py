"""``producer.metrics()`` against a broker in memory."""

import random

import pytest
from support.broker import MemoryCluster
from support.producers import core_of, delete_topic, ended, producer_of, published, queue_of, send
from support.threads import in_thread

from vq import aio
from vq.client.future import BlockingSendFuture
from vq.errors import NotSent, UnknownTopic
from vq.model import Message
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def test_stored_messages_are_counted_with_their_batches(
    factory: aio.MessageFactory,
) -> None:
    async with await producer_of(factory) as producer:
        for number in range(10):
            await producer.send_async(Message("t", b"%d" % number, key="k"))
        waiting = producer.metrics()
        await producer.flush()
        metrics = producer.metrics()
    assert (waiting.messages_waiting, waiting.bytes_waiting) == (10, metrics.total.bytes_stored)
    assert (
        waiting.messages_accepted
        == metrics.messages_accepted
        == metrics.total.messages_stored
        == 10
    )
    assert (metrics.messages_waiting, metrics.bytes_waiting) == (0, 0)
    assert metrics.total.batches_stored == metrics.total.latency.count >= 1
    assert metrics.topics["t"].messages_stored == 10


async def test_the_last_message_of_a_deleted_topic_is_counted(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A thread that sends keeps its partition open for a while."""
    core = await published(factory)
    queue = queue_of(core, 0)
    leader = BlockingSendFuture(b"", None, None, 1e9)
    leader.leads = True
    queue.owner = leader
    future = send(core, Message("t", b"x", key=0))
    await until(lambda: queue.pending)
    await delete_topic(cluster)
    await until(lambda: "t" not in core.accumulator.topics)
    core.accumulator.leave(queue, leader)
    assert isinstance(await ended(future), UnknownTopic)
    metrics = core.metrics()
    assert (metrics.total.messages_refused, metrics.total.bytes_refused) == (1, 7)
    assert (metrics.messages_accepted, metrics.messages_waiting) == (1, 0)
    assert metrics.topics == {}
    await core.close()


async def test_a_message_that_no_broker_takes_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    async with await producer_of(factory) as producer:
        await producer.publish("t")
        await cluster.stop()
        await until(lambda: not core_of(producer).cluster.routes.masters)
        with pytest.raises(NotSent):
            await producer.send(Message("t", b"x"), timeout=0.0)
        metrics = producer.metrics()
    assert (metrics.total.messages_refused, metrics.total.bytes_refused) == (1, 1)
    assert (
        metrics.total.messages_stored
        == metrics.total.messages_unknown
        == metrics.total.latency.count
        == 0
    )


async def test_the_latency_of_a_batch_send_begins_with_the_call(
    factory: aio.MessageFactory,
) -> None:
    async with await producer_of(factory) as producer:
        await producer.send_batch([Message("t", b"%d" % number) for number in range(3)])
        metrics = producer.metrics()
    assert metrics.total.messages_stored == 3
    assert metrics.total.latency.sum_s < WAIT_S * metrics.total.latency.count


async def test_compressed_contents_are_counted_before_and_after(
    factory: aio.MessageFactory,
) -> None:
    """Those that do not get smaller, too; not those below the threshold."""
    text, noise = b"abc" * 1_000, random.Random(1).randbytes(1_000)
    async with await producer_of(factory, compression="zlib", compression_threshold=500) as made:
        for content in (text, noise, b"short"):
            await made.send(Message("t", content))
        metrics = made.metrics()
    total = metrics.total
    assert (total.messages_stored, total.messages_compressed) == (3, 2)
    assert total.bytes_before_compression == len(text) + len(noise)
    assert total.bytes_stored == total.bytes_after_compression + len(b"short")
    assert total.compression_ratio is not None
    assert 3 < total.compression_ratio < 4
    assert metrics.topics["t"] == total


async def test_a_plain_producer_counts_no_compression(factory: aio.MessageFactory) -> None:
    async with await producer_of(factory) as producer:
        await producer.send(Message("t", b"x" * 200_000))
        total = producer.metrics().total
    assert (total.messages_compressed, total.compression_ratio) == (0, None)


async def test_a_wait_for_space_counts_when_it_ends(factory: aio.MessageFactory) -> None:
    core = await published(factory, buffer_messages=1)
    core.cluster.ids_ready = False  # nothing can be sent now
    send(core, Message("t", b"1"))
    with in_thread(lambda: core.append_any(Message("t", b"2"))) as running:
        await until(lambda: core.accumulator.waiting_threads)
        assert core.metrics().buffer_waits == 0
        core.cluster.ids_ready = True
        core.sender.send_waiting()
        await until(running.done)
    await core.close()
    metrics = core.metrics()
    assert (metrics.buffer_waits, metrics.buffer_full, metrics.messages_accepted) == (1, 0, 2)
    assert metrics.buffer_wait_s > 0.0
