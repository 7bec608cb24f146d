"""Streams: which offsets a micro-batch has, and what of them is committed to a group.

An offset of Spark's checkpoint is ``{"v": 1, "topics": {name: {"id": id, "at": [0, 10, None]}}}``:
for each partition of a topic, in order, where the next micro-batch begins. None stands for a
partition whose broker was silent before its first place was known.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_vq.columns import checked
from pyspark_vq.connection import factory_of
from pyspark_vq.filters import EVERYTHING
from pyspark_vq.options import EARLIEST, Places, ReadOptions
from pyspark_vq.planning import TopicNow, known_ends, offsets_of, topics_now
from pyspark_vq.positions import Positions, TopicPositions, following, ranges_between
from pyspark_vq.ranges import Range, split
from pyspark_vq.reader import DataLost, Split, read_split, selected
from vq import Admin
from vq.errors import VqError

__all__ = ["StreamReader"]

logger = logging.getLogger("pyspark_vq")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream; one lives on the driver as long as the query runs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked(schema)
        self._stop_at: Positions | None = None  # of a query that ends by itself

    @property
    def _admin(self) -> Admin:
        return factory_of(self._options.connect).admin

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins."""
        options, admin, topics = self._options, self._admin, {}
        for topic in topics_now(admin, options):
            ends = known_ends(admin, topic, options.timeout_s)
            at = offsets_of(admin, topic, ends, "startingOffsets", options.starting, options)
            topics[topic.name] = TopicPositions(topic.id, tuple(at[n] for n in sorted(at)))
        return Positions(topics).encode()
