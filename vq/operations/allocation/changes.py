"""What a plan rests on and has changed since it was made. Plain values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

from vq.errors import InvalidArgument
from vq.model import COMMON_POOL
from vq.operations.allocation.facts import AllocatedTopic, AllocationFacts, GroupLoad
from vq.operations.allocation.plans import (
    AllocatedGroup,
    AllocatedMove,
    AllocationPlan,
    PlannedTopic,
)
from vq.shown import shown


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Something that a plan rests on and that is not as it was.

    Attributes:
        what: ``partition``, ``topic`` or ``group``.
        name: Which: ``orders-3``, a topic, a group.
        before, now: What it was and is, for people.
    """

    what: str
    name: str
    before: str
    now: str


def changes_since(
    plan: AllocationPlan, facts: AllocationFacts, *, done: bool = False
) -> list[PlanChange]:
    """Return what a plan rests on and that has changed.

    Versions that rose without another value are no change: a broker raises that of a partition to
    end a move that failed.

    Args:
        plan: Which.
        facts: The cluster now; the loads do not count.
        done: Partitions that are where the plan wants them, and topics with their new pool, are no
            change: the plan was carried out in part.

    Raises:
        InvalidArgument: The plan says nothing of a group that its moves name.
    """
    found = []
    for topic in plan.topics:
        found += _topic_changes(topic, facts.topics.get(topic.topic), done=done)
    groups = {each.group: each for each in plan.groups}
    for name in sorted({name for move in plan.moves for name in (move.source, move.target)}):
        if name not in groups:
            raise InvalidArgument(
                f"plan {plan.id} moves partitions of group {shown(name)}, and says nothing of it"
            )
        found += _group_changes(groups[name], facts.groups.get(name))
    for move in plan.moves:
        found += _move_changes(move, facts, done=done)
    return found


def _topic_changes(
    was: PlannedTopic, now: AllocatedTopic | None, *, done: bool
) -> list[PlanChange]:
    if now is None:
        return [PlanChange("topic", was.topic, "there", "gone, or not ready")]
    if now.id != was.id:
        return [PlanChange("topic", was.topic, f"id {was.id}", f"id {now.id}")]
    found = []
    if now.pool != was.pool and not (done and now.pool == was.new_pool):
        pools = [f"pool {pool or COMMON_POOL}" for pool in (was.pool, now.pool)]
        found.append(PlanChange("topic", was.topic, *pools))
    if now.min_insync > was.min_insync:
        both = [f"min_insync {count}" for count in (was.min_insync, now.min_insync)]
        found.append(PlanChange("topic", was.topic, *both))
    return found


def _group_changes(was: AllocatedGroup, now: GroupLoad | None) -> list[PlanChange]:
    if now is None:
        return [PlanChange("group", was.group, "there", "gone")]
    if now.version == was.version:
        return []
    found = []
    if now.pool != was.pool:
        pools = [f"pool {pool or COMMON_POOL}" for pool in (was.pool, now.pool)]
        found.append(PlanChange("group", was.group, *pools))
    if now.draining != was.draining:
        texts = [
            "draining" if each else "takes partitions" for each in (was.draining, now.draining)
        ]
        found.append(PlanChange("group", was.group, *texts))
    if dict(now.labels) != dict(was.labels):
        found.append(PlanChange("group", was.group, _labels(was.labels), _labels(now.labels)))
    return found


def _labels(labels: Mapping[str, str]) -> str:
    return "labels " + (", ".join(f"{k}={v}" for k, v in sorted(labels.items())) or "none")


def _move_changes(was: AllocatedMove, facts: AllocationFacts, *, done: bool) -> list[PlanChange]:
    now = facts.partitions.get(was.key)
    if now is None:
        return [PlanChange("partition", str(was.key), f"on {was.source}", "gone")]
    if done and now.group == was.target:
        return []
    if now.version == was.version or (now.group, now.start) == (was.source, was.start):
        return []
    state = "open on no group" if now.group is None else f"on {now.group} from {now.start}"
    return [PlanChange("partition", str(was.key), f"on {was.source} from {was.start}", state)]
