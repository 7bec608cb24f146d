"""Archives read by the client itself: the same messages, and the broker is asked when it must be.

The place is in the memory of this process, where broker and client find it. The broker has what it
needs in its cache where a test has the place fail.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from support.archive_places import URL, Failing, stored
from support.broker import Client, MemoryCluster, memory_cluster, message
from support.client import factory_of
from support.columns import rows_of
from support.node_pair import settled

from vq import aio
from vq.broker.logs import archiving
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.client.reading import zips
from vq.columns import Selection
from vq.errors import OffsetOutOfRange
from vq.store.archive import archive_writer
from vq.testing.waiting import until

BLOCKS = 4
#: Messages in a block, each in a batch of its own.
COUNT = 10


class Topic:
    """Topic ``t``: two archived blocks at the place, one beside the log, and one that is none.

    Attributes:
        channel: The broker's channel of the only partition.
        factory: A client.
    """

    def __init__(self, node: BrokerNode, factory: aio.MessageFactory) -> None:
        self.channel: Channel = node.parts.partitions.channels["t", 0]
        self.factory = factory
        self._node = node
        self.blocks = list(self.channel.log.closed_blocks)

    @property
    def end(self) -> int:
        return self.channel.high_watermark

    @property
    def sent_bytes(self) -> int:
        """What the broker has sent to readers."""
        return self._node.parts.context.counters.bytes_out

    @property
    def logs(self) -> Any:
        return self._node.parts.partitions.logs

    def reading(self, start: int = 0, end: int | None = None, **more: Any) -> Any:
        options = {"archives_directly": True, **more}
        end = self.end if end is None else end
        return self.factory.admin.read_columns("t", 0, start, end, **options)

    async def rows(self, *range_: int, **more: Any) -> list[Any]:
        at, found = range_[0] if range_ else 0, []
        async for each in self.reading(*range_, **more):
            assert at <= each.offset <= each.next_offset <= each.latest
            at = each.next_offset
            found += rows_of(each.table)
        return found


@pytest.fixture
async def topic(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Topic]:
    """The topic, its broker, and a client."""
    monkeypatch.setattr(archive_writer, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(archiving, "DISCARD_S", 3_600.0)  # zips stay, as they do for a while
    Failing.reset()
    async with memory_cluster() as cluster, factory_of(cluster) as factory:
        node = await cluster.start()
        await cluster.create_topic("t", partitions=1)
        await until(lambda: ("t", 0) in node.parts.partitions.channels)
        channel = node.parts.partitions.channels["t", 0]
        await fill(cluster, node, channel)
        for number, place in enumerate((URL, URL, None)):
            block = channel.log.closed_blocks[number]
            await node.parts.partitions.logs.archiving.archive(channel, block, place)
        yield Topic(node, factory)
        Failing.reset()


async def fill(cluster: MemoryCluster, node: BrokerNode, channel: Channel) -> None:
    client = await Client.connect(cluster.network, node.address)
    for number in range(BLOCKS):
        for each in range(COUNT):
            content = b"%d-%d " % (number, each) * 100
            some = [message(content[:size], tag=tag) for size, tag in ((9, "a"), (500, "b"))]
            await client.put("t", 0, some)
        channel.log.roll()
    await settled(channel)


async def test_any_range_has_the_messages_that_the_broker_gives(topic: Topic) -> None:
    """Ends inside of messages, one chunk at a time or many, with a selection and without."""
    whole = await topic.rows(archives_directly=False)
    assert len(whole) == 2 * BLOCKS * COUNT
    cuts = range(0, topic.end + 1, topic.end // 29)
    for max_bytes in (1_024, 4 << 20):
        for low, high in pairwise(cuts):
            wanted = [row for row in whole if low <= row[0] < high]
            assert await topic.rows(low, high, max_bytes=max_bytes) == wanted
    only = Selection(low=cuts[3], high=cuts[20], tags=(b"b",))
    expected = await topic.rows(selection=only, archives_directly=False)
    assert await topic.rows(selection=only) == expected
    assert 0 < len(expected) < COUNT * BLOCKS


async def test_the_broker_does_not_read_what_the_client_reads(topic: Topic) -> None:
    before = topic.sent_bytes
    assert len(await topic.rows()) == 2 * BLOCKS * COUNT
    assert topic.sent_bytes - before == topic.end - topic.blocks[2].start_offset
    before = topic.sent_bytes
    await topic.rows(0, topic.blocks[2].start_offset)
    assert topic.sent_bytes == before


def down() -> None:
    Failing.down = True


def lost() -> None:
    Failing.store.clear()


def damaged() -> None:
    for name, file in Failing.store.items():
        data = bytearray(file.getvalue())
        data[100] ^= 1
        Failing.store[name] = type(file)(file.fs, name, bytes(data))


def truncated() -> None:
    for name, file in Failing.store.items():
        Failing.store[name] = type(file)(file.fs, name, file.getvalue()[:-1])


@pytest.mark.parametrize(
    ("fault", "cause", "warnings"),
    [
        (down, "nobody answers", 1),
        (lost, "no such file", 2),
        (damaged, "the chunk at position 0 of an archive", 2),
        (truncated, "too early", 2),
    ],
)
async def test_what_the_client_cannot_read_is_read_by_the_broker(
    topic: Topic,
    fault: Callable[[], None],
    cause: str,
    warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning names the cause: once for the place, or for each zip that is not as it was."""
    whole = await topic.rows(archives_directly=False)
    fault()
    before = topic.sent_bytes
    for _ in range(2):
        assert await topic.rows() == whole
    assert topic.sent_bytes - before == 2 * topic.end
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    told = [text for text in told if "archive cannot be read here" in text]
    assert len(told) == warnings
    assert URL in told[0]
    assert cause in told[0]


async def test_a_place_that_hangs_is_waited_for_once(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a bounded time, and not again soon; then it is tried again."""
    monkeypatch.setattr(zips, "ANSWER_S", 0.2)
    whole = await topic.rows(archives_directly=False)
    asked: list[str] = []
    Failing.asked = lambda _: asked.append(threading.current_thread().name)
    Failing.free.clear()
    try:
        begin = time.monotonic()
        for _ in range(3):
            assert await topic.rows() == whole
        assert time.monotonic() - begin >= 0.2
        assert asked == ["vq-archive"]
    finally:
        Failing.free.set()
    monkeypatch.setattr(zips, "ANSWER_S", 30.0)
    topic.factory.admin.cluster.zips.away.clear()  # as if its time were up
    before = topic.sent_bytes
    assert await topic.rows() == whole
    assert topic.sent_bytes - before == topic.end - topic.blocks[2].start_offset


async def test_nothing_is_read_that_retention_has_deleted(topic: Topic) -> None:
    """Although the zips are there still: the broker is asked before each part."""
    reading = topic.reading(max_bytes=1_024)
    seen = (await anext(reading)).next_offset
    await topic.logs.drop_before(topic.channel, topic.blocks[1].start_offset)
    assert len(stored()) == 2

    async def read_on() -> None:
        nonlocal seen
        async for each in reading:
            seen = each.next_offset

    with pytest.raises(OffsetOutOfRange) as error:
        await read_on()
    assert error.value.details["earliest"] == topic.blocks[1].start_offset
    assert seen < topic.blocks[1].start_offset
    with pytest.raises(OffsetOutOfRange):
        await topic.rows()
    assert await topic.rows(topic.blocks[1].start_offset)


async def test_blocks_may_be_restored_and_archived_while_they_are_read(topic: Topic) -> None:
    """Between any two parts, also in the middle of a message."""
    whole = await topic.rows(archives_directly=False)
    first, second = topic.blocks[:2]
    for changed in (first, second):
        reading = topic.reading(max_bytes=1_024)
        found = []
        is_archive = True
        async for each in reading:
            found += rows_of(each.table)
            if is_archive:
                await topic.logs.archiving.restore(topic.channel, changed)
            else:
                await topic.logs.archiving.archive(topic.channel, changed, URL)
            is_archive = not is_archive
        assert found == whole
        if not is_archive:
            await topic.logs.archiving.archive(topic.channel, changed, URL)


async def test_a_reader_that_stops_leaves_no_thread(topic: Topic) -> None:
    reading = topic.reading(max_bytes=1_024)
    await anext(reading)
    await reading.aclose()
    await topic.factory.shutdown()
    await until(lambda: not [t for t in threading.enumerate() if t.name == "vq-archive"])
    assert not [task for task in asyncio.all_tasks() if "ForwardRead" in repr(task)]
