"""A setting of a topic is changed while producers and consumers run: nobody starts again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.archives import NotedArchives, done, noted
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.producers import core_of

from vq import aio
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.client.config import ConsumerConfig
from vq.coordination.topics.topics import add_partitions, alter_settings
from vq.errors import MessageTooLarge, NotEnoughInSync, NotSent, TopicClosed
from vq.limits import KIB
from vq.model import Message, TopicSettings
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time


@dataclass
class Running:
    """A broker with topic ``t``, one producer that has sent, and one member that reads.

    Attributes:
        received: What the member was given, in order.
    """

    cluster: MemoryCluster
    node: BrokerNode
    producer: aio.MessageProducer
    received: list[Message]

    @property
    def channel(self) -> Channel:
        return self.node.parts.partitions.channels["t", 0]

    async def alter(self, **changes: Any) -> None:
        """Change settings, and wait until the broker and the producer follow."""
        async with self.cluster.admin() as admin:
            await alter_settings(admin, "t", lambda before: replace(before, **changes))
        wanted = [(name, getattr(TopicSettings(**changes), name)) for name in changes]

        def follows() -> bool:
            core = core_of(self.producer)
            view = core.cluster.routes.topics.get("t")
            return view is not None and all(
                getattr(self.channel.settings, name) == value == getattr(view.settings, name)
                for name, value in wanted
            )

        await until(follows)

    async def send(self, content: bytes = b"x", **options: Any) -> Any:
        return await self.producer.send(Message("t", content), **options)

    async def receives(self, content: bytes) -> None:
        """Send a message and wait until the member has it."""
        await self.send(content)
        await until(lambda: any(each.content == content for each in self.received))


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with memory_cluster() as cluster:
        node = await cluster.start()
        await cluster.create_topic("t", partitions=1)
        async with factory_of(cluster) as factory, await factory.create_producer() as producer:
            received: list[Message] = []
            await producer.send(Message("t", b"first"))
            config = ConsumerConfig(group="g", max_wait_s=0.2)
            async with await factory.create_consumer(config) as consumer:

                async def read() -> None:
                    async for each in consumer.subscribe("t"):
                        received.append(each)  # noqa: PERF401 a test looks meanwhile

                reading = asyncio.create_task(read())
                await until(lambda: len(received) == 1)
                yield Running(cluster, node, producer, received)
                assert not reading.done(), "the member goes on"
                reading.cancel()


Check = Callable[[Running], Awaitable[None]]


async def partitions(running: Running) -> None:
    """The producer sends to the new one, and the member reads it."""
    async with running.cluster.admin() as admin:
        await add_partitions(admin, "t", 1)

    async def reached() -> bool:
        await running.send(b"more")
        await asyncio.sleep(0.01)
        return {each.partition for each in running.received} == {0, 1}

    await until_true(reached)


async def flush(running: Running) -> None:
    """Acknowledged without a flush with async, and not before one with sync."""
    flusher = running.cluster.flushers["b1"]
    await running.alter(flush="async")
    flusher.held = True
    await running.send(b"unflushed")
    await running.alter(flush="sync")
    sending = asyncio.create_task(running.send(b"flushed"))
    await asyncio.sleep(0.1)
    assert not sending.done()
    flusher.release()
    await sending


async def flush_interval_messages(running: Running) -> None:
    await running.alter(flush="async", flush_interval_messages=1_000_000)
    log = running.channel.log
    assert log is not None
    await running.send(b"waits")
    assert log.synced_offset < log.end_offset
    await running.alter(flush="async", flush_interval_messages=1)
    await running.send(b"at once")
    await until(lambda: log.synced_offset == log.end_offset)


async def flush_interval_ms(running: Running) -> None:
    """Also for what was stored before, with a timer that runs for long."""
    await running.alter(flush="async", flush_interval_ms=2**31)
    log = running.channel.log
    assert log is not None
    await running.send(b"waits")
    await asyncio.sleep(60)
    assert log.synced_offset < log.end_offset
    await running.alter(flush="async", flush_interval_ms=10)
    await until(lambda: log.synced_offset == log.end_offset)


async def max_message_bytes(running: Running) -> None:
    await running.alter(max_message_bytes=10)
    with pytest.raises(MessageTooLarge):
        await running.send(b"x" * 11)
    await running.alter(max_message_bytes=20)
    await running.receives(b"y" * 11)


async def compression(running: Running) -> None:
    """Of a producer that leaves it to the topic."""
    content = b"x" * 200 * KIB
    await running.receives(content)
    plain = running.channel.high_watermark
    await running.alter(compression="zlib")
    await running.send(content)
    await until(lambda: len(running.received) == 3)
    assert running.received[-1].content == content
    assert running.channel.high_watermark - plain < len(content) // 10


async def compression_threshold(running: Running) -> None:
    content = b"x" * KIB
    await running.alter(compression="zlib")
    await running.send(content)
    plain = running.channel.high_watermark
    assert plain > KIB
    await running.alter(compression="zlib", compression_threshold=100)
    await running.send(content)
    assert running.channel.high_watermark - plain < KIB // 2


async def _retains(running: Running, **changes: Any) -> None:
    log = running.channel.log
    assert log is not None
    log.roll()
    await running.send(b"younger")
    log.roll()
    await running.send(b"youngest")
    retainer = running.node.parts.upkeep.retainer
    await retainer.look()
    assert log.start_offset == 0
    await running.alter(**changes)
    wall_ms = running.node.parts.context.clock.wall_ms
    hours = 2 if {"retention_hours", "retention_early_hours"} & set(changes) else 0
    late = SimpleNamespace(
        wall_ms=lambda: wall_ms() + hours * 3_600_000,
        monotonic=running.node.parts.context.clock.monotonic,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retainer, "_clock", late)
        await retainer.look()
    await until(lambda: log.start_offset > 0)


async def retention_hours(running: Running) -> None:
    await _retains(running, retention_hours=1)


async def retention_bytes(running: Running) -> None:
    await _retains(running, retention_bytes=1)


async def retention_policy(running: Running) -> None:
    """The group has committed nothing yet, so it holds all of it until the policy changes."""
    await running.alter(retention_policy="keep", retention_bytes=1)
    await _retains(running, retention_policy="delete", retention_bytes=1)


async def retention_early_hours(running: Running) -> None:
    """While the disk of the broker is too full."""
    total = 1 << 40
    running.cluster.disks["b1"].free_space = lambda _: (total // 8, total)  # type: ignore[method-assign]
    await until(lambda: running.node.parts.disks.pressure_bytes > 0)
    await _retains(running, retention_early_hours=1)


async def _archived(running: Running, **changes: Any) -> NotedArchives:
    """Change settings, and do a run as of 30 hours later on two blocks; return what it did."""
    log = running.channel.log
    assert log is not None
    log.roll()
    await running.send(b"younger")
    with pytest.MonkeyPatch.context() as patch:
        archives = noted(running.node, patch)
        async with running.cluster.admin() as admin:
            await done(admin, running.node, 30)
            assert archives.to == set()
            await running.alter(**changes)
            await done(admin, running.node, 30)
    return archives


async def archive_after_hours(running: Running) -> None:
    await running.alter(retention_policy="archive", archive_after_hours=48)
    archives = await _archived(running, retention_policy="archive", archive_after_hours=1)
    assert archives.to == {None}


async def archive_to(running: Running) -> None:
    """Counts for blocks that become archives from then on."""
    archives = await _archived(running, retention_policy="archive", archive_to="s3://there")
    assert archives.to == {"s3://there"}


async def pool(running: Running) -> None:
    """Counts for partitions that are added from then on; the others stay where they are."""
    await running.cluster.start("b2", pool="fast")
    await running.alter(pool="fast")
    async with running.cluster.admin() as admin:
        view = await add_partitions(admin, "t", 2)
    assert [each.writer_group for each in view.partitions] == ["b1", "b2", "b2"]
    await running.receives(b"goes on")


async def replication(running: Running) -> None:
    """A send that waits for the copy is acknowledged when the topic needs no copy any more."""
    await running.cluster.start(node="n2")
    await until(lambda: running.node.parts.context.role.named == 2)
    running.cluster.flushers["b1-n2"].held = True
    sending = asyncio.create_task(running.send(b"x"))
    await asyncio.sleep(0.1)
    assert not sending.done()
    await running.alter(replication="async")
    await sending
    running.cluster.flushers["b1-n2"].release()


async def min_insync(running: Running) -> None:
    await running.alter(min_insync=2)
    with pytest.raises((NotEnoughInSync, NotSent)):
        await running.send(b"x", timeout=0.5)
    sending = asyncio.create_task(running.send(b"y"))
    await asyncio.sleep(0.1)
    assert not sending.done()
    await running.alter(min_insync=1)
    await sending


async def readable(running: Running) -> None:
    """The member gets nothing meanwhile, and goes on by itself."""
    await running.alter(readable=False)
    await running.send(b"hidden")
    await asyncio.sleep(30)
    assert [each.content for each in running.received] == [b"first"]
    await running.alter(readable=True)
    await until(lambda: len(running.received) == 2, timeout_s=10 * WAIT_S)


async def writable(running: Running) -> None:
    await running.alter(writable=False)
    with pytest.raises(TopicClosed):
        await running.send(b"x")
    await running.alter(writable=True)
    await running.receives(b"y")


CHECKS: dict[str, Check] = {
    each.__name__: each
    for each in (
        partitions,
        flush,
        flush_interval_messages,
        flush_interval_ms,
        max_message_bytes,
        compression,
        compression_threshold,
        retention_hours,
        retention_bytes,
        retention_early_hours,
        retention_policy,
        archive_after_hours,
        archive_to,
        pool,
        replication,
        min_insync,
        readable,
        writable,
    )
}


@pytest.mark.parametrize("name", [each.name for each in fields(TopicSettings)])
async def test_a_change_takes_effect_while_producers_and_consumers_run(
    running: Running, name: str
) -> None:
    """Every setting has a check: a new one needs one, and a row in
    docs/howto/create-and-change-topics.md.
    """
    await CHECKS[name](running)
