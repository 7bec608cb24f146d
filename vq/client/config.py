"""What an application may set for a factory, a producer and a consumer; checked when made."""

import enum
from dataclasses import dataclass

from vq import limits
from vq.errors import InvalidArgument
from vq.model import check_name

#: What a waiting message takes in memory beside its payload, tag, key and headers, about; counted
#: in ``buffer_bytes``.
MESSAGE_OVERHEAD_BYTES = 512


class StartPosition(enum.StrEnum):
    """Where a group begins in a partition that it has no offset for."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnListenerError(enum.StrEnum):
    """What happens when a listener keeps raising for one message."""

    RETRY = "retry"  # the partition waits and tries again, for ever: nothing is skipped
    SKIP = "skip"  # after ``listener_retries`` more tries the message is logged and skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFactoryConfig:
    """How to reach a cluster.

    Attributes:
        zookeeper: ``host:port`` of one or more servers, comma-separated.
        cluster: Name of the cluster; its nodes live under ``/vq/<cluster>``.
        client_id: Shown by brokers and in group listings.
        session_timeout_s: After so long without ZooKeeper this client's members and owners are
            given to others. 10 s tolerates a garbage collection pause and a leader change.
        start_timeout_s: How long ``open`` waits for ZooKeeper.
        connect_timeout_s: Bound of one connection attempt to a broker, HELLO included.
        request_timeout_s: Bound of requests that name none (offsets, status).
    """

    zookeeper: str = "127.0.0.1:2181"
    cluster: str = "default"
    client_id: str = "vq-python"
    session_timeout_s: float = 10.0
    start_timeout_s: float = 10.0
    connect_timeout_s: float = 3.0
    request_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        check_name("cluster", self.cluster)
        check_name("client", self.client_id)
        for name in (
            "session_timeout_s",
            "start_timeout_s",
            "connect_timeout_s",
            "request_timeout_s",
        ):
            _positive(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer batches, waits and tries again.

    Attributes:
        send_timeout_s: Deadline of a send that names none, all retries included. 30 s outlives a
            broker restart.
        batch_bytes: A batch is closed at this size, keys and headers included; 512 KiB makes one
            fdatasync carry thousands of small messages and still leaves room for several batches in
            flight.
        batch_records: … or at this many messages; bounds the time one batch takes to encode.
        window: Batches in flight per partition, at most what a broker remembers for recognising
            resends.
        buffer_bytes: Memory of messages that have no outcome yet, each counted with its payload,
            its tag, key and headers as encoded, and 512 bytes for everything around it; at the
            bound ``send_async`` waits. A producer takes at most about twice as much, since the
            records of a batch on its way stand there a second time. More than 16 MiB of small
            messages costs more (garbage collections look at each) than it gains.
        retry_backoff_s: First pause before a resend; doubles up to ``retry_backoff_max_s``.
        retry_backoff_max_s: Longest pause before a resend.
    """

    send_timeout_s: float = 30.0
    batch_bytes: int = 512 * limits.KIB
    batch_records: int = 2_000
    window: int = limits.PRODUCER_BATCHES_REMEMBERED
    buffer_bytes: int = 16 * limits.MIB
    retry_backoff_s: float = 0.02
    retry_backoff_max_s: float = 1.0

    def __post_init__(self) -> None:
        _positive("send_timeout_s", self.send_timeout_s)
        _positive("retry_backoff_s", self.retry_backoff_s)
        _positive("retry_backoff_max_s", self.retry_backoff_max_s)
        _between("batch_bytes", self.batch_bytes, 1, limits.BATCH_BYTES_MAX)
        _between("batch_records", self.batch_records, 1, limits.BATCH_RECORDS_MAX)
        _between("window", self.window, 1, limits.PRODUCER_BATCHES_REMEMBERED)
        least = limits.MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES
        _between("buffer_bytes", self.buffer_bytes, least, 16 * limits.GIB)
        if self.retry_backoff_max_s < self.retry_backoff_s:
            raise InvalidArgument(
                f"retry_backoff_max_s = {self.retry_backoff_max_s} is below "
                f"retry_backoff_s = {self.retry_backoff_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer fetches, commits and shares work with its group.

    Attributes:
        group: The consumer group; needed for ``subscribe``, not for ``get``.
        member: This member's name inside the group; made from host, process and a random number
            when empty. With a name of its own, a member that was killed and starts again waits for
            its old session to end: up to two session time-outs and 5 s.
        start_position: Where the group begins in partitions it has no offset for. With ``latest``,
            a partition that is added after the group began is read from its start all the same.
        commit_interval_s: Offsets are committed this often (with 20 % jitter), and on release,
            close and revocation.
        prefetch_bytes: Bytes fetched ahead per partition and not yet handed to the listener.
        buffer_bytes: Bytes fetched ahead for all partitions together, those on their way included.
            Half of it is shared out evenly: a partition whose listener is slow never takes the
            share of another. 64 MiB leave each of 4,096 partitions 8 KiB at any time, and those
            with more to read up to ``prefetch_bytes`` of the other half. Compressed messages are
            decompressed at most 5 MiB at a time, for each of ``listener_threads``. Records larger
            than what is free are completed one partition at a time; for that the bound is exceeded
            by one record (little more than 1 MiB). Not counted: the copies of what is being
            delivered now. Each partition has 1 KiB in any case.
        max_wait_s: How long a broker holds a request for data before it answers empty.
        listener_threads: Threads that call listeners. One partition is only ever in one of them.
        on_listener_error: What happens when a listener keeps raising.
        listener_retries: With ``skip``: tries after the first one.
        listener_backoff_s: Pause before the second try; doubles up to 30 s.
        audit_interval_s: What is held is compared with ZooKeeper this often, watches or not.
    """

    group: str = ""
    member: str = ""
    start_position: StartPosition = StartPosition.EARLIEST
    commit_interval_s: float = 5.0
    prefetch_bytes: int = 2 * limits.MIB
    buffer_bytes: int = 64 * limits.MIB
    max_wait_s: float = limits.LONG_POLL_S_DEFAULT
    listener_threads: int = 1
    on_listener_error: OnListenerError = OnListenerError.RETRY
    listener_retries: int = 5
    listener_backoff_s: float = 0.1
    audit_interval_s: float = 30.0

    def __post_init__(self) -> None:
        if self.group:
            check_name("group", self.group)
        if self.member:
            check_name("member", self.member)
        _positive("commit_interval_s", self.commit_interval_s)
        _positive("audit_interval_s", self.audit_interval_s)
        _positive("listener_backoff_s", self.listener_backoff_s)
        _between("prefetch_bytes", self.prefetch_bytes, 64 * limits.KIB, limits.GIB)
        _between("buffer_bytes", self.buffer_bytes, limits.MIB, 64 * limits.GIB)
        _between("listener_threads", self.listener_threads, 1, 256)
        _between("listener_retries", self.listener_retries, 0, 1_000)
        if not 0 < self.max_wait_s <= limits.LONG_POLL_S_MAX:
            raise InvalidArgument(
                f"max_wait_s = {self.max_wait_s} is outside (0, {limits.LONG_POLL_S_MAX}]"
            )


def _positive(name: str, value: float) -> None:
    if not 0 < value <= limits.TIMEOUT_S_MAX:
        raise InvalidArgument(
            f"{name} = {value} is outside (0, {limits.TIMEOUT_S_MAX:.0f}] seconds"
        )


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} = {value} is outside [{least}, {most}]")
