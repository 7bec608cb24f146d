"""Messages without a group: where reading begins, in which order, and what comes later."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import factory_of

from vq import aio
from vq.broker.health.repairing import Repairer
from vq.broker.partition.channel import Channel
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.reading import tail
from vq.client.reading.forward import BEHIND_S
from vq.errors import (
    Busy,
    CorruptData,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionQuarantined,
    UnknownPartition,
    UnknownTopic,
)
from vq.message_filter import Filter
from vq.model import Message
from vq.operations.cluster.cluster import cluster_status
from vq.operations.messages import streams
from vq.operations.messages.streams import Begin
from vq.testing.waiting import WAIT_S, until_true

pytestmark = pytest.mark.virtual_time

COUNT = 12


@pytest.fixture
async def factory(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[aio.MessageFactory]:
    """Twelve messages, by turns in the two partitions of ``t``; those of 3, 6, 9 have a tag."""
    monkeypatch.setattr(tail, "WINDOW_BYTES", 100)
    async with factory_of(cluster) as factory:
        await send(factory, range(COUNT))
        yield factory


async def send(factory: aio.MessageFactory, numbers: Any) -> None:
    config = ProducerConfig(
        batch_records=1, partitioner=lambda message, partitions: int(message.content) % 2
    )
    async with await factory.create_producer(config) as producer:
        for number in numbers:
            tag = "red" if number % 3 == 0 else None
            await producer.send(Message("t", b"%d" % number, tag=tag))
            await asyncio.sleep(0.01)  # of virtual time: ids of another millisecond


async def read(client: ClusterClient, begin: Begin, **options: Any) -> list[int]:
    found = streams.messages(client, "t", begin, **options)
    return [int(each.content) async for some in found for each in some]


async def test_all_messages_come_in_the_order_in_which_they_were_sent(
    factory: aio.MessageFactory,
    client: ClusterClient,
) -> None:
    assert await read(client, Begin()) == list(range(COUNT))
    assert await read(client, Begin(latest=True)) == []
    assert await read(client, Begin(), partitions=[1]) == list(range(1, COUNT, 2))
    assert await read(client, Begin(), wanted=Filter(("red",))) == [0, 3, 6, 9]


@pytest.mark.parametrize("count", [1, 2, 5, 11, 12, 99])
async def test_the_last_messages_are_those_of_all_partitions(
    factory: aio.MessageFactory, client: ClusterClient, count: int
) -> None:
    assert await read(client, Begin(last=count)) == list(range(COUNT))[-count:]


async def test_the_last_messages_of_a_tag_are_looked_for_among_the_others(
    factory: aio.MessageFactory,
    client: ClusterClient,
) -> None:
    assert await read(client, Begin(last=2), wanted=Filter(("red",))) == [6, 9]
    assert await read(client, Begin(last=2), wanted=Filter(("blue",))) == []


async def test_a_time_and_an_offset_are_places(
    factory: aio.MessageFactory, client: ClusterClient
) -> None:
    found = streams.messages(client, "t", Begin(), partitions=[0])
    messages = [each async for some in found for each in some]
    place = Begin(offset=messages[2].offset)
    assert await read(client, place, partitions=[0]) == [4, 6, 8, 10]
    now_ms = client.clock.wall_ms()
    await send(factory, [100, 101])
    assert await read(client, Begin(since_ms=now_ms)) == [100, 101]
    assert (await read(client, Begin(since_ms=0), partitions=[0]))[:2] == [0, 2]


async def test_what_comes_later_is_followed(
    factory: aio.MessageFactory, client: ClusterClient
) -> None:
    stream = streams.messages(client, "t", Begin(last=1), follow=True)
    found: list[int] = []

    async def follow() -> None:
        async for some in stream:
            found.extend(int(each.content) for each in some)
            if len(found) == 4:
                return

    async with asyncio.timeout(WAIT_S):
        following = asyncio.create_task(follow())
        while not found:
            await asyncio.sleep(0.01)
        await send(factory, [20, 21, 22])
        await following
    await stream.aclose()
    assert found[0] == COUNT - 1
    assert sorted(found[1:]) == [20, 21, 22]


@pytest.mark.parametrize("again", [False, True])
async def test_following_ends_with_the_topic_also_if_another_one_has_its_name(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient, again: bool
) -> None:
    """Its messages lie at the same offsets: going on there would leave out the first ones."""
    stream = streams.messages(client, "t", Begin(last=1), partitions=[0], follow=True)
    assert [int(each.content) for each in await anext(stream)] == [10]
    await factory.admin.delete_topic("t", now=again)
    if again:
        await cluster.create_topic("t", partitions=2)
        await send(factory, range(COUNT + 2))
    with pytest.raises(UnknownTopic):
        async with asyncio.timeout(WAIT_S):
            await anext(stream)


async def test_what_came_before_an_error_is_yielded_before_it(
    factory: aio.MessageFactory, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where whoever reads is slow."""
    read = streams._read

    async def damaged(*arguments: Any, follow: bool = False) -> AsyncIterator[list[Message]]:
        if not follow:
            async for some in read(*arguments):
                yield some
            return
        yield [Message("t", b"20")]
        yield [Message("t", b"21")]
        raise CorruptData("damaged")

    monkeypatch.setattr(streams, "_read", damaged)
    stream = streams.messages(client, "t", Begin(latest=True), partitions=[0], follow=True)
    found: list[bytes] = []

    async def read_slowly() -> None:
        async for some in stream:
            found.extend(each.content for each in some)
            await asyncio.sleep(1.0)

    with pytest.raises(CorruptData):
        await read_slowly()
    assert found == [b"20", b"21"]


@pytest.mark.parametrize(
    ("begin", "options", "error"),
    [
        (Begin(offset=0), {}, InvalidArgument),
        (Begin(offset=1 << 40), {"partitions": [0]}, OffsetOutOfRange),
        (Begin(), {"partitions": [2]}, UnknownPartition),
    ],
)
async def test_what_cannot_be_read_is_refused(
    factory: aio.MessageFactory,
    client: ClusterClient,
    begin: Begin,
    options: Any,
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        await read(client, begin, **options)


@pytest.mark.parametrize(
    "given", [{"latest": True, "last": 1}, {"since_ms": 5, "offset": 0}, {"since_ms": -1}]
)
def test_a_begin_is_one_place(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Begin(**given)


async def test_following_has_a_bound(
    factory: aio.MessageFactory, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FOLLOWED_MAX", 1)
    with pytest.raises(InvalidArgument, match="2 partitions are too many to follow"):
        await read(client, Begin(), follow=True)
    with pytest.raises(InvalidArgument, match="last = 100001 is outside"):
        Begin(last=100_001)


# Damage -------------------------------------------------------------------------------------------
def change_stored_byte(cluster: MemoryCluster, content: bytes) -> None:
    """Change the message in the log of the master."""
    for channel in cluster.nodes["b1"].parts.partitions.channels.values():
        log = channel.log
        assert log is not None
        stored = bytes(log.reader.read(0, 1 << 20, log.end_offset))
        at = stored.find(content)
        if at >= 0:
            file = cluster.disks["b1"].open(log.reader.pieces(0, log.end_offset)[0].path)
            file.pwrite([b"X"], at)
            file.close()
            return
    raise AssertionError(f"{content!r} is not stored")


async def test_damage_ends_the_reading_with_its_partition_and_the_broker_hears_of_it(
    cluster: MemoryCluster, factory: aio.MessageFactory, client: ClusterClient
) -> None:
    async with await factory.create_producer() as producer:
        for text in (b"before", b"damaged message", b"behind"):
            await producer.send(Message("t", text, key="k"))
    change_stored_byte(cluster, b"damaged message")
    got: list[bytes] = []

    async def read_all() -> None:
        async for some in streams.messages(client, "t", Begin()):
            got.extend(each.content for each in some)

    with pytest.raises(CorruptData, match=r"^t-\d: .*fails its checksum") as raised:
        await read_all()
    assert b"before" in got
    assert len(got) == len(set(got)), "a message is yielded once"
    assert b"behind" not in got
    assert "vq topic describe" in raised.value.hint
    (damage,) = (await cluster_status(client)).damage
    assert damage.start <= raised.value.details["offset"] < damage.end


async def test_a_damaged_message_is_read_from_a_copy(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also before the master has repaired it."""

    async def no_repair(self: Repairer, channel: Channel, damage: object) -> None:
        raise PartitionQuarantined("not now")

    monkeypatch.setattr(Repairer, "_replace", no_repair)
    await cluster.start(node="n2")
    async with await factory.create_producer() as producer:
        for text in (b"first", b"damaged message", b"last"):
            await producer.send(Message("t", text, key="k"))

    async def in_sync() -> bool:
        brokers = (await cluster_status(client)).brokers
        return [each.in_sync for each in brokers] == [True, True]

    await until_true(in_sync)
    change_stored_byte(cluster, b"damaged message")
    found = streams.messages(client, "t", Begin(last=3))
    assert [each.content async for some in found for each in some] == [
        b"first",
        b"damaged message",
        b"last",
    ]


@pytest.mark.parametrize("for_s", [5.0, 1e6])
async def test_what_a_new_master_does_not_serve_yet_is_not_left_out(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    for_s: float,
) -> None:
    """It is waited for; where it does not come, that is an error, and no end."""
    channel = cluster.nodes["b1"].parts.partitions.channels["t", 0]
    parts = streams._parts

    async def then_take_over(*args: Any) -> Any:
        found = await parts(*args)
        before, channel.high_watermark = channel.high_watermark, channel.high_watermark // 2
        asyncio.get_running_loop().call_later(
            for_s, lambda: setattr(channel, "high_watermark", before)
        )
        return found

    monkeypatch.setattr(streams, "_parts", then_take_over)
    if for_s < BEHIND_S:
        assert await read(client, Begin()) == list(range(COUNT))
    else:
        with pytest.raises(Busy, match="serves offsets up to"):
            await read(client, Begin())
