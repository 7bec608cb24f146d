"""Reads of the tree that topics, routes, groups and the registry share.

A topic is read as a whole once. After that, only the changes are read: its node, the list of
recently changed partitions, and these partitions. A view never mixes two topics of the same name,
and every partition in it is at least as new as the list.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from vq.coordination.tree.coordinator import (
    READS_PER_CALL_MAX,
    Coordinator,
    Listing,
    Node,
    NoNode,
    NotAllowed,
    Read,
    Stat,
    Watch,
    join,
)
from vq.coordination.tree.paths import TOPICS
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.topics import IN_GRACE, READY, TopicNode
from vq.errors import CoordinationError, UnknownTopic
from vq.model import PartitionPlacement, TopicDeletion, TopicOrigin, TopicSettings

T = TypeVar("T")

#: Reads of a topic that a change made invalid, before an error is raised.
SNAPSHOT_TRIES_MAX: Final = 20
#: Concurrent calls of one reader. A reader of many topics reads many partitions of each, so at most
#: the square of this waits for the coordinator.
AT_ONCE_MAX: Final = 64
#: Concurrent calls of a reader of many nodes, each with ``READS_PER_CALL_MAX`` of them.
BULK_CALLS_MAX: Final = 4
#: Phases in which a topic has all its partitions.
_WHOLE: Final = frozenset({READY, IN_GRACE})


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic with all its partitions, at ``version`` of its node.

    ``partition_versions`` are the versions of the partitions' nodes, for compare-and-set.
    ``created`` is the czxid of the topic's node; another topic of the same name has another one.
    Every partition is at least as new as version ``changes`` of the list of changes
    (``PlacementChanges``).
    """

    name: str
    id: str
    settings: TopicSettings
    version: int
    partitions: tuple[PartitionPlacement, ...]
    partition_versions: tuple[int, ...]
    phase: str = READY
    created: int = 0
    changes: int = 0
    origin: TopicOrigin | None = None
    deletion: TopicDeletion | None = None

    def with_partitions(self, found: "Mapping[int, PlacedVersion]") -> "TopicView":
        """Return the view with new placements of some partitions; unknown numbers are appended.

        For vq only.
        """
        placements, versions = list(self.partitions), list(self.partition_versions)
        for number in sorted(found):
            placement, version = found[number]
            if number < len(placements):
                placements[number], versions[number] = placement, version
            else:
                placements.append(placement)
                versions.append(version)
        return replace(self, partitions=tuple(placements), partition_versions=tuple(versions))


@dataclass(frozen=True, slots=True)
class CountedTopic:
    """One topic with the number of its partitions that are open on each group.

    The sum of ``open`` is the number of partitions; "" counts those that are open on no group. For
    a topic that is being created or deleted, ``open`` is empty.
    """

    name: str
    id: str
    settings: TopicSettings
    phase: str
    open: Mapping[str, int]
    origin: TopicOrigin | None = None
    deletion: TopicDeletion | None = None


#: A placement, and the version of the node it was read from.
PlacedVersion = tuple[PartitionPlacement, int]


async def gather_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Run calls, ``AT_ONCE_MAX`` at a time; return the results, or raise the first error.

    After an error, the other calls of the same step end before it is raised, and no further calls
    begin. Pass a generator: a call that is made early waits in the coordinator and may time out.
    """
    results: list[T] = []
    rest = iter(calls)
    while step := list(itertools.islice(rest, AT_ONCE_MAX)):
        for outcome in await asyncio.gather(*step, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            results.append(outcome)
    return results


async def read_latest(coordinator: Coordinator, path: str) -> Node:
    """Read a node as it is now, in one round trip: a server that lags behind catches up first.

    Both calls are under way at once; a server answers those of a session one after the other.

    Raises:
        NoNode: There is none.
        CoordinationError: ZooKeeper cannot be asked.
    """
    synced, found = await asyncio.gather(
        coordinator.sync(path), coordinator.get(path), return_exceptions=True
    )
    if isinstance(synced, BaseException):
        raise synced
    if isinstance(found, BaseException):
        raise found
    return found


async def read_together(
    coordinator: Coordinator,
    paths: Sequence[str],
    *,
    watched: Sequence[str] = (),
    watch: Watch | None = None,
) -> list[Node | None]:
    """Read some nodes in one round trip, in this order; None for a missing one.

    With ``watch``, it is set on those ``watched``, also on missing ones, before anything is read.

    Raises:
        NotAllowed: One of them may not be read.
        CoordinationError: ZooKeeper cannot be asked.
    """
    found: list[Node | None] = []

    async def read() -> None:
        found.extend(await read_all(coordinator, paths))

    async def set_watch(path: str) -> None:
        await coordinator.exists(path, watch=watch)

    # All are under way at once; a server answers the calls of a session one after the other.
    await gather_all([*(set_watch(each) for each in watched), read()])
    return found


async def read_all(coordinator: Coordinator, paths: Sequence[str]) -> list[Node | None]:
    """Read any number of nodes with few requests, in this order; None for a missing one.

    Raises:
        NotAllowed: One of them may not be read.
        CoordinationError: ZooKeeper cannot be asked.
    """
    nodes: list[Node | None] = []
    for each in await read_nodes(coordinator, paths):
        if isinstance(each, NotAllowed):
            raise each
        nodes.append(each)
    return nodes


async def read_nodes(coordinator: Coordinator, paths: Sequence[str]) -> list[Read]:
    """Read any number of nodes, ``BULK_CALLS_MAX`` requests at a time; see ``get_many``."""
    found: list[Read] = []
    size = READS_PER_CALL_MAX
    for first in range(0, len(paths), size * BULK_CALLS_MAX):
        step = paths[first : first + size * BULK_CALLS_MAX]
        calls = (coordinator.get_many(step[i : i + size]) for i in range(0, len(step), size))
        for nodes in await gather_all(calls):
            found += nodes
    return found


async def children_or_none(
    coordinator: Coordinator, path: str, *, watch: Watch | None = None
) -> list[str]:
    """Return the names of the children; none if the node is missing.

    The watch is set in both cases: on the children, or on the node's creation.
    """
    found = await listing_or_none(coordinator, path, watch=watch)
    return [] if found is None else found.names


async def listing_or_none(
    coordinator: Coordinator, path: str, *, watch: Watch | None = None
) -> Listing | None:
    """Return the names of the children and the node's stat; None if the node is missing.

    The watch is set in both cases: on the children, or on the node's creation.
    """
    while True:
        try:
            return await coordinator.listing(path, watch=watch)
        except NoNode:
            if watch is None or await coordinator.exists(path, watch=watch) is None:
                return None


async def numbered_children(coordinator: Coordinator, parent: str) -> list[int]:
    """Return the children whose names are numbers, in order; none if ``parent`` is missing."""
    names = await children_or_none(coordinator, parent)
    return sorted(int(name) for name in names if name.isdecimal())


async def read_numbered(coordinator: Coordinator, parent: str) -> dict[int, bytes]:
    """Return the values of the numbered children, in order, without those deleted meanwhile."""
    numbers = await numbered_children(coordinator, parent)
    nodes = await read_all(coordinator, [join(parent, str(number)) for number in numbers])
    pairs = zip(numbers, nodes, strict=True)
    return {number: node.data for number, node in pairs if node is not None}


async def read_topic(
    coordinator: Coordinator,
    name: str,
    *,
    watch: Watch | None = None,
    any_phase: bool = False,
    known: TopicView | None = None,
) -> TopicView:
    """Read a topic and all its partitions; with ``known``, only what changed since that read.

    Watches are set on the topic's node, also when the topic does not exist, and on the list of
    changed partitions. If nothing changed, ``known`` itself is returned.

    Raises:
        UnknownTopic: It does not exist, or (without ``any_phase``) is being created or deleted.
    """
    path = TopicNode.path(name)
    for _ in range(SNAPSHOT_TRIES_MAX):
        try:
            node = await coordinator.get(path, watch=watch)
        except NoNode:
            if watch is not None and await coordinator.exists(path, watch=watch) is not None:
                continue
            raise UnknownTopic(
                f"there is no topic {name!r}; create it: `vq topic create {name} --partitions N`"
            ) from None
        topic = TopicNode.decode(path, node.data)
        if topic.phase == IN_GRACE and not any_phase:
            raise in_grace(name)
        if topic.phase != READY and not any_phase:
            raise UnknownTopic(
                f"topic {name!r} is not ready: it is {topic.phase}",
                hint=f"try again; if it stays so, finish with `vq topic delete {name}`",
            )
        changes = await _read_changes(coordinator, name, watch)
        base = _view_of(name, topic, node.stat, changes.version)
        numbers = _changed(known, base, changes)
        if known is not None and numbers is not None:
            if not numbers and (known.version, known.changes) == (base.version, base.changes):
                return known
            base = replace(
                base, partitions=known.partitions, partition_versions=known.partition_versions
            )
        if numbers is None:
            numbers = await _all_partitions(coordinator, topic, name)
        found = await _read_partitions(coordinator, name, numbers)
        if numbers and not await _still(coordinator, path, node.stat):
            continue  # the partitions may be those of another topic with this name
        if known is not None and len(found) < len(numbers):
            known = None  # a partition is missing: read everything to find out which
            continue
        view = base.with_partitions(found)
        _check_complete(view)
        return view
    raise CoordinationError(
        f"topic {name!r} changed {SNAPSHOT_TRIES_MAX} times while it was read; try again"
    )


def _view_of(name: str, topic: TopicNode, stat: Stat, changes: int) -> TopicView:
    """Return a topic without its partitions."""
    return TopicView(
        name=name,
        id=topic.id,
        settings=topic.settings,
        version=stat.version,
        partitions=(),
        partition_versions=(),
        phase=topic.phase,
        created=stat.czxid,
        changes=changes,
        origin=topic.origin,
        deletion=topic.deletion,
    )


async def read_topics(coordinator: Coordinator, names: Sequence[str]) -> dict[str, TopicView]:
    """Read many topics in any phase with all their partitions; a missing one is left out.

    One request reads 200 nodes. A topic that changes meanwhile, or is being created or deleted, is
    read again by itself.
    """
    paths = [TopicNode.path(name) for name in names]
    nodes = await read_all(coordinator, paths)
    lists = await read_all(coordinator, [PlacementChanges.path(name) for name in names])
    views: dict[str, TopicView] = {}
    alone: list[str] = []
    for name, path, node, listed in zip(names, paths, nodes, lists, strict=True):
        if node is not None:
            topic = TopicNode.decode(path, node.data)
            views[name] = _view_of(name, topic, node.stat, listed.stat.version if listed else -1)
    whole = [each for each in views.values() if each.phase in _WHOLE]
    keys = [(view.name, number) for view in whole for number in range(view.settings.partitions)]
    partitions = await read_all(coordinator, [Partition.path(*key) for key in keys])
    found: dict[str, dict[int, PlacedVersion]] = {view.name: {} for view in whole}
    for (name, number), node in zip(keys, partitions, strict=True):
        if node is not None:
            found[name][number] = _placed(name, number, Partition.path(name, number), node)
    after = await read_all(coordinator, [TopicNode.path(view.name) for view in whole])
    for view, node in zip(whole, after, strict=True):
        own = found[view.name]
        same = node is not None and (node.stat.czxid, node.stat.version) == (
            view.created,
            view.version,
        )
        if same and len(own) == view.settings.partitions:
            views[view.name] = view.with_partitions(own)
        else:
            alone.append(view.name)
    alone += [name for name, view in views.items() if view.phase not in _WHOLE]

    async def again(name: str) -> None:
        try:
            views[name] = await read_topic(coordinator, name, any_phase=True)
        except UnknownTopic:
            views.pop(name)

    await gather_all(again(name) for name in alone)
    return views


def in_grace(name: str) -> UnknownTopic:
    """Return the error for a topic that was deleted and can be brought back."""
    return UnknownTopic(
        f"topic {name!r} was deleted",
        hint=f"`vq topic undelete {name}` brings it back; see `vq topic list --deleted`",
    )


async def read_summary(coordinator: Coordinator, name: str) -> CountedTopic | None:
    """Read a topic and its number of open partitions per group; None if it does not exist.

    This takes two reads, whatever the number of partitions. If the topic was created or changed
    without the counts (by an older vq, or by hand), its partitions are read.
    """
    path, list_path = TopicNode.path(name), PlacementChanges.path(name)
    try:
        node, listed = await gather_all([coordinator.get(path), coordinator.get(list_path)])
        topic = TopicNode.decode(path, node.data)
        if topic.phase != READY:
            return CountedTopic(
                name, topic.id, topic.settings, topic.phase, {}, topic.origin, topic.deletion
            )
        changes = PlacementChanges.of_node(list_path, listed.data, listed.stat.version)
        # One ``multi`` created both; otherwise one of them is of another topic with this name.
        counts = changes.open if listed.stat.czxid == node.stat.czxid else None
        if counts is not None and sum(counts.values()) == topic.settings.partitions:
            return CountedTopic(name, topic.id, topic.settings, topic.phase, counts, topic.origin)
    except NoNode:
        pass
    try:
        view = await read_topic(coordinator, name, any_phase=True)
    except UnknownTopic:
        return None
    counts = Counter(each.writer_group or "" for each in view.partitions)
    return CountedTopic(
        name, view.id, view.settings, view.phase, counts, view.origin, view.deletion
    )


async def _read_changes(
    coordinator: Coordinator, name: str, watch: Watch | None
) -> PlacementChanges:
    path = PlacementChanges.path(name)
    try:
        node = await coordinator.get(path, watch=watch)
    except NoNode:  # a topic that is being created or deleted, or a damaged tree
        return PlacementChanges(version=-1)
    return PlacementChanges.of_node(path, node.data, node.stat.version)


def _changed(
    known: TopicView | None, now: TopicView, changes: PlacementChanges
) -> Sequence[int] | None:
    """Return the partitions to read to make ``known`` as new as ``now``; None: all."""
    if known is None or known.created != now.created or {known.phase, now.phase} != {READY}:
        return None
    changed, count = changes.since(known.changes), len(known.partitions)
    if changed is None or now.settings.partitions < count:
        return None
    return sorted({*changed, *range(count, now.settings.partitions)})


async def _all_partitions(coordinator: Coordinator, topic: TopicNode, name: str) -> Sequence[int]:
    if topic.phase in _WHOLE:
        return range(topic.settings.partitions)
    return await numbered_children(coordinator, Partition.parent(name))


async def _read_partitions(
    coordinator: Coordinator, name: str, numbers: Sequence[int]
) -> dict[int, PlacedVersion]:
    paths = [Partition.path(name, number) for number in numbers]
    nodes = await read_all(coordinator, paths)
    return {
        number: _placed(name, number, path, node)
        for number, path, node in zip(numbers, paths, nodes, strict=True)
        if node is not None
    }


async def _still(coordinator: Coordinator, path: str, known: Stat) -> bool:
    """Return whether a node is still the same one, with the same version, as ``known``."""
    stat = await coordinator.exists(path)
    return stat is not None and (stat.czxid, stat.version) == (known.czxid, known.version)


async def count_partitions(coordinator: Coordinator) -> Counter[str]:
    """Count the open partitions of each broker group, over all topics."""
    counts: Counter[str] = Counter()
    for topic in await children_or_none(coordinator, TOPICS):
        numbers = await numbered_children(coordinator, Partition.parent(topic))
        for placement, _ in (await _read_partitions(coordinator, topic, numbers)).values():
            if placement.writer_group is not None:
                counts[placement.writer_group] += 1
    return counts


def _placed(topic: str, number: int, path: str, node: Node) -> PlacedVersion:
    value = Partition.decode(path, node.data)
    return PartitionPlacement(topic, number, value.spans, value.state), node.stat.version


def _check_complete(view: TopicView) -> None:
    wanted, found = view.settings.partitions, [each.partition for each in view.partitions]
    if view.phase in _WHOLE and found != list(range(wanted)):
        raise CoordinationError(
            f"topic {view.name!r} should have partitions 0 to {wanted - 1}, "
            f"but ZooKeeper has {len(found)} of them; restore the missing znodes"
        )
