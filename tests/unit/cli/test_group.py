"""``vq group describe``: what is known of a group's backlog, and what is not."""

from typing import cast

import pytest

from vq.cli import group
from vq.cli.group import GroupState
from vq.client.admin import Inspector, PartitionEnds
from vq.coordination.paths import CommittedOffset, ConsumerGroup
from vq.model import PartitionPlacement, Span, TopicPartition


class Answers:
    """An inspector whose brokers hold ``[0, 900)`` and count ``messages``."""

    def __init__(self, messages: int | None) -> None:
        self._messages = messages

    async def ends(self, _placement: PartitionPlacement) -> PartitionEnds:
        return PartitionEnds(0, 900, 900)

    async def count(self, _placement: PartitionPlacement, _start: int, _end: int) -> int | None:
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
