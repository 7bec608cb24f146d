"""What broker groups and partitions get and store, measured.

Loop-bound functions on a ``ClusterClient``. ZooKeeper is read many nodes with one request; a master
tells all its partitions in few answers, twice: what was appended between is the load. What is not
told is None, with the reason beside it, and fails nothing else.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from vq import limits
from vq.bounds import check_within
from vq.client.cluster import ClusterClient
from vq.coordination.topics.topics import list_topics
from vq.coordination.tree.coordinator import Coordinator, Node, NotAllowed, Read, Unreadable
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.reading import children_or_none, gather_all, read_nodes
from vq.coordination.tree.values.brokers import (
    BrokerGroup,
    BrokerLoad,
    GroupState,
    OpenPartitions,
    Registration,
)
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import READY, TopicNode
from vq.coordination.tree.values.value import Value
from vq.errors import InvalidArgument, VqError
from vq.model import TopicPartition
from vq.operations.allocation.facts import (
    AllocatedTopic,
    AllocationFacts,
    GroupLoad,
    MeasuredPartition,
)
from vq.operations.brokers.brokers import FAILED_STATES
from vq.operations.cluster.bulk import NODES_IN_TURN, ask_master
from vq.remoting.wire_pb2 import DiskStatus, PartitionStatus, StatusResponse
from vq.tasks import in_turns

#: Bounds of the time between the two looks at positions, and what it is otherwise.
WINDOW_S_MIN: Final = 0.1
WINDOW_S_MAX: Final = 600.0
WINDOW_S_DEFAULT: Final = 5.0

V = TypeVar("V", bound=Value)


async def group_loads(cluster: ClusterClient) -> list[GroupLoad]:
    """Return all broker groups with the load that their masters publish, sorted by name.

    It reads ZooKeeper only: one request for each group, and one for each 200 nodes. A load that was
    not written again for half a minute counts as unknown.
    """
    return list((await _read_groups(cluster.coordinator)).values())


async def read_allocation(
    cluster: ClusterClient, *, topics: Collection[str] | None = None
) -> AllocationFacts:
    """Return groups, topics and partitions as ZooKeeper has them; nobody is asked for loads."""
    tree = await _read_tree(cluster, topics)
    return await tree.facts({}, 0.0, cluster.clock.wall_ms())


async def measure_allocation(
    cluster: ClusterClient,
    *,
    window_s: float = WINDOW_S_DEFAULT,
    topics: Collection[str] | None = None,
) -> AllocationFacts:
    """Return groups, topics and partitions with what partitions get in a second.

    Each master tells twice where its partitions end, ``window_s`` apart. It takes that long, and
    costs a master two requests for each few hundred of its partitions.

    Args:
        cluster: Where.
        window_s: How long to measure, 0.1 to 600 s.
        topics: Only these, and only the masters that hold them are asked; a plan needs all topics.

    Raises:
        InvalidArgument: ``window_s`` is out of bounds.
    """
    check_window(window_s)
    tree = await _read_tree(cluster, topics)
    asked = [name for name in tree.holders() if tree.is_led(name)]
    first = await _look(cluster, asked)
    await asyncio.sleep(window_s)
    second = await _look(cluster, [name for name in asked if not isinstance(first[name], str)])
    looks = {name: (first[name], second.get(name, first[name])) for name in asked}
    return await tree.facts(looks, window_s, cluster.clock.wall_ms())


def check_window(window_s: float) -> None:
    """Check the time for which to measure.

    Raises:
        InvalidArgument: It is no number, or out of bounds.
    """
    check_within("window_s", window_s, WINDOW_S_MIN, WINDOW_S_MAX)


# Masters ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Look:
    """What a master told at a moment, by the clock of this process."""

    at_s: float
    status: StatusResponse
    partitions: Mapping[TopicPartition, PartitionStatus]


#: What masters told before and after, or why they did not, by group.
_Looks = Mapping[str, tuple[_Look | str, _Look | str]]


async def _look(cluster: ClusterClient, groups: Sequence[str]) -> dict[str, _Look | str]:
    async def one(group: str) -> _Look | str:
        begun_s = cluster.clock.monotonic()
        try:
            answers = await ask_master(cluster, group, with_numbers=True)
        except VqError as error:
            return str(error)
        at_s = (begun_s + cluster.clock.monotonic()) / 2
        told = {
            TopicPartition(each.topic, each.partition): each
            for answer in answers
            for each in answer.partitions
        }
        return _Look(at_s, answers[0], told)

    found = await gather_all(one(each) for each in groups)
    return dict(zip(groups, found, strict=True))


def _measured(load: MeasuredPartition, spans: Collection[str], looks: _Looks) -> MeasuredPartition:
    """Return a partition with what the masters of its groups told."""
    stored = _stored(load.key, spans, looks)
    if load.group is None or load.group not in looks:
        return replace(load, stored_bytes=stored)
    first, second = looks[load.group]
    if isinstance(first, str) or isinstance(second, str):
        return replace(load, stored_bytes=stored)  # the group has the reason
    before, after = first.partitions.get(load.key), second.partitions.get(load.key)
    if before is None or after is None:  # it is new there, or was moved meanwhile
        return replace(load, stored_bytes=stored)
    if after.state in FAILED_STATES:
        return replace(load, error=f"it is {after.state}: {after.reason}")
    elapsed_s = second.at_s - first.at_s
    size = after.log_end_offset - before.log_end_offset
    if size < 0 or elapsed_s <= 0:
        return replace(load, stored_bytes=stored)  # another master, with another log
    messages = None
    if before.number_known and after.number_known:
        messages = max(0, after.next_number - before.next_number) / elapsed_s
    return replace(load, bytes_per_s=size / elapsed_s, messages_per_s=messages, stored_bytes=stored)


def _stored(key: TopicPartition, groups: Collection[str], looks: _Looks) -> int | None:
    """Return what the masters of groups store of a partition; None: one does not tell."""
    total = 0
    for group in groups:
        _, look = looks.get(group, ("", ""))
        if isinstance(look, str):
            return None
        told = look.partitions.get(key)
        total += 0 if told is None else told.size_bytes  # retention may have taken all of it
    return total


def _with_answer(load: GroupLoad, look: _Look | str) -> GroupLoad:
    """Return a group with what its master told of its disks."""
    if isinstance(look, str):
        return replace(load, error=f"its master does not answer: {look}")
    disks = [each for each in look.status.disks if each.bytes_total]
    if not disks:
        return load
    fullest = min(disks, key=lambda each: each.bytes_free / each.bytes_total)
    fills = [each.full_in_s / 3_600 for each in look.status.disks if each.fills]
    return replace(
        load,
        disk_growth_bytes_per_hour=_growth(fullest),
        disk_full_in_hours=min(fills, default=None),
    )


def _growth(disk: DiskStatus) -> int | None:
    return disk.growth_bytes_per_hour if disk.growth_known else None


# ZooKeeper --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Tree:
    """What ZooKeeper has.

    Attributes:
        groups: By name, without what masters tell.
        topics: Those that are ready.
        placed: Of each partition the value and the version of its znode, or why it has none.
        unreadable: Topics that cannot be read, with the reason.
    """

    cluster: str
    groups: Mapping[str, GroupLoad]
    topics: Mapping[str, AllocatedTopic]
    placed: Mapping[TopicPartition, tuple[Partition, int] | str]
    unreadable: Mapping[str, str]

    def holders(self) -> list[str]:
        """Return the groups that hold a range of a partition."""
        names = {
            span.group
            for each in self.placed.values()
            if not isinstance(each, str)
            for span in each[0].spans
        }
        return sorted(names)

    def is_led(self, group: str) -> bool:
        """Whether a group has a master that can be asked."""
        return group in self.groups and self.groups[group].alive

    async def facts(self, looks: _Looks, window_s: float, now_ms: int) -> AllocationFacts:
        """Return the facts, with what masters told."""
        groups = {
            name: _with_answer(group, looks[name][1]) if name in looks else group
            for name, group in self.groups.items()
        }
        return AllocationFacts(
            cluster=self.cluster,
            measured_ms=now_ms,
            window_s=window_s,
            groups=groups,
            topics=self.topics,
            partitions={
                key: _partition(key, each, looks)
                async for key, each in in_turns(self.placed.items(), NODES_IN_TURN)
            },
            unreadable=self.unreadable,
        )


def _partition(
    key: TopicPartition, placed: tuple[Partition, int] | str, looks: _Looks
) -> MeasuredPartition:
    if isinstance(placed, str):
        return MeasuredPartition(topic=key.topic, partition=key.partition, group=None, error=placed)
    value, version = placed
    spans = value.spans
    is_open = bool(spans) and spans[-1].end is None
    load = MeasuredPartition(
        topic=key.topic,
        partition=key.partition,
        group=spans[-1].group if is_open else None,
        start=spans[-1].start if is_open else 0,
        version=version,
    )
    return _measured(load, sorted({each.group for each in spans}), looks)


async def _read_tree(cluster: ClusterClient, wanted: Collection[str] | None) -> _Tree:
    coordinator, unreadable = cluster.coordinator, dict[str, str]()
    groups = await _read_groups(coordinator)
    names = [
        name for name in await list_topics(coordinator) if wanted is None or name in set(wanted)
    ]
    topics: dict[str, AllocatedTopic] = {}
    keys: list[TopicPartition] = []
    nodes = await read_nodes(coordinator, [TopicNode.path(name) for name in names])
    async for name, node in in_turns(zip(names, nodes, strict=True), NODES_IN_TURN):
        value = _decoded(TopicNode, TopicNode.path(name), node)
        if isinstance(value, str):
            unreadable[f"topic {name}"] = value
        elif value is not None and value.phase == READY:
            settings = value.settings
            topics[name] = AllocatedTopic(
                topic=name,
                id=value.id,
                pool=settings.pool,
                min_insync=settings.min_insync,
                retention_hours=settings.retention_hours,
            )
            keys += [TopicPartition(name, number) for number in range(settings.partitions)]
    placed: dict[TopicPartition, tuple[Partition, int] | str] = {}
    paths = [Partition.path(*key) for key in keys]
    placed_nodes = zip(keys, paths, await read_nodes(coordinator, paths), strict=True)
    async for key, path, node in in_turns(placed_nodes, NODES_IN_TURN):
        partition = _decoded(Partition, path, node)
        if isinstance(partition, str):
            placed[key] = partition
        elif partition is None or not isinstance(node, Node):
            placed[key] = f"znode {path!r} is missing"
        else:
            placed[key] = partition, node.stat.version
    return _Tree(cluster.config.cluster, groups, topics, placed, unreadable)


def _decoded(kind: type[V], path: str, node: Read) -> V | str | None:
    """Return the value of a node, why it cannot be read, or None for a missing node."""
    if node is None:
        return None
    if isinstance(node, NotAllowed):
        return str(node)
    try:
        return kind.decode(path, node.data)
    except (Unreadable, InvalidArgument) as error:
        return str(error)


async def _read_groups(coordinator: Coordinator) -> dict[str, GroupLoad]:
    names = await children_or_none(coordinator, BROKERS)
    nodes = await gather_all(
        children_or_none(coordinator, Registration.parent(name)) for name in names
    )
    running = dict(zip(names, nodes, strict=True))
    paths = [
        path
        for name in names
        for path in (
            BrokerGroup.path(name),
            GroupState.path(name),
            OpenPartitions.path(name),
            *(Registration.path(name, node) for node in running[name]),
            *(BrokerLoad.path(name, node) for node in running[name]),
        )
    ]
    read = dict(zip(paths, await read_nodes(coordinator, paths), strict=True))
    newest_ms = max(
        (
            node.stat.mtime_ms
            for name in names
            for each in running[name]
            if isinstance(node := read[BrokerLoad.path(name, each)], Node)
        ),
        default=0,
    )
    return {name: _group(name, running[name], read, newest_ms) for name in names}


def _group(
    name: str, running: Sequence[str], read: Mapping[str, Read], newest_ms: int
) -> GroupLoad:
    """Return a group; its loads are as old as ``newest_ms`` tells, by ZooKeeper's clock."""
    path, state_path, open_path = (
        BrokerGroup.path(name),
        GroupState.path(name),
        OpenPartitions.path(name),
    )
    value, state = (
        _decoded(BrokerGroup, path, read[path]),
        _decoded(GroupState, state_path, read[state_path]),
    )
    opened = _decoded(OpenPartitions, open_path, read[open_path])
    if isinstance(value, str) or isinstance(state, str):
        error = value if isinstance(value, str) else str(state)
        return GroupLoad(group=name, alive=False, nodes=max(1, len(running)), error=error)
    value = value or BrokerGroup()
    node = read[path]
    loads = {
        each: load for each in running if (load := _load(name, each, read, newest_ms)) is not None
    }
    master = "" if state is None else state.master
    own = loads.get(master)
    known = {*running, *(() if state is None else state.nodes)}
    copying = 0 if state is None else len(set(state.insync) - {master})
    full = _fullest(loads.values()) if len(loads) == len(running) else None
    return GroupLoad(
        group=name,
        pool=value.pool,
        labels=dict(value.labels),
        racks=_racks(name, running, read),
        version=node.stat.version if isinstance(node, Node) else -1,
        alive=master in running,
        draining=value.draining,
        nodes=max(1, len(known)),
        partitions=opened.open if isinstance(opened, OpenPartitions) else None,
        bytes_per_s=None if own is None else own.bytes_per_s,
        messages_per_s=None if own is None else own.messages_per_s,
        copied_bytes_per_s=None if own is None else own.bytes_per_s * copying,
        stored_bytes=None if own is None else own.stored_bytes,
        busy=None if own is None else own.busy,
        capacity_bytes_per_s=None if own is None else own.capacity_bytes_per_s or None,
        flush_ms=None if own is None else own.flush_ms or None,
        queue_depth=None if own is None else own.queue_depth,
        disk_bytes_free=None if full is None else full.disk_bytes_free,
        disk_bytes_total=None if full is None else full.disk_bytes_total,
        error="" if own is not None or master not in running else "its load is not known",
    )


def _racks(name: str, running: Sequence[str], read: Mapping[str, Read]) -> tuple[str, ...]:
    found = set()
    for each in running:
        path = Registration.path(name, each)
        value = _decoded(Registration, path, read[path])
        found.add(value.rack if isinstance(value, Registration) else "")
    return tuple(sorted(found))


def _load(group: str, node: str, read: Mapping[str, Read], newest_ms: int) -> BrokerLoad | None:
    """Return the load of a node; None: it has none, or an old one."""
    path = BrokerLoad.path(group, node)
    found = read[path]
    value = _decoded(BrokerLoad, path, found)
    if not isinstance(value, BrokerLoad) or not isinstance(found, Node):
        return None
    is_old = newest_ms - found.stat.mtime_ms > limits.LOAD_STALE_S * 1_000
    return None if is_old else value


def _fullest(loads: Iterable[BrokerLoad]) -> BrokerLoad | None:
    """Return the load with the fullest disk; None: of one it is not known."""
    found = list(loads)
    if not found or any(each.disk_used_ratio is None for each in found):
        return None
    return max(found, key=lambda each: each.disk_used_ratio or 0.0)
