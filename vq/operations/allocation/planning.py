"""Plans for a cluster as it is measured, and what has changed since one was made.

Loop-bound functions on a ``ClusterClient``; the decisions are in ``advisor``.
"""

from collections.abc import Sequence

from vq.client.cluster import ClusterClient
from vq.model import TopicPartition
from vq.operations.allocation.advisor import judge, propose
from vq.operations.allocation.changes import PlanChange, changes_since
from vq.operations.allocation.facts import AllocationFacts
from vq.operations.allocation.goals import AllocationGoals
from vq.operations.allocation.measuring import (
    WINDOW_S_DEFAULT,
    measure_allocation,
    read_allocation,
)
from vq.operations.allocation.plans import AllocationPlan
from vq.operations.base.who import who


async def plan_allocation(
    cluster: ClusterClient,
    goals: AllocationGoals | None = None,
    *,
    wanted: Sequence[tuple[TopicPartition, str]] | None = None,
    source: str = "",
    facts: AllocationFacts | None = None,
    window_s: float = WINDOW_S_DEFAULT,
) -> AllocationPlan:
    """Return a plan that gives partitions to broker groups by load; changes nothing.

    Args:
        cluster: Where.
        goals: Hard and soft goals; None: the usual ones.
        wanted: Moves that somebody chose: each partition with its group. They are judged, and the
            plan has just these. None: the advisor chooses.
        source: Where ``wanted`` is from; "": by hand.
        facts: Of ``measure_allocation``; None: it is measured now, for ``window_s``.
        window_s: How long to measure.

    Raises:
        InvalidArgument: There is no such topic, partition, group or pool, or a bound is exceeded.
    """
    if facts is None:
        facts = await measure_allocation(cluster, window_s=window_s)
    now_ms = cluster.clock.wall_ms()
    if wanted is None:
        return propose(facts, goals, made_ms=now_ms, by=who())
    return judge(facts, goals, wanted, made_ms=now_ms, by=who(), source=source or "hand")


async def allocation_changes(cluster: ClusterClient, plan: AllocationPlan) -> list[PlanChange]:
    """Return what a plan rests on and that has changed since it was made; none: it can be applied.

    It reads the placements of the topics that the plan moves, and all groups.
    """
    facts = await read_allocation(cluster, topics={each.topic for each in plan.topics})
    return changes_since(plan, facts)
