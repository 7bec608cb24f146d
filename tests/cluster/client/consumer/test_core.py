"""The consumer's core through the asynchronous API, against brokers in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from support.broker import Client, MemoryCluster, memory_cluster
from support.client import HOST, factory_of, started
from support.coordination import strike
from support.waiting import WAIT_S, until, until_true

from vq import aio
from vq.admin import placements
from vq.backoff import Backoff
from vq.broker.channel import Channel
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ProducerConfig, StartPosition
from vq.client.consumer import fetcher as fetchers
from vq.client.consumer import reader as readers
from vq.client.consumer import share as shares
from vq.client.consumer.fetcher import Chunk, chunk_of
from vq.client.consumer.hold_states import Event, State
from vq.client.consumer.inbox import InboxDelivery
from vq.coordination import claims, commits, topics
from vq.coordination.coordinator import NodeExists, Operation, Stat
from vq.coordination.memory import MemoryCoordinator
from vq.coordination.paths import CommittedOffset, Owner
from vq.errors import (
    Busy,
    ConnectionCut,
    CoordinationError,
    CorruptData,
    InvalidArgument,
    InvalidState,
    OffsetNotBoundary,
    OffsetOutOfRange,
    StaleEpoch,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.limits import FETCH_BYTES_MAX, MESSAGE_BYTES_MAX
from vq.model import Message, TopicPartition
from vq.remoting.wire_pb2 import GetResponse
from vq.store.compression import compress
from vq.store.format import COMPRESSION_ZLIB
from vq.store.record import encode_record

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, topic ``t`` with a single partition and ``wide`` with four."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        await cluster.create_topic("wide", partitions=4)
        yield cluster


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    async with factory_of(cluster, session_timeout_s=2.0) as factory:
        yield factory


async def send(factory: aio.MessageFactory, *messages: Message) -> list[Any]:
    """Store messages, one batch each."""
    async with await factory.create_producer(ProducerConfig(batch_records=1)) as producer:
        return [await producer.send(message) for message in messages]


async def consumer_of(
    factory: aio.MessageFactory, group: str = "g", topic: str = "t", **settings: Any
) -> aio.MessageConsumer:
    consumer = await factory.create_consumer(
        ConsumerConfig(**{"group": group, "max_wait_s": 0.5, **settings})
    )
    return consumer.subscribe(topic)


async def take(consumer: aio.MessageConsumer, count: int) -> list[bytes]:
    """Consume ``count`` messages; the last one stays in hand."""
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            found.append(message.content)
            if len(found) == count:
                break
    return found


async def ask_for_more(consumer: aio.MessageConsumer) -> None:
    """Let the message in hand be consumed: ask for the next one, and wait for it no longer."""
    waiting = asyncio.ensure_future(anext(aiter(consumer)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert waiting.cancel(), "there was a next one"
    await asyncio.wait([waiting])


async def until_committed(consumer: aio.MessageConsumer, offset: int) -> None:
    """Wait until the group's progress in ``t-0`` is ``offset``."""

    async def is_there() -> bool:
        return (await consumer.get_offset("t")).get(TopicPartition("t", 0)) == offset

    await until_true(is_there)


def texts(*numbers: int) -> list[Message]:
    return [Message("t", b"%d" % number) for number in numbers]


# Reading by position ------------------------------------------------------------------------------
async def test_get_returns_messages_with_all_they_were_sent_with(
    factory: aio.MessageFactory,
) -> None:
    sent = Message("t", b"content", "tag", "key", {"a": "b"})
    (result,) = await send(factory, sent)
    consumer = await factory.create_consumer()
    (found,) = await consumer.get("t", 0, 0, 1 << 20)
    assert found[:5] == sent[:5]
    assert (found.partition, found.offset, found.id) == result
    assert await consumer.get("t", 0, found.next_offset, 1 << 20) == []


async def test_get_returns_no_more_than_a_few_messages_that_expand(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """They are far larger than what was read; reading on behind the last one gives the others."""
    payload = compress(bytes(MESSAGE_BYTES_MAX), COMPRESSION_ZLIB)
    records = [
        encode_record(number, payload, None, None, COMPRESSION_ZLIB) for number in range(1, 11)
    ]
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    await client.put("t", 0, records)
    consumer = await factory.create_consumer()
    found, counts, offset = [], [], 0
    while messages := await consumer.get("t", 0, offset, 1 << 20):
        counts.append(len(messages))
        found += [message.id for message in messages]
        offset = messages[-1].next_offset
    assert counts == [4, 4, 2]
    assert found == list(range(1, 11))
    client.close()


async def test_get_at_every_boundary_and_between_them(factory: aio.MessageFactory) -> None:
    results = await send(factory, *texts(1, 2, 3))
    consumer = await factory.create_consumer()
    bounds = await consumer.get_bounds("t", 0)
    starts = [result.offset for result in results]
    valid = {0, bounds.latest, *starts, *(start + 21 for start in starts)}
    for offset in range(bounds.latest + 1):
        expected = [start for start in starts if start >= offset]
        if offset in valid:
            found = await consumer.get("t", 0, offset, 1 << 20)
            assert [message.offset for message in found] == expected
        else:
            with pytest.raises(OffsetNotBoundary) as refused:
                await consumer.get("t", 0, offset, 1 << 20)
            assert refused.value.details["next"] in valid


async def test_get_of_less_than_a_record_returns_the_whole_record(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, Message("t", b"x" * 5_000), Message("t", b"y"))
    consumer = await factory.create_consumer()
    for length in (1, 19, 20, 87, 88, 89, 107, 108, 109, 500, 5_000):
        found = await consumer.get("t", 0, 0, length)
        assert [len(message.content) for message in found] == [5_000], f"length {length}"


async def test_get_waits_for_a_first_message(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await factory.create_consumer()
    waiting = asyncio.create_task(consumer.get("t", 0, 0, 1_000, 5.0))
    server: Any = cluster.nodes["b1"]._server
    await until(lambda: any(session.waiting for session in server.sessions))
    assert not waiting.done()
    await send(factory, *texts(1))
    assert [message.content for message in await waiting] == [b"1"]


async def test_get_waits_no_longer_than_it_was_told(cluster: MemoryCluster) -> None:
    async with factory_of(cluster, request_timeout_s=60.0) as factory:
        consumer = await factory.create_consumer()
        begin = asyncio.get_running_loop().time()
        assert await consumer.get("t", 0, 0, 1_000, 0.1) == []
        assert 0.08 < asyncio.get_running_loop().time() - begin < 5.0


async def test_get_past_the_end_and_where_there_is_nothing(factory: aio.MessageFactory) -> None:
    consumer = await factory.create_consumer()
    with pytest.raises(OffsetOutOfRange) as refused:
        await consumer.get("t", 0, 10_000, 1_000)
    assert refused.value.details == {"earliest": 0, "latest": 0}
    for offset in (-1, 1 << 63, 1 << 64, 10**30):  # more than a request can carry, too
        with pytest.raises(OffsetOutOfRange, match=rf"{offset} .* is outside \[0, 0\]"):
            await consumer.get("t", 0, offset, 1_000)
    with pytest.raises(UnknownPartition):
        await consumer.get("t", 7, 0, 1_000)
    with pytest.raises(UnknownPartition):
        await consumer.get("t", 1 << 80, 0, 1_000)
    with pytest.raises(UnknownTopic):
        await consumer.get("missing", 0, 0, 1_000)
    for length in (0, FETCH_BYTES_MAX + 1):
        with pytest.raises(InvalidArgument, match=str(length)):
            await consumer.get("t", 0, 0, length)


async def test_get_goes_on_after_a_cut(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    """Asking twice does no harm, so the caller need not see it."""
    await send(factory, *texts(1))
    consumer = await factory.create_consumer()
    await consumer.get("t", 0, 0, 1_000)
    waiting = asyncio.create_task(consumer.get("t", 0, 0, 1_000))
    await asyncio.sleep(0)
    cluster.network.reset_connections(HOST)
    assert len(await waiting) == 1
    assert issubclass(ConnectionCut, VqError)


async def test_a_read_that_is_tried_again_has_the_time_that_is_left(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(factory, *texts(1))
    consumer = await factory.create_consumer()
    cluster = consumer._core._cluster
    request = cluster.request
    given: list[float] = []

    async def busy(*arguments: Any, **options: Any) -> Any:
        given.append(options["timeout"])
        if len(given) < 3:
            raise Busy("not now")
        return await request(*arguments, **options)

    monkeypatch.setattr(cluster, "request", busy)
    await consumer.get_bounds("t", 0)
    first, second, third = given
    assert cluster.config.request_timeout_s >= first > second > third > 0.0


async def test_a_reader_believes_no_broker_that_is_behind_what_it_knows(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By position, by offsets and as a member: refused meanwhile, and gone on with afterwards."""
    refused = 0
    stale_epoch = Channel.stale_epoch

    def count(channel: Channel, epoch: int) -> StaleEpoch:
        nonlocal refused
        refused += 1
        return stale_epoch(channel, epoch)

    monkeypatch.setattr(Channel, "stale_epoch", count)
    async with factory_of(cluster, request_timeout_s=60.0) as factory:
        await send(factory, *texts(1))
        reader = await factory.create_consumer()
        assert len(await reader.get("t", 0, 0, 1_000)) == 1
        role = cluster.nodes["b1"]._context.role
        role.epoch -= 1  # an earlier master that has not heard of the next one
        member = await consumer_of(factory)
        waiting = [
            asyncio.create_task(reader.get("t", 0, 0, 1_000)),
            asyncio.create_task(reader.get_bounds("t", 0)),
            asyncio.create_task(take(member, 1)),
        ]
        await until(lambda: refused >= 12)
        assert not any(each.done() for each in waiting)
        role.epoch += 1
        messages, bounds, taken = await asyncio.gather(*waiting)
        assert (len(messages), bounds.latest > 0, taken) == (1, True, [b"1"])


def damage_on_the_way(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, at: int, times: int
) -> list[int]:
    """Flip a bit of the byte at ``at`` in the next ``times`` readings; return how many are left."""
    left = [times]

    def damaged(response: GetResponse, body: bytes) -> Chunk:
        place = at - response.offset
        if left[0] and 0 <= place < len(body):
            left[0] -= 1
            body = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        return chunk_of(response, body)

    monkeypatch.setattr(module, "chunk_of", damaged)
    return left


async def test_get_reads_up_to_a_damaged_record_and_then_says_so(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await factory.create_consumer()
    left = damage_on_the_way(monkeypatch, readers, results[1].offset + 20, 1_000)
    (good,) = await consumer.get("t", 0, 0, 1_000)
    assert good.content == b"1"
    with pytest.raises(CorruptData) as refused:
        await consumer.get("t", 0, good.next_offset, 1_000)
    assert refused.value.details["offset"] == results[1].offset
    assert (1_000 - left[0], consumer.bad_reads) == (4, 3)


async def test_get_reads_again_what_was_damaged_on_the_way(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result,) = await send(factory, *texts(1))
    consumer = await factory.create_consumer()
    await consumer.get_bounds("t", 0)
    connections = cluster.network.connections
    damage_on_the_way(monkeypatch, readers, result.offset + 20, 2)
    request = consumer._core._cluster.request
    anew: list[bool] = []

    async def noted(*arguments: Any, **options: Any) -> Any:
        anew.append(options["anew"])
        return await request(*arguments, **options)

    monkeypatch.setattr(consumer._core._cluster, "request", noted)
    (found,) = await consumer.get("t", 0, 0, 1_000)
    assert (found.content, consumer.bad_reads) == (b"1", 2)
    assert anew == [False, True, True], "the connection may be what damages"
    await until(lambda: cluster.network.connections == connections)


async def test_get_reports_every_flipped_bit(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the control record and of the message, its header included."""
    (result,) = await send(factory, Message("t", b"content", "tag", "key"))
    consumer = await factory.create_consumer()
    (message,) = await consumer.get("t", 0, 0, 1_000)
    monkeypatch.setattr(readers, "_LOOK_AGAIN_S", 0.0)
    flipped = [0]

    def damaged(response: GetResponse, body: bytes) -> Chunk:
        number = int.from_bytes(body) ^ 1 << flipped[0]
        return chunk_of(response, number.to_bytes(len(body)))

    monkeypatch.setattr(readers, "chunk_of", damaged)
    for start in (0, result.offset):
        for flipped[0] in range((message.next_offset - start) * 8):
            with pytest.raises(CorruptData):
                await consumer.get("t", 0, start, 1_000)


@pytest.mark.parametrize("tag", [None, "a"])
async def test_one_bad_read_ends_nothing(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, tag: str | None
) -> None:
    """The loop goes on by itself, in order, with each message once; what happened is told."""
    monkeypatch.setattr(fetchers, "_AGAIN", Backoff(first_s=0.01, most_s=30.0))
    results = await send(factory, *(Message("t", b"%d" % n, "a") for n in range(6)))
    offset = 6 if tag else results[3].offset + 20
    left = damage_on_the_way(monkeypatch, fetchers, offset, 3)
    if tag:  # a filtered answer has its records side by side
        monkeypatch.setattr(fetchers, "chunk_of", spoil_bodies(left))
    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.5))
    consumer.subscribe("t", message_filter=tag)
    assert await take(consumer, 6) == [b"%d" % n for n in range(6)]
    await ask_for_more(consumer)
    assert left == [0]
    assert consumer.bad_reads == 3
    assert isinstance(consumer.last_error, CorruptData)
    assert consumer.troubles() == {}


def spoil_bodies(left: list[int]) -> Callable[[GetResponse, bytes], Chunk]:
    def spoilt(response: GetResponse, body: bytes) -> Chunk:
        if left[0] and body:
            left[0] -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        return chunk_of(response, body)

    return spoilt


async def test_damage_is_told_while_it_lasts_and_reading_goes_on_once_it_is_put_right(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the consumer, by its owner node, once in the log."""
    monkeypatch.setattr(fetchers, "_AGAIN", Backoff(first_s=0.001, most_s=0.01))
    results = await send(factory, *texts(1, 2))
    left = damage_on_the_way(monkeypatch, fetchers, results[1].offset + 20, 1_000_000)
    where = TopicPartition("t", 0)
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    waiting = asyncio.create_task(take(consumer, 1))
    await until(lambda: consumer.bad_reads >= 5)
    trouble = consumer.troubles()[where]
    assert isinstance(trouble.error, CorruptData)
    assert trouble.offset == results[0].offset + 21
    assert trouble.tries >= 4

    async def owner() -> Owner:
        async with cluster.admin() as coordinator:
            return (await claims.read_partitions(coordinator, Owner, "g", ["t"]))[where]

    async def is_told() -> bool:
        said = await owner()
        return "CorruptData" in said.stopped and said.stopped_since_ms == trouble.since_ms

    await until_true(is_told)
    left[0] = 0
    assert await waiting == [b"2"]
    await ask_for_more(consumer)
    assert consumer.troubles() == {}

    async def is_over() -> bool:
        return (await owner()).stopped == ""

    await until_true(is_over)
    assert caplog.text.count("partition does not go on") == 1
    assert caplog.text.count("partition goes on") == 1


async def test_bounds_follow_what_is_stored(factory: aio.MessageFactory) -> None:
    consumer = await factory.create_consumer()
    assert await consumer.get_bounds("t", 0) == (0, 0)
    (result,) = await send(factory, *texts(1))
    assert await consumer.get_bounds("t", 0) == (0, result.offset + 21)


# Groups -------------------------------------------------------------------------------------------
async def test_a_group_begins_where_it_is_told(factory: aio.MessageFactory) -> None:
    await send(factory, *texts(1, 2))
    earliest = await consumer_of(factory, "early")
    latest = await consumer_of(factory, "late", start_position=StartPosition.LATEST)
    await earliest.start()
    await latest.start()
    await until(lambda: earliest.assignment() and latest.assignment())
    await send(factory, *texts(3))
    assert await take(earliest, 3) == [b"1", b"2", b"3"]
    assert await take(latest, 1) == [b"3"]


async def test_a_group_begins_with_the_oldest_message_of_a_partition_that_moved(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Where that lies on another broker group than the newest one, too."""
    await send(factory, *texts(1, 2))
    await cluster.start("b2")
    async with started(cluster) as operator:
        await placements.move_all(operator, await placements.plan_moves(operator, "t", [0], "b2"))
    await send(factory, *texts(3))
    consumer = await consumer_of(factory)
    assert await take(consumer, 3) == [b"1", b"2", b"3"]
    await consumer.close()


async def test_a_partition_younger_than_the_group_is_read_from_its_start(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """A group that starts at the latest message leaves out what is older than itself, no more:
    here partitions are added and filled while it has no member."""
    await send(factory, *texts(0))
    consumer = await consumer_of(factory, start_position=StartPosition.LATEST)
    await consumer.start()
    await until(consumer.assignment)
    await consumer.close()
    async with cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 3)
    await until(lambda: len(factory._opened().routes.partitions("t")) == 4)
    await send(factory, *(Message("t", b"%d" % n, key=str(n)) for n in range(1, 41)))
    consumer = await consumer_of(factory, start_position=StartPosition.LATEST)
    assert sorted(map(int, await take(consumer, 40))) == list(range(1, 41))


async def test_where_it_begins_is_kept_at_once(factory: aio.MessageFactory) -> None:
    """A crash before the first commit must not skip what came in between."""
    await send(factory, *texts(1))
    latest = await consumer_of(factory, start_position=StartPosition.LATEST)
    await latest.start()
    await until(latest.assignment)
    offsets = await latest.get_offset("t")
    assert offsets == {TopicPartition("t", 0): (await latest.get_bounds("t", 0)).latest}


async def test_consumed_messages_are_committed_and_the_next_member_goes_on(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(1, 2, 3))
    first = await consumer_of(factory)
    assert await take(first, 2) == [b"1", b"2"]
    await first.close()
    second = await consumer_of(factory)
    assert await take(second, 1) == [b"3"]


async def test_commit_writes_what_was_consumed_so_far(factory: aio.MessageFactory) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory)
    seen = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            seen.append(message)
            if len(seen) == 2:
                await consumer.commit()
                break
    where = TopicPartition("t", 0)
    assert (await consumer.get_offset("t"))[where] == results[0].offset + 21
    await consumer.commit()


async def test_the_last_handled_message_is_named_beside_the_offset(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Also when only a filter moved on since then, and by a later owner."""
    where = TopicPartition("t", 0)

    async def committed() -> CommittedOffset:
        async with cluster.admin() as coordinator:
            return (await commits.read_offsets(coordinator, "g", ["t"]))[where]

    async def consume(count: int) -> None:
        consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.1))
        consumer.subscribe("t", message_filter="a")
        assert len(await take(consumer, count)) == count
        await consumer.close()

    results = await send(factory, Message("t", b"1", "a"), Message("t", b"2", "a"))
    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.1))
    await consumer.subscribe("t", message_filter="a").start()
    await until(consumer.assignment)
    assert (await committed()).message_id is None, "nothing was handled yet"
    await consumer.close()
    await consume(2)
    assert (await committed()).message_id == results[1].id
    await send(factory, Message("t", b"3", "b"))
    latest = (await consumer.get_bounds("t", 0)).latest
    idle = await factory.create_consumer(
        ConsumerConfig(group="g", max_wait_s=0.1, commit_interval_s=0.01)
    )
    await idle.subscribe("t", message_filter="a").start()
    waiting = asyncio.create_task(take(idle, 1))
    await until_committed(idle, latest)
    assert (await committed()).message_id == results[1].id
    await idle.close()
    assert await waiting == []


async def test_offsets_are_committed_regularly(factory: aio.MessageFactory) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory, commit_interval_s=0.02)
    await take(consumer, 2)
    await until_committed(consumer, results[0].offset + 21)
    await ask_for_more(consumer)
    await until_committed(consumer, results[1].offset + 21)


async def test_a_commit_that_fails_is_tried_again(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory, commit_interval_s=0.01)
    commit = commits.commit
    errors: list[Exception] = [RuntimeError("a bug"), UnknownTopic("any error")]

    async def fail(*arguments: Any) -> Any:
        if errors and consumer.assignment():
            raise errors.pop()
        return await commit(*arguments)

    await consumer.start()
    await until(consumer.assignment)
    monkeypatch.setattr(shares.commits, "commit", fail)
    await take(consumer, 2)
    await ask_for_more(consumer)
    await until_committed(consumer, results[1].offset + 21)
    assert not errors
    assert "a bug" in caplog.text


async def test_what_is_handled_while_a_commit_is_under_way_is_left_for_the_next(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory, commit_interval_s=60.0)
    assert await take(consumer, 2) == [b"1", b"2"]
    commit = commits.commit
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        under_way.set()
        await go_on.wait()
        return await commit(*arguments)

    monkeypatch.setattr(shares.commits, "commit", slow)
    committing = asyncio.create_task(consumer.commit())
    await under_way.wait()
    await ask_for_more(consumer)
    go_on.set()
    await committing
    assert await consumer.get_offset("t") == {TopicPartition("t", 0): results[0].offset + 21}
    await consumer.commit()
    assert await consumer.get_offset("t") == {TopicPartition("t", 0): results[1].offset + 21}


async def test_only_messages_with_a_wanted_tag_come(factory: aio.MessageFactory) -> None:
    await send(factory, *(Message("t", b"%d" % n, "abc"[n % 3]) for n in range(9)))
    await send(factory, *texts(100))
    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.2))
    consumer.subscribe("t", message_filter=" a || c")
    assert await take(consumer, 6) == [b"0", b"2", b"3", b"5", b"6", b"8"]
    await consumer.close()
    where = TopicPartition("t", 0)
    bounds = await consumer.get_bounds("t", 0)
    assert (await consumer.get_offset("t"))[where] <= bounds.latest


async def test_a_message_that_failed_comes_again(factory: aio.MessageFactory) -> None:
    """``async with`` is left by the exception of the loop's body."""
    await send(factory, *texts(1, 2))

    async def fail_at_the_second() -> None:
        async with await consumer_of(factory) as consumer:
            async for message in consumer:
                if message.content == b"2":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    assert await take(await consumer_of(factory), 1) == [b"2"]


@pytest.mark.parametrize("way", ["group", "aclosing", "factory", "close"])
async def test_a_message_whose_handler_failed_comes_again(cluster: MemoryCluster, way: str) -> None:
    """However the loop is left: the end of an iteration counts nothing as consumed."""

    async def work(consumer: aio.MessageConsumer) -> None:
        async for message in consumer:
            if message.content == b"2":
                raise ZeroDivisionError

    async def fail() -> None:
        async with factory_of(cluster) as factory:
            await send(factory, *texts(1, 2))
            consumer = await consumer_of(factory)
            if way == "group":
                async with consumer, asyncio.TaskGroup() as tasks:
                    tasks.create_task(work(consumer))
            elif way == "aclosing":
                async with consumer, contextlib.aclosing(aiter(consumer)) as messages:
                    async for message in messages:
                        assert message.content == b"1"
            elif way == "factory":
                await work(consumer)
            else:
                try:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(work(consumer))
                finally:
                    await consumer.close()

    with pytest.raises((ExceptionGroup, AssertionError, ZeroDivisionError)):
        await fail()
    async with factory_of(cluster) as factory:
        assert await take(await consumer_of(factory), 1) == [b"2"]


async def test_waiting_for_a_message_in_turns_loses_none(factory: aio.MessageFactory) -> None:
    """A wait that ran out is no end of the iteration."""
    consumer = await consumer_of(factory)
    messages = aiter(consumer)
    found: list[bytes] = []
    await send(factory, *texts(*range(20)))
    async with asyncio.timeout(WAIT_S):
        while len(found) < 20:
            with contextlib.suppress(TimeoutError):
                found.append((await asyncio.wait_for(anext(messages), 0.001)).content)
    assert found == [b"%d" % number for number in range(20)]
    await consumer.close()
    assert await anext(messages, None) is None


async def test_two_iterations_of_one_consumer_follow_one_another(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *texts(1, 2, 3))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    assert await take(consumer, 2) == [b"2", b"3"]


async def test_two_members_share_and_hand_over_without_a_repetition(
    factory: aio.MessageFactory,
) -> None:
    await send(factory, *(Message("wide", b"%d" % n, key=str(n)) for n in range(200)))
    seen: list[bytes] = []

    async def consume(consumer: aio.MessageConsumer) -> None:
        async for message in consumer:
            seen.append(message.content)
            await asyncio.sleep(0)

    first = await consumer_of(factory, topic="wide")
    tasks = [asyncio.create_task(consume(first))]
    await until(lambda: len(seen) >= 20)
    second = await consumer_of(factory, topic="wide")
    tasks.append(asyncio.create_task(consume(second)))
    await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
    await first.close()
    await until(lambda: len(seen) >= 200)
    await second.close()
    await asyncio.gather(*tasks)
    assert sorted(map(int, seen)) == list(range(200))


def lose_commits(
    cluster: MemoryCluster, client: ClusterClient, fault: str, count: int
) -> list[int]:
    """Strike the next ``count`` writes of an offset; return a list that holds how many are left."""
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    multi, left = coordinator.multi, [count]

    async def struck(operations: Sequence[Operation]) -> list[Stat | None]:
        if left[0] and any("/offsets/" in each.path for each in operations):
            left[0] -= 1
            strike(cluster.ensemble, coordinator, fault, 0)
        return await multi(operations)

    coordinator.multi = struck  # type: ignore[method-assign]
    return left


@pytest.mark.parametrize(("fault", "count"), [("request", 4), ("reply", 1)])
@pytest.mark.parametrize("closing", [False, True], ids=["rebalance", "close"])
async def test_a_hand_over_waits_for_its_last_commit(
    cluster: MemoryCluster, fault: str, count: int, closing: bool
) -> None:
    """Drain, commit, then release: a hiccup of ZooKeeper in between repeats nothing.

    Four lost requests are more than one commit tries; one lost reply is settled by reading.
    """
    seen: list[int] = []

    async def consume(consumer: aio.MessageConsumer) -> None:
        async for message in consumer:
            number = int(message.content)
            seen.append(number)

    async with (
        started(cluster, session_timeout_s=10.0) as client,
        aio.MessageFactory.on_cluster(client) as one,
        factory_of(cluster, session_timeout_s=10.0) as other,
    ):
        await send(one, *(Message("wide", b"%d" % n, key=str(n)) for n in range(40)))
        first = await consumer_of(one, topic="wide", commit_interval_s=60.0)
        tasks = [asyncio.create_task(consume(first))]
        await until(lambda: len(seen) == 40)
        left = lose_commits(cluster, client, fault, count)
        if closing:
            await first.close()
        second = await consumer_of(other, topic="wide", commit_interval_s=60.0)
        tasks.append(asyncio.create_task(consume(second)))
        share = 4 if closing else 2
        await until(lambda: len(second.assignment()) == share)
        await send(other, *(Message("wide", b"%d" % n, key=str(n)) for n in range(40, 80)))
        await until(lambda: 79 in seen and len(seen) >= 80)
        await first.close()
        await second.close()
        await asyncio.gather(*tasks)
    assert left == [0], "the fault struck"
    assert sorted(seen) == list(range(80))


# A consumer's life --------------------------------------------------------------------------------
class AsyncListener:
    async def __call__(self, message: Message) -> None:
        """Nothing awaits it."""


async def async_listener(message: Message) -> None:
    """Nothing awaits it."""


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (async_listener, "coroutine function.*vq.aio"),
        (AsyncListener(), "coroutine function.*vq.aio"),
        (None, "cannot be called"),
        ("print", "cannot be called"),
    ],
)
async def test_what_is_no_listener_is_refused_at_once(
    factory: aio.MessageFactory, listener: Any, said: str
) -> None:
    """A coroutine that is never awaited would count as a message that was handled."""
    consumer = await factory.create_consumer()
    with pytest.raises(InvalidArgument, match=said):
        consumer._core.subscribe("t", 1_000, listener, None)


async def test_what_a_consumer_cannot_do_yet_or_any_more(factory: aio.MessageFactory) -> None:
    alone = await factory.create_consumer()
    with pytest.raises(InvalidState, match="nothing is subscribed"):
        await alone.start()
    alone.subscribe("t")
    with pytest.raises(InvalidState, match="group"):
        await alone.start()
    with pytest.raises(InvalidState, match="group"):
        await alone.get_offset("t")
    with pytest.raises(InvalidArgument, match="subscribed already"):
        alone.subscribe("t")
    with pytest.raises(InvalidArgument, match="names no tag"):
        alone.subscribe("wide", message_filter=" || ")
    for tags, said in (
        ("ok || caf\udce9", "is no text"),  # how a shell's argument arrives that is not UTF-8
        ("é" * 128, "256 bytes"),
        ("||".join(f"t{number}" for number in range(65)), "65 tags; at most 64"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            alone.subscribe("wide", message_filter=tags)
    with pytest.raises(InvalidArgument):
        alone.subscribe("a/b")
    consumer = await consumer_of(factory)
    await consumer.start()
    with pytest.raises(InvalidState):
        await consumer.start()
    with pytest.raises(InvalidState):
        consumer.subscribe("wide")
    await consumer.close()
    await consumer.close()
    with pytest.raises(InvalidState):
        await consumer.start()


async def test_a_start_that_failed_may_be_tried_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(factory, topic="later")
    with pytest.raises(UnknownTopic):
        await consumer.start()
    await cluster.create_topic("later")
    await consumer.start()
    await until(consumer.assignment)


async def test_a_member_name_that_is_taken_leaves_the_other_one_alone(
    factory: aio.MessageFactory,
) -> None:
    first = await consumer_of(factory, member="same")
    await first.start()
    await until(first.assignment)
    second = await consumer_of(factory, member="same")
    with pytest.raises(NodeExists):
        await second.start()
    await second.close()
    await send(factory, *texts(1))
    assert await take(first, 1) == [b"1"]


async def test_closing_ends_a_waiting_iteration(factory: aio.MessageFactory) -> None:
    consumer = await consumer_of(factory)
    waiting = asyncio.create_task(take(consumer, 1))
    await until(consumer.assignment)
    await consumer.close()
    assert await waiting == []
    assert consumer.assignment() == []


async def test_two_that_close_at_once_both_wait_for_the_end(factory: aio.MessageFactory) -> None:
    consumer = await consumer_of(factory)
    await consumer.start()
    await until(consumer.assignment)
    await asyncio.gather(consumer.close(), consumer.close())
    assert consumer.assignment() == []


async def test_a_factory_that_shuts_down_closes_everything_whatever_fails(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    async with factory_of(cluster, host="other") as factory:
        consumers = [await consumer_of(factory, member=name) for name in "ab"]
        producer = await factory.create_producer()
        for consumer in consumers:
            await consumer.start()

        async def fail() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(consumers[1]._core, "close", fail)
        with pytest.raises(RuntimeError):
            await factory.shutdown()
        assert producer.closed
        assert consumers[0].closed
        await factory.shutdown()
        monkeypatch.undo()
        await consumers[1].close()
    await until(lambda: asyncio.all_tasks() <= before)
    assert cluster.network.connections == 0


async def test_closed_ones_are_forgotten(factory: aio.MessageFactory) -> None:
    for _ in range(10):
        await (await factory.create_producer()).close()
        await (await factory.create_consumer()).close()
    assert len(factory._producers) == len(factory._consumers) == 1


# Faults -------------------------------------------------------------------------------------------
async def test_it_goes_on_after_a_lost_session(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(1))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    await ask_for_more(consumer)
    await consumer.commit()
    coordinator = factory._cluster.coordinator  # type: ignore[union-attr]
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.expire(coordinator)
    await send(factory, *texts(2))
    first = await take(consumer, 1)
    if first == [b"1"]:  # once more: its commit may have met the end of the session
        first = await take(consumer, 1)
    assert first == [b"2"]


async def test_it_goes_on_after_a_broker_restart(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    await cluster.nodes["b1"].stop()
    await cluster.start("b1")
    assert await take(consumer, 1) == [b"2"]
    await send(factory, *texts(3))
    assert await take(consumer, 1) == [b"3"]


async def test_after_too_long_without_zookeeper_delivery_pauses_and_goes_on(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(factory)
    await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]
    membership = consumer._core._membership
    assert membership is not None
    coordinator = factory._cluster.coordinator  # type: ignore[union-attr]
    assert isinstance(coordinator, MemoryCoordinator)
    await ask_for_more(consumer)
    await consumer.commit()
    cluster.ensemble.disconnect(coordinator)
    coordinator._last_reply = -1e9  # as if that long had passed
    membership._on_session(coordinator.state)
    await until(lambda: all(hold.state is State.PAUSED for hold in consumer._core._holds))
    cluster.ensemble.reconnect(coordinator)
    await until(lambda: not membership.is_paused)
    await send(factory, *texts(2))
    assert await take(consumer, 1) == [b"2"]


async def test_a_message_in_hand_during_a_pause_holds_up_its_own_partition_alone(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The others go on when ownership is proved, and this one when its listener returns."""
    consumer = await consumer_of(factory, topic="wide")
    await send(factory, *(Message("wide", b"%d" % n, key=str(n)) for n in range(40)))
    messages = aiter(consumer)
    await anext(messages)
    core = consumer._core
    membership = core._membership
    assert membership is not None
    await until(lambda: len(consumer.assignment()) == 4)
    coordinator: Any = factory._cluster.coordinator  # type: ignore[union-attr]
    cluster.ensemble.disconnect(coordinator)
    coordinator._last_reply = -1e9  # long before now
    membership._on_session(coordinator.state)
    await until(lambda: sum(hold.state is State.PAUSED for hold in core._holds) == 3)
    cluster.ensemble.reconnect(coordinator)
    await until(lambda: sum(hold.state is State.DELIVERING for hold in core._holds) == 3)
    assert [hold.state for hold in core._holds if hold.state is not State.DELIVERING] == [
        State.PAUSING
    ]
    async with asyncio.timeout(WAIT_S):
        for _ in range(39):
            await anext(messages)
    await until(lambda: all(hold.state is State.DELIVERING for hold in core._holds))


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_consumer_whose_session_ended_for_good_says_so(
    factory: aio.MessageFactory, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it waits for a message, has one in hand, or has more that are ready."""
    consumer = await consumer_of(factory)
    messages = aiter(consumer)
    results = await send(factory, *texts(*range(count)))
    waiting = asyncio.ensure_future(anext(messages))
    if count:
        assert (await waiting).content == b"0"
        reading = next(iter(consumer._core._holds.readings()))
        await until(lambda: reading.fetcher.position > results[-1].offset)
        waiting = asyncio.ensure_future(asyncio.sleep(0))
    else:
        await until(consumer.assignment)
    coordinator: Any = factory._cluster.coordinator  # type: ignore[union-attr]
    coordinator.give_up("its clients died")
    async with asyncio.timeout(WAIT_S):
        if not count:
            with pytest.raises(CoordinationError, match="its clients died"):
                await waiting
        for _ in range(2):
            with pytest.raises(CoordinationError, match="its clients died"):
                await anext(messages)
        await until(lambda: consumer.assignment() == [])
        (trouble,) = consumer.troubles().values()
        assert trouble.error is consumer.last_error
        assert isinstance(consumer.last_error, CoordinationError)
        assert caplog.text.count("consumer has ended, no partition goes on") == 1
        await consumer.close()
    assert await anext(messages, None) is None


async def test_a_deleted_topic_ends_nothing_but_itself(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(factory)
    consumer.subscribe("wide")
    await consumer.start()
    await until(lambda: len(consumer.assignment()) == 5)
    async with cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, "wide")
    await until(lambda: len(consumer.assignment()) == 1)
    await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]


async def test_a_partition_whose_stop_fails_is_given_up_at_the_next_try(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(factory, *texts(0, 1))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"0"]
    stop, failed = InboxDelivery.stop, 0

    def stumble(self: InboxDelivery, on_stopped: Callable[[], None]) -> None:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise RuntimeError("a bug")
        stop(self, on_stopped)

    monkeypatch.setattr(InboxDelivery, "stop", stumble)
    core = consumer._core
    hold = core._holds.get(TopicPartition("t", 0))
    assert hold is not None
    with pytest.raises(RuntimeError, match="a bug"):
        await core._drain(hold)
    async with asyncio.timeout(WAIT_S):
        await consumer.close()
    assert failed == 2
    assert consumer.assignment() == []


async def test_a_pause_does_not_bring_back_what_is_given_up(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its message is in hand while ownership comes in doubt; it is handed over all the same."""
    consumer = await consumer_of(factory)
    await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]
    core = consumer._core
    (hold,) = core._holds
    hold.on(Event.GIVE_UP)
    draining = asyncio.create_task(core._drain(hold))
    core._suspend()
    await ask_for_more(consumer)
    async with asyncio.timeout(WAIT_S):
        await draining
    core._resume()
    assert hold.state is State.DRAINING
    hold.on(Event.DRAINED)


async def test_what_was_handled_before_a_pause_is_committed_after_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Otherwise the next owner gets it again."""
    consumer = await consumer_of(factory, commit_interval_s=60.0)
    (stored,) = await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]
    await ask_for_more(consumer)
    membership = consumer._core._membership
    coordinator: Any = factory._cluster.coordinator
    cluster.ensemble.disconnect(coordinator)
    coordinator._last_reply = -1e9  # long before now
    membership._on_session(coordinator.state)
    await until(lambda: all(hold.state is State.PAUSED for hold in consumer._core._holds))
    cluster.ensemble.reconnect(coordinator)
    await until(lambda: not membership.is_paused)
    await consumer.commit()
    committed = await consumer.get_offset("t")
    assert committed[TopicPartition("t", 0)] > stored.offset
