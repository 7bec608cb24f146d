"""Shared by all coordinators: state, listeners, waiting for a connection, checks of input.

A base class makes the real coordinator and its twin follow the same rules. It does no I/O; ``zk``
and ``memory`` send and receive.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from vq.bounds import check_within
from vq.clock import Clock
from vq.coordination.tree.coordinator import (
    CALLS_IN_FLIGHT_MAX,
    MULTI_OPERATIONS_MAX,
    NODE_BYTES_MAX,
    READS_PER_CALL_MAX,
    ConnectionLost,
    Create,
    Listener,
    NotConnected,
    Operation,
    SessionExpired,
    SessionState,
    Set,
)
from vq.coordination.tree.round_trip import RoundTrips
from vq.errors import InvalidArgument, InvalidState
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: The bound of a call, in session time-outs. It is longer than kazoo needs to notice a dead
#: connection (two thirds of a time-out) and to connect to another server.
CALL_TIMEOUT_RATIO: Final = 1.5


class SessionBase:
    """State, listeners, and the admission of calls.

    Invariant: ``session_id`` is not 0 exactly in the states CONNECTED and SUSPENDED.
    """

    def __init__(self, *, clock: Clock, session_timeout_s: float) -> None:
        check_within("session_timeout_s", session_timeout_s, 0, 3600, above=True)
        self._clock = clock
        self._session_timeout_s = session_timeout_s
        self._state = SessionState.CLOSED
        self._session_id = 0
        self._last_reply = -math.inf
        self._round_trips = RoundTrips()
        self._losses = 0
        self._listeners: dict[int, Listener] = {}
        self._next_listener = 0
        self._changed: asyncio.Future[None] | None = None
        self._slots = asyncio.Semaphore(CALLS_IN_FLIGHT_MAX)
        self._why_closed = "it was not started"

    @property
    def session_id(self) -> int:
        """See ``Coordinator.session_id``."""
        return self._session_id

    @property
    def state(self) -> SessionState:
        """See ``Coordinator.state``."""
        return self._state

    @property
    def why_closed(self) -> str:
        """See ``Coordinator.why_closed``."""
        return self._why_closed

    @property
    def session_timeout_s(self) -> float:
        """See ``Coordinator.session_timeout_s``."""
        return self._session_timeout_s

    @property
    def last_reply_monotonic(self) -> float:
        """See ``Coordinator.last_reply_monotonic``."""
        return self._last_reply

    @property
    def round_trip_s(self) -> float:
        """See ``Coordinator.round_trip_s``."""
        return self._round_trips.longest_s

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """See ``Coordinator.add_listener``."""
        key = self._next_listener
        self._next_listener += 1
        self._listeners[key] = listener
        return lambda: void(self._listeners.pop(key, None))

    def enter(self, state: SessionState, session_id: int = 0) -> None:
        """Enter a state and call the listeners; entering the same state again is a no-op."""
        if state is self._state and session_id == self._session_id:
            return
        self._state = state
        self._session_id = session_id
        if state is SessionState.LOST:
            self._losses += 1
        if not session_id:
            self._last_reply = -math.inf
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None
        for listener in list(self._listeners.values()):
            try:
                listener(state)
            except Exception:
                logger.exception("state listener failed", session=hex(self._session_id))

    def measured(self, sent: float) -> None:
        """Note that a call was answered that was sent at ``sent``."""
        now = self._clock.monotonic()
        self._round_trips.note(now, now - sent)

    def answered(self, sent: float, session_id: int) -> None:
        """Note that the leader answered a call of this session that was sent at ``sent``."""
        if session_id == self._session_id and sent > self._last_reply:
            self._last_reply = sent

    def _check_same_session(self, losses: int, *, applied: bool) -> None:
        """Raise if the session of a call ended before its answer.

        A loop that is blocked learns late that a session ended. Meanwhile the request may have been
        sent in the next session. An ephemeral node that it created belongs to that session, of
        which the caller does not know.

        Args:
            losses: ``_losses`` when the call began.
            applied: The answer says that a write was applied.
        """
        if losses == self._losses:
            return
        if applied:
            raise ConnectionLost(
                "the session ended before the answer: the call was applied, in that session or in "
                "the next one; read to see which"
            )
        raise SessionExpired("the session ended before the answer; nothing was applied")

    async def _admit(self) -> int:
        """Admit one call: wait for a free slot and for the connection, in bounded time.

        Returns the number of sessions lost so far, for ``_check_same_session``. The caller releases
        its slot (``_slots``) at the end of the call.

        Raises:
            NotConnected: No connection came in time.
            SessionExpired: The session ended while the call waited.
            InvalidState: The coordinator is closed.
        """
        losses = self._losses
        limit_s = CALL_TIMEOUT_RATIO * self._session_timeout_s
        if self._slots.locked():
            try:
                async with asyncio.timeout(limit_s):
                    await self._slots.acquire()
            except TimeoutError:
                raise NotConnected(self._too_late(limit_s)) from None
        else:
            await self._slots.acquire()  # does not suspend
        try:
            if self._state is not SessionState.CONNECTED:
                await self._wait_connected(limit_s)
            if losses != self._losses:
                raise SessionExpired("the session ended while the call waited; nothing was sent")
        except BaseException:
            self._slots.release()
            raise
        return losses

    async def _wait_connected(self, limit_s: float) -> None:
        losses = self._losses
        try:
            async with asyncio.timeout(limit_s):
                while self._state is not SessionState.CONNECTED and losses == self._losses:
                    if self._state is SessionState.CLOSED:
                        raise InvalidState(f"the coordinator is closed: {self._why_closed}")
                    if self._changed is None:
                        self._changed = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._changed)
        except TimeoutError:
            raise NotConnected(self._too_late(limit_s)) from None

    def _too_late(self, limit_s: float) -> str:
        return f"no connection to ZooKeeper within {limit_s:g} s ({self.describe()}); nothing sent"

    def describe(self) -> str:
        """Return the address of this coordinator's servers, for messages."""
        return "in memory"


def check_path(path: str) -> str:
    """Return ``path`` if it is relative and has no empty, ``.`` or ``..`` part.

    Raises:
        InvalidArgument: It is not such a path.
    """
    if path and any(part in {"", ".", ".."} or "\0" in part for part in path.split("/")):
        raise InvalidArgument(f"znode path {path!r} is not relative or has an empty or dotted part")
    return path


def check_data(path: str, data: bytes) -> bytes:
    """Return ``data`` if it fits into a znode.

    Raises:
        InvalidArgument: It is too large.
    """
    if len(data) > NODE_BYTES_MAX:
        raise InvalidArgument(f"{len(data)} bytes for {path!r} exceed {NODE_BYTES_MAX}")
    return data


def check_reads(paths: Sequence[str]) -> Sequence[str]:
    """Return the paths if so many nodes can be read at once.

    Raises:
        InvalidArgument: They are too many, or one of them is no path.
    """
    if len(paths) > READS_PER_CALL_MAX:
        raise InvalidArgument(f"{len(paths)} nodes in one read exceed {READS_PER_CALL_MAX}")
    for path in paths:
        check_path(path)
    return paths


def check_operations(operations: Sequence[Operation]) -> None:
    """Check the operations of a ``multi``: their number, paths and sizes.

    Raises:
        InvalidArgument: One of these is not valid.
    """
    if not 1 <= len(operations) <= MULTI_OPERATIONS_MAX:
        raise InvalidArgument(
            f"a multi of {len(operations)} operations is outside [1, {MULTI_OPERATIONS_MAX}]"
        )
    size = 0
    for operation in operations:
        check_path(operation.path)
        size += len(operation.path)
        if isinstance(operation, Create | Set):
            size += len(operation.data)
    if size > NODE_BYTES_MAX:
        raise InvalidArgument(f"a multi of {size} bytes exceeds {NODE_BYTES_MAX}")


async def end_task(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end; a cancellation of the caller is still raised."""
    task.cancel()
    await asyncio.wait({task})


def void(_: object) -> None:
    """Ignore the argument and return None, to give a lambda the type ``Callable[..., None]``."""
