"""What of a capacity report is shown at a glance: the same for the page, the console and JSON.

Here the tables are read, once each, and cut to the largest rows; all rows are in the files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pyspark_vq.reports.capacity import HOURS_SHOWN, Capacity
from pyspark_vq.reports.growth import HOUR_MS
from pyspark_vq.reports.progress import Progress

#: Lines in one chart.
LINES: Final = 6
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The rows that are shown.

    Attributes:
        topics: Those that get most, of ``topic_count``.
        partitions: Hot, unknown and idle ones, of each so many as wanted.
        verdicts: How many partitions have each verdict.
        what_ifs: Those that free most, added up over the nodes of a group; unknown if one of them
            did not answer.
        rates: Of the topics shown.
        sizes: Messages and bytes by size class, of all topics.
        topic_hours, group_hours: Bytes and messages of hours: of the largest topics, of all groups.
        bytes_per_day, messages_per_day: Of all topics; None: of some that is not known.
    """

    topics: Rows
    topic_count: int
    partitions: Rows
    verdicts: Mapping[str, int]
    what_ifs: Rows
    rates: Rows
    sizes: Rows
    topic_hours: Rows
    group_hours: Rows
    bytes_per_day: float | None
    messages_per_day: float | None


def summarize(made: Capacity, top: int, progress: Progress) -> Summary:
    """Read the tables of a report."""
    context = made.tables["topics"].sparkSession.sparkContext
    with progress.step("summing up", context):
        return _summarize(made, top)


def _summarize(made: Capacity, top: int) -> Summary:
    tables = made.tables
    every = _rows(tables["topics"])
    every.sort(key=lambda row: (-(row["bytes_per_day"] or 0), row["topic"]))
    names = [row["topic"] for row in every[:top]]
    now_ms = int(made.now_s * 1000)  # blocks of a clock that is ahead are not of this time
    hours = tables["growth"].where(F.col("hour_ms").between(now_ms - HOURS_SHOWN * HOUR_MS, now_ms))
    silent = sorted({group for group, _ in made.silent})
    sums = (F.sum("bytes").alias("bytes"), F.sum("messages").alias("messages"))
    verdicts: dict[str, int] = dict.fromkeys(("hot", "normal", "idle", "unknown"), 0)
    for row in tables["partitions"].groupBy("verdict").count().collect():
        verdicts[row["verdict"]] = row["count"]
    return Summary(
        topics=every[:top],
        topic_count=len(every),
        partitions=_rows(_of_each_verdict(tables["partitions"], top)),
        verdicts=verdicts,
        what_ifs=_rows(
            tables["what_ifs"]
            .groupBy("topic", "action", "hours", "group")
            .agg(
                F.when(
                    ~F.col("group").isin(silent) & (F.count("bytes_freed") == F.count(F.lit(1))),
                    F.sum("bytes_freed"),
                ).alias("bytes_freed"),
                F.sum("blocks").alias("blocks"),
                F.sum("unknown_blocks").alias("unknown_blocks"),
                F.max("ratio_of").alias("ratio_of"),
            )
            .where("bytes_freed is null or bytes_freed > 0")
            .orderBy(F.desc_nulls_last("bytes_freed"), "topic", "action", "hours", "group")
            .limit(top)
        ),
        rates=_rows(tables["rates"].where(F.col("topic").isin(names)).orderBy("topic")),
        sizes=_rows(
            tables["sizes"]
            .groupBy("bits")
            .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
            .orderBy("bits")
        ),
        topic_hours=_rows(
            hours.where(F.col("topic").isin(names[:LINES]))
            .groupBy("topic", "hour_ms")
            .agg(*sums)
            .orderBy("topic", "hour_ms")
        ),
        group_hours=_rows(hours.groupBy("group", "hour_ms").agg(*sums).orderBy("group", "hour_ms")),
        bytes_per_day=_total(every, "bytes_per_day"),
        messages_per_day=_total(every, "messages_per_day"),
    )


def _of_each_verdict(partitions: DataFrame, top: int) -> DataFrame:
    order = Window.partitionBy("verdict").orderBy(
        F.desc_nulls_last("share"), F.desc_nulls_last("bytes"), "topic", "partition"
    )
    return (
        partitions.where("verdict != 'normal'")
        .withColumn("place", F.row_number().over(order))
        .where(F.col("place") <= top)
        .drop("place")
        .orderBy("verdict", F.desc_nulls_last("share"), F.desc_nulls_last("bytes"), "topic")
    )


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _total(rows: Rows, name: str) -> float | None:
    found = [row[name] for row in rows]
    return None if None in found else float(sum(found))
