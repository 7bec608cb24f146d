"""What is known of broker groups, topics and partitions when partitions are given to groups.

Plain values, no I/O. A number that is not known is None, never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vq.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad:
    """A broker group and how loaded it is.

    Attributes:
        group: Its name.
        pool: Its pool; None: the common one.
        labels: As the operator gave them.
        racks: Of its nodes that run, sorted; "": a node does not tell its rack.
        version: Of the znode with pool, labels and draining.
        alive: It has a registered master.
        draining: No partitions are placed on it.
        nodes: How many it has, those that are away included.
        partitions: Open on it, as ZooKeeper counts them: its master leads so many.
        bytes_per_s, messages_per_s: What it appends, as its master publishes it.
        copied_bytes_per_s: What its other nodes copy from the master, together.
        stored_bytes: Of all logs of the master.
        busy: Share of time in which the master's loop or flusher is busy, in [0, 1].
        capacity_bytes_per_s: The master's estimate of its highest ``bytes_per_s``.
        flush_ms: How long a flush of the master takes.
        queue_depth: Requests that wait for an answer of the master.
        disk_bytes_free, disk_bytes_total: Of the fullest disk of its nodes.
        disk_growth_bytes_per_hour: Of what is in use on the master's fullest disk.
        disk_full_in_hours: When that disk is full at this growth; None also: it does not fill up.
        error: Why something is not known; "": all is.
    """

    group: str
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    racks: tuple[str, ...] = ()
    version: int = -1
    alive: bool = True
    draining: bool = False
    nodes: int = 1
    partitions: int | None = None
    bytes_per_s: float | None = None
    messages_per_s: float | None = None
    copied_bytes_per_s: float | None = None
    stored_bytes: int | None = None
    busy: float | None = None
    capacity_bytes_per_s: float | None = None
    flush_ms: float | None = None
    queue_depth: int | None = None
    disk_bytes_free: int | None = None
    disk_bytes_total: int | None = None
    disk_growth_bytes_per_hour: int | None = None
    disk_full_in_hours: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedTopic:
    """What a topic asks of the groups that hold its partitions.

    Attributes:
        topic: Its name.
        id: Tells it from a namesake.
        pool: Only groups of this pool hold its partitions; None: the common one.
        min_insync: A group with fewer nodes takes none of its messages.
        retention_hours: How long its messages are kept; None: for ever.
    """

    topic: str
    id: str = ""
    pool: str | None = None
    min_insync: int = 1
    retention_hours: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPartition:
    """A partition, where it is open, and what it gets.

    Attributes:
        topic, partition: Which.
        group: The group that takes its appends; None: it is closed.
        start: Where that group began, an offset: with the group it names the placement.
        version: Of the znode with the placement.
        bytes_per_s, messages_per_s: What was appended to it while it was measured.
        stored_bytes: Of its logs on the masters of all groups that hold a part of it.
        error: Why something is not known; "": all is.
    """

    topic: str
    partition: int
    group: str | None
    start: int = 0
    version: int = -1
    bytes_per_s: float | None = None
    messages_per_s: float | None = None
    stored_bytes: int | None = None
    error: str = ""

    @property
    def key(self) -> TopicPartition:
        """Which partition it is."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFacts:
    """A cluster as it was measured.

    Attributes:
        groups: By name.
        topics: By name; only ready ones.
        partitions: Of these topics.
        cluster: Its name.
        measured_ms: When, in milliseconds since 1970.
        window_s: How long positions were compared.
        unreadable: What cannot be read, with the reason: nothing of it is moved.
    """

    groups: Mapping[str, GroupLoad]
    topics: Mapping[str, AllocatedTopic]
    partitions: Mapping[TopicPartition, MeasuredPartition]
    cluster: str = ""
    measured_ms: int = 0
    window_s: float = 0.0
    unreadable: Mapping[str, str] = field(default_factory=dict)
