"""Rows of blocks as nodes tell them, for the tables of the capacity report: no cluster."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_vq.reports.growth import HOUR_MS
from pyspark_vq.reports.holdings import BLOCKS

#: Midnight, so that hours are round.
NOW = 1_800_057_600_000
assert NOW % HOUR_MS == 0


def block(
    node: str,
    topic: str,
    partition: int,
    start: int | None = None,
    end: int | None = None,
    hours_ago: tuple[float, float] | None = None,
    messages: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One row of a node such as ``b1/n1``; times as hours before now."""
    group, name = node.split("/")
    first, last = hours_ago or (None, None)
    row = {
        **dict.fromkeys(BLOCKS.fieldNames()),
        "group": group,
        "node": name,
        "leads": name == "n1",
        "topic": topic,
        "partition": partition,
        "topic_id": "1",
        "directory": f"/{name}",
        "state": "rw",
        "reason": "",
        "is_whole": True,
        "start": start,
        "end": end,
        "first_ms": None if first is None else int(NOW - first * HOUR_MS),
        "last_ms": None if last is None else int(NOW - last * HOUR_MS),
        "messages": messages,
        "is_open": False if start is not None else None,
        "disk_bytes": None if start is None or end is None else end - start,
    }
    return {**row, **more}


def silent(node: str, error: str) -> dict[str, Any]:
    """The row of a node that did not answer."""
    group, name = node.split("/")
    row = dict.fromkeys(BLOCKS.fieldNames())
    return {**row, "group": group, "node": name, "error": error}


def frame_of(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    """The rows as the report reads them."""
    names = BLOCKS.fieldNames()
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], BLOCKS)
