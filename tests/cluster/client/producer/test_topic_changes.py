"""A deleted, recreated or changed topic reaches its producer; no message waits in vain."""

import asyncio
from dataclasses import replace

from support.broker import MemoryCluster
from support.producers import (
    SMALLEST_BUFFER,
    core_of,
    delete_topic,
    ended,
    producer_of,
    published,
    send,
    space,
    stored,
)
from support.threads import in_thread

from vq import aio
from vq.coordination.topics import topics
from vq.errors import (
    NotPublished,
    UnknownTopic,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message
from vq.testing.waiting import WAIT_S, until, until_true


async def test_a_deleted_topic_gives_up_what_waits_for_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    core.cluster.ids_ready = False  # so that it waits
    future = send(core, Message("t", b"x"))
    await delete_topic(cluster)
    assert isinstance(await ended(future), UnknownTopic)
    await core.close()


async def test_a_caller_overtaken_by_the_deletion_is_told(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """It waited for space meanwhile; its message must not go where nobody looks again."""
    core = await published(factory, buffer_bytes=SMALLEST_BUFFER)
    core.cluster.ids_ready = False
    send(core, Message("t", b"x" * MESSAGE_BYTES_MAX), None, 30.0)
    with in_thread(lambda: send(core, Message("t", b"y"), None, 30.0)) as waiting:
        await until(lambda: core.accumulator.waiting_threads)
        await delete_topic(cluster)
        assert isinstance(await asyncio.to_thread(waiting.exception, WAIT_S), NotPublished)
    assert space(core) == core.config.buffer_bytes
    await core.flush()


async def test_plain_messages_are_taken_at_once(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """While their topic is published and their tag is known; ``append_any`` takes any."""
    core = await published(factory)
    plain, tagged = Message("t", b"1"), Message("t", b"2", "tag")
    assert core.append(tagged, None, None) is None, "a tag is checked once"
    futures = [
        core.append_any(tagged),
        core.append(plain, None, None),
        core.append(tagged, None, None),
    ]
    for future in futures:
        assert future is not None
        assert (await ended(future)).offset >= 0
    assert sorted(await stored(factory)) == [b"1", b"2", b"2"]
    await delete_topic(cluster)
    await until(lambda: "t" not in core.accumulator.topics)
    assert core.append(plain, None, None) is None


async def test_a_smaller_bound_of_a_topic_reaches_append(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    async with cluster.admin() as coordinator:
        view = await topics.describe_topic(coordinator, "t")
        smaller = replace(view.settings, max_message_bytes=100)
        await topics.change_settings(coordinator, "t", smaller)
    await until(lambda: core.accumulator.topics["t"].content_bytes_max == 100)
    assert core.append(Message("t", b"x" * 101), None, None) is None
    future = core.append(Message("t", b"x" * 100), None, None)
    assert future is not None
    assert (await ended(future)).offset >= 0


async def test_a_topic_made_again_is_another_topic(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """With fewer partitions, too; even when the picture changes in one step."""
    producer = await producer_of(factory)
    for _ in range(4):
        await producer.send(Message("t", b"old"))
    core = core_of(producer)
    coordinator = core.cluster.coordinator
    cluster.ensemble.hold_events(coordinator)
    old = core.accumulator.topics["t"].topic_id
    await delete_topic(cluster)
    await cluster.create_topic("t", partitions=1)
    cluster.ensemble.release_events(coordinator)
    await until(
        lambda: "t" not in core.accumulator.topics or core.accumulator.topics["t"].topic_id != old
    )
    consumer = await factory.create_consumer()

    async def has_heard() -> bool:
        return not (await consumer.get_bounds("t", 0)).latest

    await until_true(has_heard)  # the broker, of the new topic
    for number in range(4):
        async with asyncio.timeout(WAIT_S):
            await producer.send(Message("t", b"new%d" % number, key=str(number)))
    assert await stored(factory, partitions=1) == [b"new0", b"new1", b"new2", b"new3"]
    await producer.close()


async def test_a_topic_that_goes_while_a_blocking_sender_has_it_waits_for_that_one(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    queue, future = core.accumulator.append_waited(Message("t", b"x"), None)
    future.leads = True
    assert core.accumulator.claim(queue, future) == [future]
    await delete_topic(cluster)
    await until(lambda: "t" not in core.accumulator.topics)
    assert [queue in each.queues for each in core.sender.dropped] == [True]
    assert not future.done()
    core.accumulator.leave(queue, future)
    assert isinstance(await ended(future), UnknownTopic)
    await until(lambda: not core.sender.dropped)
    await core.close()
