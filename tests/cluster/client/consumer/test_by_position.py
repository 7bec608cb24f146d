"""A member whose messages are finished by their positions."""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.consumers import client_of_factory, consumer_of, send, take, until_committed

from vq import aio
from vq.aio.hosted import HostedConsumer
from vq.client.config import ConsumerConfig
from vq.errors import GenerationStale, InvalidState
from vq.model import Message, TopicPartition
from vq.testing.waiting import until

SIZE = 1 << 20
FIRST = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, and topic ``t`` of two partitions."""
    async with memory_cluster() as made:
        await made.start()
        await made.create_topic("t", partitions=2)
        yield made


@pytest.fixture
async def hosted(factory: aio.MessageFactory) -> AsyncIterator[HostedConsumer]:
    """A started member of group ``g``, with a small window."""
    member = await started(factory)
    yield member
    await member.close()


async def started(factory: aio.MessageFactory, **settings: int) -> HostedConsumer:
    member = HostedConsumer(factory, ConsumerConfig(group="g", **settings))  # type: ignore[arg-type]
    member.subscribe("t")
    await member.start()
    return member


def numbered(count: int, key: int = 0) -> list[Message]:
    return [Message("t", b"%d" % number, key=key) for number in range(count)]


async def taken(member: HostedConsumer, count: int, most: int = 100) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await member.take(most, SIZE, 20)
    return found


async def test_many_messages_are_given_out_before_one_is_finished_each_once_and_in_order(
    hosted: HostedConsumer, factory: aio.MessageFactory
) -> None:
    """Also such as arrive one by one: each is a chunk of its own."""
    for key in (0, 1):
        await send(factory, *numbered(20, key))
    found = await taken(hosted, 40, most=3)
    assert hosted.count == 40
    assert hosted.size == sum(len(each.content) for each in found)
    assert hosted.again() == found
    by_key = sorted(found, key=lambda each: each.key)
    for _, messages in groupby(by_key, key=lambda each: each.key):
        assert [int(each.content) for each in messages] == list(range(20))


async def test_a_call_has_no_more_than_it_asks_for(
    hosted: HostedConsumer, factory: aio.MessageFactory
) -> None:
    await send(factory, *(Message("t", b"x" * 1000, key=0) for _ in range(5)))
    first = await hosted.take(2, SIZE, 20)
    assert 1 <= len(first) <= 2
    assert len(await hosted.take(100, 1, 20)) == 1  # the one that reaches the bound
    assert await hosted.take(100, SIZE, 0) == hosted.again()[len(first) + 1 :]


async def test_a_position_finishes_what_is_before_it_and_nothing_else(
    hosted: HostedConsumer, factory: aio.MessageFactory
) -> None:
    await send(factory, *numbered(6))
    found = await taken(hosted, 6)
    assert await hosted.commit({FIRST: found[2].next_offset}) == {FIRST: None}
    assert hosted.again() == found[3:]
    between = found[4].offset  # of which the message before is the last one
    assert await hosted.commit({FIRST: between}) == {FIRST: None}
    assert hosted.again() == found[4:]
    assert await hosted.commit({FIRST: found[0].next_offset}) == {FIRST: None}  # long since
    await until_committed(await consumer_of(factory), found[3].next_offset)


async def test_a_position_behind_all_that_was_given_out_is_refused(
    hosted: HostedConsumer, factory: aio.MessageFactory
) -> None:
    await send(factory, *numbered(4))
    found = await taken(hosted, 1, most=1)
    outcomes = await hosted.commit({FIRST: found[0].next_offset + 1})
    assert isinstance(outcomes[FIRST], InvalidState)
    assert hosted.again() == found
    other = TopicPartition("t", 7)
    assert isinstance((await hosted.commit({other: 5}))[other], GenerationStale)


async def test_nothing_is_committed_without_a_position(
    hosted: HostedConsumer, factory: aio.MessageFactory
) -> None:
    """Also not by the end of the member."""
    await send(factory, *numbered(4))
    found = await taken(hosted, 4)
    await hosted.commit({FIRST: found[0].next_offset})
    await hosted.close()
    assert await take(await consumer_of(factory), 3) == [b"1", b"2", b"3"]


async def test_a_window_that_is_full_goes_on_with_a_commit(factory: aio.MessageFactory) -> None:
    member = await started(factory, window_messages=4)
    await send(factory, *numbered(9))
    first = await taken(member, 4)
    assert await member.take(100, SIZE, 0.05) == []
    await member.commit({FIRST: first[-1].next_offset})
    assert [each.content for each in await taken(member, 4)] == [b"4", b"5", b"6", b"7"]
    await member.close()


async def test_a_partition_without_messages_in_hand_moves_at_once(
    hosted: HostedConsumer, cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await until(lambda: len(hosted.assignment()) == 2)
    async with factory_of(cluster, host="other", seed=5) as other:
        native = await consumer_of(other)
        await native.start()
        await until(lambda: len(native.assignment()) == len(hosted.assignment()) == 1)


@pytest.mark.virtual_time
async def test_what_is_committed_while_its_partition_moves_is_not_delivered_again(
    hosted: HostedConsumer, cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    for key in (0, 1):
        await send(factory, *numbered(2, key))
    found = await taken(hosted, 4)
    async with factory_of(cluster, host="other", seed=5) as other:
        native = await consumer_of(other)
        await native.start()
        await asyncio.sleep(3)
        assert native.assignment() == []
        last = {TopicPartition("t", each.partition): each.next_offset for each in found}
        assert set((await hosted.commit(last)).values()) == {None}
        await until(lambda: len(native.assignment()) == 1)
        [moved] = native.assignment()
        await send(other, Message("t", b"new", key=moved.partition))
        assert await take(native, 1) == [b"new"]


async def test_a_wait_ends_with_the_member(hosted: HostedConsumer) -> None:
    waits = asyncio.ensure_future(hosted.take(1, SIZE, 20))
    await until(lambda: not waits.done())
    await hosted.close()
    with pytest.raises(InvalidState, match="closed"):
        await waits


@pytest.mark.virtual_time
async def test_a_lost_session_loses_no_message_and_a_commit_meanwhile_is_told_apart(
    hosted: HostedConsumer, cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """What is committed in time counts under the new claim; the rest is delivered again."""
    await send(factory, *numbered(4))
    found = await taken(hosted, 4)
    coordinator = client_of_factory(factory).coordinator
    session = coordinator.session_id
    cluster.ensemble.expire(coordinator)  # type: ignore[arg-type]
    await until(lambda: coordinator.session_id not in {0, session})
    outcome = (await hosted.commit({FIRST: found[1].next_offset}))[FIRST]
    assert outcome is None or isinstance(outcome, GenerationStale | InvalidState)
    await until(lambda: hosted.again() == [])  # those in hand were waited for, and given back
    again = await taken(hosted, 2)
    assert [each.content for each in again] == [b"2", b"3"]
    last = {FIRST: again[-1].next_offset}
    assert await hosted.commit(last) == {FIRST: None}
    await hosted.close()
    await send(factory, Message("t", b"new", key=0))
    assert await take(await consumer_of(factory), 1) == [b"new"]
