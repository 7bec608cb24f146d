"""Settings of one broker process: names, paths, addresses and bounds.

What must be equal on every broker is kept in ZooKeeper with the topics (``vq.model.TopicSettings``)
and is not here. The entry point reads flags, environment and files.
"""

import enum
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vq import limits
from vq.bounds import check_between
from vq.broker.base.daily import DailyTime
from vq.coordination.tree.acls import checked_auth
from vq.errors import InvalidArgument
from vq.model import (
    ARCHIVE_PLACES,
    Address,
    check_archive_places,
    check_host,
    check_name,
    check_pool,
    choice_of,
)
from vq.security.certificates import parse_certificate_rules
from vq.security.tls import ClientCertificates, Tls, TlsMode, check_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds of connections. Defaults come from ``vq.limits``; tests make them small.

    Attributes:
        connections_max: Open connections at once.
        per_address_max: Of them from one address.
        before_hello_max: Of them that have not said HELLO yet.
        before_hello_per_address_max: Of those from one address.
        requests_in_flight_max: Requests of one connection without an answer; told in HELLO. Reads
            (GET, FETCH) are counted apart, against the same number.
        put_bytes_in_flight_max: Bytes of PUTs of one connection that wait, for a topic to be
            looked up, a log to be opened or a flush, before reading from it pauses. A request of
            any kind with a header above 4 KiB counts with it.
        put_bytes_waiting_max: The same of all connections; a PUT for which there is no room waits.
        requests_waiting_max: Requests of all connections without an answer, reads not counted;
            one for which there is no room waits.
        reads_waiting_max: Reads of all connections without an answer; one more is refused.
        fetch_state_bytes_max: What is remembered for the fetch sessions of one connection.
        fetch_state_bytes_total_max: The same for all connections.
        gathered_bytes_max: Bytes of incomplete frames, with the room for the rest of large ones,
            and of requests that wait for a turn or for room, of all connections; one that keeps
            most is closed as ``Busy``.
        write_buffer_bytes: What may wait to be taken by a peer before reading from it pauses.
        new_per_s: Connections that begin in a second, behind the first ones; a TLS handshake counts
            as several. Others wait, and addresses take turns.
        refused_per_s: Refused requests of one address, or of a user at it, in a second, behind the
            first ones; whoever brings more is read more slowly. A refused request counts more if it
            is large, and so do bytes of requests that never are whole; see ``owing``.
        hello_timeout_s, frame_timeout_s, write_timeout_s, idle_timeout_s: See ``vq.limits``.
        sweep_interval_s: How often deadlines are looked at; each may be late by so much.
    """

    connections_max: int = limits.CONNECTIONS_MAX
    per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX
    before_hello_max: int = limits.CONNECTIONS_BEFORE_HELLO_MAX
    before_hello_per_address_max: int = limits.CONNECTIONS_BEFORE_HELLO_PER_ADDRESS_MAX
    requests_in_flight_max: int = limits.REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX
    put_bytes_in_flight_max: int = limits.PUT_BYTES_IN_FLIGHT_PER_CONNECTION_MAX
    put_bytes_waiting_max: int = 256 * limits.MIB
    requests_waiting_max: int = 65_536
    reads_waiting_max: int = 65_536
    fetch_state_bytes_max: int = limits.FETCH_STATE_BYTES_PER_CONNECTION_MAX
    fetch_state_bytes_total_max: int = 256 * limits.MIB
    gathered_bytes_max: int = 256 * limits.MIB
    write_buffer_bytes: int = 1 * limits.MIB
    new_per_s: float = 500.0
    refused_per_s: float = 200.0
    hello_timeout_s: float = limits.HELLO_TIMEOUT_S
    frame_timeout_s: float = limits.FRAME_TIMEOUT_S
    write_timeout_s: float = limits.WRITE_TIMEOUT_S
    idle_timeout_s: float = limits.IDLE_TIMEOUT_S
    sweep_interval_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"{name} = {getattr(self, name)} must be above 0")


class Authorization(enum.StrEnum):
    """What a broker does about the rules of access (``vq.security.rules``)."""

    OFF = "off"  # everybody may do everything that users do
    PERMISSIVE = "permissive"  # the same, and what they would refuse is logged and counted
    ENFORCED = "enforced"


class AuthenticationMode(enum.StrEnum):
    """Whether clients show a broker who they are."""

    LOOPBACK = "loopback"  # nobody does, and other machines are not served
    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"

    @property
    def asks(self) -> bool:
        """Whether clients may show that."""
        return self in {AuthenticationMode.OPTIONAL, AuthenticationMode.REQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process. Checked once, here.

    Attributes:
        data: Directory of the logs; made when missing, locked while the broker runs. Several of
            them, on disks of their own: the first one, the main one, also has what is of the node
            as a whole; a new log goes to the one with the most room.
        without_data: Ids of data directories that the node goes on without, although they belong to
            it: lost ones. For one start.
        cluster: The cluster it belongs to; with its root in ZooKeeper it is one tree.
        group: Its broker group, the container that partitions are given to.
        node: Its name inside the group; group and node never change for a data directory.
        host: Address to listen on. Loopback unless told: nothing is open to others by default.
        port: Port to listen on; 0 takes a free one.
        advertised: What clients are told to connect to; None means where it listens.
        metrics_host: Address on which metrics and health are served over HTTP. Whoever reaches it
            reads them.
        metrics_port: Its port; 0: they are not served. None takes 8124, or the next free one of a
            hundred, so that several nodes on one machine each get their own.
        zookeeper: ``host:port,host:port``.
        zookeeper_root: Path under which clusters live.
        zookeeper_auth: ``name:password`` by which ZooKeeper knows this node, where the tree is
            secured; "": it is nobody.
        session_timeout_s: ZooKeeper session; how long a dead broker stays registered.
        pool: Which topics' partitions this group may be given: those of the same pool. None is the
            common pool, and leaves one that ZooKeeper has for the group; ``common`` does not.
        rack: Where the machine of this node is, for consumers that read from the nearest node; "":
            not told.
        accept_data_loss: Lead the group although its record names another data directory: what was
            acknowledged there and is not here is lost. For one start, after a disk was lost.
        archive_places: URLs at and below which it keeps archives; what a topic's ``archive_to``
            names outside of them is not opened. A scheme with ``://`` allows all of that kind.
        adopt_archives: Its data directory was copied or moved, and the original is gone: the
            archives at URLs are its own from now on. For one start.
        labels: Free-form facts for operators, such as a rack, written to its group in ZooKeeper;
            none leave what is there.
        block_bytes: Size of one block file.
        disk_warn: Share of the disk in use at which a warning is logged.
        disk_relieve: Share at which messages are deleted early, of topics that allow it
            (``retention_early_hours``).
        disk_refuse: Share at which PUTs are refused as ``DiskFull``.
        disk_resume: Share below which PUTs are taken again; below ``disk_refuse``, so that it does
            not flap. The other steps end as far below their shares.
        disk_stop: Share at which a copy takes nothing more from its master.
        disk_interval_s: How often the disk is looked at.
        load_interval_s: How often load is measured, and published to ZooKeeper if it has changed;
            at most ``limits.LOAD_INTERVAL_S_MAX``.
        refresh_interval_s: How often topics are read again even if no watch fired.
        seal_timeout_s: A partition sealed for a move that was not completed takes appends again
            after this time.
        start_timeout_s: How long to wait for ZooKeeper when starting.
        hand_over_timeout_s: A master that hands over its group holds PUTs for at most this time,
            and what ZooKeeper takes; then it goes on as master. A stop waits for at most half of
            ``stop_timeout_s``.
        stop_timeout_s: A graceful stop ends within this time whatever happens.
        catch_up_bytes_per_s: How fast this node copies what it lacks of a master's logs, at most:
            0: no limit; otherwise at least 1 MiB. A node in sync is not slowed.
        verify_bytes_per_s: How fast a partition is verified on request, at most.
        scrub_bytes_per_s: How fast all that is stored is verified beside other work, at most; 0: it
            is not.
        scrub_interval_s: From the begin of such a pass to that of the next one, at least.
        key_index_bytes_per_s: How fast closed blocks are read to make key indexes for searches, at
            most; 0: no indexes are made.
        retention_interval_s: How often the master of a group looks for messages that its topics
            keep no longer.
        archive_at: When the daily run of the archive is due, "HH:MM" by the local clock of the node
            that makes it.
        grace_interval_s: How often the time of deleted topics is counted, and those are removed
            whose time is up.
        trash_keep_s: How long data of a topic that was removed lie in the trash, >= 0.
        tls: The files of TLS (``tls_certificate``, ``tls_key``, ``tls_ca``), for clients, other
            nodes and metrics: the broker serves nothing without TLS then. None: plain TCP. Other
            nodes of its cluster are reached with the same files, so all have them, or none.
        tls_mode: ``accepted``, ``preferred`` or ``required``, see ``TlsMode``: the steps by which
            the brokers of a running cluster change from plain TCP to TLS.
        tls_client_certificates: ``none``, ``optional`` or ``required``: whether clients and other
            nodes must show a certificate that an authority of ``tls_ca`` has signed.
        plaintext: Serve other machines although there is no TLS: without it, such a broker does not
            start.
        zookeeper_tls: The files of TLS to ZooKeeper; None: plain TCP.
        metrics_client_certificates: The same for those that read metrics and health.
        authorization: Whether the rules of access decide what users may do.
        super_users: Users who may do everything, whatever the rules say.
        rules_age_max_s: When the rules were read so long ago and cannot be read again, everything
            is refused that they would decide.
        connections: Bounds of connections.
        authentication: ``loopback``: clients are anonymous, and a broker that other machines reach
            does not start, unless they must show certificates. ``off``: clients are anonymous.
            ``optional``: those with a user prove who they are, others are anonymous. ``required``:
            every client has a user. Nodes and operators' commands prove that they know the
            cluster's secret in any case.
        certificate_users: Rules that say which user a TLS certificate of a client names, such as
            ``DNS:*.clients.example=*``; see ``vq.security.certificates``. None: certificates name
            no users.
    """

    data: Path | tuple[Path, ...]
    without_data: tuple[str, ...] = ()
    cluster: str = "default"
    group: str
    node: str
    host: str = "127.0.0.1"
    port: int = 8123
    advertised: Address | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    zookeeper: str = "127.0.0.1:2181"
    zookeeper_root: str = "/vq"
    zookeeper_auth: str = field(default="", repr=False)
    session_timeout_s: float = 10.0
    pool: str | None = None
    rack: str = ""
    accept_data_loss: bool = False
    archive_places: tuple[str, ...] = ARCHIVE_PLACES
    adopt_archives: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    block_bytes: int = 128 * limits.MIB
    disk_warn: float = 0.75
    disk_relieve: float = 0.85
    disk_refuse: float = 0.90
    disk_resume: float = 0.88
    disk_stop: float = 0.97
    disk_interval_s: float = 1.0
    load_interval_s: float = limits.LOAD_INTERVAL_S_DEFAULT
    refresh_interval_s: float = 30.0
    seal_timeout_s: float = 30.0
    start_timeout_s: float = 30.0
    hand_over_timeout_s: float = 2.0
    stop_timeout_s: float = 10.0
    catch_up_bytes_per_s: int = 0
    verify_bytes_per_s: int = 32 * limits.MIB
    scrub_bytes_per_s: int = 4 * limits.MIB
    scrub_interval_s: float = 604_800.0
    key_index_bytes_per_s: int = 32 * limits.MIB
    retention_interval_s: float = 60.0
    archive_at: str = "02:00"
    grace_interval_s: float = 60.0
    trash_keep_s: float = 3_600.0
    tls: Tls | None = None
    plaintext: bool = False
    zookeeper_tls: Tls | None = None
    tls_mode: TlsMode = TlsMode.REQUIRED
    tls_client_certificates: ClientCertificates = ClientCertificates.NONE
    metrics_client_certificates: ClientCertificates = ClientCertificates.NONE
    authorization: Authorization = Authorization.OFF
    super_users: tuple[str, ...] = ()
    rules_age_max_s: float = 300.0
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    authentication: AuthenticationMode = AuthenticationMode.LOOPBACK
    certificate_users: tuple[str, ...] = ()

    @property
    def directories(self) -> tuple[Path, ...]:
        """The data directories, the main one first."""
        return self.data if isinstance(self.data, tuple) else (self.data,)

    def __post_init__(self) -> None:
        if not self.directories or len(set(self.directories)) < len(self.directories):
            raise InvalidArgument(
                f"data = {', '.join(map(str, self.directories))}: give one directory, or several "
                "different ones"
            )
        check_name("cluster", self.cluster)
        checked_auth(self.zookeeper_auth)
        check_name("group", self.group)
        check_name("node", self.node)
        check_pool(self.pool)
        object.__setattr__(self, "tls_mode", choice_of(TlsMode, "tls_mode", self.tls_mode))
        for name in ("tls_client_certificates", "metrics_client_certificates"):
            asked = choice_of(ClientCertificates, name, getattr(self, name))
            object.__setattr__(self, name, asked)
            check_asked(name, asked, self.tls)
        check_archive_places(self.archive_places)
        if self.rack:
            check_name("rack", self.rack)
        DailyTime.parse(self.archive_at)
        for user in self.super_users:
            check_name("super_users", user)
        mode = choice_of(AuthenticationMode, "authentication", self.authentication)
        object.__setattr__(self, "authentication", mode)
        if parse_certificate_rules(self.certificate_users) and not mode.asks:
            raise InvalidArgument(
                f"certificate_users says whose certificates are, and authentication = '{mode}' "
                "asks nobody: set authentication to optional or required"
            )
        obeyed = choice_of(Authorization, "authorization", self.authorization)
        object.__setattr__(self, "authorization", obeyed)
        check_host(self.host)
        check_host(self.metrics_host)
        if self.advertised is not None:
            check_host(self.advertised.host)
        _check_reachable(self.host, self.advertised)
        check_between("port", self.port, 0, 65_535)
        if self.metrics_port is not None:
            check_between("metrics_port", self.metrics_port, 0, 65_535)
        if self.metrics_port and (self.metrics_port, self.metrics_host) == (self.port, self.host):
            raise InvalidArgument(
                f"metrics_port = {self.metrics_port} is the port of the broker itself; choose "
                "another one for one of them"
            )
        if not 0 < self.disk_resume <= self.disk_refuse <= 1 or not 0 < self.disk_warn <= 1:
            raise InvalidArgument(
                f"disk_warn = {self.disk_warn}, disk_resume = {self.disk_resume}, disk_refuse = "
                f"{self.disk_refuse}: each is a share in (0, 1], and resume is at most refuse"
            )
        for name in ("disk_relieve", "disk_stop"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidArgument(f"{name} = {getattr(self, name)} is not a share in (0, 1]")
        if self.block_bytes < 2 * limits.BATCH_BYTES_MAX:
            raise InvalidArgument(
                f"block_bytes = {self.block_bytes} is below {2 * limits.BATCH_BYTES_MAX}, "
                "two of the largest batches"
            )
        for name in (
            "session_timeout_s",
            "disk_interval_s",
            "load_interval_s",
            "refresh_interval_s",
            "seal_timeout_s",
            "start_timeout_s",
            "hand_over_timeout_s",
            "stop_timeout_s",
            "verify_bytes_per_s",
            "scrub_interval_s",
            "retention_interval_s",
            "grace_interval_s",
            "rules_age_max_s",
        ):
            if getattr(self, name) <= 0:
                raise InvalidArgument(f"{name} = {getattr(self, name)} must be above 0")
        if self.catch_up_bytes_per_s != 0 and self.catch_up_bytes_per_s < limits.MIB:
            raise InvalidArgument(
                f"catch_up_bytes_per_s = {self.catch_up_bytes_per_s} is below {limits.MIB}: a node "
                "that slow may never catch up; 0 means no limit"
            )
        for name in ("scrub_bytes_per_s", "key_index_bytes_per_s", "trash_keep_s"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} = {getattr(self, name)} is below 0")
        if self.load_interval_s > limits.LOAD_INTERVAL_S_MAX:
            raise InvalidArgument(
                f"load_interval_s = {self.load_interval_s} is above {limits.LOAD_INTERVAL_S_MAX}; "
                "producers would not know the load"
            )


def _check_reachable(host: str, advertised: Address | None) -> None:
    """Refuse to tell clients an address that means every address of a machine.

    A client that connects to ``0.0.0.0`` reaches its own machine.
    """
    if advertised is not None and is_every_address(advertised.host):
        raise InvalidArgument(
            f"advertised = {str(advertised)!r} names no machine; give the host name or address "
            "that clients connect to"
        )
    if advertised is None and is_every_address(host):
        raise InvalidArgument(
            f"host = {host!r} listens on every address and names none that clients could connect "
            "to; give the one to connect to, too: `--advertised HOST:PORT`"
        )


def is_every_address(host: str) -> bool:
    """Return whether a server that listens there listens on all addresses of its machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
