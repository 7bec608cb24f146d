"""Ranges as columns, boundaries, and the progress of readers without a member; in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.columns import rows_of

from vq import aio
from vq.admin import LagThresholds, LagVerdict
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.columns import COLUMNS, Selection
from vq.errors import (
    InvalidArgument,
    InvalidState,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.message_filter import Where
from vq.model import Message, TopicPartition
from vq.remoting.format import Command

pytestmark = pytest.mark.virtual_time

SIZE = 88 + 20 + 1  # of a batch with one message of one byte
MESSAGES = 8
END = MESSAGES * SIZE


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, and a topic ``t`` with one partition."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        yield cluster


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """Its client, which has sent eight messages, each in a batch of its own."""
    async with factory_of(cluster) as factory:
        await send(factory, [b"%d" % number for number in range(MESSAGES)])
        yield factory


async def send(factory: aio.MessageFactory, contents: list[bytes]) -> None:
    async with await factory.create_producer(ProducerConfig(batch_records=1)) as producer:
        for content in contents:
            await producer.send(Message("t", content))


async def values(factory: aio.MessageFactory, start: int, end: int, **more: Any) -> list[bytes]:
    found: list[bytes] = []
    at = start
    async for each in factory.admin.read_columns("t", 0, start, end, **more):
        assert each.offset >= at, "in order"
        assert each.latest >= each.next_offset
        at = each.next_offset
        found += [row[-1] for row in rows_of(each.table)]
    return found


@pytest.mark.parametrize("max_bytes", [1_024, 4 << 20])
async def test_messages_are_those_that_begin_in_the_range(
    factory: aio.MessageFactory, max_bytes: int
) -> None:
    """Ends inside of messages cut nothing apart: a split range has each message once."""
    whole = [b"%d" % number for number in range(MESSAGES)]
    assert await values(factory, 0, END, max_bytes=max_bytes) == whole
    for cut in range(0, END + 1, 13):
        left = await values(factory, 0, cut, max_bytes=max_bytes)
        assert left + await values(factory, cut, END, max_bytes=max_bytes) == whole
    assert await values(factory, 5, 5) == []


async def test_a_large_range_comes_in_several_answers(factory: aio.MessageFactory) -> None:
    """Messages that lie in two of them come whole."""
    contents = [b"%d" % number + bytes(700) for number in range(40)]
    await send(factory, contents)
    ends = (await factory.admin.bounds("t"))[0]
    assert ends is not None
    found = await values(factory, END, ends.latest, max_bytes=1_024)
    assert found == contents


async def test_a_selection_and_columns_are_chosen(factory: aio.MessageFactory) -> None:
    chosen = Selection(low=2 * SIZE, high=5 * SIZE)
    assert await values(factory, 0, END, selection=chosen) == [b"2", b"3", b"4"]
    async for each in factory.admin.read_columns("t", 0, 0, END, columns=["offset"]):
        assert [getattr(each.table, name) is None for name in COLUMNS].count(False) == 1


@pytest.mark.parametrize("knows_filters", [True, False])
@pytest.mark.parametrize("max_bytes", [1_024, 4 << 20])
async def test_an_expression_is_evaluated_by_brokers_and_once_more_by_the_reader(
    factory: aio.MessageFactory,
    monkeypatch: pytest.MonkeyPatch,
    max_bytes: int,
    knows_filters: bool,
) -> None:
    """Of messages with headers, keys and tags, large ones too; also at a broker that sends all."""
    async with await factory.create_producer(
        ProducerConfig(compression="zlib", compression_threshold=1_000)
    ) as producer:
        for number in range(60):
            headers = {"n": str(number), "big": str(number % 7 == 0).lower()}
            content = b"%d" % number + bytes(3_000 if number % 7 == 0 else 0)
            tag = "ab"[number % 2]
            await producer.send(Message("t", content, tag, f"k{number % 3}", headers))
    ends = (await factory.admin.bounds("t"))[0]
    assert ends is not None
    cluster, sent = factory.admin.cluster, 0
    plain = cluster.request

    async def request(address: Any, command: int, message: Any, *rest: Any, **named: Any) -> Any:
        nonlocal sent
        if command == Command.GET and not knows_filters:
            message.where = ""
        answer, body = await plain(address, command, message, *rest, **named)
        sent += len(body)
        return answer, body

    monkeypatch.setattr(cluster, "request", request)
    every = [
        row
        async for each in factory.admin.read_columns("t", 0, 0, ends.latest)
        for row in rows_of(each.table)
    ]
    everything, sent = sent, 0
    chosen = Where("n >= 10 AND (TAGS = 'a' OR big = TRUE) AND KEYS <> 'k0'")
    found, at = [], 0
    async for each in factory.admin.read_columns(
        "t", 0, 0, ends.latest, where=chosen, selection=Selection(low=SIZE), max_bytes=max_bytes
    ):
        assert each.offset >= at
        at = each.next_offset
        found += rows_of(each.table)
    assert at == ends.latest
    expected = [
        row
        for number, row in enumerate(every[MESSAGES:])
        if number >= 10 and (number % 2 == 0 or number % 7 == 0) and number % 3
    ]
    assert len(expected) > 10
    assert found == expected, "in all columns"
    assert (sent < everything) is knows_filters


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("t", 0, 0, END), {"columns": ["content"]}, InvalidArgument),
        (("t", 0, 0, END), {"max_bytes": 1}, InvalidArgument),
        (("t", 0, 9, 8), {}, InvalidArgument),
        (("t", 0, -1, 8), {}, InvalidArgument),
        (("t", 1, 0, 8), {"timeout": 1}, UnknownPartition),
        (("x", 0, 0, 8), {}, UnknownTopic),
        (("t", 0, 0, 8), {"topic_id": "another"}, UnknownTopic),
        (("t", 0, 5 * END, 6 * END), {}, OffsetOutOfRange),
        (("t", 0, 0, END + 1), {"timeout": 3}, OffsetOutOfRange),
    ],
)
async def test_what_cannot_be_read_is_refused(
    factory: aio.MessageFactory, arguments: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        async for _ in factory.admin.read_columns(*arguments, **options):
            pass


async def test_a_reader_that_stops_leaves_no_task(factory: aio.MessageFactory) -> None:
    await send(factory, [bytes(700)] * 4)
    found = factory.admin.read_columns("t", 0, 0, END + 3_000, max_bytes=1_024)
    async with contextlib.aclosing(found):
        await anext(found)
        assert any("ForwardRead" in repr(task) for task in asyncio.all_tasks())
    assert not any("ForwardRead" in repr(task) for task in asyncio.all_tasks())


async def test_a_broker_that_is_away_is_waited_for(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.nodes["b1"].stop()
    reading = asyncio.create_task(values(factory, 0, END, timeout=60))
    await asyncio.sleep(20)
    assert not reading.done()
    await cluster.start()
    assert len(await reading) == MESSAGES
    await cluster.stop()
    with pytest.raises(VqError) as error:
        await values(factory, 0, END, timeout=2)
    assert error.value.retriable


async def test_boundaries_are_where_messages_begin(factory: aio.MessageFactory) -> None:
    """Or the control record before them, and the end of the partition."""
    found = [
        (await factory.admin.boundaries("t", {0: offset}))[0]
        for offset in (0, 1, 88, 89, SIZE, END - 1, END)
    ]
    assert found == [0, 88, 88, SIZE, SIZE, END, END]
    with pytest.raises(OffsetOutOfRange):
        await factory.admin.boundaries("t", {0: END + 1})
    with pytest.raises(InvalidArgument):
        await factory.admin.boundaries("t", {0: -1})
    with pytest.raises(UnknownTopic):
        await factory.admin.boundaries("x", {0: 0})


async def test_a_topic_is_told_without_its_brokers(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    found = await factory.admin.get_topic("t")
    assert (found.name, len(found.partitions)) == ("t", 1)
    assert await factory.admin.bounds(found) == await factory.admin.bounds("t")
    assert await factory.admin.bounds(replace(found, id="another")) == {0: None}
    await cluster.stop()
    assert await factory.admin.get_topic("t") == found


# Progress ---------------------------------------------------------------------------------------
PARTITION = TopicPartition("t", 0)


async def committed(factory: aio.MessageFactory) -> int | None:
    [found] = (await factory.admin.describe_group("spark")).partitions
    return found.committed


async def test_progress_is_that_of_a_group_and_never_falls(factory: aio.MessageFactory) -> None:
    ids = {"t": (await factory.admin.get_topic("t")).id}
    commit = factory.admin.commit_progress
    await commit("spark", {PARTITION: 2 * SIZE}, topic_ids=ids)
    described = await factory.admin.describe_group("spark")
    assert described.lag_messages == MESSAGES - 2
    assert described.topics == {"t": ""}
    assert described.partitions[0].filter is None
    assert not described.lag_is_upper_bound
    await commit("spark", {PARTITION: SIZE}, topic_ids=ids)
    assert await committed(factory) == 2 * SIZE
    await commit("spark", {PARTITION: SIZE}, topic_ids={"t": "of another topic"})
    assert await committed(factory) == SIZE
    with pytest.raises(InvalidArgument):
        await commit("spark", {PARTITION: -1}, topic_ids=ids)
    with pytest.raises(InvalidArgument, match="another group name"):
        await commit("spark", {PARTITION: SIZE}, topic_ids=ids, tags=["a"])


async def test_the_lag_of_a_group_with_a_filter_is_told_as_an_upper_bound(
    factory: aio.MessageFactory,
) -> None:
    ids = {"t": (await factory.admin.get_topic("t")).id}
    await factory.admin.commit_progress("spark", {PARTITION: 0}, topic_ids=ids, tags=["b", "a"])
    described = await factory.admin.describe_group("spark")
    assert described.partitions[0].filter == "a || b"
    assert described.lag_is_upper_bound
    assert described.lag_messages == MESSAGES, "none of them has these tags"


async def verdict(factory: aio.MessageFactory) -> LagVerdict:
    found = await factory.admin.describe_group("spark", count=False)
    now_s = factory.admin.cluster.clock.wall_ms() / 1000
    (place,) = found.partitions
    return found.verdict_on(place, LagThresholds(stalled_after_s=1_000), now_s=now_s)


async def test_a_stream_is_judged_by_its_progress_and_misses_no_members(
    factory: aio.MessageFactory,
) -> None:
    """Until a consumer takes the group over; the next commit of a stream makes it one again."""
    ids = {"t": (await factory.admin.get_topic("t")).id}
    await factory.admin.commit_progress("spark", {PARTITION: SIZE}, topic_ids=ids)
    assert await verdict(factory) == ("ok", None)
    (summary,) = await factory.admin.list_groups()
    (contract,) = await factory.admin.read_contracts()
    assert (summary.by_stream, summary.members, contract.by_stream) == (True, 0, True)
    await asyncio.sleep(400)
    assert await verdict(factory) == ("warning", "old")
    await asyncio.sleep(700)
    assert await verdict(factory) == ("stalled", "unmoved"), "the query has ended"
    await factory.admin.commit_progress("spark", {PARTITION: END}, topic_ids=ids)
    assert await verdict(factory) == ("ok", None)
    async with await factory.create_consumer(ConsumerConfig(group="spark")) as consumer:
        consumer.subscribe("t")
        await consumer.start()
    await send(factory, [b"x"])
    assert await verdict(factory) == ("stopped", "no_members")
    await factory.admin.commit_progress("spark", {PARTITION: END}, topic_ids=ids)
    assert await verdict(factory) == ("ok", None)


async def test_a_group_with_members_takes_no_progress_from_others(
    factory: aio.MessageFactory,
) -> None:
    config = ConsumerConfig(group="spark")
    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe("t")
        await consumer.start()
        await asyncio.sleep(5)
        with pytest.raises(InvalidState, match="has members"):
            await factory.admin.commit_progress(
                "spark", {TopicPartition("u", 0): 0}, topic_ids={}, tags=["a"]
            )
        (summary,) = await factory.admin.list_groups()
        assert (summary.topics, summary.by_stream) == (("t",), False), "nothing was written"


async def test_the_progress_of_a_query_with_an_expression_is_that_of_a_filtered_group(
    factory: aio.MessageFactory,
) -> None:
    """Its lag is an upper bound, as that of a group with such a filter."""
    admin, here = factory.admin, {TopicPartition("t", 0): SIZE}
    await admin.commit_progress("q", here, topic_ids={}, where="n  >  3")
    found = await admin.describe_group("q")
    assert (found.topics, found.lag_is_upper_bound) == ({"t": "WHERE n > 3"}, True)
    with pytest.raises(InvalidArgument, match="reads 'WHERE n > 3' of topic 't'"):
        await admin.commit_progress("q", here, topic_ids={}, tags=["a"])
    with pytest.raises(InvalidArgument, match="give one of them"):
        await admin.commit_progress("q", here, topic_ids={}, where="n > 3", tags=["a"])
