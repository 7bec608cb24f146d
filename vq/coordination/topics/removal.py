"""Removes the nodes of a deleted topic, step by step; several clients may do it at once.

Every step checks the topic's fence (``DeletionFence``) in its own ``multi``. The fence goes
with the last step. So a client that was suspended meanwhile removes nothing of a new topic that has
the same name.
"""

from vq.coordination.groups.claims import fence_claims
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import (
    Check,
    Coordinator,
    Delete,
    NoNode,
    NotEmpty,
)
from vq.coordination.tree.paths import CONSUMERS
from vq.coordination.tree.reading import children_or_none
from vq.coordination.tree.subtree import check_fence, remove_below
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.consumers import Owner
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import CoordinationError


async def remove_nodes(coordinator: Coordinator, name: str, fence_path: str) -> None:
    """Remove every group's progress on a topic, its placement, and at last its node.

    Returns when they are gone, whoever removed them. The groups' generations are raised and not
    removed.
    """
    fence = Check(fence_path, -1)
    try:
        for group in await children_or_none(coordinator, CONSUMERS):
            await remove_below(coordinator, Owner.parent(group, name), fence)
            await ZooKeeperOffsets(coordinator).forget(group, name, fence)
            await fence_claims(coordinator, group, name, fence)
        await remove_below(coordinator, Partition.parent(name), fence)
        await _remove_last(coordinator, name, fence)
    except NoNode as error:
        if error.path != fence_path:
            raise


async def _remove_last(coordinator: Coordinator, name: str, fence: Check) -> None:
    """Remove the topic's node together with the fence."""
    path = TopicNode.path(name)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        await check_fence(coordinator, fence)
        return Plan([Delete(fence.path), Delete(path)], None)

    try:
        await apply_plan(coordinator, plan, what=path)
    except NotEmpty:  # a node below it that no vq of this version makes
        for each in await children_or_none(coordinator, path):
            if f"{path}/{each}" != fence.path:
                await remove_below(coordinator, f"{path}/{each}", fence)
        await apply_plan(coordinator, plan, what=path)
