"""Proposes which partitions should be open on which groups: pure, and equal for equal facts.

Three passes over a working copy (``board``):

1. *Hard goals.* Partitions leave groups that must not have them, the heaviest first, each to the
   group with the least of the first soft goal that may have it. Groups whose disk would get too
   full give partitions away until it does not.
2. *Soft goals, in their order.* In each pool the highest group gives a partition to the lowest one
   that stays below the limit: the lightest that suffices, else the heaviest. Where none fits, two
   groups swap partitions; else one that lowers the higher of the two. Then groups below the least
   take partitions from the highest. No step breaks a hard goal, or makes a goal before it worse.
3. A partition that came back to its group was not moved.

*Example*: b1 gets 30 MB/s in three partitions of 10, b2 and b3 get nothing. The mean is 10, the
limit 11. b1 is 19 above it: no single partition suffices, so one goes to b2; b1 is still 9 above,
and one goes to b3. Skew 3.0 becomes 1.0.
"""

from collections.abc import Sequence

from vq.errors import InvalidArgument
from vq.model import COMMON_POOL, TopicPartition
from vq.operations.allocation.board import EPSILON, SUMS, Board, rank
from vq.operations.allocation.drafts import BoardStep, Draft
from vq.operations.allocation.evening import Evening
from vq.operations.allocation.facts import AllocationFacts
from vq.operations.allocation.goals import AllocationGoals, HardGoal, LoadGoal
from vq.operations.allocation.plans import AllocationPlan, MoveReason, plan_of
from vq.operations.allocation.rules import WhyNot


def propose(
    facts: AllocationFacts, goals: AllocationGoals | None = None, *, made_ms: int = 0, by: str = ""
) -> AllocationPlan:
    """Return a plan that comes as near to the goals as single moves and swaps do.

    Equal facts and goals give an equal plan. It breaks no hard goal, and its score is never worse
    than that of the cluster as it is: first hard goals, then each soft goal in its order count.

    Raises:
        InvalidArgument: A goal names a topic or a group that is not there.
    """
    goals = goals or AllocationGoals()
    check_names(facts, goals)
    draft, notes = Draft(facts, goals), notes_of(facts, goals)
    before, broken_before = draft.board.scores(), draft.board.broken()
    _work_through(draft)
    board, reasons = draft.board, draft.reasons
    if draft.full:
        notes.append(
            f"the plan has the most moves that it may have, {goals.moves_max}; carry it out and "
            "plan again, or allow more"
        )
    if reasons and rank(board.broken(), board.scores()) >= rank(broken_before, before):
        notes.append("no moves were found that make the whole better")
        board, reasons = Board(facts, goals), {}
    return plan_of(
        board,
        reasons,
        before=before,
        broken_before=broken_before,
        refused=(),
        kept=draft.kept,
        notes=notes,
        made_ms=made_ms,
        by=by,
        source="advisor",
    )


def judge(
    facts: AllocationFacts,
    goals: AllocationGoals | None,
    wanted: Sequence[tuple[TopicPartition, str]],
    *,
    made_ms: int = 0,
    by: str = "",
    source: str = "hand",
) -> AllocationPlan:
    """Return a plan that somebody made, with its score and the hard goals that it breaks.

    Args:
        facts, goals: As for ``propose``.
        wanted: Each partition with the group that is to have it; the last one of several counts.
        made_ms, by: When and by whom the plan was made.
        source: Where the moves are from; ``hand``: a person chose them.

    Raises:
        InvalidArgument: There is no such topic, partition or group.
    """
    goals = goals or AllocationGoals()
    check_names(facts, goals)
    board, reasons = Board(facts, goals), {}
    reason = "chosen by hand" if source == "hand" else f"chosen by {source}"
    broken_before, before = board.broken(), board.scores()
    refused = []
    for key, group in wanted:
        load = facts.partitions.get(key)
        if load is None:
            raise InvalidArgument(
                f"there is no partition {key}, or its topic is not ready; see `vq topic list`"
            )
        if group not in facts.groups:
            raise _no_group(facts, group)
        if load.group is None:
            why = board.why_not_moved(key)
            assert why is not None
            refused.append((key, group, why))
            continue
        if board.at[key] != group:
            board.move(key, group)
            reasons[key] = MoveReason("", reason)
    moved = {key: group for key, group in board.at.items() if group != facts.partitions[key].group}
    for key, group in sorted(moved.items()):
        why = board.why_not_moved(key) or _why_excluded(goals, group)
        if why is not None:
            refused.append((key, group, why))
    return plan_of(
        board,
        reasons,
        before=before,
        broken_before=broken_before,
        refused=refused,
        kept=(),
        notes=notes_of(facts, goals),
        made_ms=made_ms,
        by=by,
        source=source,
    )


def _why_excluded(goals: AllocationGoals, group: str) -> WhyNot | None:
    if group not in goals.exclude_groups:
        return None
    return WhyNot(HardGoal.EXCLUDED, f"group {group} is excluded")


def check_names(facts: AllocationFacts, goals: AllocationGoals) -> None:
    """Check that the topics and groups of goals are there.

    Raises:
        InvalidArgument: One is not.
    """
    topics = {*goals.exclude_topics, *goals.pools, *(each.topic for each in goals.labels)}
    for topic in sorted(topics - {""}):
        if topic not in facts.topics and topic not in facts.unreadable:
            raise InvalidArgument(f"there is no topic {topic!r}; see `vq topic list`")
    for group in sorted(goals.exclude_groups):
        if group not in facts.groups:
            raise _no_group(facts, group)
    known = {group.pool for group in facts.groups.values()}
    for topic, pool in sorted(goals.pools.items()):
        if pool not in known:
            names = ", ".join(sorted(each or COMMON_POOL for each in known))
            raise InvalidArgument(
                f"no broker group is in the pool {pool or COMMON_POOL!r} that topic {topic!r} is "
                f"to have; the pools are {names}"
            )


def _no_group(facts: AllocationFacts, group: str) -> InvalidArgument:
    known = ", ".join(sorted(facts.groups)[:20])
    return InvalidArgument(f"there is no broker group {group!r}; known: {known or 'none'}")


def notes_of(facts: AllocationFacts, goals: AllocationGoals) -> list[str]:
    """Return what of the facts is not known or does not count, for people."""
    notes = []
    for name, group in sorted(facts.groups.items()):
        if name in goals.exclude_groups:
            notes.append(f"group {name} is excluded: it does not count")
        elif group.error:
            notes.append(f"group {name}: {group.error}")
        elif not group.alive:
            notes.append(f"group {name} has no live master: nothing moves to or from it")
    for name, error in sorted(facts.unreadable.items()):
        notes.append(f"{name} cannot be read, nothing of it moves: {error}")
    unknown = [key for key, each in sorted(facts.partitions.items()) if each.bytes_per_s is None]
    opened = [str(key) for key in unknown if facts.partitions[key].group is not None]
    if opened:
        more = f" and {len(opened) - 10} more" if len(opened) > 10 else ""
        notes.append(
            f"the load of {len(opened)} open partition(s) is not known, they stay: "
            f"{', '.join(opened[:10])}{more}"
        )
    return notes


def _work_through(draft: Draft) -> None:
    _mend(draft)
    for goal in draft.board.goals.soft:
        for pool in sorted(draft.board.used):
            if goal is LoadGoal.TOPICS:
                _spread_topics(draft, pool)
            else:
                _even_out(draft, pool, SUMS.index(goal))
        if goal is LoadGoal.TOPICS:
            draft.spread_counts = True


# Hard goals -------------------------------------------------------------------------------------
def _mend(draft: Draft) -> None:
    """Have partitions leave groups that must not have them, and disks that get too full."""
    board = draft.board
    wrong = []
    for key in board.at:
        why = board.why_not_on(key.topic, board.at[key])
        if why is not None:
            wrong.append((-(board.weights[key][draft.first] or 0.0), key, why))
    for _, key, why in sorted(wrong):
        target = _lowest_for(draft, key)
        fixed = board.why_not_moved(key)
        if fixed is not None or target is None:
            stays = _why_nowhere(board, key) if fixed is None else fixed.reason
            draft.keep(board.at[key], str(why.goal), f"{why.reason}; {key} stays: {stays}")
        else:
            draft.take([BoardStep(key, target)], str(why.goal), why.reason)
    for group in sorted(board.room):
        _make_room(draft, group)


def _make_room(draft: Draft, group: str) -> None:
    """Have a group whose disk would get too full give away what it gets most of."""
    board, goal = draft.board, str(HardGoal.DISK)
    while (room := board.room[group]) is not None and room < 0:
        found = (
            BoardStep(key, target)
            for weight, _, key in reversed(board.by_weight(group, SUMS.index(LoadGoal.BYTES)))
            if weight > 0 and draft.movable(key) and (target := _lowest_for(draft, key))
        )
        step = next(found, None)
        if step is None:
            if board.held[group]:
                draft.keep(
                    group,
                    goal,
                    f"the disk of {group} gets too full: no partition of it "
                    "that gets messages may go elsewhere",
                )
            return
        if not draft.take([step], goal, f"the disk of {group} would get too full"):
            return


def _pool_of(board: Board, topic: str) -> str:
    return board.pools.get(topic, board.facts.topics[topic].pool) or COMMON_POOL


def _lowest_for(draft: Draft, key: TopicPartition) -> str | None:
    """Return the group with the least of the first soft goal that may have a partition."""
    board, source = draft.board, draft.board.at[key]
    spread = board.spread[key.topic]
    able = [
        (board.values[name][draft.first], spread[name], name)
        for name in board.used.get(_pool_of(board, key.topic), ())
        if name != source and board.allows(key, name)
    ]
    return min(able)[2] if able else None


def _why_nowhere(board: Board, key: TopicPartition) -> str:
    """Return why no group may have a partition: the reason of the first one."""
    pool = _pool_of(board, key.topic)
    names = [each for each in board.used.get(pool, ()) if each != board.at[key]]
    for name in names:
        why = board.why_not_to(key, name)
        if why is not None:
            more = f" ({len(names) - 1} other groups cannot, either)" if len(names) > 1 else ""
            return f"{why.reason}{more}"
    return f"no other group of pool {pool} takes partitions"


# Soft goals -------------------------------------------------------------------------------------
def _even_out(draft: Draft, pool: str, at: int) -> None:
    """Bring the groups of a pool between the least and the most of a goal."""
    board = draft.board
    members = board.known(pool, at)
    if not members:
        return
    mean, least, most = board.bounds(members, at)
    if len(members) > 1 and mean > 0:
        run = Evening(draft, pool, at, members, (mean, least, most))
        run.lower()
        run.fill()
    slack = EPSILON * mean
    draft.limits[at, pool] = least - slack, most + slack


def _spread_topics(draft: Draft, pool: str) -> None:
    """Give partitions of topics beyond an even share to groups that have less."""
    board, at = draft.board, draft.first
    for topic, group, count in list(board.beyond(pool)):
        held = [
            (board.weights[key][at] or 0.0, key)
            for key in board.held[group]
            if key.topic == topic and draft.movable(key)
        ]
        moved = 0
        for _, key in sorted(held):
            if moved == count or draft.full:
                break
            target = _spread_target(draft, key, pool)
            if target is None:
                continue
            reason = (
                f"{group} has {board.spread[topic][group]} partitions of {topic}, an even "
                f"share is {board.share(topic)}"
            )
            if draft.take([BoardStep(key, target)], str(LoadGoal.TOPICS), reason):
                moved += 1
        if moved < count:
            draft.keep(
                group,
                str(LoadGoal.TOPICS),
                f"{group} keeps {count - moved} partition(s) of {topic} beyond an even share: "
                "no group may have them without more of a goal before this one",
            )


def _spread_target(draft: Draft, key: TopicPartition, pool: str) -> str | None:
    board, at, source = draft.board, draft.first, draft.board.at[key]
    able = [
        (board.values[name][at], name)
        for name in board.used[pool]
        if name != source
        and draft.is_spread(key, name)
        and board.allows(key, name)
        and draft.keeps_limits(key, name, pool)
    ]
    return min(able)[1] if able else None
