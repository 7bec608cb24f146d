"""Each verdict on a group in a partition, at its bounds."""

from dataclasses import replace
from typing import Any

import pytest
from support.cases import case

from vq.errors import InvalidArgument
from vq.operations.groups.groups import GroupDescription, GroupMember, GroupProgress
from vq.operations.groups.lag_rules import VERDICTS, LagFacts, LagThresholds, judge_lag, why_stopped

NOW_S = 1_795_700_000.0
LIMITS = LagThresholds(warn_s=100, warn_bytes=5_000, warn_messages=500, stalled_after_s=300)

#: Nothing is wrong: 1,000 bytes and 10 messages behind, the oldest 20 s old.
FINE = LagFacts(
    committed=1_000,
    start=0,
    end=2_000,
    lag_bytes=1_000,
    lag_messages=10,
    lag_s=20.0,
    members=1,
    has_owner=True,
    committed_ms=int((NOW_S - 5) * 1_000),
)
NO_LAG = {"committed": 2_000, "lag_bytes": 0, "lag_messages": 0, "lag_s": 0.0}
SILENT = {"end": None, "start": None, "lag_bytes": None, "lag_messages": None, "lag_s": None}
LONG_AGO = {"committed_ms": int((NOW_S - 300) * 1_000)}
STREAM = {"members": 0, "has_owner": False, "by_stream": True}
#: What differs, the verdict, the cause.
CASES: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "ok", None),
    (NO_LAG, "ok", None),
    ({**NO_LAG, "members": 0, "has_owner": False}, "ok", None),
    ({**NO_LAG, **LONG_AGO, "unmoved_s": 900.0}, "ok", None),
    ({"committed": None, "committed_ms": None}, "ok", None),
    # unknown: nothing can be told
    ({"problem": "broadcasting", "needs_reset": True}, "unknown", "broadcasting"),
    (SILENT, "unknown", "broker_silent"),
    ({**SILENT, "members": 0}, "unknown", "broker_silent"),
    ({**SILENT, "no_placement": True}, "unknown", "placement"),
    ({"lag_s": None}, "unknown", "not_measured"),
    ({"lag_messages": None}, "unknown", "not_measured"),
    # stopped
    ({**SILENT, "needs_reset": True}, "stopped", "needs_reset"),
    ({"needs_reset": True, "other_topic": True}, "stopped", "needs_reset"),
    ({**SILENT, "other_topic": True}, "stopped", "other_topic"),
    ({"committed": 2_001, "lag_bytes": None}, "stopped", "beyond_end"),
    ({**SILENT, "owner_error": True}, "stopped", "owner_error"),
    ({"members": 0, "has_owner": False}, "stopped", "no_members"),
    # a stream needs no members
    ({**STREAM}, "ok", None),
    ({**STREAM, **NO_LAG}, "ok", None),
    ({**STREAM, "members": 1}, "warning", "no_owner"),
    ({**STREAM, "lag_s": 300.0, **LONG_AGO}, "stalled", "unmoved"),
    ({**STREAM, "unmoved_s": 300.0}, "stalled", "unmoved"),
    ({**STREAM, "start": 1_001}, "warning", "overtaken"),
    ({**STREAM, "lag_s": 100.0}, "warning", "old"),
    ({**STREAM, "committed": 2_001, "lag_bytes": None}, "stopped", "beyond_end"),
    ({**STREAM, **SILENT}, "unknown", "broker_silent"),
    # stalled
    ({"lag_s": 300.0, **LONG_AGO}, "stalled", "unmoved"),
    ({"lag_s": 299.0, **LONG_AGO}, "warning", "old"),
    ({"lag_s": 300.0}, "warning", "old"),
    ({"unmoved_s": 300.0}, "stalled", "unmoved"),
    ({"unmoved_s": 299.0}, "ok", None),
    ({"committed": None, "committed_ms": None, "lag_s": 900.0}, "warning", "old"),
    # warning
    ({"start": 1_001}, "warning", "overtaken"),
    ({**NO_LAG, "start": 2_001}, "warning", "overtaken"),
    ({"has_owner": False}, "warning", "no_owner"),
    ({"lag_s": 100.0}, "warning", "old"),
    ({"lag_s": 99.9}, "ok", None),
    ({"lag_bytes": 5_000}, "warning", "many_bytes"),
    ({"lag_bytes": 4_999}, "ok", None),
    ({"lag_messages": 500}, "warning", "many_messages"),
    ({"lag_messages": 499}, "ok", None),
    ({"lag_messages": None, "lag_bytes": 5_000}, "warning", "many_bytes"),
]


def test_each_verdict_has_its_bounds() -> None:
    for changes, verdict, cause in CASES:
        with case(changes):
            assert judge_lag(replace(FINE, **changes), LIMITS, now_s=NOW_S) == (verdict, cause)
            assert verdict in VERDICTS


def test_without_thresholds_only_what_is_broken_is_told() -> None:
    facts = replace(FINE, lag_s=None, lag_messages=None, lag_bytes=1 << 60)
    assert judge_lag(facts, LagThresholds(warn_s=None), now_s=NOW_S) == ("ok", None)


@pytest.mark.parametrize(
    "given", [{"warn_s": 0}, {"warn_s": -1}, {"warn_bytes": 1 << 63}, {"stalled_after_s": 1e9}]
)
def test_a_threshold_out_of_bounds_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="is outside"):
        LagThresholds(**given)


MEMBER = GroupMember("m", "h", 1, 1, ("t",), 0)
BEHIND = GroupProgress(
    topic="t",
    partition=0,
    owner="m",
    committed=1_000,
    start=0,
    end=2_000,
    lag_bytes=1_000,
    lag_messages=10,
    lag_s=20.0,
    committed_ms=int((NOW_S - 5) * 1_000),
)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, None),
        ({"committed": 2_001}, "beyond_end"),
        ({"stopped": "ListenerFailed"}, "owner_error"),
        ({"stopped": "why", "needs_reset": True}, "needs_reset"),
        ({"stopped": "why", "needs_reset": True, "other_topic": True}, "other_topic"),
        ({"start": 1_001}, None),  # it goes on behind what was deleted
    ],
)
def test_what_stops_a_group_is_told_of_its_progress(
    changes: dict[str, Any], cause: str | None
) -> None:
    progress = replace(BEHIND, **changes)
    assert why_stopped(progress.facts()) == cause
    assert progress.beyond_end == (cause == "beyond_end")
    assert not replace(progress, end=None).beyond_end, "not known"
    if cause is not None:
        verdict = judge_lag(progress.facts(members=1), LIMITS, now_s=NOW_S)
        assert verdict == ("stopped", cause)


def test_the_worst_verdict_stands_for_a_group() -> None:
    """Also a deleted topic, and that it reads nothing."""
    found = GroupDescription("g", "clustering", "earliest", {"t": ""}, (), (MEMBER,), (BEHIND,))
    assert found.worst_verdict(LIMITS, now_s=NOW_S) == ("ok", None)
    old = replace(BEHIND, partition=1, lag_s=150.0)
    both = replace(found, partitions=(BEHIND, old))
    assert both.worst_verdict(LIMITS, now_s=NOW_S) == ("warning", "old")
    gone = replace(found, deleted_topics=("u",))
    assert gone.worst_verdict(LIMITS, now_s=NOW_S) == ("unknown", "topic_deleted")
    assert replace(gone, members=()).worst_verdict(LIMITS, now_s=NOW_S)[0] == "stopped"
    nothing = replace(found, topics={}, partitions=())
    assert nothing.worst_verdict(LIMITS, now_s=NOW_S) == ("unknown", "no_topics")


def test_a_description_is_judged_with_its_members_and_its_model() -> None:
    found = GroupDescription("g", "clustering", "earliest", {"t": ""}, (), (), (BEHIND,))
    assert found.verdict_on(BEHIND, LIMITS, now_s=NOW_S) == ("stopped", "no_members")
    stream = replace(found, by_stream=True)
    assert stream.verdict_on(BEHIND, LIMITS, now_s=NOW_S) == ("ok", None)
    radio = replace(found, model="broadcasting")
    assert radio.verdict_on(BEHIND, LIMITS, now_s=NOW_S) == ("unknown", "broadcasting")
