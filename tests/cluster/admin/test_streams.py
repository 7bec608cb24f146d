"""Messages without a group: where reading begins, in which order, and what comes later."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.waiting import WAIT_S

from vq import aio
from vq.admin import streams
from vq.admin.streams import Begin
from vq.client.config import ProducerConfig
from vq.errors import InvalidArgument, OffsetOutOfRange, UnknownPartition
from vq.model import Message

pytestmark = pytest.mark.virtual_time

COUNT = 12


@pytest.fixture
async def factory(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[aio.MessageFactory]:
    """Twelve messages, by turns in the two partitions of ``t``; those of 3, 6, 9 have a tag."""
    monkeypatch.setattr(streams, "_WINDOW_BYTES", 100)
    async with factory_of(cluster) as factory:
        await send(factory, range(COUNT))
        yield factory


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=2)
        yield cluster


async def send(factory: aio.MessageFactory, numbers: Any) -> None:
    config = ProducerConfig(
        batch_records=1, partitioner=lambda message, partitions: int(message.content) % 2
    )
    async with await factory.create_producer(config) as producer:
        for number in numbers:
            tag = "red" if number % 3 == 0 else None
            await producer.send(Message("t", b"%d" % number, tag=tag))
            await asyncio.sleep(0.01)  # of virtual time: ids of another millisecond


async def read(factory: aio.MessageFactory, begin: Begin, **options: Any) -> list[int]:
    found = streams.messages(factory.admin._client, "t", begin, **options)
    return [int(each.content) async for some in found for each in some]


async def test_all_messages_come_in_the_order_in_which_they_were_sent(
    factory: aio.MessageFactory,
) -> None:
    assert await read(factory, Begin()) == list(range(COUNT))
    assert await read(factory, Begin(latest=True)) == []
    assert await read(factory, Begin(), partitions=[1]) == list(range(1, COUNT, 2))
    assert await read(factory, Begin(), tags=["red"]) == [0, 3, 6, 9]


@pytest.mark.parametrize("count", [1, 2, 5, 11, 12, 99])
async def test_the_last_messages_are_those_of_all_partitions(
    factory: aio.MessageFactory, count: int
) -> None:
    assert await read(factory, Begin(last=count)) == list(range(COUNT))[-count:]


async def test_the_last_messages_of_a_tag_are_looked_for_among_the_others(
    factory: aio.MessageFactory,
) -> None:
    assert await read(factory, Begin(last=2), tags=["red"]) == [6, 9]
    assert await read(factory, Begin(last=2), tags=["blue"]) == []


async def test_a_time_and_an_offset_are_places(factory: aio.MessageFactory) -> None:
    found = streams.messages(factory.admin._client, "t", Begin(), partitions=[0])
    messages = [each async for some in found for each in some]
    place = Begin(offset=messages[2].offset)
    assert await read(factory, place, partitions=[0]) == [4, 6, 8, 10]
    now_ms = factory.admin._client.clock.wall_ms()
    await send(factory, [100, 101])
    assert await read(factory, Begin(since_ms=now_ms)) == [100, 101]
    assert (await read(factory, Begin(since_ms=0), partitions=[0]))[:2] == [0, 2]


async def test_what_comes_later_is_followed(factory: aio.MessageFactory) -> None:
    stream = streams.messages(factory.admin._client, "t", Begin(last=1), follow=True)
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


@pytest.mark.parametrize(
    ("begin", "options", "error"),
    [
        (Begin(offset=0), {}, InvalidArgument),
        (Begin(offset=1 << 40), {"partitions": [0]}, OffsetOutOfRange),
        (Begin(), {"partitions": [2]}, UnknownPartition),
    ],
)
async def test_what_cannot_be_read_is_refused(
    factory: aio.MessageFactory, begin: Begin, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await read(factory, begin, **options)


@pytest.mark.parametrize(
    "given", [{"latest": True, "last": 1}, {"since_ms": 5, "offset": 0}, {"since_ms": -1}]
)
def test_a_begin_is_one_place(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Begin(**given)


async def test_following_has_a_bound(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FOLLOWED_MAX", 1)
    with pytest.raises(InvalidArgument, match="2 partitions are too many to follow"):
        await read(factory, Begin(), follow=True)
    with pytest.raises(InvalidArgument, match="last = 100001 is outside"):
        Begin(last=100_001)
