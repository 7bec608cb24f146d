"""The lag report: reads a cluster with Spark, judges, and writes what was asked for.

The driver reads the names of groups, topics and broker groups; executors read the rest
(``lag_reading``). What is told of it is a function of DataFrames (``lag_rules``). Each reading is
kept until the report is made, so that nothing is asked twice.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_vq.connection import factory_of
from pyspark_vq.options import Connect
from pyspark_vq.reports import lag_reading, lag_rules, outputs
from pyspark_vq.reports.lag_reading import Load, Reading
from pyspark_vq.reports.lag_rules import SCHEMA
from pyspark_vq.reports.progress import Progress
from pyspark_vq.reports.shuffles import fitting_shuffles
from vq.admin import GroupContract, GroupView, LagThresholds, TopicState
from vq.operations.groups.groups import NOT_READABLE, NOT_SUBSCRIBED
from vq.operations.groups.lag_rules import VERDICTS

#: Below the directory of reports: the rows, and what they are rolled up to.
ROWS_NAME: Final = "lag"
ROLLUPS_NAME: Final = "lag_rollups"
#: Of the tree.
_READY, _GONE = "ready", frozenset({"deleting", "deleted"})
_COMMON_POOL: Final = "common"
#: Earlier snapshots that the trend is taken from.
WINDOW: Final = 24
WINDOW_MAX: Final = 1_000
#: Groups that the page draws over time.
DRAWN: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a lag report is to be.

    Attributes:
        thresholds: From where on a lag is too much.
        load: How much of the cluster's time it may take.
        out: Directory, or URL, of the history; None: keep none, and there is no trend.
        window: So many earlier snapshots make the trend.
        top: So many of each kind are told.
    """

    thresholds: LagThresholds = field(default_factory=LagThresholds)
    load: Load = field(default_factory=Load)
    out: str | None = None
    window: int = WINDOW
    top: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LagReport:
    """A lag report.

    Attributes:
        cluster: Its name.
        snapshot: Its name: the moment it began.
        now_s: That moment, in seconds since 1970.
        took_s: How long it took to read and judge.
        rows: All rows, as ``lag_rules.SCHEMA`` says; readable while the report is open.
        groups: How many consumer groups there are.
        verdicts: How many rows have each verdict.
        rollups: By group, topic, broker and pool: the largest ones.
        offenders: The worst rows.
        causes: What is not ok by group, topic and cause; see ``lag_rules.by_cause``.
        history: The lag of the largest groups in earlier snapshots and this one.
        silent: Why broker groups did not answer, by name.
        wanted: What it was to be.
    """

    cluster: str
    snapshot: str
    now_s: float
    took_s: float
    rows: DataFrame
    groups: int
    verdicts: Mapping[str, int]
    rollups: Mapping[str, Sequence[Mapping[str, Any]]]
    offenders: Sequence[Mapping[str, Any]]
    causes: Sequence[Mapping[str, Any]]
    history: Sequence[Mapping[str, Any]]
    silent: Mapping[str, str]
    wanted: Wanted


@contextlib.contextmanager
def lag_report(
    spark: SparkSession,
    connect: Connect,
    wanted: Wanted,
    progress: Progress,
    *,
    now_s: float | None = None,
) -> Iterator[LagReport]:
    """Make a report; it can be written while the block runs, and is forgotten after it.

    ``now_s``: its moment; None: now.

    Raises:
        CoordinationError: ZooKeeper does not answer.
    """
    begun, now = time.monotonic(), time.time() if now_s is None else now_s
    snapshot = outputs.snapshot_name(now)
    with contextlib.ExitStack() as kept:
        read = _read(spark, connect, wanted, progress, kept)
        with progress.step("judging", spark.sparkContext):
            earlier = _earlier(spark, wanted, snapshot)
            with_trend = lag_rules.with_trend(read.rows, earlier, now_s=now)
            judged = lag_rules.with_verdicts(with_trend, wanted.thresholds, now_s=now)
            told = _keep(kept, lag_rules.report_rows(judged, read.brokers, snapshot=snapshot))
            rolled = _keep(kept, lag_rules.rollups(told, connect.config.cluster))
            tops = _tops(rolled, wanted.top)
            whole = tops.pop(lag_rules.ALL, [])
            verdicts = {each: whole[0][each] if whole else 0 for each in VERDICTS}
            if wanted.out is not None:
                count = sum(verdicts.values())
                outputs.write_snapshot(told, f"{wanted.out}/{ROWS_NAME}", count=count)
                outputs.write_snapshot(rolled, f"{wanted.out}/{ROLLUPS_NAME}", count=count)
            report = LagReport(
                cluster=connect.config.cluster,
                snapshot=snapshot,
                now_s=now,
                took_s=time.monotonic() - begun,
                rows=told,
                groups=read.groups,
                verdicts=verdicts,
                rollups=tops,
                offenders=_worst(lag_rules.offenders, told, verdicts, wanted.top),
                causes=_worst(lag_rules.by_cause, told, verdicts, wanted.top),
                history=_history(earlier, told, tops),
                silent=read.silent,
                wanted=wanted,
            )
        yield report


def write_csv(report: LagReport, path: Path) -> int:
    """Write all rows of a report as CSV; return how many."""
    # One task sorts, so one job does it; rows come one batch after the other.
    ordered = report.rows.repartition(1).sortWithinPartitions("group", "topic", "partition")
    rows = (row.asDict() for row in ordered.toLocalIterator())
    return outputs.write_csv(rows, SCHEMA.names, path)


# Reading --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Read:
    """All rows without a verdict, the pools, how many groups there are, and who was silent."""

    rows: DataFrame
    brokers: DataFrame
    groups: int
    silent: Mapping[str, str]


def _read(
    spark: SparkSession,
    connect: Connect,
    wanted: Wanted,
    progress: Progress,
    kept: contextlib.ExitStack,
) -> _Read:
    load, context = wanted.load, spark.sparkContext

    def kept_reading(frame: DataFrame, reading: Reading, columns: str) -> DataFrame:
        found = frame.rdd.mapPartitions(reading)
        return _keep(kept, spark.createDataFrame(found, schema=columns, verifySchema=False))

    with progress.step("reading names"):
        admin = factory_of(connect).admin
        contracts, topics = admin.read_contracts(), admin.read_topic_states()
        views = admin.list_broker_groups()
        pairs, problems = pairs_of(contracts, topics)
    kept.enter_context(fitting_shuffles(spark, sum(pair[3] for pair in pairs)))
    read_topics = sorted({(pair[1], pair[3]) for pair in pairs})
    frames = {
        "pairs": _frame(spark, lag_reading.PAIRS, pairs).repartition(load.zookeeper_tasks),
        "topics": _frame(spark, lag_reading.TOPICS, read_topics).repartition(load.zookeeper_tasks),
        "brokers": _frame(spark, lag_reading.BROKERS, broker_rows(views)),
    }
    asked = max(1, min(len(views), context.defaultParallelism))
    with progress.step("reading ZooKeeper", context):
        places = kept_reading(frames["pairs"], lag_reading.places(connect), lag_reading.PLACES)
        placements = kept_reading(
            frames["topics"], lag_reading.placements(connect), lag_reading.PLACEMENTS
        )
        _made(places, placements)
    with progress.step("asking brokers where partitions end", context):
        bounds = kept_reading(
            frames["brokers"].repartition(asked, "broker"),
            lag_reading.bounds(connect),
            lag_reading.BOUNDS,
        )
        silent = {
            row["broker"]: row["bounds_error"]
            for row in bounds.where("topic IS NULL").select("broker", "bounds_error").collect()
        }
    with progress.step("asking brokers what lies behind", context):
        ends = lag_rules.partition_ends(placements, bounds)
        rows = _keep(kept, lag_rules.lags(frames["pairs"], places, ends))
        measures = kept_reading(
            lag_rules.to_measure(rows).repartition(asked, "asked"),
            lag_reading.measures(connect, load),
            lag_reading.MEASURES,
        )
        _made(measures)
    measured = lag_rules.with_measures(rows, measures, count=load.count)
    whole = lag_rules.with_problems(measured, _frame(spark, lag_reading.PROBLEMS, problems))
    return _Read(whole, frames["brokers"], len(contracts), silent)


_NOT_SUBSCRIBED: Final = (
    "no member of the group subscribes to the topic; if that stays so, `vq group forget {group} "
    "--topic {topic}` has the group forget it"
)


def pairs_of(
    contracts: Sequence[GroupContract], topics: Sequence[TopicState]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the topics of groups to read, and what cannot be read, with the reason; pure."""
    states = {each.topic: each for each in topics}
    pairs: list[tuple[Any, ...]] = []
    problems: list[tuple[Any, ...]] = []
    for each in contracts:
        if each.error or not each.topics:
            why = "group_unreadable" if each.error else "no_topics"
            told = each.error or "the group reads no topic"
            problems.append((each.group, None, each.members, why, told))
            continue
        for topic in sorted(each.topics):
            state = states.get(topic)
            problem = _problem(topic, state)
            if problem is None and topic in each.unsubscribed:
                problem = NOT_SUBSCRIBED, _NOT_SUBSCRIBED.format(group=each.group, topic=topic)
            if problem is not None:
                problems.append((each.group, topic, each.members, *problem))
            elif state is not None:
                pairs.append(
                    (
                        each.group,
                        topic,
                        state.id,
                        state.partitions,
                        each.members,
                        each.model,
                        each.start,
                        each.by_stream,
                        each.topics[topic],
                    )
                )
    return pairs, problems


def _problem(topic: str, state: TopicState | None) -> tuple[str, str] | None:
    """Return why nothing can be told of a topic; None: something can."""
    if state is None:
        return "topic_deleted", f"there is no topic {topic!r}"
    if state.error:
        return "topic_unreadable", state.error
    if state.phase in _GONE:
        return "topic_deleted", f"topic {topic!r} is {state.phase}"
    if state.phase != _READY:
        return "topic_not_ready", f"topic {topic!r} is {state.phase}"
    if not state.readable:
        return NOT_READABLE, f"Admin.alter_topic({topic!r}, readable=True) opens it"
    return None


def broker_rows(views: Sequence[GroupView]) -> list[tuple[str, str]]:
    """Return the broker groups with their pools; pure."""
    return [(each.group, each.pool or _COMMON_POOL) for each in views]


def _frame(spark: SparkSession, columns: str, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    rows = [
        tuple(lag_reading.text(each) if isinstance(each, str) else each for each in row)
        for row in rows
    ]
    return spark.createDataFrame(rows, schema=columns, verifySchema=False)


def _keep(kept: contextlib.ExitStack, frame: DataFrame) -> DataFrame:
    """Keep what a frame has once it was made, until the report is forgotten."""
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    kept.callback(frame.unpersist)
    return frame


def _made(*frames: DataFrame) -> None:
    """Have Spark make kept frames now, with one job."""
    rows = [frame.select(F.lit(1)) for frame in frames]
    functools.reduce(DataFrame.union, rows).count()


# Telling --------------------------------------------------------------------------------------
def _earlier(spark: SparkSession, wanted: Wanted, snapshot: str) -> DataFrame | None:
    if wanted.out is None:
        return None
    return outputs.read_snapshots(
        spark, f"{wanted.out}/{ROWS_NAME}", SCHEMA, before=snapshot, at_most=wanted.window
    )


def _tops(rolled: DataFrame, top: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {each: [] for each in lag_rules.ROLLUPS}
    for row in _dicts(lag_rules.top_rollups(rolled, top)):
        found.setdefault(row.pop("by"), []).append(row)
    return found


def _worst(
    choose: Callable[[DataFrame, int], DataFrame],
    rows: DataFrame,
    verdicts: Mapping[str, int],
    top: int,
) -> list[dict[str, Any]]:
    if sum(verdicts.values()) == verdicts["ok"]:
        return []
    return _dicts(choose(rows, top))


def _history(
    earlier: DataFrame | None, rows: DataFrame, tops: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    if earlier is None:
        return []
    names = [each["name"] for each in tops["group"][:DRAWN]]
    found = lag_rules.over_time(
        earlier.where(earlier["group"].isin(names)), rows.where(rows["group"].isin(names))
    )
    return _dicts(found.orderBy("snapshot", "group"))


def _dicts(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
