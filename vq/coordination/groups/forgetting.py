"""A group forgets a topic that none of its members reads any more.

First the contract, then what the group has for the topic's partitions. Each step of that checks the
version of the contract: a member that subscribes to the topic meanwhile writes it there again, and
keeps what is left. The generations are raised and not removed, so that no late commit counts.
"""

from dataclasses import replace

from vq.coordination.groups import groups
from vq.coordination.groups.claims import fence_claims
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import Check, Coordinator, NoNode, Set
from vq.coordination.tree.subtree import remove_below
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.consumers import ConsumerGroup, Owner
from vq.errors import CoordinationError, InvalidState
from vq.model import check_name


async def forget_topic(coordinator: Coordinator, group: str, topic: str) -> None:
    """Take a topic out of a group, with the group's progress in it. May be repeated.

    Raises:
        InvalidState: A member subscribes to it; nothing was changed. Or one came meanwhile: the
            group reads the topic, perhaps without the progress that it had there.
        CoordinationError: ZooKeeper went away, and some of it may be done.
    """
    path = ConsumerGroup.path(check_name("group", group))
    await _check_nobody_reads(coordinator, group, topic)

    async def drop(_: CoordinationError | None) -> Plan[ConsumerGroup | None]:
        node = await coordinator.get(path)
        found = ConsumerGroup.decode(path, node.data)
        if topic not in found.topics:
            return Plan((), None)
        rest = {each: wanted for each, wanted in found.topics.items() if each != topic}
        changed = replace(found, topics=rest)
        return Plan([Set(path, changed.encode(), node.stat.version)], found)

    before = await apply_plan(coordinator, drop, what=f"the contract of group {group!r}")
    try:
        # A member that read the contract before that, and joined behind the look above, is seen
        # now. One that joins from here on reads the contract once more.
        await _check_nobody_reads(coordinator, group, topic)
    except InvalidState:
        if before is not None:
            await groups.ensure_group(coordinator, group, before)
        raise
    node = await coordinator.get(path)
    if topic in ConsumerGroup.decode(path, node.data).topics:
        raise _came_meanwhile(group, topic)
    fence = Check(path, node.stat.version)
    try:
        await fence_claims(coordinator, group, topic, fence)
        await remove_below(coordinator, Owner.parent(group, topic), fence)
        await ZooKeeperOffsets(coordinator).forget(group, topic, fence)
    except NoNode as error:
        if error.path != path:
            raise
    except CoordinationError as error:
        contract = await groups.read_group(coordinator, group)
        if contract is not None and topic in contract.topics:
            raise _came_meanwhile(group, topic) from error
        raise


async def _check_nobody_reads(coordinator: Coordinator, group: str, topic: str) -> None:
    members = await groups.members(coordinator, group)
    readers = [name for name, each in members.items() if each.value.reads(topic)]
    if readers:
        raise InvalidState(
            f"{len(readers)} member(s) of group {group!r} subscribe to topic {topic!r}: "
            f"{', '.join(readers[:5])}; stop them, or deploy them without it, first"
        )


def _came_meanwhile(group: str, topic: str) -> InvalidState:
    return InvalidState(
        f"a member of group {group!r} subscribed to topic {topic!r} meanwhile; the group reads it, "
        "perhaps without the progress that it had there"
    )
