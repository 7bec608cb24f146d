"""Runs in the tree: what covers what, and the bounds of a result."""

import pytest

from vq.coordination.tree.coordinator import NODE_BYTES_MAX, Unreadable
from vq.coordination.tree.values.runs import (
    ERROR_CHARACTERS_MAX,
    RESULT_TOPICS_MAX,
    ArchiveTopicRun,
    RunCounter,
    RunOrder,
    RunResult,
    RunState,
    covering,
    refused,
)


def test_paths_say_what_they_are_of() -> None:
    assert RunCounter.path() == "archive/runs"
    assert RunOrder.path(7) == "archive/runs/7"
    assert RunResult.path(7, "b.1", "n-1") == "archive/runs/7/b.1:n-1"
    assert RunResult.node_of("b.1:n-1") == ("b.1", "n-1")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"v": 1}',
        b'{"v": 1, "state": "odd", "begun_ms": 1, "ended_ms": 2, "total": {}, "topics": {}}',
        b'{"v": 1, "state": "done", "begun_ms": 1, "ended_ms": 2, "total": 5, "topics": {}}',
        b'{"v": 1, "state": "done", "begun_ms": 1, "ended_ms": 2, "total": {"blocks": 1}, '
        b'"topics": []}',
    ],
)
def test_a_result_that_is_none_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        RunResult.decode("p", data)


def run(as_of_ms: int, **values: object) -> RunOrder:
    return RunOrder(**{"as_of_ms": as_of_ms, "started_ms": 0, **values})


@pytest.mark.parametrize(
    ("later", "covers"),
    [
        (run(5), True),
        (run(6), True),
        (run(4), False),
        (run(5, topic="t"), False),
        (run(5, dry_run=True), False),
    ],
)
def test_a_run_covers_an_earlier_one_of_a_time_before_it(later: RunOrder, covers: bool) -> None:
    assert covering({1: run(5), 2: later}, 1) == (2 if covers else None)
    assert covering({1: run(5), 2: later}, 2) is None


def test_a_run_of_one_topic_is_covered_by_one_of_it_or_of_all() -> None:
    mine = run(5, topic="t")
    assert run(5, topic="t").covers(mine)
    assert run(5).covers(mine)
    assert not run(5, topic="u").covers(mine)
    assert not run(5).covers(run(5, dry_run=True)), "its answer is wanted"


def test_a_run_of_a_lease_that_had_ended_is_refused() -> None:
    runs = {1: run(1, fence=3), 2: run(2, fence=2), 3: run(3), 4: run(4, fence=3)}
    assert [refused(runs, number) for number in runs] == [False, True, False, False]
    assert covering({1: run(1, fence=3), 2: run(2, fence=2)}, 1) is None


def test_a_result_with_many_topics_fits_into_a_znode() -> None:
    """Those with failures, then the largest ones, stay; the total has all."""
    topics = {f"{n:0200}": ArchiveTopicRun(1, n, 1, 0, "") for n in range(5_000)}
    topics["bad"] = ArchiveTopicRun(failed=1, error="ä" * 10_000)
    total = ArchiveTopicRun(5_000, 5, 5, 1, "ä" * 10_000)
    result = RunResult(state=RunState.FAILED, total=total, topics=topics).bounded()
    assert len(result.encode()) < NODE_BYTES_MAX // 4
    assert (len(result.topics), result.omitted) == (RESULT_TOPICS_MAX, 5_001 - RESULT_TOPICS_MAX)
    assert f"{4_999:0200}" in result.topics
    assert result.topics["bad"].error == "ä" * ERROR_CHARACTERS_MAX
    assert (result.total.blocks, len(result.total.error)) == (5_000, ERROR_CHARACTERS_MAX)
    assert result.bounded() == result
