"""The ``Coordinator`` port: what vq needs of ZooKeeper, as values, errors and one protocol.

In here: sessions and their states, znode values and stats, watches, the operations of a ``multi``,
and the errors. Not in here: any implementation (``zk`` speaks to a real ensemble, ``memory`` is its
twin), nor what the tree of vq looks like (``paths``).

    SessionState      CONNECTED    calls are answered
                      SUSPENDED    the connection is gone, the session perhaps not: pause
                      LOST         the session ended, its ephemeral nodes are gone; a new session
                                   is being made and CONNECTED follows by itself
                      CLOSED       before ``start``, after ``close``, or given up: nothing follows

A session that is lost always passes LOST, even when the new one is there at once: count the
transitions with a listener, never poll ``state``. Neither CONNECTED nor the absence of LOST proves
that the session lives: to know that, compare ``last_reply_monotonic`` with the clock.
"""

import enum
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from vq.errors import CoordinationError

#: Largest value of one znode; ZooKeeper itself refuses requests above 1 MiB.
NODE_BYTES_MAX = 512 * 1024
#: Most operations in one ``multi``.
MULTI_OPERATIONS_MAX = 1_000
#: Calls of one coordinator that may be under way; further calls wait.
CALLS_IN_FLIGHT_MAX = 1_024


class SessionState(enum.Enum):
    """The state of a session; see the module's text."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"


class EventKind(enum.Enum):
    """What happened to a watched node."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"
    #: The connection ended, and the watch with it: read again.
    DISCONNECTED = "disconnected"


class WatchEvent(NamedTuple):
    """A hint that something about ``path`` changed. The truth is what a read says."""

    kind: EventKind
    path: str


class Stat(NamedTuple):
    """Version, creation and owner of a znode.

    ``czxid`` is unique to this creation of the node; ``ephemeral_owner`` is the session id that
    the node ends with, 0 for persistent ones.
    """

    version: int
    czxid: int
    ephemeral_owner: int
    mtime_ms: int


class Node(NamedTuple):
    """A znode's value and stat, read together."""

    data: bytes
    stat: Stat


class Create(NamedTuple):
    """Part of a ``multi``: create a node; fails with ``NodeExists`` or (no parent) ``NoNode``."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    """Part of a ``multi``: set a value if the node has ``version`` (-1: any)."""

    path: str
    data: bytes
    version: int = -1


class Delete(NamedTuple):
    """Part of a ``multi``: delete a childless node if it has ``version`` (-1: any)."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """Part of a ``multi``: do nothing, but fail unless the node has ``version`` (-1: exists)."""

    path: str
    version: int


Operation = Create | Set | Delete | Check
Watch = Callable[[WatchEvent], None]
Listener = Callable[[SessionState], None]


class _PathError(CoordinationError):
    """ZooKeeper refused an operation on a path: nothing was changed."""

    retriable: ClassVar[bool] = False
    hint: ClassVar[str] = ""

    def __init__(self, path: str, message: str = "") -> None:
        super().__init__(f"{message or self.hint}: {path!r}", details={"path": path})
        self.path = path


class NoNode(_PathError):
    """There is no such node (or, for a create, no parent)."""

    hint = "there is no such znode"


class NodeExists(_PathError):
    """The node to create is there already."""

    hint = "the znode exists already"


class BadVersion(_PathError):
    """Somebody changed the node since it was read."""

    hint = "the znode was changed by somebody else"


class NotEmpty(_PathError):
    """The node to delete has children."""

    hint = "the znode still has children"


_UNREACHABLE_HINT: Final = "check that ZooKeeper runs at the configured address: `vq doctor`"


class ConnectionLost(CoordinationError):
    """The connection ended before the answer: a write may or may not have been applied.

    Also where the session ended before the answer and the write was applied, in that session or in
    the next one: what it was to make may be gone with the first, or be there and the second's.
    """

    hint = _UNREACHABLE_HINT


class NotConnected(ConnectionLost):
    """There was no connection within the time of the call: certainly nothing was sent."""


class SessionExpired(CoordinationError):
    """The session that the call began in has ended; nothing was applied."""

    hint = _UNREACHABLE_HINT


class Coordinator(Protocol):
    """A session with ZooKeeper below one cluster's root. Used on one event loop only.

    Paths are relative to the root ``/vq/<cluster>`` and have no leading slash; ``""`` is the root
    itself. While SUSPENDED or LOST, calls wait for the connection, up to one and a half session
        time-outs, then raise ``NotConnected``; a call that waits while its session ends raises
    ``SessionExpired``; no answer of another session than the one it was begun in is ever returned.
    Reads may be stale (a server may be behind) until this client writes or calls ``sync``; what
    they do not show yet, a watch that they set tells of. Nothing is ever retried in
    here: a lost reply is raised as ``ConnectionLost``, and the caller reads to see what was
    applied.
    """

    @property
    def session_id(self) -> int:
        """The present session, 0 while there is none."""
        ...

    @property
    def state(self) -> SessionState:
        """The state that the listeners were called with last."""
        ...

    @property
    def why_closed(self) -> str:
        """Why it is CLOSED, for messages."""
        ...

    @property
    def session_timeout_s(self) -> float:
        """The time-out agreed with the server (before the first connection: the one asked for)."""
        ...

    @property
    def last_reply_monotonic(self) -> float:
        """When the last *answered* write or ``sync`` of this session was sent, on the clock.

        The session was alive at that moment, so it lives until then + ``session_timeout_s``. A
        heartbeat keeps it fresh. Minus infinity while there is no session.
        """
        ...

    async def start(self, timeout_s: float = 15.0) -> None:
        """Connect, make a session and the cluster's root.

        Raises:
            CoordinationError: No session within ``timeout_s``; names the address and what to do.
        """
        ...

    async def close(self) -> None:
        """End the session cleanly: its ephemeral nodes go at once. Closing twice is fine."""
        ...

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        """Read a node; a watch fires once, when the node is changed or deleted.

        Watches are called on the loop and must not block. One may be called before the read that
        set it returns. DISCONNECTED comes with the path ``""``, whichever path was watched.
        Pass the same (equal) callable when watching a path again: equal ones on one path are held,
        and fire, once.

        Raises:
            NoNode: It does not exist; no watch is left.
        """
        ...

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        """Return the stat or None; a watch fires once on creation, change or deletion."""
        ...

    async def children(self, path: str, *, watch: Watch | None = None) -> list[str]:
        """Return the sorted names of the children; a watch fires once when they change.

        Raises:
            NoNode: It does not exist; no watch is left.
        """
        ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False
    ) -> Stat:
        """Create a node, with ``parents`` also the missing (persistent, empty) nodes above it.

        Raises:
            NodeExists: It is there already.
            NoNode: The parent is missing.
        """
        ...

    async def set(self, path: str, data: bytes, *, version: int = -1) -> Stat:
        """Set the value if the node has ``version`` (-1: any).

        Raises:
            NoNode, BadVersion: Nothing was changed.
        """
        ...

    async def delete(self, path: str, *, version: int = -1) -> None:
        """Delete a node without children if it has ``version`` (-1: any).

        Raises:
            NoNode, BadVersion, NotEmpty: Nothing was changed.
        """
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[Stat | None]:
        """Apply all operations or none; returns the new stat for every ``Set``, else None.

        At most ``MULTI_OPERATIONS_MAX`` operations.

        Raises:
            NoNode, NodeExists, BadVersion, NotEmpty: Of the first operation that failed
                (``details["index"]`` says which); nothing was applied.
        """
        ...

    async def sync(self, path: str = "") -> None:
        """Let the server catch up with the leader, so that later reads are not stale."""
        ...

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` on the loop at each change of state; return its remover.

        Listeners must not block and must not await calls: they only enqueue.
        """
        ...


def join(*parts: str) -> str:
    """Join path parts with one slash, leaving out empty ones."""
    return "/".join(part for part in parts if part)


def parent_of(path: str) -> str:
    """Return the path of the parent; of a top node that is the root ``""``."""
    return path.rpartition("/")[0]
