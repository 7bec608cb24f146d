"""Plans that are or were carried out, as ZooKeeper has them.

Loop-bound functions on a ``ClusterClient``. Carrying one out is in ``applying``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.leases import allocations
from vq.coordination.leases.allocations import KnownOrder
from vq.coordination.leases.leases import ALLOCATION, read_holder
from vq.coordination.tree.values.allocations import AllocationState, FailedMove
from vq.errors import InvalidArgument
from vq.model import TopicPartition
from vq.operations.allocation.measuring import read_allocation
from vq.shown import shown

#: The state of a run whose process is gone.
INTERRUPTED: Final = "interrupted"


@dataclass(frozen=True, slots=True)
class RunMove:
    """A move of a plan that is carried out; ``done`` is None where that is not known."""

    topic: str
    partition: int
    source: str
    target: str
    done: bool | None = None


@dataclass(frozen=True, slots=True)
class AllocationRun:
    """A plan that is carried out, or was.

    Attributes:
        plan: Its id.
        state: ``running``; ``interrupted``: its process is gone, and another one may go on;
            ``done``; ``failed``: a move could not be made; ``cancelled``; ``unreadable``.
        source: Where the plan is from.
        ordered_by, started_ms: Who ordered it, and when, in milliseconds since 1970.
        by, updated_ms: Who carries it out, or did last, and when it told so.
        total, done: Its moves, and how many are made.
        moving: Partitions on their way, as ``orders-3``.
        failed: Moves that could not be made: topic, partition, error.
        cancelled_by: Who wants it to end; "": nobody.
        moves: Each of its moves; empty in lists.
        error: Why it cannot be read; "": it can.
    """

    plan: str
    state: str
    source: str = ""
    ordered_by: str = ""
    started_ms: int = 0
    by: str = ""
    updated_ms: int = 0
    total: int = 0
    done: int = 0
    moving: tuple[str, ...] = ()
    failed: tuple[FailedMove, ...] = ()
    cancelled_by: str = ""
    moves: tuple[RunMove, ...] = ()
    error: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nobody moves anything by it now."""
        return self.state != AllocationState.RUNNING


#: Called with the run as it is.
AllocationListener = Callable[[AllocationRun], object]


async def list_allocations(cluster: ClusterClient) -> list[AllocationRun]:
    """Return the plans that are or were carried out, the last ten, the newest first."""
    found = await allocations.read_orders(cluster.coordinator)
    is_held = await read_holder(cluster.coordinator, ALLOCATION) is not None
    return [run_of(each, is_held=is_held) for each in found]


async def describe_allocation(cluster: ClusterClient, plan: str | None = None) -> AllocationRun:
    """Return a plan that is or was carried out with its moves, and which of them are made.

    ``plan``: its id; None: the newest one. It reads the placements of its partitions.

    Raises:
        InvalidArgument: There is none.
    """
    known = await need_order(cluster, plan)
    is_held = await read_holder(cluster.coordinator, ALLOCATION) is not None
    run = run_of(known, is_held=is_held)
    if known.order is None:
        return run
    order = known.order
    facts = await read_allocation(cluster, topics={each.topic for each in order.moves})
    moves = []
    for each in order.moves:
        load = facts.partitions.get(TopicPartition(each.topic, each.partition))
        is_done = None if load is None or load.error else load.group == each.target
        moves.append(RunMove(each.topic, each.partition, each.source, each.target, is_done))
    done = sum(each.done is True for each in moves) if run.has_ended else run.done
    return replace(run, moves=tuple(moves), done=done)


async def need_order(cluster: ClusterClient, plan: str | None) -> KnownOrder:
    """Return the order of a plan; None: of the newest one.

    Raises:
        InvalidArgument: There is none.
    """
    if plan is not None:
        found = await allocations.read_order(cluster.coordinator, plan)
        if found is None:
            raise InvalidArgument(
                f"no plan {shown(plan)} was carried out, or it is forgotten; "
                "`vq balance progress --all` lists those that are known"
            )
        return found
    known = await allocations.read_orders(cluster.coordinator)
    if not known:
        raise InvalidArgument(
            "no plan was carried out yet; `vq balance plan --save FILE` makes one"
        )
    return known[0]


def run_of(known: KnownOrder, *, is_held: bool) -> AllocationRun:
    """Return an order as operators see it; ``is_held``: a process holds the lease of the job."""
    if known.order is None:
        return AllocationRun(known.plan, "unreadable", error=known.error)
    told, order = known.progress, known.order
    state = str(told.state)
    if told.state is AllocationState.RUNNING and not is_held:
        state = INTERRUPTED
    return AllocationRun(
        plan=known.plan,
        state=state,
        source=order.source,
        ordered_by=order.by,
        started_ms=order.started_ms,
        by=told.by,
        updated_ms=told.updated_ms,
        total=len(order.moves),
        done=told.done,
        moving=told.moving if state == AllocationState.RUNNING else (),
        failed=told.failed,
        cancelled_by="" if known.cancel is None else known.cancel.by,
    )
