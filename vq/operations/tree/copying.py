"""Exporting the tree into a file, and importing it again, with a plan first.

Loop-bound functions on a ``ClusterClient``. What lives as long as a session is in no export: it is
of processes that ran then.

An import makes nodes in the order in which they were made first, and together what was made
together: a group tells by it which partitions are younger than itself, and a count of partitions
which topic it is of. Some values name versions or sessions of the tree that they were in:

    assignment            its generation is the version of its node: it begins at 0 again
    list of changes       likewise
    state of a group      incarnations name sessions: there are none, as after an unclean election
    decision              transactions wait for a version: the node is written so often
    write                 a version above 0 says that it has ended: likewise
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.tree.coordinator import (
    MULTI_OPERATIONS_MAX,
    BadVersion,
    ConnectionLost,
    Coordinator,
    Create,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SessionExpired,
    Set,
    parent_of,
)
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.brokers import GroupState
from vq.coordination.tree.values.consumers import Assignment
from vq.coordination.tree.values.decisions import Decision
from vq.coordination.tree.values.partitions import PlacementChanges
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.operations.base.acts import audited
from vq.operations.base.changes import TreeUnknown
from vq.operations.tree.document import ExportedNode, TreeExport, TreeWriter
from vq.operations.tree.layout import kind_of
from vq.operations.tree.walking import walk_tree

#: A decision node was written so often at most: a producer uses one for half an hour.
VERSION_MAX: Final = 1_000_000
#: Writes that are under way at once.
AT_ONCE: Final = 64
#: Bytes of the values in one ``multi``; ZooKeeper refuses requests above 1 MiB.
_MULTI_BYTES: Final = 512 * 1024
_WRITE: Final = "writes/<write>"


class ImportAction(StrEnum):
    """What an import does with a node."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class ImportStep:
    """A node that differs.

    Attributes:
        action: What is done with it.
        path: Which.
        data: Its value then; b"" of one that is deleted.
        version: The present version, under which it is changed or deleted; of one that is made,
            the version that it gets.
        czxid: When it was made, in the tree of the file.
    """

    action: ImportAction
    path: str
    data: bytes
    version: int
    czxid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedImport:
    """What an import would do.

    Attributes:
        source: The cluster of the file.
        time_ms: When that was exported, in milliseconds since 1970.
        below: Only this node and what lies below it; "": all.
        same: Nodes that are as in the file.
        steps: Those that are made, changed and deleted, in this order.
        different: Nodes with another value than in the file.
        running: Brokers that are registered now.
        refused: Why ``import_tree`` does not do it; "": it does.
    """

    source: str
    time_ms: int
    below: str
    same: int
    steps: tuple[ImportStep, ...]
    different: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    refused: str = ""

    def count(self, action: ImportAction) -> int:
        """Return how many nodes an action is for."""
        return sum(each.action is action for each in self.steps)


async def export_tree(
    cluster: ClusterClient, *, below: str = "", with_secrets: bool = False
) -> AsyncGenerator[str, None]:
    """Yield the lines of a file with the cluster's tree in ZooKeeper, each with its end of line.

    Without what belongs to sessions, and without the secret of the cluster. It is no snapshot: what
    changes meanwhile is in it as it was before or after. In memory is a small part of it at a time.

    Args:
        below: Only this node and what lies below it, such as ``topics/orders``.
        with_secrets: With the secret of the cluster: whoever has the file can act as a broker.

    Raises:
        InvalidArgument: There is no such node.
        CoordinationError: ZooKeeper went away, or a node may not be read: the lines are no file.
    """
    check_below(below)
    writer = TreeWriter()
    yield writer.begin(cluster.config.cluster, cluster.clock.wall_ms(), below, secrets=with_secrets)
    async for node in walk_tree(cluster.coordinator, below):
        kind = kind_of(node.path)
        if node.stat.ephemeral_owner or (kind is not None and kind.is_secret and not with_secrets):
            continue
        if node.data is None:
            raise CoordinationError(
                f"znode {node.path!r} may not be read, so an export would lack it; give vq's "
                "clients all rights to it (setAcl of zkCli)"
            )
        yield writer.node(ExportedNode(node.path, node.data, node.stat.version, node.stat.czxid))
    if below and not writer.nodes:
        raise InvalidArgument(f"there is no node {below!r} in the tree that an export has")
    yield writer.end()


def check_below(below: str) -> None:
    """Check the path of a node that may be given.

    Raises:
        InvalidArgument: No node can have it.
    """
    if below and any(each in {"", ".", ".."} for each in below.split("/")):
        raise InvalidArgument(
            f"below = {below!r} is no path; give one from the root of the cluster on, such as "
            "'topics/orders'"
        )


# Importing --------------------------------------------------------------------------------------
async def plan_import_tree(
    cluster: ClusterClient,
    exported: TreeExport,
    *,
    below: str = "",
    change: bool = False,
    prune: bool = False,
) -> PlannedImport:
    """Return what importing a tree would do; nothing is changed.

    Nodes that are missing are made. ``refused`` of the plan says why it is not carried out: nodes
    have other values, and ``change`` is not given; or more than a part of the tree would be changed
    or deleted while brokers run. Memory: the values of the file.

    Args:
        exported: What ``read_tree`` has read.
        below: Only this node and what lies below it.
        change: Change nodes that have another value. What vq counts itself stays as it is.
        prune: Delete nodes that are not in the file.

    Raises:
        InvalidArgument: The file has nothing there.
        CoordinationError: ZooKeeper went away.
    """
    check_below(below)
    wanted = {each.path: each for each in exported.nodes if _is_below(each.path, below)}
    if not wanted:
        raise InvalidArgument(
            f"the file has no node {below!r}; it has {len(exported.nodes)} nodes"
            + (f" below {exported.below!r}" if exported.below else "")
        )
    changes: list[ImportStep] = []
    deletes: list[ImportStep] = []
    different: list[str] = []
    running: list[str] = []
    same = 0
    async for node in walk_tree(cluster.coordinator):
        kind = kind_of(node.path)
        if node.stat.ephemeral_owner:
            if kind is not None and kind.pattern == "brokers/<group>/nodes/<node>":
                _, group, _, name = node.path.split("/")
                running.append(f"{group}/{name}")
            continue
        if not _is_below(node.path, below):
            continue
        found = wanted.pop(node.path, None)
        if found is None:
            is_secret = kind is not None and kind.is_secret and not exported.has_secrets
            if prune and not is_secret:
                deletes.append(ImportStep(ImportAction.DELETE, node.path, b"", node.stat.version))
            continue
        if (kind is not None and kind.is_derived) or node.data in {found.data, _adapted(found)}:
            same += 1
            continue
        different.append(node.path)
        changes.append(
            ImportStep(
                ImportAction.CHANGE, node.path, _adapted(found), node.stat.version, found.czxid
            )
        )
    if not change:
        changes = []
    creates = await _creations(cluster.coordinator, wanted.values(), exported, below)
    # Children before their parents: a node with children is not deleted.
    deletes.sort(key=lambda each: -each.path.count("/"))
    return PlannedImport(
        source=exported.cluster,
        time_ms=exported.time_ms,
        below=below,
        same=same,
        steps=(*creates, *changes, *deletes),
        different=tuple(different),
        running=tuple(running),
        refused=_refusal(different, len(changes), len(deletes), running, below),
    )


def _refusal(
    different: Sequence[str], changes: int, deletes: int, running: Sequence[str], below: str
) -> str:
    """Return why a plan is not carried out; "": it is."""
    if len(different) > changes:
        return (
            f"{len(different)} node(s) have other values than in the file, such as "
            f"{different[0]!r}; --replace writes those of the file, --below PATH imports a part"
        )
    if (changes or deletes) and running and not below:
        return (
            f"{changes} node(s) would be changed and {deletes} deleted under running brokers "
            f"({', '.join(running[:5])}); stop them first, or import a part with --below"
        )
    return ""


def _is_below(path: str, below: str) -> bool:
    return not below or path == below or path.startswith(below + "/")


async def _creations(
    coordinator: Coordinator,
    missing: Iterable[ExportedNode],
    exported: TreeExport,
    below: str,
) -> list[ImportStep]:
    """Return the nodes that are to be made, in the order in which they were made first."""
    found = {each.path: each for each in missing}
    if below:
        by_path = {each.path: each for each in exported.nodes}
        path = parent_of(below)
        while path and path not in found and await coordinator.exists(path) is None:
            found[path] = by_path.get(path, ExportedNode(path, b"", 0, 0))
            path = parent_of(path)
    steps = []
    for each in sorted(found.values(), key=lambda node: (node.czxid, node.path)):
        kind = kind_of(each.path)
        keeps_version = kind is not None and (kind.value is Decision or kind.pattern == _WRITE)
        version = each.version if keeps_version else 0
        if version > VERSION_MAX:
            raise InvalidArgument(
                f"{each.path!r} has version {version}, above {VERSION_MAX}: it cannot be made so"
            )
        steps.append(
            ImportStep(ImportAction.CREATE, each.path, _adapted(each), version, each.czxid)
        )
    return steps


def _adapted(node: ExportedNode) -> bytes:
    """Return the value that a node has in another tree; see the module's text."""
    kind = kind_of(node.path)
    value = None if kind is None else kind.value
    try:
        if value is Assignment:
            return replace(Assignment.decode(node.path, node.data), generation=0).encode()
        if value is PlacementChanges:
            changes = PlacementChanges.decode(node.path, node.data)
            return replace(changes, version=0, partitions=()).encode()
        if value is GroupState:
            return replace(GroupState.decode(node.path, node.data), incarnations={}).encode()
    except CoordinationError:
        pass  # it is no such value: it goes as it is
    return node.data


@audited()
async def import_tree(cluster: ClusterClient, planned: PlannedImport) -> None:
    """Make, change and delete nodes as planned.

    Each change and each deletion is under the version that the plan has seen.

    Raises:
        InvalidState: The plan is refused; or a node has changed since the plan, and those before it
            are done. Plan again.
        TreeUnknown: ZooKeeper went away; some nodes are done. Plan again: what is done is not
            planned again.
    """
    if planned.refused:
        raise InvalidState(planned.refused)
    coordinator = cluster.coordinator
    groups = [list(each) for _, each in itertools.groupby(planned.steps, key=_together)]
    done = 0
    try:
        with contextlib.suppress(NodeExists):
            if await coordinator.exists("") is None:  # nobody has ever connected to this cluster
                await coordinator.create("", parents=True)
        for action in ImportAction:
            of_action = [each for each in groups if each[0].action is action]
            depth = AT_ONCE if action is not ImportAction.DELETE else 1
            for start in range(0, len(of_action), depth):
                step = of_action[start : start + depth]
                # All are under way at once; a server carries out those of a session in order.
                await gather_all(_write(coordinator, each) for each in step)
                done += sum(map(len, step))
    except (ConnectionLost, SessionExpired) as error:
        raise TreeUnknown(
            f"importing the tree: {done} of {len(planned.steps)} nodes are done, and those that "
            f"follow may be: {error}"
        ) from error
    except (NodeExists, BadVersion, NoNode, NotEmpty) as error:
        raise InvalidState(
            f"{error.path!r} has changed since the plan; {done} of {len(planned.steps)} nodes are "
            "done, and the rest is not certain: plan again"
        ) from error


def _together(step: ImportStep) -> tuple[str, int, str]:
    """Return what the nodes have in common that one ``multi`` makes."""
    is_made = step.action is ImportAction.CREATE
    return step.action, step.czxid, "" if is_made else step.path


async def _write(coordinator: Coordinator, steps: Sequence[ImportStep]) -> None:
    first = steps[0]
    match first.action:
        case ImportAction.CHANGE:
            await coordinator.set(first.path, first.data, version=first.version)
        case ImportAction.DELETE:
            await coordinator.delete(first.path, version=first.version)
        case ImportAction.CREATE:
            for part in _parts(steps):
                await coordinator.multi([Create(each.path, each.data) for each in part])
            for each in steps:
                await _raise_version(coordinator, each)


def _parts(steps: Sequence[ImportStep]) -> list[list[ImportStep]]:
    """Return nodes that were made together, in as few parts as ZooKeeper takes."""
    parts: list[list[ImportStep]] = [[]]
    size = 0
    for each in steps:
        size += len(each.data) + len(each.path)
        if parts[-1] and (size > _MULTI_BYTES or len(parts[-1]) >= MULTI_OPERATIONS_MAX):
            parts.append([])
            size = len(each.data) + len(each.path)
        parts[-1].append(each)
    return parts


async def _raise_version(coordinator: Coordinator, step: ImportStep) -> None:
    """Write a node as often as its version says."""
    for start in range(0, step.version, MULTI_OPERATIONS_MAX):
        end = min(step.version, start + MULTI_OPERATIONS_MAX)
        operations: list[Operation] = [
            Set(step.path, step.data, version) for version in range(start, end)
        ]
        await coordinator.multi(operations)
        await asyncio.sleep(0)
