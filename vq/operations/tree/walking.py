"""Every node of the tree, parents first, with few requests and a bounded part of it in memory.

Loop-bound. It is no snapshot: what changes meanwhile is read as it was before or after.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from vq.coordination.tree.coordinator import Coordinator, NotAllowed, Stat, join
from vq.coordination.tree.paths import BROKERS, CONSUMERS, TOPICS
from vq.coordination.tree.reading import (
    children_or_none,
    gather_all,
    listing_or_none,
    read_nodes,
)

#: Nodes two below the root that are read together with all that is below them.
AT_ONCE: Final = 16
#: These come first, in this order: others tell of them.
_FIRST: Final = (BROKERS, TOPICS, CONSUMERS)
#: Of a node of which this client may see nothing.
_UNSEEN: Final = Stat(version=0, czxid=0, ephemeral_owner=0, mtime_ms=0)


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node as it was read; ``data`` is None if its ACL lets nobody read it."""

    path: str
    data: bytes | None
    stat: Stat


async def walk_tree(coordinator: Coordinator, below: str = "") -> AsyncGenerator[StoredNode, None]:
    """Yield every node of the tree, or the node ``below`` and what lies below it; parents first.

    Brokers come first, then topics, then groups of consumers. In memory are at most ``AT_ONCE``
    topics or groups, each with all its partitions.

    Raises:
        CoordinationError: ZooKeeper cannot be asked.
    """
    if below:
        for node in await _read_below(coordinator, below):
            yield node
        return
    names = await children_or_none(coordinator, "")
    for top in sorted(names, key=_order):
        found, children = await _read(coordinator, [top])
        for node in found:
            yield node
        paths = children.get(top, [])
        for start in range(0, len(paths), AT_ONCE):
            step = paths[start : start + AT_ONCE]
            for nodes in await gather_all(_read_below(coordinator, each) for each in step):
                for node in nodes:
                    yield node


def _order(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST)), name


async def _read_below(coordinator: Coordinator, path: str) -> list[StoredNode]:
    """Return a node and all below it, parents first; none if it is missing."""
    found: list[StoredNode] = []
    level = [path]
    while level:
        nodes, children = await _read(coordinator, level)
        found += nodes
        level = [each for node in nodes for each in children.get(node.path, ())]
    return found


async def _read(
    coordinator: Coordinator, paths: Sequence[str]
) -> tuple[list[StoredNode], dict[str, list[str]]]:
    """Return nodes, and the paths of their children; a node that is gone is left out."""
    found: list[StoredNode] = []
    for path, node in zip(paths, await read_nodes(coordinator, paths), strict=True):
        if isinstance(node, NotAllowed):
            stat = await _stat(coordinator, path)
            if stat is not None:
                found.append(StoredNode(path, None, stat))
        elif node is not None:
            found.append(StoredNode(path, node.data, node.stat))
    # Most nodes are leaves: one whose children never changed has none, and is not asked for them.
    parents = [each.path for each in found if each.stat.children_version]
    listings = await _listings(coordinator, parents)
    pairs = zip(parents, listings, strict=True)
    return found, {path: [join(path, name) for name in names] for path, names in pairs}


async def _stat(coordinator: Coordinator, path: str) -> Stat | None:
    """Return a stat; None if the node is gone. Since 3.9, ZooKeeper lets see it who may read."""
    try:
        return await coordinator.exists(path)
    except NotAllowed:
        return _UNSEEN


async def _listings(coordinator: Coordinator, paths: Sequence[str]) -> list[list[str]]:
    async def names(path: str) -> list[str]:
        try:
            found = await listing_or_none(coordinator, path)
        except NotAllowed:
            return []
        return [] if found is None else found.names

    return await gather_all(names(each) for each in paths)
