"""Shared by the producers and consumers of one factory: coordination, routes, connections, ids.

Loop-bound: everything runs on the loop that called ``start``. Only ``routes`` and ``take_ids`` may
be used by any thread.
"""

import asyncio
import contextlib
import contextvars
import itertools
import random
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from vq import limits
from vq.client.broker_connections import BrokerConnections, ConnectFailures
from vq.client.broker_loads import BrokerLoads
from vq.client.config import MessageFactoryConfig
from vq.client.departures import Departures
from vq.client.exits import FORKED
from vq.client.ids import IdGenerator, IdsUsedUp
from vq.client.loop_calls import call_soon
from vq.client.outages import Outages
from vq.client.shared_calls import SHUT_DOWN, SharedCalls, shared
from vq.clock import Clock, SystemClock
from vq.coordination.brokers.secret import read_secret
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.leases.slots import IdMaker, SlotLease
from vq.coordination.topics.cluster_settings import create_missing_topic, settings_of_missing_topic
from vq.coordination.topics.reserved_topics import INTERNAL_SETTINGS
from vq.coordination.topics.routes import Master, Routes, RouteWatcher
from vq.coordination.topics.topics import TopicExists, create_topic
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.coordination.tree.paths import BROKERS
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    NotAuthenticated,
    NotAuthorized,
    NotMaster,
    OffsetOutOfRange,
    OutcomeUnknown,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
    VqError,
)
from vq.freed_memory import keep_freed_memory
from vq.log_lines import get_logger
from vq.model import (
    Address,
    TopicOrigin,
    TopicPartition,
    TopicSettings,
    check_host,
    check_name,
)
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.format import COMMANDS, Access
from vq.remoting.frames import Buffer
from vq.remoting.login import MEMBER_LOGIN, Login
from vq.remoting.membership import NONCE_BYTES, OPERATOR
from vq.remoting.transport import Network, TcpNetwork
from vq.security.tls import TlsContexts
from vq.tasks import begin_task

if TYPE_CHECKING:
    from vq.client.reading.zips import Zips

logger = get_logger(__name__)
#: Freed memory that the process keeps: what one partition of a consumer is sent at most, twice.
_KEPT_BYTES: Final = 2 * limits.FETCH_BYTES_MAX

#: An id that is not to be foreseen is one of the next 2 to the power of so many.
UNFORESEEN_BITS: Final = 8


class ClusterClient(IdMaker):
    """A client's view of a cluster, and its connections to brokers and ZooKeeper.

    Args:
        operator: It is of an operator's command, which shows brokers that it knows the cluster's
            secret where they take no anonymous clients, or refuse one a right, if the configuration
            names no user.

    Attributes:
        login: Who this is to brokers.
        unreachable: Brokers to which the last attempt to connect failed. A cut connection is no
            failed attempt. Any thread may read it.
        loop: The loop that called ``start``; None before.
        context: That in which the factory was opened. What serves all callers runs in copies of it,
            and so do the application's callbacks and listeners.
        forked: This is the child of a fork: loop and connections belong to the parent.
        listeners: Told of changes, see ``on_change``.
    """

    def __init__(
        self,
        config: MessageFactoryConfig,
        *,
        coordinator: Coordinator,
        network: Network,
        clock: Clock,
        rng: random.Random,
        operator: bool = False,
    ) -> None:
        self.config = config
        self.login = MEMBER_LOGIN if operator and not config.user else config.login()
        self.coordinator = coordinator
        self.offsets = ZooKeeperOffsets(coordinator)
        self.clock = clock
        self.rng = rng
        self.fetch_numbers = itertools.count(1)  # of the fetch sessions of its consumers
        self.network = network
        self.departures = Departures(coordinator, rng)
        self.loads = BrokerLoads(coordinator, clock)
        self._zips: Zips | None = None
        self.watcher = RouteWatcher(coordinator)
        self.slot = SlotLease(
            coordinator,
            clock,
            holder=config.client_id,
            rng=rng,
            maker=self,
        )
        self._slot_task: asyncio.Task[int] | None = None
        self._ids: IdGenerator | None = None
        # True: ids can be made, since a slot is leased and its mark is ahead. Also true after the
        # coordinator gave up: then ``take_ids`` raises, and senders see the error.
        self.ids_ready = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.forked = False
        self.context = contextvars.copy_context()
        self._mark_asked = False  # a new mark is requested, or cannot come; under the lock
        self._ids_lock = threading.Lock()
        self.connections = BrokerConnections(
            config,
            network,
            rng,
            login=self.login,
            prove=self._prove,
            on_change=self.changed,
            context=self.context,
        )
        self.unreachable: Mapping[Address, ConnectFailures] = self.connections.unreachable
        self._masters: Mapping[str, Master] = {}  # of the last snapshot
        # Of routes, by partition: where the span begins that has no end yet, and its master.
        self._open_spans: tuple[Routes, dict[TopicPartition, tuple[int, tuple[Address, int]]]] = (
            Routes(),
            {},
        )
        self.listeners: list[Callable[[], None]] = []
        self._calls = SharedCalls(self.context)
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._given_up = ""  # why the coordinator gave up for good

    async def start(self) -> None:
        """Open the session with ZooKeeper.

        Raises:
            CoordinationError: ZooKeeper gives no answer within ``config.start_timeout_s``.
        """
        self.loop = asyncio.get_running_loop()
        await self.coordinator.start(self.config.start_timeout_s)
        self.watcher.on_change(self._routes_changed)
        outages = Outages(self.config.zookeeper, self.clock)
        self.coordinator.add_listener(outages.session_changed)
        self.coordinator.add_listener(self._session_changed)

    def check_parent(self) -> None:
        """Raise ``InvalidState`` in the child of a fork, where nothing here can go on."""
        if self.forked:
            raise InvalidState(FORKED)

    def check_loop(self) -> None:
        """Raise if a coroutine of the application runs on another loop than that of ``start``.

        Tasks and futures of that loop cannot be awaited on another one: some waits would never end.

        Raises:
            InvalidState: It does, or this is the child of a fork.
        """
        self.check_parent()
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidState(
                "this factory belongs to the event loop on which it was opened, and this is "
                "another one; open a factory of vq.aio in this loop, or use vq.MessageFactory (the "
                "blocking API), which any thread may use"
            )

    async def close(self) -> None:
        """Close every connection, release the slot, end the session. May be called again.

        If the caller is cancelled, it goes on: nothing else would end the session.
        """
        if self._closing is None:
            self._closing = begin_task(self._close())
        await asyncio.shield(self._closing)

    @property
    def _closed(self) -> bool:
        return self._closing is not None

    async def _close(self) -> None:
        tasks: list[asyncio.Task[Any]] = [
            *self.connections.attempts(),
            *self._calls.tasks(),
            *self._refreshing.values(),
        ]
        if self._slot_task is not None and not self._slot_task.done():
            tasks.append(self._slot_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.departures.close()
        self.connections.close()
        if self._zips is not None:
            self._zips.close()
        await self.watcher.close()
        if self._slot_task is not None:
            await self.slot.stop()
        await self.coordinator.close()

    @property
    def zips(self) -> "Zips":
        """The archives that this client reads by itself."""
        # Few clients need it, and what of the store it uses.
        from vq.client.reading.zips import Zips

        if self._zips is None:
            self._zips = Zips(self.clock, self.config.archive_places)
        return self._zips

    # Routes -----------------------------------------------------------------------------------
    @property
    def routes(self) -> Routes:
        """The latest snapshot; immutable, so any thread may read it."""
        return self.watcher.snapshot

    async def track(self, topic: str) -> Routes:
        """Read a topic's routes, watch them from now on, and return all routes.

        Raises:
            InvalidArgument: The name is not valid for a topic.
            UnknownTopic: There is no topic of that name.
        """
        check_name("topic", topic)
        # Concurrent callers share one read: a thousand first sends cost one.
        await self._calls.share(self._track, topic)
        return self.watcher.snapshot

    async def _track(self, topic: str) -> None:
        try:
            await self.watcher.track(topic)
        except UnknownTopic as error:
            await self.check_cluster(error, topic)
            raise

    async def check_cluster(
        self, error: VqError | None, topic: str = "", kind: type[VqError] = UnknownTopic
    ) -> None:
        """Say that there is no such cluster, if that is why something is not there.

        Args:
            error: What is not there; None: a list is empty.
            topic: The topic that is not there, if it is known.
            kind: The class of what is raised.

        Raises:
            VqError: No broker has ever registered in the cluster.
        """
        if await self.coordinator.exists(BROKERS) is None:
            so = f", so there is no topic {topic!r}" if topic else ""
            raise kind(
                f"there is no cluster {self.config.cluster!r} at {self.config.zookeeper}{so}: no "
                "broker has ever registered there",
                hint="name it with MessageFactoryConfig(cluster=...) or VQ_CLUSTER; `vq cluster "
                f"status --cluster {self.config.cluster}` says which clusters there are",
            ) from error

    async def track_or_create(self, topic: str) -> Routes:
        """Like ``track``, but a missing topic is created if the settings of the cluster allow it.

        Raises:
            InvalidArgument: The name is not valid for a topic.
            UnknownTopic: There is no topic of that name, and it may not be created.
            CoordinationError: It may be created, and no broker group can take its partitions.
        """
        with contextlib.suppress(UnknownTopic):
            return await self.track(topic)
        await self._calls.share(self._create, topic)
        return await self.track(topic)

    async def _create(self, topic: str) -> None:
        try:
            await create_missing_topic(self.coordinator, topic, self.origin(auto=True))
        except UnknownTopic as error:
            await self.check_cluster(error, topic)
            raise

    async def track_internal(self, topic: str) -> Routes:
        """Track the topic of delayed messages, or of transactions; it is made if there is none."""
        with contextlib.suppress(UnknownTopic):
            return await self.track(topic)
        await self._calls.share(self._create_internal, topic)
        return await self.track(topic)

    async def _create_internal(self, topic: str) -> None:
        with contextlib.suppress(TopicExists):
            await create_topic(
                self.coordinator, topic, INTERNAL_SETTINGS, origin=self.origin(auto=True)
            )

    def origin(self, *, auto: bool = False) -> TopicOrigin:
        """Return the origin of a topic that this client creates now."""
        return TopicOrigin(
            client=self.config.client_id,
            host=socket.gethostname(),
            time_ms=self.clock.wall_ms(),
            auto=auto,
        )

    async def track_or_see(self, topic: str) -> TopicSettings | None:
        """Like ``track``, for a topic that may be missing.

        Returns:
            None if the topic is tracked. If it is missing, the settings with which
            ``track_or_create`` creates it.

        Raises:
            InvalidArgument: The name is not valid for a topic.
            UnknownTopic: There is no topic of that name, and it may not be created.
        """
        with contextlib.suppress(UnknownTopic):
            await self.track(topic)
            return None
        return await self._calls.share(self._settings_of_missing, topic)

    async def _settings_of_missing(self, topic: str) -> TopicSettings:
        try:
            return await settings_of_missing_topic(self.coordinator, topic)
        except UnknownTopic as error:
            await self.check_cluster(error, topic)
            raise

    def read_copies(self) -> None:
        """Have the routes name the copies of each master, too, from now on."""
        self.watcher.read_copies()

    def refresh(self, topic: str, error: VqError | None = None) -> None:
        """Read a topic's routes again soon; at most one read of a topic runs at a time.

        A broker that does not lead names the master in ``error``. It is used at once, also while
        ZooKeeper cannot be reached.
        """
        hint = _named_master(error) if isinstance(error, NotMaster) else None
        if hint is not None:
            self.watcher.hint(*hint)
        if topic not in self._refreshing and not self._closed:
            self._refreshing[topic] = begin_task(self._refresh(topic), self.context)

    async def refreshed(self, topic: str) -> None:
        """Read a topic's routes again, and return when they are read, or cannot be."""
        self.refresh(topic)
        task = self._refreshing.get(topic)
        if task is not None:
            await asyncio.wait([task])

    async def _refresh(self, topic: str) -> None:
        try:
            await self.watcher.refresh(topic)
        except VqError as error:
            logger.debug("cannot refresh routes", topic=topic, error=error)
        finally:
            del self._refreshing[topic]

    def master_at(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        """Return the broker that has ``offset``, and its epoch as this client knows it.

        The caller puts the epoch into the request. A former master that does not know its successor
        then refuses the request; otherwise it could return bytes that were truncated since.

        Raises:
            UnknownPartition: The topic has no such partition.
            OffsetOutOfRange: The offset is before the first span; its messages are deleted.
            NotMaster: Its group has no master now.
        """
        routes = self.watcher.snapshot
        known = self._open_spans
        if known[0] is not routes:
            known = self._open_spans = routes, {}
        found = known[1].get(partition)
        if found is not None and offset >= found[0]:
            return found[1]
        placement = routes.placement(partition)
        span = placement.span_at(offset)
        if placement.spans and offset < placement.spans[0].start:
            earliest = placement.spans[0].start
            raise OffsetOutOfRange(
                f"offset {offset} of {partition} is below the earliest kept offset, {earliest}",
                details={"earliest": earliest},
            )
        if span is None:
            raise UnknownPartition(f"no span of {partition} has offset {offset}")
        master = routes.master(span.group)
        if master is None:
            raise NotMaster(f"broker group {span.group} of {partition} has no master now")
        if span.end is None:
            known[1][partition] = span.start, master
        return master

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` on the loop after each change of routes or connections.

        Returns:
            A function that removes the listener.
        """
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener) if listener in self.listeners else None

    def _routes_changed(self, routes: Routes) -> None:
        """Try a broker that leads now at once: earlier failures say nothing of it."""
        for group, master in routes.masters.items():
            if master != self._masters.get(group):
                copies = (copy.address for copy in master.copies)
                self.connections.try_now((master.address, *copies))
        self._masters = routes.masters
        self.changed()

    def changed(self, *_: Any) -> None:
        """Tell those who wait for a change: of brokers, of connections, of ids."""
        for listener in list(self.listeners):
            try:
                listener()
            except Exception:  # call the other listeners nevertheless
                logger.exception("handling a change of the cluster failed")

    # Message ids ------------------------------------------------------------------------------
    async def lease_slot(self) -> None:
        """Lease a message-id slot, once; producers need one before their first message."""
        if self._slot_task is None or (self._slot_task.done() and self._ids is None):
            self._slot_task = begin_task(self.slot.start(), self.context)
        await shared(self._slot_task)

    def _session_changed(self, state: SessionState) -> None:
        """After the coordinator gave up, let senders fail their messages at once."""
        if state is SessionState.CLOSED and not self._closed:
            self._given_up = self.coordinator.why_closed
            self.ids_ready = True
            self.changed()

    def used_ms(self) -> int:
        """See ``IdMaker``."""
        return 0 if self._ids is None else self._ids.used_ms

    def slot_changed(self, slot: int | None) -> None:
        """See ``IdMaker``."""
        self.ids_ready = slot is not None or bool(self._given_up)
        if slot is not None:
            after_ms, until_ms = self.slot.from_ms, self.slot.until_ms
            with self._ids_lock:
                self._mark_asked = False
                if self._ids is None:
                    self._ids = IdGenerator(slot, self.clock, after_ms=after_ms, until_ms=until_ms)
                else:
                    self._ids.use_slot(slot, after_ms=after_ms, until_ms=until_ms)
        self.changed()

    def mark_moved(self, until_ms: int) -> None:
        """See ``IdMaker``."""
        if self._ids is None:
            return
        with self._ids_lock:
            self._ids.limit_to(until_ms)
            self._mark_asked = not until_ms
            waited = not self.ids_ready
            self.ids_ready = bool(until_ms)
        if waited and until_ms:
            self.changed()

    def take_unforeseen_id(self) -> int:
        """Return a new id that others can hardly foresee; any thread. It may skip hundreds of ids.

        Raises:
            VqError: See ``take_ids``.
        """
        return self.take_ids(1 + self.rng.getrandbits(UNFORESEEN_BITS))[-1]

    def take_ids(self, count: int) -> list[int]:
        """Return new message ids; any thread.

        Raises:
            IdsUsedUp: The slot's mark must move first; ``ids_ready`` is True once it has.
            CoordinationError: The coordinator gave up, so another process may have the slot.
        """
        if self._given_up:
            raise CoordinationError(f"message ids cannot be made any more: {self._given_up}")
        assert self._ids is not None, "call lease_slot first"
        loop = None
        try:
            with self._ids_lock:
                try:
                    return self._ids.take(count)
                except IdsUsedUp:
                    self.ids_ready = bool(self._given_up)
                    raise
                finally:
                    if self._ids.wants_mark and not self._mark_asked:
                        loop = self.loop
                        self._mark_asked = loop is not None
        finally:  # without the lock: the application's log handler may send, too
            if loop is not None:
                call_soon(loop, self.slot.move_mark_soon)
                logger.warning("message ids lag behind the clock until the slot's mark moves")

    # Connections ------------------------------------------------------------------------------
    def live_connection(self, address: Address) -> BrokerConnection | None:
        """Return the open connection to ``address``; if there is none, begin to connect.

        The listeners are called when the attempt has ended.
        """
        connection = self.connections.live(address)
        if connection is None and not self._closed:
            self.connections.begin(address)
        return connection

    async def connection(self, address: Address) -> BrokerConnection:
        """Return an open connection to ``address``.

        Raises:
            InvalidState: This client is closed.
            NotAuthenticated: The broker did not take this client a moment ago.
            ConnectionCut, TimedOut, VqError: See ``connection.connect``.
        """
        if self._closed:
            raise InvalidState(SHUT_DOWN)
        connection = self.connections.live(address)
        if connection is not None:
            return connection
        attempt = self.connections.begin(address)
        refusal = self.connections.refusal(address)
        if refusal is not None:
            raise refusal  # the next attempt comes after a pause, and hardly ends better
        return await shared(attempt)

    async def check_taken(self) -> None:
        """Raise if brokers do not take this client.

        One broker that takes it is enough, and one that cannot be reached says nothing. It takes
        ``connect_timeout_s`` at most.

        Raises:
            NotAuthenticated: The user is unknown, the password is wrong, or there is no user and
                brokers take nobody without one.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.connect_timeout_s):
                for address in dict.fromkeys(each.address for each in self.routes.masters.values()):
                    try:
                        await self.connection(address)
                    except NotAuthenticated:
                        raise
                    except VqError:
                        continue
                    return

    async def new_connection(
        self, address: Address, login: Login | None = None
    ) -> BrokerConnection:
        """Return a connection for the caller alone; the caller closes it.

        Args:
            address: Of the broker.
            login: Who this is there; None: the same as elsewhere.

        Raises:
            InvalidState: This client is closed.
            ConnectionCut, TimedOut, VqError: See ``connection.connect``.
        """
        if self._closed:
            raise InvalidState(SHUT_DOWN)
        return await self.connections.open(address, login=login)

    async def request(
        self,
        address: Address,
        command: int,
        message: Any,
        body: Buffer = b"",
        *,
        timeout: float | None = None,
        anew: bool = False,
        as_member: bool = False,
    ) -> tuple[Any, bytes]:
        """Send one request to one broker; see ``BrokerConnection.request``.

        ``timeout`` bounds connecting and the answer together. ``anew``: use a new connection for
        this request. ``as_member``: an operator's command shows first that it is one, although a
        broker that does not enforce rules would carry the request out for anybody.

        Raises:
            Unreachable: No connection was open in time; nothing was sent.
        """
        bound = self.config.request_timeout_s if timeout is None else timeout
        begin = self.clock.monotonic()
        connection: BrokerConnection | None = None
        proves = COMMANDS[command].access is not Access.ANYONE
        proves = proves or (as_member and self.login is MEMBER_LOGIN)
        # A connection is of a user or of a member of the cluster, never of both.
        login = MEMBER_LOGIN if proves and self.login.user else None
        anew = anew or login is not None
        try:
            try:
                async with asyncio.timeout(bound):
                    if anew:
                        connection = await self.new_connection(address, login)
                    else:
                        connection = await self.connection(address)
                    if proves and not connection.proved:
                        await self._calls.share(self._prove, connection)
            except TimeoutError:
                raise Unreachable(f"no connection to {address} within {bound:g} s") from None
            left = bound - (self.clock.monotonic() - begin)
            try:
                return await connection.request(command, message, body, timeout=max(0.0, left))
            except NotAuthorized:
                if self.login is not MEMBER_LOGIN or connection.proved:
                    raise
            # Rules are about users. This one knows the cluster's secret, and has not shown it yet.
            await self._calls.share(self._prove, connection)
            left = bound - (self.clock.monotonic() - begin)
            return await connection.request(command, message, body, timeout=max(0.0, left))
        finally:
            if anew and connection is not None:
                connection.close()

    async def _prove(self, connection: BrokerConnection) -> None:
        """Show a broker that this is a command of an operator, who can read ZooKeeper."""
        secret = await read_secret(self.coordinator)
        nonce = secrets.token_bytes(NONCE_BYTES)
        timeout = self.config.request_timeout_s
        try:
            await connection.prove(secret, OPERATOR, nonce, timeout=timeout)
        except OutcomeUnknown as error:  # of the proof; the request was not sent
            raise Unreachable(f"{connection.address} answered no proof: {error}") from error


def _network(config: MessageFactoryConfig) -> TcpNetwork:
    if config.tls is None:
        return TcpNetwork()
    return TcpNetwork(client_ssl=TlsContexts(config.tls).client)


async def open_cluster(config: MessageFactoryConfig, *, operator: bool = False) -> ClusterClient:
    """Return a started client of a real cluster, on the running loop.

    ``operator``: see ``ClusterClient``.

    Raises:
        CoordinationError: ZooKeeper gives no answer in time; nothing is left open.
        InvalidArgument: A file of ``config.tls`` or ``config.zookeeper_tls`` cannot be used.
    """
    keep_freed_memory(_KEPT_BYTES)
    cluster = ClusterClient(
        config,
        coordinator=ZooKeeperCoordinator(
            config.zookeeper,
            config.cluster,
            session_timeout_s=config.session_timeout_s,
            auth=config.zookeeper_auth,
            tls=config.zookeeper_tls,
        ),
        network=_network(config),
        clock=SystemClock(),
        rng=random.Random(),  # nosec B311
        operator=operator,
    )
    try:
        await cluster.start()
    except BaseException:
        await cluster.close()
        raise
    return cluster


def _named_master(error: NotMaster) -> tuple[str, Master] | None:
    """Return the group and the master that a broker names when it refuses; None: it names none."""
    known = error.details
    group, node, host = (known.get(name) for name in ("group", "master", "host"))
    port, epoch = known.get("port"), known.get("epoch")
    if not (isinstance(group, str) and isinstance(node, str) and isinstance(host, str)):
        return None
    if not (isinstance(port, int) and isinstance(epoch, int) and 0 < port <= 65535):
        return None
    try:
        return group, Master(Address(check_host(host), port), epoch, node)
    except InvalidArgument:
        return None
