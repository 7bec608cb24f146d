"""Decision nodes: whether a transaction with offsets of a group is committed.

    made, or free again ──▶ version v ──┬─ one ``multi`` sets the offsets, and this to the number
                                        │       of the transaction: v + 1, it is committed
                                        └─ taken away at v: it is not, and cannot be any more

Whoever is first decides, and ZooKeeper says who that is. A producer has a node of its own for each
transaction that it ends at a time. It uses one again only when the journal has noted the commit. So
if a node is gone while its transaction waits in the journal, that transaction is not committed.

A name is never used twice: the versions of a node that was made anew would begin at 0 again.
"""

import contextlib
import random
import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from vq.coordination.tree.coordinator import (
    BadVersion,
    Coordinator,
    Node,
    NoNode,
    NotAllowed,
    Read,
    Set,
)
from vq.coordination.tree.reading import children_or_none, gather_all, read_nodes
from vq.coordination.tree.values.decisions import Decision
from vq.errors import CoordinationError

#: Names of nodes; a request with another one is refused.
NAME: Final = re.compile(r"[0-9a-f]{16}")
#: A producer uses a node again only so long after it did so last.
REUSED_WITHIN_S: Final = 30 * 60.0
#: What nobody has used for so long, and no transaction waits for, is a leftover of a crash. The
#: clocks of a producer, a broker and ZooKeeper may differ by half of it.
LEFT_AFTER_MS: Final = 60 * 60_000


class DecisionNode(NamedTuple):
    """A node, and its version before the transaction that it is used for.

    Attributes:
        journal: The partition of the journal in which the transaction waits.
        name: Of the node.
        version: While it has that, nothing is decided.
    """

    journal: int
    name: str
    version: int

    @property
    def path(self) -> str:
        """Its path."""
        return Decision.path(self.journal, self.name)

    def decide(self, number: int, group: str, member: str) -> Set:
        """Return what commits a transaction, for the ``multi`` that moves the offsets."""
        value = Decision(transaction=number, group=group, member=member)
        return Set(self.path, value.encode(), self.version)

    @property
    def used(self) -> "DecisionNode":
        """The node after a commit by its means."""
        return self._replace(version=self.version + 1)


async def make_decision(coordinator: Coordinator, journal: int, rng: random.Random) -> DecisionNode:
    """Make a node.

    Raises:
        CoordinationError: There may be a node that nobody uses; see ``sweep_decisions``.
    """
    node = DecisionNode(journal, f"{rng.getrandbits(64):016x}", 0)
    await coordinator.create(node.path, Decision().encode(), parents=True)
    return node


async def is_decided(
    coordinator: Coordinator, nodes: Sequence[tuple[DecisionNode, int]]
) -> list[bool]:
    """Return for each node and transaction whether it is committed.

    That it is not is no answer: it may be soon, or is already and this read is old.

    Raises:
        CoordinationError: It is not known.
    """
    read = await read_nodes(coordinator, [node.path for node, _ in nodes])
    return [_has(node, number, each) for (node, number), each in zip(nodes, read, strict=True)]


def _has(node: DecisionNode, number: int, read: Read) -> bool:
    if read is None:
        return False
    if isinstance(read, NotAllowed):
        raise read
    return Decision.decode(node.path, read.data).transaction == number


async def take_away(coordinator: Coordinator, node: DecisionNode, number: int) -> bool:
    """See to it that nobody can commit a transaction any more; return whether somebody has.

    Raises:
        CoordinationError: It is not known; ask again.
    """
    try:
        await coordinator.delete(node.path, version=node.version)
    except NoNode:
        return False
    except BadVersion:  # what follows is not old: it is read behind a write of ours
        try:
            found = await coordinator.get(node.path)
        except NoNode as error:
            raise CoordinationError(f"decision node {node.path!r} was just removed") from error
        if Decision.decode(node.path, found.data).transaction == number:
            return True
        if found.stat.version == node.used.version:
            return False
        raise CoordinationError(
            f"decision node {node.path!r} is at version {found.stat.version}, and transaction "
            f"{number} was to be decided at {node.used.version}: what became of it is not known"
        ) from None
    return False


async def drop_decision(coordinator: Coordinator, node: DecisionNode) -> None:
    """Remove a node whose last transaction has been noted in the journal.

    Raises:
        CoordinationError: It may be there still; see ``sweep_decisions``.
    """
    with contextlib.suppress(NoNode, BadVersion):
        await coordinator.delete(node.path, version=node.version)


async def sweep_decisions(
    coordinator: Coordinator, journal: int, awaited: Collection[str], now_ms: int
) -> int:
    """Remove the nodes of a journal that crashed producers have left; return how many.

    Args:
        coordinator: The coordinator.
        journal: The partition.
        awaited: The names of those that transactions wait for.
        now_ms: Now.

    Raises:
        CoordinationError: Some may be there still.
    """
    names = await children_or_none(coordinator, Decision.parent(journal))
    paths = [Decision.path(journal, each) for each in names if each not in awaited]
    found = zip(paths, await read_nodes(coordinator, paths), strict=True)
    left = [
        (path, node.stat.version)
        for path, node in found
        if isinstance(node, Node) and node.stat.mtime_ms + LEFT_AFTER_MS <= now_ms
    ]

    async def remove(path: str, version: int) -> None:
        with contextlib.suppress(NoNode, BadVersion):
            await coordinator.delete(path, version=version)

    await gather_all(remove(path, version) for path, version in left)
    return len(left)
