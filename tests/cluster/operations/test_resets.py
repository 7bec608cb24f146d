"""Resets of a group's progress: the plan, and what becomes of it, against brokers in memory."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of, started

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.coordination.groups import groups
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import topics
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import (
    InvalidArgument,
    InvalidState,
    NotMaster,
    OffsetNotBoundary,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from vq.model import Message, TopicPartition
from vq.operations.groups.groups import describe_group
from vq.operations.groups.resets import Goal, Reset, Target, plan_reset, reset
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

WHERE = TopicPartition("t", 0)
EARLIEST, LATEST = Target(goal=Goal.EARLIEST), Target(goal=Goal.LATEST)
COMMITTED = Target(goal=Goal.COMMITTED)
SIZE = 88 + 20 + 1  # of a batch with one message of one byte


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker; four messages in the only partition of ``t``, none in the two of ``wide``."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        await cluster.create_topic("wide", partitions=2)
        async with factory_of(cluster) as factory:
            config = ProducerConfig(batch_records=1)
            async with await factory.create_producer(config) as producer:
                for number in range(4):
                    await producer.send(Message("t", b"%d" % number))
        yield cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[ClusterClient]:
    """A client of it; group ``g`` has read the first message."""
    async with factory_of(cluster) as factory:
        assert await consumed(factory, 1) == [b"0"]
    async with started(cluster, host="operator") as client:
        yield client


async def consumed(factory: aio.MessageFactory, count: int, **settings: Any) -> list[bytes]:
    """Return what a member of the group is given next."""
    config = ConsumerConfig(**{"group": "g", "max_wait_s": 0.2, **settings})
    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe("t")
        found: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                found.append(message.content)
                if len(found) == count:
                    await consumer.commit()
                    break
    return found


async def plan_one(client: ClusterClient, target: Target, **options: Any) -> Reset:
    (planned,) = await plan_reset(client, "g", target, **options)
    return planned


async def committed(client: ClusterClient) -> CommittedOffset | None:
    return (await ZooKeeperOffsets(client.coordinator).read("g", ["t"])).get(WHERE)


async def test_a_goal_may_be_text(client: ClusterClient) -> None:
    """As a text it was taken for an offset: the group began again at 0."""
    latest: Any = {"goal": "latest"}
    assert (await plan_one(client, Target(**latest))).after.offset == 4 * SIZE


def test_a_goal_that_there_is_not_is_refused() -> None:
    newest: Any = {"goal": "newest"}
    with pytest.raises(InvalidArgument, match="goal = 'newest'; give 'earliest' or 'latest' or"):
        Target(**newest)
    shift: Any = {"goal": "shift"}
    with pytest.raises(InvalidArgument, match="a shift by 0 messages"):
        Target(**shift)


async def test_the_plan_says_what_is_skipped_and_repeated(client: ClusterClient) -> None:
    """In messages; and it changes nothing."""
    before = await committed(client)
    assert before is not None
    for target, offset, skips, repeats in (
        (LATEST, 4 * SIZE, 3, 0),
        (EARLIEST, 0, 0, 1),
        (Target(goal=Goal.OFFSET, value=2 * SIZE), 2 * SIZE, 1, 0),
        (Target(goal=Goal.OFFSET, value=2 * SIZE + 88), 2 * SIZE + 88, 1, 0),
        (Target(goal=Goal.OFFSET, value=4 * SIZE), 4 * SIZE, 3, 0),
        (Target(goal=Goal.TIME, value=0), 0, 0, 1),
        (Target(goal=Goal.TIME, value=1 << 42), 4 * SIZE, 3, 0),
    ):
        planned = await plan_one(client, target)
        assert (planned.before, planned.after.offset) == (before, offset)
        assert (planned.skips, planned.repeats) == (skips, repeats), target
        assert planned.after.topic_id
    assert await committed(client) == before


async def test_a_group_goes_on_where_it_was_set(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Forward and back; what lies between is skipped or comes again."""
    for target, expected in (
        (Target(goal=Goal.OFFSET, value=3 * SIZE), [b"3"]),
        (EARLIEST, [b"0", b"1", b"2", b"3"]),
    ):
        await reset(client, "g", [await plan_one(client, target)])
        async with factory_of(cluster) as factory:
            assert await consumed(factory, len(expected)) == expected


@pytest.mark.parametrize(
    ("target", "options", "error"),
    [
        (EARLIEST, {"only_topics": ["wide"]}, InvalidArgument),
        (EARLIEST, {"only_partitions": [1]}, UnknownPartition),
        (Target(goal=Goal.OFFSET, value=4 * SIZE + 1), {}, OffsetOutOfRange),
        (Target(goal=Goal.OFFSET, value=5), {}, OffsetNotBoundary),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_happens(
    client: ClusterClient, target: Target, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await plan_reset(client, "g", target, **options)
    with pytest.raises(UnknownGroup):
        await plan_reset(client, "nobody", target, **options)


async def test_an_offset_means_one_partition(cluster: MemoryCluster, client: ClusterClient) -> None:
    async with factory_of(cluster) as factory:
        consumer = await factory.create_consumer(ConsumerConfig(group="w"))
        async with consumer.subscribe("wide"):
            await consumer.start()
            await until(lambda: len(consumer.assignment()) == 2)
    target = Target(goal=Goal.OFFSET)
    with pytest.raises(InvalidArgument, match="2 are named"):
        await plan_reset(client, "w", target)
    assert len(await plan_reset(client, "w", target, only_partitions=[1])) == 1


async def test_a_broker_that_is_away_is_named(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """An end that nobody tells is not taken for 0."""
    await cluster.nodes["b1"].stop()
    with pytest.raises(NotMaster, match="no answer from the broker of t-0"):
        await plan_reset(client, "g", LATEST)


async def test_a_topic_that_is_gone_is_left_out_unless_it_is_named(client: ClusterClient) -> None:
    await topics.delete_topic(client.coordinator, "t")
    assert await plan_reset(client, "g", LATEST) == []
    with pytest.raises(UnknownTopic):
        await plan_reset(client, "g", LATEST, only_topics=["t"])


async def test_a_group_with_members_is_not_reset(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Unless they are to be fenced: then they go on from the new offset by themselves."""
    async with factory_of(cluster) as factory:
        config = ConsumerConfig(group="g", max_wait_s=0.2, audit_interval_s=0.05)
        async with await factory.create_consumer(config) as consumer:
            consumer.subscribe("t")
            messages = aiter(consumer)
            async with asyncio.timeout(WAIT_S):
                assert (await anext(messages)).content == b"1"
                planned = [await plan_one(client, EARLIEST)]
                before = await committed(client)
                with pytest.raises(InvalidState, match="has members, 1 in all"):
                    await reset(client, "g", planned)
                assert await committed(client) == before
                await reset(client, "g", planned, fence=True)
                found = []
                while b"0" not in found:
                    found.append((await anext(messages)).content)
                assert (await anext(messages)).content == b"1"
                await consumer.commit()
    after = await committed(client)
    assert after is not None
    assert after.offset < 4 * SIZE, "what was done before the reset was committed over it"


async def test_only_what_is_stopped_is_reset_if_asked(client: ClusterClient) -> None:
    """By its mark, or because it lies beyond the end."""
    assert await plan_reset(client, "g", LATEST, only_stopped=True) == []
    assert await plan_reset(client, "g", COMMITTED) == []
    before = await committed(client)
    assert before is not None
    stopped = replace(before, stopped="why")
    for value in (stopped, replace(before, offset=9999)):
        await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, value)
        planned = await plan_one(client, LATEST, only_stopped=True)
        assert planned.before == value
        assert (planned.skips, planned.repeats) == ((3, 0) if value is stopped else (None, None))


async def test_a_stop_is_taken_away_where_the_offset_is_one_again(client: ClusterClient) -> None:
    """The place stays the same, with the message that tells it."""
    before = await committed(client)
    assert before is not None
    await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, replace(before, stopped="why"))
    planned = await plan_one(client, COMMITTED)
    await reset(client, "g", [planned])
    after = await committed(client)
    assert after is not None
    assert (after.offset, after.message_id) == (before.offset, before.message_id)
    assert after.stopped == ""
    at_end = replace(before, offset=4 * SIZE, stopped="why")
    await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, at_end)
    assert (await plan_one(client, COMMITTED)).after.offset == 4 * SIZE
    beyond = replace(before, offset=9999, stopped="why")
    await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, beyond)
    with pytest.raises(OffsetOutOfRange, match="still lies beyond"):
        await plan_reset(client, "g", COMMITTED)


async def test_a_group_that_has_read_everything_is_not_stopped(client: ClusterClient) -> None:
    """Its offset is the end and not beyond it: a reset of what is stopped leaves it alone."""
    before = await committed(client)
    assert before is not None
    at_end = replace(before, offset=4 * SIZE)
    await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, at_end)
    assert await plan_reset(client, "g", EARLIEST, only_stopped=True) == []


@pytest.mark.parametrize(
    ("shift", "offset", "skips", "repeats"),
    [(1, 2 * SIZE, 1, 0), (2, 3 * SIZE, 2, 0), (9, 4 * SIZE, 3, 0), (-1, 88, 0, 1), (-9, 0, 0, 1)],
)
async def test_a_group_is_shifted_by_messages(
    client: ClusterClient, shift: int, offset: int, skips: int, repeats: int
) -> None:
    """From where it is, forward and back; at the ends of what is kept it stops."""
    planned = await plan_one(client, Target(goal=Goal.SHIFT, value=shift))
    assert (planned.after.offset, planned.skips, planned.repeats) == (offset, skips, repeats)


@pytest.mark.parametrize("shift", [0, 100_001, -100_001])
def test_a_shift_has_bounds(shift: int) -> None:
    with pytest.raises(InvalidArgument, match=f"a shift by {shift} messages"):
        Target(goal=Goal.SHIFT, value=shift)


# Namesakes, and what is deleted meanwhile -------------------------------------------------------
ELSEWHERE = CommittedOffset(offset=2 * SIZE, time_ms=5, member="m", topic_id="another")


async def test_an_offset_of_another_topic_of_this_name_is_nowhere(client: ClusterClient) -> None:
    """It counts as stopped, keeps nobody from another place, and no count starts from it."""
    await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, ELSEWHERE)
    for target, skips in ((LATEST, 4), (EARLIEST, 0), (Target(goal=Goal.OFFSET, value=SIZE), 1)):
        planned = await plan_one(client, target, only_stopped=True)
        assert (planned.skips, planned.repeats) == (skips, 0)
        assert planned.after.topic_id not in {"", "another"}
    for target in (COMMITTED, Target(goal=Goal.SHIFT, value=1)):
        with pytest.raises(InvalidState, match="committed for another topic of this name"):
            await plan_reset(client, "g", target)
    (told,) = (await describe_group(client, "g")).partitions
    assert told.needs_reset
    assert told.stopped is not None
    assert "another topic" in told.stopped
    assert told.lag_bytes is None


async def test_a_plan_without_an_offset_says_what_it_skips(client: ClusterClient) -> None:
    """The group would begin with the oldest message."""
    await client.coordinator.delete(CommittedOffset.path("g", "t", 0))
    assert (await plan_one(client, LATEST)).skips == 4
    assert (await plan_one(client, EARLIEST)).skips == 0


async def test_a_plan_is_not_carried_out_in_another_topic(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    planned = [await plan_one(client, LATEST)]
    await topics.delete_topic(client.coordinator, "t")
    with pytest.raises(InvalidState, match="'t' was deleted or made anew"):
        await reset(client, "g", planned)
    await cluster.create_topic("t", partitions=1)
    with pytest.raises(InvalidState, match="'t' was deleted or made anew"):
        await reset(client, "g", planned)
    assert await committed(client) is None


async def test_a_plan_makes_no_deleted_group_anew(client: ClusterClient) -> None:
    planned = [await plan_one(client, LATEST)]
    await groups.delete_group(client.coordinator, "g")
    with pytest.raises(InvalidState, match="was deleted meanwhile"):
        await reset(client, "g", planned)
    assert await groups.list_groups(client.coordinator) == []


@pytest.mark.parametrize(
    "given",
    [{"goal": "nope"}, {"goal": Goal.TIME, "value": -1}, {"goal": "time", "value": 1 << 63}],
)
def test_a_target_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Target(**given)
    assert Target(goal="latest").goal is Goal.LATEST  # type: ignore[arg-type]
