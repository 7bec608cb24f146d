"""Having a node lead that may lack acknowledged messages: an operator's act, when all else is lost.

Loop-bound functions on a ``ClusterClient``. The act is written into ZooKeeper in one transaction
with the record of the group, so that it cannot happen without a trace.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass

from vq.client.cluster import ClusterClient
from vq.coordination.brokers.insync import Candidate, keeps_leading, lacks_messages, named_uncleanly
from vq.coordination.topics.grace import describe_stored
from vq.coordination.topics.topics import list_topics
from vq.coordination.tree.coordinator import (
    Check,
    Create,
    NodeExists,
    NoNode,
    Operation,
    Set,
    parent_of,
)
from vq.coordination.tree.reading import children_or_none, gather_all
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.audit import UncleanElection, UncleanElections
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic
from vq.operations.base.acts import About, audited
from vq.operations.base.who import who


@dataclass(frozen=True, slots=True)
class Unclean:
    """An unclean election that was decided, or would be.

    Attributes:
        group: The broker group.
        node: The node that is to lead.
        epoch: The last one before.
        master: Who led in it.
        insync: The nodes that were in sync.
        topics: Whose messages may be lacking: all that have, or had, a partition on the group.
    """

    group: str
    node: str
    epoch: int
    master: str
    insync: tuple[str, ...]
    topics: tuple[str, ...]


async def plan_unclean(
    cluster: ClusterClient, group: str, node: str, topics: Collection[str]
) -> Unclean:
    """Return what ``elect_uncleanly`` would do; changes nothing.

    Raises:
        InvalidArgument, MastershipRefused: As ``elect_uncleanly``.
    """
    return await _elect(cluster, group, node, topics, do=False)


@audited(About.BROKERS, of="group")
async def elect_uncleanly(
    cluster: ClusterClient, group: str, node: str, topics: Collection[str]
) -> Unclean:
    """Have a node lead that may lack acknowledged messages: the last resort.

    ``topics`` must name every topic whose messages may be lost. The decision is written down in
    ZooKeeper.

    Raises:
        InvalidArgument: There is no such group, the node is not registered, or a topic is
            missing.
        MastershipRefused: A node in sync leads, or will.
        CoordinationError: ZooKeeper did not answer; ``vq cluster status`` tells what it took.
    """
    return await _elect(cluster, group, node, topics, do=True)


async def _elect(
    cluster: ClusterClient, group: str, node: str, topics: Collection[str], *, do: bool
) -> Unclean:
    coordinator = cluster.coordinator
    path = GroupState.path(group)
    if await coordinator.exists(path) is None:
        raise InvalidArgument(f"no node has ever led a broker group {group!r}")
    concerned = await _topics_on(cluster, group)
    _check_topics(group, concerned, topics)
    if do:
        with contextlib.suppress(NodeExists):
            await coordinator.create(parent_of(UncleanElections.path(group)), parents=True)
    result: Unclean | None = None
    decided: GroupState | None = None

    async def plan(_: CoordinationError | None) -> Plan[Unclean]:
        nonlocal result, decided
        registered = (await coordinator.get(Registration.parent(group))).stat.version
        found = await coordinator.get(path)
        state = GroupState.decode(path, found.data)
        if result is not None and state == decided:
            return Plan((), result)  # an earlier try was applied, and its answer lost
        candidate, able = await _look(cluster, group, node, state)
        decided = named_uncleanly(state, candidate, able=able)
        result = Unclean(group, node, state.epoch, state.master, state.insync, concerned)
        if not do:
            return Plan((), result)
        operations: list[Operation] = [
            Check(Registration.parent(group), registered),  # no node in sync came meanwhile
            Check(Registration.path(group, node), -1),
            Set(path, decided.encode(), found.stat.version),
            await _audit(cluster, result),
        ]
        return Plan(operations, result)

    return await apply_plan(coordinator, plan, what=f"the state of group {group!r}")


async def _topics_on(cluster: ClusterClient, group: str) -> tuple[str, ...]:
    """Return the topics with a range of offsets on a group, sorted."""
    names = await list_topics(cluster.coordinator)
    found = await gather_all(_is_on(cluster, name, group) for name in names)
    return tuple(sorted(name for name, is_on in zip(names, found, strict=True) if is_on))


async def _is_on(cluster: ClusterClient, name: str, group: str) -> bool:
    try:
        view = await describe_stored(cluster.coordinator, name)
    except UnknownTopic:  # it was removed meanwhile
        return False
    return any(span.group == group for each in view.partitions for span in each.spans)


def _check_topics(group: str, concerned: Collection[str], named: Collection[str]) -> None:
    missing, others = sorted({*concerned} - {*named}), sorted({*named} - {*concerned})
    if missing:
        raise InvalidArgument(
            f"messages of every topic on group {group!r} may be lost; name each with --topic; "
            f"missing: {', '.join(missing)}"
        )
    if others:
        raise InvalidArgument(f"group {group!r} has nothing of topic {', '.join(others)}")


async def unclean_elections(cluster: ClusterClient) -> dict[str, tuple[UncleanElection, ...]]:
    """Return the unclean elections that were decided, the oldest first, by broker group.

    The last 20 of each group are kept.
    """
    parent = parent_of(UncleanElections.path("b"))
    found: dict[str, tuple[UncleanElection, ...]] = {}
    for group in sorted(await children_or_none(cluster.coordinator, parent)):
        path = UncleanElections.path(group)
        with contextlib.suppress(NoNode):
            node = await cluster.coordinator.get(path)
            found[group] = UncleanElections.decode(path, node.data).elections
    return found


async def _look(
    cluster: ClusterClient, group: str, node: str, state: GroupState
) -> tuple[Candidate, list[str]]:
    """Return the node as a candidate, and the nodes in sync that can lead.

    Raises:
        InvalidArgument: The node is not registered.
    """
    candidate: Candidate | None = None
    able = []
    for name in sorted({node, *state.insync}):
        path = Registration.path(group, name)
        try:
            found = await cluster.coordinator.get(path)
        except NoNode:
            continue
        value = Registration.decode(path, found.data)
        at = found.stat.czxid
        if name == node:
            candidate = Candidate(group, node, at, value.directory)
        says = {"lost_power": value.lost_power, "damaged": value.damaged}
        leads = name == state.master and keeps_leading(state, at, **says)
        if name in state.insync and (leads or not lacks_messages(state, name, at, **says)):
            able.append(name)
    if candidate is None:
        raise InvalidArgument(f"node {node!r} of group {group!r} is not registered; start it first")
    return candidate, able


async def _audit(cluster: ClusterClient, decided: Unclean) -> Operation:
    """Return what adds the decision to the list of the group's unclean elections."""
    path = UncleanElections.path(decided.group)
    election = UncleanElection(
        time_ms=cluster.clock.wall_ms(),
        who=who(),
        node=decided.node,
        epoch=decided.epoch,
        insync=decided.insync,
        topics=decided.topics,
    )
    try:
        found = await cluster.coordinator.get(path)
    except NoNode:
        return Create(path, UncleanElections(elections=(election,)).encode())
    known = UncleanElections.decode(path, found.data)
    return Set(path, known.with_election(election).encode(), found.stat.version)
