"""Compare-and-set on the tree: read, decide, write if no version has changed, try again; bounded.

This module has the loop, its bound, and the list of failures after which it reads again. The caller
decides what to write from what it reads, and decides again at each try.

    another writer was faster     BadVersion, NodeExists, NoNode    read again
    an answer was lost            ConnectionLost                    read again to see the outcome
    nothing was sent              NotConnected, SessionExpired      raised
    ``TRIES_MAX`` tries failed                                      raised

A write whose answer was lost may have been applied. So a decision that reads its own write must
return "nothing to write". If the tree cannot be read after a lost answer, ``ConnectionLost`` is
raised: the outcome is unknown.

Writers that know the version without a read do not use this module: the mark of a slot
(``slots``), commits (``ZooKeeperOffsets.commit``).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from vq.coordination.tree.coordinator import (
    BadVersion,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotConnected,
    Operation,
    SessionExpired,
    Set,
)
from vq.errors import CoordinationError

T = TypeVar("T")

#: Tries before an error says that another writer keeps changing the node.
TRIES_MAX: Final = 20
#: Failures of a write after which to read again.
AGAIN: Final[tuple[type[CoordinationError], ...]] = (
    BadVersion,
    NodeExists,
    NoNode,
    ConnectionLost,
)


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """Operations to apply all together or not at all, possibly none, and the caller's result."""

    operations: Sequence[Operation]
    result: T


#: Takes a node (None: it is missing) and returns the operations that change it, if any.
Change = Callable[[Node | None], Sequence[Operation]]
#: Reads and decides; gets the error of the previous try, None at the first one.
Planner = Callable[[CoordinationError | None], Awaitable[Plan[T]]]


async def update(coordinator: Coordinator, path: str, change: Change, *, what: str) -> None:
    """Write one node as ``change`` decides; a node that is created gets its parents.

    Args:
        coordinator: A started coordinator.
        path: The path of the node.
        change: Decides. Its errors are passed on; nothing was written since the last read.
        what: The subject of the error text: "the contract of group 'g'".

    Raises:
        CoordinationError: See the module's text.
    """

    async def plan(_: CoordinationError | None) -> Plan[None]:
        try:
            node = await coordinator.get(path)
        except NoNode:
            node = None
        return Plan(change(node), None)

    await apply_plan(coordinator, plan, what=what)


async def apply_plan(
    coordinator: Coordinator,
    plan: Planner[T],
    *,
    what: str,
    again: tuple[type[CoordinationError], ...] = AGAIN,
) -> T:
    """Apply the operations that ``plan`` returns; on a conflict plan again; return the result.

    Args:
        coordinator: A started coordinator.
        plan: Reads and decides. It may create parent nodes, nothing else. Its errors are passed on.
        what: The subject of the error text.
        again: Failures of the write after which to plan again; others are raised.

    Raises:
        CoordinationError: See the module's text.
    """
    failed: CoordinationError | None = None
    lost: ConnectionLost | None = None  # of the first write that may have been applied
    for _ in range(TRIES_MAX):
        planned: Plan[T] | None = None
        try:
            planned = await plan(failed)
            if planned.operations:
                await _write(coordinator, planned.operations)
            return planned.result
        except (NotConnected, SessionExpired) as error:
            if lost is None:
                raise
            raise lost from error
        except CoordinationError as error:
            if not isinstance(error, ConnectionLost if planned is None else again):
                raise
            failed = error
            if planned is not None and isinstance(error, ConnectionLost):
                lost = lost or error
    if isinstance(failed, ConnectionLost):
        raise lost or failed
    raise CoordinationError(f"{what} changed {TRIES_MAX} times meanwhile; try again") from failed


async def _write(coordinator: Coordinator, operations: Sequence[Operation]) -> None:
    match operations:
        case [Create(path, data, ephemeral)]:
            await coordinator.create(path, data, ephemeral=ephemeral, parents=True)
        case [Set(path, data, version)]:
            await coordinator.set(path, data, version=version)
        case [Delete(path, version)]:
            await coordinator.delete(path, version=version)
        case _:
            await coordinator.multi(operations)
