"""Orders to move partitions as a plan says: made once, read, and told how far they are.

A plan has one order, named by the plan's id. It is made, and its progress is written, only while
the maker holds the lease of the job (``leases``). Values are in ``values.allocations``; what an
order does is in ``operations.allocation.applying``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vq.coordination.tree.coordinator import (
    NODE_BYTES_MAX,
    BadVersion,
    Check,
    Coordinator,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Unreadable,
)
from vq.coordination.tree.paths import ALLOCATIONS
from vq.coordination.tree.reading import children_or_none, read_nodes
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.allocations import (
    ORDERS_KEPT,
    AllocationCancel,
    AllocationOrder,
    AllocationProgress,
)
from vq.errors import CoordinationError, InvalidArgument


@dataclass(frozen=True, slots=True)
class KnownOrder:
    """An order as it was read.

    Attributes:
        plan: The id of its plan.
        order: What is to be done; None where ``error`` says why it cannot be read.
        progress: How far it is.
        cancel: Who wants it to end; None: nobody does.
        error: Why it cannot be read; "": it can.
    """

    plan: str
    order: AllocationOrder | None
    progress: AllocationProgress
    cancel: AllocationCancel | None = None
    error: str = ""


async def make_order(
    coordinator: Coordinator,
    plan: str,
    order: AllocationOrder,
    progress: AllocationProgress,
    *,
    lease: Callable[[], Check],
) -> None:
    """Make the order of a plan, unless it is there already.

    Raises:
        InvalidArgument: The order is too large for a znode; nothing was made.
        LeaseNotHeld, BadVersion: Another process holds the lease; nothing was made.
    """
    data = order.encode()
    if len(data) > NODE_BYTES_MAX:
        raise InvalidArgument(
            f"a plan of {len(order.moves)} moves takes {len(data)} bytes in ZooKeeper, and at most "
            f"{NODE_BYTES_MAX} fit; plan with fewer moves (--max-moves)"
        )
    path = AllocationOrder.path(plan)
    if await coordinator.exists(ALLOCATIONS) is None:
        try:
            await coordinator.create(ALLOCATIONS)
        except NodeExists:
            pass

    async def write(_: CoordinationError | None) -> Plan[None]:
        if await coordinator.exists(path) is not None:
            return Plan([], None)
        operations: list[Operation] = [
            lease(),
            Create(path, data),
            Create(AllocationProgress.path(plan), progress.encode()),
        ]
        return Plan(operations, None)

    await apply_plan(coordinator, write, what=f"the order of plan {plan}")


async def write_progress(
    coordinator: Coordinator,
    plan: str,
    progress: AllocationProgress,
    *,
    lease: Callable[[], Check],
    resumed: bool = False,
) -> None:
    """Write how far an order is; with ``resumed`` nobody wants its end any more.

    Raises:
        LeaseNotHeld, BadVersion: Another process holds the lease; nothing was written.
        NoNode: The order is forgotten.
    """
    operations: list[Operation] = [
        lease(),
        Set(AllocationProgress.path(plan), progress.bounded().encode()),
    ]
    if resumed and await is_cancelled(coordinator, plan):
        operations.append(Delete(AllocationCancel.path(plan)))
    await coordinator.multi(operations)


async def want_end(coordinator: Coordinator, plan: str, cancel: AllocationCancel) -> None:
    """Say that no further move of an order is to begin; the first one who says it counts.

    Raises:
        NoNode: There is no such order.
    """
    try:
        await coordinator.create(AllocationCancel.path(plan), cancel.encode())
    except NodeExists:
        pass


async def is_cancelled(coordinator: Coordinator, plan: str) -> bool:
    """Whether somebody wants an order to end."""
    return await coordinator.exists(AllocationCancel.path(plan)) is not None


async def read_orders(coordinator: Coordinator) -> list[KnownOrder]:
    """Return the orders that are remembered, the newest first."""
    names = await children_or_none(coordinator, ALLOCATIONS)
    found = [await read_order(coordinator, name) for name in names]
    known = [each for each in found if each is not None]
    return sorted(
        known, key=lambda each: (-(each.order.started_ms if each.order else 0), each.plan)
    )


async def read_order(coordinator: Coordinator, plan: str) -> KnownOrder | None:
    """Return the order of a plan; None: there is none."""
    paths = [
        AllocationOrder.path(plan),
        AllocationProgress.path(plan),
        AllocationCancel.path(plan),
    ]
    order, progress, cancel = await read_nodes(coordinator, paths)
    if order is None:
        return None
    try:
        value = AllocationOrder.decode(paths[0], _data(order))
        told = AllocationProgress()
        if progress is not None:
            told = AllocationProgress.decode(paths[1], _data(progress))
        wish = None
        if cancel is not None:
            wish = AllocationCancel.decode(paths[2], _data(cancel))
    except Unreadable as error:
        return KnownOrder(plan, None, AllocationProgress(), error=str(error))
    return KnownOrder(plan, value, told, wish)


def _data(node: Node | Unreadable) -> bytes:
    if isinstance(node, Unreadable):
        raise node
    return node.data


async def forget_orders(coordinator: Coordinator, keep: str) -> None:
    """Delete all orders but the newest ``ORDERS_KEPT``, and that of the plan ``keep``.

    Only who holds the lease calls it: none of them is being carried out.
    """
    for each in (await read_orders(coordinator))[ORDERS_KEPT:]:
        if each.plan == keep:
            continue
        for path in (
            AllocationCancel.path(each.plan),
            AllocationProgress.path(each.plan),
            AllocationOrder.path(each.plan),
        ):
            try:
                await coordinator.delete(path)
            except (NoNode, BadVersion):
                pass
