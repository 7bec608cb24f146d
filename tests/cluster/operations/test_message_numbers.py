"""Operators go between offsets and numbers of messages, across moves."""

from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.consumers import consumer_of, take

from vq import Message, admin, aio
from vq.errors import InvalidArgument, UnknownPartition
from vq.testing.waiting import until_true

pytestmark = pytest.mark.virtual_time

MESSAGES = 5


@pytest.fixture
async def moved() -> AsyncIterator[tuple[MemoryCluster, aio.Admin, str, str]]:
    """Topic ``t``, moved to another group behind its first five messages; five more follow."""
    async with memory_cluster() as cluster:
        for group in ("b1", "b2"):
            await cluster.start(group)
        await cluster.create_topic("t", partitions=1)
        async with factory_of(cluster) as factory:
            operator = factory.admin
            (placement,) = await operator.placements("t")
            source = placement.writer_group or ""
            target = {"b1": "b2", "b2": "b1"}[source]
            async with await factory.create_producer() as producer:
                for number in range(MESSAGES):
                    await producer.send(Message("t", b"%d" % number * 50))
                await operator.move(await operator.plan_moves("t", [0], target))

                async def has_moved() -> bool:
                    return (await operator.placements("t"))[0].writer_group == target

                await until_true(has_moved)
                for number in range(MESSAGES):
                    await producer.send(Message("t", b"%d" % number * 50))
            yield cluster, operator, source, target


async def test_numbers_and_offsets_lead_to_each_other(moved) -> None:
    _, operator, _, _ = moved
    ends = (await operator.bounds("t"))[0]
    assert ends.latest_number == 2 * MESSAGES
    for number in range(2 * MESSAGES):
        offset = (await operator.offsets_at_numbers("t", {0: number}))[0]
        assert await operator.numbers_at("t", {0: offset}) == {0: number}
    assert await operator.numbers_at("t", {0: 0}) == {0: 0}
    assert await operator.numbers_at("t", {0: ends.latest}) == {0: 2 * MESSAGES}
    assert await operator.offsets_at_numbers("t", {0: 10**9}) == {0: ends.latest}
    assert await operator.numbers_at("t", {0: ends.latest + 1}) == {0: None}
    with pytest.raises(UnknownPartition):
        await operator.numbers_at("t", {1: 0})
    with pytest.raises(InvalidArgument, match="is no offset or number"):
        await operator.offsets_at_numbers("t", {0: -1})


async def test_what_a_silent_group_knows_is_unknown_and_no_more(moved) -> None:
    """Where its span ended the placement tells, so what follows is found without it."""
    cluster, operator, source, _ = moved
    right = (await operator.offsets_at_numbers("t", {0: MESSAGES + 1}))[0]
    await cluster.nodes[source].stop()
    assert await operator.offsets_at_numbers("t", {0: MESSAGES + 1}) == {0: right}
    assert await operator.numbers_at("t", {0: right}) == {0: MESSAGES + 1}
    assert await operator.offsets_at_numbers("t", {0: MESSAGES - 1}) == {0: None}
    assert await operator.numbers_at("t", {0: 0}) == {0: None}


async def test_a_lag_is_exact_across_a_move_and_tells_the_numbers(moved) -> None:
    cluster, operator, _, _ = moved
    async with factory_of(cluster) as factory, await consumer_of(factory) as consumer:
        assert len(await take(consumer, 4)) == 4  # closing counts the last one, too
    (found,) = (await operator.describe_group("g")).partitions
    assert isinstance(found, admin.GroupProgress)
    assert (found.number, found.end_number, found.lag_messages) == (4, 10, 6)
    (uncounted,) = (await operator.describe_group("g", count=False)).partitions
    assert (uncounted.number, uncounted.end_number, uncounted.lag_messages) == (None, 10, None)
