"""Why a partition is not consumed: each cause, and what is not known."""

import pytest
from support.explained import END, PARTITIONS, asked, at

from vq.operations.explain import partition_causes
from vq.operations.explain.answers import NOT_KNOWN


@pytest.mark.parametrize("cause", PARTITIONS)
def test_why_a_partition_is_not_consumed(cause: str) -> None:
    found = asked(partition_causes.TABLE, PARTITIONS[cause])
    assert (found.found.cause, found.is_certain) == (cause, True)
    assert partition_causes.facts_told(PARTITIONS[cause])


def test_every_cause_of_a_partition_has_its_case() -> None:
    assert list(PARTITIONS) == [each.cause for each in partition_causes.TABLE]


def test_a_place_that_is_kept_and_a_roll_are_told() -> None:
    kept = asked(partition_causes.TABLE, at(p_owner=None, kept_for="m9"))
    assert "the place of m9" in kept.found.text
    rolls = asked(partition_causes.TABLE, at(p_owner=None, rolls=True))
    assert "two versions" in rolls.found.text


def test_a_stream_without_members_is_no_group_without_readers() -> None:
    facts = at(members=0, subscribers=0, p_owner=None, by_stream=True, owner_place=None)
    assert asked(partition_causes.TABLE, facts).found.cause == "consumed"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ({"members": 0, "subscribers": 0}, "It has no members: what comes next waits"),
        ({"subscribers": 0, "p_subscribed": False}, "subscribes to t now: what comes next waits"),
    ],
)
def test_a_group_that_has_handled_all_misses_no_reader(missing: dict[str, int], said: str) -> None:
    """Nothing is wrong, as ``vq group describe`` says, and the answer tells what will be."""
    gone = missing | {"p_owner": None}
    found = asked(partition_causes.TABLE, at(**END, **gone))
    assert (found.found.cause, found.is_certain) == ("at_end", True)
    assert said in found.found.text
    cause = "no_members" if "members" in missing else "not_subscribed"
    for unread in ({}, {**END, "log_end": 700}, {**END, "p_start": 600}, {"p_lag_bytes": None}):
        assert asked(partition_causes.TABLE, at(**{**gone, **unread})).found.cause == cause


def test_a_lag_that_nobody_tells_is_not_taken_for_none() -> None:
    found = asked(partition_causes.TABLE, at(p_end=None, p_lag_bytes=None, p_lag_s=None))
    assert found.found.cause == NOT_KNOWN
    assert {"not_replicated", "not_moving", "at_end"} <= {*found.open}


def test_a_filter_that_only_members_know_leaves_the_answer_open() -> None:
    found = asked(partition_causes.TABLE, at(**END, p_filter="MessageFilter own", matching=None))
    assert (found.found.cause, found.open) == (NOT_KNOWN, ("filter_matches_nothing",))
