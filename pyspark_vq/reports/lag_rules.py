"""How the lag report counts and judges: functions from DataFrames to DataFrames, without I/O.

``vq.admin.judge_lag`` has the rules of the verdicts.
"""

import inspect
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pyspark_vq.reports.schemas import schema_of
from vq import GroupModel
from vq.admin import LagFacts, LagThresholds, judge_lag
from vq.operations.groups.lag_rules import VERDICTS

#: Why nothing of a row can be told.
PROBLEMS: Final = (
    "group_unreadable",
    "no_topics",
    "topic_deleted",
    "topic_not_ready",
    "topic_unreadable",
    "not_readable",
    "not_subscribed",
    "broadcasting",
    "place_unreadable",
)
#: What a rollup is by; there is one of all rows, too.
ROLLUPS: Final = ("group", "topic", "broker", "pool")
ALL: Final = "cluster"
#: A lag that changed by less than this part of the larger one is steady.
STEADY_PART: Final = 0.05

#: Causes for which an offset says nothing of what lies behind it.
_NO_LAG: Final = ("broadcasting", "other_topic", "beyond_end")

#: The columns of the report, in order. The names up to ``verdict`` stay as they are.
SCHEMA: Final = schema_of(
    "snapshot string, group string, topic string, partition int, owner string, end bigint, "
    "committed bigint, lag_bytes bigint, lag_messages bigint, lag_seconds double, verdict string, "
    "cause string, detail string, start bigint, broker string, pool string, members int, "
    "committed_s double, trend string, trend_bytes_per_s double, filter string, "
    "committed_is_copy boolean, model string"
)


# From what was read to lags -------------------------------------------------------------------
def partition_ends(placements: DataFrame, bounds: DataFrame) -> DataFrame:
    """Return each partition with its ``start``, ``end`` and ``broker``, from all its spans.

    The end is that of the last span. The start is that of the first span of which anything is left.
    Where a broker of a span is silent both are null, and ``ends_error`` says which.
    """
    spans = placements.select(
        "topic",
        "partition",
        F.posexplode(F.arrays_zip("span_brokers", "span_ends")).alias("number", "span"),
    ).select(
        "topic",
        "partition",
        "number",
        F.col("span.span_brokers").alias("broker"),
        F.col("span.span_ends").alias("span_end"),
    )
    told = bounds.where(F.col("topic").isNotNull())
    silent = bounds.where(F.col("topic").isNull()).select(
        "broker", F.col("bounds_error").alias("silence")
    )
    found = spans.join(told, ["broker", "topic", "partition"], "left").join(
        F.broadcast(silent), "broker", "left"
    )
    is_left = F.col("span_end").isNull() | (F.col("earliest") < F.col("span_end"))
    is_last = F.col("number") == F.max("number").over(Window.partitionBy("topic", "partition"))
    missing = F.when(
        F.col("latest").isNull(),
        F.coalesce(
            F.col("bounds_error"),
            F.col("silence"),
            F.concat(F.lit("broker group "), "broker", F.lit(" does not have it")),
        ),
    )
    ends = (
        found.withColumn("is_last", is_last)
        .withColumn("missing", missing)
        .groupBy("topic", "partition")
        .agg(
            F.max_by("broker", "number").alias("broker"),
            F.max_by("latest", "number").alias("end"),
            F.min_by("earliest", F.when(F.col("is_last") | is_left, F.col("number"))).alias(
                "start"
            ),
            F.min("missing").alias("ends_error"),
        )
    )
    known = F.col("ends_error").isNull()
    return (
        placements.join(ends, ["topic", "partition"], "left")
        .withColumn("end", F.when(known, F.col("end")))
        .withColumn("start", F.when(known, F.col("start")))
    )


def lags(pairs: DataFrame, places: DataFrame, ends: DataFrame) -> DataFrame:
    """Return each partition of each group with its place ``begin`` and the ``lag_bytes`` behind it.

    The place is the committed offset, or the start if that is later. Without a committed offset it
    is the start; of a group that begins at the latest message the end, unless the partition is
    younger than the group. Null where the lag means nothing.
    """
    committed, start, end = F.col("committed"), F.col("start"), F.col("end")
    at_end = (F.col("begins") == "latest") & ~F.coalesce("younger", F.lit(False))
    begin = F.when(committed.isNotNull(), F.greatest(committed, start)).otherwise(
        F.when(at_end, end).otherwise(start)
    )
    problem = F.when(F.col("model") == "broadcasting", F.lit("broadcasting")).when(
        F.col("place_error").isNotNull(), F.lit("place_unreadable")
    )
    other = F.col("committed_topic_id").isNotNull() & (
        F.col("committed_topic_id") != F.col("topic_id")
    )
    means = problem.isNull() & ~F.coalesce(other, F.lit(False)) & start.isNotNull()
    return (
        pairs.join(ends, "topic")
        .join(places, ["group", "topic", "partition"], "left")
        .withColumn("problem", problem)
        .withColumn("other_topic", F.coalesce(other, F.lit(False)))
        .withColumn("begin", F.when(means, begin))
        .withColumn("lag_bytes", F.when(F.col("begin") <= end, end - F.col("begin")))
    )


def to_measure(rows: DataFrame) -> DataFrame:
    """Return the ranges that brokers have to count, each once, with the ``broker`` of its start."""
    starts, brokers = F.col("span_starts"), F.col("span_brokers")
    # The last span that starts at or before the place.
    number = F.size(F.filter(starts, lambda each: each <= F.col("begin")))
    return (
        rows.where(F.col("lag_bytes") > 0)
        .select(
            "topic",
            "partition",
            "begin",
            "end",
            "span_brokers",
            "span_starts",
            "span_ends",
            F.element_at(brokers, F.greatest(number, F.lit(1))).alias("asked"),
        )
        .dropDuplicates(["topic", "partition", "begin"])
    )


def with_measures(rows: DataFrame, measures: DataFrame, *, count: bool) -> DataFrame:
    """Return the rows with ``lag_messages`` and ``lag_seconds``; 0 where there is no lag."""
    nothing = F.col("lag_bytes") == 0
    found = rows.join(measures, ["topic", "partition", "begin"], "left")
    messages = F.when(nothing, F.lit(0)).otherwise(F.col("messages"))
    return found.withColumn(
        "lag_messages", messages.cast("bigint") if count else F.lit(None).cast("bigint")
    ).withColumn("lag_seconds", F.when(nothing, F.lit(0.0)).otherwise(F.col("age_s")))


def with_problems(rows: DataFrame, problems: DataFrame) -> DataFrame:
    """Add what has no partitions: a row for each, with its ``problem`` and ``detail``."""
    return rows.withColumn(
        "detail",
        F.coalesce("place_error", "held", "stopped", "placement_error", "ends_error"),
    ).unionByName(problems, allowMissingColumns=True)


# Earlier snapshots ----------------------------------------------------------------------------
def seconds_of(snapshot: Column) -> Column:
    """Return the moment that a snapshot's name says, in seconds since 1970."""
    date = F.to_date(F.substring(snapshot, 1, 8), "yyyyMMdd")

    def part(begin: int) -> Column:
        return F.substring(snapshot, begin, 2).cast("double")

    days = F.datediff(date, F.lit("1970-01-01").cast("date"))
    return days * 86_400.0 + part(10) * 3_600 + part(12) * 60 + part(14)


def with_trend(rows: DataFrame, earlier: DataFrame | None, *, now_s: float) -> DataFrame:
    """Return the rows with their trend over earlier snapshots; None: there are none.

    ``trend_bytes_per_s`` is the change of ``lag_bytes`` since the oldest of these in which it is
    known. ``trend`` is ``rising`` or ``falling`` when it changed by more than a twentieth of the
    larger of both, else ``steady``; null without an earlier one. ``unmoved_s`` is for how long the
    committed offset has been the same without a break, with something behind it: a group that was
    reset comes by the same offset again.
    """
    if earlier is None:
        nothing = F.lit(None)
        return rows.withColumns(
            {
                "unmoved_s": nothing.cast("double"),
                "trend_bytes_per_s": nothing.cast("double"),
                "trend": nothing.cast("string"),
            }
        )
    keys = ["group", "topic", "partition"]
    before = (
        earlier.where(F.col("partition").isNotNull())
        .withColumn("at_s", seconds_of(F.col("snapshot")))
        .select(
            *keys,
            "at_s",
            F.col("lag_bytes").alias("lag_then"),
            F.col("committed").alias("committed_then"),
        )
        .join(rows.select(*keys, F.col("committed").alias("committed_now")), keys)
    )
    is_equal = F.col("committed_then").eqNullSafe(F.col("committed_now"))
    # A place that could not be read then proves nothing.
    has_moved = (F.col("committed_then").isNotNull() & ~is_equal) | (F.col("lag_then") == 0)
    moved_s = F.max(F.when(has_moved, F.col("at_s"))).over(Window.partitionBy(*keys))
    before = before.withColumn("moved_s", moved_s)
    is_later = F.col("moved_s").isNull() | (F.col("at_s") > F.col("moved_s"))
    is_same = is_equal & (F.col("lag_then") > 0) & is_later
    history = before.groupBy(*keys).agg(
        F.min(F.when(is_same, F.col("at_s"))).alias("same_since_s"),
        F.min_by("lag_then", F.when(F.col("lag_then").isNotNull(), F.col("at_s"))).alias(
            "lag_first"
        ),
        F.min(F.when(F.col("lag_then").isNotNull(), F.col("at_s"))).alias("first_s"),
    )
    change = F.col("lag_bytes") - F.col("lag_first")
    tolerated = STEADY_PART * F.greatest("lag_bytes", "lag_first")
    spent = F.lit(now_s) - F.col("first_s")
    return (
        rows.join(history, keys, "left")
        .withColumn("unmoved_s", F.lit(now_s) - F.col("same_since_s"))
        .withColumn("trend_bytes_per_s", F.when(spent > 0, change / spent))
        .withColumn(
            "trend",
            F.when(change > tolerated, "rising")
            .when(-change > tolerated, "falling")
            .when(change.isNotNull(), "steady"),
        )
    )


# Judging --------------------------------------------------------------------------------------
def with_verdicts(rows: DataFrame, thresholds: LagThresholds, *, now_s: float) -> DataFrame:
    """Return the rows with ``verdict`` and ``cause``; see ``vq.admin.judge_lag``."""

    def judged(*cells: Any) -> tuple[str, str | None]:
        return judge_lag(facts_of(*cells), thresholds, now_s=now_s)

    judge = F.udf(judged, "verdict string, cause string", useArrow=False)
    return (
        rows.withColumn("judged", judge(*(F.col(each) for each in JUDGED)))
        .withColumn("verdict", F.col("judged.verdict"))
        .withColumn("cause", F.col("judged.cause"))
        .drop("judged")
    )


def facts_of(
    problem: str | None,
    held: str | None,
    other_topic: bool | None,
    stopped: str | None,
    placement_error: str | None,
    committed: int | None,
    start: int | None,
    end: int | None,
    lag_bytes: int | None,
    lag_messages: int | None,
    lag_seconds: float | None,
    members: int | None,
    owner: str | None,
    committed_ms: int | None,
    unmoved_s: float | None,
    by_stream: bool | None,
    model: str | None,
) -> LagFacts:
    """Return what is judged of one row, from its columns ``JUDGED``."""
    return LagFacts(
        problem=problem,
        needs_reset=held is not None,
        other_topic=bool(other_topic),
        owner_error=stopped is not None,
        no_placement=placement_error is not None,
        committed=committed,
        start=start,
        end=end,
        lag_bytes=lag_bytes,
        lag_messages=lag_messages,
        lag_s=lag_seconds,
        members=members or 0,
        by_stream=bool(by_stream),
        has_owner=owner is not None or model == GroupModel.SHARED,  # there no partition has one
        committed_ms=committed_ms,
        unmoved_s=unmoved_s,
    )


#: The columns that are judged, as ``facts_of`` takes them.
JUDGED: Final = tuple(inspect.signature(facts_of).parameters)


def report_rows(rows: DataFrame, brokers: DataFrame, *, snapshot: str) -> DataFrame:
    """Return the rows as ``SCHEMA`` has them, each with the pool of its broker group."""
    found = (
        rows.join(F.broadcast(brokers), "broker", "left")
        .withColumn("snapshot", F.lit(snapshot))
        .withColumn("committed_s", F.col("committed_ms") / 1000)
    )
    return found.select([F.col(f"`{f.name}`").cast(f.dataType).alias(f.name) for f in SCHEMA])


# Rolled up ------------------------------------------------------------------------------------
def rollups(rows: DataFrame, cluster: str) -> DataFrame:
    """Return counts of verdicts and lags by group, topic, broker group, pool, and of the cluster.

    ``lag_bytes`` and ``lag_messages`` are sums of what is known, and ``unknown_lags`` and
    ``unknown_messages`` how many are not; null where none is known. ``lag_seconds`` is the
    largest. ``lag_is_upper_bound``: a group that filters is in it. ``skew`` is the largest lag in
    bytes divided by the mean: 1 is even; null where there is no lag.
    """
    names = {ALL: F.lit(cluster), **{each: F.col(each) for each in ROLLUPS}}
    keys = F.explode(
        F.array(*(F.struct(F.lit(b).alias("by"), n.alias("name")) for b, n in names.items()))
    )
    found = (
        rows.withColumn("key", keys)
        .select("*", "key.by", "key.name")
        .where(F.col("name").isNotNull())
        .groupBy("snapshot", "by", "name")
    )
    counts = [F.count_if(F.col("verdict") == each).cast("bigint").alias(each) for each in VERDICTS]
    mean = F.avg("lag_bytes")
    return found.agg(
        F.count("partition").alias("partitions"),
        *counts,
        *_sums(),
        F.when(mean > 0, F.max("lag_bytes") / mean).alias("skew"),
    )


def severity(verdict: Column) -> Column:
    """Return 0 for the worst verdict, 1 for the next, and so on."""
    return F.array_position(F.array(*map(F.lit, VERDICTS)), verdict) - 1


def _sums() -> list[Column]:
    """Return the sums of lags, the oldest age, how many are unknown, and whether one is a bound.

    What a group with a filter leaves out lies in its lag: that is an upper bound.
    """
    return [
        F.sum("lag_bytes").alias("lag_bytes"),
        F.sum("lag_messages").alias("lag_messages"),
        F.max("lag_seconds").alias("lag_seconds"),
        F.count_if(F.col("lag_bytes").isNull()).cast("bigint").alias("unknown_lags"),
        F.count_if(F.col("lag_messages").isNull()).cast("bigint").alias("unknown_messages"),
        F.max(F.col("filter").isNotNull()).alias("lag_is_upper_bound"),
    ]


def _worst_first() -> list[Column]:
    return [
        severity(F.col("verdict")),
        F.desc_nulls_last("lag_seconds"),
        F.desc_nulls_last("lag_bytes"),
    ]


def offenders(rows: DataFrame, at_most: int) -> DataFrame:
    """Return the worst rows that are not ok: by verdict, then by age, then by bytes."""
    return (
        rows.where(F.col("verdict") != "ok")
        .orderBy(
            *_worst_first(),
            "group",
            "topic",
            "partition",
        )
        .limit(at_most)
    )


#: Partitions that a row of ``by_cause`` names.
PARTITIONS_NAMED: Final = 8


def by_cause(rows: DataFrame, at_most: int) -> DataFrame:
    """Return what is not ok, one row for each group, topic and cause, the worst first.

    The order is that of ``offenders``. ``count`` is how many rows there are, ``partitions`` the
    first of them, and the sums and ages are those of ``rollups``; ``detail`` and ``owner`` are
    those of one, and ``details`` and ``owners`` say how many different ones there are. ``of`` is
    how many such rows there are in all.
    """
    found = (
        rows.where(F.col("verdict") != "ok")
        .groupBy("verdict", "group", "topic", "cause")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.slice(F.array_sort(F.collect_set("partition")), 1, PARTITIONS_NAMED).alias(
                "partitions"
            ),
            *_sums(),
            F.sum("trend_bytes_per_s").alias("trend_bytes_per_s"),
            F.min("owner").alias("owner"),
            F.count_distinct("owner").alias("owners"),
            F.min("detail").alias("detail"),
            F.count_distinct("detail").alias("details"),
        )
    )
    return (
        found.withColumn("of", F.count(F.lit(1)).over(Window.partitionBy(F.lit(1))))
        .orderBy(
            *_worst_first(),
            F.desc("count"),
            "group",
            "topic",
            "cause",
        )
        .limit(at_most)
    )


def top_rollups(rolled: DataFrame, at_most: int) -> DataFrame:
    """Return the ``at_most`` largest of each kind, with ``of``: how many there are."""
    kind = Window.partitionBy("by")
    order = kind.orderBy(F.desc_nulls_last("lag_bytes"), F.desc("unknown_lags"), F.col("name"))
    return (
        rolled.withColumn("of", F.count("name").over(kind))
        .withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= at_most)
        .drop("snapshot")
        .orderBy("by", "rank")
    )


def over_time(earlier: DataFrame, rows: DataFrame) -> DataFrame:
    """Return the lag of each group in each snapshot, in bytes.

    Null where a partition has one that is not known: a sum without it would look like a fall. What
    has no partition, and an offset that means nothing, have none.
    """
    columns = ["snapshot", "group", "partition", "cause", "lag_bytes"]
    is_unknown = (
        F.col("partition").isNotNull()
        & F.col("lag_bytes").isNull()
        & ~F.coalesce("cause", F.lit("")).isin(*_NO_LAG)
    )
    return (
        earlier.select(columns)
        .unionByName(rows.select(columns))
        .groupBy("snapshot", "group")
        .agg(F.when(F.count_if(is_unknown) == 0, F.sum("lag_bytes")).alias("lag_bytes"))
    )
