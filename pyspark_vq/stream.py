"""Streams: what a micro-batch has, and what of it is committed to a group."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
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

from pyspark_vq.connection import close_all, factory_of
from pyspark_vq.errors import untraced
from pyspark_vq.filters import EVERYTHING
from pyspark_vq.group import GroupProgress
from pyspark_vq.options import ReadOptions
from pyspark_vq.planning import (
    TopicNow,
    known_ends,
    names_now,
    names_to_begin,
    offsets_of,
    takes,
    topic_now,
)
from pyspark_vq.positions import (
    Positions,
    TopicPositions,
    available,
    capped,
    joined,
    limited,
    moved,
    ranges_between,
)
from pyspark_vq.ranges import split
from pyspark_vq.reader import DataLost, Split, checked_for, read_split, selected
from vq import Admin
from vq.errors import CoordinationError, NotMaster, UnknownTopic, VqError

logger = logging.getLogger("pyspark_vq")
#: Spark asks a stream that waits every 10 ms. Each look asks every partition's broker.
IDLE_PAUSE_S: Final = 0.1


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream; one lives beside the driver as long as the query runs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked_for(options, schema)
        self._stop_at: Positions | None = None  # of a query that ends by itself
        self._initial: Positions | None = None  # where it begins, if it is new
        self._seen: Positions | None = None  # what was there when Spark asked last
        self._not_before = 0.0  # the next look, if the last one found nothing
        self._told: set[str] = set()  # losses that are in the log already
        self._progress = GroupProgress(options)

    @property
    def _admin(self) -> Admin:
        return factory_of(self._options.connect).admin

    def _now(self) -> tuple[list[TopicNow], dict[str, VqError]]:
        """Return the topics that are there, and why others cannot be read."""
        admin, found = self._admin, []
        names, unreadable = names_now(admin, self._options)
        for name in names:
            try:
                found.append(topic_now(admin, name))
            except UnknownTopic:  # the caller knows whether it was there before
                continue
        return found, unreadable

    # Places -------------------------------------------------------------------------------------
    @untraced
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins.

        Spark asks twice: for the end of the first micro-batch, and for its tasks. It asks again
        when a query that was stopped in its first micro-batch is started again.
        """
        if self._initial is None:
            self._initial = self._first_places()
        return self._initial.encode()

    def _first_places(self) -> Positions:
        options, admin, topics = self._options, self._admin, {}
        for name in names_to_begin(admin, options):
            topic = topic_now(admin, name)
            ends = known_ends(admin, topic, options.timeout_s)
            at = offsets_of(admin, topic, ends, "startingOffsets", options.starting, options)
            topics[name] = TopicPositions(topic.id, tuple(at[n] for n in sorted(at)))
        return Positions(topics)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a micro-batch has at most."""
        limit = self._options.bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    @untraced
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends; ``start`` if there is nothing to read.

        Raises:
            DataLost: Something was lost, and data loss fails the query.
            CoordinationError: ZooKeeper is away, and the query begins, or ends by itself; another
                one waits.
            VqError: A broker is silent, and the query ends by itself; another one reads what else
                there is.
        """
        begin = Positions.decode(start)
        time.sleep(max(0.0, self._not_before - time.monotonic()))
        end, joining = self._end_of_next(begin, limit)
        # Spark asks when the micro-batch that ends here is done, and calls ``commit`` with it only
        # once it has another one: of a stream that waits, the group would lag for ever.
        self._progress.note(begin, at_once=end == begin)
        self._not_before = time.monotonic() + IDLE_PAUSE_S if end == begin else 0.0
        if end == begin:
            return start  # Spark compares the two
        return end.encode(begin.with_(joining) if begin == self._initial else joining)

    def _end_of_next(self, start: Positions, limit: ReadLimit) -> tuple[Positions, Positions]:
        """Return where the next micro-batch ends, and where topics begin that join in it."""
        try:
            now, unreadable = self._now()
            waiting = self._waiting(start, now, unreadable)
        except CoordinationError as error:
            if self._seen is None or self._stop_at is not None:
                raise  # it begins, or would end before its end
            logger.warning("ZooKeeper does not tell the topics, so the query waits: %s", error)
            return start, Positions({})
        if self._stop_at is not None:  # a silent partition would not be read, without a word
            admin, wait_s = self._admin, self._options.timeout_s
            now = [replace(each, ends=known_ends(admin, each, wait_s)) for each in now]
        kept = start.only(lambda name: takes(self._options, name))
        for name in sorted(start.topics.keys() - kept.topics.keys()):
            self._warn(f"topic {name!r} is not among the query's topics any more")
        joining, losses = joined(kept, now, self._first(kept, now))
        begin = kept.with_(joining)
        end, more = available(begin, now, waiting)
        self._tell([*losses, *more])
        self._seen = end
        if self._stop_at is not None:
            end = capped(end, self._stop_at, begin)
        if isinstance(limit, ReadMaxBytes):
            end, places = limited(begin, end, now, limit.max_bytes)
            stay = {name: begin.of(name, end.topics[name].id) for name in places}
            end = moved(end, self._aligned(places, stay))
        return end, joining

    def _waiting(
        self, start: Positions, now: Sequence[TopicNow], unreadable: Mapping[str, VqError]
    ) -> set[str]:
        """Return which of the query's topics are not there now, and may come again."""
        gone = start.topics.keys() - {each.name for each in now}
        found = set()
        for name in sorted(gone & unreadable.keys()):
            found.add(name)
            self._warn(f"topic {name!r} cannot be read in ZooKeeper: {unreadable[name]}")
        left = sorted(name for name in gone - found if takes(self._options, name))
        kept = {each.name: each.id for each in self._admin.deleted_topics()} if left else {}
        for name in left:
            if kept.get(name) == start.topics[name].id:
                found.add(name)
                self._warn(f"topic {name!r} is deleted and can be brought back")
        return found

    def _first(self, start: Positions, now: Sequence[TopicNow]) -> dict[str, dict[int, int]]:
        """Return where topics begin that are new to the query; one waits while a broker does."""
        found, options = {}, self._options
        for topic in now:
            ends = {number: each for number, each in topic.ends.items() if each is not None}
            if topic.name in start.topics or len(ends) < len(topic.ends):
                continue
            try:
                found[topic.name] = offsets_of(
                    self._admin, topic, ends, "startingOffsets", options.joining, options
                )
            except NotMaster as error:
                logger.warning("topic %r joins later: %s", topic.name, error)
        return found

    def _warn(self, text: str) -> None:
        """Have in the log, once, what is no loss."""
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s; the query goes on without it", text)

    def _tell(self, losses: Sequence[str]) -> None:
        """Raise what was lost, or have it in the log once."""
        if losses and self._options.fail_on_data_loss:
            raise DataLost("; ".join(losses[:10]))
        for loss in losses:
            if loss not in self._told:
                self._told.add(loss)
                logger.warning("%s; the query goes on behind it", loss)

    def _aligned(
        self, places: dict[str, dict[int, int]], stay: dict[str, TopicPositions]
    ) -> dict[str, dict[int, int]]:
        """Return the starts of the next messages; a partition whose broker is silent waits."""
        found: dict[str, dict[int, int]] = {}
        for topic, wanted in places.items():
            try:
                found[topic] = self._admin.boundaries(topic, wanted)
            except VqError as error:
                logger.warning("%s: %s; only its other partitions are read now", topic, error)
                found[topic] = self._each_aligned(topic, wanted, stay[topic])
        return found

    def _each_aligned(
        self, topic: str, wanted: dict[int, int], stay: TopicPositions
    ) -> dict[int, int]:
        found = {}
        for number, offset in wanted.items():
            try:
                found.update(self._admin.boundaries(topic, {number: offset}))
            except VqError as error:
                passes = error.retriable or error.refresh_routes
                if passes and self._stop_at is not None:
                    raise  # the query would end before its end
                # In damage no message begins: reading says what is lost.
                found[number] = stay.of(number) if passes else offset
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what was there when Spark asked last."""
        return None if self._seen is None else self._seen.encode()

    @untraced
    def prepareForTriggerAvailableNow(self) -> None:
        """Note what there is now: the query ends there.

        Raises:
            NotMaster: A broker is silent, so this is not known.
        """
        options, admin, topics = self._options, self._admin, {}
        for topic in self._now()[0]:
            ends = known_ends(admin, topic, options.timeout_s)
            latest = tuple(ends[number].latest for number in sorted(ends))
            topics[topic.name] = TopicPositions(topic.id, latest)
        self._stop_at = Positions(topics)

    # A micro-batch ------------------------------------------------------------------------------
    @untraced
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch: the same for the same places.

        Its end says where topics begin that it reads first: of the first micro-batch, ``start`` is
        new after a restart.
        """
        begin = Positions.begin_of(start, end)
        ranges = ranges_between(begin, Positions.decode(end))
        wanted = selected(EVERYTHING, self._options)
        return [Split(each, wanted) for each in split(ranges, self._options.min_partitions)]

    @untraced
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one task."""
        assert isinstance(partition, Split)
        yield from read_split(self._options, self._schema, partition)

    @untraced
    def commit(self, end: dict[str, Any]) -> None:
        """Commit the progress to the group: Spark will not ask for what is before it again."""
        self._progress.note(Positions.decode(end))

    @untraced
    def stop(self) -> None:
        """Commit what is done; close the connections of this process, which serves one query."""
        try:
            self._progress.commit()
        finally:
            close_all()
