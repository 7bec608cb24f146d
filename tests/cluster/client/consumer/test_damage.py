"""Damaged bytes are read again, told while they last, and never taken for messages."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.consumers import ask_for_more, consumer_of, send, take, texts

from vq import aio
from vq.backoff import Backoff
from vq.broker.health.repairing import Repairer
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.fetch import fetcher as fetchers
from vq.client.reading import forward
from vq.client.reading.chunk import Chunk, chunk_of
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.groups import claims
from vq.coordination.tree.values.consumers import Owner
from vq.errors import (
    CorruptData,
)
from vq.model import Message, TopicPartition
from vq.operations.cluster.cluster import cluster_status
from vq.operations.messages import streams
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import GetResponse
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

Reader = Callable[[aio.MessageFactory, ClusterClient, int], Awaitable[None]]


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
    left = damage_on_the_way(monkeypatch, forward, results[1].offset + 20, 1_000)
    (good,) = await consumer.get("t", 0, 0, 1_000)
    assert good.content == b"1"
    with pytest.raises(CorruptData) as refused:
        await consumer.get("t", 0, good.next_offset, 1_000)
    assert refused.value.details["offset"] == results[1].offset
    assert (1_000 - left[0], consumer.bad_reads) == (5, 4)


async def test_get_reads_again_what_was_damaged_on_the_way(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result,) = await send(factory, *texts(1))
    consumer = await factory.create_consumer()
    await consumer.get_bounds("t", 0)
    connections = cluster.network.connections
    damage_on_the_way(monkeypatch, forward, result.offset + 20, 2)
    request = ClusterClient.request
    anew: list[bool] = []

    async def noted(*arguments: Any, **options: Any) -> Any:
        if arguments[2] is Command.GET:
            anew.append(options["anew"])
        return await request(*arguments, **options)

    monkeypatch.setattr(ClusterClient, "request", noted)
    (found,) = await consumer.get("t", 0, 0, 1_000)
    assert (found.content, consumer.bad_reads) == (b"1", 2)
    assert anew == [False, True, True], "the connection may be what damages"
    await until(lambda: cluster.network.connections == connections)


async def test_get_reports_a_flipped_bit_of_any_byte(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the control record and of the message, its header included; unit tests flip each bit."""
    (result,) = await send(factory, Message("t", b"content", "tag", "key"))
    consumer = await factory.create_consumer()
    (message,) = await consumer.get("t", 0, 0, 1_000)
    flipped = [0]

    def damaged(response: GetResponse, body: bytes) -> Chunk:
        place = flipped[0] // 8 - response.offset
        if 0 <= place < len(body):
            bad = body[place] ^ 1 << flipped[0] % 8
            body = body[:place] + bytes([bad]) + body[place + 1 :]
        return chunk_of(response, body)

    monkeypatch.setattr(forward, "chunk_of", damaged)
    for start, step in ((0, 5), (result.offset, 7)):
        for flipped[0] in range(start * 8, message.next_offset * 8, step):
            with pytest.raises(CorruptData):
                await consumer.get("t", 0, start, 1_000)


def change_on_disk(cluster: MemoryCluster, node: str, content: bytes) -> int:
    """Change a stored message of ``t-0`` behind the back of a node; return the byte's offset."""
    log = cluster.nodes[node].parts.partitions.channels["t", 0].log
    assert log is not None
    (piece,) = log.reader.pieces(0, log.end_offset)
    at = bytes(log.reader.read(0, 1 << 20, log.end_offset)).index(content)
    file = cluster.disks[node].open(piece.path)
    file.pwrite([b"#"], at)
    file.close()
    return at


async def by_get(factory: aio.MessageFactory, client: ClusterClient, offset: int) -> None:
    async with await factory.create_consumer() as consumer:
        await consumer.get("t", 0, offset, 1_000)


async def by_get_last(factory: aio.MessageFactory, client: ClusterClient, offset: int) -> None:
    async with await factory.create_consumer() as consumer:
        await consumer.get_last("t", 2)


async def by_stream(factory: aio.MessageFactory, client: ClusterClient, offset: int) -> None:
    async for _ in streams.messages(client, "t", streams.Begin()):
        pass


async def by_columns(factory: aio.MessageFactory, client: ClusterClient, offset: int) -> None:
    async for _ in factory.admin.read_columns("t", 0, 0, offset + 1):
        pass


async def by_counting(factory: aio.MessageFactory, client: ClusterClient, offset: int) -> None:
    """As a reset of a group to so many messages before the end does."""
    reader = PartitionReader(client, TopicPartition("t", 0))
    await reader.back((await reader.bounds()).latest, 1, 0)


async def by_group(factory: aio.MessageFactory, client: ClusterClient, offset: int) -> None:
    async with await consumer_of(factory) as consumer:
        await take(consumer, 1)
        waiting = asyncio.create_task(take(consumer, 1))
        await until(lambda: consumer.bad_reads >= 3)
        waiting.cancel()
        await asyncio.wait([waiting])
    raise consumer.last_error or AssertionError("no error is told")


READERS = [by_get, by_get_last, by_stream, by_columns, by_counting, by_group]


@pytest.mark.parametrize("reader", READERS)
async def test_every_reader_reports_damage_to_the_broker(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient, reader: Reader
) -> None:
    """So operators see it, whoever reads."""
    _, result = await send(factory, Message("t", b"first"), Message("t", b"second"))
    at = change_on_disk(cluster, "b1", b"second")
    with pytest.raises(CorruptData):
        await reader(factory, client, result.offset)
    (damage,) = (await cluster_status(client)).damage
    assert damage.start <= at < damage.end


@pytest.mark.parametrize("reader", [each for each in READERS if each is not by_group])
async def test_every_reader_reads_what_another_node_has(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    reader: Reader,
) -> None:
    """Also before the damaged node has repaired it."""

    async def no_repair(*_: object) -> None:
        await asyncio.sleep(0.1)

    monkeypatch.setattr(Repairer, "_try", no_repair)
    await cluster.start(node="n2")
    await until(lambda: cluster.nodes["b1"].parts.context.role.named == 2)
    _, result = await send(factory, Message("t", b"first"), Message("t", b"second"))
    change_on_disk(cluster, "b1", b"second")
    await reader(factory, client, result.offset)


async def by_columns_in_pieces(
    factory: aio.MessageFactory, client: ClusterClient, offset: int
) -> None:
    async for _ in factory.admin.read_columns("t", 0, 0, offset + 1, max_bytes=1_024):
        pass


@pytest.mark.parametrize(
    "reader", [by_get, by_get_last, by_stream, by_columns_in_pieces, by_counting]
)
async def test_a_record_that_comes_in_several_answers_is_read_again_from_its_begin(
    factory: aio.MessageFactory,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    reader: Reader,
) -> None:
    """Where an answer ended inside of it, no record begins."""
    content = random.Random(1).randbytes(700_000)
    _, result = await send(factory, Message("t", content), Message("t", content))
    left = damage_on_the_way(monkeypatch, forward, result.offset + 650_000, 1)
    await reader(factory, client, result.offset)
    assert left == [0]


@pytest.mark.parametrize("tag", [None, "a"])
async def test_one_bad_read_ends_nothing(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, tag: str | None
) -> None:
    """The loop goes on by itself, in order, with each message once; what happened is told."""
    monkeypatch.setattr(fetchers, "AGAIN", Backoff(first_s=0.01, most_s=30.0))
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
    monkeypatch.setattr(fetchers, "AGAIN", Backoff(first_s=0.001, most_s=0.01))
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
