"""Which partitions are on which groups, what groups have of each goal then, and the score.

A board is a working copy: moves are tried on it. No I/O; equal facts give equal results.
"""

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vq.model import COMMON_POOL, TopicPartition
from vq.operations.allocation.facts import AllocationFacts, MeasuredPartition
from vq.operations.allocation.goals import AllocationGoals, HardGoal, LoadGoal
from vq.operations.allocation.rules import (
    WhyNot,
    need_bytes,
    room_bytes,
    why_no_room,
    why_not_moved,
    why_not_on,
)

#: The goals that add up over the partitions of a group, in the order of ``Board.weights``.
SUMS: Final = (LoadGoal.BYTES, LoadGoal.MESSAGES, LoadGoal.STORED, LoadGoal.PARTITIONS)
#: What floats lose in sums, as a share.
EPSILON: Final = 1e-9
#: What counts of an excess when two allocations are compared.
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class GoalScore:
    """How even the groups of a pool are in one goal.

    Attributes:
        goal: Which.
        pool: Its name.
        groups: How many groups count: those that take partitions and whose load is known.
        unknown: How many take partitions, and their load is not known.
        skew: The highest group as a multiple of the mean; None: not known, or of ``topics``.
        mean: Of the groups; of ``topics``: None.
        limit: The highest that a group may have; of ``topics``: 0.
        highest: What the highest group has; of ``topics``: partitions beyond even shares.
        group: The highest group; None: there is none.
        excess: By how much groups miss the goal, together, in means; 0: it is met.
    """

    goal: LoadGoal
    pool: str
    groups: int
    unknown: int
    skew: float | None
    mean: float | None
    limit: float
    highest: float
    group: str | None
    excess: float


@dataclass(frozen=True, slots=True)
class BrokenGoal:
    """A hard goal that is broken; ``partition`` is None where it is about a whole group."""

    goal: HardGoal
    group: str
    topic: str
    partition: int | None
    reason: str


class Board:
    """The groups with their partitions. Moves change it; nothing else.

    Attributes:
        facts, goals: What it is made of.
        at: The group of each partition that is open.
        held: The partitions of each group.
        weights: What each partition has of the goals ``SUMS``; None: not known.
        values: What each group has of them: the known ones.
        room: See ``room_bytes``.
        spread: How many partitions of each topic each group has.
        used: The groups that take partitions, by pool, sorted.
    """

    def __init__(self, facts: AllocationFacts, goals: AllocationGoals) -> None:
        self.facts, self.goals = facts, goals
        self.pools: Mapping[str, str | None] = {
            topic: pool for topic, pool in goals.pools.items() if topic in facts.topics
        }
        self.at: dict[TopicPartition, str] = {}
        self.held: dict[str, set[TopicPartition]] = {name: set() for name in sorted(facts.groups)}
        self.weights: dict[TopicPartition, tuple[float | None, ...]] = {}
        self.values = {name: [0.0] * len(SUMS) for name in self.held}
        self.spread: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._unknown = {name: [0] * len(SUMS) for name in self.held}
        # The groups that may hold a topic, by what it asks of them: topics are many, wishes few.
        self._able: dict[tuple[object, ...], frozenset[str]] = {}
        # Groups of which something is not known: nothing goes there.
        self._silent = {name: each.error for name, each in facts.groups.items() if each.error}
        self._needs: dict[TopicPartition, float | None] = {}
        self._sorted: dict[tuple[str, int], list[tuple[float, float, TopicPartition]]] = {}
        for key in sorted(facts.partitions):
            load = facts.partitions[key]
            self.weights[key] = _weights(load)
            self._needs[key] = need_bytes(load, facts.topics[load.topic], goals)
            if load.group is not None:
                self.held.setdefault(load.group, set())
                self.values.setdefault(load.group, [0.0] * len(SUMS))
                self._unknown.setdefault(load.group, [0] * len(SUMS))
                self._put(key, load.group, 1)
        self.room = {
            name: room_bytes(group, [facts.partitions[key] for key in self.held[name]], goals)
            for name, group in facts.groups.items()
        }
        self.used: dict[str, list[str]] = defaultdict(list)
        for name, group in sorted(facts.groups.items()):
            if group.alive and not group.draining and name not in goals.exclude_groups:
                self.used[group.pool or COMMON_POOL].append(name)

    def _put(self, key: TopicPartition, group: str, sign: int) -> None:
        values, unknown = self.values[group], self._unknown[group]
        for at, weight in enumerate(self.weights[key]):
            if weight is None:
                unknown[at] += sign
            else:
                values[at] += sign * weight
        self.spread[key.topic][group] += sign
        if sign > 0:
            self.at[key] = group
            self.held[group].add(key)
        else:
            self.held[group].remove(key)

    def move(self, key: TopicPartition, target: str) -> None:
        """Move a partition, which is open on another group."""
        source, need = self.at[key], self._needs[key]
        for at in range(len(SUMS)):
            for group in (source, target):
                known = self._sorted.get((group, at))
                if known is None:
                    continue
                weight = self.weights[key][at]
                if weight is None:
                    continue
                entry = (weight, self.weights[key][0] or 0.0, key)
                if group == source:
                    known.remove(entry)
                else:
                    insort(known, entry)
        self._put(key, source, -1)
        self._put(key, target, 1)
        for group, sign in ((source, 1), (target, -1)):
            room = self.room.get(group)
            if room is not None:
                self.room[group] = None if need is None else room + sign * need

    def by_weight(self, group: str, at: int) -> Sequence[tuple[float, float, TopicPartition]]:
        """Return the partitions of a group that have a known weight, the lightest first.

        Each with the weight, its bytes per second, and its name.
        """
        known = self._sorted.get((group, at))
        if known is None:
            found = []
            for key in self.held[group]:
                weight = self.weights[key][at]
                if weight is not None:
                    found.append((weight, self.weights[key][0] or 0.0, key))
            known = self._sorted[group, at] = sorted(found)
        return known

    def sum_of(self, group: str, at: int) -> float | None:
        """Return what a group has of a goal; None: not known, as of a group without a master."""
        of = self.facts.groups.get(group)
        if self._unknown[group][at] or (of is not None and not of.alive):
            return None
        return self.values[group][at]

    # Hard goals ---------------------------------------------------------------------------------
    def why_not_on(self, topic: str, group: str) -> WhyNot | None:
        """Return why a group must not hold partitions of a topic, its disk aside."""
        if group in self.able(topic):
            return None
        of = self.facts.groups.get(group)
        if of is None:
            return WhyNot(HardGoal.ALIVE, f"there is no broker group {group}")
        return why_not_on(self.facts.topics[topic], of, self.goals, self.pools)

    def able(self, topic: str) -> frozenset[str]:
        """Return the groups that may hold partitions of a topic, their disks aside."""
        of = self.facts.topics[topic]
        pool = self.pools.get(topic, of.pool)
        labels = tuple(each for each in self.goals.labels if each.topic in {"", topic})
        wishes = pool, of.min_insync, labels
        known = self._able.get(wishes)
        if known is None:
            known = self._able[wishes] = frozenset(
                name
                for name, group in self.facts.groups.items()
                if why_not_on(of, group, self.goals, self.pools) is None
            )
        return known

    def why_not_moved(self, key: TopicPartition) -> WhyNot | None:
        """Return why a partition cannot be moved at all."""
        load = self.facts.partitions[key]
        return why_not_moved(load, self.facts.groups.get(load.group or ""), self.goals)

    def why_not_to(self, key: TopicPartition, group: str) -> WhyNot | None:
        """Return why a partition must not be moved to a group."""
        if group in self.goals.exclude_groups:
            return WhyNot(HardGoal.EXCLUDED, f"group {group} is excluded")
        error = self._silent.get(group)
        if error is not None:
            return WhyNot(HardGoal.ALIVE, f"{group}: {error}")
        return self.why_not_on(key.topic, group) or why_no_room(
            group, self.room.get(group), self._needs[key], self.goals
        )

    def allows(self, key: TopicPartition, group: str) -> bool:
        """Whether a partition may be moved to a group; as ``why_not_to``, and faster."""
        if group in self._silent or group not in self.able(key.topic):
            return False
        room, need = self.room[group], self._needs[key]
        return room is not None and need is not None and need <= room

    def broken(self) -> list[BrokenGoal]:
        """Return the hard goals that are broken: of partitions, then of the disks of groups."""
        found = []
        for key in sorted(self.at):
            why = self.why_not_on(key.topic, self.at[key])
            if why is not None:
                found.append(BrokenGoal(why.goal, self.at[key], *key, why.reason))
        for group, room in sorted(self.room.items()):
            if room is not None and room < 0 and self.held[group]:
                why = why_no_room(group, room, 0, self.goals)
                reason = "" if why is None else why.reason
                found.append(BrokenGoal(HardGoal.DISK, group, "", None, _disk_reason(reason)))
        return found

    # Soft goals ---------------------------------------------------------------------------------
    def known(self, pool: str, at: int) -> list[str]:
        """Return the groups of a pool that take partitions and whose load is known."""
        return [name for name in self.used.get(pool, ()) if not self._unknown[name][at]]

    def bounds(self, members: Sequence[str], at: int) -> tuple[float, float, float]:
        """Return the mean of groups, and the least and the most that a group should have.

        Only the first soft goal has a least: a group without load is of no use. For goals behind it
        one group may have little, as one that has a single busy partition has few partitions.
        """
        mean = math.fsum(self.values[name][at] for name in members) / len(members)
        most, least = self.goals.skew * mean, max(0.0, 2 - self.goals.skew) * mean
        if SUMS[at] is LoadGoal.PARTITIONS:
            most, least = max(most, math.ceil(mean - EPSILON)), min(least, math.floor(mean))
        if self.goals.soft[:1] != (SUMS[at],):
            least = 0.0
        return mean, least, most

    def share(self, topic: str) -> int:
        """Return how many partitions of a topic a group has at most if they are spread evenly."""
        able = self.able(topic) - self.goals.exclude_groups
        there = sum(count for name, count in self.spread[topic].items() if name in able)
        return math.ceil(there / len(able)) if able else 0

    def scores(self) -> list[GoalScore]:
        """Return the score: each soft goal in its order, each pool by name."""
        return [
            self._topics_score(pool)
            if goal is LoadGoal.TOPICS
            else self._score(pool, SUMS.index(goal))
            for goal in self.goals.soft
            for pool in sorted(self.used)
        ]

    def _score(self, pool: str, at: int) -> GoalScore:
        members = self.known(pool, at)
        unknown = len(self.used[pool]) - len(members)
        if not members:
            return GoalScore(SUMS[at], pool, 0, unknown, None, None, 0.0, 0.0, None, 0.0)
        mean, least, most = self.bounds(members, at)
        highest, group = max((self.values[name][at], name) for name in members)
        if mean <= 0:
            return GoalScore(SUMS[at], pool, len(members), unknown, 1.0, 0.0, 0.0, 0.0, None, 0.0)
        amounts = [self.values[name][at] for name in members]
        over = math.fsum(max(0.0, each - most, least - each) for each in amounts)
        excess = over / mean if over > EPSILON * math.fsum(amounts) else 0.0
        return GoalScore(
            goal=SUMS[at],
            pool=pool,
            groups=len(members),
            unknown=unknown,
            skew=highest / mean,
            mean=mean,
            limit=most,
            highest=highest,
            group=group,
            excess=excess,
        )

    def _topics_score(self, pool: str) -> GoalScore:
        beyond: Counter[str] = Counter()
        for _, group, count in self.beyond(pool):
            beyond[group] += count
        top = max(sorted(beyond), key=lambda name: beyond[name], default=None)
        total = float(beyond.total())
        groups = len(self.used[pool])
        return GoalScore(LoadGoal.TOPICS, pool, groups, 0, None, None, 0.0, total, top, total)

    def beyond(self, pool: str) -> Iterator[tuple[str, str, int]]:
        """Yield topic, group and by how many partitions it has more than an even share there."""
        names = set(self.used.get(pool, ()))
        for topic in sorted(self.spread):
            share = self.share(topic)
            for group, count in sorted(self.spread[topic].items()):
                if group in names and count > share:
                    yield topic, group, count - share


def rank(broken: Sequence[BrokenGoal], scores: Sequence[GoalScore]) -> tuple[float, ...]:
    """Return what orders allocations, the smaller the better: hard goals, then each soft one."""
    missed: dict[LoadGoal, float] = {}
    for each in scores:
        missed[each.goal] = missed.get(each.goal, 0.0) + each.excess
    return float(len(broken)), *(round(each, _DIGITS) for each in missed.values())


def _weights(load: MeasuredPartition) -> tuple[float | None, ...]:
    stored = None if load.stored_bytes is None else float(load.stored_bytes)
    return load.bytes_per_s, load.messages_per_s, stored, 1.0


def _disk_reason(reason: str) -> str:
    return reason.partition(", and would get")[0]
