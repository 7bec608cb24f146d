"""The capacity report: what grows, which disk is full when, what frees space, what should move.

``measure`` has the order of the steps; the numbers come from ``holdings`` (what nodes hold),
``growth``, ``loads``, ``retention``, ``disks`` (with ``forecast``) and ``allocation``. Nothing is
changed in the cluster: the plan is proposed.
"""

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StructField

from pyspark_vq.options import Connect
from pyspark_vq.reports import growth, loads, outputs, retention
from pyspark_vq.reports.allocation import MOVES_MAX, Group, Placed, Plan, plan
from pyspark_vq.reports.disks import DISKS, Held, Key, disk_rows, points_of
from pyspark_vq.reports.forecast import Point, nearby
from pyspark_vq.reports.holdings import Cluster, Disk, Home, read_blocks, read_cluster
from pyspark_vq.reports.outputs import (
    read_snapshots,
    snapshot_name,
    snapshot_seconds,
    write_snapshot,
)
from pyspark_vq.reports.past import NodeName, points_of_shares, together
from pyspark_vq.reports.progress import Progress
from pyspark_vq.reports.schemas import schema_of
from pyspark_vq.reports.shuffles import fitting_shuffles
from vq import TopicSettings

#: Of so many earlier snapshots disks are compared.
SNAPSHOTS_MAX: Final = 500
#: Hours of growth of one partition, about: what retention keeps by default.
_HOURS_KEPT: Final = 72
#: Steps at which a disk takes no messages.
_REFUSING: Final = frozenset({"refuse", "stop", "gone"})
#: Charts and tables of hours go back so far.
HOURS_SHOWN: Final = 14 * 24
#: What is kept of disks from snapshot to snapshot; the rest is derived.
HISTORY: Final = schema_of(
    "group string, node string, directory string, bytes_total bigint, bytes_used bigint, "
    "snapshot string"
)
_DISKS: Final = schema_of(DISKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a report is to be of.

    Attributes:
        connect: The cluster.
        now_s: The moment of the snapshot, in seconds since 1970.
        out: Where earlier snapshots are; None: nowhere.
        retention_hours: Settings to try; none: some below each topic's own.
        moves_max: A plan has at most so many moves.
        shares: By group and node, which share of its disk was used at earlier moments, from
            ``past.read_shares``.
    """

    connect: Connect
    now_s: float
    out: str | None = None
    retention_hours: Sequence[int] = ()
    moves_max: int = MOVES_MAX
    shares: Mapping[NodeName, Sequence[Point]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A finished report.

    Attributes:
        cluster: Its name.
        snapshot: Its name.
        now_s: Its moment.
        tables: By name, each without the snapshot.
        disks: The rows of that table.
        plan: The proposed moves.
        silent: Of the nodes that did not tell their blocks: (group, node) and why.
        history: How full each disk was, with this snapshot.
        settings: Of each topic.
        partition_count: How many partitions there are.
    """

    cluster: str
    snapshot: str
    now_s: float
    tables: Mapping[str, DataFrame]
    disks: Sequence[Mapping[str, Any]]
    plan: Plan
    silent: Mapping[tuple[str, str], str] = field(default_factory=dict)
    history: Mapping[Key, Sequence[tuple[float, float]]] = field(default_factory=dict)
    settings: Mapping[str, TopicSettings] = field(default_factory=dict)
    partition_count: int = 0


@contextlib.contextmanager
def measure(spark: SparkSession, wanted: Wanted, progress: Progress) -> Iterator[Capacity]:
    """Read the cluster and work out all tables; they can be read while the block runs.

    Raises:
        CoordinationError: ZooKeeper does not answer.
    """
    with contextlib.ExitStack() as kept:
        yield _measure(spark, wanted, progress, kept)


def _measure(
    spark: SparkSession, wanted: Wanted, progress: Progress, kept: contextlib.ExitStack
) -> Capacity:
    context = spark.sparkContext
    now_ms = int(wanted.now_s * 1000)
    with progress.step("topics and brokers"):
        cluster = read_cluster(wanted.connect)
    with progress.step("blocks", context):
        blocks = _keep(kept, read_blocks(spark, wanted.connect, cluster))
        errors = _errors(blocks)
        kept.enter_context(fitting_shuffles(spark, blocks.count()))
    silent_nodes, silent_groups = silent(cluster, errors)
    one = growth.chosen(blocks)
    held = _keep(kept, growth.on_nodes(blocks))
    ratios = retention.ratios(spark, blocks, cluster.settings)
    with progress.step("partitions", context):
        own = _keep(kept, growth.partitions(one, now_ms=now_ms))
        rows = _keep(kept, loads.partition_rows(spark, own, cluster.homes, silent_groups))
        placed = [
            Placed(row["topic"], row["partition"], row["group"], row["bytes_per_day"])
            for row in rows.where(
                "verdict != 'unknown' and group is not null and bytes_per_day > 0"
            )
            .select("topic", "partition", "group", "bytes_per_day")
            .toLocalIterator()
        ]
        unknown = {
            row["group"]: row["count"]
            for row in rows.where("verdict = 'unknown' and group is not null")
            .groupBy("group")
            .count()
            .collect()
        }
    with progress.step("disks", context):
        ends = retention.endings(spark, ratios, cluster.settings)
        on_disks = {
            **dict.fromkeys(told_disks(cluster, silent_nodes), Held(0, 0.0, 0.0)),
            **held_on_disks(spark, held, own, cluster.homes, ends),
        }
        history = together(
            _history(spark, wanted),
            points_of_shares(cluster.disks, wanted.shares),
            now_s=wanted.now_s,
        )
        disks = disk_rows(cluster.disks, history, on_disks, now_s=wanted.now_s)
    groups, notes = groups_of(cluster, unknown)
    proposed = plan(groups, placed, moves_max=wanted.moves_max, notes=notes)
    hours = _keep(kept, growth.by_hour(one))
    tables = {
        "disks": spark.createDataFrame(
            [tuple(_typed(each, row[each.name]) for each in _DISKS.fields) for row in disks], _DISKS
        ),
        "topics": loads.topic_rows(rows, held, without_copies(cluster, silent_nodes)),
        "partitions": rows,
        "growth": hours,
        "rates": loads.rates(hours),
        "sizes": growth.sizes(one),
        "what_ifs": retention.what_ifs(
            blocks,
            ratios,
            retention.wishes(cluster.settings, wanted.retention_hours),
            now_ms=now_ms,
        ),
        "moves": spark.createDataFrame(
            [
                (m.topic, m.partition, m.source, m.target, m.bytes_per_day, m.reason)
                for m in proposed.moves
            ],
            "topic string, partition int, `from` string, `to` string, bytes_per_day double, "
            "reason string",
        ),
        "silent": spark.createDataFrame(
            [(*node, why) for node, why in sorted(silent_nodes.items())],
            "group string, node string, error string",
        ),
    }
    return Capacity(
        cluster=wanted.connect.config.cluster,
        snapshot=snapshot_name(wanted.now_s),
        now_s=wanted.now_s,
        tables=tables,
        disks=disks,
        plan=proposed,
        silent=silent_nodes,
        history={
            key: nearby([*history.get(key, ()), (wanted.now_s, float(row["bytes_used"]))])
            for row in disks
            for key in [(row["group"], row["node"], row["directory"])]
            if row["bytes_used"] is not None
        },
        settings=cluster.settings,
        partition_count=len(cluster.homes),
    )


def write_history(made: Capacity, directory: str) -> None:
    """Write every table as Parquet into a directory of its own, partitioned by snapshot."""
    for name, rows in made.tables.items():
        named = rows.withColumn("snapshot", F.lit(made.snapshot))
        count = made.partition_count * (_HOURS_KEPT if name == "growth" else 1)
        write_snapshot(named, f"{directory}/{name}", count=count)


def write_csv(made: Capacity, path: Path) -> int:
    """Write a row for each partition as CSV; return how many."""
    ordered = made.tables["partitions"].orderBy("topic", "partition")
    rows = (row.asDict() for row in ordered.toLocalIterator())
    return outputs.write_csv(rows, loads.PARTITIONS, path)


def silent(
    cluster: Cluster, errors: Mapping[tuple[str, str], str]
) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
    """Return the nodes of which nothing is known, and the groups of which no node is, with reasons.

    Args:
        cluster: With all nodes.
        errors: Of those that were asked for their blocks and did not answer.
    """
    nodes: dict[tuple[str, str], str] = {}
    groups: dict[str, list[str]] = {}
    answered: set[str] = set()
    for each in cluster.brokers:
        key = (each.group.group, each.name)
        error = errors.get(key, each.error if not each.name else "")
        if not error:
            answered.add(each.group.group)
            continue
        nodes[key] = error
        groups.setdefault(each.group.group, []).append(
            f"{each.group.group}/{each.name}: {error}" if each.name else f"{key[0]}: {error}"
        )
    return nodes, {name: "; ".join(why) for name, why in groups.items() if name not in answered}


def without_copies(cluster: Cluster, silent_nodes: Iterable[tuple[str, str]]) -> set[str]:
    """Return the topics of which a node that may have copies did not answer, or nobody knows."""
    groups = {group for group, _ in silent_nodes}
    return {each.topic for each in cluster.homes if each.error or groups & set(each.groups)}


def groups_of(cluster: Cluster, unknown: Mapping[str, int]) -> tuple[list[Group], list[str]]:
    """Return the groups that a plan may use, and why others are left out, or get nothing.

    Args:
        cluster: With all nodes.
        unknown: Of how many partitions that a group takes appends of the growth is not known.
    """
    disks: dict[str, list[Disk]] = {}
    for disk in cluster.disks:
        disks.setdefault(disk.group, []).append(disk)
    found: dict[str, Group] = {}
    notes: list[str] = []
    for view in {each.group.group: each.group for each in cluster.brokers}.values():
        mine = disks.get(view.group, [])
        free = [each.bytes_free for each in mine if each.bytes_free is not None]
        if view.draining:
            notes.append(f"{view.group} is left out: it is draining")
        elif not view.alive:
            notes.append(f"{view.group} is left out: no node leads it")
        elif not mine or len(free) < len(mine):
            notes.append(f"{view.group} is left out: a node did not tell how full its disks are")
        else:
            closed = _closed({each.level for each in mine}, unknown.get(view.group, 0))
            if closed:
                notes.append(f"{view.group} gets nothing: {closed}")
            found[view.group] = Group(view.group, view.pool, min(free), closed)
    return list(found.values()), notes


def _closed(levels: set[str], unknown: int) -> str:
    """Return why a plan moves nothing to a group with such disks; "": it may."""
    refusing = sorted(levels & _REFUSING)
    if refusing:
        return f"a disk of it is at the step {refusing[0]}"
    if unknown:
        return f"how fast {unknown} of its partitions grow is not known"
    return ""


def told_disks(cluster: Cluster, silent_nodes: Container[tuple[str, str]]) -> list[Key]:
    """Return the disks of nodes that told all their blocks: what no block is on is empty."""
    return [
        (each.group, each.node, each.directory)
        for each in cluster.disks
        if not each.error and (each.group, each.node) not in silent_nodes
    ]


def held_on_disks(
    spark: SparkSession,
    held: DataFrame,
    grown: DataFrame,
    homes: Sequence[Home],
    ends: DataFrame,
) -> dict[Key, Held]:
    """Return what vq has on each disk, and what it will have once retention keeps up.

    A partition comes in where its appends go: a group that had it before gets nothing of it. What
    is not in ZooKeeper any more, or not yet, is not known to grow, nor to end.

    Args:
        spark: The session.
        held: From ``growth.on_nodes``.
        grown: From ``growth.partitions``.
        homes: All partitions there are.
        ends: From ``retention.endings``.
    """
    at_home = spark.createDataFrame(
        [(each.topic, each.partition, each.group or "") for each in homes if not each.error],
        "topic string, partition int, home string",
    )
    rate = F.when(F.col("home") == F.col("group"), F.col("bytes_per_day")).when(
        F.col("home").isNotNull(), 0.0
    )
    rows = (
        held.join(at_home, ["topic", "partition"], "left")
        .join(grown.select("topic", "partition", "bytes_per_day"), ["topic", "partition"], "left")
        .withColumn("bytes_per_day", rate)
        .join(F.broadcast(ends), "topic", "left")
        .groupBy("group", "node", "directory")
        .agg(
            F.sum("disk_bytes").alias("disk_bytes"),
            _if_all(F.col("bytes_per_day")).alias("bytes_per_day"),
            _if_all(retention.settled()).alias("settles"),
        )
    )
    return {
        (row["group"], row["node"], row["directory"]): Held(
            row["disk_bytes"], row["bytes_per_day"], row["settles"]
        )
        for row in rows.toLocalIterator()
    }


def _if_all(value: Column) -> Column:
    """Return a sum that is null where one part is: a part would look like the whole."""
    return F.when(F.count(value) == F.count(F.lit(1)), F.sum(value))


def _keep(kept: contextlib.ExitStack, rows: DataFrame) -> DataFrame:
    rows.persist()
    kept.callback(rows.unpersist)
    return rows


def _errors(blocks: DataFrame) -> dict[tuple[str, str], str]:
    rows: Iterable[Any] = (
        blocks.where("error is not null").select("group", "node", "error").collect()
    )
    return {(row["group"], row["node"]): row["error"] for row in rows}


def _history(spark: SparkSession, wanted: Wanted) -> dict[Key, list[tuple[float, float]]]:
    if wanted.out is None:
        return {}
    found = read_snapshots(
        spark,
        f"{wanted.out}/disks",
        HISTORY,
        before=snapshot_name(wanted.now_s),
        at_most=SNAPSHOTS_MAX,
    )
    if found is None:
        return {}
    return points_of(
        {**row.asDict(), "seconds": snapshot_seconds(row["snapshot"])}
        for row in found.select("group", "node", "directory", "bytes_used", "snapshot").collect()
    )


def _typed(column: StructField, value: Any) -> Any:
    is_double = isinstance(column.dataType, DoubleType)
    return float(value) if is_double and value is not None else value
