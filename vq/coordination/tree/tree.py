"""The znodes of the in-memory twin: a plain synchronous tree with ZooKeeper's rules.

It has versions, czxids, ephemeral owners, atomic ``multi`` and the events for watches. ``memory``
adds sessions, connections, time and tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vq.coordination.tree.coordinator import (
    OPEN,
    Acl,
    BadVersion,
    Check,
    Create,
    Delete,
    EventKind,
    Node,
    NodeExists,
    NodeRights,
    NoNode,
    NotAllowed,
    NotEmpty,
    Operation,
    Set,
    Stat,
    WatchEvent,
    parent_of,
)
from vq.errors import CoordinationError

ANY_VERSION: Final = -1


@dataclass(slots=True)
class _Znode:
    data: bytes
    czxid: int
    ephemeral_owner: int
    mtime_ms: int
    version: int = 0
    children: set[str] = field(default_factory=set)
    children_version: int = 0
    acl: Acl = OPEN

    @property
    def stat(self) -> Stat:
        return Stat(
            self.version,
            self.czxid,
            self.ephemeral_owner,
            self.mtime_ms,
            self.children_version,
        )


class ZnodeTree:
    """All znodes of one ensemble. Writes return the events for watches, in order.

    Paths are absolute without the leading slash. Not thread-safe.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Znode] = {"": _Znode(b"", 0, 0, 0)}
        self.zxid = 0

    def copy(self) -> "ZnodeTree":
        """Return an independent copy of the tree."""
        other = ZnodeTree()
        other.zxid = self.zxid
        other._nodes = {
            path: replace(each, children=set(each.children)) for path, each in self._nodes.items()
        }
        return other

    def get(self, path: str) -> Node:
        """Return the value and the stat.

        Raises:
            NoNode: It does not exist.
            NotAllowed: Nobody may read it.
        """
        node = self._readable(path)
        return Node(node.data, node.stat)

    def exists(self, path: str) -> Stat | None:
        """Return the stat, or None."""
        node = self._nodes.get(path)
        return node.stat if node is not None else None

    def children(self, path: str) -> list[str]:
        """Return the sorted names of the children.

        Raises:
            NoNode: It does not exist.
            NotAllowed: Nobody may read it.
        """
        return sorted(self._readable(path).children)

    def acl(self, path: str) -> Acl:
        """Return the ACL; only the right of anybody to read is minded here.

        Raises:
            NoNode: It does not exist.
        """
        return self._node(path).acl

    def set_acl(self, path: str, acl: Acl) -> None:
        """Set the ACL.

        Raises:
            NoNode: It does not exist.
        """
        self._node(path).acl = acl

    def apply(
        self, operations: Sequence[Operation], *, session: int, now_ms: int
    ) -> tuple[list[Stat | None], list[WatchEvent]]:
        """Apply all operations under one zxid, or none.

        ``session`` owns the ephemeral nodes that are created. The results are the new stats of
        ``Create`` and ``Set``, None for the others.

        Raises:
            CoordinationError: The error of the first operation that failed; ``details`` has its
                index.
        """
        undo: dict[str, _Znode | None] = {}
        self.zxid += 1
        results: list[Stat | None] = []
        events: list[WatchEvent] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._apply(operation, session, now_ms, undo, events))
            except CoordinationError as error:
                self._restore(undo)
                error.details["index"] = index
                raise
        return results, events

    def ephemerals(self, session: int) -> list[str]:
        """Return the sorted paths of a session's ephemeral nodes."""
        return sorted(path for path, node in self._nodes.items() if node.ephemeral_owner == session)

    def _apply(
        self,
        operation: Operation,
        session: int,
        now_ms: int,
        undo: dict[str, _Znode | None],
        events: list[WatchEvent],
    ) -> Stat | None:
        path = operation.path
        match operation:
            case Create():
                return self._create(operation, session, now_ms, undo, events)
            case Set():
                node = self._versioned(path, operation.version)
                self._remember(undo, path)
                node.data, node.mtime_ms = operation.data, now_ms
                node.version += 1
                events.append(WatchEvent(EventKind.CHANGED, path))
                return node.stat
            case Delete():
                if self._versioned(path, operation.version).children:
                    raise NotEmpty(path)
                self._remember(undo, path)
                self._remember(undo, parent_of(path))
                del self._nodes[path]
                parent = self._nodes[parent_of(path)]
                parent.children.discard(path.rpartition("/")[2])
                parent.children_version += 1
                events.append(WatchEvent(EventKind.DELETED, path))
                events.append(WatchEvent(EventKind.CHILDREN, parent_of(path)))
                return None
            case Check():
                self._versioned(path, operation.version)
                return None

    def _create(
        self,
        operation: Create,
        session: int,
        now_ms: int,
        undo: dict[str, _Znode | None],
        events: list[WatchEvent],
    ) -> Stat:
        path, parent_path = operation.path, parent_of(operation.path)
        parent = self._nodes.get(parent_path)
        if parent is None or not path:
            raise NoNode(path)
        if path in self._nodes:
            raise NodeExists(path)
        if parent.ephemeral_owner:
            raise CoordinationError(f"{parent_path!r} is ephemeral and may not have children")
        self._remember(undo, path)
        self._remember(undo, parent_path)
        owner = session if operation.ephemeral else 0
        node = self._nodes[path] = _Znode(operation.data, self.zxid, owner, now_ms)
        parent.children.add(path.rpartition("/")[2])
        parent.children_version += 1
        events.append(WatchEvent(EventKind.CREATED, path))
        events.append(WatchEvent(EventKind.CHILDREN, parent_path))
        return node.stat

    def _readable(self, path: str) -> _Znode:
        node = self._node(path)
        if not any(each.rights & NodeRights.READ for each in node.acl if each.scheme == "world"):
            raise NotAllowed(path)
        return node

    def _node(self, path: str) -> _Znode:
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def _versioned(self, path: str, version: int) -> _Znode:
        node = self._node(path)
        if version not in {ANY_VERSION, node.version}:
            raise BadVersion(path)
        return node

    def _remember(self, undo: dict[str, _Znode | None], path: str) -> None:
        if path not in undo:
            node = self._nodes.get(path)
            undo[path] = node and _Znode(
                node.data,
                node.czxid,
                node.ephemeral_owner,
                node.mtime_ms,
                node.version,
                set(node.children),
                node.children_version,
                node.acl,
            )

    def _restore(self, undo: dict[str, _Znode | None]) -> None:
        for path, node in undo.items():
            if node is None:
                self._nodes.pop(path, None)
            else:
                self._nodes[path] = node
