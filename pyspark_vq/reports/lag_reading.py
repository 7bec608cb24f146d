"""What the lag report reads of a cluster: names on the driver, all else on executors, in bulk.

The load is bounded. ZooKeeper is read by ``Load.zookeeper_tasks`` tasks, each with one session and
at most four requests of 200 nodes in flight. All rows of a broker group are in one task, which asks
one request at a time for its bounds, and ``Load.broker_requests`` at a time for counts and ages.

Each function here returns one for ``mapInArrow``. A broker that does not answer gives rows with its
error; without ZooKeeper the task fails.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pyspark_vq.connection import factory_of
from pyspark_vq.options import Connect
from vq import PartitionPlacement
from vq.admin import GroupTopic, MessageRange
from vq.errors import CoordinationError, InvalidArgument, VqError
from vq.model import Span

Batches = Iterator[pa.RecordBatch]
Reading = Callable[[Batches], Batches]

ZOOKEEPER_TASKS_MAX: Final = 64
BROKER_REQUESTS_MAX: Final = 256

_TEXT, _INT, _LONG = pa.string(), pa.int32(), pa.int64()


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


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a frame, for Arrow and for Spark."""

    arrow: pa.Schema

    @property
    def ddl(self) -> str:
        """The same for Spark."""
        return ", ".join(f"`{each.name}` {_DDL[each.type]}" for each in self.arrow)

    def batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        """Return rows as a batch."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self.arrow)
        arrays = [
            pa.array(column, type=each.type)
            for column, each in zip(columns, self.arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


_DDL: Final[Mapping[pa.DataType, str]] = {
    _TEXT: "string",
    _INT: "int",
    _LONG: "bigint",
    pa.bool_(): "boolean",
    pa.float64(): "double",
    pa.list_(_TEXT): "array<string>",
    pa.list_(_LONG): "array<bigint>",
}

#: The topics of each group; what the driver knows.
PAIRS: Final = Columns(
    pa.schema(
        [
            ("group", _TEXT),
            ("topic", _TEXT),
            ("topic_id", _TEXT),
            ("partitions", _INT),
            ("members", _INT),
            ("model", _TEXT),
            ("begins", _TEXT),
        ]
    )
)
#: What has no partitions to tell of, and why.
PROBLEMS: Final = Columns(
    pa.schema(
        [
            ("group", _TEXT),
            ("topic", _TEXT),
            ("members", _INT),
            ("problem", _TEXT),
            ("detail", _TEXT),
        ]
    )
)
TOPICS: Final = Columns(pa.schema([("topic", _TEXT), ("partitions", _INT)]))
BROKERS: Final = Columns(pa.schema([("broker", _TEXT), ("pool", _TEXT)]))
#: Where groups are.
PLACES: Final = Columns(
    pa.schema(
        [
            ("group", _TEXT),
            ("topic", _TEXT),
            ("partition", _INT),
            ("owner", _TEXT),
            ("committed", _LONG),
            ("committed_ms", _LONG),
            ("committed_topic_id", _TEXT),
            ("held", _TEXT),
            ("stopped", _TEXT),
            ("younger", pa.bool_()),
            ("place_error", _TEXT),
        ]
    )
)
#: Where partitions live: their spans, in order of offsets.
PLACEMENTS: Final = Columns(
    pa.schema(
        [
            ("topic", _TEXT),
            ("partition", _INT),
            ("span_brokers", pa.list_(_TEXT)),
            ("span_starts", pa.list_(_LONG)),
            ("span_ends", pa.list_(_LONG)),
            ("placement_error", _TEXT),
        ]
    )
)
#: What brokers have; of one that does not answer, one row without a topic.
BOUNDS: Final = Columns(
    pa.schema(
        [
            ("broker", _TEXT),
            ("topic", _TEXT),
            ("partition", _INT),
            ("earliest", _LONG),
            ("latest", _LONG),
            ("bounds_error", _TEXT),
        ]
    )
)
#: Counts and ages of ranges.
MEASURES: Final = Columns(
    pa.schema(
        [
            ("topic", _TEXT),
            ("partition", _INT),
            ("begin", _LONG),
            ("messages", _LONG),
            ("age_s", pa.float64()),
        ]
    )
)


def places(connect: Connect) -> Reading:
    """Read where groups are, given ``PAIRS``; returns ``PLACES``."""

    def read(batches: Batches) -> Batches:
        admin = factory_of(connect).admin
        for batch in batches:
            wanted = [
                GroupTopic(
                    group=each["group"],
                    topic=each["topic"],
                    partitions=each["partitions"],
                    has_members=each["members"] > 0,
                    with_younger=each["begins"] == "latest",
                )
                for each in batch.to_pylist()
            ]
            rows: list[tuple[Any, ...]] = []
            for each in admin.read_places(wanted):
                at = each.committed
                known = (
                    (None,) * 4
                    if at is None
                    else (
                        at.offset,
                        at.time_ms or None,
                        at.topic_id or None,
                        at.stopped or None,
                    )
                )
                rows.append(
                    (
                        each.group,
                        each.topic,
                        each.partition,
                        each.owner,
                        *known,
                        each.stopped,
                        each.younger,
                        each.error or None,
                    )
                )
            yield PLACES.batch(rows)

    return read


def placements(connect: Connect) -> Reading:
    """Read where partitions live, given ``TOPICS``; returns ``PLACEMENTS``."""

    def read(batches: Batches) -> Batches:
        admin = factory_of(connect).admin
        for batch in batches:
            wanted = {each["topic"]: each["partitions"] for each in batch.to_pylist()}
            rows: list[tuple[Any, ...]] = []
            for each in admin.read_placements(wanted):
                spans = () if each.placement is None else each.placement.spans
                rows.append(
                    (
                        each.topic,
                        each.partition,
                        [span.group for span in spans],
                        [span.start for span in spans],
                        [span.end for span in spans],
                        each.error or None,
                    )
                )
            yield PLACEMENTS.batch(rows)

    return read


def bounds(connect: Connect) -> Reading:
    """Ask broker groups for the ends of all their partitions, given ``BROKERS``; ``BOUNDS``."""

    def read(batches: Batches) -> Batches:
        admin = factory_of(connect).admin
        for batch in batches:
            for broker in batch.column("broker").to_pylist():
                rows: list[tuple[Any, ...]] = []
                try:
                    found = admin.bounds_on(broker)
                except CoordinationError:
                    raise
                except VqError as error:
                    found, rows = {}, [(broker, None, None, None, None, str(error))]
                for (topic, partition), ends in found.items():
                    known = (None, None) if ends is None else (ends.earliest, ends.latest)
                    why = f"broker group {broker} cannot read its log" if ends is None else None
                    rows.append((broker, topic, partition, *known, why))
                yield BOUNDS.batch(rows)

    return read


def measures(connect: Connect, load: Load) -> Reading:
    """Ask brokers how many messages lie behind places, and how old the first is; ``MEASURES``.

    Takes ``PLACEMENTS`` with ``begin`` and ``end``; all rows of a broker must be in one task.
    """

    def read(batches: Batches) -> Batches:
        admin = factory_of(connect).admin
        for batch in batches:
            asked = batch.to_pylist()
            ranges = [MessageRange(_placement(each), each["begin"], each["end"]) for each in asked]
            found = admin.measure(ranges, count=load.count, at_once=load.broker_requests)
            yield MEASURES.batch(
                [
                    (each["topic"], each["partition"], each["begin"], one.messages, one.age_s)
                    for each, one in zip(asked, found, strict=True)
                ]
            )

    return read


def _placement(row: Mapping[str, Any]) -> PartitionPlacement:
    spans = zip(row["span_brokers"], row["span_starts"], row["span_ends"], strict=True)
    return PartitionPlacement(row["topic"], row["partition"], tuple(Span(*each) for each in spans))
