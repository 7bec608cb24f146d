"""Removes a node with all below it, step by step; several clients may do it at once.

With a fence, every step checks it in its own ``multi``. So a client that was suspended meanwhile
removes nothing that came after the fence went. Not in here: what is removed, and which fence guards
it.
"""

from collections.abc import Sequence
from typing import Final

from vq.coordination.tree.coordinator import (
    Check,
    ConnectionLost,
    Coordinator,
    Delete,
    NoNode,
    NotEmpty,
)
from vq.coordination.tree.reading import children_or_none, gather_all
from vq.coordination.tree.update import Plan, apply_plan
from vq.errors import CoordinationError

#: Nodes removed by one ``multi``.
STEP_NODES: Final = 500


async def remove_below(coordinator: Coordinator, path: str, fence: Check | None = None) -> None:
    """Remove a node and all below it; a missing one is no error.

    Raises:
        NoNode: The fence is gone; another client has removed the topic.
    """
    names = await children_or_none(coordinator, path)
    for start in range(0, len(names), STEP_NODES):
        await _remove_children(coordinator, path, names[start : start + STEP_NODES], fence)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        await check_fence(coordinator, fence)
        stat = await coordinator.exists(path)
        return Plan([] if stat is None else [*_fenced(fence), Delete(path)], None)

    try:
        await apply_plan(coordinator, plan, what=path)
    except NotEmpty:  # another client created a node below it meanwhile
        await remove_below(coordinator, path, fence)


async def _remove_children(
    coordinator: Coordinator, path: str, names: Sequence[str], fence: Check | None
) -> None:
    """Remove nodes with one call; each alone if one of them is missing or has nodes below it."""
    try:
        await coordinator.multi([*_fenced(fence), *(Delete(f"{path}/{name}") for name in names)])
    except (NoNode, NotEmpty, ConnectionLost):
        await check_fence(coordinator, fence)
        await gather_all(remove_below(coordinator, f"{path}/{name}", fence) for name in names)


def _fenced(fence: Check | None) -> list[Check]:
    return [] if fence is None else [fence]


async def check_fence(coordinator: Coordinator, fence: Check | None) -> None:
    """Raise ``NoNode`` if the fence is gone."""
    if fence is not None and await coordinator.exists(fence.path) is None:
        raise NoNode(fence.path)
