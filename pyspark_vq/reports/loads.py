"""Which partitions and topics get how much: rolled up, hot, idle, skewed.

Functions from DataFrames to DataFrames.
"""

from collections.abc import Collection, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pyspark_vq.reports.holdings import Home

#: A partition is hot if it gets so many times what each of its topic's would get of an even spread.
HOT: Final = 2.0
#: Columns of ``partition_rows``, in order.
PARTITIONS: Final = (
    "topic",
    "partition",
    "group",
    "verdict",
    "bytes",
    "disk_bytes",
    "messages",
    "blocks",
    "archived_blocks",
    "archived_bytes",
    "archive_bytes",
    "first_ms",
    "last_ms",
    "bytes_per_day",
    "messages_per_day",
    "mean_message_bytes",
    "share",
    "reason",
)


def partition_rows(
    spark: SparkSession, held: DataFrame, homes: Sequence[Home], silent: dict[str, str]
) -> DataFrame:
    """Return one row for each partition of each topic, known or not.

    ``share`` is what the partition gets of what its topic gets; an even spread gives 1 to all.
    ``verdict`` is ``hot``, ``normal``, ``idle`` (nothing came in the last day) or ``unknown``, with
    the reason.

    Args:
        spark: The session.
        held: From ``growth.partitions``.
        homes: All partitions there are.
        silent: Of the groups of which no node answered: why.
    """
    rows = [
        (
            each.topic,
            each.partition,
            each.group,
            each.error or "; ".join(silent[name] for name in each.groups if name in silent),
        )
        for each in homes
    ]
    there = spark.createDataFrame(rows, "topic string, partition int, home string, cause string")
    sums = ("bytes", "disk_bytes", "blocks", "archived_blocks", "archived_bytes", "archive_bytes")
    joined = there.join(held, ["topic", "partition"], "left")
    by_topic = Window.partitionBy("topic")
    known = (F.col("cause") == "") & F.col("bytes_per_day").isNotNull()
    even = F.avg(F.when(known, F.col("bytes_per_day"))).over(by_topic)
    reason = (
        F.when(F.col("cause") != "", F.col("cause"))
        .when(F.col("blocks").isNull(), F.lit("no node that answered holds it"))
        .when(
            ~F.col("is_whole"),
            F.concat(F.lit("blocks are missing: "), F.coalesce("broken", F.lit(""))),
        )
        .when(F.col("bytes_per_day").isNull(), F.lit("blocks are too young, or tell no times"))
    )
    share = F.when(known & (even > 0), F.col("bytes_per_day") / even)
    numbers = (*sums, "messages", "bytes_per_day", "messages_per_day")
    columns = {
        "group": F.col("home"),
        "verdict": F.when(~known, "unknown")
        .when(F.col("bytes_per_day") == 0, "idle")
        .when(share > HOT, "hot")
        .otherwise("normal"),
        "share": share,
        "reason": reason,
        "mean_message_bytes": F.when(
            (F.col("cause") == "") & (F.col("messages") > 0), F.col("bytes") / F.col("messages")
        ),
        **{name: F.when(F.col("cause") == "", F.col(name)) for name in numbers},
    }
    return joined.select(*(columns.get(name, F.col(name)).alias(name) for name in PARTITIONS))


def topic_rows(
    partitions: DataFrame, held: DataFrame, without_copies: Collection[str] = ()
) -> DataFrame:
    """Return one row for each topic: its partitions added up, and how even they are.

    A sum is null where a partition is unknown: a part would look like the whole. ``skew`` is what
    the busiest partition gets, in times of an even spread. ``copies_disk_bytes`` counts all nodes.

    Args:
        partitions: From ``partition_rows``.
        held: From ``growth.on_nodes``, of all nodes.
        without_copies: Topics with copies on nodes that did not answer.
    """

    def total(name: str) -> Column:
        return F.when(F.count(name) == F.count(F.lit(1)), F.sum(name)).alias(name)

    topics = partitions.groupBy("topic").agg(
        F.count(F.lit(1)).alias("partitions"),
        F.sum((F.col("verdict") == "unknown").cast("int")).alias("unknown"),
        F.sum((F.col("verdict") == "hot").cast("int")).alias("hot"),
        F.sum((F.col("verdict") == "idle").cast("int")).alias("idle"),
        total("bytes"),
        total("disk_bytes"),
        total("messages"),
        total("archived_bytes"),
        total("archive_bytes"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
        total("bytes_per_day"),
        total("messages_per_day"),
        F.max("share").alias("skew"),
    )
    copies = held.groupBy("topic").agg(F.sum("disk_bytes").alias("copies_disk_bytes"))
    return topics.join(copies, "topic", "left").withColumns(
        {
            "copies_disk_bytes": F.when(
                ~F.col("topic").isin(list(without_copies)), F.col("copies_disk_bytes")
            ),
            "mean_message_bytes": F.when(F.col("messages") > 0, F.col("bytes") / F.col("messages")),
        }
    )


def rates(hours: DataFrame) -> DataFrame:
    """Return how the load of each topic spreads over the hours in which something came.

    Columns: topic, hours, and per second of an hour the median, the 95th percentile and the most of
    messages and bytes.
    """
    per_hour = hours.groupBy("topic", "hour_ms").agg(
        (F.sum("bytes") / 3600).alias("bytes"), (F.sum("messages") / 3600).alias("messages")
    )
    wanted = [
        F.percentile(name, F.lit(share)).alias(f"{name}_per_s_{label}")
        for name in ("messages", "bytes")
        for share, label in ((0.5, "p50"), (0.95, "p95"), (1.0, "max"))
    ]
    return per_hour.groupBy("topic").agg(F.count(F.lit(1)).alias("hours"), *wanted)
