"""The hard goals: which group may hold a partition, and how much room it has. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vq.coordination.topics.allocation import pool_text, too_few_nodes
from vq.operations.allocation.facts import AllocatedTopic, GroupLoad, MeasuredPartition
from vq.operations.allocation.goals import AllocationGoals, HardGoal
from vq.operations.base.sizes import bytes_text

_HOUR_S = 3_600


class WhyNot(NamedTuple):
    """A hard goal that is broken, or would be, with the reason for people."""

    goal: HardGoal
    reason: str


def why_not_on(
    topic: AllocatedTopic, group: GroupLoad, goals: AllocationGoals, pools: Mapping[str, str | None]
) -> WhyNot | None:
    """Return why a group must not hold partitions of a topic; None: it may. Its disk is not asked.

    ``pools`` has the pool of topics that are to be isolated.
    """
    if not group.alive:
        return WhyNot(HardGoal.ALIVE, f"{group.group} has no live master")
    if group.draining:
        return WhyNot(HardGoal.DRAINING, f"{group.group} is draining")
    pool = pools.get(topic.topic, topic.pool)
    if group.pool != pool:
        return WhyNot(
            HardGoal.POOL,
            f"{group.group} is in {pool_text(group.pool)}, topic {topic.topic} in "
            f"{pool_text(pool)}",
        )
    few = too_few_nodes(group.nodes, topic.min_insync)
    if few is not None:
        return WhyNot(HardGoal.NODES, f"{group.group} {few}")
    for each in goals.labels:
        if each.topic in {"", topic.topic} and group.labels.get(each.label) != each.value:
            return WhyNot(
                HardGoal.LABEL, f"{group.group} has not the label {each.label}={each.value}"
            )
    racks = len({rack for rack in group.racks if rack})
    if racks < goals.racks_min:
        return WhyNot(
            HardGoal.RACKS,
            f"the nodes of {group.group} are in {racks} known rack(s), and racks_min is "
            f"{goals.racks_min}",
        )
    return None


def why_not_moved(
    partition: MeasuredPartition, source: GroupLoad | None, goals: AllocationGoals
) -> WhyNot | None:
    """Return why a partition cannot leave its group, wherever to; None: it can."""
    name = partition.key
    if partition.topic in goals.exclude_topics:
        return WhyNot(HardGoal.EXCLUDED, f"topic {partition.topic} is excluded")
    if partition.group is None:
        return WhyNot(HardGoal.OPEN, f"{name} is open on no group")
    if partition.group in goals.exclude_groups:
        return WhyNot(HardGoal.EXCLUDED, f"group {partition.group} is excluded")
    if source is None or not source.alive:
        return WhyNot(HardGoal.OPEN, f"{partition.group} has no live master to end {name} there")
    if partition.error:
        return WhyNot(HardGoal.OPEN, f"{name} on {partition.group}: {partition.error}")
    return None


def need_bytes(
    partition: MeasuredPartition, topic: AllocatedTopic, goals: AllocationGoals
) -> float | None:
    """Return what a partition adds to a disk in the hours that must have room; None: unknown.

    A move copies nothing, so it begins with nothing there; retention may take some back before the
    hours are over.
    """
    if partition.bytes_per_s is None:
        return None
    hours = goals.room_hours
    if topic.retention_hours is not None:
        hours = min(hours, topic.retention_hours)
    return partition.bytes_per_s * hours * _HOUR_S


def room_bytes(
    group: GroupLoad, held: Sequence[MeasuredPartition], goals: AllocationGoals
) -> float | None:
    """Return what a group's fullest disk can still take beyond what grows there; None: unknown.

    Below 0: it gets too full within ``room_hours``. It grows as it did lately; where its growth is
    not known, by what its partitions get.
    """
    if group.disk_bytes_free is None or not group.disk_bytes_total:
        return None
    grows = group.disk_growth_bytes_per_hour
    if grows is None:
        rates = [each.bytes_per_s for each in held]
        if None in rates:
            return None
        grows = round(sum(rate for rate in rates if rate is not None) * _HOUR_S)
    kept = (1 - goals.disk_used_max) * group.disk_bytes_total
    return group.disk_bytes_free - kept - max(0, grows) * goals.room_hours


def why_no_room(
    group: str, room: float | None, need: float | None, goals: AllocationGoals
) -> WhyNot | None:
    """Return why a group has no room for ``need`` more bytes; None: it has."""
    if room is None:
        return WhyNot(HardGoal.DISK, f"the free space of {group} is not known")
    if need is None:
        return WhyNot(HardGoal.DISK, f"what {group} would store is not known")
    if need > room:
        return WhyNot(
            HardGoal.DISK,
            f"{group} has room for {bytes_text(max(0, round(room)))} more in "
            f"{goals.room_hours:g} h up to {goals.disk_used_max:.0%} of its disk, and would get "
            f"{bytes_text(round(need))}",
        )
    return None
