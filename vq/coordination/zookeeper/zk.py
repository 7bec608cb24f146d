"""The ``Coordinator`` over a real ZooKeeper. Only it and the ``kazoo_`` modules import kazoo.

kazoo has threads of its own. One bridge (``post``) hands their results to the event loop; no other
code of vq runs on them. Rules of this module:

- nothing is retried: kazoo's command retry is not used, a lost reply is ``ConnectionLost``;
- ``multi`` checks every part of the answer (kazoo's transaction context ignores it);
- after a session ends, a new one begins. kazoo does that itself, except if its connection thread
  died or the ensemble's data were deleted: then a watchdog replaces the client.
"""

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    KazooException,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.retry import KazooRetry

from vq.clock import Clock, SystemClock
from vq.coordination.tree.acls import checked_auth
from vq.coordination.tree.coordinator import (
    Acl,
    Check,
    ConnectionLost,
    Create,
    Delete,
    Listing,
    Node,
    NodeExists,
    NoNode,
    NotAllowed,
    Operation,
    Read,
    SessionExpired,
    SessionState,
    Set,
    Stat,
    Watch,
    join,
    parent_of,
)
from vq.coordination.tree.session import (
    CALL_TIMEOUT_RATIO,
    SessionBase,
    check_data,
    check_operations,
    check_path,
    check_reads,
    end_task,
)
from vq.coordination.zookeeper import kazoo_reads
from vq.coordination.zookeeper.kazoo_acls import AclsOfNewNodes, acl_from, acl_to
from vq.coordination.zookeeper.kazoo_answers import (
    WatchOnce,
    mind_connecting,
    read_of,
    set_result,
    stat_of,
    translated,
)
from vq.coordination.zookeeper.kazoo_threads import Handler
from vq.coordination.zookeeper.probe import why_no_session
from vq.coordination.zookeeper.servers import checked_servers
from vq.errors import CoordinationError, InvalidState
from vq.log_lines import get_logger, never_wait
from vq.model import check_name
from vq.security.tls import Tls, TlsContexts
from vq.tasks import begin_task

logger = get_logger(__name__)
#: kazoo logs on its threads, which a handler that raises must not end either.
_kazoo_logger = get_logger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)  # this module logs the changes of state itself

#: ``sync`` calls per session time-out that keep ``last_reply_monotonic`` fresh.
HEARTBEATS_PER_TIMEOUT: Final = 5
#: After so many session time-outs without an answer, a client may be dead.
DEAD_AFTER_TIMEOUTS: Final = 3
#: Consecutive replaced clients without an answered call before the coordinator gives up.
REBUILDS_MAX: Final = 5
#: Longest wait for kazoo's threads at close; they are daemons and end by themselves later.
STOP_WAIT_S: Final = 2.0

#: Reads that may be lost with the connection of a server that knows no ``get_many``.
REFUSED_TRIES: Final = 2
#: Pause before the first calls of a session are repeated.
_AGAIN_S: Final = 0.05

_DEAD_STATES: Final = {KeeperState.CLOSED, KeeperState.AUTH_FAILED}

T = TypeVar("T")


#: The parent of all clusters.
ROOT: Final = "vq"


class ZooKeeperCoordinator(SessionBase):
    """The ``Coordinator`` port over a real ensemble.

    Args:
        hosts: ``host:port[,host:port…]``.
        cluster: Name of the cluster; its root is ``<root>/<cluster>``.
        session_timeout_s: The requested time-out; the server may grant another one.
        root: The parent of all clusters.
        auth: ``name:password`` by which ZooKeeper knows this client; "": it is nobody. See
            ``acls``.
        clock: For leases.
        tls: The files of TLS to the servers; None: plain TCP. The certificate of each server must
            have the name or address in ``hosts``.

    Attributes:
        hosts: The servers.
        kazoo: The client of them; None: it was not started, or is closed.
    """

    def __init__(
        self,
        hosts: str,
        cluster: str,
        *,
        session_timeout_s: float = 10.0,
        root: str = ROOT,
        auth: str = "",
        clock: Clock | None = None,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(clock=clock or SystemClock(), session_timeout_s=session_timeout_s)
        self._contexts = None if tls is None else TlsContexts(tls)
        self.hosts = checked_servers(hosts)
        self._base = join(check_path(root.strip("/")), check_name("cluster", cluster))
        self._asked_timeout_s = session_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._loop_woken = False  # the loop will run the posted callbacks soon
        self.kazoo: KazooClient | None = None
        self._negotiated_s: dict[KazooClient, float] = {}
        self._in_flight: dict[asyncio.Future[Any], None] = {}
        self._heartbeat: asyncio.Task[None] | None = None
        self._alive_at = -math.inf
        self._rebuilds = 0
        self._root_made_at_loss = 0
        self._auth = checked_auth(auth)
        self._acls = AclsOfNewNodes()
        self._reads_many = True  # the server has not said that it cannot

    def describe(self) -> str:
        """Return the servers and the root, for messages."""
        return f"{self.hosts}/{self._base}"

    # Session ------------------------------------------------------------------------------------
    async def start(self, timeout_s: float = 15.0) -> None:
        """See ``Coordinator.start``."""
        if self._loop is not None:
            raise InvalidState("the coordinator was started before; make a new one")
        self._loop = asyncio.get_running_loop()
        self._why_closed = "it was closed"
        self._state = SessionState.LOST  # without calling the listeners: there was no session
        self._alive_at = self._clock.monotonic()
        self.kazoo = self._new_client()
        self.kazoo.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await self._begin(timeout_s)
        except (CoordinationError, TimeoutError) as error:
            await self.close()
            why = str(error) or await why_no_session(self.hosts, self._contexts)
            remedy = (
                NotAllowed.hint
                if isinstance(error, NotAllowed)
                else "check the address and that it runs: `vq doctor`"
            )
            raise CoordinationError(
                f"no session with ZooKeeper at {self.hosts} within {timeout_s:g} s: {why}; "
                f"{remedy}",
                hint=remedy,
            ) from error
        except BaseException:
            await self.close()
            raise
        self._heartbeat = begin_task(self._watch_over())

    async def _begin(self, timeout_s: float) -> None:
        """Wait for a session and create the root; repeat if the connection ends meanwhile.

        Creating the root again is a no-op. Every round waits for a connection, so this is no busy
        loop; the caller's time-out bounds all rounds.
        """
        while True:
            await self._wait_connected(timeout_s)
            try:
                await self._make_root()
                await self._acls.learn(self)
            except (ConnectionLost, SessionExpired) as error:
                logger.info(
                    "first calls to ZooKeeper were lost, trying again",
                    zookeeper=self.describe(),
                    error=error,
                )
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def close(self) -> None:
        """See ``Coordinator.close``."""
        if self._heartbeat is not None:
            await end_task(self._heartbeat)
            self._heartbeat = None
        client, self.kazoo = self.kazoo, None
        if client is not None:
            await self._stop(client)
        self._why_closed = "it was closed"
        self._fail_calls("the connection to ZooKeeper was closed before the answer")
        self.enter(SessionState.CLOSED)

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Run ``callback`` on the loop, in the order of the calls; for kazoo's threads.

        It never blocks. One wake-up of the loop serves all callbacks posted before the loop runs
        them, because each wake-up is a system call.
        """
        assert self._loop is not None
        self._posted.append((callback, args))
        if self._loop_woken:
            return
        self._loop_woken = True
        try:
            self._loop.call_soon_threadsafe(self._run_posted)
        except RuntimeError:  # the loop is closed
            self._posted.clear()
            self._loop_woken = False

    def _run_posted(self) -> None:
        self._loop_woken = False  # first: a callback posted from here on wakes the loop again
        for _ in range(len(self._posted)):
            callback, args = self._posted.popleft()
            try:
                callback(*args)
            except Exception:
                logger.exception("handling a ZooKeeper answer failed", zookeeper=self.describe())

    def _new_client(self) -> KazooClient:
        server_count = self.hosts.count(",") + 1
        contexts = self._contexts
        handler = Handler(
            max(0.2, self._asked_timeout_s / (2 * server_count)),
            None if contexts is None else contexts.client,
        )
        # A session must reconnect within one time-out, so pauses must be much shorter than that.
        pause_s = min(1.0, self._asked_timeout_s / 10)
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_jitter=0.4, max_delay=pause_s)
        client = KazooClient(
            self.hosts,
            timeout=self._asked_timeout_s,
            handler=handler,
            connection_retry=retry,
            logger=_kazoo_logger,
            auth_data=[("digest", self._auth)] if self._auth else None,
            # The handler makes the connections; a kazoo that does not ask it checks names, too.
            use_ssl=contexts is not None,
            verify_certs=True,
            check_hostname=True,
        )
        mind_connecting(client, self._asked_timeout_s, self._negotiated_s)
        client.add_listener(lambda state: self._on_kazoo_state(client, state))
        return client

    def _on_kazoo_state(self, client: KazooClient, state: str) -> None:
        """Hand a transition to the loop; runs on kazoo's connection thread."""
        identity = client.client_id
        session_id = identity[0] if identity else 0
        self.post(self._on_state, client, state, session_id, client.client_state)

    def _on_state(
        self, client: KazooClient, state: str, session_id: int, keeper_state: str
    ) -> None:
        if client is not self.kazoo:
            return
        logger.info(
            "connection to ZooKeeper changed",
            zookeeper=self.describe(),
            session=hex(session_id),
            state=state,
        )
        if state == KazooState.CONNECTED:
            self._connected(client, session_id)
        elif state == KazooState.SUSPENDED:
            self.enter(SessionState.SUSPENDED, self._session_id)
        else:
            self.enter(SessionState.LOST)
            if keeper_state in _DEAD_STATES:
                logger.error(
                    "ZooKeeper client gave up", zookeeper=self.describe(), state=keeper_state
                )
                self._alive_at = -math.inf  # the watchdog replaces it without a wait

    def _connected(self, client: KazooClient, session_id: int) -> None:
        if self._session_id and session_id != self._session_id:
            self.enter(SessionState.LOST)
        self._session_timeout_s = self._negotiated_s.get(client, self._asked_timeout_s)
        self.enter(SessionState.CONNECTED, session_id)
        self._alive_at = self._clock.monotonic()

    async def _stop(self, client: KazooClient) -> None:
        """Close a client's session and threads; wait a bounded time for the threads."""
        assert self._loop is not None
        stopped = self._loop.create_future()
        self._negotiated_s.pop(client, None)

        def set_stopped() -> None:
            if not stopped.done():
                stopped.set_result(None)

        def run() -> None:
            never_wait()
            try:
                client.stop()
                client.close()
            except Exception:
                logger.exception("ZooKeeper client did not stop cleanly", zookeeper=self.describe())
            finally:
                self.post(set_stopped)

        threading.Thread(target=run, name="vq-zookeeper-stop", daemon=True).start()
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                await stopped
        except TimeoutError:
            logger.info(
                "ZooKeeper client is still stopping, not waiting for it",
                zookeeper=self.describe(),
                timeout_s=STOP_WAIT_S,
            )

    async def _make_root(self) -> None:
        path = ""
        for part in self._base.split("/"):
            path = join(path, part)
            await self._make(f"/{path}")

    async def _make(self, absolute: str) -> None:
        found = await self._call(lambda client: client.exists_async(absolute), absolute)
        if found is None:
            with contextlib.suppress(NodeExists):
                await self._call(lambda client: client.create_async(absolute), absolute)

    # ACLs ---------------------------------------------------------------------------------------
    async def acl(self, path: str) -> Acl:
        """See ``Coordinator.acl``."""
        full = self.full_path(path)
        found, _ = await self._call(lambda client: client.get_acls_async(full), path)
        return acl_from(found)

    async def set_acl(self, path: str, acl: Acl) -> None:
        """See ``Coordinator.set_acl``."""
        full, theirs = self.full_path(path), acl_to(acl)
        await self._call(lambda client: client.set_acls_async(full, theirs), path, leader=True)

    # Watchdog -----------------------------------------------------------------------------------
    async def _watch_over(self) -> None:
        """Send heartbeats; replace a client that is dead while ZooKeeper is alive."""
        while self._state is not SessionState.CLOSED:
            await asyncio.sleep(self._session_timeout_s / HEARTBEATS_PER_TIMEOUT)
            try:
                if self._state is SessionState.CONNECTED:
                    with contextlib.suppress(CoordinationError):
                        await self._beat()
                silent_s = self._clock.monotonic() - self._alive_at
                if silent_s > DEAD_AFTER_TIMEOUTS * self._session_timeout_s:
                    await self._maybe_rebuild()
            except Exception:
                logger.exception(
                    "checking the ZooKeeper client failed, trying again", zookeeper=self.describe()
                )

    async def _beat(self) -> None:
        """Renew ``last_reply_monotonic``; after a lost session create the root if it is missing."""
        losses = self._losses
        if losses != self._root_made_at_loss:
            await self._make_root()
            self._root_made_at_loss = losses
        if self._acls.stale:
            await self._acls.learn(self)
        await self.sync()

    async def _maybe_rebuild(self) -> None:
        """Replace a silent client with a new one, if the new one gets a session.

        After an outage the new client may only be the first one to connect again. If the old client
        is not known to be dead, it gets some time to connect, too, so that its session is kept.
        """
        if self._rebuilds >= REBUILDS_MAX:
            self._give_up()
            return
        # Time for attempts that a starting server does not answer, and for the pauses after them.
        grace_s = 0.0 if self._alive_at == -math.inf else self._asked_timeout_s * 0.75
        fresh = self._new_client()
        try:
            await self._see_which_connects(fresh, grace_s)
        except BaseException:  # ``close`` does not know of this client, so stop it here
            await self._stop(fresh)
            raise
        identity = fresh.client_id
        if identity is None or (self.kazoo is not None and self.kazoo.connected):
            await self._stop(fresh)
            self._alive_at = self._clock.monotonic()  # try again after as long a silence
            return
        logger.warning("dead ZooKeeper client replaced", zookeeper=self.describe())
        self._rebuilds += 1
        old, self.kazoo = self.kazoo, fresh
        self._fail_calls("the connection to ZooKeeper was replaced before the answer")
        if self._session_id:
            self.enter(SessionState.LOST)
        self._connected(fresh, identity[0])
        if not fresh.connected:  # it lost the connection before we listened to it
            self.enter(SessionState.SUSPENDED, self._session_id)
        if old is not None:
            await self._stop(old)

    async def _see_which_connects(self, fresh: KazooClient, grace_s: float) -> None:
        """Start a fresh client, and wait until it or the present one has a connection."""
        connected = fresh.start_async()
        deadline = self._clock.monotonic() + self._asked_timeout_s
        heard = False
        while self._clock.monotonic() < deadline:
            if connected.is_set() and not heard:
                heard, deadline = True, self._clock.monotonic() + grace_s
            if self.kazoo is not None and self.kazoo.connected:
                break  # the old client has connected by itself
            await asyncio.sleep(0.05)

    def _give_up(self) -> None:
        self._why_closed = f"{REBUILDS_MAX} ZooKeeper clients in a row died; restart the process"
        logger.critical(
            "several ZooKeeper clients died in a row, restart the process",
            zookeeper=self.describe(),
            clients=REBUILDS_MAX,
        )
        self._fail_calls(self._why_closed)
        self.enter(SessionState.CLOSED)

    def _fail_calls(self, why: str) -> None:
        for future in self._in_flight:
            if not future.done():
                future.set_exception(ConnectionLost(why))
        self._in_flight.clear()

    # Calls --------------------------------------------------------------------------------------
    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        """See ``Coordinator.get``."""
        full, once = self.full_path(path), self._once(watch)
        data, stat = await self._call(lambda c: c.get_async(full, watch=once), path)
        return Node(data, stat_of(stat))

    async def get_many(self, paths: Sequence[str]) -> list[Read]:
        """See ``Coordinator.get_many``; a server before ZooKeeper 3.6 is asked for each node."""
        full = tuple(self.full_path(path) for path in check_reads(paths))
        if not full:
            return []
        if self._reads_many:
            try:
                found = await self._call(lambda c: kazoo_reads.read_many(c, full), "")
            except CoordinationError as error:
                if not isinstance(error.__cause__, kazoo_reads.Unknown):
                    raise
                self._reads_many = False
            else:
                return [read_of(each, path) for each, path in zip(found, paths, strict=True)]
        return list(await asyncio.gather(*(self._read_one(path) for path in paths)))

    async def _read_one(self, path: str) -> Read:
        """Read a node; again if the connection ends: a server closes it after its refusal."""
        lost = 0
        while True:
            try:
                return await self.get(path)
            except NoNode:
                return None
            except NotAllowed as error:
                return error
            except ConnectionLost:
                lost += 1
                if lost > REFUSED_TRIES:
                    raise

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        """See ``Coordinator.exists``."""
        full, once = self.full_path(path), self._once(watch)
        stat = await self._call(lambda c: c.exists_async(full, watch=once), path)
        return stat_of(stat) if stat is not None else None

    async def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        """See ``Coordinator.children``."""
        full, once = self.full_path(path), self._once(watch)
        return sorted(await self._call(lambda c: c.get_children_async(full, watch=once), path))

    async def listing(self, path: str, *, watch: Watch | None = None) -> Listing:
        """See ``Coordinator.listing``."""
        full, once = self.full_path(path), self._once(watch)
        names, stat = await self._call(
            lambda c: c.get_children_async(full, watch=once, include_data=True), path
        )
        return Listing(sorted(names), stat_of(stat))

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False
    ) -> Stat:
        """See ``Coordinator.create``."""
        full, value = self.full_path(path), check_data(path, data)
        above = parent_of(path)
        if parents and above and await self.exists(above) is None:
            with contextlib.suppress(NodeExists):
                await self.create(above, parents=True)
        _, stat = await self._call(
            lambda c: c.create_async(
                full, value, acl=self._acls.of(path), ephemeral=ephemeral, include_data=True
            ),
            path,
            leader=True,
        )
        return stat_of(stat)

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        """See ``Coordinator.set``."""
        full, value = self.full_path(path), check_data(path, data)
        stat = await self._call(lambda c: c.set_async(full, value, version), path, leader=True)
        return stat_of(stat)

    async def delete(self, path: str, *, version: int = -1) -> None:
        """See ``Coordinator.delete``."""
        full = self.full_path(path)
        await self._call(lambda c: c.delete_async(full, version), path, leader=True)

    async def multi(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """See ``Coordinator.multi``."""
        check_operations(operations)

        def submit(client: KazooClient) -> Any:
            transaction = client.transaction()
            for operation in operations:
                self._add(transaction, operation)
            return transaction.commit_async()

        answers = await self._call(submit, "", leader=True)
        for index, answer in enumerate(answers):
            if isinstance(answer, Exception) and not isinstance(
                answer, RolledBackError | RuntimeInconsistency
            ):
                error = translated(answer, operations[index].path)
                error.details["index"] = index
                raise error
        if len(answers) != len(operations) or any(isinstance(a, Exception) for a in answers):
            raise CoordinationError(f"ZooKeeper answered a multi with {answers!r}")
        return [stat_of(a) if isinstance(a, ZnodeStat) else None for a in answers]

    async def sync(self, path: str = "") -> None:
        """See ``Coordinator.sync``."""
        full = self.full_path(path)
        await self._call(lambda c: c.sync_async(full), path, leader=True)

    def _add(self, transaction: Any, operation: Operation) -> None:
        full = self.full_path(operation.path)
        match operation:
            case Create():
                transaction.create(
                    full, operation.data, self._acls.of(operation.path), operation.ephemeral
                )
            case Set():
                transaction.set_data(full, operation.data, operation.version)
            case Delete():
                transaction.delete(full, operation.version)
            case Check():
                transaction.check(full, operation.version)

    async def _call(
        self, submit: Callable[[KazooClient], Any], path: str, *, leader: bool = False
    ) -> Any:
        """Submit one request and wait for its answer; translate kazoo's errors.

        With ``leader`` an answer, even a refusal, proves that the session was alive when the
        request was sent.
        """
        losses = await self._admit()
        try:
            loop, client = self._loop, self.kazoo
            assert loop is not None
            assert client is not None
            if client._session_id != self._session_id and self._session_id:
                # kazoo has a new session, of which the loop does not know yet: it would send the
                # request in that session.
                await asyncio.sleep(0)  # let the event of the new session arrive before a retry
                raise SessionExpired("the session has ended; nothing was sent")
            future: asyncio.Future[Any] = loop.create_future()
            self._in_flight[future] = None
            sent, session_id = self._clock.monotonic(), self._session_id
            try:
                submit(client).rawlink(lambda result: self.post(set_result, future, result))
                async with asyncio.timeout(CALL_TIMEOUT_RATIO * self._session_timeout_s):
                    answer = await future
            except TimeoutError:
                raise ConnectionLost(f"no answer from ZooKeeper about {path!r}") from None
            except KazooException as error:
                ours = translated(error, path)
                if not isinstance(ours, ConnectionLost | SessionExpired):
                    self._proved(sent, session_id, leader=leader)
                    self._check_same_session(losses, applied=False)
                raise ours from error
            finally:
                self._in_flight.pop(future, None)
            self._proved(sent, session_id, leader=leader)
            self._check_same_session(losses, applied=leader)
            return answer
        finally:
            self._slots.release()

    def _proved(self, sent: float, session_id: int, *, leader: bool) -> None:
        self._alive_at = max(self._alive_at, sent)
        self._rebuilds = 0
        self.measured(sent)
        if leader:
            self.answered(sent, session_id)

    # Paths --------------------------------------------------------------------------------------
    def full_path(self, path: str) -> str:
        """Return a path from the root of the whole tree."""
        return "/" + join(self._base, check_path(path))

    def relative(self, path: str) -> str:
        """Return an absolute path of ZooKeeper relative to the cluster's root."""
        return path.lstrip("/").removeprefix(self._base).lstrip("/")

    def _once(self, watch: Watch | None) -> WatchOnce | None:
        return WatchOnce(self, watch) if watch is not None else None
