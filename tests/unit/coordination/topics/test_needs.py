"""Which messages of a topic its consumer groups need."""

import asyncio

import pytest
from support.coordination import at

from vq.coordination.groups import groups
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import needs
from vq.coordination.topics.needs import NO_GROUP, read_needs
from vq.coordination.tree.reading import AT_ONCE_MAX
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.errors import VqError
from vq.message_filter import ALL
from vq.model import TopicPartition


async def group(client, name: str, topic: str, **offsets: CommittedOffset) -> None:
    """A group that reads a topic and has committed ``p0``, ``p1`` and so on."""
    await groups.ensure_group(client, name, ConsumerGroup(topics={topic: ALL}))
    for partition, offset in offsets.items():
        where = TopicPartition(topic, int(partition[1:]))
        await ZooKeeperOffsets(client).reset(name, where, offset)


async def test_each_group_needs_what_follows_its_commit(client) -> None:
    """And everything of a partition where it has committed nothing."""
    await group(client, "a", "t", p0=at(100), p1=at(50))
    await group(client, "b", "t", p0=at(70))
    await group(client, "c", "u", p0=at(0))
    found = await read_needs(client, "t", "id")
    assert found.of(0) == {"group a": 100, "group b": 70}
    assert found.of(1) == {"group a": 50, "group b": 0}


async def test_without_any_group_somebody_may_be_to_come(client) -> None:
    await group(client, "c", "u", p0=at(10))
    assert (await read_needs(client, "t", "id")).of(3) == {NO_GROUP: 0}


async def test_what_was_committed_in_a_namesake_counts_for_nothing(client) -> None:
    await group(client, "a", "t", p0=CommittedOffset(offset=9, topic_id="old"))
    await group(client, "b", "t", p0=CommittedOffset(offset=9, topic_id="id"))
    assert (await read_needs(client, "t", "id")).of(0) == {"group a": 0, "group b": 9}


async def test_a_group_that_cannot_be_read_is_told(client) -> None:
    """Nobody may take it to need nothing."""
    await group(client, "a", "t", p0=at(100))
    await client.set(CommittedOffset.path("a", "t", 0), b"nonsense")
    with pytest.raises(VqError):
        await read_needs(client, "t", "id")


async def test_groups_are_read_at_the_same_time(client, monkeypatch) -> None:
    """So many at once, and no more: retention waits for it, and there may be thousands."""
    for number in range(AT_ONCE_MAX + 6):
        await group(client, f"g{number:03}", "t", p0=at(number))
    real, running, most = needs.read_group, 0, 0

    async def counted(*asked):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        try:
            return await real(*asked)
        finally:
            running -= 1

    monkeypatch.setattr(needs, "read_group", counted)
    found = (await read_needs(client, "t", "id")).of(0)
    assert found == {f"group g{number:03}": number for number in range(AT_ONCE_MAX + 6)}
    assert most == AT_ONCE_MAX
