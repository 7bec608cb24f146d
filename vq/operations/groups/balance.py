"""Who has which partition of a group: what another balance would give whom, and who had it when.

Loop-bound functions on a ``ClusterClient``. They read, and change nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vq.bounds import check_between
from vq.client.cluster import ClusterClient
from vq.coordination.groups import claims, groups
from vq.coordination.groups.groups import MemberView
from vq.coordination.groups.rebalance import (
    STRATEGIES,
    GroupBalance,
    GroupStrategy,
    group_strategy_of,
)
from vq.coordination.tree.values.consumers import Assignment, ConsumerGroup, Member
from vq.errors import InvalidArgument, UnknownTopic
from vq.model import TopicPartition
from vq.operations.groups.terms import check_one_progress

#: Most members of a plan.
MEMBERS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class PlannedMember:
    """A member of a plan, and how many partitions it has now and would have then.

    ``is_there`` is False of one that the plan adds; ``stays`` of one that it takes away.
    """

    member: str
    now: int
    then: int
    is_there: bool = True
    stays: bool = True


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition that would change its member; ``before`` None: no member has it now."""

    topic: str
    partition: int
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class BalancePlan:
    """Who would get what of a group.

    Attributes:
        group: Its name.
        strategy: That of the plan.
        group_strategy: That of the group now.
        members: By name, those that would come or go included.
        moves: The partitions that would change their member, by topic and number.
        partitions: How many the group has.
    """

    group: str
    strategy: str
    group_strategy: str
    members: tuple[PlannedMember, ...]
    moves: tuple[PartitionMove, ...]
    partitions: int


async def plan_balance(
    cluster: ClusterClient,
    group: str,
    *,
    strategy: str | GroupStrategy | None = None,
    members: int | None = None,
) -> BalancePlan:
    """Return who would get which partitions under another strategy or number of members.

    Args:
        group: Its name.
        strategy: The name of a strategy, or one of your own; None: that of the group.
        members: How many there are then. More than now: the new ones subscribe to all topics and
            are called ``new-1`` and so on. Fewer: the last names go. None: those that are there.

    Raises:
        UnknownGroup: There is none of this name.
        InvalidState: It is broadcasting: nothing is shared out.
        InvalidArgument: The group has a strategy of its application and none is given; or there
            would be no member, or too many.
    """
    coordinator = cluster.coordinator
    contract = await groups.known_reads(coordinator, group)
    check_one_progress(group, contract, "nothing is shared out")
    name, assign = group_strategy_of(_strategy_for(group, contract, strategy))
    present = await groups.members(coordinator, group)
    then = _members_then(contract, present, members)
    subscribed = {
        member: frozenset(topic for topic in contract.topics if each.reads(topic))
        for member, each in then.items()
    }
    topics = set().union(*subscribed.values())
    partitions: list[TopicPartition] = []
    for topic in sorted(topics):
        partitions += await _partitions(cluster, topic)
    assigned = await claims.read_partitions(coordinator, Assignment, group, sorted(topics))
    current = {partition: each.member for partition, each in assigned.items() if each.member}
    routes = cluster.routes
    shares = assign(
        GroupBalance(
            members=subscribed,
            partitions=partitions,
            current=current,
            member_racks={member: each.rack for member, each in then.items()},
            partition_racks={each: rack for each in partitions if (rack := routes.rack_of(each))},
        )
    )
    now = {each: current[each] for each in partitions if current.get(each) in present}
    return BalancePlan(
        group=group,
        strategy=name,
        group_strategy=contract.strategy,
        members=_planned_members(present, then, Counter(now.values()), Counter(shares.values())),
        moves=tuple(
            PartitionMove(each.topic, each.partition, now.get(each), shares.get(each))
            for each in partitions
            if now.get(each) != shares.get(each)
        ),
        partitions=len(partitions),
    )


def _strategy_for(
    group: str, contract: ConsumerGroup, given: str | GroupStrategy | None
) -> str | GroupStrategy:
    if given is not None:
        return given
    if contract.strategy not in STRATEGIES:
        raise InvalidArgument(
            f"group {group!r} has the strategy {contract.strategy!r} of its application, which "
            f"only its members know; give the object, or one of {', '.join(STRATEGIES)}"
        )
    return contract.strategy


def _members_then(
    contract: ConsumerGroup, present: dict[str, MemberView], count: int | None
) -> dict[str, Member]:
    now = {name: each.value for name, each in present.items()}
    if count is None:
        count = len(now)
        if not now:
            raise InvalidArgument(
                "the group has no members now: give members = 1 or more, as if it had so many "
                "(`vq group plan --members N`)"
            )
    check_between("members", count, 1, MEMBERS_MAX)
    kept = dict(list(now.items())[:count])
    new = Member(topics=tuple(sorted(contract.topics)))
    numbers = (number for number in range(1, MEMBERS_MAX * 2) if f"new-{number}" not in now)
    while len(kept) < count:
        kept[f"new-{next(numbers)}"] = new
    return kept


def _planned_members(
    present: dict[str, MemberView], then: dict[str, Member], now: Counter[str], after: Counter[str]
) -> tuple[PlannedMember, ...]:
    return tuple(
        PlannedMember(name, now[name], after[name], name in present, name in then)
        for name in sorted({*present, *then})
    )


async def _partitions(cluster: ClusterClient, topic: str) -> Sequence[TopicPartition]:
    try:
        routes = await cluster.track(topic)
    except UnknownTopic:
        return []
    return [TopicPartition(topic, each.partition) for each in routes.partitions(topic)]


# history --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A claim of a partition, as the group remembers it.

    Attributes:
        topic, partition: The partition.
        member: Who claimed it.
        before: Who had it before; None: nobody, or it is not remembered.
        reason: ``first``: nobody had it. ``balance``: the shares changed. ``left``: the member that
            had it left, or its session ended. ``again``: the same member claimed it anew, as after
            the loss of its session. ``reset``: the progress of the group was set.
        time_ms: When, by the clock of the member, in milliseconds since 1970.
        generation: The number of the claim; it rises by one with each.
    """

    topic: str
    partition: int
    member: str
    before: str | None
    reason: str
    time_ms: int
    generation: int


async def group_history(
    cluster: ClusterClient, group: str, *, topic: str | None = None, partition: int | None = None
) -> list[OwnerChange]:
    """Return who had which partition when, and why it changed; the oldest first.

    The last 8 claims of each partition are remembered.

    Args:
        group: Its name.
        topic: Only of this one.
        partition: Only of this number; needs a topic.

    Raises:
        UnknownGroup: There is none of this name.
        InvalidArgument: The group does not read the topic, or a partition is given without one.
    """
    if partition is not None and topic is None:
        raise InvalidArgument(f"partition = {partition} needs a topic")
    contract = await groups.known_reads(cluster.coordinator, group)
    if topic is not None and topic not in contract.topics:
        raise InvalidArgument(
            f"group {group!r} does not read topic {topic!r}; it reads "
            f"{', '.join(sorted(contract.topics)) or 'none'}"
        )
    names = sorted(contract.topics) if topic is None else [topic]
    assigned = await claims.read_partitions(cluster.coordinator, Assignment, group, names)
    found = [
        change
        for each, assignment in assigned.items()
        if partition is None or each.partition == partition
        for change in _changes(each, assignment)
    ]
    return sorted(found, key=lambda each: (each.time_ms, each.topic, each.partition))


def _changes(partition: TopicPartition, assignment: Assignment) -> list[OwnerChange]:
    found: list[OwnerChange] = []
    before: str | None = None
    for each in assignment.history:
        found.append(
            OwnerChange(
                partition.topic,
                partition.partition,
                each.member,
                before,
                each.reason,
                each.time_ms,
                each.generation,
            )
        )
        before = each.member
    return found
