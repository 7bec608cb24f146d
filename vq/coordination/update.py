"""Compare-and-set on the tree: read, decide, write if the versions are still those read; bounded.

In here: the loop, its bound, and which failures mean "read again". Not in here: what is to be
written; the caller decides that from what was read, and decides again when it is asked again.

    another writer was faster     BadVersion, NodeExists, NoNode    read again
    an answer was lost            ConnectionLost                    read again: the tree tells
    nothing could be sent         NotConnected, SessionExpired      raised
    ``TRIES_MAX`` tries in vain                                     raised

A write whose answer was lost may have been applied, so the decision must find "nothing to write"
when it reads its own write. If the tree cannot be read afterwards, that ``ConnectionLost`` is
raised: the outcome is unknown.

Not for writers that know the version without reading it: the mark of a slot (``slots``), commits
(``commits.commit``).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from vq.coordination.coordinator import (
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

#: Tries before an error says that somebody else keeps writing.
TRIES_MAX: Final = 20
#: Failures of a write after which the tree is read again.
AGAIN: Final[tuple[type[CoordinationError], ...]] = (
    BadVersion,
    NodeExists,
    NoNode,
    ConnectionLost,
)


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """What to write, all or nothing, and the result for the caller; may be no operations."""

    operations: Sequence[Operation]
    result: T


#: Takes a node (None: it is missing) and returns the operations that make it as wanted, if any.
Change = Callable[[Node | None], Sequence[Operation]]
#: Reads and decides; gets the error of the try before, None at the first.
Planner = Callable[[CoordinationError | None], Awaitable[Plan[T]]]


async def update(coordinator: Coordinator, path: str, change: Change, *, what: str) -> None:
    """Write one node as ``change`` decides; a node that is created gets its parents.

    Args:
        coordinator: A started coordinator.
        path: Of the node.
        change: Decides. What it raises is raised, with nothing written since the last read.
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

    await settle(coordinator, plan, what=what)


async def settle(
    coordinator: Coordinator,
    plan: Planner[T],
    *,
    what: str,
    again: tuple[type[CoordinationError], ...] = AGAIN,
) -> T:
    """Write what ``plan`` returns, and plan again until a write succeeds; return its result.

    Args:
        coordinator: A started coordinator.
        plan: Reads, decides, and writes nothing that counts. What it raises is raised.
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
