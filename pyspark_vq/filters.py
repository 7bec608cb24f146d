"""What a query's filters leave to be read: topics, partitions, offsets, times, tags.

Pure. A filter is *handled* when no row comes that it refuses, so that Spark need not look again;
all others stay Spark's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from pyspark_vq.far_times import BEYOND
from pyspark_vq.options import TAGS_MAX
from vq.columns import ALL, Selection

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "id", "timestamp", "value"})
_PARTITION_END: Final = 2**31


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What is left to be read.

    Attributes:
        topics: None: all of the query's.
        partitions: None: all in ``[partition_low, partition_high)``.
        partition_low, partition_high: See ``partitions``.
        selection: Of messages, its tags included.
        since_ms: Only messages that were sent at this time or later; None: no bound.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_low: int = 0
    partition_high: int = _PARTITION_END
    selection: Selection = ALL
    since_ms: int | None = None

    def takes(self, topic: str, partition: int) -> bool:
        """Return whether messages of a partition can be wanted."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.partition_low <= partition < self.partition_high
        )


EVERYTHING: Final = Narrowed()


def narrowed_by(filters: Iterable[Filter], begin: Narrowed) -> tuple[Narrowed, list[Filter]]:
    """Return what filters leave of ``begin``, and those that are not handled."""
    left, others = begin, []
    for each in filters:
        found = _narrow(each, left)
        if found is None:
            others.append(each)
        else:
            left = found
    return left, others


def _narrow(each: Filter, left: Narrowed) -> Narrowed | None:
    """Return what one filter leaves; None: it is not handled."""
    path: tuple[str, ...] = getattr(each, "attribute", ())
    if len(path) != 1 or getattr(each, "value", None) is BEYOND:
        return None
    name = path[0]
    if isinstance(each, IsNotNull):
        return left if name in _NEVER_NULL else None
    values = _values(each)
    if values is not None:
        return _one_of(name, values, left)
    bounds = _bounds(each)
    return None if bounds is None else _within(name, *bounds, left)


def _values(each: Filter) -> Sequence[Any] | None:
    """Return the values of which a column must have one; None: the filter is another."""
    if isinstance(each, In):
        found = each.value
    elif isinstance(each, EqualTo | EqualNullSafe):
        found = (each.value,)
    else:
        return None
    return None if any(value is None for value in found) else found


def _bounds(each: Filter) -> tuple[Any, bool, Any, bool] | None:
    """Return low, whether it is left out, high, and whether that is taken; None: no bound."""
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        return each.value, isinstance(each, GreaterThan), None, False
    if isinstance(each, LessThan | LessThanOrEqual):
        return None, False, each.value, isinstance(each, LessThanOrEqual)
    return None


def _one_of(name: str, values: Sequence[Any], left: Narrowed) -> Narrowed | None:
    kind = str if name in {"topic", "tag"} else int
    if name in {"topic", "partition", "tag"}:
        if not all(type(value) is kind for value in values):
            return None
        if name == "tag":
            tags = {str(value).encode() for value in values}
            kept = left.selection.tags
            tags &= tags if kept is None else set(kept)
            if len(tags) > TAGS_MAX:
                return None
            return replace(left, selection=replace(left.selection, tags=tuple(sorted(tags))))
        wanted = frozenset(values)
        if name == "topic":
            return replace(left, topics=wanted & (wanted if left.topics is None else left.topics))
        kept_numbers = wanted if left.partitions is None else left.partitions
        return replace(left, partitions=wanted & kept_numbers)
    if len(values) != 1:
        return None
    return _within(name, values[0], False, values[0], True, left)


def _within(
    name: str, low: Any, after: bool, high: Any, upto: bool, left: Narrowed
) -> Narrowed | None:
    """Narrow to ``[low, high]``; ``after`` leaves out ``low``, without ``upto`` ``high`` is out."""
    if name == "timestamp":
        return _within_time(low, after, high, upto, left)
    if not all(each is None or type(each) is int for each in (low, high)):
        return None
    least = None if low is None else max(0, low + after)
    end = None if high is None else max(0, high + upto)
    if name == "partition":
        return replace(
            left,
            partition_low=max(left.partition_low, least or 0),
            partition_high=left.partition_high if end is None else min(left.partition_high, end),
        )
    kept = left.selection
    if name == "offset":
        kept = replace(
            kept,
            low=min(max(kept.low, least or 0), ALL.high),
            high=kept.high if end is None else min(kept.high, end),
        )
    elif name == "id":
        kept = replace(
            kept,
            id_low=min(max(kept.id_low, least or 0), ALL.id_high),
            id_high=kept.id_high if end is None else min(kept.id_high, end),
        )
    else:
        return None
    return replace(left, selection=kept)


def _within_time(low: Any, after: bool, high: Any, upto: bool, left: Narrowed) -> Narrowed | None:
    """Narrow ids by the milliseconds in them; a filter's time has microseconds."""
    kept, since_ms = left.selection, left.since_ms
    if low is not None:
        low_us = _microseconds(low)
        if low_us is None:
            return None
        since_ms = max(since_ms or 0, low_us // 1000 + 1 if after else -(-low_us // 1000))
        kept = replace(kept, id_low=max(kept.id_low, Selection.id_at(since_ms)))
    if high is not None:
        high_us = _microseconds(high)
        if high_us is None:
            return None
        end_ms = high_us // 1000 + 1 if upto else -(-high_us // 1000)
        kept = replace(kept, id_high=min(kept.id_high, Selection.id_at(end_ms)))
    return replace(left, selection=kept, since_ms=since_ms)


def _microseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    passed = value - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
