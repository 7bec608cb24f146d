"""A plan: which partitions go where, what it rests on, and its score. Plain values, no I/O."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from vq.model import TopicPartition
from vq.operations.allocation.board import SUMS, Board, BrokenGoal, GoalScore, rank
from vq.operations.allocation.goals import AllocationGoals, HardGoal, LoadGoal
from vq.operations.allocation.rules import WhyNot
from vq.operations.base.sizes import bytes_text

#: Reasons for what stays, in one plan; further ones are counted in a note.
_KEPT_MAX: Final = 200
_ID_CHARACTERS: Final = 16


class MoveReason(NamedTuple):
    """Why a partition is moved: the goal, "" for none, and a sentence."""

    goal: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeptLoad:
    """Why something of a group stays where it is although a goal is missed."""

    group: str
    goal: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedMove:
    """A partition that goes to another group.

    Attributes:
        topic, partition: Which.
        source, target: From which group to which.
        start: Where ``source`` began with it, an offset.
        version: Of the partition's znode.
        bytes_per_s, messages_per_s, stored_bytes: As it was measured; None: not known.
        goal: A soft or hard goal that it serves; "": none.
        reason: For people.
    """

    topic: str
    partition: int
    source: str
    target: str
    start: int = 0
    version: int = -1
    bytes_per_s: float | None = None
    messages_per_s: float | None = None
    stored_bytes: int | None = None
    goal: str = ""
    reason: str = ""

    @property
    def key(self) -> TopicPartition:
        """Which partition it is."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """What a group has of the goals that add up; None: not known."""

    bytes_per_s: float | None = None
    messages_per_s: float | None = None
    stored_bytes: float | None = None
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedGroup:
    """A group as a plan rests on it, and what it has before and after.

    Attributes:
        group, pool, labels, draining: As they were read.
        version: Of the znode with them.
        counts: It takes partitions, so it counts in scores.
        before, after: What it has.
    """

    group: str
    pool: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False
    version: int = -1
    counts: bool = True
    before: GroupSums = field(default_factory=GroupSums)
    after: GroupSums = field(default_factory=GroupSums)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """A topic with moves, as a plan rests on it.

    Attributes:
        topic, id, min_insync: As they were read.
        pool: Its pool as it was read.
        new_pool: The pool that it gets first; equal to ``pool``: it keeps it.
    """

    topic: str
    id: str
    min_insync: int
    pool: str | None
    new_pool: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPlan:
    """Moves, with what they rest on and what they bring; ``plan_json`` has it as JSON.

    Attributes:
        id: Follows from the cluster, the moves and what they rest on.
        cluster: Its name.
        source: ``advisor``, ``hand``, or the file that it was imported from.
        made_ms, by: When and by whom it was made.
        measured_ms, window_s: When loads were measured, and for how long.
        goals: What was asked for.
        moves: In the order in which they are made: hard goals first, then the heaviest.
        topics: Those with moves or a new pool, by name.
        groups: All of them, by name.
        before, after: The score.
        broken_before: Hard goals that are broken now.
        broken: Those that the moves would break, or leave broken.
        refused: Of ``broken``: those for which the moves are to blame. Such a plan is not applied.
        kept: Why things stay although a goal is missed.
        notes: What is not known, or does not count.
    """

    id: str
    cluster: str
    source: str
    made_ms: int
    by: str
    measured_ms: int
    window_s: float
    goals: AllocationGoals
    moves: tuple[AllocatedMove, ...]
    topics: tuple[PlannedTopic, ...]
    groups: tuple[AllocatedGroup, ...]
    before: tuple[GoalScore, ...]
    after: tuple[GoalScore, ...]
    broken_before: tuple[BrokenGoal, ...] = ()
    broken: tuple[BrokenGoal, ...] = ()
    refused: tuple[BrokenGoal, ...] = ()
    kept: tuple[KeptLoad, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_better(self) -> bool:
        """Whether its score is better: first hard goals count, then each soft one in its order."""
        return rank(self.broken, self.after) < rank(self.broken_before, self.before)

    @property
    def has_work(self) -> bool:
        """Whether something would be changed."""
        return bool(self.moves) or any(each.pool != each.new_pool for each in self.topics)

    def skew(self, goal: LoadGoal, *, after: bool = True) -> float | None:
        """Return the highest skew of a goal over all pools; None: not known."""
        scores = self.after if after else self.before
        found = [each.skew for each in scores if each.goal is goal and each.skew is not None]
        return max(found, default=None)


# Making one -------------------------------------------------------------------------------------
def plan_of(
    board: Board,
    reasons: Mapping[TopicPartition, MoveReason],
    *,
    before: Sequence[GoalScore],
    broken_before: Sequence[BrokenGoal],
    refused: Sequence[tuple[TopicPartition, str, WhyNot]],
    kept: Sequence[KeptLoad],
    notes: Sequence[str],
    made_ms: int,
    by: str,
    source: str,
) -> AllocationPlan:
    """Return the plan that brings a cluster to what the board shows.

    Args:
        board: With all moves made.
        reasons: Of each partition that is not where it was.
        before, broken_before: The score before the moves.
        refused: Moves that cannot be, or must not be, whatever the board says of their groups.
        kept, notes, made_ms, by, source: See ``AllocationPlan``.
    """
    facts = board.facts
    moves = sorted(
        (_move(board, key, reasons[key]) for key in reasons if _is_away(board, key)), key=_order
    )
    broken = board.broken()
    own = [BrokenGoal(why.goal, group, *key, why.reason) for key, group, why in refused]
    blamed = own + [each for each in broken if _is_to_blame(each, moves, broken_before)]
    told = list(kept)[:_KEPT_MAX]
    more = len(kept) - len(told)
    plan = AllocationPlan(
        id="",
        cluster=facts.cluster,
        source=source,
        made_ms=made_ms,
        by=by,
        measured_ms=facts.measured_ms,
        window_s=facts.window_s,
        goals=board.goals,
        moves=tuple(moves),
        topics=tuple(_topics(board, moves)),
        groups=tuple(_groups(board)),
        before=tuple(before),
        after=tuple(board.scores()),
        broken_before=tuple(broken_before),
        broken=tuple(own + broken),
        refused=tuple(blamed),
        kept=tuple(told),
        notes=(*notes, *([f"{more} further reasons are left out"] if more else ())),
    )
    return replace(plan, id=id_of(plan))


def _is_away(board: Board, key: TopicPartition) -> bool:
    return board.at[key] != board.facts.partitions[key].group


def _move(board: Board, key: TopicPartition, why: MoveReason) -> AllocatedMove:
    load = board.facts.partitions[key]
    return AllocatedMove(
        topic=load.topic,
        partition=load.partition,
        source=load.group or "",
        target=board.at[key],
        start=load.start,
        version=load.version,
        bytes_per_s=load.bytes_per_s,
        messages_per_s=load.messages_per_s,
        stored_bytes=load.stored_bytes,
        goal=why.goal,
        reason=why.reason,
    )


def _order(move: AllocatedMove) -> tuple[bool, float, TopicPartition]:
    return move.goal not in set(HardGoal), -(move.bytes_per_s or 0.0), move.key


def _is_to_blame(
    broken: BrokenGoal, moves: Sequence[AllocatedMove], before: Sequence[BrokenGoal]
) -> bool:
    """Whether moves break a goal: that of a partition they move, or of a group they fill."""
    if broken.partition is None:
        worse = broken not in before
        return worse and any(each.target == broken.group for each in moves)
    key = TopicPartition(broken.topic, broken.partition)
    return any(each.key == key for each in moves)


def _topics(board: Board, moves: Sequence[AllocatedMove]) -> list[PlannedTopic]:
    names = {each.topic for each in moves}
    names |= {name for name, pool in board.pools.items() if pool != board.facts.topics[name].pool}
    found = []
    for name in sorted(names):
        topic = board.facts.topics[name]
        found.append(
            PlannedTopic(
                topic=name,
                id=topic.id,
                min_insync=topic.min_insync,
                pool=topic.pool,
                new_pool=board.pools.get(name, topic.pool),
            )
        )
    return found


def _groups(board: Board) -> list[AllocatedGroup]:
    before = Board(board.facts, board.goals)
    used = {name for names in board.used.values() for name in names}
    return [
        AllocatedGroup(
            group=name,
            pool=group.pool,
            labels=dict(group.labels),
            draining=group.draining,
            version=group.version,
            counts=name in used,
            before=_sums(before, name),
            after=_sums(board, name),
        )
        for name, group in sorted(board.facts.groups.items())
    ]


def _sums(board: Board, group: str) -> GroupSums:
    known = [board.sum_of(group, at) for at in range(len(SUMS))]
    return GroupSums(
        bytes_per_s=known[0],
        messages_per_s=known[1],
        stored_bytes=known[2],
        partitions=len(board.held[group]),
    )


def id_of(plan: AllocationPlan) -> str:
    """Return the id of a plan: equal for equal moves that rest on the same."""
    rests_on = [
        plan.cluster,
        [[m.topic, m.partition, m.source, m.target, m.start, m.version] for m in plan.moves],
        [[t.topic, t.id, t.new_pool] for t in plan.topics],
    ]
    return hashlib.sha256(json.dumps(rests_on).encode()).hexdigest()[:_ID_CHARACTERS]


def amount_text(goal: LoadGoal, value: float | None) -> str:
    """Return what a group has of a goal, for people."""
    if value is None:
        return "unknown"
    match goal:
        case LoadGoal.BYTES:
            return f"{bytes_text(round(value))}/s"
        case LoadGoal.MESSAGES:
            return f"{value:.1f} messages/s"
        case LoadGoal.STORED:
            return str(bytes_text(round(value)))
        case _:
            return f"{value:.0f} partition(s)"
