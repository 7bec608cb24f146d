"""The values of vq: topics, partitions, messages, offsets, placements, settings.

Plain frozen data with their checks. This module does no I/O and does not encode values for the
wire, the disk or ZooKeeper.
"""

import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from numbers import Real
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from vq import limits
from vq.bounds import check_between
from vq.errors import InvalidArgument, NotShared, VqError
from vq.reserved import (
    DeliveryFailure,
    MessageOrigin,
    ReplyAddress,
    address_in,
    failure_in,
    origin_in,
)
from vq.shown import shown

try:
    from vq._message import construct
except ImportError:  # it was not compiled
    construct = None  # type: ignore[assignment]


#: Names the common pool (None) where a text is needed; no other pool has this name.
COMMON_POOL: Final = "common"
#: Blocks of topics with the retention policy ``archive`` become archives after so many hours.
ARCHIVE_AFTER_HOURS: Final = 24
ARCHIVE_TO_CHARS_MAX: Final = 1_024
#: Where archives may lie unless a process is told otherwise: directories, and object stores.
ARCHIVE_PLACES: Final = (
    "file:///",
    "s3://",
    "gs://",
    "az://",
    "abfs://",
    "hdfs://",
)

_Choice = TypeVar("_Choice", bound=enum.StrEnum)

Key: TypeAlias = str | bytes | int
"""A business id of one of three kinds; an integer has 64 bits and a sign, and is no ``bool``."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: 2025-01-01T00:00:00Z in milliseconds since 1970: where the time in message ids begins.
ID_EPOCH_MS: Final = 1_735_689_600_000
_ID_TIME_SHIFT: Final = limits.ID_SLOT_BITS + limits.ID_SEQUENCE_BITS


def time_ms_of(message_id: int) -> int:
    """Return the time in a message id, in milliseconds since 1970."""
    return (message_id >> _ID_TIME_SHIFT) + ID_EPOCH_MS


def utc_of(time_ms: int) -> datetime | None:
    """Return a time in milliseconds since 1970 as UTC; None where a datetime cannot hold it."""
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:  # damage, or a clock far from now
        return None


class TopicPartition(NamedTuple):
    """One partition of one topic; ``partition`` counts from 0 over the whole topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_host(name: str) -> bool:
    """Return whether a name can be a host's; resolving another one may raise any exception."""
    try:
        return bool(name.encode("idna")) and name.isprintable() and " " not in name
    except UnicodeError:  # an empty or too long part, as in "a..b"
        return False


def check_host(name: str) -> str:
    """Return the name of a host.

    Raises:
        InvalidArgument: The name is not valid for a host.
    """
    if not is_host(name):
        raise InvalidArgument(
            f"{name!r} is not the name of a host: parts of 1 to 63 characters with dots between"
        )
    return name


class Address(NamedTuple):
    """The host and port where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse ``host:port``, with IPv6 addresses as in ``[::1]:8123``.

        Raises:
            InvalidArgument: There is no port, it is not in [0, 65535], or the host's name is not
                valid.
        """
        given: object = text
        if not isinstance(given, str):
            raise InvalidArgument(f"address {shown(given)} is not text; give host:port")
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise InvalidArgument(f"address {text!r}: write an IPv6 address as [{host}]:{port}")
        if not (colon and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise InvalidArgument(f"address {text!r} is not host:port with a port in [0, 65535]")
        return cls(check_host(host), int(port))


class ProducerStamp(NamedTuple):
    """Identifies a batch by producer and sequence, so that the broker recognises a resend.

    ``sequence`` counts batches of this producer id and epoch in one partition, from 0.
    """

    producer_id: int
    producer_epoch: int
    sequence: int


class ProducerIdentity(NamedTuple):
    """Who writes, for a producer that an application wants to replace by a later one.

    Of producers with the same id, the one with the highest epoch writes: once a partition has a
    batch of an epoch, it takes no more of earlier epochs.

    Attributes:
        producer_id: From 1 to 2**63 - 1; no other writer of the cluster may have the same.
        epoch: From 0 to 65,535. Each producer needs an epoch of its own.
    """

    producer_id: int
    epoch: int


def choice_of(kind: type[_Choice], name: str, value: str) -> _Choice:
    """Return the choice that a setting names as text; it is compared by identity later.

    Raises:
        InvalidArgument: ``kind`` has no such choice.
    """
    try:
        return kind(value)
    except ValueError:
        known = " or ".join(repr(each.value) for each in kind)
        raise InvalidArgument(f"{name} = {shown(value)}; give {known}") from None


class FlushMode(enum.StrEnum):
    """When an append is acknowledged."""

    SYNC = "sync"  # after fdatasync: survives a power cut
    ASYNC = "async"  # after the write: survives a killed process, may lose seconds in a power cut


class Replication(enum.StrEnum):
    """Whether an acknowledgement waits for the other nodes of a broker group."""

    SYNC = "sync"  # until every node in sync has the message
    ASYNC = "async"  # not: a take-over may lose messages that only the last master had


class RetentionPolicy(enum.StrEnum):
    """What happens to messages beyond the age or the size that a topic keeps."""

    DELETE = "delete"  # they are deleted, whoever has read them
    ARCHIVE = "archive"  # as ``delete``; before that, blocks become archives
    KEEP = "keep"  # they are deleted once every consumer group of the topic has read them


class Compression(enum.StrEnum):
    """How a producer compresses the content of a message; readers know each kind."""

    NONE = "none"
    ZLIB = "zlib"
    ZSTD = "zstd"
    LZ4 = "lz4"


def check_compression(compression: str | None, threshold: int | None) -> Compression | None:
    """Return the kind of compression that a text names; None stays None.

    Raises:
        InvalidArgument: There is no such kind, or the threshold is outside [0, 1 MiB].
    """
    if threshold is not None:
        check_between("compression_threshold", threshold, 0, limits.MESSAGE_BYTES_MAX)
    try:
        return None if compression is None else Compression(compression)
    except ValueError:
        known = ", ".join(repr(each.value) for each in Compression)
        raise InvalidArgument(f"compression = {compression!r}; give one of {known}") from None


class PartitionState(enum.StrEnum):
    """Whether a partition accepts appends."""

    RW = "rw"
    RO = "ro"
    CLOSED = "closed"
    DELETED = "deleted"  # its topic is deleted and can be brought back; nobody may read it


@dataclass(frozen=True, slots=True)
class Span:
    """The range ``[start, end)`` of a partition's offsets that one broker group holds.

    ``number`` is that of its first message, as ZooKeeper tells it; see ``first_number``.
    """

    group: str
    start: int
    end: int | None = None  # None: open; this group accepts appends
    number: int | None = None

    @property
    def first_number(self) -> int | None:
        """The number of its first message, so many the partition had before; None: not known."""
        return self.number if self.start else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic, equal on every broker; kept in ZooKeeper.

    Attributes:
        partitions: Number of partitions, 1 to 4 096; it can only grow.
        flush: ``sync`` or ``async``: when an append is acknowledged, see ``FlushMode``.
        flush_interval_messages: With ``async``: fdatasync after this many messages (>= 1) …
        flush_interval_ms: … or after this time (>= 1), whichever comes first.
        max_message_bytes: Largest payload before compression, 1 to 1 MiB.
        compression: How producers compress messages if their own settings do not say it: ``none``,
            ``zlib``, ``zstd`` or ``lz4``. None is ``none``.
        compression_threshold: Least bytes of a message that such a producer compresses, 0 to 1 MiB.
            None: 128 KiB.
        retention_hours: Messages older than this are deleted, >= 1; None: no message is too old.
            A broker deletes whole blocks, the youngest message of which is that old.
        retention_bytes: So many bytes of each partition stay on a broker group, >= 1: what is older
            is deleted, block by block. None: nothing is too much.
        retention_early_hours: While the disk of a node of the group is too full, messages older
            than this are deleted before their time, the oldest of all topics first, >= 1. With the
            policy ``keep`` they wait for their readers even so; with ``archive`` only archives go.
            None: never early.
        retention_policy: ``delete``: what is too old or too much goes. ``archive``: so it does, and
            before that blocks become archives, which are read like blocks. ``keep``: it goes once
            every consumer group of the topic has read it; without any group, it stays.
        archive_after_hours: Blocks become archives when their youngest message is older than this,
            >= 1, in a run once a day. None: 24 with the policy ``archive``, or never if
            ``retention_hours`` is not above that; never with ``keep``. With ``delete`` it must be
            None.
        archive_to: Where archives are kept: the URL of a directory, for fsspec. None: beside the
            log. Only for topics whose blocks become archives.
        pool: Only broker groups of this pool hold its partitions. None is the common pool: the
            groups without a pool. ``common`` names it, too, and becomes None.
        replication: ``sync``: a message is acknowledged when every node in sync has it. ``async``:
            when the master has it; a take-over may lose acknowledged messages, at most those that
            the new master had not copied yet. Readers see a message when every node in sync has it.
        min_insync: Nodes of the group that must be in sync, the master included, 1 to 7. With
            fewer, the broker refuses messages, with ``async``, too; those stored are read.
        readable: Consumers may read.
        writable: Producers may write.
    """

    partitions: int = 1
    flush: FlushMode | Literal["sync", "async"] = FlushMode.SYNC
    flush_interval_messages: int = 1_000
    flush_interval_ms: int = 10_000
    max_message_bytes: int = limits.MESSAGE_BYTES_MAX
    compression: Compression | str | None = None
    compression_threshold: int | None = None
    retention_hours: int | None = 72
    retention_bytes: int | None = None
    retention_early_hours: int | None = None
    retention_policy: RetentionPolicy | Literal["delete", "archive", "keep"] = (
        RetentionPolicy.DELETE
    )
    archive_after_hours: int | None = None
    archive_to: str | None = None
    pool: str | None = None
    replication: Replication | Literal["sync", "async"] = Replication.SYNC
    min_insync: int = 1
    readable: bool = True
    writable: bool = True

    def __post_init__(self) -> None:
        check_between("partitions", self.partitions, 1, limits.PARTITIONS_PER_TOPIC_MAX)
        check_between("flush_interval_messages", self.flush_interval_messages, 1, 2**31)
        check_between("flush_interval_ms", self.flush_interval_ms, 1, 2**31)
        check_between("max_message_bytes", self.max_message_bytes, 1, limits.MESSAGE_BYTES_MAX)
        check_between("min_insync", self.min_insync, 1, limits.MIN_INSYNC_MAX)
        kind = check_compression(self.compression, self.compression_threshold)
        object.__setattr__(self, "compression", kind)
        if self.retention_hours is not None:
            check_between("retention_hours", self.retention_hours, 1, 2**31)
        if self.retention_early_hours is not None:
            check_between("retention_early_hours", self.retention_early_hours, 1, 2**31)
        if self.retention_bytes is not None:
            check_between("retention_bytes", self.retention_bytes, 1, 2**63)
        policy = choice_of(RetentionPolicy, "retention_policy", self.retention_policy)
        object.__setattr__(self, "retention_policy", policy)
        self._check_archive()
        object.__setattr__(self, "flush", choice_of(FlushMode, "flush", self.flush))
        replication = choice_of(Replication, "replication", self.replication)
        object.__setattr__(self, "replication", replication)
        for name in ("readable", "writable"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(
                    f"{name} = {shown(getattr(self, name))} is not a bool; give True or False"
                )
        object.__setattr__(self, "pool", check_pool(self.pool))

    @property
    def archived_after_hours(self) -> int | None:
        """The age at which blocks become archives; None: they do not."""
        if self.archive_after_hours is None and self.retention_policy is RetentionPolicy.ARCHIVE:
            kept = self.retention_hours
            return ARCHIVE_AFTER_HOURS if kept is None or kept > ARCHIVE_AFTER_HOURS else None
        return self.archive_after_hours

    def _check_archive(self) -> None:
        hours = self.archive_after_hours
        if hours is not None:
            check_between("archive_after_hours", hours, 1, 2**31)
            if self.retention_policy is RetentionPolicy.DELETE:
                raise InvalidArgument(
                    f"archive_after_hours = {hours} has no effect with retention_policy = "
                    "'delete': give 'archive' or 'keep', or unset it, too (None; in a shell "
                    "`--archive-after-hours default`)"
                )
        after, kept = self.archived_after_hours, self.retention_hours
        is_late = after is not None and kept is not None and after >= kept
        if is_late and self.retention_policy is RetentionPolicy.ARCHIVE:
            raise InvalidArgument(
                f"archive_after_hours = {after} is not below retention_hours = {kept}: messages "
                "would be deleted before they are archived; lower the first or raise the second"
            )
        if self.archive_to is not None:
            _check_archive_to(self.archive_to)
            if after is None and self.retention_policy is not RetentionPolicy.ARCHIVE:
                raise InvalidArgument(
                    f"archive_to = {self.archive_to!r} has no effect: no block becomes an archive; "
                    "give retention_policy = 'archive', or unset it, too (None; in a shell "
                    "`--archive-to beside`)"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOrigin:
    """Who created a topic, and when.

    Attributes:
        client: The ``client_id`` of the client that created it.
        host: The machine of that client.
        time_ms: When, by the clock of that client, in milliseconds since 1970.
        auto: A producer created it, because the settings of the cluster allowed it.
    """

    client: str
    host: str
    time_ms: int
    auto: bool = False


def _check_archive_to(url: object) -> None:
    """Reject non-URLs, and URLs with a password: ``describe`` would show it."""
    if not isinstance(url, str) or not 1 <= len(url) <= ARCHIVE_TO_CHARS_MAX:
        raise InvalidArgument(
            f"archive_to = {shown(url)} is not a URL of 1 to {ARCHIVE_TO_CHARS_MAX} characters"
        )
    scheme, found, rest = url.partition("://")
    if not (found and scheme and rest and url.isprintable() and " " not in url):
        raise InvalidArgument(
            f"archive_to = {shown(url)} is not the URL of a directory, such as file:///mnt/archive"
        )
    kinds = set(scheme.lower().split("::"))
    if "memory" in kinds:
        raise InvalidArgument(
            f"archive_to = {shown(url)} is lost with the broker's process, and all archives with "
            "it; give a place that lasts, such as file:///mnt/archive"
        )
    if kinds & {"file", "local"} and not rest.startswith("/"):
        raise InvalidArgument(
            f"archive_to = {shown(url)} is a place below the directory that a broker happens to be "
            f"started in; give an absolute path: {scheme}:///{rest}"
        )
    if "@" in rest.partition("/")[0]:
        raise InvalidArgument(
            "archive_to has a user or a password before its host, which everybody would see; "
            "leave them out, and give them to the brokers as the file system wants them"
        )


def check_archive_places(places: object) -> tuple[str, ...]:
    """Return the URLs below which a process opens archives.

    Raises:
        InvalidArgument: One is no URL, or no text.
    """
    found = tuple(places) if isinstance(places, tuple | list) else (places,)
    for each in found:
        if not isinstance(each, str) or not _is_bare_url(each):
            raise InvalidArgument(
                f"archive_places: {shown(each)} is not a URL such as s3://bucket/vq, "
                "file:///mnt/archive, or s3:// for all of a kind"
            )
    return found


def check_archive_place(url: str, places: Sequence[str]) -> None:
    """Return if an archive may be opened at a URL: it is one of the places, or below.

    Whoever may write to ZooKeeper chooses the URLs of topics. A process opens them with its own
    credentials.

    Raises:
        InvalidArgument: It is outside, or is one that cannot be compared: a chain of file systems,
            or a path with ``..``.
    """
    if not _is_bare_url(url):
        raise InvalidArgument(
            f"archives at {shown(url)} are not opened: a chain of file systems ('::'), or '..', "
            "has no place that can be compared with archive_places; alter the topic's archive_to"
        )
    below = (each if each.endswith("/") else f"{each}/" for each in places)
    if not any(f"{url}/".startswith(each) for each in below):
        raise InvalidArgument(
            f"archives at {shown(url)} are not opened: it is outside archive_places = "
            f"{', '.join(places) or 'none'}; add its place to this setting, if it is meant, or "
            "alter the topic's archive_to"
        )


def _is_bare_url(url: str) -> bool:
    """Whether a URL names one file system, and a path in it as it is."""
    scheme, found, rest = url.partition("://")
    return bool(found and scheme) and "::" not in url and ".." not in rest.split("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeletion:
    """Who deleted a topic that can be brought back, and how long it can be.

    Attributes:
        client: The ``client_id`` of the client that deleted it.
        host: The machine of that client.
        time_ms: When, by the clock of that client, in milliseconds since 1970. For people only.
        grace_ms: How long it can be brought back.
        counted_ms: What the cluster had counted at the deletion (``coordination.topics.grace``):
            the time is up when that has risen by ``grace_ms``.
    """

    client: str
    host: str
    time_ms: int
    grace_ms: int
    counted_ms: int


def check_pool(pool: str | None) -> str | None:
    """Return the name of a pool; None for the common pool, which may be named.

    Raises:
        InvalidArgument: It is no text, or empty.
    """
    given: object = pool
    if not isinstance(given, str | None) or given == "":
        raise InvalidArgument(
            f"pool = {shown(given)} is not the name of a pool; give text, or {COMMON_POOL!r}: the "
            "broker groups without a pool"
        )
    return None if given == COMMON_POOL else given


@dataclass(frozen=True, slots=True)
class PartitionPlacement:
    """The broker groups of a partition: spans in order of offsets; only the last may be open."""

    topic: str
    partition: int
    spans: tuple[Span, ...]
    state: PartitionState = PartitionState.RW

    @property
    def writer_group(self) -> str | None:
        """The group that accepts appends; None while no span is open."""
        return self.spans[-1].group if self.spans and self.spans[-1].end is None else None

    def span_at(self, offset: int) -> Span | None:
        """Return the span that holds ``offset``, or None when no span does."""
        for span in reversed(self.spans):
            if span.start <= offset and (span.end is None or offset < span.end):
                return span
        return None


class Message(NamedTuple):
    """A message that an application sends or receives; immutable.

    A producer reads ``topic``, ``content``, ``tag``, ``key`` and ``headers``. Received messages
    also have ``partition``, ``offset`` (the start of the record), ``next_offset`` (the start of the
    next read), ``id`` (time-ordered, 63 bits), and from the batch it was stored in
    ``append_time_ms`` (see ``append_time``). It is a named tuple, because both sides make one per
    message and a named tuple is the fastest to make.

    A received message may be sent again; the fields of its former place have no effect. A producer
    refuses a message with ``partition`` and no ``offset``, because the key chooses the partition,
    unless it has a partitioner of the application, which may look at the field.

    ``content`` is bytes. A producer with a serializer takes any object that the serializer takes
    (so type checkers let any object pass); a consumer always gets the bytes.

    ``key`` is a business id: text, bytes, or an integer in [-2**63, 2**63). It chooses the
    partition: an integer modulo the number of partitions, text and bytes by their CRC-32. A
    consumer gets the same value of the same type, with one exception: an empty text is no key and
    comes back as None.

    ``headers`` map names to values, both text; no name is empty. Key and headers take at most
    32 KiB together, encoded: some bytes more for each of them than their UTF-8.

    ``tag`` is text of 1 to 255 bytes in UTF-8, without white space at its ends and without ``||``,
    which separates the tags of a filter.

    ``deliver_at`` or ``delay_s`` has a message delivered later, by up to 40 days: at a time, which
    is an aware ``datetime`` or seconds since 1970, or after so many seconds from the send on, by
    the clock of the producer's machine. Until then it is kept outside its partition. A received
    message has neither.
    """

    topic: str
    content: bytes | Any
    tag: str | None = None
    key: Key | None = None
    headers: Mapping[str, str] | None = None
    partition: int = -1
    offset: int = -1
    next_offset: int = -1
    id: int = 0
    append_time_ms: int | None = None
    deliver_at: datetime | float | None = None
    delay_s: float | None = None

    @property
    def attempts(self) -> int:
        """How often this consumer has given the message to its listener, with this time.

        It counts from 1 for each member: another one that gets the partition begins anew.
        """
        return 1

    @property
    def timestamp(self) -> datetime | None:
        """When the producer accepted the message, in UTC; None: it was not received.

        It is read from the id, so it has milliseconds and the clock of the producer's machine.
        Under load the ids of one producer may be some milliseconds ahead of its clock.
        """
        return utc_of(time_ms_of(self.id)) if self.id else None

    @property
    def append_time(self) -> datetime | None:
        """When the broker stored the message, in UTC and by the broker's clock; None: not known.

        It never decreases along a partition, and ``seek`` and ``offset_at`` look for it. All
        messages of a batch share it. It is not known for what was not read from the beginning of
        its batch: the first messages after a start at an offset inside a batch, and every message
        that a broker picked for a ``message_filter``.
        """
        return None if self.append_time_ms is None else utc_of(self.append_time_ms)

    @property
    def origin(self) -> MessageOrigin | None:
        """Of a copy, as of a dead letter: the place of the message; None: it is no copy."""
        return origin_in(self.headers)

    @property
    def failure(self) -> DeliveryFailure | None:
        """Of a copy: how often listeners failed, since when, and why; None: it is no copy."""
        return failure_in(self.headers)

    @property
    def reply_to(self) -> ReplyAddress | None:
        """Of a request: where ``producer.reply`` sends the reply; None: nobody waits for one."""
        return address_in(self.headers)


class _OfSharedGroups:
    """A method that only messages of shared groups have: using it on another one says so.

    A descriptor, not ``__getattr__``, which would make each use of any field slower.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, message: Message | None, kind: type) -> Any:
        raise NotShared(
            f"a {kind.__name__} has no {self._name}(): only a message that a consumer of a shared "
            "group has received has it"
        )


for _name in ("ack", "nack", "reject", "extend"):
    # Set from here: a type checker is to take none of them for a method of every message.
    setattr(Message, _name, _OfSharedGroups(_name))

if construct is not None:
    construct(Message)  # replaces the named tuple's constructor, a slower Python function


class Cancellation(enum.IntEnum):
    """What became of a delayed message that was to be cancelled."""

    UNKNOWN = 0  # it may or may not be delivered; ask again
    CANCELLED = 1  # nobody gets it
    DELIVERED = 2  # it is in its partition, or on its way there


class TransactionState(enum.IntEnum):
    """What became of a transaction."""

    UNKNOWN = 0  # nobody remembers it: it was never begun, or it ended long ago
    OPEN = 1  # it is not decided; an end of its time rolls it back
    PREPARED = 2  # it is not decided, and only a decision ends it
    COMMITTED = 3  # all its messages are stored, or will be
    ROLLED_BACK = 4  # none of them is, or will be
    FORGOTTEN = 5  # asked for alone: its journal keeps the decision no longer

    @property
    def word(self) -> str:
        """The state in words."""
        return self.name.lower().replace("_", " ")


_XID: Final = re.compile(r"(\d{1,10})/([^/]+)/([^/]*)")


class Xid(NamedTuple):
    """The name of a transaction that spans several resources, as in PEP 249 and X/Open XA.

    Attributes:
        format_id: Who makes such names, from 0 to 2**31 - 1; None: ``gtrid`` is all that is known,
            of a transaction that was named in another way.
        gtrid: Of the whole transaction; 1 to 64 bytes in UTF-8.
        bqual: Of the branch; up to 64 bytes.
    """

    format_id: int | None
    gtrid: str
    bqual: str

    @property
    def text(self) -> str:
        """The name as a transaction has it: three parts behind each other, all else escaped."""
        if self.format_id is None:
            return self.gtrid
        return f"{self.format_id}/{quote(self.gtrid, safe='')}/{quote(self.bqual, safe='')}"

    @classmethod
    def of(cls, text: str) -> "Xid":
        """Return the name that a transaction has."""
        found = _XID.fullmatch(text)
        if found is None:
            return cls(None, text, "")
        return cls(int(found[1]), unquote(found[2]), unquote(found[3]))


def check_xid(xid: object) -> Xid:
    """Return a name that an application gave: a ``Xid``, or three values.

    Raises:
        InvalidArgument: It is none.
    """
    if not isinstance(xid, tuple) or len(xid) != 3:
        raise InvalidArgument(f"xid = {shown(xid)} is none that producer.xid(...) returns")
    format_id, gtrid, bqual = xid
    if not (isinstance(gtrid, str) and isinstance(bqual, str)):
        raise InvalidArgument(f"gtrid = {shown(gtrid)} and bqual = {shown(bqual)} must be text")
    for name, value in (("gtrid", gtrid), ("bqual", bqual)):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{name} = {shown(value)} cannot be written in UTF-8") from None
    if format_id is None and not bqual and 1 <= len(gtrid) <= limits.XID_CHARS_MAX:
        return Xid(None, gtrid, "")
    if isinstance(format_id, bool) or not isinstance(format_id, int) or not 0 <= format_id < 2**31:
        raise InvalidArgument(f"format_id = {shown(format_id)} is no number in [0, {2**31 - 1}]")
    for name, value, least in (("gtrid", gtrid, 1), ("bqual", bqual, 0)):
        if not least <= len(value.encode()) <= limits.XID_BYTES_MAX:
            raise InvalidArgument(
                f"{name} = {shown(value)} is outside {least} to {limits.XID_BYTES_MAX} bytes"
            )
    return Xid(int(format_id), gtrid, bqual)


class SendResult(NamedTuple):
    """The place of an acknowledged message: its partition, its record's offset, and its id.

    That of a delayed message is where it waits; ``producer.cancel`` takes it.
    """

    partition: int
    offset: int
    id: int

    @property
    def diverted(self) -> bool:
        """Whether it went to another partition than its key or partitioner says.

        Only ``ProducerConfig.on_unavailable = "any"`` diverts messages.
        """
        return False


class DivertedResult(SendResult):
    """The place of a message that was diverted; otherwise the same as any ``SendResult``."""

    __slots__ = ()

    @property
    def diverted(self) -> bool:
        """See ``SendResult.diverted``."""
        return True

    def __repr__(self) -> str:
        return (
            f"SendResult(partition={self.partition}, offset={self.offset}, id={self.id}, "
            "diverted=True)"
        )


class PartitionTrouble(NamedTuple):
    """The error that stops a consumer in one partition; the consumer tries again by itself.

    Attributes:
        error: Of the last try: ``CorruptData``, ``ListenerFailed``, or the broker's error.
        offset: The offset of the message that was not handled; -1: it is not known, since the store
            of the group's offsets gives no answer.
        since_ms: When the first try at this offset failed, in milliseconds since 1970.
        tries: How many tries at this offset failed.
        message_id: Of the message, if a listener failed for it.
        next_try_ms: When the listener gets it again, in milliseconds since 1970; or earlier, if the
            failure policy of the group changes.
        held: How many messages of the partition have used up their attempts, this one included: it
            is the first of them. 0: it has attempts left.
    """

    error: VqError
    offset: int
    since_ms: int
    tries: int
    message_id: int | None = None
    next_try_ms: int | None = None
    held: int = 0


class MessageList(list[Message]):
    """Messages that were read from an offset on, in order.

    Attributes:
        next_offset: Where reading goes on. It moves also where there are no messages: a partition
            has records without any.
    """

    __slots__ = ("next_offset",)

    def __init__(self, messages: Iterable[Message], next_offset: int) -> None:
        super().__init__(messages)
        self.next_offset = next_offset


class OffsetBounds(NamedTuple):
    """The readable range ``[earliest, latest)`` of a partition; ``latest``: its high watermark."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A registered broker process.

    ``pid`` and ``metrics_port`` are 0, and ``rack`` is "", if there is none or it is not known.
    With ``damaged`` it says that it has damage in its logs that it has not repaired, with ``full``
    that it refuses messages for a full disk.
    """

    group: str
    node: str
    address: Address
    incarnation: int = 0
    started_ms: int = 0
    version: str = ""
    pid: int = 0
    rack: str = ""
    metrics_port: int = 0
    damaged: bool = False
    full: bool = False


@dataclass(frozen=True, slots=True)
class GroupView:
    """The facts about a broker group that allocation needs.

    ``partitions`` counts its open partitions over all topics; ``alive`` says that a master is
    registered. The nodes in ``drained`` are to lead only if no other one in sync can. ``nodes``
    counts those that run, and those that have been in sync and are away; it is at least 1.
    """

    group: str
    alive: bool = True
    draining: bool = False
    pool: str | None = None
    partitions: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    drained: tuple[str, ...] = ()
    nodes: int = 1


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
    """Return ``name`` if it is valid for a topic, group, node, client or cluster.

    Raises:
        InvalidArgument: It is not valid; the message says what is allowed.
    """
    given: object = name
    if not isinstance(given, str):
        raise InvalidArgument(f"{kind} name {shown(given)} is {type(given).__name__}; give text")
    if not limits.is_valid_name(name):
        raise InvalidArgument(
            f"{kind} name {shown(name)} ({len(name)} characters) is not 1 to "
            f"{limits.NAME_CHARS_MAX} characters of A-Z a-z 0-9 . _ - (and neither '.' nor '..')"
        )
    return name


def check_timeout(timeout: float) -> float:
    """Return a time-out that the application gave, as seconds in [0, ``limits.TIMEOUT_S_MAX``].

    One rule for every method that takes one. 0 does not wait. A negative number counts as 0: the
    time that was left has gone by. A larger or endless one counts as the largest. What None means,
    the method says.

    Raises:
        InvalidArgument: It is not a number; ``bool`` is none.
    """
    if type(timeout) is float and 0.0 <= timeout <= limits.TIMEOUT_S_MAX:
        return timeout  # as most are: a send checks its own
    given: object = timeout
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    seconds = _seconds_of(timeout) if is_number else math.nan
    if math.isnan(seconds):
        raise InvalidArgument(
            f"timeout = {shown(given)} is not a number of seconds; give 0, which does not wait, up "
            f"to {limits.TIMEOUT_S_MAX:.0f}"
        )
    return max(0.0, min(seconds, limits.TIMEOUT_S_MAX))


def _seconds_of(number: float) -> float:
    """Return a number as a plain float, whatever its class overrides; NaN if its code raises."""
    try:
        return float.__pos__(number) if isinstance(number, float) else float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    except Exception:  # noqa: BLE001 - the user's code raises anything
        return math.nan
