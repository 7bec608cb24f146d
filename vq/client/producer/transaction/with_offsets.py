"""What a transaction has of a consumer's offsets, and the nodes in ZooKeeper that decide it.

The messages of such a transaction are prepared in the journal; then one ``multi`` moves the offsets
and sets a decision node, which commits it; then the journal is told. See
``coordination.groups.decisions``.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from vq.client.cluster import ClusterClient
from vq.coordination.groups.decisions import (
    REUSED_WITHIN_S,
    DecisionNode,
    drop_decision,
    make_decision,
)
from vq.errors import CoordinationError

#: To remove the node of a transaction that was refused: who is told that waits no longer.
_DROPPED_WITHIN_S: Final = 1.0


class MovedOffsets(Protocol):
    """Messages in hand of a consumer, whose offsets are moved with a transaction.

    Attributes:
        was_tried: See ``client.consumer.group.taken``.
    """

    @property
    def was_tried(self) -> bool: ...

    def of(self, transaction: object, roll_back: Callable[[str], None]) -> None:
        """Note which transaction has them, and how to roll it back while it is open.

        Raises:
            InvalidState: Another one has them.
        """
        ...

    async def commit(self, node: DecisionNode, number: int, deadline: float) -> None:
        """See ``client.consumer.group.taken``."""
        ...

    def ended(self, *, committed: bool) -> None:
        """The transaction has ended, and it is known how."""
        ...


@dataclass(slots=True)
class Moving:
    """What a transaction has of offsets.

    Attributes:
        offsets: Those.
        node: Decides it; None before its end.
        telling: It is committed, and the journal is told.
    """

    offsets: MovedOffsets
    node: DecisionNode | None = None
    telling: "asyncio.Task[None] | None" = None


class DecisionNodes:
    """The nodes of one producer that no transaction uses. Loop-bound."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster: Final = cluster
        self._idle: dict[int, list[tuple[float, DecisionNode]]] = {}  # by journal; and since when

    def has_one_of(self, journal: int) -> bool:
        """Whether there is a node for a journal."""
        return bool(self._idle.get(journal))

    async def take(self, journal: int) -> DecisionNode:
        """Return a node for one transaction of a journal; it is made if there is none.

        Raises:
            CoordinationError: It cannot be made now.
        """
        idle = self._idle.get(journal, [])
        oldest = self._cluster.clock.monotonic() - REUSED_WITHIN_S
        while idle:
            since, node = idle.pop()
            if since > oldest:
                return node
        return await make_decision(self._cluster.coordinator, journal, self._cluster.rng)

    def give_back(self, node: DecisionNode) -> None:
        """Have another transaction use a node; the journal has noted the commit of the last one."""
        since = self._cluster.clock.monotonic()
        self._idle.setdefault(node.journal, []).append((since, node))

    async def refused(self, node: DecisionNode, *, was_tried: bool) -> None:
        """Have nothing left of a transaction that was refused, and that nobody can commit.

        Args:
            node: Of the transaction.
            was_tried: ZooKeeper was asked; otherwise the node is as it was, and used again.
        """
        if not was_tried:
            self.give_back(node)
            return
        with contextlib.suppress(CoordinationError, TimeoutError):  # otherwise it is swept
            async with asyncio.timeout(_DROPPED_WITHIN_S):
                await drop_decision(self._cluster.coordinator, node)

    async def close(self) -> None:
        """Remove them; what cannot be removed now is swept by the journals later."""
        idle, self._idle = self._idle, {}
        with contextlib.suppress(CoordinationError):
            for nodes in idle.values():
                for _, node in nodes:
                    await drop_decision(self._cluster.coordinator, node)
