"""The settings of a factory, a producer and a consumer; each class checks them when it is made."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vq import limits
from vq.bounds import check_between, check_positive, check_whole, check_within
from vq.client import environment
from vq.client.kinds import check_function, check_text
from vq.client.producer.interceptors import ProducerInterceptor, checked_interceptors
from vq.client.producer.spread.partitioner import Keys, PartitionerSetting, Strategy, strategy_of
from vq.client.producer.transaction_listener import TransactionListener
from vq.coordination.groups.rebalance import GroupStrategy, group_strategy_of
from vq.coordination.tree.acls import checked_auth
from vq.coordination.tree.values.group_terms import (
    MAX_ATTEMPTS_MAX,
    STICKY,
    GroupModel,
    OnBadRecord,
    OnFailure,
    Ordering,
    WorkingMode,
    check_model,
    check_order,
    check_pauses,
    check_topics,
    usual_on_failure,
)
from vq.coordination.zookeeper.servers import checked_servers
from vq.errors import InvalidArgument
from vq.model import (
    ARCHIVE_PLACES,
    Compression,
    ProducerIdentity,
    check_archive_places,
    check_compression,
    check_name,
    choice_of,
)
from vq.offset_stores.table import OffsetTable
from vq.remoting.login import Login
from vq.security.tls import Tls
from vq.serializers import Serializer
from vq.shown import shown

#: Approximate memory of a waiting message in addition to its payload, tag, key and headers; counts
#: in ``buffer_bytes``.
MESSAGE_OVERHEAD_BYTES = 512
#: The most listeners of a consumer that run at a time.
WORKERS_MAX = 1_000
WINDOW_MESSAGES_MAX = 1_000_000
BATCH_WAIT_MS_MAX = 60_000
PRODUCER_BUFFER_BYTES_MAX = 16 * limits.GIB
#: Longest time for which a group keeps the place of a member that was closed.
RESTART_S_MAX = 3_600
#: The most empty messages that fit into any buffer.
BUFFER_MESSAGES_MAX = PRODUCER_BUFFER_BYTES_MAX // MESSAGE_OVERHEAD_BYTES


class StartPosition(enum.StrEnum):
    """Where a group begins in a partition for which it has no offset."""

    EARLIEST = "earliest"
    LATEST = "latest"


class ReadFrom(enum.StrEnum):
    """From which nodes of a broker group a consumer reads."""

    MASTER = "master"  # from the node that leads it
    ANY = "any"  # from all nodes in sync: partitions are spread over them
    NEAREST = "nearest"  # from those in sync that are in the consumer's rack; else from the master


class WhenFull(enum.StrEnum):
    """What a send that does not wait for its outcome does while the producer's buffer is full."""

    BLOCK = "block"  # it waits until half of the buffer is free, at most until its deadline
    RAISE = "raise"  # it raises BufferFull at once


class OnUnavailable(enum.StrEnum):
    """What a producer does with a message whose partition is unavailable.

    A message has its partition by its key or by the application's partitioner. Messages without a
    key are dealt to available partitions, and follow this setting only if theirs becomes
    unavailable later; those of ``send_sync`` and ``send_batch`` are then dealt again.

    A partition is *unavailable* while its broker group has no master, and from a failed attempt to
    connect to the master until an attempt succeeds. A cut connection alone does not make it
    unavailable. An attempt fails at once if nothing listens at the address, otherwise after
    ``MessageFactoryConfig.connect_timeout_s``. Messages that were sent and have no answer are not
    affected: the producer sends them again to the same partition, until their deadline.
    """

    WAIT = "wait"  # it waits for its partition until its deadline
    FAIL = "fail"  # it is refused at once: PartitionUnavailable
    ANY = "any"  # it goes to a partition that is available; ``SendResult.diverted`` says so


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFactoryConfig:
    """How to reach a cluster.

    Attributes:
        zookeeper: ``host:port`` of one or more servers, comma-separated, without a path. Without
            it the variable ``VQ_ZOOKEEPER`` counts, without that ``127.0.0.1:2181``.
        cluster: Name of the cluster; its nodes are under ``/vq/<cluster>``. Without it the variable
            ``VQ_CLUSTER`` counts, without that ``default``.
        user: Who this is to brokers, as ``vq user add`` has it. Without it the variable ``VQ_USER``
            counts, without that the client is anonymous.
        password: Of the user; it is proved and never sent. Without it the variable ``VQ_PASSWORD``
            counts, without that the client's TLS certificate must name the user.
        client_id: Shown by brokers and in group listings.
        zookeeper_auth: ``name:password`` by which ZooKeeper knows this client, where the tree is
            secured; "": it is nobody. Without it the variable ``VQ_ZOOKEEPER_AUTH`` counts. It is
            in no text of this object.
        session_timeout_s: If this client has no contact with ZooKeeper for so long, its members
            leave their groups and other members take their partitions. 10 s tolerates a garbage
            collection pause and a change of ZooKeeper's leader.
        start_timeout_s: How long ``open`` waits for ZooKeeper.
        connect_timeout_s: Bound of one connection attempt to a broker, HELLO included.
        request_timeout_s: Bound of requests without a time-out of their own (offsets, status).
        archive_places: URLs at and below which this process reads archives by itself, if it is told
            to (``read_columns(archives_directly=True)``); brokers read all others. A scheme with
            ``://``, such as ``s3://``, allows all of that kind.
        tls: The files of TLS to brokers, see ``vq.Tls``; the certificate of each broker must have
            the name or address at which this client connects to it. Without it the variables
            ``VQ_TLS_CA``, ``VQ_TLS_CERTIFICATE`` and ``VQ_TLS_KEY`` count, without these brokers
            are reached without TLS.
        zookeeper_tls: The same for ZooKeeper. Without it the variables ``VQ_ZOOKEEPER_TLS_CA``,
            ``VQ_ZOOKEEPER_TLS_CERTIFICATE`` and ``VQ_ZOOKEEPER_TLS_KEY`` count.
        local: A directory for queues of this process, one for each topic, instead of a cluster:
            then nothing else counts, and what needs a cluster is refused.
    """

    zookeeper: str = field(default_factory=environment.zookeeper)
    cluster: str = field(default_factory=environment.cluster)
    user: str = field(default_factory=environment.user)
    password: str = field(default_factory=environment.password, repr=False)
    client_id: str = "vq-python"
    zookeeper_auth: str = field(default_factory=environment.zookeeper_auth, repr=False)
    session_timeout_s: float = 10.0
    start_timeout_s: float = 10.0
    connect_timeout_s: float = 3.0
    request_timeout_s: float = 5.0
    archive_places: tuple[str, ...] = ARCHIVE_PLACES
    tls: Tls | None = field(default_factory=environment.tls)
    zookeeper_tls: Tls | None = field(default_factory=environment.zookeeper_tls)
    local: str | None = None

    def __post_init__(self) -> None:
        if self.local is not None:
            check_text("local", self.local)
        object.__setattr__(self, "archive_places", check_archive_places(self.archive_places))
        _check_tls("tls", self.tls)
        _check_tls("zookeeper_tls", self.zookeeper_tls)
        check_text("zookeeper", self.zookeeper)
        checked_servers(self.zookeeper)
        checked_auth(self.zookeeper_auth)
        check_name("cluster", self.cluster)
        check_name("client", self.client_id)
        check_text("user", self.user)
        if not isinstance(self.password, str):
            raise InvalidArgument("password is not a text")  # its value is not shown
        self.login()
        for name in (
            "session_timeout_s",
            "start_timeout_s",
            "connect_timeout_s",
            "request_timeout_s",
        ):
            check_positive(name, getattr(self, name))

    def login(self) -> Login:
        """Return who this is, for connections to brokers. For vq only."""
        return Login(self.user, self.password)


def _check_tls(name: str, tls: object) -> None:
    if tls is not None and not isinstance(tls, Tls):
        raise InvalidArgument(f"{name} = {shown(tls)} is not a vq.Tls(ca=..., ...), nor None")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer batches, waits and tries again.

    Attributes:
        send_timeout_s: Deadline of a send without one of its own, all retries included. 30 s is
            longer than the restart of a broker.
        batch_bytes: A batch is closed at this size, keys and headers included. With 1 MiB one
            fdatasync covers thousands of small messages, and the buffer has space for several
            batches in flight.
        batch_records: … or at this many messages; bounds the time to encode a batch. With 7,000 a
            batch of 128-byte messages has 1 MiB, too.
        linger_ms: How long a batch that is not full waits for more messages after its first one:
            fewer and larger batches for messages that come slowly. Nothing waits if a thread or a
            coroutine waits for one of the messages (``send_sync``, ``send``, ``result()``), for
            ``flush``, ``close``, ``send_batch`` or space, if the buffer is full, or if a message
            has less time left than this. The sender looks a few times per linger: a batch may leave
            half of it later.
        window: Batches in flight per partition. A broker remembers this many to recognise resends.
        buffer_bytes: Memory of messages without an outcome; at the bound ``send_async`` waits. Each
            message counts with its payload, its encoded tag, key and headers, and 512 bytes for
            its objects. A producer uses at most about twice as much, because a batch in flight has
            a copy of its records. 32 MiB hold 50,000 messages of 128 bytes: those in flight, and
            as many again that are appended meanwhile.
        buffer_messages: Messages without an outcome, 1 to 33,554,432: a second bound beside
            ``buffer_bytes``; the one that is reached first counts. None: as many empty messages as
            fit into ``buffer_bytes`` (65,536 by default), so that only the bytes count.
        when_full: ``block`` or ``raise``: what ``send_async`` and ``send_oneway`` do at one of
            these bounds, see ``WhenFull``. A send that waits for its outcome may always wait for
            space too, within its deadline.
        compression: How messages are compressed: ``zlib``, ``zstd`` or ``lz4``; ``none``: not at
            all. None: as the topic's settings say, not at all without them. A message that does not
            get smaller, by an eighth below 1 KiB, is stored as it is. The thread that sends
            compresses; with ``vq.aio`` that is the loop's, which 1 MiB keeps busy for 1 ms (lz4),
            2 ms (zstd) or 7 ms (zlib).
        compression_threshold: Least bytes of a message that is compressed, 0 to 1 MiB. None: as the
            topic's settings say, 128 KiB without them.
        retry_backoff_s: First pause before a resend; doubles up to ``retry_backoff_max_s``.
        retry_backoff_max_s: Longest pause before a resend.
        partitioner: How the partition of a message is chosen. None: by the hash of its key, round
            robin without one. ``hash``, ``round-robin``, ``random``, ``sticky``, ``least-stored``,
            ``headroom``, ``least-loaded``: the how-to "Choose the partition of a message" has a
            table. Or a function of the message and a ``TopicPartitions`` that returns the number of
            a partition, or an object with such a method named ``choose``.
        on_unavailable: ``wait``, ``fail`` or ``any``: what happens to a message with a key, or with
            a partition that the application chose, while that partition is unavailable, see
            ``OnUnavailable``. The place of a key never changes. Messages that the producer spreads
            go to other partitions in any case.
        ordered: Messages without a key all go to one partition of the topic, drawn once for each
            producer. If a message fails, all messages that were accepted behind it for the same
            partition and are not stored fail, too. ``send_sync`` then takes about twice as long,
            because only the factory's thread sends. Not with a strategy that spreads messages, and
            not with ``on_unavailable = "any"``.
        serializer: Makes the bytes to store of every content, see ``vq.serializers``. None:
            contents are bytes.
        interceptors: Code of the application around each send: their ``before_send`` runs in this
            order, their ``after_send`` in the reverse order.
        identity: Who writes, so that a later producer can take over from this one, see
            ``ProducerIdentity``. At the first message of a partition that is not stored, or whose
            outcome is unknown, the producer ends there: all further messages to the partition fail.
            None: nobody takes over. Needs ``ordered = True`` and ``on_unavailable = "wait"``.
        transactional_id: Under which name it has transactions. Who takes it fences its predecessor:
            what that has open is rolled back, and all that it tries later raises
            ``ProducerFenced``. None: it has transactions, and nobody takes over from it.
        transaction_timeout_s: A transaction is rolled back if it is not ended in time, up to 900.
        producer_group: Under which name it sends half messages: the broker asks any producer of the
            same group that has a listener what became of the local work. Needed with a listener.
        transaction_listener: The code of the application beside ``send_half``. From its creation on
            the producer answers the checks of its group with it, also if it sends nothing.
        check_after_s: The broker asks so long after a half message was sent, if it is not decided
            then; 1 to 86,400. Longer than the local work usually takes.
        check_interval_s: It asks again so long after each check; 1 to 86,400.
        checks_max: It asks so often, 1 to 1,000; then an operator is to decide.
        check_timeout_s: A check of this producer that takes longer counts as unknown; 1 to 3,600.
        exit_flush_s: If the program ends and the producer was not closed, how long its end waits
            for messages that are not sent; 0: not at all. What is not stored then is counted in a
            log line at ERROR.
    """

    send_timeout_s: float = 30.0
    batch_bytes: int = 1 * limits.MIB
    batch_records: int = 7_000
    linger_ms: float = 0.0
    window: int = limits.PRODUCER_BATCHES_REMEMBERED
    buffer_bytes: int = 32 * limits.MIB
    buffer_messages: int | None = None
    when_full: WhenFull | Literal["block", "raise"] = WhenFull.BLOCK
    compression: Compression | str | None = None
    compression_threshold: int | None = None
    retry_backoff_s: float = 0.02
    retry_backoff_max_s: float = 1.0
    partitioner: PartitionerSetting = None
    on_unavailable: OnUnavailable | Literal["wait", "fail", "any"] = OnUnavailable.WAIT
    ordered: bool = False
    serializer: Serializer | None = None
    interceptors: Sequence[ProducerInterceptor] = ()
    identity: ProducerIdentity | None = None
    transactional_id: str | None = None
    transaction_timeout_s: float = limits.TRANSACTION_TIMEOUT_S_DEFAULT
    producer_group: str | None = None
    transaction_listener: TransactionListener | None = None
    check_after_s: float = limits.CHECK_AFTER_S_DEFAULT
    check_interval_s: float = limits.CHECK_INTERVAL_S_DEFAULT
    checks_max: int = limits.CHECKS_DEFAULT
    check_timeout_s: float = limits.CHECK_TIMEOUT_S_DEFAULT
    exit_flush_s: float = 5.0

    def __post_init__(self) -> None:
        strategy = strategy_of(self.partitioner)
        _check_serializer(self.serializer)
        object.__setattr__(self, "interceptors", checked_interceptors(self.interceptors))
        if self.compression_threshold is not None:
            check_whole("compression_threshold", self.compression_threshold)
        kind = check_compression(self.compression, self.compression_threshold)
        object.__setattr__(self, "compression", kind)
        check_positive("send_timeout_s", self.send_timeout_s)
        check_positive("retry_backoff_s", self.retry_backoff_s)
        check_positive("retry_backoff_max_s", self.retry_backoff_max_s)
        check_between("batch_bytes", self.batch_bytes, 1, limits.BATCH_BYTES_MAX)
        check_between("batch_records", self.batch_records, 1, limits.BATCH_RECORDS_MAX)
        check_within("linger_ms", self.linger_ms, 0, limits.LINGER_MS_MAX, "")
        if self.transactional_id is not None:
            check_name("transactional id", self.transactional_id)
        longest = limits.TRANSACTION_TIMEOUT_MS_MAX // 1_000
        check_within("transaction_timeout_s", self.transaction_timeout_s, 0, longest, above=True)
        _check_checks(self)
        check_within("exit_flush_s", self.exit_flush_s, 0, limits.EXIT_FLUSH_S_MAX)
        check_between("window", self.window, 1, limits.PRODUCER_BATCHES_REMEMBERED)
        least = limits.MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES
        check_between("buffer_bytes", self.buffer_bytes, least, PRODUCER_BUFFER_BYTES_MAX)
        if self.buffer_messages is not None:
            check_between("buffer_messages", self.buffer_messages, 1, BUFFER_MESSAGES_MAX)
        when_full = choice_of(WhenFull, "when_full", self.when_full)
        object.__setattr__(self, "when_full", when_full)
        unavailable = choice_of(OnUnavailable, "on_unavailable", self.on_unavailable)
        object.__setattr__(self, "on_unavailable", unavailable)
        _check_ordered(self, strategy)
        _check_identity(self)
        if self.retry_backoff_max_s < self.retry_backoff_s:
            raise InvalidArgument(
                f"retry_backoff_max_s = {self.retry_backoff_max_s} is below "
                f"retry_backoff_s = {self.retry_backoff_s}"
            )


def _check_ordered(config: ProducerConfig, strategy: Strategy | None) -> None:
    if not isinstance(config.ordered, bool):
        raise InvalidArgument(
            f"ordered = {config.ordered!r} is {type(config.ordered).__name__}; give True or False"
        )
    if not config.ordered:
        return
    if strategy is not None and strategy.keys is Keys.IGNORED:
        raise InvalidArgument(
            f"ordered = True and partitioner = {config.partitioner!r} exclude one another: this "
            "partitioner spreads messages over partitions; leave it out, or give 'hash' or your own"
        )
    if config.on_unavailable is OnUnavailable.ANY:
        raise InvalidArgument(
            "ordered = True and on_unavailable = 'any' exclude one another: a diverted message "
            "has no order; give 'wait' or 'fail'"
        )


def _check_checks(config: ProducerConfig) -> None:
    """Check what is about half messages."""
    if config.producer_group is not None:
        check_name("producer group", config.producer_group)
    listener: object = config.transaction_listener
    if listener is not None and not isinstance(listener, TransactionListener):
        raise InvalidArgument(
            f"transaction_listener = {shown(listener)} is {type(listener).__name__}; give "
            "vq.TransactionListener(execute, check)"
        )
    if listener is not None and config.producer_group is None:
        raise InvalidArgument(
            "transaction_listener needs a producer_group: the name under which this producer, and "
            "others like it, are asked about half messages"
        )
    check_between("checks_max", config.checks_max, 1, limits.CHECKS_MAX)
    for name, most in (
        ("check_after_s", limits.CHECK_S_MAX),
        ("check_interval_s", limits.CHECK_S_MAX),
        ("check_timeout_s", limits.CHECK_TIMEOUT_S_MAX),
    ):
        check_within(name, getattr(config, name), limits.CHECK_S_MIN, most)


def _check_identity(config: ProducerConfig) -> None:
    identity = config.identity
    if identity is None:
        return
    if not isinstance(identity, ProducerIdentity):
        raise InvalidArgument(
            f"identity = {shown(identity)} is {type(identity).__name__}; give vq.ProducerIdentity"
        )
    check_between("identity.producer_id", identity.producer_id, 1, 2**63 - 1)
    check_between("identity.epoch", identity.epoch, 0, limits.PRODUCER_EPOCH_MAX)
    if not config.ordered or config.on_unavailable is not OnUnavailable.WAIT:
        raise InvalidArgument(
            f"identity needs ordered = True and on_unavailable = 'wait', not {config.ordered} and "
            f"{str(config.on_unavailable)!r}: the producer ends at its first failure"
        )


def buffer_messages_of(config: ProducerConfig) -> int:
    """Return how many messages without an outcome a producer holds at most."""
    if config.buffer_messages is not None:
        return config.buffer_messages
    return -(-config.buffer_bytes // MESSAGE_OVERHEAD_BYTES)  # rounded up: the bytes count first


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a consumer fetches, commits and shares work with its group.

    Attributes:
        group: The consumer group; needed for ``subscribe``, not for ``get``.
        model: ``clustering``: each message goes to one member of the group. ``broadcasting``: every
            member gets every message. All members have the same. A broadcasting member with a
            ``member_id`` keeps its progress in a file of its machine,
            ``<directory>/<cluster>/<group>/<member_id>.json``; the variable ``VQ_OFFSETS_DIR``
            names the directory, without it that is ``~/.vq/offsets``. One without a name keeps
            none, and begins at the end each time: it needs ``start_position = "latest"``.
            ``shared``: each message goes to one member, any number of members share all partitions,
            and each message is acknowledged by itself, see ``vq.SharedMessage``. It needs a
            listener, and has no order.
        member_id: This member's name in the group; if empty, made from host, process and a random
            number. A member with a fixed name that was killed and starts again waits for the end of
            its old session: up to two session time-outs and 5 s. Meanwhile the group keeps its
            partitions for it: none of them moves.
        restart_s: For a member with a fixed name: so long the group keeps its partitions for it
            after it was closed, so that a restart moves nothing; nobody reads them meanwhile. 0:
            not at all.
        start_position: ``earliest`` or ``latest``: where the group begins in partitions for which
            it has no offset. Also with ``latest``, a partition that is added after the group began
            is read from its start.
        commit_interval_s: The consumer commits offsets this often (with 20 % jitter), and on
            release, close and revocation; also when half of ``window_messages`` are handled.
        prefetch_bytes: Bytes fetched ahead per partition and not yet handed to the listener.
        buffer_bytes: Bytes fetched ahead for all partitions together, those in flight included.
            Half of it is divided evenly, so a partition with a slow listener never uses the share
            of another. With 64 MiB, each of 4,096 partitions always has 8 KiB; a partition with
            more to read gets up to ``prefetch_bytes`` of the other half. Each of ``workers``
            decompresses at most 5 MiB at a time. If a record is larger than the free space, one
            partition at a time may exceed the bound by one record (little more than 1 MiB). Copies
            of messages that are being delivered do not count. Each partition has at least 1 KiB.
        max_wait_s: How long a broker waits for data before it answers a fetch without any.
        mode: ``orderly``, ``keyed`` or ``concurrent``: how many messages of a partition the
            listener is at, see ``WorkingMode``. Without a listener, messages come in order. With
            ``shared`` it is ``keyed``, which keeps the order of each key, or else ``concurrent``.
        workers: So many listeners of this consumer run at a time: threads of the blocking API,
            tasks of ``vq.aio``. With ``orderly`` they are at different partitions.
        batch_size: Above 1, the listener gets lists of up to so many messages of one partition.
            Only with ``orderly`` and ``keyed`` do they keep an order: that of the partition, or of
            each key.
        batch_wait_ms: How long a list that is not full waits for more messages.
        window_messages: So many messages of a partition are handed out behind the committed
            offset, at most; in every mode, and to those who pull. So many are delivered again after
            a crash, at most. The consumer commits when half of them are handled, and hands out no
            more at the bound before that is stored: a small window costs commits. In ``keyed`` and
            ``concurrent`` mode, and for lists, what lies behind an unfinished message counts, too.
        window_bytes: In these modes, and for lists, the contents of the messages from the lowest
            unfinished one on have so many bytes, but for the last one. At the bound the partition
            is not fetched further.
        order: ``strict`` or ``relaxed``: whether ``orderly`` and ``keyed`` keep the order of
            messages after a failure, too. Only with ``relaxed`` may they have a retry topic, whose
            messages come after later ones. All members of a group have the same.
        max_attempts: After so many failed tries of a message ``on_failure`` counts. They are
            counted by this member, so a message that moves on with its partition begins anew. Each
            delivery from the retry topic has as many. This and ``on_failure``, ``retry_schedule``,
            ``on_bad_record`` and ``retry_backoff`` are the group's: its first member founds them,
            members follow what `vq group alter` makes of them, and one that says something else is
            told so in the log. None: what the group has; in a new group 3.
        on_failure: ``hold``, ``retry-topic``, ``dead-letter``, ``skip`` or ``stop``, see
            ``OnFailure``. What is skipped is recorded in a file of this machine,
            ``<directory>/<cluster>/<group>/<member>.failed``; the variable ``VQ_FAILED_DIR`` names
            the directory, without it that is ``~/.vq/failed``. None: what the group has; in a new
            group ``retry-topic`` for ``concurrent``, ``hold`` for the other modes.
        retry_schedule: With ``retry-topic``, so with ``concurrent`` or ``relaxed`` only: the delay
            of each redelivery, in seconds. A message that fails after the last of them, too,
            becomes a dead letter. None: what the group has; in a new group the 16 of RocketMQ:
            10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h and 2 h.
        on_bad_record: ``stop``, ``skip`` or ``dead-letter``: what becomes of a record that no node
            has so that it can be read, see ``OnBadRecord``; also of a message for which the
            listener raises ``vq.errors.ContentUnreadable``, as serializers do for what is no
            content of theirs. None: what the group has; in a new group ``stop``.
        listener_timeout_s: How long a listener may be at a message, or a list. A coroutine is
            cancelled then, which is a failed try. A thread cannot be: ``troubles`` and the log tell
            it, and its result counts when it comes. In both, a partition that moves to another
            member waits no longer for its listener; its message is then delivered again there.
            None: no limit.
        retry_backoff: The pause before the second try, and the longest one, in seconds; it doubles
            in between, with 20 % jitter. ``vq.Retry(after_s=...)`` of a listener overrules it. With
            ``retry-topic``, a message that is to wait longer than the longest pause goes there at
            once, and that is its delay. None: what the group has; in a new group (0.1, 30.0).
        lease_s: With ``shared``: the member has a message so long, by the clock of the broker, 0.1
            to 43,200; then it is delivered again. Longer than a listener takes; ``extend`` of a
            message gives it more time. Other models have no leases.
        max_deliveries: With ``shared``, the same as ``max_attempts``: a message that was delivered
            so often, to whichever member, and failed, goes where ``on_failure`` says.
        audit_interval_s: The consumer compares its partitions with ZooKeeper this often, in
            addition to watches.
        read_from: ``master``, ``any`` or ``nearest``: from which nodes of a broker group subscribed
            topics are read, see ``ReadFrom``. A node that copies gives only what cannot be taken
            back, a moment later than the master. If it fails, the consumer reads from the master.
            ``get`` and offsets always ask the master.
        rack: Where this consumer runs, as brokers name it (``vq broker --rack``); for ``nearest``,
            and for the strategy ``rack``.
        strategy: How the group shares out partitions, the same in all members: ``sticky``,
            ``average``, ``circle``, ``hash`` or ``rack``; the how-to "Choose how a group shares
            out" has a table. Or an object of your own, see ``GroupStrategy``.
        offset_store: Where the offsets of the group are kept, the same in all members: a
            ``vq.SqlOffsetStore`` or a ``vq.FileOffsetStore``; None: in ZooKeeper. The application
            closes it after the consumer. ``commit_interval_s`` counts for it, too; ZooKeeper gets
            copies.
    """

    group: str = ""
    model: GroupModel | Literal["clustering", "broadcasting", "shared"] = GroupModel.CLUSTERING
    member_id: str = ""
    restart_s: float = 0.0
    start_position: StartPosition | Literal["earliest", "latest"] = StartPosition.EARLIEST
    commit_interval_s: float = 5.0
    prefetch_bytes: int = 2 * limits.MIB
    buffer_bytes: int = 64 * limits.MIB
    max_wait_s: float = limits.LONG_POLL_S_DEFAULT
    mode: WorkingMode | Literal["orderly", "keyed", "concurrent"] = WorkingMode.ORDERLY
    workers: int = 1
    batch_size: int = 1
    batch_wait_ms: float = 0.0
    window_messages: int = 50_000
    window_bytes: int = 16 * limits.MIB
    order: Ordering | Literal["strict", "relaxed"] = Ordering.STRICT
    max_attempts: int | None = None
    on_failure: OnFailure | Literal["hold", "retry-topic", "dead-letter", "skip", "stop"] | None = (
        None
    )
    retry_schedule: tuple[float, ...] | None = None
    on_bad_record: OnBadRecord | Literal["stop", "skip", "dead-letter"] | None = None
    listener_timeout_s: float | None = None
    retry_backoff: tuple[float, float] | None = None
    lease_s: float = 30.0
    max_deliveries: int | None = None
    audit_interval_s: float = 30.0
    read_from: ReadFrom | Literal["master", "any", "nearest"] = ReadFrom.MASTER
    rack: str = ""
    strategy: str | GroupStrategy = STICKY
    offset_store: OffsetTable | None = None

    def __post_init__(self) -> None:
        _check_offset_store(self.offset_store, self.group)
        for what, name in (("group", self.group), ("member_id", self.member_id)):
            check_text(what, name)
            if name:
                check_name(what, name)
        # Text is taken, too: what compares by identity later must not meet it.
        start = choice_of(StartPosition, "start_position", self.start_position)
        object.__setattr__(self, "start_position", start)
        object.__setattr__(self, "mode", choice_of(WorkingMode, "mode", self.mode))
        object.__setattr__(self, "model", choice_of(GroupModel, "model", self.model))
        object.__setattr__(self, "order", choice_of(Ordering, "order", self.order))
        _check_shared(self)
        for name, kind in (("on_failure", OnFailure), ("on_bad_record", OnBadRecord)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, choice_of(kind, name, getattr(self, name)))
        if self.on_failure is not None:
            check_model(self.model, self.on_failure)
            check_order(self.mode, self.order, self.on_failure)
        if self.group:
            check_topics(self.group, self.on_failure or usual_on_failure(self.mode, self.model))
            check_topics(self.group, self.on_bad_record)
        if self.retry_schedule is not None:
            schedule = check_pauses("retry_schedule", self.retry_schedule)
            object.__setattr__(self, "retry_schedule", schedule)
            if self.mode is not WorkingMode.CONCURRENT and self.order is Ordering.STRICT:
                raise InvalidArgument(
                    f"retry_schedule = {self.retry_schedule} is of the retry topic, which mode = "
                    f"'{self.mode}' has only with order = 'relaxed' and on_failure = "
                    "'retry-topic'; retry_backoff has the pauses between tries in place"
                )
        read_from = choice_of(ReadFrom, "read_from", self.read_from)
        object.__setattr__(self, "read_from", read_from)
        check_text("rack", self.rack)
        if self.rack:
            check_name("rack", self.rack)
        elif read_from is ReadFrom.NEAREST:
            raise InvalidArgument(
                "read_from = 'nearest' needs rack = '...': where this consumer runs, as "
                "`vq broker --rack` names it"
            )
        check_within("restart_s", self.restart_s, 0, RESTART_S_MAX)
        if self.restart_s and not self.member_id:
            raise InvalidArgument(
                f"restart_s = {self.restart_s} needs member_id = '...': a name that the member has "
                "again after its restart"
            )
        name, _ = group_strategy_of(self.strategy)
        if name == "rack" and not self.rack:
            raise InvalidArgument(
                "strategy = 'rack' needs rack = '...': where this consumer runs, as `vq broker "
                "--rack` names it"
            )
        _check_broadcasting(self, name)
        check_positive("commit_interval_s", self.commit_interval_s)
        check_positive("audit_interval_s", self.audit_interval_s)
        check_between("prefetch_bytes", self.prefetch_bytes, 64 * limits.KIB, limits.GIB)
        check_between("buffer_bytes", self.buffer_bytes, limits.MIB, 64 * limits.GIB)
        check_between("workers", self.workers, 1, WORKERS_MAX)
        check_between("window_messages", self.window_messages, 1, WINDOW_MESSAGES_MAX)
        check_between("window_bytes", self.window_bytes, 64 * limits.KIB, limits.GIB)
        check_between("batch_size", self.batch_size, 1, self.window_messages)
        check_within("batch_wait_ms", self.batch_wait_ms, 0, BATCH_WAIT_MS_MAX, "")
        if self.batch_wait_ms and self.batch_size == 1:
            raise InvalidArgument(
                f"batch_wait_ms = {self.batch_wait_ms} waits for more messages of a list; give "
                "batch_size, too"
            )
        if self.max_attempts is not None:
            check_between("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS_MAX)
        if self.listener_timeout_s is not None:
            check_positive("listener_timeout_s", self.listener_timeout_s)
        if self.retry_backoff is not None:
            object.__setattr__(self, "retry_backoff", _pauses(self.retry_backoff))
        check_within("max_wait_s", self.max_wait_s, 0, limits.LONG_POLL_S_MAX, above=True)


def _check_shared(config: ConsumerConfig) -> None:
    """Check what a member of a shared group asks for, and set what follows from it."""
    least, most = limits.SHARED_LEASE_MS_MIN / 1_000, limits.SHARED_LEASE_MS_MAX / 1_000
    check_within("lease_s", config.lease_s, least, most)
    if config.model is not GroupModel.SHARED:
        if config.max_deliveries is not None:
            raise InvalidArgument(
                f"max_deliveries = {config.max_deliveries} is for model = 'shared'; max_attempts "
                f"counts the tries of a member of a group with model = {str(config.model)!r}"
            )
        return
    if config.max_deliveries is not None:
        check_between("max_deliveries", config.max_deliveries, 1, MAX_ATTEMPTS_MAX)
        if config.max_attempts not in {None, config.max_deliveries}:
            raise InvalidArgument(
                f"max_deliveries = {config.max_deliveries} and max_attempts = "
                f"{config.max_attempts} say the same of a shared group; give one of them"
            )
        object.__setattr__(config, "max_attempts", config.max_deliveries)
    for what, is_given in (
        (f"restart_s = {config.restart_s}", bool(config.restart_s)),
        (f"batch_size = {config.batch_size}", config.batch_size != 1),
        (f"retry_schedule = {config.retry_schedule}", config.retry_schedule is not None),
        (f"strategy = {config.strategy!r}", config.strategy != STICKY),
        ("offset_store", config.offset_store is not None),
    ):
        if is_given:
            raise InvalidArgument(
                f"{what} does not go with model = 'shared': each message is delivered and settled "
                "by itself, and no partition is one member's; leave it out"
            )
    if config.mode is not WorkingMode.KEYED:
        object.__setattr__(config, "mode", WorkingMode.CONCURRENT)


def _check_broadcasting(config: ConsumerConfig, strategy: str) -> None:
    """Check what a member of a broadcasting group asks for."""
    if config.model is not GroupModel.BROADCASTING:
        return
    check_model(config.model, config.on_bad_record, "on_bad_record")
    for what, is_given in (
        (f"strategy = {strategy!r}", strategy != STICKY),
        (f"restart_s = {config.restart_s}", bool(config.restart_s)),
    ):
        if is_given:
            raise InvalidArgument(
                f"{what} does not go with model = 'broadcasting': every member has every "
                "partition, and none moves; leave it out"
            )
    if config.offset_store is not None:
        raise InvalidArgument(
            f"offset_store = {config.offset_store!r} keeps the offsets of a group; with model = "
            "'broadcasting' each member keeps its own in a file: leave it out. The variable "
            "VQ_OFFSETS_DIR names the directory of the files"
        )
    if not config.member_id and config.start_position is not StartPosition.LATEST:
        raise InvalidArgument(
            "model = 'broadcasting' keeps the progress of each member under its name, in a file: "
            "give member_id = '...', a name that the member has again when it restarts; or "
            "start_position = 'latest', to begin at the end each time"
        )


def _check_offset_store(store: object, group: str) -> None:
    if store is None:
        return
    if not isinstance(store, OffsetTable):
        raise InvalidArgument(
            f"offset_store = {shown(store)} is {type(store).__name__}; give a vq.SqlOffsetStore or "
            "a vq.FileOffsetStore; None is ZooKeeper"
        )
    if not group:
        raise InvalidArgument("offset_store keeps the offsets of a group; give group = '...', too")


def _pauses(given: object) -> tuple[float, float]:
    """Return the first pause and the longest one, checked."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidArgument(
            f"retry_backoff = {shown(given)}; give the first pause and the longest one in seconds, "
            "such as (0.1, 30.0)"
        )
    first_s, most_s = given
    check_positive("the first pause of retry_backoff", first_s)
    check_positive("the longest pause of retry_backoff", most_s)
    if most_s < first_s:
        raise InvalidArgument(
            f"retry_backoff = {shown(given)}: the longest pause is below the first one"
        )
    return first_s, most_s


def _check_serializer(serializer: object) -> None:
    if serializer is None:
        return
    if isinstance(serializer, type):
        raise InvalidArgument(
            f"serializer = {serializer.__name__} is a class; give an instance of it: "
            f"{serializer.__name__}(...)"
        )
    missing = [name for name in ("name", "dumps", "loads") if not hasattr(serializer, name)]
    if missing:
        raise InvalidArgument(
            f"serializer = {shown(serializer)} ({type(serializer).__name__}) has no "
            f"{' and no '.join(missing)}: see vq.serializers.Serializer"
        )
    for name in ("dumps", "loads"):
        what = f"{name} of serializer {type(serializer).__name__}"
        check_function(what, getattr(serializer, name), "make it a plain method")
