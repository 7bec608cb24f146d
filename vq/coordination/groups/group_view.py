"""A member's cache of its group: the other members, and the last claim of each partition.

All nodes are read once; after that only the changed ones. Each read sets a watch, a watch that
fires marks its node, and ``members`` and ``assigned`` read marked nodes again. So when a member
joins, each of the others reads one node, and one more for each partition that moved.

Watches may be lost. So after a lost connection ``doubt`` marks all nodes, and ``audit`` marks some
of them each time, so that over time all are compared with the tree.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from vq.coordination.groups.groups import MemberView, decode_member
from vq.coordination.tree.coordinator import (
    Coordinator,
    EventKind,
    Node,
    NoNode,
    WatchEvent,
    join,
    parent_of,
)
from vq.coordination.tree.reading import children_or_none, gather_all
from vq.coordination.tree.values.consumers import Assignment, Member
from vq.model import TopicPartition

T = TypeVar("T")

#: Values below one parent that an audit marks; the next audit continues behind them.
AUDITED_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Assigned:
    """The last claim of a partition: the member, and the version of the assignment's node."""

    member: str
    version: int


class GroupView:
    """The members and assignments of one group, kept fresh by watches. Loop-bound, one reader.

    Args:
        coordinator: A started coordinator.
        group: The name of the group.
        on_members: Called when a member joins, leaves or changes; must not block.
    """

    def __init__(
        self, coordinator: Coordinator, group: str, *, on_members: Callable[[], None]
    ) -> None:
        self._coordinator = coordinator
        self._group = group
        self._members = _Children(
            coordinator, Member.parent(group), decode_member, on_change=on_members
        )
        self._topics: dict[str, _Children[Assigned]] = {}

    async def members(self) -> dict[str, MemberView]:
        """Return the members, sorted by name."""
        found = await self._members.read()
        return dict(sorted(found.items()))

    async def assigned(self, topics: Iterable[str]) -> dict[TopicPartition, Assigned]:
        """Return the last claim of every partition of ``topics`` that was ever claimed."""
        wanted = sorted(set(topics))
        for gone in self._topics.keys() - set(wanted):
            del self._topics[gone]
        result: dict[TopicPartition, Assigned] = {}
        for topic in wanted:
            if topic not in self._topics:
                parent = Assignment.parent(self._group, topic)
                self._topics[topic] = _Children(self._coordinator, parent, _decode_assigned)
            found = await self._topics[topic].read()
            result |= {
                TopicPartition(topic, int(name)): value
                for name, value in found.items()
                if name.isdecimal()
            }
        return result

    def doubt(self) -> None:
        """Mark everything to be read again."""
        for children in self._all():
            children.doubt()

    def audit(self) -> None:
        """Mark the names, and some of the values of each kind, to be read again."""
        for children in self._all():
            children.audit(AUDITED_AT_ONCE)

    def _all(self) -> "list[_Children[MemberView] | _Children[Assigned]]":
        return [self._members, *self._topics.values()]


class _Children(Generic[T]):
    """The children of one node and their values; reads those that are new or marked."""

    def __init__(
        self,
        coordinator: Coordinator,
        parent: str,
        decode: Callable[[str, Node], T],
        *,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._parent = parent
        self._decode = decode
        self._on_change = on_change
        self._listed = False
        self._values: dict[str, T] = {}
        self._stale: set[str] = set()
        self._doubted = False  # all is marked already; a lost connection fires many watches
        self._audited = 0

    async def read(self) -> Mapping[str, T]:
        """Return name and value of every child."""
        self._doubted = False
        await self._list()
        # A watch may fire before its read returns; a name marked from here on is read next time.
        names, self._stale = sorted(self._stale), set()
        try:
            nodes = await gather_all(self._get(name) for name in names)
            for name, node in zip(names, nodes, strict=True):
                if node is None:
                    self._values.pop(name, None)
                else:
                    self._values[name] = self._decode(join(self._parent, name), node)
        except BaseException:  # also if a value cannot be decoded, because its node exists
            self._stale.update(names)
            raise
        if self._doubted:  # the connection ended during the reads: the new watches are gone, too
            self._stale.update(self._values)
        return self._values

    def doubt(self) -> None:
        if not self._doubted:
            self._doubted = True
            self._listed = False
            self._stale.update(self._values)

    def audit(self, count: int) -> None:
        self._listed = False
        names = sorted(self._values)
        if names:
            start = self._audited % len(names)
            part = (names[start:] + names[:start])[:count]
            self._stale.update(part)
            self._audited = start + len(part)

    async def _list(self) -> None:
        if self._listed:
            return
        self._listed = True
        try:
            names = set(await children_or_none(self._coordinator, self._parent, watch=self._hint))
        except BaseException:
            self._listed = False
            raise
        self._values = {name: value for name, value in self._values.items() if name in names}
        self._stale = (self._stale & names) | (names - self._values.keys())

    async def _get(self, name: str) -> Node | None:
        try:
            return await self._coordinator.get(join(self._parent, name), watch=self._hint)
        except NoNode:
            return None

    def _hint(self, event: WatchEvent) -> None:
        if event.kind is EventKind.DISCONNECTED:
            self.doubt()
        elif event.path == self._parent:
            self._listed = False
        elif parent_of(event.path) == self._parent:
            self._stale.add(event.path.rpartition("/")[2])
        if self._on_change is not None:
            self._on_change()


def _decode_assigned(path: str, node: Node) -> Assigned:
    return Assigned(Assignment.decode(path, node.data).member, node.stat.version)
