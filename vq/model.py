"""The words of vq as values: topics, partitions, messages, offsets, placements, settings.

Plain frozen data and the checks that belong to them; nothing here does I/O or knows how a value is
encoded on the wire, on disk or in ZooKeeper.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vq import limits
from vq.errors import InvalidArgument, VqError

try:
    from vq._message import construct
except ImportError:  # nothing compiled it
    construct = None  # type: ignore[assignment]


class TopicPartition(NamedTuple):
    """One partition of one topic; ``partition`` counts from 0 over the whole topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_host(name: str) -> bool:
    """Whether a name may be one of a host, or an IP address; resolving others raises anything."""
    try:
        return bool(name.encode("idna")) and name.isprintable() and " " not in name
    except UnicodeError:  # an empty or too long part, as in "a..b"
        return False


def check_host(name: str) -> str:
    """Return the name of a host.

    Raises:
        InvalidArgument: No host has such a name.
    """
    if not is_host(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a host: parts of 1 to 63 characters with dots between"
        )
    return name


class Address(NamedTuple):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse ``host:port``, with IPv6 addresses as in ``[::1]:8123``.

        Raises:
            InvalidArgument: There is no port, it is not in [0, 65535], or no host has that name.
        """
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise InvalidArgument(f"address {text!r}: write an IPv6 address as [{host}]:{port}")
        if not (colon and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise InvalidArgument(f"address {text!r} is not host:port with a port in [0, 65535]")
        return cls(check_host(host), int(port))


class ProducerStamp(NamedTuple):
    """Identifies a batch, so that a resend is recognised: its producer and its sequence.

    ``sequence`` counts batches of this producer id and epoch in one partition, from 0.
    """

    producer_id: int
    producer_epoch: int
    sequence: int


class FlushMode(enum.StrEnum):
    """When an append is acknowledged."""

    SYNC = "sync"  # after fdatasync: survives a power cut
    ASYNC = "async"  # after the write: survives a killed process, may lose seconds in a power cut


class PartitionState(enum.StrEnum):
    """Whether a partition takes appends."""

    RW = "rw"
    RO = "ro"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Span:
    """The range ``[start, end)`` of a partition's offsets that one broker group holds."""

    group: str
    start: int
    end: int | None = None  # None: open, the group that takes appends


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What must be the same for a topic on every broker; kept in ZooKeeper.

    Attributes:
        partitions: How many, 1 to 4 096; grows only.
        flush: When an append is acknowledged.
        flush_interval_messages: With ``async``: fdatasync after this many messages (>= 1) …
        flush_interval_ms: … or after this time (>= 1), whichever comes first.
        max_message_bytes: Largest payload before compression, 1 to 1 MiB.
        retention_hours: Age at which closed blocks may be deleted, >= 1; None keeps them for ever.
            Stored and shown; no broker deletes by age yet.
        pool: Only broker groups of this pool hold its partitions; None is the common pool, of the
            groups without one.
        replication: ``sync``. ``async`` is refused for a topic until groups can have slaves.
        readable: Consumers may read.
        writable: Producers may write.
    """

    partitions: int = 1
    flush: FlushMode = FlushMode.SYNC
    flush_interval_messages: int = 1_000
    flush_interval_ms: int = 10_000
    max_message_bytes: int = limits.MESSAGE_BYTES_MAX
    retention_hours: int | None = 72
    pool: str | None = None
    replication: str = "sync"
    readable: bool = True
    writable: bool = True

    def __post_init__(self) -> None:
        _bound("partitions", self.partitions, 1, limits.PARTITIONS_PER_TOPIC_MAX)
        _bound("flush_interval_messages", self.flush_interval_messages, 1, 2**31)
        _bound("flush_interval_ms", self.flush_interval_ms, 1, 2**31)
        _bound("max_message_bytes", self.max_message_bytes, 1, limits.MESSAGE_BYTES_MAX)
        if self.retention_hours is not None:
            _bound("retention_hours", self.retention_hours, 1, 2**31)
        if self.replication not in {"sync", "async"}:
            raise InvalidArgument(f"replication {self.replication!r} is neither 'sync' nor 'async'")


@dataclass(frozen=True, slots=True)
class PartitionPlacement:
    """Where a partition lives: spans in rising order of offsets, at most the last one open."""

    topic: str
    partition: int
    spans: tuple[Span, ...]
    state: PartitionState = PartitionState.RW

    @property
    def writer_group(self) -> str | None:
        """The group that takes appends, or None while there is none."""
        return self.spans[-1].group if self.spans and self.spans[-1].end is None else None

    def span_at(self, offset: int) -> Span | None:
        """Return the span that holds ``offset``, or None when no span does."""
        for span in reversed(self.spans):
            if span.start <= offset and (span.end is None or offset < span.end):
                return span
        return None


class Message(NamedTuple):
    """A message as a user gives or gets it; never changed once made.

    A producer reads ``topic``, ``content``, ``tag``, ``key`` and ``headers``. The others are set
    on messages that were received: ``partition``, ``offset`` (where the record starts),
    ``next_offset`` (where reading goes on after it), ``id`` (time-ordered, 63 bits). A named tuple,
    because it is made once per message on both sides, and nothing else is made as fast.
    """

    topic: str
    content: bytes
    tag: str | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    partition: int = -1
    offset: int = -1
    next_offset: int = -1
    id: int = 0


if construct is not None:
    construct(Message)  # a named tuple's own constructor is a Python function


class SendResult(NamedTuple):
    """Where an acknowledged message lies: its partition, its record's offset, and its id."""

    partition: int
    offset: int
    id: int


class PartitionTrouble(NamedTuple):
    """The error that keeps a consumer from going on in one partition; it tries again by itself.

    Attributes:
        error: The last try's: ``CorruptData``, ``ListenerFailed``, or what the broker answered.
        offset: Where it stands: the message there was not handled.
        since_ms: When it first failed there, in milliseconds since 1970.
        tries: How often it has failed there.
    """

    error: VqError
    offset: int
    since_ms: int
    tries: int


class OffsetBounds(NamedTuple):
    """The readable range ``[earliest, latest)`` of a partition; ``latest``: its high watermark."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A registered broker process."""

    group: str
    node: str
    address: Address
    incarnation: int = 0
    started_ms: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class GroupView:
    """What allocation needs to know of a broker group.

    ``partitions`` counts the open partitions it holds, over all topics; ``alive`` says that a
    master is registered.
    """

    group: str
    alive: bool = True
    draining: bool = False
    pool: str | None = None
    partitions: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StatusResult:
    """The status of a broker; ``raw`` has all fields of its answer."""

    address: Address
    group: str
    node: str
    version: str
    uptime_s: float
    partitions: int
    raw: Mapping[str, Any] = field(default_factory=dict)


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it may name a topic, group, node, client or cluster.

    Raises:
        InvalidArgument: It may not; the message says what is allowed.
    """
    if not limits.is_valid_name(name):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise InvalidArgument(
            f"{kind} name {shown!r} ({len(name)} characters) is not 1 to {limits.NAME_CHARS_MAX} "
            "characters of A-Z a-z 0-9 . _ - (and neither '.' nor '..')"
        )
    return name


def check_timeout(timeout: float) -> float:
    """Return a time-out that a user gave, in [0, ``limits.TIMEOUT_S_MAX``].

    A negative one is over at once; a huge or endless one counts as the largest.

    Raises:
        InvalidArgument: It is no number.
    """
    try:
        seconds = timeout + 0.0
        if seconds == seconds:  # not NaN
            return float(max(0.0, min(seconds, limits.TIMEOUT_S_MAX)))
    except OverflowError:  # an integer that no float holds
        return limits.TIMEOUT_S_MAX if timeout > 0 else 0.0
    except TypeError:
        pass
    raise InvalidArgument(f"timeout {timeout!r} is no number of seconds")


def _bound(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{what} = {value} is outside [{least}, {most}]")
