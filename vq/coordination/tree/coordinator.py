"""The ``Coordinator`` port: vq's view of ZooKeeper, as values, errors and one protocol.

It has sessions and their states, znode values and stats, watches, the operations of a ``multi``,
and the errors. The implementations are in ``zk`` (a real ensemble) and ``memory`` (its twin). The
tree of vq is in ``paths``.

    SessionState      CONNECTED    calls are answered
                      SUSPENDED    the connection is gone, the session may be alive: pause
                      LOST         the session ended, its ephemeral nodes are gone; the coordinator
                                   opens a new session, and CONNECTED follows by itself
                      CLOSED       before ``start``, after ``close``, or given up: nothing follows

A lost session always passes LOST, even if a new one begins at once: count the transitions with a
listener, never poll ``state``. Neither CONNECTED nor the absence of LOST proves that the session is
alive; to know it, compare ``last_reply_monotonic`` with the clock.
"""

import enum
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from vq.errors import CoordinationError

#: Largest value of one znode; ZooKeeper refuses requests above 1 MiB.
NODE_BYTES_MAX = 512 * 1024
#: Most operations in one ``multi``.
MULTI_OPERATIONS_MAX = 1_000
#: Most nodes in one ``get_many``: a server answers others between two of them.
READS_PER_CALL_MAX = 200
#: Concurrent calls of one coordinator; further calls wait.
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
    #: The connection ended, and the watch is gone: read again.
    DISCONNECTED = "disconnected"


class WatchEvent(NamedTuple):
    """A hint that ``path`` may have changed; only a read shows the present state."""

    kind: EventKind
    path: str


class Stat(NamedTuple):
    """Version, creation and owner of a znode.

    ``czxid`` is unique to this creation of the node. ``ephemeral_owner`` is the id of the session
    that owns an ephemeral node, 0 for a persistent one. ``children_version`` rises when a child is
    created or deleted.
    """

    version: int
    czxid: int
    ephemeral_owner: int
    mtime_ms: int
    children_version: int = 0


class Node(NamedTuple):
    """A znode's value and stat, read together."""

    data: bytes
    stat: Stat


class Listing(NamedTuple):
    """The sorted names of a znode's children and its stat, read together."""

    names: list[str]
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
    hint = ""

    def __init__(self, path: str, message: str = "") -> None:
        super().__init__(f"{message or self.hint}: {path!r}", details={"path": path})
        self.path = path


class NoNode(_PathError):
    """There is no such node (or, for a create, no parent)."""

    hint = "there is no such znode"


class NodeExists(_PathError):
    """The node to create exists already."""

    hint = "the znode exists already"


class BadVersion(_PathError):
    """Another writer changed the node since it was read."""

    hint = "another writer changed the znode"


class NotEmpty(_PathError):
    """The node to delete has children."""

    hint = "the znode still has children"


class Unreadable(CoordinationError):
    """A znode has something else than the value that belongs there; the text has its path."""

    hint = (
        "put back the value that belongs there from a copy of the tree (`vq zk import FILE --below "
        "PATH --replace`); docs/coordination.md has what it is"
    )


class NotAllowed(Unreadable):
    """The ACL of a znode does not let this client do what it asks for: nothing was changed."""

    retriable: ClassVar[bool] = False
    hint = (
        "set zookeeper_auth to an identity that may (docs/howto/secure-zookeeper.md), or run "
        "`vq zk secure` as an operator"
    )

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the ACL of the znode does not allow this to vq: {path!r}", details={"path": path}
        )
        self.path = path


_UNREACHABLE_HINT: Final = "check that ZooKeeper runs at the configured address: `vq doctor`"


class ConnectionLost(CoordinationError):
    """The connection to ZooKeeper ended before the answer: a write may have been applied, or not.

    Also raised if the session ended before the answer and the write was applied, in that session or
    in the next one. An ephemeral node may have ended with the first session, or belong to the
    second one.
    """

    hint = _UNREACHABLE_HINT


class NotConnected(ConnectionLost):
    """The call found no connection in time: certainly nothing was sent."""


class SessionExpired(CoordinationError):
    """The session that the call began in has ended; nothing was applied."""

    hint = _UNREACHABLE_HINT


class NodeRights(enum.IntFlag):
    """The rights that ZooKeeper knows, with its numbers."""

    NONE = 0
    READ = 1  # the value, the names of children, the ACL
    WRITE = 2  # the value
    CREATE = 4  # children
    DELETE = 8  # children
    ADMIN = 16  # the ACL
    ALL = 31

    @property
    def letters(self) -> str:
        """As zkCli writes them."""
        known = zip("cdrwa", (4, 8, 1, 2, 16), strict=True)
        return "".join(letter for letter, bit in known if self & bit)


class Grant(NamedTuple):
    """NodeRights of one identity on one node.

    Attributes:
        scheme: ``digest``, or ``world`` for anybody.
        id: ``name:hash`` of a digest, or ``anyone``.
        rights: What it may do.
    """

    scheme: str
    id: str
    rights: NodeRights


Acl = frozenset[Grant]
#: Of a node that anybody may do anything with.
OPEN: Final[Acl] = frozenset({Grant("world", "anyone", NodeRights.ALL)})

#: What was read of a node: None for a missing one, an error for one that may not be read.
Read = Node | NotAllowed | None


class Coordinator(Protocol):
    """A session with ZooKeeper below one cluster's root. Loop-bound.

    Paths are relative to the root ``/vq/<cluster>`` and have no leading slash; ``""`` is the root
    itself. While SUSPENDED or LOST, calls wait for the connection, up to one and a half session
    time-outs, and then raise ``NotConnected``. A call that waits while its session ends raises
    ``SessionExpired``; a call never returns an answer of another session.

    Reads may be stale (a server may be behind) until this client writes or calls ``sync``. A watch
    that such a read sets fires for the changes that the read did not show. A coordinator never
    retries: it raises ``ConnectionLost`` for a lost reply, and the caller reads to see the outcome.
    """

    @property
    def session_id(self) -> int:
        """The id of the present session, 0 while there is none."""
        ...

    @property
    def state(self) -> SessionState:
        """The state of the last call of the listeners."""
        ...

    @property
    def why_closed(self) -> str:
        """Why the coordinator is CLOSED, for messages."""
        ...

    @property
    def session_timeout_s(self) -> float:
        """The time-out that the server granted; before the first connection: the requested one."""
        ...

    @property
    def last_reply_monotonic(self) -> float:
        """The send time of the last *answered* write or ``sync`` of this session.

        The session was alive at that time, so it lives at least ``session_timeout_s`` longer. A
        heartbeat renews the time. It is minus infinity while there is no session.
        """
        ...

    @property
    def round_trip_s(self) -> float:
        """The longest that an answered call took lately; a heartbeat is one. See ``round_trip``."""
        ...

    async def start(self, timeout_s: float = 15.0) -> None:
        """Connect, open a session and create the cluster's root.

        Raises:
            CoordinationError: There is no session within ``timeout_s``. The message has the address
                and what to do.
        """
        ...

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes at once. Closing twice is a no-op."""
        ...

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        """Read a node; a watch fires once, when the node is changed or deleted.

        Watches are called on the loop and must not block. A watch may be called before the read
        that set it returns. DISCONNECTED comes with the path ``""``, whichever path was watched.
        Pass the same (equal) callable to watch a path again: equal callables on one path are stored
        and called once.

        Raises:
            NoNode: It does not exist; no watch is left.
        """
        ...

    async def get_many(self, paths: Sequence[str]) -> "list[Read]":
        """Read up to ``READS_PER_CALL_MAX`` nodes with one request; None for each missing one.

        Each is read by itself: they need not have been so at one moment, and a node that may not be
        read has its error in the list. There are no watches.
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

    async def listing(self, path: str, *, watch: Watch | None = None) -> Listing:
        """Return what ``children`` returns, and the stat of the node at that moment."""
        ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False
    ) -> Stat:
        """Create a node, with ``parents`` also the missing (persistent, empty) nodes above it.

        Raises:
            NodeExists: It exists already.
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
        """Apply all operations or none; return the new stat of every ``Set``, None for the others.

        At most ``MULTI_OPERATIONS_MAX`` operations.

        Raises:
            NoNode, NodeExists, BadVersion, NotEmpty: The error of the first operation that failed;
                ``details["index"]`` is its index. Nothing was applied.
        """
        ...

    async def acl(self, path: str) -> Acl:
        """Return who may do what with a node.

        Raises:
            NoNode: It does not exist.
        """
        ...

    async def set_acl(self, path: str, acl: Acl) -> None:
        """Say who may do what with a node. It holds for that node alone.

        Raises:
            NoNode: It does not exist.
        """
        ...

    async def sync(self, path: str = "") -> None:
        """Wait until the server has caught up with the leader, so that later reads are fresh."""
        ...

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` on the loop at each change of state; return a function to remove it.

        Listeners must not block or await calls: they only enqueue.
        """
        ...


def join(*parts: str) -> str:
    """Join path parts with one slash, leaving out empty ones."""
    return "/".join(part for part in parts if part)


def parent_of(path: str) -> str:
    """Return the path of the parent; for a top node the root ``""``."""
    return path.rpartition("/")[0]
