"""What an application may give as a place to read at."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from vq.client.config import StartPosition
from vq.client.reading.positions import AtTime, check_moment, check_position, check_where
from vq.errors import InvalidArgument
from vq.model import TopicPartition

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (NOON, NOON_MS),
        (NOON.astimezone(timezone(timedelta(hours=8))), NOON_MS),
        (NOON + timedelta(microseconds=1), NOON_MS),
        (NOON + timedelta(microseconds=999), NOON_MS),
        (NOON + timedelta(milliseconds=1), NOON_MS + 1),
        (datetime(1969, 1, 1, tzinfo=UTC), 0),
    ],
)
def test_a_time_is_the_millisecond_that_it_lies_in(given: datetime, ms: int) -> None:
    assert check_moment(given) == check_position(given) == AtTime(ms)


def test_ends_are_given_as_text_or_by_name() -> None:
    assert check_moment("earliest") is StartPosition.EARLIEST
    assert check_position(StartPosition.LATEST) is StartPosition.LATEST
    assert check_position(0) == 0


@pytest.mark.parametrize("given", [-1, True, 1.5, "begin", None, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        check_position(given)


def test_a_moment_is_no_offset() -> None:
    with pytest.raises(InvalidArgument, match="is no time"):
        check_moment(5)


def test_a_place_is_a_partition_or_a_topic() -> None:
    assert check_where(("t", 1)) == TopicPartition("t", 1)
    assert check_where("t") == "t"
    for wrong in (5, ("t",), ("t", "1"), "no name/", None):
        with pytest.raises(InvalidArgument):
            check_where(wrong)
