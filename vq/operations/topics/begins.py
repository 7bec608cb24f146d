"""A partition whose log is lost begins anew, at an offset that was never used.

Loop-bound functions on a ``ClusterClient``. An offset means one message for ever: readers would
take the place of another message for theirs. So the new log begins behind every offset that is
known, and the operator chooses how far behind, since nobody knows where the lost log ended.
"""

from dataclasses import dataclass, replace
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.groups import groups
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import BadVersion, Check, Coordinator, Unreadable
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.brokers import Registration
from vq.errors import InvalidArgument, InvalidState
from vq.model import PartitionState, Span, TopicPartition
from vq.operations.base.changes import unknown_when_cut

#: Where a partition may begin at most: half of all offsets are left for what is stored then.
BEGIN_MAX: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class NewBegin:
    """A partition that begins anew, or would.

    Attributes:
        topic: The partition's topic.
        partition: Its number.
        group: The broker group that takes its messages.
        offset: Where its log begins.
        given_up: The ranges of offsets that nobody can read any more.
        committed: The highest offset that a consumer group has committed; None: there is none.
    """

    topic: str
    partition: int
    group: str
    offset: int
    given_up: tuple[Span, ...]
    committed: int | None


async def begin_anew(
    cluster: ClusterClient, topic: str, partition: int, offset: int, *, do: bool
) -> NewBegin:
    """Have a partition begin at ``offset``, and give up all that was stored before.

    Args:
        cluster: Where.
        topic: The partition's topic.
        partition: Its number.
        offset: Beyond every offset that ever existed there.
        do: Whether to do it; otherwise only what it would do is returned.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument: The offset may have been used, or is too high.
        InvalidState: No group takes its messages, a node of that group runs, or what a consumer
            group has committed cannot be read.
        ChangeUnknown: ZooKeeper went away; the partition begins there or not.
    """
    coordinator = cluster.coordinator
    view = await topics.describe_topic(coordinator, topic)
    planned, no_node = await _planned(coordinator, view, partition, offset)
    if do:
        placement = replace(
            view.partitions[partition],
            spans=(Span(planned.group, offset),),
            state=PartitionState.RW,
        )
        with unknown_when_cut(f"giving {topic}-{partition} a new begin"):
            try:
                await topics.change_placement(coordinator, view, placement, only_if=[no_node])
            except BadVersion as error:
                raise InvalidState(
                    f"a node of {planned.group} came meanwhile, or the partition was changed "
                    f"({error}); nothing was changed, try again"
                ) from error
    return planned


async def _planned(
    coordinator: Coordinator, view: TopicView, partition: int, offset: int
) -> tuple[NewBegin, Check]:
    """Return what a new begin would do, and the check that no node of the group came since."""
    name = f"{view.name}-{partition}"
    topics.check_partition(view, partition)
    placement = view.partitions[partition]
    group = placement.writer_group
    if group is None:
        raise InvalidState(f"{name} is open on no group (state {placement.state})")
    parent = Registration.parent(group)
    stat = await coordinator.exists(parent)  # before the nodes: each that comes raises its version
    if stat is None:
        raise InvalidState(f"no node has ever been registered in {group}")
    running = await registry.nodes(coordinator, group)
    if running:
        nodes = ", ".join(f"{group}/{each.node}" for each in running)
        raise InvalidState(
            f"{nodes} must not run meanwhile: stop it, and move the partition's directory away"
        )
    committed = await _highest_committed(coordinator, view.name, partition)
    known = max(placement.spans[-1].start, committed or 0)
    if not known < offset <= BEGIN_MAX:
        raise InvalidArgument(
            f"offset {offset} is outside ({known}, {BEGIN_MAX}]: offsets up to {known} were used "
            f"in {name}, and perhaps more"
        )
    planned = NewBegin(view.name, partition, group, offset, placement.spans, committed)
    return planned, Check(parent, stat.version)


async def _highest_committed(coordinator: Coordinator, topic: str, partition: int) -> int | None:
    names = await groups.list_groups(coordinator)
    found = await gather_all(_committed(coordinator, name, topic, partition) for name in names)
    return max((each for each in found if each is not None), default=None)


async def _committed(
    coordinator: Coordinator, group: str, topic: str, partition: int
) -> int | None:
    try:
        found = await ZooKeeperOffsets(coordinator).at(group, TopicPartition(topic, partition))
    except Unreadable as error:
        raise InvalidState(
            f"the offset that group {group!r} has committed in {topic}-{partition} cannot be "
            f"read, and the new begin must lie behind it: {error}"
        ) from error
    return None if found is None else found.offset
