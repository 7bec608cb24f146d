"""``vq group describe``: what is known of a group's backlog, and what is not."""

from typing import cast

import pytest

from vq.admin.partitions import Inspector, PartitionEnds
from vq.cli import group
from vq.cli.group import GroupState
from vq.coordination.paths import CommittedOffset, ConsumerGroup
from vq.model import PartitionPlacement, Span, TopicPartition


class Answers:
    """An inspector whose brokers hold ``[earliest, 900)`` and count ``messages``.

    Attributes:
        counted: The ranges that were to be counted.
    """

    def __init__(self, messages: int | None, *, earliest: int = 0) -> None:
        self.counted: list[tuple[int, int]] = []
        self._messages = messages
        self._earliest = earliest

    async def ends(self, _placement: PartitionPlacement) -> PartitionEnds:
        return PartitionEnds(self._earliest, 900, 900)

    async def count(self, _placement: PartitionPlacement, start: int, end: int) -> int | None:
        self.counted.append((start, end))
        return self._messages


async def described(*messages: int | None) -> dict[str, object]:
    """Return the summary of a group that is 400 bytes behind in one partition per answer."""
    offsets = {
        TopicPartition("t", number): CommittedOffset(offset=500) for number in range(len(messages))
    }
    state = GroupState(ConsumerGroup(topics={"t": ""}), {}, {}, offsets, {})
    rows = [
        await group._row(
            cast("Inspector", Answers(each)),
            state,
            PartitionPlacement("t", number, (Span("b1", 0),)),
            counted=True,
        )
        for number, each in enumerate(messages)
    ]
    return group._summary("g", state, rows)


async def test_the_lag_is_the_sum_over_the_partitions() -> None:
    summary = await described(4, 3)
    assert (summary["lag_bytes"], summary["lag_messages"]) == (800, 7)


async def test_a_lag_that_cannot_be_counted_is_unknown_beside_the_bytes_that_are_known() -> None:
    summary = await described(4, None)
    assert (summary["lag_bytes"], summary["lag_messages"]) == (800, None)


async def test_what_is_not_kept_any_more_is_no_lag() -> None:
    where = TopicPartition("t", 0)
    offsets = {where: CommittedOffset(offset=500)}
    state = GroupState(ConsumerGroup(topics={"t": ""}), {}, {}, offsets, {})
    answers = Answers(3, earliest=600)
    placement = PartitionPlacement(*where, (Span("b1", 0),))
    row = await group._row(cast("Inspector", answers), state, placement, counted=True)
    assert (row["committed"], row["lag_bytes"], row["lag_messages"]) == (500, 300, 3)
    assert answers.counted == [(600, 900)]


async def test_a_group_that_starts_at_the_latest_owes_what_younger_partitions_hold() -> None:
    """A consumer begins at their start, so they count; older ones begin at their end."""
    contract = ConsumerGroup(start="latest", topics={"t": ""})
    state = GroupState(contract, {}, {}, {}, {}, {TopicPartition("t", 1)})
    rows = [
        await group._row(
            cast("Inspector", Answers(7)),
            state,
            PartitionPlacement("t", number, (Span("b1", 0),)),
            counted=True,
        )
        for number in range(2)
    ]
    assert [row["lag_bytes"] for row in rows] == [0, 900]


@pytest.mark.parametrize("time_ms", [10**15, -(10**15), 10**18, 10**400], ids=range(4))
def test_a_time_that_no_clock_shows_is_shown_as_it_is(time_ms: int) -> None:
    """It is what somebody wrote into the tree."""
    assert group._utc(time_ms) == f"{time_ms} ms"


def test_a_time_is_shown_in_utc() -> None:
    assert group._utc(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
