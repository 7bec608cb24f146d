"""What the nodes of a cluster hold, as rows: blocks, partitions, disks, topics.

The driver asks ZooKeeper for nodes, topics and placements, and each broker for its status.
Executors ask the nodes for their blocks, each node by one task, so that a cluster of any size is
read in parallel and a node answers one question at a time. A node that does not answer gives a row
with the reason.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from pyspark_vq import cells
from pyspark_vq.connection import factory_of
from pyspark_vq.options import Connect
from pyspark_vq.reports.schemas import schema_of
from vq import TopicSettings
from vq.admin import BrokerReport, HeldPartition, ReadPlacement
from vq.errors import VqError

#: Nodes that are asked at the same time, whatever Spark would do.
NODES_AT_ONCE: Final = 16

#: One row for each block; for a partition without blocks, and for a node that did not answer, one
#: row with ``start`` null. ``error`` is null where the node answered.
BLOCKS: Final = schema_of(
    "group string not null, node string not null, leads boolean, topic string, partition int, "
    "topic_id string, directory string, state string, reason string, is_whole boolean, "
    "start bigint, end bigint, first_ms bigint, last_ms bigint, messages bigint, is_open boolean, "
    "archive_bytes bigint, is_elsewhere boolean, disk_bytes bigint, error string"
)
_NAMES: Final = BLOCKS.names
#: What a held partition tells, and what each of its blocks.
_OF_PARTITION: Final = _NAMES[2:10]
_OF_BLOCK: Final = _NAMES[10:19]


@dataclass(frozen=True, slots=True)
class Disk:
    """One data directory of a node and its disk; numbers are None if the node did not tell them.

    ``file_system`` is equal for directories on the same one; "": it is not known.
    """

    group: str
    node: str
    directory: str
    bytes_total: int | None
    bytes_free: int | None
    level: str
    growth_bytes_per_hour: int | None
    full_in_hours: float | None
    error: str
    file_system: str = ""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a partition is.

    Attributes:
        topic, partition: Which.
        group: The broker group that takes its appends; None: none does.
        groups: All that hold a range of it.
        error: Why that cannot be read in ZooKeeper; "": it can.
    """

    topic: str
    partition: int
    group: str | None
    groups: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What ZooKeeper and the brokers say of a cluster.

    Attributes:
        brokers: Every node that is registered or in sync, with its status or why there is none.
        settings: Of each topic.
        homes: Every partition.
    """

    brokers: tuple[BrokerReport, ...]
    settings: dict[str, TopicSettings]
    homes: tuple[Home, ...]

    @property
    def silent(self) -> dict[str, str]:
        """Of the broker groups of which no node answered: why."""
        answered = {each.group.group for each in self.brokers if each.status is not None}
        found: dict[str, list[str]] = {}
        for each in self.brokers:
            if each.group.group not in answered:
                named = f"{each.name}: {each.error}" if each.name else each.error
                found.setdefault(each.group.group, []).append(named)
        return {group: "; ".join(why) for group, why in found.items()}

    @property
    def disks(self) -> list[Disk]:
        """The disks of all nodes; a silent node has one row without numbers."""
        return [disk for each in self.brokers for disk in _disks(each)]


def read_cluster(connect: Connect) -> Cluster:
    """Ask ZooKeeper and the brokers.

    Raises:
        CoordinationError: ZooKeeper does not answer.
    """
    admin = factory_of(connect).admin
    settings = {topic.name: topic.settings for topic in admin.list_topics(reserved=True)}
    read = admin.read_placements({name: each.partitions for name, each in settings.items()})
    homes = [_home(each) for each in read]
    return Cluster(admin.cluster_status().brokers, settings, tuple(homes))


def _home(read: ReadPlacement) -> Home:
    placement = read.placement
    if placement is None:
        return Home(read.topic, read.partition, None, (), read.error)
    groups = tuple(dict.fromkeys(span.group for span in placement.spans))
    return Home(read.topic, read.partition, placement.writer_group, groups)


def read_blocks(spark: SparkSession, connect: Connect, cluster: Cluster) -> DataFrame:
    """Return the blocks of all nodes; executors ask them when the rows are wanted."""
    nodes = [
        (each.group.group, each.name, "" if each.node is None else str(each.node.address))
        for each in cluster.brokers
        if each.name
    ]
    asked = spark.createDataFrame(nodes, "group string, node string, address string")
    tasks = max(1, min(NODES_AT_ONCE, len(nodes)))

    def ask(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            yield from _rows(connect, *row)

    found = asked.repartition(tasks).rdd.mapPartitions(ask)
    return spark.createDataFrame(found, BLOCKS, verifySchema=False)


def _rows(connect: Connect, group: str, node: str, address: str) -> Iterator[tuple[Any, ...]]:
    try:
        if not address:
            yield _row(group, node, error="the node is not registered")
            return
        found = factory_of(connect).admin.blocks_of(address)
    except VqError as error:
        yield _row(group, node, error=f"{type(error).__name__}: {error}")
        return
    if not found:
        yield _row(group, node)
    for held in found:
        yield from _of_partition(held)


def _of_partition(held: HeldPartition) -> Iterator[tuple[Any, ...]]:
    common = {name: getattr(held, name) for name in _OF_PARTITION}
    if not held.blocks:
        yield _row(held.group, held.node, **common)
    for block in held.blocks:
        told = {name: getattr(block, name) for name in _OF_BLOCK}
        yield _row(held.group, held.node, **common, **told)


def _row(group: str, node: str, **known: Any) -> tuple[Any, ...]:
    row = {"group": group, "node": node, **known}
    return cells.fitting([row.get(name) for name in _NAMES], _NAMES)


def _disks(report: BrokerReport) -> list[Disk]:
    group = report.group.group
    if report.status is None:
        return [Disk(group, report.name, "", None, None, "unknown", None, None, report.error)]
    return [
        Disk(
            group,
            report.name,
            each.directory,
            cells.number(each.bytes_total),
            cells.number(each.bytes_free),
            each.level,
            cells.number(each.growth_bytes_per_hour),
            each.full_in_hours,
            "",
            each.file_system,
        )
        for each in report.disks
    ]
