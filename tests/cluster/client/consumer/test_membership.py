"""Members share the partitions of their topics evenly, whoever and whatever comes and goes."""

import asyncio
from typing import Any

import pytest
from support.membership import (
    ALL,
    Consumer,
    Group,
    audit,
    gives,
    share,
)

from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import topics
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import TopicPartition
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


async def test_who_joins_while_placements_are_read_has_its_share_from_the_first_round(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of a new group start together; what one claims first, it would hand over again."""
    may_read = {name: asyncio.Event() for name in ("a", "b")}

    async def join(name: str) -> Consumer:
        client = await group.client()
        track = client.track

        async def slowly(topic: str) -> Any:
            await may_read[name].wait()
            return await track(topic)

        monkeypatch.setattr(client, "track", slowly)
        return await group.join(name, client)

    first = await join("a")
    await asyncio.sleep(1.0)
    second = await join("b")
    await asyncio.sleep(1.0)
    may_read["a"].set()
    await until(lambda: len(first.held) == 2)
    may_read["b"].set()
    await until(lambda: first.held | second.held == ALL)
    assert not [each for each in first.events + second.events if "give up" in each]


async def test_one_member_has_everything(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_second_member_takes_its_half_and_gives_it_back(group: Group) -> None:
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    second = await group.join("b")
    await share(first, second)
    assert len(first.events) == 2, "only the partitions that move stop"
    await second.member.close(1.0)
    await until(lambda: first.held == ALL)
    assert await group.members() == ["a"]


async def test_many_members_join_and_leave_at_once(group: Group) -> None:
    consumers = [await group.member(name) for name in "abcdef"]
    await asyncio.gather(*(each.member.start() for each in consumers))
    await share(*consumers)
    await asyncio.gather(*(each.member.close(1.0) for each in consumers[:5]))
    await until(lambda: consumers[5].held == ALL)
    assert await group.owners() == dict.fromkeys(ALL, "f")


async def test_members_of_one_session_are_told_apart(group: Group) -> None:
    """Two consumers of one factory share its session."""
    client = await group.client()
    first, second = await group.join("a", client), await group.join("b", client)
    await share(first, second)
    await first.member.close(1.0)
    await until(lambda: second.held == ALL)


async def test_a_topic_that_is_deleted_is_given_up(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    async with group.cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, "t")
    await until(lambda: not consumer.held)
    await group.cluster.create_topic("t", partitions=4)
    await until(lambda: consumer.held == ALL)


async def test_partitions_that_are_added_are_taken(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    async with group.cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 1)
    await until(lambda: TopicPartition("t", 4) in consumer.held)


async def test_a_fence_leaves_no_partition_without_a_member(group: Group) -> None:
    """A reset takes the claims and leaves the owner nodes: whoever made them has to delete them.

    The share is computed anew in the order of the names, so both members get what the other had.
    """
    first = await group.join("zz")
    await until(lambda: first.held == ALL)
    second = await group.join("b")
    await share(first, second)
    before = {first.name: set(first.held), second.name: set(second.held)}
    async with group.cluster.admin() as coordinator:
        for where in sorted(ALL):
            fresh = CommittedOffset(offset=0, message_id=None, time_ms=0, member="", topic_id="")
            await ZooKeeperOffsets(coordinator).reset("g", where, fresh)
    for consumer in (first, second):
        consumer.events.clear()
        audit(consumer)
    await until(lambda: len(first.events) == len(second.events) == 2)
    await share(first, second)
    assert {first.name: first.held, second.name: second.held} != before
    await until_true(
        lambda: gives(
            group.owners(), dict.fromkeys(first.held, "zz") | dict.fromkeys(second.held, "b")
        )
    )
