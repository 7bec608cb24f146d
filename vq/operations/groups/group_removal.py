"""Groups that go, and topics that a group forgets: what that takes away, and doing it.

Loop-bound functions on a ``ClusterClient``.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from vq.client.cluster import ClusterClient
from vq.coordination.groups import forgetting, groups
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.topics.topics import list_topics
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import InvalidArgument, InvalidState
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import ResetUnknown, unknown_when_cut
from vq.operations.groups.shared import forget_shared_group
from vq.reserved import Purpose, group_of


# delete ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GroupDeletion:
    """What deleting a consumer group takes away.

    Attributes:
        group: Its name.
        topics: What it reads, sorted.
        partitions: In how many partitions it has a committed offset.
        members: Its live consumers; the group is not deleted while it has one.
        unreadable: Why it cannot be read in ZooKeeper; None: it can.
    """

    group: str
    topics: tuple[str, ...]
    partitions: int
    members: tuple[str, ...]
    unreadable: str | None = None


async def plan_delete_group(cluster: ClusterClient, group: str) -> GroupDeletion:
    """Return what deleting a consumer group would take away; changes nothing.

    Raises:
        UnknownGroup: There is none of this name.
    """
    coordinator = cluster.coordinator
    unreadable = None
    topics_read: Iterable[str] = ()
    try:
        contract = await groups.read_group(coordinator, group)
    except Unreadable as error:
        unreadable = str(error)
    else:
        if contract is not None:
            topics_read = {*contract.topics, *contract.patterns}
        elif await coordinator.exists(ConsumerGroup.path(group)) is None:
            raise UnknownGroup(f"there is no consumer group {group!r}")
    kept = await cluster.offsets.topics(group)
    names = tuple(sorted({*topics_read, *kept}))
    numbers = await gather_all(cluster.offsets.partitions(group, each) for each in kept)
    members = await groups.member_names(coordinator, group)
    return GroupDeletion(group, names, sum(map(len, numbers)), tuple(members), unreadable)


@audited(About.GROUP)
async def delete_group(cluster: ClusterClient, group: str) -> None:
    """Delete a consumer group without live members: where it is, is forgotten.

    Raises:
        UnknownGroup: There is none of this name.
        InvalidState: It has members; nothing was deleted.
        ResetUnknown: ZooKeeper went away; it is deleted, in part, or not. May be repeated.
    """
    if group not in await groups.list_groups(cluster.coordinator):
        raise UnknownGroup(f"there is no consumer group {group!r}")
    await _forget_shared(cluster, group)
    with unknown_when_cut(f"deleting group {group}", ResetUnknown):
        await groups.delete_group(cluster.coordinator, group)


async def _forget_shared(cluster: ClusterClient, group: str, topic: str = "") -> None:
    """Have the journal of a shared group forget it, unless it has members; or a topic."""
    try:
        contract = await groups.read_group(cluster.coordinator, group)
    except Unreadable:
        return
    is_shared = contract is not None and contract.model == GroupModel.SHARED
    if is_shared and (topic or not await groups.member_names(cluster.coordinator, group)):
        await forget_shared_group(cluster, group, topic)


# forget ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TopicForgetting:
    """What a group forgets with a topic.

    Attributes:
        group: Its name.
        topic: The topic.
        partitions: In how many partitions it has a committed offset.
        members: Its live consumers that subscribe to the topic; while there is one, nothing is
            forgotten.
    """

    group: str
    topic: str
    partitions: int
    members: tuple[str, ...]


async def plan_forget_topic(cluster: ClusterClient, group: str, topic: str) -> TopicForgetting:
    """Return what a consumer group would forget with a topic; changes nothing.

    Raises:
        UnknownGroup: There is no such group.
        InvalidArgument: It does not read the topic.
    """
    coordinator = cluster.coordinator
    contract = await groups.known_reads(coordinator, group)
    numbers = await cluster.offsets.partitions(group, topic)
    if topic not in contract.topics and not numbers:
        raise InvalidArgument(
            f"group {group!r} does not read topic {topic!r}; it reads "
            f"{', '.join(sorted(contract.topics)) or 'none'}"
        )
    members = await groups.members(coordinator, group)
    readers = tuple(each for each, view in members.items() if view.value.reads(topic))
    return TopicForgetting(group, topic, len(numbers), readers)


@audited(About.GROUP)
async def forget_topic(cluster: ClusterClient, group: str, topic: str) -> None:
    """Have a group forget a topic that none of its members subscribes to any more.

    Its progress there is deleted, and what it keeps from being deleted
    (``retention_policy = keep``) may go. A member that subscribes to the topic later begins
    where its setting ``start_position`` says.

    Raises:
        UnknownGroup: There is no such group.
        InvalidArgument: It does not read the topic.
        InvalidState: A member subscribes to it; nothing was changed. Or one came meanwhile. Or it
            is the retry topic of the group, and there is one.
        ResetUnknown: ZooKeeper went away; it is forgotten, in part, or not. May be repeated.
    """
    plan = await plan_forget_topic(cluster, group, topic)
    if group_of(topic, Purpose.RETRY) == group and topic in await list_topics(cluster.coordinator):
        raise InvalidState(
            f"topic {topic!r} is the retry topic of group {group!r}: nobody would read what waits "
            "in it until a message fails again, and then all of it comes once more. To give up "
            f"what is in it, delete it first (`vq topic delete {topic} --now`)"
        )
    if not plan.members:
        await _forget_shared(cluster, group, topic)
    with unknown_when_cut(f"forgetting topic {topic} in group {group}", ResetUnknown):
        await forgetting.forget_topic(cluster.coordinator, group, topic)
