"""What a query has to read, without Spark: what brokers say comes from a double."""

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_vq import planning
from pyspark_vq.options import ReadOptions
from pyspark_vq.planning import TopicNow, offsets_of
from vq.admin import PartitionEnds
from vq.errors import NotMaster

TOPIC = TopicNow("t", "i", {0: PartitionEnds(0, 50, 50), 1: PartitionEnds(0, 9, 9), 2: None})
ENDS = {0: PartitionEnds(0, 50, 50), 1: PartitionEnds(0, 9, 9)}
OPTIONS = ReadOptions.parsed({"topics": "t", "startingOffsets": "2026-11-22"}, stream=False)


def start(answers: list[dict[int, int | None]], monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Return the starts; time goes on by 10 s with each look of the query."""
    now = [0.0]

    def sleep(_: float) -> None:
        now[0] += 10

    monkeypatch.setattr(planning, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    admin: Any = SimpleNamespace(offsets_at_time=lambda *_: answers.pop(0))
    return offsets_of(admin, TOPIC, ENDS, "startingOffsets", OPTIONS.starting, OPTIONS)


def test_a_broker_that_does_not_tell_a_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that is not wanted may stay silent."""
    answers = [{0: None, 1: 7, 2: None}, {0: 40}, {0: 40, 1: 7, 2: None}]
    assert start(answers, monkeypatch) == {0: 40, 1: 7}
    with pytest.raises(
        NotMaster, match="a broker of t-0 does not tell the offset of a time for 60"
    ):
        start([{0: None, 1: 7, 2: None}] * 8, monkeypatch)
