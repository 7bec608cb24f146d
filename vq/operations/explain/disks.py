"""Why the disk of a broker fills up: what is asked for the answer.

Loop-bound functions on a ``ClusterClient``. They read, and change nothing. The node tells what it
holds block by block; no message is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vq.client.cluster import ClusterClient
from vq.clock import DAY_MS, HOUR_MS
from vq.coordination.brokers import registry
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.reading import TopicView, gather_all, read_topic
from vq.coordination.tree.values.topics import IN_GRACE
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic, VqError
from vq.model import NodeInfo, RetentionPolicy, StatusResult
from vq.operations.brokers.blocks import HeldPartition, blocks_of
from vq.operations.brokers.brokers import broker_status
from vq.operations.brokers.disks import DiskState, disk_states
from vq.operations.brokers.jobs import failing_jobs
from vq.operations.explain.answers import Explanation, explain
from vq.operations.explain.disk_causes import TABLE, DiskFacts, TopicOnDisk, disk_told

#: The largest topics of a node are looked at in ZooKeeper; of the others only their bytes are told.
TOPICS_READ: Final = 200
#: Retention runs in passes, and the archive once a day: so late is no fault.
_RETENTION_SLACK_MS: Final = 2 * HOUR_MS
_ARCHIVE_SLACK_MS: Final = DAY_MS + 2 * HOUR_MS
#: From the worst on; a level that is not named is better.
_LEVELS: Final = ("gone", "silent", "stop", "refuse", "relieve", "warn")


@dataclass(frozen=True, slots=True)
class DiskExplanation:
    """Why a disk fills up, and what topics hold on it, the largest first."""

    answer: Explanation
    topics: tuple[TopicOnDisk, ...]


async def explain_disk(cluster: ClusterClient, name: str) -> DiskExplanation:
    """Say why the disk of a broker fills up, or that it does not.

    Of a node with several data directories, the fullest disk is looked at; of a group with several
    nodes, the node with the fullest one.

    Args:
        name: A node, such as ``b1/n1``, or a broker group.

    Raises:
        InvalidArgument: No such node is registered.
    """
    nodes = await registry.all_nodes(cluster.coordinator)
    wanted = [each for each in nodes if name in {each.group, f"{each.group}/{each.node}"}]
    if not wanted:
        known = ", ".join(f"{each.group}/{each.node}" for each in nodes) or "none"
        raise InvalidArgument(f"no broker {name!r} is registered; these are: {known}")
    asked = await gather_all(_ask(cluster, each) for each in wanted)
    node, status, error = min(asked, key=_rank)
    unknown = [text for _, _, text in asked if text]
    title = f"{node.group}/{node.node}"
    if status is None:
        facts = DiskFacts(node=title, group=node.group, error=error)
    else:
        facts = await _facts(cluster, node, status, unknown)
    answer = explain("disk", f"the disk of {title}", TABLE, facts, disk_told(facts), unknown)
    return DiskExplanation(answer, facts.topics or ())


async def _ask(cluster: ClusterClient, node: NodeInfo) -> tuple[NodeInfo, StatusResult | None, str]:
    try:
        return node, await broker_status(cluster, node.address), ""
    except VqError as error:
        text = f"{node.group}/{node.node} ({node.address}): {type(error).__name__}: {error.message}"
        return node, None, text


def _rank(asked: tuple[NodeInfo, StatusResult | None, str]) -> tuple[bool, tuple[int, float]]:
    """Return what orders nodes, the one with the fullest disk first, silent ones last."""
    _, status, _ = asked
    if status is None:
        return True, (0, 0.0)
    return False, min((_fullness(each) for each in disk_states(status)), default=(99, 0.0))


def _fullness(disk: DiskState) -> tuple[int, float]:
    level = _LEVELS.index(disk.level) if disk.level in _LEVELS else len(_LEVELS)
    if not disk.bytes_total or disk.bytes_free is None:
        return level, 0.0
    return level, disk.bytes_free / disk.bytes_total


async def _facts(
    cluster: ClusterClient, node: NodeInfo, status: StatusResult, unknown: list[str]
) -> DiskFacts:
    disks = disk_states(status)
    disk = min(disks, key=_fullness, default=None)
    topics: tuple[TopicOnDisk, ...] | None = None
    try:
        held = await blocks_of(cluster, node.address)
    except VqError as error:
        unknown.append(f"the blocks of {node.group}/{node.node}: {type(error).__name__}: {error}")
    else:
        here = [each for each in held if disk is None or _is_on(each.directory, disk, disks)]
        topics = await _topics(cluster, node.group, here, status, unknown)
    return DiskFacts(
        node=f"{node.group}/{node.node}",
        group=node.group,
        disk=disk,
        topics=topics,
        diverged_bytes=status.raw["diverged_bytes"],
        failing_jobs=tuple(failing_jobs(status.raw["jobs"])),
    )


def _is_on(directory: str, disk: DiskState, disks: Sequence[DiskState]) -> bool:
    """Whether a data directory shares the space of a disk."""
    other = next((each for each in disks if each.directory == directory), disk)
    if disk.file_system and other.file_system:
        return disk.file_system == other.file_system
    return directory == disk.directory or len(disks) == 1


async def _topics(
    cluster: ClusterClient,
    group: str,
    held: Sequence[HeldPartition],
    status: StatusResult,
    unknown: list[str],
) -> tuple[TopicOnDisk, ...]:
    by_topic: dict[str, list[HeldPartition]] = {}
    for each in held:
        by_topic.setdefault(each.topic, []).append(each)
    sizes = {name: sum(map(_disk_bytes, parts)) for name, parts in by_topic.items()}
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    read = await gather_all(_view(cluster, name) for name in order[:TOPICS_READ])
    views: dict[str, TopicView] = {}
    for name, view in zip(order, read, strict=False):
        if isinstance(view, str):
            unknown.append(view)
        elif view is not None:
            views[name] = view
    if len(order) > TOPICS_READ:
        unknown.append(f"the settings of the {len(order) - TOPICS_READ} smallest topics there")
    now_ms = cluster.clock.wall_ms()
    told = {(each["topic"], each["partition"]): each for each in status.raw["partitions"]}
    return tuple(
        _topic(group, name, by_topic[name], views.get(name), told, now_ms) for name in order
    )


def _disk_bytes(partition: HeldPartition) -> int:
    return sum(block.disk_bytes for block in partition.blocks)


async def _view(cluster: ClusterClient, name: str) -> TopicView | str | None:
    """Return a topic; None: there is none; a text: why it cannot be read."""
    try:
        return await read_topic(cluster.coordinator, name, any_phase=True)
    except UnknownTopic:
        return None
    except (Unreadable, CoordinationError) as error:
        return f"topic {name}: {error.message}"


def _topic(
    group: str,
    name: str,
    parts: Sequence[HeldPartition],
    view: TopicView | None,
    told: Mapping[tuple[str, int], Mapping[str, Any]],
    now_ms: int,
) -> TopicOnDisk:
    blocks = [block for part in parts for block in part.blocks]
    times = [block.first_ms for block in blocks if block.first_ms is not None]
    settings = None if view is None else view.settings
    held = [
        (told[name, part.partition]["held_bytes"], part.partition)
        for part in parts
        if told.get((name, part.partition), {}).get("held_by")
    ]
    most = max(held, default=(0, None))
    unarchived: int | None = 0
    overdue: int | None = 0
    moved: int | None = None
    if settings is None:
        unarchived = overdue = None
    else:
        after, kept = settings.archived_after_hours, settings.retention_hours
        if after is not None:
            limit = now_ms - after * HOUR_MS - _ARCHIVE_SLACK_MS
            unarchived = sum(
                each.size_bytes
                for each in blocks
                if not each.is_open
                and each.archive_bytes is None
                and each.last_ms is not None
                and each.last_ms < limit
            )
        if kept is not None and settings.retention_policy is not RetentionPolicy.KEEP:
            limit = now_ms - kept * HOUR_MS - _RETENTION_SLACK_MS
            overdue = sum(
                each.disk_bytes
                for each in blocks
                if not each.is_open and each.last_ms is not None and each.last_ms < limit
            )
    if view is not None:
        writers = {each.partition: each.writer_group for each in view.partitions}
        moved = sum(
            _disk_bytes(part) for part in parts if writers.get(part.partition) not in {None, group}
        )
    return TopicOnDisk(
        topic=name,
        disk_bytes=sum(map(_disk_bytes, parts)),
        growth_bytes_per_day=_since(parts, now_ms - DAY_MS),
        oldest_ms=min(times, default=None),
        settings=settings,
        is_deleted=view is not None and view.phase == IN_GRACE,
        held_bytes=sum(size for size, _ in held),
        held_by="" if most[1] is None else told[name, most[1]]["held_by"],
        held_partition=most[1],
        unarchived_bytes=unarchived,
        overdue_bytes=overdue,
        moved_bytes=moved,
    )


def _since(parts: Sequence[HeldPartition], since_ms: int) -> int | None:
    """Return how many bytes were appended since a moment; None: a node does not know it.

    Of a block that began earlier, a part counts as if its messages had come evenly.
    """
    total = 0.0
    for block in (block for part in parts for block in part.blocks):
        first, last = block.first_ms, block.last_ms
        if first is None or last is None:
            if block.size_bytes:
                return None
            continue
        if first >= since_ms:
            total += block.size_bytes
        elif last > since_ms:
            total += block.size_bytes * (last - since_ms) / (last - first)
    return round(total)
