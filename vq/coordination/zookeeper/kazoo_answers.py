"""What kazoo answers and calls back with, in the words of the port (``coordinator``)."""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.exceptions import OperationTimeoutError as KazooOperationTimeout
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

from vq.coordination.tree.coordinator import (
    BadVersion,
    ConnectionLost,
    EventKind,
    Node,
    NodeExists,
    NoNode,
    NotAllowed,
    NotEmpty,
    Read,
    SessionExpired,
    Stat,
    Watch,
    WatchEvent,
)
from vq.errors import CoordinationError
from vq.log_lines import get_logger

if TYPE_CHECKING:
    from vq.coordination.zookeeper.zk import ZooKeeperCoordinator


logger = get_logger(__name__)

#: How long a new connection waits for the server's first answer, as a part of the session time-out.
#: Each further connection waits twice as long, up to a whole time-out.
FIRST_PATIENCE_RATIO: Final = 1 / 8
_KINDS: Final = {
    EventType.CREATED: EventKind.CREATED,
    EventType.CHANGED: EventKind.CHANGED,
    EventType.DELETED: EventKind.DELETED,
    EventType.CHILD: EventKind.CHILDREN,
    EventType.NONE: EventKind.DISCONNECTED,
}
_PATH_ERRORS: Final[dict[type[KazooException], Callable[[str], CoordinationError]]] = {
    NoNodeError: NoNode,
    NodeExistsError: NodeExists,
    BadVersionError: BadVersion,
    NotEmptyError: NotEmpty,
    NoAuthError: NotAllowed,
}


class WatchOnce:
    """The function that kazoo calls on its thread for one watch.

    Two of them are equal for equal callbacks. kazoo keeps the watches of a path in a set, so a
    second watch with the same callback is a no-op, and kazoo's set matches the server's.
    """

    __slots__ = ("_callback", "_owner")

    def __init__(self, owner: "ZooKeeperCoordinator", callback: Watch) -> None:
        self._owner = owner
        self._callback = callback

    def __call__(self, event: WatchedEvent) -> None:
        self._owner.post(self._deliver, event)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WatchOnce)
            and other._owner is self._owner
            and other._callback == self._callback
        )

    def __hash__(self) -> int:
        return hash(self._callback)

    def _deliver(self, event: WatchedEvent) -> None:
        path = self._owner.relative(event.path or "")
        try:
            self._callback(WatchEvent(_KINDS[event.type], path))
        except Exception:
            logger.exception("watch callback failed", zookeeper=self._owner.describe(), path=path)


def set_result(future: "asyncio.Future[Any]", result: Any) -> None:
    if future.done():
        return
    if result.exception is not None:
        future.set_exception(result.exception)
    else:
        future.set_result(result.value)


def read_of(found: Any, path: str) -> Read:
    """Return one part of the answer to ``get_many``; raise an error that is not of its node."""
    if isinstance(found, Exception):
        error = translated(found, path)
        if isinstance(error, NotAllowed):
            return error
        raise error
    return None if found is None else Node(found[0], stat_of(found[1]))


def stat_of(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.czxid, stat.ephemeralOwner, stat.mtime, stat.cversion)


def translated(error: Exception, path: str) -> CoordinationError:
    for theirs, ours in _PATH_ERRORS.items():
        if isinstance(error, theirs):
            return ours(path)
    if isinstance(error, SessionExpiredError):
        return SessionExpired(f"the session with ZooKeeper ended; nothing was applied to {path!r}")
    if isinstance(error, ConnectionLoss | ConnectionClosedError | KazooOperationTimeout):
        return ConnectionLost(f"the connection to ZooKeeper ended before the answer about {path!r}")
    return CoordinationError(f"ZooKeeper refused a call about {path!r}: {error!r}")


def mind_connecting(
    client: KazooClient, asked_timeout_s: float, granted_s: MutableMapping[KazooClient, float]
) -> None:
    """Bound the wait for the answer to a new connection, and keep the granted time-out.

    A ZooKeeper that is starting accepts connections a few hundredths of a second before it can
    serve them, and never answers these. kazoo would wait a whole session time-out, and the
    session would end. So the first attempt waits only a short time. Each attempt without an
    answer makes the next one wait longer, because an ensemble may be slow to confirm a session.
    The answer has the granted time-out, which kazoo does not show.
    """
    connection = client._connection
    invoke = connection._invoke
    first_s = patience_s = asked_timeout_s * FIRST_PATIENCE_RATIO

    def bounded(timeout: float, request: Any, xid: int | None = None) -> Any:
        nonlocal patience_s
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        try:
            answer = invoke(min(timeout, patience_s), request, xid)
        except client.handler.timeout_exception:
            patience_s = min(2 * patience_s, asked_timeout_s)
            raise
        patience_s = first_s
        if answer[0].time_out > 0:
            granted_s[client] = answer[0].time_out / 1000
        return answer

    connection._invoke = bounded
