"""Taking a broker group, or a node of one, out of the cluster for good.

Loop-bound functions on a ``ClusterClient``. Nothing is removed while it runs or while messages
are stored there: the tree would name a place that nobody serves. If the disk of a group is lost for
good, an operator may give up what was stored there: then each partition begins behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.brokers.insync import forgotten
from vq.coordination.brokers.open_counts import read_counts
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import (
    BadVersion,
    Coordinator,
    Delete,
    Node,
    NoNode,
    NotEmpty,
    Operation,
    Set,
)
from vq.coordination.tree.reading import TopicView, children_or_none, gather_all, read_topics
from vq.coordination.tree.update import update
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState
from vq.coordination.tree.values.topics import IN_GRACE, READY
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import unknown_when_cut
from vq.operations.brokers.draining import DrainUnknown, check_group

logger = get_logger(__name__)

#: Names in one text.
_NAMES_TOLD_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The offsets ``[start, end)`` of a partition: they lie on the group that is to be removed."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Removal:
    """What stands in the way of removing a broker group or a node; nothing if it can be removed.

    Attributes:
        group: The broker group.
        node: The node; "": the group with all that the tree says of it.
        running: The nodes that are registered, or are in sync: they run, or may come back. While
            there are some, what is stored on a group is not looked for, and all below but ``open``
            is empty.
        open: How many partitions take messages there.
        topics: Topics with messages that are stored there alone, sorted.
        ranges: Where these messages are.
        deleted: Deleted topics with a part on the group, sorted; they can be brought back.
        needed: Those of ``ranges`` that cannot be given up: other groups have what lies before
            them, or the partition takes no further messages. Then no place to begin would be left.
    """

    group: str
    node: str
    running: tuple[str, ...]
    open: int
    topics: tuple[str, ...]
    ranges: tuple[GivenUp, ...] = ()
    needed: tuple[GivenUp, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def obstacle(self) -> str:
        """What has to be done first; "" if it can be removed."""
        if self._comes_first:
            return self._comes_first
        if self.topics:
            return (
                f"{self.group} has stored messages of {_told(self.topics)}, and no other group has "
                "them: keep its broker running, or delete these topics. If its disk is lost for "
                "good, --accept-data-loss gives them up"
            )
        return ""

    @property
    def obstacle_to_loss(self) -> str:
        """What has to be done first if its messages are given up; "" if it can be removed."""
        if self.needed and not self._comes_first:
            return (
                f"{_told(self.needed)} on {self.group} cannot be given up, since other groups have "
                "what lies before, or nothing lies behind: delete these topics"
            )
        return self._comes_first

    @property
    def _comes_first(self) -> str:
        if self.deleted and not self.running:
            return (
                f"{_told(self.deleted)} can be brought back, and {self.group} holds a part of it: "
                "`vq topic delete NAME --now` removes it for good"
            )
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
        return ""


def _told(names: Sequence[object]) -> str:
    """Return the first few of some names."""
    more = len(names) - _NAMES_TOLD_MAX
    return ", ".join(map(str, names[:_NAMES_TOLD_MAX])) + f" and {more} more" * (more > 0)


async def plan_removal(cluster: ClusterClient, group: str, node: str = "") -> Removal:
    """Return what stands in the way of removing a broker group or a node; changes nothing.

    Raises:
        InvalidArgument: There is no such group or node.
    """
    coordinator = cluster.coordinator
    value = await check_group(cluster, group)
    state = await registry.read_state(coordinator, group)
    registered = [each.node for each in await registry.nodes(coordinator, group)]
    if not node and registered:
        count = (await read_counts(coordinator, [group]))[group]
        if count is not None and count.open is not None:
            return Removal(group, node, tuple(registered), count.open, ())
    if not node:
        return _removal(group, tuple(registered), await _stored_topics(cluster))
    insync = () if state is None else state.insync
    left = () if state is None else state.left
    known = {*registered, *insync, *left, *value.drained}
    if node not in known:
        raise InvalidArgument(
            f"group {group!r} has no node {node!r}; known: {', '.join(sorted(known)) or 'none'}"
        )
    running = (node,) if node in {*registered, *insync} else ()
    return Removal(group, node, running, 0, ())


@audited(About.BROKERS, of="group")
async def remove_broker(
    cluster: ClusterClient, group: str, node: str = "", *, accept_data_loss: bool = False
) -> Removal:
    """Remove a broker group, or one node of it, from the cluster.

    Nothing of it may run, and no message may be stored on the group. A broker that is started
    later makes the group anew; for that it needs an empty data directory.

    Args:
        group: The broker group.
        node: The node; "": the group.
        accept_data_loss: The disk of the group is lost for good: give up the messages in
            ``Removal.ranges``. Their partitions begin behind them; a consumer group that has
            not handled them stands still until it is reset.

    Raises:
        InvalidArgument: There is no such group or node.
        InvalidState: ``plan_removal`` names an obstacle; nothing was changed.
        DrainUnknown: ZooKeeper went away; it is removed or not.
    """
    before = [] if node else await _below(cluster.coordinator, BrokerGroup.path(group))
    planned = await plan_removal(cluster, group, node)
    obstacle = planned.obstacle_to_loss if accept_data_loss else planned.obstacle
    if obstacle:
        raise InvalidState(obstacle)
    with unknown_when_cut(f"removing {group}{'/' * bool(node)}{node}", DrainUnknown):
        if node:
            await registry.change_group(
                cluster.coordinator,
                group,
                lambda value: replace(
                    value, drained=tuple(each for each in value.drained if each != node)
                ),
            )
            await _forget(cluster.coordinator, group, node)
        else:
            await _give_up(cluster, planned)
            await _delete_group(cluster.coordinator, group, before)
    return planned


async def _forget(coordinator: Coordinator, group: str, node: str) -> None:
    """Have the record of a group not miss a node that left the set."""

    def change(found: Node | None) -> list[Operation]:
        if found is None:
            return []
        state = GroupState.decode(path, found.data)
        changed = forgotten(state, node)
        return [] if changed == state else [Set(path, changed.encode(), found.stat.version)]

    path = GroupState.path(group)
    await update(coordinator, path, change, what=f"the state of group {group!r}")


async def _give_up(cluster: ClusterClient, planned: Removal) -> None:
    """Have partitions begin behind what the group has stored of them."""
    for lost in planned.ranges:
        view = await topics.describe_topic(cluster.coordinator, lost.topic)
        spans = [each for each in view.partitions[lost.partition].spans if each.start >= lost.end]
        placement = replace(view.partitions[lost.partition], spans=tuple(spans))
        await topics.change_placement(cluster.coordinator, view, placement)
        logger.error(
            "stored messages were given up with their broker group",
            group=planned.group,
            partition=TopicPartition(lost.topic, lost.partition),
            start=lost.start,
            end=lost.end,
            bytes=lost.end - lost.start,
        )


async def _delete_group(
    coordinator: Coordinator, group: str, before: Sequence[tuple[str, int]]
) -> None:
    """Delete the nodes of a group in one transaction, if they are as they were before the plan.

    A broker that came meanwhile, or a partition that was placed on the group, has changed them.
    """
    try:
        await coordinator.multi([Delete(path, version) for path, version in before])
    except (NoNode, NotEmpty, BadVersion) as error:
        raise CoordinationError(
            f"group {group!r} was changed meanwhile: {error}; nothing was removed"
        ) from error


async def _below(coordinator: Coordinator, path: str) -> list[tuple[str, int]]:
    """Return a node and all below it with their versions, the deepest first."""
    stat = await coordinator.exists(path)
    if stat is None:
        return []
    names = await children_or_none(coordinator, path)
    found = await gather_all(_below(coordinator, f"{path}/{name}") for name in names)
    return [*(each for below in found for each in below), (path, stat.version)]


async def _stored_topics(cluster: ClusterClient) -> list[TopicView]:
    """Return all topics of which brokers keep data: 200 nodes with one request.

    They need not be of one moment: a partition that is placed on the group meanwhile changes the
    count of its open ones, and with it the version that ``_delete_group`` checks.
    """
    names = await topics.list_topics(cluster.coordinator)
    found = await read_topics(cluster.coordinator, names)
    return [each for each in found.values() if each.phase in {READY, IN_GRACE}]


def _removal(group: str, running: tuple[str, ...], views: Sequence[TopicView]) -> Removal:
    opened = 0
    ranges: list[GivenUp] = []
    needed: list[GivenUp] = []
    deleted = {
        view.name
        for view in views
        if view.phase == IN_GRACE
        and any(span.group == group for each in view.partitions for span in each.spans)
    }
    views = [each for each in views if each.phase != IN_GRACE]
    for placement in (each for view in views for each in view.partitions):
        opened += placement.writer_group == group
        for index, span in enumerate(placement.spans):
            if span.group != group or span.end is None or span.end <= span.start:
                continue
            found = GivenUp(placement.topic, placement.partition, span.start, span.end)
            ranges.append(found)
            before = placement.spans[:index]
            if index + 1 == len(placement.spans) or any(
                each.group != group and each.start != each.end for each in before
            ):
                needed.append(found)
    names = {each.topic for each in ranges} | {
        view.name for view in views if any(each.writer_group == group for each in view.partitions)
    }
    return Removal(
        group,
        "",
        running,
        opened,
        tuple(sorted(names)),
        tuple(ranges),
        tuple(needed),
        tuple(sorted(deleted)),
    )
