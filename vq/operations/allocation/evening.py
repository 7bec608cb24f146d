"""Evens out one soft goal over the groups of a pool: a pure step of the advisor."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Final

from vq.model import TopicPartition
from vq.operations.allocation.board import EPSILON, SUMS
from vq.operations.allocation.drafts import BoardStep, Draft
from vq.operations.allocation.goals import LoadGoal
from vq.operations.allocation.plans import amount_text

#: A swap, or a move that only lowers the higher group, counts if it gains this share of the mean.
_GAIN_MIN: Final = 0.01
#: The lowest groups that a swap is tried with.
_SWAPS_TRIED: Final = 16
#: Steps of a goal in a pool, as a multiple of the most moves: a partition may go on further.
_STEPS_PER_MOVE: Final = 4


class Evening:
    """One soft goal in one pool: the groups in the order of what they have."""

    def __init__(
        self,
        draft: Draft,
        pool: str,
        at: int,
        members: Sequence[str],
        bounds: tuple[float, float, float],
    ) -> None:
        self._draft, self._board = draft, draft.board
        self._pool, self._at = pool, at
        self._mean, self._least, self._most = bounds
        self._slack = EPSILON * self._mean
        self._goal = SUMS[at]
        self._gain = _GAIN_MIN * self._mean
        self._order = sorted((self._board.values[name][at], name) for name in members)
        self._steps_left = _STEPS_PER_MOVE * draft.board.goals.moves_max + len(members)
        self._stuck_high = False  # a group stays above the most, and the reason is told
        # Of another tie than weight: topics are spread where that costs nothing.
        self._spreads = LoadGoal.TOPICS in draft.board.goals.soft

    # The highest give -----------------------------------------------------------------------------
    def lower(self) -> None:
        """Have groups above the most give partitions away."""
        stuck: set[str] = set()
        while True:
            high = next(((v, g) for v, g in reversed(self._order) if g not in stuck), None)
            if high is None or high[0] <= self._most + self._slack:
                return
            value, source = high
            steps = self._single(source, value) or self._swap(source, value)
            if not steps and not stuck:
                steps = self._lowering(source, value)
            if not steps:
                stuck.add(source)
                self._stuck_high = True
                self._draft.keep(source, str(self._goal), self._why_stuck(source, value))
            elif not self._take(steps, source):
                return

    def _single(self, source: str, value: float) -> list[BoardStep]:
        """Return the move of the lightest partition that suffices, else of the heaviest one."""
        lightest = self._order[0][0]
        for weight, _, key in self._by_use(source, value - self._most):
            if weight <= 0 or lightest + weight > self._most + self._slack:
                continue
            if not self._draft.movable(key):
                continue
            target = self._target(key, weight, source, self._most)
            if target is not None:
                return [BoardStep(key, target)]
        return []

    def _by_use(self, source: str, excess: float) -> Iterator[tuple[float, float, TopicPartition]]:
        """Yield those that suffice alone, the lightest first, then others, the heaviest first.

        All weigh the same in a count of partitions; those with the fewest bytes come first.
        """
        known = self._board.by_weight(source, self._at)
        first = 0
        if self._goal is not LoadGoal.PARTITIONS:
            first = bisect_left(known, (excess,))
        yield from list(known[first:])
        yield from reversed(known[:first])

    def _target(self, key: TopicPartition, weight: float, source: str, most: float) -> str | None:
        """Return the lowest group that may have a partition and stays within ``most``."""
        draft, board, pool, found = self._draft, self._board, self._pool, None
        for value, name in self._order:
            if value + weight > most + self._slack:
                break
            if name == source or not board.allows(key, name):
                continue
            if not draft.keeps_limits(key, name, pool):
                continue
            if not self._spreads or draft.is_spread(key, name):
                return name
            found = found or name
        return found

    def _swap(self, source: str, value: float) -> list[BoardStep]:
        """Return two moves that bring the source down and leave the other group within the most."""
        board, draft, at = self._board, self._draft, self._at
        least = min(self._gain, value - self._most)
        for weight, _, key in reversed(board.by_weight(source, at)):
            if not draft.movable(key):
                continue
            for held, name in self._order[:_SWAPS_TRIED]:
                if name == source or not board.allows(key, name):
                    continue
                others = board.by_weight(name, at)
                first = bisect_left(others, (weight - (self._most - held),))
                for other, _, back in others[first : first + _SWAPS_TRIED]:
                    if weight - other < least:
                        break
                    if (
                        draft.movable(back)
                        and board.allows(back, source)
                        and draft.keeps_swapped(key, back, self._pool)
                    ):
                        return [BoardStep(key, name), BoardStep(back, source)]
        return []

    def _lowering(self, source: str, value: float) -> list[BoardStep]:
        """Return the move that lowers the higher of two groups most; both may stay too high."""
        best: tuple[float, BoardStep] | None = None
        for weight, _, key in reversed(self._board.by_weight(source, self._at)):
            if weight <= 0 or not self._draft.movable(key):
                continue
            target = self._target(key, weight, source, value - self._gain)
            if target is None:
                continue
            after = max(value - weight, self._board.values[target][self._at] + weight)
            if after <= value - self._gain and (best is None or after < best[0]):
                best = after, BoardStep(key, target)
        return [] if best is None else [best[1]]

    # The lowest take ------------------------------------------------------------------------------
    def fill(self) -> None:
        """Have groups below the least take partitions from the highest ones."""
        stuck: set[str] = set()
        while True:
            low = next(((v, g) for v, g in self._order if g not in stuck), None)
            if low is None or low[0] >= self._least - self._slack:
                return
            value, target = low
            step = self._from_high(target, value)
            if step is None:
                stuck.add(target)
                if not self._stuck_high:  # else it lacks what that one has too much
                    self._draft.keep(target, str(self._goal), self._why_low(target, value))
            elif not self._take([step], self._board.at[step.key]):
                return

    def _from_high(self, target: str, value: float) -> BoardStep | None:
        """Return the heaviest partition that a high group can give without getting too low.

        The low one gets no higher than the mean.
        """
        board, draft = self._board, self._draft
        for held, name in reversed(self._order):
            spare = min(held - self._least, self._mean - value + self._slack)
            if held <= self._mean or spare <= 0:
                return None
            known = board.by_weight(name, self._at)
            end = bisect_left(known, (spare + self._slack, float("inf")))
            for weight, _, key in reversed(known[:end]):
                if weight <= 0:
                    break
                if (
                    draft.movable(key)
                    and board.allows(key, target)
                    and draft.keeps_limits(key, target, self._pool)
                ):
                    return BoardStep(key, target)
        return None

    # Both -----------------------------------------------------------------------------------------
    def _take(self, steps: Sequence[BoardStep], source: str) -> bool:
        """Make moves, and keep the order; False: no more may be made."""
        board, at = self._board, self._at
        self._steps_left -= len(steps)
        touched = {source, *(each.target for each in steps)}
        before = {name: board.values[name][at] for name in touched}
        target = next(each.target for each in steps if each.target != source)
        reason = (
            f"{source} has {self._text(before[source])}, "
            f"{self._times(before[source])} the mean of pool {self._pool}; {target} has "
            f"{self._text(before[target])}, {self._times(before[target])}"
        )
        if self._steps_left < 0 or not self._draft.take(steps, str(self._goal), reason):
            return False
        for name in touched:
            where = bisect_left(self._order, (before[name], name))
            del self._order[where]
            insort(self._order, (board.values[name][at], name))
        return True

    def _text(self, value: float) -> str:
        return amount_text(self._goal, value)

    def _times(self, value: float) -> str:
        return f"{value / self._mean:.2f} times"

    def _why_low(self, target: str, value: float) -> str:
        return (
            f"{target} has {self._text(value)}, below {self._text(self._least)}: no partition of a "
            "higher group fits there"
        )

    def _why_stuck(self, source: str, value: float) -> str:
        have = (
            f"{source} has {self._text(value)}, {self._times(value)} the mean of pool {self._pool}"
        )
        known = self._board.by_weight(source, self._at)
        movable = [(weight, key) for weight, _, key in known if self._draft.movable(key)]
        if known:
            weight, _, key = known[-1]
            if weight > self._most:
                return f"{have}: {key} alone has {self._text(weight)}, more than the limit"
        if not movable:
            return f"{have}: none of its partitions may be moved"
        if len(self._order) < 2:
            return f"{have}: it is the only group"
        weight, key = movable[0]
        lowest = next(name for _, name in self._order if name != source)
        why = self._board.why_not_to(key, lowest)
        if why is not None:
            return f"{have}: {why.reason}"
        return (
            f"{have}: no partition of it fits elsewhere within {self._text(self._most)} without "
            "making a goal before this one worse"
        )
