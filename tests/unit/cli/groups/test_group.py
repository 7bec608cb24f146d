"""``vq group describe``: what it says to people."""

import pytest

from vq.cli.base import text
from vq.cli.groups import group
from vq.operations.groups.groups import GroupProgress, GroupSummary


@pytest.mark.parametrize("time_ms", [10**15, -(10**15), 10**18, 10**400], ids=range(4))
def test_a_time_that_no_clock_shows_is_shown_as_it_is(time_ms: int) -> None:
    """It is what somebody wrote into the tree."""
    assert text.utc(time_ms) == f"{time_ms} ms"


def test_a_time_is_shown_in_utc() -> None:
    assert text.utc(1_700_000_000_000) == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (GroupProgress(topic="t", partition=0, committed=5, start=5, end=9), []),
        (
            GroupProgress(topic="t", partition=0, committed=5, start=6, end=9),
            [
                "t-0: messages were deleted before the group read them: it is at offset 5, and the "
                "partition starts at 6"
            ],
        ),
        (
            GroupProgress(topic="t", partition=0, committed=9, end=5),
            ["t-0: the committed offset 9 lies beyond the end 5: messages were lost there"],
        ),
        (
            GroupProgress(
                topic="t", partition=0, committed=9, end=5, stopped="w", needs_reset=True
            ),
            ["t-0: the group was stopped at offset 9: w; `vq group reset g` sets where it goes on"],
        ),
        (
            GroupProgress(
                topic="t", partition=0, owner="m", stopped="w", stopped_at=7, stopped_since_ms=0
            ),
            ["t-0: m does not go on at offset 7 since 1970-01-01T00:00:00.000Z: w"],
        ),
        (
            GroupProgress(
                topic="t",
                partition=0,
                owner="m",
                stopped="w",
                stopped_at=7,
                held=2,
                message_id=99,
                attempts=5,
                next_try_ms=1_000,
            ),
            [
                "t-0: m holds 2 messages that its listener fails for; the first is at offset 7, id "
                "99, since an unknown time, 5 attempts, next try 1970-01-01T00:00:01.000Z: w"
            ],
        ),
        (
            GroupProgress(topic="t", partition=0, owner="m", stopped="w", stopped_at=7),
            ["t-0: m does not go on at offset 7 since an unknown time: w"],
        ),
    ],
)
def test_a_partition_in_which_a_group_does_not_go_on_is_told(
    progress: GroupProgress, said: list[str]
) -> None:
    found = group.remarks_on("g", progress)
    assert len(found) == len(said)
    assert all(each.startswith(begin) for each, begin in zip(found, said, strict=True))


@pytest.mark.parametrize(
    ("topics", "unsubscribed", "shown"),
    [((), (), "-"), (("a",), (), "a"), (("a", "b"), ("b",), "a,b (not subscribed)")],
)
def test_the_topics_of_a_group_are_told_also_when_it_has_none(
    topics: tuple[str, ...], unsubscribed: tuple[str, ...], shown: str
) -> None:
    """It may have been told to forget the last one."""
    found = GroupSummary("g", topics, 0, "clustering", "earliest", unsubscribed)
    assert group.topics_text(found) == shown
