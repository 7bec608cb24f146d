"""What other settings of retention and archives would free, on which disk.

Functions from DataFrames to DataFrames; ``blocks`` has the columns of ``holdings.BLOCKS``. Blocks
go as a whole, when their youngest batch is too old, and never the one that takes appends: so the
answer is exact for this moment. A group that still needs messages (policy ``keep``) may hold blocks
back: then less is freed.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_vq.reports.growth import HOUR_MS
from vq import TopicSettings

__all__ = ["LADDER_HOURS", "Wish", "ratios", "what_ifs", "wishes"]

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


def ratios(blocks: DataFrame) -> DataFrame:
    """Return what share of its bytes an archive takes, measured, of topics that have some."""
    return (
        blocks.where("archive_bytes is not null")
        .groupBy("topic")
        .agg((F.sum("archive_bytes") / F.sum(F.col("end") - F.col("start"))).alias("ratio"))
    )


def what_ifs(
    spark: SparkSession, blocks: DataFrame, wished: list[Wish], *, now_ms: int
) -> DataFrame:
    """Return how many bytes each wish frees on each disk.

    Columns: topic, action, hours, group, node, directory, blocks, bytes_freed, and unknown_blocks:
    so many have no times, so they may count too, and ``bytes_freed`` is null. For an archive it
    also is where no archive of the topic, nor of any other, shows how well messages compress;
    ``ratio_of`` says which one did.
    """
    tried = spark.createDataFrame(wished, "topic string, action string, hours bigint")
    mine = ratios(blocks).withColumnRenamed("ratio", "own_ratio")
    all_topics = blocks.where("archive_bytes is not null").agg(
        (F.sum("archive_bytes") / F.sum(F.col("end") - F.col("start"))).alias("any_ratio")
    )
    old = F.col("last_ms") < F.lit(now_ms) - F.col("hours") * F.lit(HOUR_MS)
    retention = F.col("action") == "retention"
    counts = F.when(retention, old).otherwise(old & F.col("archive_bytes").isNull())
    size = F.col("end") - F.col("start")
    ratio = F.coalesce("own_ratio", "any_ratio")
    freed = F.when(retention, F.col("disk_bytes").cast("double")).otherwise(size * (1 - ratio))
    closed = blocks.where("start is not null and not is_open")
    return (
        closed.join(F.broadcast(tried), "topic")
        .join(F.broadcast(mine), "topic", "left")
        .crossJoin(F.broadcast(all_topics))
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
            F.max(
                F.when(~retention & F.col("own_ratio").isNotNull(), "topic").when(
                    ~retention & F.col("any_ratio").isNotNull(), "cluster"
                )
            ).alias("ratio_of"),
            F.max(F.when(~retention, ratio)).alias("ratio"),
        )
    )
