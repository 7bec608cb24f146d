"""Batch queries: ranges are planned on the driver; tasks read them from brokers, or archives."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_vq.clocks import told_ahead
from pyspark_vq.columns import checked, first_offset, is_numbered, record_batch, wanted_columns
from pyspark_vq.connection import factory_of
from pyspark_vq.errors import untraced
from pyspark_vq.filters import EVERYTHING, Narrowed, narrowed_by
from pyspark_vq.options import ReadOptions
from pyspark_vq.planning import batch_ranges
from pyspark_vq.ranges import Range, narrowed, split
from vq import Admin, Where
from vq.columns import Selection, Table
from vq.errors import (
    CorruptData,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionQuarantined,
    UnknownTopic,
    VqError,
)

logger = logging.getLogger("pyspark_vq")


class DataLost(VqError):
    """Messages that a query should read are not there, or damaged."""

    hint = "failOnDataLoss=false reads on behind them, and tells the range in the executor's log"


class Split(InputPartition):
    """One task: a range, and which of its messages are wanted."""

    def __init__(self, range_: Range, selection: Selection) -> None:
        self.range = range_
        self.selection = selection


class BatchReader(DataSourceReader):
    """The reader of a batch query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked_for(options, schema)
        self._left = EVERYTHING

    @property
    def pushFilters(self) -> "_PushFilters":
        """What Spark calls with filters; see ``_PushFilters``."""
        return _PushFilters(self)

    def push(self, filters: list[Filter]) -> list[Filter]:
        """Keep what filters leave; return those that Spark has to check."""
        if not is_numbered(self._schema):
            self._left, others = narrowed_by(filters, self._left)
            return others
        others = []
        for each in filters:
            left, unhandled = narrowed_by([each], self._left)
            if unhandled or _takes_some(left.selection):  # Spark leaves out what was counted
                others.append(each)
            else:
                self._left = left
        return others

    @untraced
    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the query; one without a range if there is nothing to read."""
        left, options = self._left, self._options
        admin = factory_of(options.connect).admin
        ranges = [
            each
            for each in batch_ranges(admin, options, left)
            if left.takes(each.topic, each.partition)
        ]
        wanted = selected(left, options)
        found = split(narrowed(ranges, wanted.low, wanted.high), options.min_partitions)
        return [Split(each, wanted) for each in found] or [InputPartition(None)]

    @untraced
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task."""
        if isinstance(partition, Split):
            yield from read_split(self._options, self._schema, partition)


class _PushFilters:
    """``BatchReader.push``, as Spark calls it.

    Spark refuses a reader that overrides ``pushFilters`` while
    ``spark.sql.python.filterPushdown.enabled`` is false, which it is by default. Then it calls
    nothing and checks all filters itself, which is right for this reader. It tells an override by
    the function of the bound method: so this has that of the base class.
    """

    def __init__(self, reader: BatchReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return self._reader.push(filters)


def checked_for(options: ReadOptions, schema: StructType) -> StructType:
    """Return the schema of a query if the source has its columns; see ``columns.checked``.

    Raises:
        InvalidArgument: It has not, or the column ``number`` does not go with an option.
    """
    if is_numbered(schema) and options.wanted:
        raise InvalidArgument(
            "the column number counts all messages, and the options tag and where leave some out: "
            "leave them out, and filter the rows by their columns"
        )
    return checked(schema)


def _takes_some(selection: Selection) -> bool:
    """Whether messages between others are left out."""
    everything = EVERYTHING.selection
    return replace(selection, low=everything.low, high=everything.high) != everything


class _Numbers:
    """Numbers messages that are read one after the other, none of them left out."""

    def __init__(self, admin: Admin, found: Range) -> None:
        self._admin = admin
        self._range = found
        self._next: int | None = None

    def of(self, table: Table) -> int | None:
        """Return the number of the first row of the next table; None: it is not known."""
        number, topic, partition = self._next, self._range.topic, self._range.partition
        if number is None:
            number = self._admin.numbers_at(topic, {partition: first_offset(table)})[partition]
        self._next = None if number is None else number + table.rows
        return number


def selected(left: Narrowed, options: ReadOptions) -> Selection:
    """Return which messages the filters and the option ``tag`` leave."""
    kept = left.selection
    if not options.wanted.tags:
        return kept
    tags = options.wanted.encoded
    tags &= tags if kept.tags is None else set(kept.tags)
    return Selection(kept.low, kept.high, kept.id_low, kept.id_high, tuple(sorted(tags)))


def read_split(options: ReadOptions, schema: StructType, task: Split) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one task as Arrow batches.

    Raises:
        DataLost: Some are not there, and data loss fails the query.
        VqError: A broker does not answer in time; or the topic was deleted.
    """
    found, admin = task.range, factory_of(options.connect).admin
    at, check_clocks = found.start, found.has_passed
    while at < found.end:
        numbers = _Numbers(admin, found) if is_numbered(schema) else None
        try:
            for each in admin.read_columns(
                found.topic,
                found.partition,
                at,
                found.end,
                columns=wanted_columns(schema),
                selection=task.selection,
                where=Where(options.wanted.where) if options.wanted.where else None,
                topic_id=found.topic_id,
                read_from=options.read_from,
                archives_directly=options.archives == "direct",
                timeout=options.timeout_s,
            ):
                at = each.next_offset
                if each.table.rows:
                    number = None if numbers is None else numbers.of(each.table)
                    batch = record_batch(each.table, found.topic, found.partition, schema, number)
                    if check_clocks:
                        check_clocks = _are_right(options, found, batch)
                    yield batch
            return
        except UnknownTopic as error:
            text = f"[{at}, {found.end}) of {found.topic}-{found.partition} is gone: {error}"
            if options.fail_on_data_loss:
                raise DataLost(text) from error
            logger.warning("%s", text)
            return
        except (OffsetOutOfRange, CorruptData, PartitionQuarantined) as error:
            behind = min(_behind(admin, found, at, error), found.end)
            text = f"[{at}, {behind}) of {found.topic}-{found.partition} cannot be read: {error}"
            if options.fail_on_data_loss or behind <= at:
                raise DataLost(text, details=_details(error)) from error
            logger.warning("%s; the query goes on behind it", text)
            at = behind


def _are_right(options: ReadOptions, found: Range, batch: pa.RecordBatch) -> bool:
    """Return whether nothing proves that a clock was further ahead than is allowed for.

    Raises:
        DataLost: Something does, and data loss fails the query.
    """
    told = told_ahead(batch, time.time(), options.clock_ahead_s)
    if not told:
        return True
    text = f"messages of {found.topic}-{found.partition} may be missing: {told}"
    if options.fail_on_data_loss:
        raise DataLost(f"{text}; give a larger clockAhead")
    logger.warning("%s", text)
    return False


def _details(error: VqError) -> dict[str, Any]:
    return dict(error.details)


def _behind(admin: Admin, found: Range, at: int, error: VqError) -> int:
    """Return where messages can be read again behind a loss; ``at`` if that is not known."""
    if isinstance(error, OffsetOutOfRange):
        earliest = error.details.get("earliest")
        return earliest if isinstance(earliest, int) and earliest > at else found.end
    where = error.details.get("offset", at)
    where = max(at, where) if isinstance(where, int) else at
    try:
        described = admin.describe_topic(found.topic).partitions[found.partition]
        ends = [each.end for each in described.damage if each.start <= where < each.end]
        if ends:
            return max(ends)
        following = admin.boundaries(found.topic, {found.partition: where + 1})
        return following[found.partition]
    except VqError as failed:
        logger.warning("what lies behind the damage cannot be found: %s", failed)
        return at
