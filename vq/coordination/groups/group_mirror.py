"""A member's cache of its group: the contract, the other members, the last claim of each partition.

There are few watches, however many members and partitions a group has: on the contract, on the
names of the members, and on the names of the owner nodes of each topic. What is behind the names is
read many at a time, so a member reads its group with a few requests; after a change it reads the
partitions that were to move, and all of them only if others moved, too. A value is decoded once:
its version tells whether it changed.

    a member comes or goes     its name does
    a member changes           it deletes its node and makes it anew, in one ``multi``
    a partition is claimed     its owner node is made, or made anew
    a partition is reset       nobody is told; the member that has it finds out at its next commit

After a lost connection ``doubt`` has all of it looked at again, and so has ``audit``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from vq.coordination.groups.claims import Assigned, assigned_of
from vq.coordination.groups.groups import MemberView, member_of, read_group
from vq.coordination.tree.coordinator import (
    Coordinator,
    Listing,
    Node,
    Stat,
    Watch,
    join,
    parent_of,
)
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.paths import CONSUMERS
from vq.coordination.tree.reading import (
    children_or_none,
    listing_or_none,
    numbered_children,
    read_all,
)
from vq.coordination.tree.values.consumers import Assignment, ConsumerGroup, Member, Owner
from vq.model import TopicPartition

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _KnownNodes(Generic[K, T]):
    """What was read of many nodes of one kind."""

    stats: Mapping[K, Stat] = field(default_factory=dict)
    values: Mapping[K, T] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Claims:
    """The last claims in one topic, and the owner nodes as they were listed before that."""

    owners: Listing | None = None
    known: _KnownNodes[TopicPartition, Assigned] = field(default_factory=_KnownNodes)


class GroupMirror:
    """The contract, members and assignments of one group, kept fresh by watches.

    Loop-bound, one reader.

    Args:
        coordinator: A started coordinator.
        group: The name of the group.
        on_change: Called when a member joins, leaves or changes, or the contract changes; must not
            block.
        on_moves: Called when partitions were claimed or released; must not block. After that,
            nothing more is told before ``assigned`` is called.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        group: str,
        *,
        on_change: Callable[[], None],
        on_moves: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._group = group
        members = Member.parent(group)
        self._members_name = members.removeprefix(f"{parent_of(members)}/")
        self._members = Mirror(
            coordinator, parent_of(members), self._read_members, listed=False, on_hint=on_change
        )
        self._members.add(self._members_name)
        self._contract = Mirror(
            coordinator,
            CONSUMERS,
            partial(read_group, coordinator),
            listed=False,
            on_hint=on_change,
        )
        self._contract.add(group)
        self._expected: Collection[TopicPartition] = ()
        self._assigned = Mirror(  # by topic
            coordinator,
            parent_of(Owner.parent(group, "topic")),
            self._read_assigned,
            listed=False,
            on_hint=on_moves,
        )

    async def contract(self, *, again: bool = False) -> ConsumerGroup | None:
        """Return the contract, read ``again`` if that is said; None: there is none."""
        if again:
            return await self._contract.read(self._group)
        await self._contract.refresh()
        return self._contract.values.get(self._group)

    async def members(self) -> dict[str, MemberView]:
        """Return the members, sorted by name."""
        await self._members.refresh()
        return dict(self._members.values[self._members_name].values)

    async def assigned(self, topics: Iterable[str]) -> dict[TopicPartition, Assigned]:
        """Return the last claim of every partition of ``topics`` that was ever claimed."""
        wanted = sorted(set(topics))
        self._assigned.keep(set(wanted))
        for topic in wanted:
            self._assigned.add(topic)
        await self._assigned.refresh()
        found: dict[TopicPartition, Assigned] = {}
        for topic in wanted:
            found |= self._assigned.values[topic].known.values
        return found

    def expect(self, moves: Collection[TopicPartition]) -> None:
        """Note which partitions are likely to be claimed next; others may be claimed all the same.

        If as many claims were made as these tell of, no other one need be read.
        """
        self._expected = moves

    def doubt(self) -> None:
        """Have everything looked at again."""
        self._contract.doubt()
        self._members.doubt()
        self._assigned.doubt()

    def audit(self) -> None:
        """Have everything looked at again, since a watch may be lost."""
        self._contract.audit()
        self._members.audit()
        self._assigned.audit()

    async def _read_members(self, name: str, watch: Watch) -> _KnownNodes[str, MemberView]:
        """Read all members; each time, since one of an earlier version changes without a sign."""
        parent = Member.parent(self._group)
        names = await children_or_none(self._coordinator, parent, watch=watch)
        paths = {each: join(parent, each) for each in names}
        return await _read_again(
            self._coordinator, paths, member_of, self._members.values.get(name, _KnownNodes())
        )

    async def _read_assigned(self, topic: str, watch: Watch) -> _Claims:
        """Read the last claims in a topic: those that were expected to change, or else all.

        The owner nodes are listed first, so what is read then is at least as new as the list.
        """
        owners = await listing_or_none(
            self._coordinator, Owner.parent(self._group, topic), watch=watch
        )
        before = self._assigned.values.get(topic, _Claims())
        claims = owners_made(before.owners, owners)
        if claims is not None:
            likely = {each for each in self._expected if each.topic == topic} if claims else set()
            likely |= _came(topic, before.owners, owners)
            found = await self._read_claims(likely, before.known)
            if claims == _claims_in(found.values, before.known.values):
                known = before.known
                found = _KnownNodes(
                    {**known.stats, **found.stats}, {**known.values, **found.values}
                )
                return _Claims(owners, found)
        parent = Assignment.parent(self._group, topic)
        numbers = await numbered_children(self._coordinator, parent)
        every = [TopicPartition(topic, number) for number in numbers]
        return _Claims(owners, await self._read_claims(every, before.known))

    async def _read_claims(
        self, partitions: Iterable[TopicPartition], known: _KnownNodes[TopicPartition, Assigned]
    ) -> _KnownNodes[TopicPartition, Assigned]:
        paths = {each: Assignment.path(self._group, *each) for each in partitions}
        return await _read_again(self._coordinator, paths, _assigned_at, known)


def owners_made(before: Listing | None, now: Listing | None) -> int | None:
    """Return how many owner nodes were made between two listings, one for each claim; None: any.

    The version of the children tells how many were made or deleted, the names how many more there
    are.
    """
    if before is None or now is None or before.stat.czxid != now.stat.czxid:
        return None
    changes = now.stat.children_version - before.stat.children_version
    return (changes + len(now.names) - len(before.names)) // 2


def _came(topic: str, before: Listing | None, now: Listing | None) -> set[TopicPartition]:
    """Return the partitions that have an owner now, and had none."""
    assert before is not None
    assert now is not None
    names = set(now.names).difference(before.names)
    return {TopicPartition(topic, int(name)) for name in names if name.isdecimal()}


def _claims_in(
    now: Mapping[TopicPartition, Assigned], before: Mapping[TopicPartition, Assigned]
) -> int | None:
    """Return how many claims two reads of assignments tell of; None: one of them may be a reset."""
    claims = 0
    for partition, each in now.items():
        known = before.get(partition)
        claims += each.version - (0 if known is None else known.version)
        if each is not known and each.may_be_reset:
            return None
    return claims


def _assigned_at(_partition: TopicPartition, path: str, node: Node) -> Assigned:
    return assigned_of(path, node)


async def _read_again(
    coordinator: Coordinator,
    paths: Mapping[K, str],
    decode: Callable[[K, str, Node], T],
    known: _KnownNodes[K, T],
) -> _KnownNodes[K, T]:
    """Read nodes together; one that is ``known`` in its version is not decoded again."""
    nodes = await read_all(coordinator, list(paths.values()))
    stats: dict[K, Stat] = {}
    values: dict[K, T] = {}
    for (key, path), node in zip(paths.items(), nodes, strict=True):
        if node is not None:  # it went meanwhile: the watch tells
            is_known = known.stats.get(key) == node.stat
            stats[key] = node.stat
            values[key] = known.values[key] if is_known else decode(key, path, node)
    return _KnownNodes(stats, values)
