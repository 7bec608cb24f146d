"""How much was stored when, and how fast partitions grow: from the times of blocks.

Functions from DataFrames to DataFrames; their input has the columns of ``holdings.BLOCKS``. A block
tells when its first and its last batch were appended. Its bytes and messages are spread evenly over
that time: exact for a block within an hour, an estimate for one that spans several. Blocks of which
a node does not know the times give no growth.

What retention has deleted is not seen. So a rate is of the time that is still there: of a partition
whose oldest block is six hours old, of these six hours.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
#: A block that spans more hours is spread over its last ones only; it is of an idle partition.
HOURS_MAX: Final = 24 * 366
#: What came in the window of a rate, from which rates are made.
_RECENT: Final = ("recent_bytes", "recent_messages")


def chosen(blocks: DataFrame) -> DataFrame:
    """Return the blocks of one node for each group: of its master, else of a copy that answered.

    Messages are counted once, however many copies there are.
    """
    nodes = (
        blocks.where(F.col("error").isNull())
        .groupBy("group", "node")
        .agg(
            F.coalesce(F.max("leads"), F.lit(False)).alias("leads"),
            F.coalesce(F.sum("end"), F.lit(0)).alias("ends"),
        )
    )
    order = Window.partitionBy("group").orderBy(F.desc("leads"), F.desc("ends"), "node")
    one = (
        nodes.withColumn("place", F.row_number().over(order))
        .where("place = 1")
        .select("group", "node")
    )
    return blocks.join(F.broadcast(one), ["group", "node"])


def by_hour(blocks: DataFrame) -> DataFrame:
    """Return what was appended in each hour: of each partition on each node.

    Columns: group, node, directory, topic, partition, hour_ms, bytes, messages.
    """
    hour = F.lit(HOUR_MS)
    known = blocks.where("first_ms is not null and start is not null and last_ms >= first_ms")
    begin = F.greatest(F.col("first_ms"), F.col("last_ms") - F.lit(HOURS_MAX * HOUR_MS))
    spread = known.withColumn("begin", begin).withColumn(
        "hour_ms",
        F.explode(F.sequence(F.expr(f"begin - begin % {HOUR_MS}"), F.col("last_ms"), hour)),
    )
    overlap = F.least(F.col("last_ms"), F.col("hour_ms") + hour) - F.greatest(
        F.col("begin"), F.col("hour_ms")
    )
    span = F.col("last_ms") - F.col("begin")
    part = F.when(span > 0, overlap / span).otherwise(F.lit(1.0))
    keys = ["group", "node", "directory", "topic", "partition", "hour_ms"]
    return (
        spread.withColumn("part", part)
        .groupBy(*keys)
        .agg(
            F.sum(F.col("part") * (F.col("end") - F.col("start"))).alias("bytes"),
            F.sum(F.col("part") * F.col("messages")).alias("messages"),
        )
        .where("bytes > 0")
    )


def on_nodes(blocks: DataFrame) -> DataFrame:
    """Return one row for each partition on each node: what is stored there.

    ``bytes`` are those of the log, ``disk_bytes`` what they take on the disk.
    """
    return _added_up(blocks, "group", "node", "directory", "topic", "partition").drop(*_RECENT)


def partitions(blocks: DataFrame, *, now_ms: int, window_ms: int = DAY_MS) -> DataFrame:
    """Return one row for each partition: what is stored, and how fast it grows.

    ``bytes_per_day`` and ``messages_per_day`` are of the last ``window_ms``, or of the time since
    the oldest block if that is shorter; null where a block has no times, or the oldest one is
    younger than an hour: minutes say nothing of a day. A partition that has moved has blocks on
    several groups: its rate is of all of them together, over one span of time.

    Args:
        blocks: Of one node for each group, see ``chosen``.
        now_ms: The moment of the report.
        window_ms: How far back rates look.
    """
    since = now_ms - window_ms
    found = _added_up(blocks, "topic", "partition", since_ms=since)
    age = F.lit(now_ms) - F.greatest(F.col("first_ms"), F.lit(since))
    rate = F.when((F.col("first_ms").isNotNull()) & (age >= HOUR_MS), F.lit(DAY_MS) / age)
    empty = F.col("blocks") == 0
    return found.withColumns(
        {
            f"{name}_per_day": F.when(empty, 0.0).otherwise(F.col(f"recent_{name}") * rate)
            for name in ("bytes", "messages")
        }
    ).drop(*_RECENT)


def _added_up(blocks: DataFrame, *keys: str, since_ms: int = 0) -> DataFrame:
    """Return what blocks hold, by ``keys``, and what of that came since ``since_ms``."""
    held = F.col("start").isNotNull()
    span = F.col("last_ms") - F.col("first_ms")
    young = F.when(F.col("first_ms") >= since_ms, 1.0).otherwise(
        F.when(span > 0, (F.col("last_ms") - F.lit(since_ms)) / span).otherwise(0.0)
    )
    part = F.when(F.col("last_ms") < since_ms, 0.0).otherwise(young)
    size = F.col("end") - F.col("start")
    archived = F.col("archive_bytes").isNotNull()
    unknown = F.sum(F.when(held & F.col("first_ms").isNull(), 1).otherwise(0))
    return blocks.where("topic is not null").groupBy(*keys).agg(
        F.min("is_whole").alias("is_whole"),
        F.max(F.when(~F.col("is_whole"), F.col("reason"))).alias("broken"),
        F.count("start").alias("blocks"),
        F.sum(F.when(held & archived, 1).otherwise(0)).alias("archived_blocks"),
        _sum(size).alias("bytes"),
        _sum("disk_bytes").alias("disk_bytes"),
        _sum(F.when(archived, size)).alias("archived_bytes"),
        _sum("archive_bytes").alias("archive_bytes"),
        F.when(unknown == 0, _sum("messages")).alias("messages"),
        F.when(unknown == 0, F.min("first_ms")).alias("first_ms"),
        F.when(unknown == 0, F.max("last_ms")).alias("last_ms"),
        F.sum(part * size).alias("recent_bytes"),
        F.sum(part * F.col("messages")).alias("recent_messages"),
    )  # fmt: skip


def sizes(blocks: DataFrame) -> DataFrame:
    """Return how large messages are: of each topic, how many are in blocks of which mean size.

    The mean size of a block's messages has ``bits`` bits: 8 stands for 128 to 255 bytes. It counts
    all that a message takes in the log: its share of the batch header, its key and its headers, and
    it is compressed if the message is. Single messages may be larger or smaller; `vq report audit`
    counts each of them.
    """
    mean = (F.col("end") - F.col("start")) / F.col("messages")
    return (
        blocks.where("messages > 0")
        .withColumn("bits", F.floor(F.log2(mean)).cast("int") + 1)
        .groupBy("topic", "bits")
        .agg(
            F.sum("messages").alias("messages"), F.sum(F.col("end") - F.col("start")).alias("bytes")
        )
    )


def _sum(what: Column | str) -> Column:
    return F.coalesce(F.sum(what), F.lit(0))
