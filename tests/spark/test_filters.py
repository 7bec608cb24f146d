"""Filters narrow what is read; what they cannot say exactly stays Spark's."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_vq.filters import EVERYTHING, Narrowed, narrowed_by
from vq.columns import Selection
from vq.model import time_ms_of

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000


def left(*filters: Filter) -> Narrowed:
    found, others = narrowed_by(filters, EVERYTHING)
    assert not others
    return found


def one(kind: type, column: str, value: Any) -> Filter:
    found: Filter = kind((column,), value)
    return found


def test_topics_and_partitions_are_chosen() -> None:
    found = left(
        one(In, "topic", ("a", "b")),
        one(EqualTo, "topic", "a"),
        one(GreaterThan, "partition", 1),
        one(LessThanOrEqual, "partition", 5),
        one(In, "partition", (1, 3, 9)),
    )
    assert [n for n in range(10) if found.takes("a", n)] == [3]
    assert not found.takes("b", 3)


def test_ranges_of_offsets_and_ids_are_exact() -> None:
    found = left(
        one(GreaterThan, "offset", 9),
        one(LessThan, "offset", 20),
        one(GreaterThanOrEqual, "id", 5),
        one(LessThanOrEqual, "id", 8),
    ).selection
    assert (found.low, found.high, found.id_low, found.id_high) == (10, 20, 5, 9)
    same = left(one(EqualNullSafe, "offset", 7)).selection
    assert (same.low, same.high) == (7, 8)
    none = left(one(LessThan, "offset", -3)).selection
    assert not none.takes(0, 1, None)
    last = left(one(GreaterThan, "id", 2**63 - 1)).selection
    assert not last.takes(0, 2**63 - 1, None)


@pytest.mark.parametrize(
    ("kind", "micros", "taken"),
    [
        (GreaterThanOrEqual, 0, [0, 1, 2]),
        (GreaterThanOrEqual, 1, [1, 2]),
        (GreaterThan, 0, [1, 2]),
        (GreaterThan, 999, [1, 2]),
        (LessThan, 0, [-1]),
        (LessThan, 1, [-1, 0]),
        (LessThanOrEqual, 0, [-1, 0]),
        (LessThanOrEqual, 999, [-1, 0]),
        (EqualTo, 0, [0]),
        (EqualTo, 1, []),
    ],
)
def test_times_become_ids(kind: type, micros: int, taken: list[int]) -> None:
    """Messages have milliseconds, filters have microseconds."""
    found = left(one(kind, "timestamp", NOON + timedelta(microseconds=micros))).selection
    ids = {ms: Selection.id_at(NOON_MS + ms) for ms in (-1, 0, 1, 2)}
    assert [ms for ms, number in ids.items() if found.takes(0, number, None)] == taken
    assert time_ms_of(ids[2]) == NOON_MS + 2


def test_a_lower_bound_of_time_says_where_to_begin() -> None:
    assert left(one(GreaterThanOrEqual, "timestamp", NOON)).since_ms == NOON_MS
    assert left(one(LessThan, "timestamp", NOON)).since_ms is None


def test_tags_are_chosen() -> None:
    found = left(one(In, "tag", ("a", "b", "c")), one(In, "tag", ("b", "c", "d"))).selection
    assert found.tags == (b"b", b"c")
    assert left(one(EqualTo, "tag", "a"), one(EqualTo, "tag", "b")).selection.tags == ()


def test_more_tags_than_the_loop_takes_stay_sparks() -> None:
    names = tuple(f"t{number}" for number in range(65))
    many = one(In, "tag", names)
    assert narrowed_by([many], EVERYTHING) == (EVERYTHING, [many])
    assert left(one(EqualTo, "tag", "t3"), many).selection.tags == (b"t3",)
    tags = left(one(In, "tag", names[:64])).selection.tags
    assert tags is not None
    assert len(tags) == 64


def test_what_never_is_null_need_not_be_checked() -> None:
    assert left(IsNotNull(("offset",)), IsNotNull(("topic",))) == EVERYTHING


@pytest.mark.parametrize(
    "other",
    [
        IsNotNull(("tag",)),
        IsNull(("tag",)),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "a"), "x"),
        EqualNullSafe(("tag",), None),
        In(("offset",), (1, 2)),
        GreaterThan(("tag",), "a"),
        EqualTo(("partition",), "1"),
        EqualTo(("topic",), 1),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - as Spark may have it
    ],
)
def test_other_filters_stay_sparks(other: Filter) -> None:
    kept = IsNotNull(("offset",))
    assert narrowed_by([other, kept], EVERYTHING) == (EVERYTHING, [other])
