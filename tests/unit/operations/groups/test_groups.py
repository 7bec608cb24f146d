"""A group's backlog: what is known of it, and what is not."""

from dataclasses import replace
from typing import cast

from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.message_filter import ALL
from vq.model import PartitionPlacement, Span, TopicPartition
from vq.operations.groups.groups import GroupDescription, GroupNodes, description, progress
from vq.operations.partitions.offsets import Inspector, PartitionEnds


class Answers:
    """An inspector whose brokers hold ``[earliest, 900)`` and count ``messages``.

    Attributes:
        counted: The ranges that were to be counted.
    """

    def __init__(self, messages: int | None, *, earliest: int = 0) -> None:
        self.counted: list[tuple[int, int]] = []
        self._messages = messages
        self._earliest = earliest

    async def ends_if_told(self, _placement: PartitionPlacement) -> PartitionEnds:
        return PartitionEnds(self._earliest, 900, 900)

    async def age_s(self, _placement: PartitionPlacement, offset: int) -> float:
        return (900 - offset) / 10

    async def count(self, _placement: PartitionPlacement, start: int, end: int) -> int | None:
        self.counted.append((start, end))
        return self._messages


async def described(*messages: int | None) -> GroupDescription:
    """Return the description of a group that is 400 bytes behind in one partition per answer."""
    offsets = {
        TopicPartition("t", number): CommittedOffset(offset=500) for number in range(len(messages))
    }
    state = GroupNodes(ConsumerGroup(topics={"t": ALL}), {}, {}, offsets, {})
    rows = [
        await progress(
            cast("Inspector", Answers(each)),
            state,
            PartitionPlacement("t", number, (Span("b1", 0),)),
            count=True,
        )
        for number, each in enumerate(messages)
    ]
    return description("g", state, rows)


async def test_the_lag_is_the_sum_over_the_partitions() -> None:
    summary = await described(4, 3)
    assert (summary.lag_bytes, summary.lag_messages) == (800, 7)


async def test_a_lag_that_cannot_be_counted_is_unknown_beside_the_bytes_that_are_known() -> None:
    summary = await described(4, None)
    assert (summary.lag_bytes, summary.lag_messages) == (800, None)


async def test_what_is_not_kept_any_more_is_no_lag() -> None:
    partition = TopicPartition("t", 0)
    offsets = {partition: CommittedOffset(offset=500)}
    state = GroupNodes(ConsumerGroup(topics={"t": ALL}), {}, {}, offsets, {})
    answers = Answers(3, earliest=600)
    placement = PartitionPlacement(*partition, (Span("b1", 0),))
    row = await progress(cast("Inspector", answers), state, placement, count=True)
    assert (row.committed, row.lag_bytes, row.lag_messages) == (500, 300, 3)
    assert answers.counted == [(600, 900)]


async def test_a_group_that_starts_at_the_latest_owes_what_younger_partitions_hold() -> None:
    """A consumer begins at their start, so they count; older ones begin at their end."""
    contract = ConsumerGroup(start="latest", topics={"t": ALL})
    state = GroupNodes(contract, {}, {}, {}, {}, {TopicPartition("t", 1)})
    rows = [
        await progress(
            cast("Inspector", Answers(7)),
            state,
            PartitionPlacement("t", number, (Span("b1", 0),)),
            count=True,
        )
        for number in range(2)
    ]
    assert [row.lag_bytes for row in rows] == [0, 900]


async def test_the_lag_in_seconds_is_that_of_the_oldest_message() -> None:
    """The greatest over the partitions; one that is unknown makes it unknown."""
    found = await described(1, 2)
    assert [each.lag_s for each in found.partitions] == [40.0, 40.0]
    assert found.lag_s == 40.0
    unknown = replace(found.partitions[0], lag_s=None)
    assert replace(found, partitions=(unknown, found.partitions[1])).lag_s is None
    assert replace(found, partitions=()).lag_s == 0.0
