"""The in-memory twin of ZooKeeper: sessions, expiry, watches, lost replies, on the loop's time.

``MemoryEnsemble`` is the server side; its methods inject faults for tests and simulations.
``MemoryCoordinator`` is the port over it. All waits are timers of the running event loop, so a loop
with a virtual clock simulates hours in moments. This module draws no random numbers. Watches and
listeners run in the context in which their coordinator was started, and the ensemble in its own, so
a simulation can stop one process alone. Applications may use it in their tests, too.
"""

import asyncio
import contextvars
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vq.clock import Clock, SystemClock
from vq.coordination.tree.coordinator import (
    Acl,
    ConnectionLost,
    Create,
    Delete,
    EventKind,
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
    WatchEvent,
    join,
    parent_of,
)
from vq.coordination.tree.memory_pipe import Pipe
from vq.coordination.tree.memory_watches import Watches
from vq.coordination.tree.session import (
    SessionBase,
    check_data,
    check_operations,
    check_path,
    check_reads,
)
from vq.coordination.tree.tree import ZnodeTree
from vq.errors import CoordinationError, InvalidState
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Heartbeats per session time-out, as in the real coordinator.
HEARTBEATS_PER_TIMEOUT: Final = 5


def _no_delay() -> float:
    return 0.0


@dataclass(slots=True)
class CallFaults:
    """Faults of single calls of a client: 1 strikes its next call, 2 the one after that, 0 none."""

    lose_reply: int = 0
    lose_request: int = 0
    expire_request: int = 0
    outlive_request: int = 0

    @property
    def are_armed(self) -> bool:
        """Whether any is still to strike."""
        return any((self.lose_reply, self.lose_request, self.expire_request, self.outlive_request))

    def clear(self) -> None:
        """Have none strike."""
        self.lose_reply = self.lose_request = self.expire_request = self.outlive_request = 0


@dataclass(slots=True)
class _Session:
    """The server's side of a session; ``holder`` is the connected client, if there is one."""

    id: int
    timeout_s: float
    holder: "MemoryCoordinator | None" = None
    timer: asyncio.TimerHandle | None = None


class MemoryEnsemble:
    """A ZooKeeper in this process. Loop-bound.

    Args:
        clock: For modification times and leases; pass the simulation's clock.
        delay: Returns the delay of each message in either direction, in seconds; default 0.
        reconnect_delay_s: How long a client needs to connect to a server again.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        delay: Callable[[], float] = _no_delay,
        reconnect_delay_s: float = 0.01,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.delay = delay
        self.reconnect_delay_s = reconnect_delay_s
        self.tree = ZnodeTree()
        self.running = True
        self.served = 0  # calls that arrived, for tests that count them
        self.sessions: dict[int, _Session] = {}
        self._ids = itertools.count(0x1000)
        self._clients: list[MemoryCoordinator] = []
        self.context = contextvars.copy_context()

    def coordinator(
        self, cluster: str, *, session_timeout_s: float = 10.0, root: str = "/vq"
    ) -> "MemoryCoordinator":
        """Return a new client of this ensemble, not yet started."""
        base = join(*root.split("/"), cluster)
        client = MemoryCoordinator(self, base, session_timeout_s=session_timeout_s)
        self._clients.append(client)
        return client

    # Faults ------------------------------------------------------------------------------------
    def expire(self, session: "MemoryCoordinator | int") -> None:
        """End a session at the server, as a real expiry does; its client gets LOST later."""
        session_id = session if isinstance(session, int) else session.session_id
        found = self.sessions.get(session_id)
        if found is None:
            raise InvalidState(f"there is no session {session_id:#x}")
        self._end(found)

    def disconnect(self, client: "MemoryCoordinator") -> None:
        """Cut a client off until ``reconnect``; its session expires if that takes too long."""
        client.cut = True
        client.drop()

    def reconnect(self, client: "MemoryCoordinator") -> None:
        """Let a client reach the ensemble again."""
        client.cut = False
        client.reconnect_soon()

    def blink(self, client: "MemoryCoordinator") -> None:
        """Break a client's connection once: its calls are lost, and it connects again at once."""
        client.drop()
        client.reconnect_soon()

    def lose_next_reply(self, client: "MemoryCoordinator", *, skip: int = 0) -> None:
        """Apply the client's next call, then break the connection instead of answering.

        ``skip`` lets so many calls pass first.
        """
        client.faults.lose_reply = skip + 1

    def lose_next_request(self, client: "MemoryCoordinator", *, skip: int = 0) -> None:
        """Break the connection when the client's next call arrives, without applying it.

        ``skip`` lets so many calls pass first.
        """
        client.faults.lose_request = skip + 1

    def expire_next(self, client: "MemoryCoordinator", *, skip: int = 0) -> None:
        """End the client's session when its next call arrives, without applying it.

        ``skip`` lets so many calls pass first.
        """
        client.faults.expire_request = skip + 1

    def expire_unheard(self, client: "MemoryCoordinator") -> None:
        """End a client's session while its loop is blocked, and begin the next one.

        The client learns of both in the next iteration of the loop.
        """
        client.pass_session()
        asyncio.get_running_loop().call_soon(client.hear, context=self.context)

    def outlive_next(self, client: "MemoryCoordinator", *, skip: int = 0) -> None:
        """Apply the client's next call in the next session.

        ``skip`` lets so many calls pass first.
        """
        client.faults.outlive_request = skip + 1

    def lag(self, client: "MemoryCoordinator") -> None:
        """Let the client's server fall behind: its reads show the tree as it is now.

        The server catches up by ``catch_up``, when the client writes or calls ``sync``, and when
        the client connects again. It then sends the events that it missed, before the answer.
        """
        client.view = self.tree.copy()

    def catch_up(self, client: "MemoryCoordinator") -> None:
        """Let the client's server catch up."""
        client.catch_up()

    def hold_events(self, client: "MemoryCoordinator") -> None:
        """Hold watch events back until ``release_events``; replies are still delivered."""
        client.held = []

    def release_events(self, client: "MemoryCoordinator", *, drop: bool = False) -> None:
        """Deliver (or drop) the events that were held."""
        held, client.held = client.held or [], None
        for deliver in held if not drop else []:
            deliver()

    def crash(self, client: "MemoryCoordinator") -> None:
        """Let the client's process die: all its messages stop, and its session times out."""
        client.crashed = True
        client.vanish()

    def freeze(self, client: "MemoryCoordinator") -> None:
        """Stop the client's process: it sends no heartbeat, and its session ages."""
        client.frozen = True
        self.leave(client.session_id)

    def thaw(self, client: "MemoryCoordinator") -> None:
        """Let the process run again; only now it learns what happened to its session."""
        client.frozen = False
        reachable = (
            self.running
            and client.state is SessionState.CONNECTED
            and not (client.cut or client.cut_unheard)
        )
        client.cut_unheard = False
        if not (reachable and self.resume_session(client, client.session_id)):
            client.drop()
            client.reconnect_soon()

    @property
    def is_busy(self) -> bool:
        """Whether a call, an answer or an event of any client is under way."""
        return any(client.is_busy for client in self._clients)

    def is_live(self, session_id: int) -> bool:
        """Return whether a session is alive: it has neither ended nor timed out."""
        return session_id in self.sessions

    def stop(self) -> None:
        """Stop the whole ensemble. Sessions do not age meanwhile."""
        self.running = False
        for session in self.sessions.values():
            if session.timer is not None:
                session.timer.cancel()
                session.timer = None
        for client in list(self._clients):
            client.drop()

    def start(self) -> None:
        """Start the ensemble again; every session has its full time-out to reconnect."""
        self.running = True
        for session in self.sessions.values():
            self.age(session)
        for client in list(self._clients):
            client.reconnect_soon()

    # The server's side --------------------------------------------------------------------------
    def open_session(self, client: "MemoryCoordinator", timeout_s: float) -> _Session:
        """Open a session for ``client``."""
        session = _Session(next(self._ids), timeout_s, holder=client)
        self.sessions[session.id] = session
        return session

    def resume_session(self, client: "MemoryCoordinator", session_id: int) -> bool:
        """Connect ``client`` to its session again; return False if the session has ended."""
        session = self.sessions.get(session_id)
        if session is None:
            return False
        session.holder = client
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        return True

    def leave(self, session_id: int) -> None:
        """Note that the session's client has disconnected: the session ages from now on."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.holder = None
            self.age(session)

    def end_session(self, session_id: int) -> None:
        """End a session without an event for its client."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.holder = None
            self._end(session)

    def close_session(self, session_id: int, client: "MemoryCoordinator") -> None:
        """End a session because its client closes it."""
        self.end_session(session_id)
        if client in self._clients:
            self._clients.remove(client)

    def age(self, session: _Session) -> None:
        """Start the time-out of a session without a connected client."""
        if self.running and session.holder is None and session.timer is None:
            session.timer = asyncio.get_running_loop().call_later(
                session.timeout_s, self._end, session, context=self.context
            )

    def apply(self, operations: Sequence[Operation], session_id: int) -> list[Stat | None]:
        """Apply a write and trigger the watches on the changed nodes."""
        results, events = self.tree.apply(
            operations, session=session_id, now_ms=self.clock.wall_ms()
        )
        for event in events:
            for client in self._clients:
                client.trigger(event)
        return results

    def _end(self, session: _Session) -> None:
        if self.sessions.pop(session.id, None) is None:
            return
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        paths = self.tree.ephemerals(session.id)
        for path in paths:
            self.apply([Delete(path)], session.id)
        if session.holder is not None:
            session.holder.drop()
            session.holder.reconnect_soon()


class MemoryCoordinator(SessionBase):
    """The ``Coordinator`` port over a ``MemoryEnsemble``; see there for the faults."""

    def __init__(self, ensemble: MemoryEnsemble, base: str, *, session_timeout_s: float) -> None:
        super().__init__(clock=ensemble.clock, session_timeout_s=session_timeout_s)
        self.ensemble = ensemble
        self._base = base
        self.cut = False
        self.crashed = False
        self.frozen = False
        self.cut_unheard = False  # the connection ended while it was frozen
        self.faults = CallFaults()
        self.view: ZnodeTree | None = None  # the tree of a server that is behind; None: up to date
        self._behind: list[WatchEvent] = []  # the events that this server has not sent yet
        self._wire_session = 0  # the session of new calls; the loop may not know of it yet
        self.held: list[Callable[[], None]] | None = None
        self._started = False
        self._context = contextvars.copy_context()
        self._request_pipe = Pipe(ensemble)
        self._reply_pipe = Pipe(ensemble)
        self._in_flight: dict[asyncio.Future[Any], None] = {}
        self.watches = Watches()
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """See ``MemoryEnsemble.is_busy``."""
        return bool(self._in_flight or self._request_pipe or self._reply_pipe)

    # Session ------------------------------------------------------------------------------------
    async def start(self, timeout_s: float = 15.0) -> None:
        """See ``Coordinator.start``."""
        if self._started:
            raise InvalidState("the coordinator was started before; make a new one")
        self._started = True
        self._context = contextvars.copy_context()
        self._why_closed = "it was closed"
        self._state = SessionState.LOST  # without calling the listeners: there was no session
        self._reconnect()
        try:
            await self._wait_connected(timeout_s)
        except CoordinationError as error:
            await self.close()
            raise CoordinationError(
                f"no session with ZooKeeper ({self.describe()}) within {timeout_s:g} s; "
                "check that it runs: `vq doctor`"
            ) from error
        await self._make_root()
        self._beat()

    async def close(self) -> None:
        """See ``Coordinator.close``."""
        if self._state is SessionState.CLOSED:
            return
        session_id, reachable = self._wire_session, not self.cut and self.ensemble.running
        self.vanish(age=not reachable)
        self._why_closed = "it was closed"
        if reachable:
            self.ensemble.close_session(session_id, self)
        self.enter(SessionState.CLOSED)

    def give_up(self, why: str) -> None:
        """Be CLOSED for good, like the real one after several clients died in a row."""
        self.vanish()
        self._why_closed = why
        self.enter(SessionState.CLOSED)

    def vanish(self, *, age: bool = True) -> None:
        """Stop all messages in both directions; with ``age`` the session starts to time out."""
        for timer in (self._timer, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._timer = self._heartbeat = None
        self._lose_connection()
        self.watches.take_all()
        if age:
            self.ensemble.leave(self._wire_session)

    def drop(self) -> None:
        """Lose the connection: calls under way and watches are gone, the state is SUSPENDED."""
        if self._state is not SessionState.CONNECTED or self.crashed:
            return
        if self.frozen:
            self.cut_unheard = True
            return
        self._lose_connection()
        self.ensemble.leave(self._wire_session)
        watches = self.watches.take_all()
        self.enter(SessionState.SUSPENDED, self._session_id)
        self._call_disconnected(watches)

    def _call_disconnected(self, watches: list[Watch]) -> None:
        """Call lost watches as kazoo does: without the path that was watched."""
        for watch in watches:
            self._call_watch(watch, WatchEvent(EventKind.DISCONNECTED, ""))

    def pass_session(self) -> None:
        """End the session and begin the next one; the client learns of it at ``hear``."""
        self.ensemble.end_session(self._wire_session)
        self.view, self._behind = None, []
        self._wire_session = self.ensemble.open_session(self, self._session_timeout_s).id

    def hear(self) -> None:
        """Deliver the changes that ``pass_session`` made."""
        if self._wire_session == self._session_id or self.crashed:
            return
        if self._state is not SessionState.CONNECTED:
            return
        self._lose_connection()
        watches = self.watches.take_all()
        self.enter(SessionState.SUSPENDED, self._session_id)
        self._call_disconnected(watches)
        self.enter(SessionState.LOST)
        self.enter(SessionState.CONNECTED, self._wire_session)
        self.answered(self._clock.monotonic(), self._wire_session)

    def reconnect_soon(self) -> None:
        """Connect again after the usual delay, if this client is disconnected."""
        waiting = self._state in {SessionState.SUSPENDED, SessionState.LOST}
        if waiting and self._timer is None and not self.crashed:
            self._timer = asyncio.get_running_loop().call_later(
                self.ensemble.reconnect_delay_s, self._reconnect, context=self._context
            )

    def _reconnect(self) -> None:
        self._timer = None
        if self.cut or not self.ensemble.running:
            return  # ``MemoryEnsemble.reconnect`` and ``start`` try again
        unheard = self._wire_session != self._session_id
        if self._session_id and self.ensemble.resume_session(self, self._wire_session):
            if unheard:
                self.enter(SessionState.LOST)
            self.enter(SessionState.CONNECTED, self._wire_session)
            return
        if self._state is SessionState.SUSPENDED:
            self.enter(SessionState.LOST)
        session = self.ensemble.open_session(self, self._session_timeout_s)
        self._wire_session = session.id
        self.enter(SessionState.CONNECTED, session.id)
        self.answered(self._clock.monotonic(), session.id)

    def enter(self, state: SessionState, session_id: int = 0) -> None:
        """See ``SessionBase.enter``."""
        self._context.copy().run(super().enter, state, session_id)

    def _lose_connection(self) -> None:
        self.view, self._behind = None, []  # the next server has caught up
        self._request_pipe.clear()
        self._reply_pipe.clear()
        for future in self._in_flight:
            if not future.done():
                future.set_exception(ConnectionLost("the connection ended before the answer"))
        self._in_flight.clear()

    def _beat(self) -> None:
        self._heartbeat = asyncio.get_running_loop().call_later(
            self._session_timeout_s / HEARTBEATS_PER_TIMEOUT, self._beat
        )
        if self._state is SessionState.CONNECTED:
            sent, session_id = self._clock.monotonic(), self._session_id

            def answered() -> None:
                self.measured(sent)
                self.answered(sent, session_id)

            self._request_pipe.send(lambda: self._reply_pipe.send(answered))

    async def _make_root(self) -> None:
        path = ""
        for part in self._base.split("/"):
            path = join(path, part)
            if self.ensemble.tree.exists(path) is None:
                self.ensemble.apply([Create(path)], self._wire_session)

    # Calls --------------------------------------------------------------------------------------
    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        """See ``Coordinator.get``."""
        full = self.full_path(path)

        def read() -> Node:
            node = self._seen.get(full)
            self.watches.on_data(full, watch)
            return node

        node: Node = await self._call(read)
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Read]:
        """See ``Coordinator.get_many``."""
        full = [self.full_path(path) for path in check_reads(paths)]

        def read_one(path: str) -> Read:
            try:
                return self._seen.get(path)
            except NoNode:
                return None
            except NotAllowed as error:
                return NotAllowed(self._relative(error.path))

        def read() -> list[Read]:
            return [read_one(each) for each in full]

        nodes: list[Read] = await self._call(read) if full else []
        return nodes

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        """See ``Coordinator.exists``."""
        full = self.full_path(path)

        def read() -> Stat | None:
            self.watches.on_data(full, watch)
            return self._seen.exists(full)

        stat: Stat | None = await self._call(read)
        return stat

    async def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        """See ``Coordinator.children``."""
        return (await self.listing(path, watch=watch)).names

    async def listing(self, path: str, *, watch: Watch | None = None) -> Listing:
        """See ``Coordinator.listing``."""
        full = self.full_path(path)

        def read() -> Listing:
            found = Listing(self._seen.children(full), self._seen.get(full).stat)
            self.watches.on_children(full, watch)
            return found

        found: Listing = await self._call(read)
        return found

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False
    ) -> Stat:
        """See ``Coordinator.create``."""
        check_data(path, data)
        if parents and parent_of(path) and await self.exists(parent_of(path)) is None:
            try:
                await self.create(parent_of(path), parents=True)
            except NodeExists:
                pass
        results = await self._write([Create(self.full_path(path), data, ephemeral)])
        assert results[0] is not None
        return results[0]

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        """See ``Coordinator.set``."""
        results = await self._write([Set(self.full_path(path), check_data(path, data), version)])
        assert results[0] is not None
        return results[0]

    async def delete(self, path: str, *, version: int = -1) -> None:
        """See ``Coordinator.delete``."""
        await self._write([Delete(self.full_path(path), version)])

    async def multi(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """See ``Coordinator.multi``."""
        check_operations(operations)
        absolute = [each._replace(path=self.full_path(each.path)) for each in operations]
        results = await self._write(absolute)
        return [
            result if isinstance(each, Set) else None
            for each, result in zip(operations, results, strict=True)
        ]

    async def acl(self, path: str) -> Acl:
        """See ``Coordinator.acl``."""
        full = self.full_path(path)
        found: Acl = await self._call(lambda: self._seen.acl(full))
        return found

    async def set_acl(self, path: str, acl: Acl) -> None:
        """See ``Coordinator.set_acl``."""
        full = self.full_path(path)
        await self._call(lambda: self.ensemble.tree.set_acl(full, acl), leader=True)

    async def sync(self, path: str = "") -> None:
        """See ``Coordinator.sync``."""
        check_path(path)
        await self._call(lambda: None, leader=True)

    async def _write(self, operations: Sequence[Operation]) -> list[Stat | None]:
        results: list[Stat | None] = await self._call(
            lambda: self.ensemble.apply(operations, self._wire_session), leader=True
        )
        return results

    @property
    def _seen(self) -> ZnodeTree:
        """The tree as this client's server shows it."""
        return self.view if self.view is not None else self.ensemble.tree

    async def _call(self, action: Callable[[], Any], *, leader: bool = False) -> Any:
        losses = await self._admit()
        try:
            if self._wire_session != self._session_id:
                await asyncio.sleep(0)  # like the real coordinator
                raise SessionExpired("the session has ended; nothing was sent")
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._in_flight[future] = None
            sent, session_id = self._clock.monotonic(), self._session_id
            self._request_pipe.send(lambda: self._serve(action, future, leader))
            proved = leader
            try:
                answer = await future
            except ConnectionLost:
                proved = False
                raise
            except CoordinationError as error:
                self._check_same_session(losses, applied=False)
                raise self._relative_error(error) from None
            finally:
                self._in_flight.pop(future, None)
                if future.done() and not future.cancelled():
                    self.measured(sent)
                    if proved:
                        self.answered(sent, session_id)
            self._check_same_session(losses, applied=leader)
            return answer
        finally:
            self._slots.release()

    def _serve(
        self, action: Callable[[], Any], future: "asyncio.Future[Any]", leader: bool
    ) -> None:
        if self.cut_unheard:
            return
        self.ensemble.served += 1
        faults = self.faults
        faults.outlive_request, outlived = _count_down(faults.outlive_request)
        if outlived:
            self._in_flight.pop(future, None)
            self.pass_session()
            self.hear()
            self._in_flight[future] = None
        if not self.ensemble.is_live(self._wire_session):
            self.drop()  # as a server does at the first request of a session that has ended
            self.reconnect_soon()
            return
        faults.lose_request, lost = _count_down(faults.lose_request)
        if lost:
            self.ensemble.blink(self)
            return
        faults.expire_request, expired = _count_down(faults.expire_request)
        if expired:
            self.ensemble.expire(self)
            return
        error: Exception | None = None
        result: Any = None
        try:
            result = action()
        except CoordinationError as failure:
            error = failure
        if leader:
            self.catch_up()  # a server answers a write after it has applied all earlier writes
        faults.lose_reply, lost = _count_down(faults.lose_reply)
        if lost:
            self.ensemble.blink(self)
            return
        self._reply_pipe.send(lambda: _resolve(future, result, error))

    # Watches ------------------------------------------------------------------------------------
    def catch_up(self) -> None:
        """Let this client's server catch up, and send the events that it missed."""
        self.view = None
        behind, self._behind = self._behind, []
        for event in behind:
            self.trigger(event)

    def trigger(self, event: WatchEvent) -> None:
        """Fire the watches for ``event``; called by the ensemble."""
        if self.view is not None:
            self._behind.append(event)
            return
        relative = WatchEvent(event.kind, self._relative(event.path))
        for watch in self.watches.take(event):
            self._fire(watch, relative)

    def _fire(self, watch: Watch, event: WatchEvent) -> None:
        def deliver() -> None:
            self._reply_pipe.send(lambda: self._call_watch(watch, event))

        if self.held is not None:
            self.held.append(deliver)
        else:
            deliver()

    def _call_watch(self, watch: Watch, event: WatchEvent) -> None:
        try:
            self._context.copy().run(watch, event)
        except Exception:
            logger.exception(
                "watch callback failed", session=hex(self._session_id), path=event.path
            )

    # Paths --------------------------------------------------------------------------------------
    def full_path(self, path: str) -> str:
        """Return a path from the root of the whole tree."""
        return join(self._base, check_path(path))

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._base).lstrip("/")

    def _relative_error(self, error: CoordinationError) -> CoordinationError:
        path = error.details.get("path")
        if not isinstance(path, str):
            return error
        fresh = type(error)(self._relative(path))
        fresh.details.update({k: v for k, v in error.details.items() if k != "path"})
        return fresh


def _count_down(count: int) -> tuple[int, bool]:
    """Return a fault's countdown after one more call, and whether to inject it now."""
    return max(0, count - 1), count == 1


def _resolve(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
