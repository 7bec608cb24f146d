"""What retention and archives leave on disks, and what other settings of them would free.

Functions from DataFrames to DataFrames; ``blocks`` has the columns of ``holdings.BLOCKS``. Blocks
go as a whole, when their youngest batch is too old, and never the one that takes appends: so the
answer is exact for this moment. A group that still needs messages (policy ``keep``) may hold blocks
back: then less is freed.

An archive beside the log takes a share of the bytes in it, its *ratio*: measured on archives of the
topic, else of the cluster. An archive at a URL takes nothing on the disk.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_vq.reports.growth import HOUR_MS
from vq import TopicSettings

#: Which numbers of hours are tried, where they are fewer than the topic's.
LADDER_HOURS: Final = (6, 12, 24, 48, 72, 168, 336, 720)
#: Of one topic, so many are tried for each kind: the largest ones below its setting.
STEPS: Final = 3
#: A setting to try: topic, "retention" or "archive", hours.
Wish = tuple[str, str, int]


def wishes(settings: dict[str, TopicSettings], given: Iterable[int] = ()) -> list[Wish]:
    """Return which settings are tried: for each topic some hours below those that it has.

    Args:
        settings: Of each topic.
        given: Try these hours instead, where they are fewer than the topic's.
    """
    ladder = sorted(set(given)) or LADDER_HOURS
    found: list[Wish] = []
    for topic, each in sorted(settings.items()):
        for kind, now in (
            ("retention", each.retention_hours),
            ("archive", each.archived_after_hours),
        ):
            below = [hours for hours in ladder if now is None or hours < now]
            if kind == "archive" and each.retention_hours is not None:
                below = [hours for hours in below if hours < each.retention_hours]
            found += [(topic, kind, hours) for hours in below[-STEPS:]]
    return found


def ratios(
    spark: SparkSession, blocks: DataFrame, settings: Mapping[str, TopicSettings]
) -> DataFrame:
    """Return what share of its bytes an archive of each topic takes on the disk.

    Columns: topic, ratio, and ratio_of: ``topic`` or ``cluster`` archives were measured; ``url``:
    archives of the topic leave the disk. Both are null where there is no archive to measure.
    """
    size = F.sum(F.col("end") - F.col("start"))
    measured = blocks.where("archive_bytes is not null and end > start")
    own = measured.groupBy("topic").agg((F.sum("archive_bytes") / size).alias("own"))
    every = measured.agg((F.sum("archive_bytes") / size).alias("every"))
    topics = spark.createDataFrame(
        [(name, each.archive_to is not None) for name, each in sorted(settings.items())],
        "topic string, leaves boolean",
    )
    leaves = F.col("leaves")
    return (
        topics.join(F.broadcast(own), "topic", "left")
        .crossJoin(F.broadcast(every))
        .select(
            "topic",
            F.when(leaves, 0.0).otherwise(F.coalesce("own", "every")).alias("ratio"),
            F.when(leaves, "url")
            .when(F.col("own").isNotNull(), "topic")
            .when(F.col("every").isNotNull(), "cluster")
            .alias("ratio_of"),
        )
    )


def endings(
    spark: SparkSession, ratios: DataFrame, settings: Mapping[str, TopicSettings]
) -> DataFrame:
    """Return what ends the bytes of each topic: the columns that ``settled`` takes.

    Columns: topic, kept_hours, archived_hours, kept_bytes, ratio; null: none of these ends them.
    """
    rows = [
        (
            name,
            each.retention_hours,
            each.archived_after_hours,
            None if each.retention_bytes is None else float(each.retention_bytes),
        )
        for name, each in sorted(settings.items())
    ]
    ends = spark.createDataFrame(
        rows, "topic string, kept_hours bigint, archived_hours bigint, kept_bytes double"
    )
    return ends.join(F.broadcast(ratios), "topic", "left")


def settled() -> Column:
    """Return what a partition takes on a disk once as much goes as comes in; null: not known.

    The log has what comes in while messages are kept, and no more than the bytes that are kept; if
    neither bound is set it grows for ever, unless nothing comes in. What is younger than an archive
    takes its bytes, what is older ``ratio`` of them.

    *Example*: 1 000 bytes an hour, kept for 90 days, archived after a day to a fifth: 24 000 bytes,
    and a fifth of 2 136 000. At a URL, archives take nothing: 24 000 bytes.
    """
    rate = F.col("bytes_per_day") / 24
    by_age = F.coalesce(rate * F.col("kept_hours"), F.when(rate == 0, F.col("bytes")))
    log = F.when(rate.isNotNull(), F.least(by_age, "kept_bytes"))
    full = F.least(log, rate * F.col("archived_hours"))
    return F.when(full == log, log).otherwise(full + (log - full) * F.col("ratio"))


def what_ifs(blocks: DataFrame, ratios: DataFrame, wished: list[Wish], *, now_ms: int) -> DataFrame:
    """Return how many bytes each wish frees on each disk.

    Columns: topic, action, hours, group, node, directory, blocks, bytes_freed, and unknown_blocks:
    so many have no times, so they may count too, and ``bytes_freed`` is null. For an archive it
    also is where nothing shows how well messages compress; ``ratio`` and ``ratio_of`` are those of
    ``ratios``.
    """
    tried = blocks.sparkSession.createDataFrame(wished, "topic string, action string, hours bigint")
    old = F.col("last_ms") < F.lit(now_ms) - F.col("hours") * F.lit(HOUR_MS)
    retention = F.col("action") == "retention"
    counts = F.when(retention, old).otherwise(old & F.col("archive_bytes").isNull())
    size = F.col("end") - F.col("start")
    freed = F.when(retention, F.col("disk_bytes").cast("double")).otherwise(
        size * (1 - F.col("ratio"))
    )
    closed = blocks.where("start is not null and not is_open")
    return (
        closed.join(F.broadcast(tried), "topic")
        .join(F.broadcast(ratios), "topic", "left")
        .groupBy("topic", "action", "hours", "group", "node", "directory")
        .agg(
            F.sum(F.when(counts, 1).otherwise(0)).alias("blocks"),
            F.sum(F.when(F.col("last_ms").isNull(), 1).otherwise(0)).alias("unknown_blocks"),
            F.round(
                F.when(
                    F.max(F.when(counts.isNull() | (counts & freed.isNull()), 1).otherwise(0)) == 0,
                    F.coalesce(F.sum(F.when(counts, freed)), F.lit(0.0)),
                )
            )
            .cast("long")
            .alias("bytes_freed"),
            F.max(F.when(~retention, F.col("ratio_of"))).alias("ratio_of"),
            F.max(F.when(~retention, F.col("ratio"))).alias("ratio"),
        )
    )
