"""A plan in the making: a board, what was moved on it and why, and the limits that hold already."""

from collections.abc import Sequence
from typing import NamedTuple

from vq.model import TopicPartition
from vq.operations.allocation.board import SUMS, Board
from vq.operations.allocation.facts import AllocationFacts
from vq.operations.allocation.goals import AllocationGoals, LoadGoal
from vq.operations.allocation.plans import KeptLoad, MoveReason


class BoardStep(NamedTuple):
    """A partition and the group that gets it."""

    key: TopicPartition
    target: str


class Draft:
    """A board, and why each partition was moved on it.

    Attributes:
        board: The working copy.
        reasons: Of each partition that is not where it was.
        limits: The least and the most of groups, by sum and pool, in goals that were dealt with.
        spread_counts: The goal ``topics`` was dealt with.
        kept: Why things stay.
        full: The plan has as many moves as it may have.
    """

    def __init__(self, facts: AllocationFacts, goals: AllocationGoals) -> None:
        self.board = Board(facts, goals)
        self.reasons: dict[TopicPartition, MoveReason] = {}
        self.limits: dict[tuple[int, str], tuple[float, float]] = {}
        self.spread_counts = False
        self.kept: list[KeptLoad] = []
        self.full = False
        self._fixed = {key for key in self.board.at if self.board.why_not_moved(key) is not None}
        self._shares: dict[str, int] = {}

    @property
    def first(self) -> int:
        """The sum that the first soft goal is about; without one, the number of partitions."""
        sums = [SUMS.index(goal) for goal in self.board.goals.soft if goal in SUMS]
        return sums[0] if sums else SUMS.index(LoadGoal.PARTITIONS)

    def keep(self, group: str, goal: str, reason: str) -> None:
        """Note why something stays."""
        self.kept.append(KeptLoad(group, goal, reason))

    def take(self, steps: Sequence[BoardStep], goal: str, reason: str) -> bool:
        """Make moves that belong together; False, and none: the plan may have no more."""
        more = {each.key for each in steps} - self.reasons.keys()
        if len(self.reasons) + len(more) > self.board.goals.moves_max:
            self.full = True
            return False
        for key, target in steps:
            self.board.move(key, target)
            if self.board.facts.partitions[key].group == target:
                self.reasons.pop(key, None)
            else:
                self.reasons[key] = MoveReason(goal, reason)
        return True

    def movable(self, key: TopicPartition) -> bool:
        """Whether a partition may leave its group."""
        return key not in self._fixed

    def keeps_limits(self, key: TopicPartition, target: str, pool: str) -> bool:
        """Whether the goals that were dealt with stay as good if a group gets a partition."""
        board, weights = self.board, self.board.weights[key]
        for (at, of), (least, most) in self.limits.items():
            if of != pool:
                continue
            weight = weights[at]
            if weight is None or board.values[target][at] + weight > most:
                return False
            if least > 0 and board.values[board.at[key]][at] - weight < least:
                return False
        return not self.spread_counts or self.is_spread(key, target)

    def keeps_swapped(self, given: TopicPartition, got: TopicPartition, pool: str) -> bool:
        """Whether goals that were dealt with stay as good if two groups swap partitions."""
        board = self.board
        source, target = board.at[given], board.at[got]
        for (at, of), (least, most) in self.limits.items():
            if of != pool:
                continue
            mine, other = board.weights[given][at], board.weights[got][at]
            if mine is None or other is None:
                return False
            for group, change in ((target, mine - other), (source, other - mine)):
                before = board.values[group][at]
                if change > 0 and before + change > most:
                    return False
                if change < 0 and before + change < least:
                    return False
        if not self.spread_counts or given.topic == got.topic:
            return True
        return self.is_spread(given, target) and self.is_spread(got, source)

    def is_spread(self, key: TopicPartition, target: str) -> bool:
        """Whether a group has no more than an even share of a topic with one more partition."""
        share = self._shares.get(key.topic)
        if share is None:
            share = self._shares[key.topic] = self.board.share(key.topic)
        return self.board.spread[key.topic][target] < share
