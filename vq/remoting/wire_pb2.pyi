from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Error(_message.Message):
    __slots__ = ("message", "numbers", "texts")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TextsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    message: str
    numbers: _containers.ScalarMap[str, int]
    texts: _containers.ScalarMap[str, str]
    def __init__(self, message: _Optional[str] = ..., numbers: _Optional[_Mapping[str, int]] = ..., texts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Delay(_message.Message):
    __slots__ = ("delay_ms",)
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    delay_ms: int
    def __init__(self, delay_ms: _Optional[int] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("version_min", "version_max", "client_id", "library", "mechanism", "credentials", "cluster")
    VERSION_MIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_MAX_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    version_min: int
    version_max: int
    client_id: str
    library: str
    mechanism: str
    credentials: bytes
    cluster: str
    def __init__(self, version_min: _Optional[int] = ..., version_max: _Optional[int] = ..., client_id: _Optional[str] = ..., library: _Optional[str] = ..., mechanism: _Optional[str] = ..., credentials: _Optional[bytes] = ..., cluster: _Optional[str] = ...) -> None: ...

class HelloResponse(_message.Message):
    __slots__ = ("version", "cluster", "group", "node", "incarnation", "frame_bytes_max", "broker_version", "requests_in_flight_max", "challenge", "mechanisms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BROKER_VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    MECHANISMS_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster: str
    group: str
    node: str
    incarnation: int
    frame_bytes_max: int
    broker_version: str
    requests_in_flight_max: int
    challenge: bytes
    mechanisms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., cluster: _Optional[str] = ..., group: _Optional[str] = ..., node: _Optional[str] = ..., incarnation: _Optional[int] = ..., frame_bytes_max: _Optional[int] = ..., broker_version: _Optional[str] = ..., requests_in_flight_max: _Optional[int] = ..., challenge: _Optional[bytes] = ..., mechanisms: _Optional[_Iterable[str]] = ...) -> None: ...

class AuthenticateRequest(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class AuthenticateResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ProveRequest(_message.Message):
    __slots__ = ("group", "node", "nonce", "proof")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    group: str
    node: str
    nonce: bytes
    proof: bytes
    def __init__(self, group: _Optional[str] = ..., node: _Optional[str] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class ProveResponse(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingResponse(_message.Message):
    __slots__ = ("wall_ms",)
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    wall_ms: int
    def __init__(self, wall_ms: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("with_partitions", "after_topic", "after_partition", "with_numbers", "with_security")
    WITH_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    WITH_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    WITH_SECURITY_FIELD_NUMBER: _ClassVar[int]
    with_partitions: bool
    after_topic: str
    after_partition: int
    with_numbers: bool
    with_security: bool
    def __init__(self, with_partitions: _Optional[bool] = ..., after_topic: _Optional[str] = ..., after_partition: _Optional[int] = ..., with_numbers: _Optional[bool] = ..., with_security: _Optional[bool] = ...) -> None: ...

class PartitionStatus(_message.Message):
    __slots__ = ("topic", "partition", "log_start_offset", "log_end_offset", "high_watermark", "state", "size_bytes", "reason", "damage", "damaged_ranges", "not_copied", "min_insync", "flush_async", "replication_async", "held_by", "held_from", "held_bytes", "held_since_ms", "end_unknown", "ahead_ms", "next_number", "number_known")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_RANGES_FIELD_NUMBER: _ClassVar[int]
    NOT_COPIED_FIELD_NUMBER: _ClassVar[int]
    MIN_INSYNC_FIELD_NUMBER: _ClassVar[int]
    FLUSH_ASYNC_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_ASYNC_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    HELD_FROM_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    END_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    AHEAD_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    state: str
    size_bytes: int
    reason: str
    damage: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    damaged_ranges: int
    not_copied: str
    min_insync: int
    flush_async: bool
    replication_async: bool
    held_by: str
    held_from: int
    held_bytes: int
    held_since_ms: int
    end_unknown: bool
    ahead_ms: int
    next_number: int
    number_known: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., state: _Optional[str] = ..., size_bytes: _Optional[int] = ..., reason: _Optional[str] = ..., damage: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ..., damaged_ranges: _Optional[int] = ..., not_copied: _Optional[str] = ..., min_insync: _Optional[int] = ..., flush_async: _Optional[bool] = ..., replication_async: _Optional[bool] = ..., held_by: _Optional[str] = ..., held_from: _Optional[int] = ..., held_bytes: _Optional[int] = ..., held_since_ms: _Optional[int] = ..., end_unknown: _Optional[bool] = ..., ahead_ms: _Optional[int] = ..., next_number: _Optional[int] = ..., number_known: _Optional[bool] = ...) -> None: ...

class CopyStatus(_message.Message):
    __slots__ = ("node", "partitions", "bytes_behind", "ms_behind")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_BEHIND_FIELD_NUMBER: _ClassVar[int]
    MS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    node: str
    partitions: int
    bytes_behind: int
    ms_behind: int
    def __init__(self, node: _Optional[str] = ..., partitions: _Optional[int] = ..., bytes_behind: _Optional[int] = ..., ms_behind: _Optional[int] = ...) -> None: ...

class DiskStatus(_message.Message):
    __slots__ = ("directory", "bytes_free", "bytes_total", "level", "growth_known", "growth_bytes_per_hour", "fills", "full_in_s", "excess_bytes", "files_free", "files_total", "file_system")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FREE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    GROWTH_KNOWN_FIELD_NUMBER: _ClassVar[int]
    GROWTH_BYTES_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    FILLS_FIELD_NUMBER: _ClassVar[int]
    FULL_IN_S_FIELD_NUMBER: _ClassVar[int]
    EXCESS_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FREE_FIELD_NUMBER: _ClassVar[int]
    FILES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FILE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    directory: str
    bytes_free: int
    bytes_total: int
    level: str
    growth_known: bool
    growth_bytes_per_hour: int
    fills: bool
    full_in_s: int
    excess_bytes: int
    files_free: int
    files_total: int
    file_system: str
    def __init__(self, directory: _Optional[str] = ..., bytes_free: _Optional[int] = ..., bytes_total: _Optional[int] = ..., level: _Optional[str] = ..., growth_known: _Optional[bool] = ..., growth_bytes_per_hour: _Optional[int] = ..., fills: _Optional[bool] = ..., full_in_s: _Optional[int] = ..., excess_bytes: _Optional[int] = ..., files_free: _Optional[int] = ..., files_total: _Optional[int] = ..., file_system: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("name", "trigger", "state", "why_off", "runs", "failures", "begun_ms", "ended_ms", "late_ms", "error", "next_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_OFF_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    trigger: str
    state: str
    why_off: str
    runs: int
    failures: int
    begun_ms: int
    ended_ms: int
    late_ms: int
    error: str
    next_ms: int
    def __init__(self, name: _Optional[str] = ..., trigger: _Optional[str] = ..., state: _Optional[str] = ..., why_off: _Optional[str] = ..., runs: _Optional[int] = ..., failures: _Optional[int] = ..., begun_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., late_ms: _Optional[int] = ..., error: _Optional[str] = ..., next_ms: _Optional[int] = ...) -> None: ...

class AnonymousClient(_message.Message):
    __slots__ = ("host", "client_id", "connections")
    HOST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    host: str
    client_id: str
    connections: int
    def __init__(self, host: _Optional[str] = ..., client_id: _Optional[str] = ..., connections: _Optional[int] = ...) -> None: ...

class MissingRight(_message.Message):
    __slots__ = ("user", "right", "resource", "requests", "last_ms", "because", "by_rule", "denied")
    USER_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    BY_RULE_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    user: str
    right: str
    resource: str
    requests: int
    last_ms: int
    because: str
    by_rule: bool
    denied: bool
    def __init__(self, user: _Optional[str] = ..., right: _Optional[str] = ..., resource: _Optional[str] = ..., requests: _Optional[int] = ..., last_ms: _Optional[int] = ..., because: _Optional[str] = ..., by_rule: _Optional[bool] = ..., denied: _Optional[bool] = ...) -> None: ...

class SecurityStatus(_message.Message):
    __slots__ = ("authentication", "authorization", "tls", "tls_client_certificates", "loopback", "zookeeper_tls", "zookeeper_auth", "super_users", "connections", "plain_connections", "anonymous_connections", "anonymous", "missing", "missing_left_out")
    AUTHENTICATION_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    TLS_CLIENT_CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    LOOPBACK_FIELD_NUMBER: _ClassVar[int]
    ZOOKEEPER_TLS_FIELD_NUMBER: _ClassVar[int]
    ZOOKEEPER_AUTH_FIELD_NUMBER: _ClassVar[int]
    SUPER_USERS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MISSING_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    authentication: str
    authorization: str
    tls: str
    tls_client_certificates: str
    loopback: bool
    zookeeper_tls: bool
    zookeeper_auth: bool
    super_users: _containers.RepeatedScalarFieldContainer[str]
    connections: int
    plain_connections: int
    anonymous_connections: int
    anonymous: _containers.RepeatedCompositeFieldContainer[AnonymousClient]
    missing: _containers.RepeatedCompositeFieldContainer[MissingRight]
    missing_left_out: int
    def __init__(self, authentication: _Optional[str] = ..., authorization: _Optional[str] = ..., tls: _Optional[str] = ..., tls_client_certificates: _Optional[str] = ..., loopback: _Optional[bool] = ..., zookeeper_tls: _Optional[bool] = ..., zookeeper_auth: _Optional[bool] = ..., super_users: _Optional[_Iterable[str]] = ..., connections: _Optional[int] = ..., plain_connections: _Optional[int] = ..., anonymous_connections: _Optional[int] = ..., anonymous: _Optional[_Iterable[_Union[AnonymousClient, _Mapping]]] = ..., missing: _Optional[_Iterable[_Union[MissingRight, _Mapping]]] = ..., missing_left_out: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("cluster", "group", "node", "broker_version", "uptime_ms", "epoch", "master", "partition_count", "connections", "messages_in", "bytes_in", "bytes_out", "flushes", "disk_bytes_free", "disk_bytes_total", "partitions", "requests_waiting", "problems", "more", "copies", "follows", "diverged_files", "diverged_bytes", "scrub_begun_ms", "scrub_ended_ms", "scrub_read_bytes", "scrub_bytes_per_s", "repairs", "scrub_next_ms", "disks", "jobs", "tls_expires_ms", "security")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BROKER_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    FLUSHES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FREE_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_FILES_FIELD_NUMBER: _ClassVar[int]
    DIVERGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    SCRUB_ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    SCRUB_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    SCRUB_NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TLS_EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    node: str
    broker_version: str
    uptime_ms: int
    epoch: int
    master: bool
    partition_count: int
    connections: int
    messages_in: int
    bytes_in: int
    bytes_out: int
    flushes: int
    disk_bytes_free: int
    disk_bytes_total: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionStatus]
    requests_waiting: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    copies: _containers.RepeatedCompositeFieldContainer[CopyStatus]
    follows: str
    diverged_files: int
    diverged_bytes: int
    scrub_begun_ms: int
    scrub_ended_ms: int
    scrub_read_bytes: int
    scrub_bytes_per_s: int
    repairs: int
    scrub_next_ms: int
    disks: _containers.RepeatedCompositeFieldContainer[DiskStatus]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    tls_expires_ms: int
    security: SecurityStatus
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., node: _Optional[str] = ..., broker_version: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., master: _Optional[bool] = ..., partition_count: _Optional[int] = ..., connections: _Optional[int] = ..., messages_in: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., flushes: _Optional[int] = ..., disk_bytes_free: _Optional[int] = ..., disk_bytes_total: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionStatus, _Mapping]]] = ..., requests_waiting: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., more: _Optional[bool] = ..., copies: _Optional[_Iterable[_Union[CopyStatus, _Mapping]]] = ..., follows: _Optional[str] = ..., diverged_files: _Optional[int] = ..., diverged_bytes: _Optional[int] = ..., scrub_begun_ms: _Optional[int] = ..., scrub_ended_ms: _Optional[int] = ..., scrub_read_bytes: _Optional[int] = ..., scrub_bytes_per_s: _Optional[int] = ..., repairs: _Optional[int] = ..., scrub_next_ms: _Optional[int] = ..., disks: _Optional[_Iterable[_Union[DiskStatus, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., tls_expires_ms: _Optional[int] = ..., security: _Optional[_Union[SecurityStatus, _Mapping]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("topic", "partition", "record_count", "crc", "producer_id", "producer_epoch", "sequence", "transaction_id", "epoch", "topic_id", "resend", "accepted")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    RESEND_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    record_count: int
    crc: int
    producer_id: int
    producer_epoch: int
    sequence: int
    transaction_id: int
    epoch: int
    topic_id: str
    resend: bool
    accepted: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., record_count: _Optional[int] = ..., crc: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., transaction_id: _Optional[int] = ..., epoch: _Optional[int] = ..., topic_id: _Optional[str] = ..., resend: _Optional[bool] = ..., accepted: _Optional[bool] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("offset", "duplicate", "epoch")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    offset: int
    duplicate: bool
    epoch: int
    def __init__(self, offset: _Optional[int] = ..., duplicate: _Optional[bool] = ..., epoch: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "offset", "message_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    offset: int
    message_id: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., message_id: _Optional[int] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: int
    def __init__(self, outcome: _Optional[int] = ...) -> None: ...

class TransactionPart(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "record_count", "size", "crc", "index")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    record_count: int
    size: int
    crc: int
    index: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., record_count: _Optional[int] = ..., size: _Optional[int] = ..., crc: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class TransactRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "transaction", "number", "state", "parts", "client", "client_epoch", "timeout_ms", "xid", "max_wait_ms", "by", "keep", "checks", "decision", "decision_version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    DECISION_VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    transaction: int
    number: int
    state: int
    parts: _containers.RepeatedCompositeFieldContainer[TransactionPart]
    client: str
    client_epoch: int
    timeout_ms: int
    xid: str
    max_wait_ms: int
    by: str
    keep: bool
    checks: TransactionChecks
    decision: str
    decision_version: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., transaction: _Optional[int] = ..., number: _Optional[int] = ..., state: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[TransactionPart, _Mapping]]] = ..., client: _Optional[str] = ..., client_epoch: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., xid: _Optional[str] = ..., max_wait_ms: _Optional[int] = ..., by: _Optional[str] = ..., keep: _Optional[bool] = ..., checks: _Optional[_Union[TransactionChecks, _Mapping]] = ..., decision: _Optional[str] = ..., decision_version: _Optional[int] = ...) -> None: ...

class TransactionChecks(_message.Message):
    __slots__ = ("group", "after_ms", "interval_ms", "most", "many")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    MANY_FIELD_NUMBER: _ClassVar[int]
    group: str
    after_ms: int
    interval_ms: int
    most: int
    many: bool
    def __init__(self, group: _Optional[str] = ..., after_ms: _Optional[int] = ..., interval_ms: _Optional[int] = ..., most: _Optional[int] = ..., many: _Optional[bool] = ...) -> None: ...

class TransactResponse(_message.Message):
    __slots__ = ("state", "offsets", "by", "stored")
    STATE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    state: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    by: str
    stored: bool
    def __init__(self, state: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., by: _Optional[str] = ..., stored: _Optional[bool] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "client")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    client: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class FenceResponse(_message.Message):
    __slots__ = ("client_epoch",)
    CLIENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    client_epoch: int
    def __init__(self, client_epoch: _Optional[int] = ...) -> None: ...

class TransactionsRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "after", "max_count", "ended", "xid", "kept", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    after: int
    max_count: int
    ended: bool
    xid: str
    kept: bool
    messages: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., after: _Optional[int] = ..., max_count: _Optional[int] = ..., ended: _Optional[bool] = ..., xid: _Optional[str] = ..., kept: _Optional[bool] = ..., messages: _Optional[bool] = ...) -> None: ...

class TransactionStatus(_message.Message):
    __slots__ = ("transaction", "state", "by", "client", "client_epoch", "xid", "begun_ms", "ends_ms", "decided_ms", "parts", "kept", "checks")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    ENDS_MS_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    transaction: int
    state: int
    by: str
    client: str
    client_epoch: int
    xid: str
    begun_ms: int
    ends_ms: int
    decided_ms: int
    parts: _containers.RepeatedCompositeFieldContainer[TransactionPartStatus]
    kept: bool
    checks: TransactionCheckStatus
    def __init__(self, transaction: _Optional[int] = ..., state: _Optional[int] = ..., by: _Optional[str] = ..., client: _Optional[str] = ..., client_epoch: _Optional[int] = ..., xid: _Optional[str] = ..., begun_ms: _Optional[int] = ..., ends_ms: _Optional[int] = ..., decided_ms: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[TransactionPartStatus, _Mapping]]] = ..., kept: _Optional[bool] = ..., checks: _Optional[_Union[TransactionCheckStatus, _Mapping]] = ...) -> None: ...

class TransactionCheckStatus(_message.Message):
    __slots__ = ("group", "sent", "most", "next_ms", "parked")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    NEXT_MS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    group: str
    sent: int
    most: int
    next_ms: int
    parked: bool
    def __init__(self, group: _Optional[str] = ..., sent: _Optional[int] = ..., most: _Optional[int] = ..., next_ms: _Optional[int] = ..., parked: _Optional[bool] = ...) -> None: ...

class TransactionPartStatus(_message.Message):
    __slots__ = ("topic", "partition", "messages", "size", "stored", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    messages: int
    size: int
    stored: bool
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., messages: _Optional[int] = ..., size: _Optional[int] = ..., stored: _Optional[bool] = ..., offset: _Optional[int] = ...) -> None: ...

class TransactionsResponse(_message.Message):
    __slots__ = ("transactions", "more")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionStatus]
    more: bool
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionStatus, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "group", "instance", "max_wait_ms", "max_count", "again")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    group: str
    instance: int
    max_wait_ms: int
    max_count: int
    again: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., group: _Optional[str] = ..., instance: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., max_count: _Optional[int] = ..., again: _Optional[int] = ...) -> None: ...

class CheckedTransaction(_message.Message):
    __slots__ = ("transaction", "check", "many", "parts")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    MANY_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    transaction: int
    check: int
    many: bool
    parts: _containers.RepeatedCompositeFieldContainer[TransactionPartStatus]
    def __init__(self, transaction: _Optional[int] = ..., check: _Optional[int] = ..., many: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[TransactionPartStatus, _Mapping]]] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[CheckedTransaction]
    def __init__(self, transactions: _Optional[_Iterable[_Union[CheckedTransaction, _Mapping]]] = ...) -> None: ...

class SharedSource(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "begin", "end", "was_cut", "cut_at", "cuts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WAS_CUT_FIELD_NUMBER: _ClassVar[int]
    CUT_AT_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    begin: int
    end: int
    was_cut: bool
    cut_at: int
    cuts: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., was_cut: _Optional[bool] = ..., cut_at: _Optional[int] = ..., cuts: _Optional[int] = ...) -> None: ...

class SharedCut(_message.Message):
    __slots__ = ("source", "cursor", "cuts")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    source: int
    cursor: int
    cuts: int
    def __init__(self, source: _Optional[int] = ..., cursor: _Optional[int] = ..., cuts: _Optional[int] = ...) -> None: ...

class SharedRun(_message.Message):
    __slots__ = ("source", "first", "messages", "grant", "deliveries")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    source: int
    first: int
    messages: int
    grant: int
    deliveries: int
    def __init__(self, source: _Optional[int] = ..., first: _Optional[int] = ..., messages: _Optional[int] = ..., grant: _Optional[int] = ..., deliveries: _Optional[int] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "group", "member", "attempt", "max_messages", "lease_ms", "max_wait_ms", "open_max", "group_open_max", "sources", "keyed", "keys")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_MAX_FIELD_NUMBER: _ClassVar[int]
    GROUP_OPEN_MAX_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    group: str
    member: int
    attempt: int
    max_messages: int
    lease_ms: int
    max_wait_ms: int
    open_max: int
    group_open_max: int
    sources: _containers.RepeatedCompositeFieldContainer[SharedSource]
    keyed: bool
    keys: _containers.RepeatedCompositeFieldContainer[SharedKeys]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., group: _Optional[str] = ..., member: _Optional[int] = ..., attempt: _Optional[int] = ..., max_messages: _Optional[int] = ..., lease_ms: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., open_max: _Optional[int] = ..., group_open_max: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SharedSource, _Mapping]]] = ..., keyed: _Optional[bool] = ..., keys: _Optional[_Iterable[_Union[SharedKeys, _Mapping]]] = ...) -> None: ...

class SharedKeys(_message.Message):
    __slots__ = ("source", "first", "grant", "keys")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    source: int
    first: int
    grant: int
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source: _Optional[int] = ..., first: _Optional[int] = ..., grant: _Optional[int] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("runs", "lows", "waits", "keyed", "waited_ms", "cuts")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    LOWS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[SharedRun]
    lows: _containers.RepeatedScalarFieldContainer[int]
    waits: _containers.RepeatedCompositeFieldContainer[SharedRun]
    keyed: bool
    waited_ms: int
    cuts: _containers.RepeatedCompositeFieldContainer[SharedCut]
    def __init__(self, runs: _Optional[_Iterable[_Union[SharedRun, _Mapping]]] = ..., lows: _Optional[_Iterable[int]] = ..., waits: _Optional[_Iterable[_Union[SharedRun, _Mapping]]] = ..., keyed: _Optional[bool] = ..., waited_ms: _Optional[int] = ..., cuts: _Optional[_Iterable[_Union[SharedCut, _Mapping]]] = ...) -> None: ...

class SettleItem(_message.Message):
    __slots__ = ("run", "kind", "time_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    run: SharedRun
    kind: int
    time_ms: int
    def __init__(self, run: _Optional[_Union[SharedRun, _Mapping]] = ..., kind: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "group", "member", "sequence", "sources", "items")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    group: str
    member: int
    sequence: int
    sources: _containers.RepeatedCompositeFieldContainer[SharedSource]
    items: _containers.RepeatedCompositeFieldContainer[SettleItem]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., group: _Optional[str] = ..., member: _Optional[int] = ..., sequence: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SharedSource, _Mapping]]] = ..., items: _Optional[_Iterable[_Union[SettleItem, _Mapping]]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("lost", "lows")
    LOST_FIELD_NUMBER: _ClassVar[int]
    LOWS_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedCompositeFieldContainer[SharedRun]
    lows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lost: _Optional[_Iterable[_Union[SharedRun, _Mapping]]] = ..., lows: _Optional[_Iterable[int]] = ...) -> None: ...

class SharedRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "epoch", "group", "after_topic", "after_partition", "max_count", "forget", "forget_topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    FORGET_TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    epoch: int
    group: str
    after_topic: str
    after_partition: int
    max_count: int
    forget: bool
    forget_topic: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., epoch: _Optional[int] = ..., group: _Optional[str] = ..., after_topic: _Optional[str] = ..., after_partition: _Optional[int] = ..., max_count: _Optional[int] = ..., forget: _Optional[bool] = ..., forget_topic: _Optional[str] = ...) -> None: ...

class SharedSourceStatus(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "low", "cursor", "open", "held", "waiting", "runs", "deliveries_max", "redelivered")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_MAX_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    low: int
    cursor: int
    open: int
    held: int
    waiting: int
    runs: int
    deliveries_max: int
    redelivered: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., low: _Optional[int] = ..., cursor: _Optional[int] = ..., open: _Optional[int] = ..., held: _Optional[int] = ..., waiting: _Optional[int] = ..., runs: _Optional[int] = ..., deliveries_max: _Optional[int] = ..., redelivered: _Optional[int] = ...) -> None: ...

class SharedResponse(_message.Message):
    __slots__ = ("found", "grants", "members", "receiving", "sources", "more")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    grants: int
    members: int
    receiving: int
    sources: _containers.RepeatedCompositeFieldContainer[SharedSourceStatus]
    more: bool
    def __init__(self, found: _Optional[bool] = ..., grants: _Optional[int] = ..., members: _Optional[int] = ..., receiving: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SharedSourceStatus, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("topic", "partition", "offset", "max_bytes", "max_wait_ms", "min_bytes", "epoch", "tags", "validate", "topic_id", "last_epoch", "from_copy", "archives", "where")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_COPY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVES_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    max_bytes: int
    max_wait_ms: int
    min_bytes: int
    epoch: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    validate: bool
    topic_id: str
    last_epoch: int
    from_copy: bool
    archives: bool
    where: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., epoch: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., validate: _Optional[bool] = ..., topic_id: _Optional[str] = ..., last_epoch: _Optional[int] = ..., from_copy: _Optional[bool] = ..., archives: _Optional[bool] = ..., where: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("offset", "next_offset", "high_watermark", "log_start_offset", "epoch", "filtered", "offsets", "last_epoch", "archive_url", "archive_start", "archive_end", "archive_bytes")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_URL_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_START_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_END_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    epoch: int
    filtered: bool
    offsets: _containers.RepeatedScalarFieldContainer[int]
    last_epoch: int
    archive_url: str
    archive_start: int
    archive_end: int
    archive_bytes: int
    def __init__(self, offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., filtered: _Optional[bool] = ..., offsets: _Optional[_Iterable[int]] = ..., last_epoch: _Optional[int] = ..., archive_url: _Optional[str] = ..., archive_start: _Optional[int] = ..., archive_end: _Optional[int] = ..., archive_bytes: _Optional[int] = ...) -> None: ...

class FetchPartition(_message.Message):
    __slots__ = ("handle", "offset", "max_bytes", "epoch", "validate", "topic", "partition", "topic_id", "tags", "at_once", "last_epoch", "watch_above", "where")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_ABOVE_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    offset: int
    max_bytes: int
    epoch: int
    validate: bool
    topic: str
    partition: int
    topic_id: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    at_once: bool
    last_epoch: int
    watch_above: int
    where: str
    def __init__(self, handle: _Optional[int] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., epoch: _Optional[int] = ..., validate: _Optional[bool] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., at_once: _Optional[bool] = ..., last_epoch: _Optional[int] = ..., watch_above: _Optional[int] = ..., where: _Optional[str] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("session", "sequence", "max_bytes", "max_wait_ms", "partitions", "removed", "close", "from_copy", "again")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    FROM_COPY_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    max_bytes: int
    max_wait_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[FetchPartition]
    removed: _containers.RepeatedScalarFieldContainer[int]
    close: bool
    from_copy: bool
    again: bool
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[FetchPartition, _Mapping]]] = ..., removed: _Optional[_Iterable[int]] = ..., close: _Optional[bool] = ..., from_copy: _Optional[bool] = ..., again: _Optional[bool] = ...) -> None: ...

class FetchResult(_message.Message):
    __slots__ = ("handle", "offset", "next_offset", "high_watermark", "log_start_offset", "epoch", "size", "filtered", "offsets", "status", "message", "numbers", "texts", "last_epoch", "deleted_before")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TextsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DELETED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    offset: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    epoch: int
    size: int
    filtered: bool
    offsets: _containers.RepeatedScalarFieldContainer[int]
    status: int
    message: str
    numbers: _containers.ScalarMap[str, int]
    texts: _containers.ScalarMap[str, str]
    last_epoch: int
    deleted_before: int
    def __init__(self, handle: _Optional[int] = ..., offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., size: _Optional[int] = ..., filtered: _Optional[bool] = ..., offsets: _Optional[_Iterable[int]] = ..., status: _Optional[int] = ..., message: _Optional[str] = ..., numbers: _Optional[_Mapping[str, int]] = ..., texts: _Optional[_Mapping[str, str]] = ..., last_epoch: _Optional[int] = ..., deleted_before: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[FetchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[FetchResult, _Mapping]]] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("session", "sequence", "max_bytes", "max_wait_ms", "partitions", "removed", "close", "node", "incarnation", "epoch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    max_bytes: int
    max_wait_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[FetchPartition]
    removed: _containers.RepeatedScalarFieldContainer[int]
    close: bool
    node: str
    incarnation: int
    epoch: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[FetchPartition, _Mapping]]] = ..., removed: _Optional[_Iterable[int]] = ..., close: _Optional[bool] = ..., node: _Optional[str] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class EpochEndRequest(_message.Message):
    __slots__ = ("node", "incarnation", "epoch", "topic", "partition", "topic_id", "of_epoch", "end", "new")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    OF_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: int
    epoch: int
    topic: str
    partition: int
    topic_id: str
    of_epoch: int
    end: int
    new: bool
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., of_epoch: _Optional[int] = ..., end: _Optional[int] = ..., new: _Optional[bool] = ...) -> None: ...

class EpochEndResponse(_message.Message):
    __slots__ = ("epoch", "found", "end_epoch", "end_offset", "log_start_offset", "producers", "next_start", "damaged", "whole_end", "number", "number_known")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    END_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_END_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    found: bool
    end_epoch: int
    end_offset: int
    log_start_offset: int
    producers: bytes
    next_start: int
    damaged: bool
    whole_end: int
    number: int
    number_known: bool
    def __init__(self, epoch: _Optional[int] = ..., found: _Optional[bool] = ..., end_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., producers: _Optional[bytes] = ..., next_start: _Optional[int] = ..., damaged: _Optional[bool] = ..., whole_end: _Optional[int] = ..., number: _Optional[int] = ..., number_known: _Optional[bool] = ...) -> None: ...

class DivergedRequest(_message.Message):
    __slots__ = ("file", "position", "max_bytes", "delete", "after")
    FILE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    file: str
    position: int
    max_bytes: int
    delete: bool
    after: str
    def __init__(self, file: _Optional[str] = ..., position: _Optional[int] = ..., max_bytes: _Optional[int] = ..., delete: _Optional[bool] = ..., after: _Optional[str] = ...) -> None: ...

class DivergedFile(_message.Message):
    __slots__ = ("file", "topic", "partition", "start_offset", "end_offset", "size_bytes", "messages", "first_epoch", "last_epoch", "first_append_ms", "last_append_ms")
    FILE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    file: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int
    messages: int
    first_epoch: int
    last_epoch: int
    first_append_ms: int
    last_append_ms: int
    def __init__(self, file: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., messages: _Optional[int] = ..., first_epoch: _Optional[int] = ..., last_epoch: _Optional[int] = ..., first_append_ms: _Optional[int] = ..., last_append_ms: _Optional[int] = ...) -> None: ...

class DivergedResponse(_message.Message):
    __slots__ = ("files", "more")
    FILES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[DivergedFile]
    more: bool
    def __init__(self, files: _Optional[_Iterable[_Union[DivergedFile, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class RepairRequest(_message.Message):
    __slots__ = ("node", "topic", "partition", "topic_id", "start", "end", "max_bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    node: str
    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    max_bytes: int
    def __init__(self, node: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class RepairResponse(_message.Message):
    __slots__ = ("end_offset", "following", "epoch")
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    end_offset: int
    following: bytes
    epoch: int
    def __init__(self, end_offset: _Optional[int] = ..., following: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class OffsetsRequest(_message.Message):
    __slots__ = ("topic", "partition", "time_ms", "by_time", "count", "from_offset", "to_offset", "epoch", "topic_id", "place", "place_offset", "place_message_id", "place_tags", "place_epoch", "number", "number_offset", "by_number", "at_number")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    BY_TIME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PLACE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PLACE_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_TAGS_FIELD_NUMBER: _ClassVar[int]
    PLACE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BY_NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    time_ms: int
    by_time: bool
    count: bool
    from_offset: int
    to_offset: int
    epoch: int
    topic_id: str
    place: bool
    place_offset: int
    place_message_id: int
    place_tags: _containers.RepeatedScalarFieldContainer[str]
    place_epoch: int
    number: bool
    number_offset: int
    by_number: bool
    at_number: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., time_ms: _Optional[int] = ..., by_time: _Optional[bool] = ..., count: _Optional[bool] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., topic_id: _Optional[str] = ..., place: _Optional[bool] = ..., place_offset: _Optional[int] = ..., place_message_id: _Optional[int] = ..., place_tags: _Optional[_Iterable[str]] = ..., place_epoch: _Optional[int] = ..., number: _Optional[bool] = ..., number_offset: _Optional[int] = ..., by_number: _Optional[bool] = ..., at_number: _Optional[int] = ...) -> None: ...

class OffsetsResponse(_message.Message):
    __slots__ = ("earliest", "latest", "log_end_offset", "offset", "count", "count_exact", "epoch", "place", "place_reason", "end_unknown", "number", "number_known", "offset_known", "latest_number", "latest_number_known")
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNT_EXACT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PLACE_REASON_FIELD_NUMBER: _ClassVar[int]
    END_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_KNOWN_FIELD_NUMBER: _ClassVar[int]
    LATEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LATEST_NUMBER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    earliest: int
    latest: int
    log_end_offset: int
    offset: int
    count: int
    count_exact: bool
    epoch: int
    place: int
    place_reason: str
    end_unknown: bool
    number: int
    number_known: bool
    offset_known: bool
    latest_number: int
    latest_number_known: bool
    def __init__(self, earliest: _Optional[int] = ..., latest: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., offset: _Optional[int] = ..., count: _Optional[int] = ..., count_exact: _Optional[bool] = ..., epoch: _Optional[int] = ..., place: _Optional[int] = ..., place_reason: _Optional[str] = ..., end_unknown: _Optional[bool] = ..., number: _Optional[int] = ..., number_known: _Optional[bool] = ..., offset_known: _Optional[bool] = ..., latest_number: _Optional[int] = ..., latest_number_known: _Optional[bool] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "offset", "end_offset", "message_id", "key_kind", "key", "tags", "max_messages", "max_bytes", "max_searched_bytes", "epoch", "where")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEARCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    offset: int
    end_offset: int
    message_id: int
    key_kind: int
    key: bytes
    tags: _containers.RepeatedScalarFieldContainer[str]
    max_messages: int
    max_bytes: int
    max_searched_bytes: int
    epoch: int
    where: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., message_id: _Optional[int] = ..., key_kind: _Optional[int] = ..., key: _Optional[bytes] = ..., tags: _Optional[_Iterable[str]] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_searched_bytes: _Optional[int] = ..., epoch: _Optional[int] = ..., where: _Optional[str] = ...) -> None: ...

class FindResponse(_message.Message):
    __slots__ = ("offsets", "append_ms", "offset", "next_offset", "done", "read_bytes", "skipped_bytes", "first_ms", "last_ms", "damage", "log_start_offset", "high_watermark", "epoch", "unreachable")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    append_ms: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    next_offset: int
    done: bool
    read_bytes: int
    skipped_bytes: int
    first_ms: int
    last_ms: int
    damage: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    log_start_offset: int
    high_watermark: int
    epoch: int
    unreachable: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    def __init__(self, offsets: _Optional[_Iterable[int]] = ..., append_ms: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., done: _Optional[bool] = ..., read_bytes: _Optional[int] = ..., skipped_bytes: _Optional[int] = ..., first_ms: _Optional[int] = ..., last_ms: _Optional[int] = ..., damage: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., epoch: _Optional[int] = ..., unreachable: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "offset", "whole", "begin", "again")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    offset: int
    whole: bool
    begin: bool
    again: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., offset: _Optional[int] = ..., whole: _Optional[bool] = ..., begin: _Optional[bool] = ..., again: _Optional[bool] = ...) -> None: ...

class DamagedRange(_message.Message):
    __slots__ = ("start", "end", "file", "reason", "found_ms")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FOUND_MS_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    file: str
    reason: str
    found_ms: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., file: _Optional[str] = ..., reason: _Optional[str] = ..., found_ms: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("damage", "running", "begun_ms", "verified_bytes", "total_bytes", "skipped_bytes", "unverified", "repaired")
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    damage: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    running: bool
    begun_ms: int
    verified_bytes: int
    total_bytes: int
    skipped_bytes: int
    unverified: str
    repaired: int
    def __init__(self, damage: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ..., running: _Optional[bool] = ..., begun_ms: _Optional[int] = ..., verified_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., skipped_bytes: _Optional[int] = ..., unverified: _Optional[str] = ..., repaired: _Optional[int] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("topic", "partition", "placement_version", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    placement_version: int
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., placement_version: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class SealResponse(_message.Message):
    __slots__ = ("end_offset", "producers", "next_number", "number_known")
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    end_offset: int
    producers: bytes
    next_number: int
    number_known: bool
    def __init__(self, end_offset: _Optional[int] = ..., producers: _Optional[bytes] = ..., next_number: _Optional[int] = ..., number_known: _Optional[bool] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "start_offset", "producers", "placement_version", "number", "number_known")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    start_offset: int
    producers: bytes
    placement_version: int
    number: int
    number_known: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., start_offset: _Optional[int] = ..., producers: _Optional[bytes] = ..., placement_version: _Optional[int] = ..., number: _Optional[int] = ..., number_known: _Optional[bool] = ...) -> None: ...

class AdoptResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HandOverRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class HandOverResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ArchiveRequest(_message.Message):
    __slots__ = ("action", "topic", "partition", "start_offset", "topic_id", "after_topic", "after_partition", "after_offset")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    action: int
    topic: str
    partition: int
    start_offset: int
    topic_id: str
    after_topic: str
    after_partition: int
    after_offset: int
    def __init__(self, action: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., topic_id: _Optional[str] = ..., after_topic: _Optional[str] = ..., after_partition: _Optional[int] = ..., after_offset: _Optional[int] = ...) -> None: ...

class ArchivedBlock(_message.Message):
    __slots__ = ("topic", "partition", "start_offset", "end_offset", "first_append_ms", "last_append_ms", "messages", "zip_bytes", "url", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ZIP_BYTES_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    first_append_ms: int
    last_append_ms: int
    messages: int
    zip_bytes: int
    url: str
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., first_append_ms: _Optional[int] = ..., last_append_ms: _Optional[int] = ..., messages: _Optional[int] = ..., zip_bytes: _Optional[int] = ..., url: _Optional[str] = ..., topic_id: _Optional[str] = ...) -> None: ...

class ArchiveResponse(_message.Message):
    __slots__ = ("blocks", "more", "batches", "problem")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[ArchivedBlock]
    more: bool
    batches: int
    problem: str
    def __init__(self, blocks: _Optional[_Iterable[_Union[ArchivedBlock, _Mapping]]] = ..., more: _Optional[bool] = ..., batches: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class BlocksRequest(_message.Message):
    __slots__ = ("topic", "from_topic", "from_partition", "from_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FROM_TOPIC_FIELD_NUMBER: _ClassVar[int]
    FROM_PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    from_topic: str
    from_partition: int
    from_offset: int
    def __init__(self, topic: _Optional[str] = ..., from_topic: _Optional[str] = ..., from_partition: _Optional[int] = ..., from_offset: _Optional[int] = ...) -> None: ...

class HeldBlock(_message.Message):
    __slots__ = ("start_offset", "end_offset", "known", "first_append_ms", "last_append_ms", "messages", "open", "archived", "archive_bytes", "elsewhere")
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FIRST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    start_offset: int
    end_offset: int
    known: bool
    first_append_ms: int
    last_append_ms: int
    messages: int
    open: bool
    archived: bool
    archive_bytes: int
    elsewhere: bool
    def __init__(self, start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., known: _Optional[bool] = ..., first_append_ms: _Optional[int] = ..., last_append_ms: _Optional[int] = ..., messages: _Optional[int] = ..., open: _Optional[bool] = ..., archived: _Optional[bool] = ..., archive_bytes: _Optional[int] = ..., elsewhere: _Optional[bool] = ...) -> None: ...

class HeldLog(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "directory", "state", "reason", "whole", "blocks")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    directory: str
    state: str
    reason: str
    whole: bool
    blocks: _containers.RepeatedCompositeFieldContainer[HeldBlock]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., directory: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., whole: _Optional[bool] = ..., blocks: _Optional[_Iterable[_Union[HeldBlock, _Mapping]]] = ...) -> None: ...

class BlocksResponse(_message.Message):
    __slots__ = ("group", "node", "master", "logs", "more", "next_topic", "next_partition", "next_offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOPIC_FIELD_NUMBER: _ClassVar[int]
    NEXT_PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    node: str
    master: bool
    logs: _containers.RepeatedCompositeFieldContainer[HeldLog]
    more: bool
    next_topic: str
    next_partition: int
    next_offset: int
    def __init__(self, group: _Optional[str] = ..., node: _Optional[str] = ..., master: _Optional[bool] = ..., logs: _Optional[_Iterable[_Union[HeldLog, _Mapping]]] = ..., more: _Optional[bool] = ..., next_topic: _Optional[str] = ..., next_partition: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...
