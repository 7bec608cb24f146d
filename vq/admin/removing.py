"""Taking a broker group, or a node of one, out of the cluster for good.

Loop-bound functions on a ``ClusterClient``. Nothing is removed while it runs or while messages
are stored there: the tree would name a place that nobody serves.
"""

from dataclasses import dataclass, replace
from typing import Final

from vq.admin.changes import unknown_when_cut
from vq.admin.draining import DrainUnknown, check_group
from vq.client.cluster import ClusterClient
from vq.coordination import registry, topics
from vq.coordination.coordinator import Coordinator, Delete, NoNode, NotEmpty
from vq.coordination.paths import BrokerGroup
from vq.coordination.reading import children_or_none, gather_all
from vq.errors import CoordinationError, InvalidArgument, InvalidState, UnknownTopic

#: Names in one text.
_NAMES_TOLD_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Removal:
    """What stands in the way of removing a broker group or a node; nothing if it can be removed.

    Attributes:
        group: The broker group.
        node: The node; "": the group with all that the tree says of it.
        running: The nodes that are registered, or are in sync: they run, or may come back.
        open: How many partitions take messages there.
        topics: Topics with messages that are stored there alone, sorted.
    """

    group: str
    node: str
    running: tuple[str, ...]
    open: int
    topics: tuple[str, ...]

    @property
    def obstacle(self) -> str:
        """What has to be done first; "" if it can be removed."""
        if self.running:
            names = ", ".join(f"{self.group}/{each}" for each in self.running)
            if self.node:
                return f"{names} is registered or in sync: stop it, and wait until it left the set"
            return f"{names} runs: stop it first"
        if self.open:
            return (
                f"{self.open} partition(s) are open on {self.group}: "
                f"`vq broker drain {self.group} --move` moves them, while its broker runs"
            )
        if self.topics:
            more = len(self.topics) - _NAMES_TOLD_MAX
            names = ", ".join(self.topics[:_NAMES_TOLD_MAX]) + (f" and {more} more" * (more > 0))
            return (
                f"{self.group} has stored messages of {names}, and no other group has them: keep "
                "its broker running, or delete these topics"
            )
        return ""


async def plan_removal(cluster: ClusterClient, group: str, node: str = "") -> Removal:
    """Return what stands in the way of removing a group, or one of its nodes; changes nothing.

    Raises:
        InvalidArgument: There is no such group or node.
    """
    coordinator = cluster.coordinator
    value = await check_group(cluster, group)
    state = await registry.read_state(coordinator, group)
    registered = [each.node for each in await registry.nodes(coordinator, group)]
    if not node:
        opened, stored = await _stored_on(cluster, group)
        return Removal(group, "", tuple(registered), opened, stored)
    insync = () if state is None else state.insync
    known = {*registered, *insync, *value.drained}
    if node not in known:
        raise InvalidArgument(
            f"group {group!r} has no node {node!r}; known: {', '.join(sorted(known)) or 'none'}"
        )
    running = (node,) if node in {*registered, *insync} else ()
    return Removal(group, node, running, 0, ())


async def remove_broker(cluster: ClusterClient, group: str, node: str = "") -> Removal:
    """Remove a broker group that nothing is stored on, or a node that has left its group.

    Raises:
        InvalidArgument: There is no such group or node.
        InvalidState: It runs, or messages are stored there; nothing was changed.
        DrainUnknown: ZooKeeper went away; it is removed or not.
    """
    planned = await plan_removal(cluster, group, node)
    if planned.obstacle:
        raise InvalidState(planned.obstacle)
    with unknown_when_cut(f"removing {group}{'/' * bool(node)}{node}", DrainUnknown):
        if node:
            await registry.change_group(
                cluster.coordinator,
                group,
                lambda value: replace(
                    value, drained=tuple(each for each in value.drained if each != node)
                ),
            )
        else:
            await _delete_group(cluster.coordinator, group)
    return planned


async def _delete_group(coordinator: Coordinator, group: str) -> None:
    """Delete the nodes of a group in one transaction: a broker that comes meanwhile ends it."""
    paths = await _below(coordinator, BrokerGroup.path(group))
    try:
        await coordinator.multi([Delete(each) for each in paths])
    except (NoNode, NotEmpty) as error:
        raise CoordinationError(
            f"group {group!r} was changed meanwhile: {error}; nothing was removed"
        ) from error


async def _below(coordinator: Coordinator, path: str) -> list[str]:
    """Return a node and all below it, the deepest first."""
    names = await children_or_none(coordinator, path)
    found = await gather_all(_below(coordinator, f"{path}/{name}") for name in names)
    return [*(each for below in found for each in below), path]


async def _stored_on(cluster: ClusterClient, group: str) -> tuple[int, tuple[str, ...]]:
    """Return how many partitions are open on a group, and the topics that it has messages of."""
    names = await topics.list_topics(cluster.coordinator)
    found = await gather_all(_of_topic(cluster, name, group) for name in names)
    stored = [name for name, (_, is_there) in zip(names, found, strict=True) if is_there]
    return sum(opened for opened, _ in found), tuple(sorted(stored))


async def _of_topic(cluster: ClusterClient, name: str, group: str) -> tuple[int, bool]:
    try:
        view = await topics.describe_topic(cluster.coordinator, name)
    except UnknownTopic:  # it was deleted meanwhile
        return 0, False
    opened = sum(each.writer_group == group for each in view.partitions)
    spans = [span for each in view.partitions for span in each.spans if span.group == group]
    return opened, any(span.end is None or span.end > span.start for span in spans)
