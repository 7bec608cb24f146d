"""Taking leadership from a node, or new partitions from a group, and giving them back.

Loop-bound functions on a ``ClusterClient``. What is drained is kept in ``brokers/<group>``; the
brokers read it there and act on it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import group_views, registry
from vq.coordination.tree.values.brokers import BrokerGroup
from vq.errors import InvalidArgument
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import ChangeUnknown, unknown_when_cut

#: How long to wait until another node leads.
HAND_OVER_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.05


class DrainUnknown(ChangeUnknown):
    """ZooKeeper went away while a node or a group was drained."""

    hint = "`vq cluster status` shows what is drained; the command may be repeated"


@dataclass(frozen=True, slots=True)
class DrainedNode:
    """A node that is drained, or is not any more.

    Attributes:
        group: Its broker group.
        node: The node.
        drained: Whether it is drained now.
        master: The node that leads the group.
    """

    group: str
    node: str
    drained: bool
    master: str


@dataclass(frozen=True, slots=True)
class DrainedGroup:
    """A group that is draining, or is not any more; ``partitions`` are open on it."""

    group: str
    draining: bool
    partitions: int


@audited(About.BROKERS, of="group")
async def drain_node(cluster: ClusterClient, group: str, node: str) -> DrainedNode:
    """Have a node hand over its group, and lead no more while another node in sync can.

    It stays so, also after restarts, until ``undrain_node``. Returns when another node leads,
    at most after 10 s: ``master`` of the result says which one does.

    Raises:
        InvalidArgument: There is no such group or node.
        DrainUnknown: ZooKeeper went away; it is drained or not.
    """
    return await _set_drained(cluster, group, node, drained=True)


@audited(About.BROKERS, of="group")
async def undrain_node(cluster: ClusterClient, group: str, node: str) -> DrainedNode:
    """Let a node lead its group again.

    Raises:
        InvalidArgument: There is no such group.
        DrainUnknown: ZooKeeper went away; it is drained or not.
    """
    return await _set_drained(cluster, group, node, drained=False)


async def _set_drained(
    cluster: ClusterClient, group: str, node: str, *, drained: bool
) -> DrainedNode:
    await check_group(cluster, group)
    state = await registry.read_state(cluster.coordinator, group)
    known = {each.node for each in await registry.nodes(cluster.coordinator, group)}
    known.update(() if state is None else state.insync)

    def change(value: BrokerGroup) -> BrokerGroup:
        others = set(value.drained) - {node}
        if drained:
            if node not in known:
                raise InvalidArgument(
                    f"group {group!r} has no node {node!r}; known: {', '.join(sorted(known))}"
                )
            others.add(node)
        return replace(value, drained=tuple(sorted(others)))

    await _change(cluster, group, f"draining {group}/{node}", change)
    deadline = cluster.clock.monotonic() + HAND_OVER_WAIT_S
    while True:
        state = await registry.read_state(cluster.coordinator, group)
        master = "" if state is None else state.master
        if not drained or master != node or cluster.clock.monotonic() >= deadline:
            return DrainedNode(group, node, drained, master)
        await asyncio.sleep(_LOOK_S)


@audited(About.BROKERS, of="group")
async def drain_group(cluster: ClusterClient, group: str) -> DrainedGroup:
    """Place no new partitions on a broker group, until ``undrain_group``.

    ``plan_emptying`` and ``move`` take away those that are open there.

    Raises:
        InvalidArgument: There is no such group.
        DrainUnknown: ZooKeeper went away; it is draining or not.
    """
    return await _set_draining(cluster, group, draining=True)


@audited(About.BROKERS, of="group")
async def undrain_group(cluster: ClusterClient, group: str) -> DrainedGroup:
    """Place new partitions on a broker group again.

    Raises:
        InvalidArgument: There is no such group.
        DrainUnknown: ZooKeeper went away; it is draining or not.
    """
    return await _set_draining(cluster, group, draining=False)


async def _set_draining(cluster: ClusterClient, group: str, *, draining: bool) -> DrainedGroup:
    await check_group(cluster, group)
    await _change(
        cluster, group, f"draining {group}", lambda value: replace(value, draining=draining)
    )
    views = await group_views.groups(cluster.coordinator)
    opened = sum(view.partitions for view in views if view.group == group)
    return DrainedGroup(group, draining, opened)


async def check_group(cluster: ClusterClient, group: str) -> BrokerGroup:
    """Return the operator's settings of a group.

    Raises:
        InvalidArgument: There is no such group.
    """
    found = await registry.read_group(cluster.coordinator, group)
    if found is None:
        known = ", ".join(await registry.group_names(cluster.coordinator))
        raise InvalidArgument(f"there is no broker group {group!r}; known: {known or 'none'}")
    return found


async def _change(
    cluster: ClusterClient, group: str, what: str, change: Callable[[BrokerGroup], BrokerGroup]
) -> None:
    with unknown_when_cut(what, DrainUnknown):
        await registry.change_group(cluster.coordinator, group, change)
