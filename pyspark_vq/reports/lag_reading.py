"""What the lag report reads of a cluster: names on the driver, all else on executors, in bulk.

The load is bounded. ZooKeeper is read by ``Load.zookeeper_tasks`` tasks, each with one session and
at most four requests of 200 nodes in flight. All rows of a broker group are in one task, which asks
one request at a time for its bounds, and ``Load.broker_requests`` at a time for counts and ages.

Each function here returns one for ``RDD.mapPartitions``: ``mapInArrow`` needs pandas. A broker that
does not answer gives rows with its error; without ZooKeeper the task fails.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Row

from pyspark_vq import cells
from pyspark_vq.cells import NUMBER_END
from pyspark_vq.connection import factory_of
from pyspark_vq.options import Connect
from vq import PartitionPlacement, Span
from vq.admin import GroupPlace, GroupTopic, MessageRange
from vq.errors import CoordinationError, InvalidArgument, VqError

Found = tuple[Any, ...]
Reading = Callable[[Iterable[Row]], Iterable[Found]]

ZOOKEEPER_TASKS_MAX: Final = 64
BROKER_REQUESTS_MAX: Final = 256
#: Rows that one call is about.
_STEP_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much of a cluster's time a report may take.

    Attributes:
        zookeeper_tasks: Tasks that read ZooKeeper at a time, 1 to 64.
        broker_requests: Requests that one broker has to answer at a time, 1 to 256.
        count: Have brokers count messages.
    """

    zookeeper_tasks: int = 4
    broker_requests: int = 16
    count: bool = True

    def __post_init__(self) -> None:
        for name, most in (
            ("zookeeper_tasks", ZOOKEEPER_TASKS_MAX),
            ("broker_requests", BROKER_REQUESTS_MAX),
        ):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidArgument(f"{name} = {value!r} is outside [1, {most}]")


#: The topics of each group; what the driver knows.
PAIRS: Final = (
    "`group` string, topic string, topic_id string, partitions int, members int, model string, "
    "begins string, by_stream boolean, `filter` string"
)
#: What has no partitions to tell of, and why.
PROBLEMS: Final = "`group` string, topic string, members int, problem string, detail string"
TOPICS: Final = "topic string, partitions int"
BROKERS: Final = "broker string, pool string"
#: Where groups are.
PLACES: Final = (
    "`group` string, topic string, `partition` int, owner string, committed bigint, "
    "committed_ms bigint, committed_topic_id string, held string, stopped string, "
    "younger boolean, place_error string, committed_is_copy boolean"
)
#: Where partitions live: their spans, in order of offsets.
PLACEMENTS: Final = (
    "topic string, `partition` int, span_brokers array<string>, span_starts array<bigint>, "
    "span_ends array<bigint>, placement_error string"
)
#: What brokers have; of one that does not answer, one row without a topic.
BOUNDS: Final = (
    "broker string, topic string, `partition` int, earliest bigint, latest bigint, "
    "bounds_error string"
)
#: Counts and ages of ranges.
MEASURES: Final = "topic string, `partition` int, begin bigint, messages bigint, age_s double"


def places(connect: Connect) -> Reading:
    """Read where groups are, given ``PAIRS``; returns ``PLACES``."""

    def read(pairs: Iterable[Row]) -> Iterable[Found]:
        admin = factory_of(connect).admin
        for step in _steps(pairs):
            wanted = [
                GroupTopic(
                    group=each["group"],
                    topic=each["topic"],
                    partitions=each["partitions"],
                    has_members=each["members"] > 0,
                    with_younger=each["begins"] == "latest",
                )
                for each in step
            ]
            yield from map(_place, admin.read_places(wanted))

    return read


def _place(found: GroupPlace) -> Found:
    at, error = found.committed, found.error
    is_copy = at is not None and at.copied
    offset: Found = (None,) * 4
    if at is not None and not 0 <= at.offset < NUMBER_END:
        error = f"offset {str(at.offset)[:40]} is outside [0, 2**63)"
    elif at is not None:
        time_ms = at.time_ms if 0 < at.time_ms < NUMBER_END else None
        offset = at.offset, time_ms, text(at.topic_id), text(at.stopped)
    where = found.group, found.topic, found.partition, text(found.owner)
    return *where, *offset, text(found.stopped), found.younger, text(error), is_copy


def text(value: str | None) -> str | None:
    """Return a text of others for Spark, see ``cells``; None for an empty one."""
    return cells.text(value) if value else None


def placements(connect: Connect) -> Reading:
    """Read where partitions live, given ``TOPICS``; returns ``PLACEMENTS``."""

    def read(topics: Iterable[Row]) -> Iterable[Found]:
        admin = factory_of(connect).admin
        for step in _steps(topics):
            wanted = {each["topic"]: each["partitions"] for each in step}
            for found in admin.read_placements(wanted):
                spans = () if found.placement is None else found.placement.spans
                error = found.error
                if any(max(span.start, span.end or 0) >= NUMBER_END for span in spans):
                    spans, error = (), f"{found.topic}-{found.partition} has spans beyond 2**63"
                yield (
                    found.topic,
                    found.partition,
                    [text(span.group) for span in spans],
                    [span.start for span in spans],
                    [span.end for span in spans],
                    text(error),
                )

    return read


def bounds(connect: Connect) -> Reading:
    """Ask broker groups for the ends of all their partitions, given ``BROKERS``; ``BOUNDS``."""

    def read(brokers: Iterable[Row]) -> Iterable[Found]:
        admin = factory_of(connect).admin
        for each in brokers:
            broker = each["broker"]
            try:
                found = admin.bounds_on(broker)
            except CoordinationError:
                raise
            except VqError as error:
                yield broker, None, None, None, None, text(str(error))
                continue
            for (topic, partition), ends in found.items():
                if ends is None:
                    why = f"broker group {broker} cannot read its log"
                    yield broker, topic, partition, None, None, why
                elif max(ends.earliest, ends.latest) >= NUMBER_END:
                    why = f"broker group {broker} tells ends beyond 2**63: {ends}"
                    yield broker, topic, partition, None, None, why
                else:
                    yield broker, topic, partition, ends.earliest, ends.latest, None

    return read


def measures(connect: Connect, load: Load) -> Reading:
    """Ask brokers how many messages lie behind places, and how old the first is; ``MEASURES``.

    Takes ``PLACEMENTS`` with ``begin`` and ``end``; all rows of a broker must be in one task.
    """

    def read(rows: Iterable[Row]) -> Iterable[Found]:
        admin = factory_of(connect).admin
        for step in _steps(rows):
            ranges = [MessageRange(_placement(row), row["begin"], row["end"]) for row in step]
            found = admin.measure(ranges, count=load.count, at_once=load.broker_requests)
            for row, one in zip(step, found, strict=True):
                yield (
                    row["topic"],
                    row["partition"],
                    row["begin"],
                    cells.number(one.messages),
                    one.age_s,
                )

    return read


def _placement(row: Row) -> PartitionPlacement:
    spans = zip(row["span_brokers"], row["span_starts"], row["span_ends"], strict=True)
    return PartitionPlacement(row["topic"], row["partition"], tuple(Span(*each) for each in spans))


def _steps(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in lists: many for one call, and few enough for memory."""
    rest = iter(rows)
    while step := list(itertools.islice(rest, _STEP_ROWS)):
        yield step
