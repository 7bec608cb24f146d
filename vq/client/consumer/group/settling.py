"""When a member looks at its group: at once for one change, later the more changes come.

Pure. Each look reads the members and the last claims and computes the plan, in every member. So
many members that come at the same time are to cause few looks: a change is looked at 20 ms later,
and 20 ms later still for each member that came or went lately, up to ``PAUSE_MAX_S``. Nothing is
claimed in that time: it might have to move again.

When partitions were claimed, a member looks once more, a while later: a member that was late may
have claimed by an older plan, so that the others counted on it for another partition. While
partitions go on to move, these checks become rarer.

    changed    the members, the contract or topics may have changed: a look is due after the pause
    moved      partitions were claimed or released: a look is due, see ``CHECK``
    at_once    a look is due now
    begin      a look begins; what is told from here on makes another one due
    saw        a look ends; so many members came or went since the one before
"""

import math
from typing import Final

from vq.backoff import Backoff, Draws

#: The pause after a change, for each member that came or went since the last calm.
PAUSE_S: Final = 0.02
#: The longest pause: a partition whose member has died is nobody's for so much longer.
PAUSE_MAX_S: Final = 1.0
#: A group in which nobody came or went for so long is calm.
CALM_S: Final = 1.0
#: The wait for a look after partitions were claimed, for each in a row; not at the same time in all
#: members.
CHECK: Final = Backoff(first_s=1.0, most_s=8.0, jitter=0.5)
#: After so long without a check, the next one is the first of a row.
_ROW_S: Final = 12.0


class Settling:
    """The looks of one member; times are of one monotonic clock.

    Args:
        rng: For the jitter of ``CHECK``.
    """

    def __init__(self, rng: Draws) -> None:
        self._rng = rng
        self._unrest_at = -math.inf  # when it last saw that members came or went
        self._came_or_went = 0
        self._settled_at = -math.inf  # inf: nothing has changed since the last look
        self._check_at = math.inf
        self._checks = 0  # in a row
        self._checked_at = -math.inf

    @property
    def due_at(self) -> float:
        """When the next look is due; infinite: not before something changes."""
        return min(self._settled_at, self._check_at)

    @property
    def is_settling(self) -> bool:
        """Whether the plan may be out of date: nothing is claimed by it."""
        return self._settled_at < math.inf

    def changed(self, now: float) -> None:
        """Note a change of the group; a further one puts off nothing."""
        if now - self._unrest_at > CALM_S:
            self._came_or_went = 0
        pause_s = min(PAUSE_MAX_S, PAUSE_S * max(1, self._came_or_went))
        self._settled_at = min(self._settled_at, now + pause_s)

    def moved(self, now: float) -> None:
        """Note that partitions were claimed or released."""
        if now - self._checked_at > _ROW_S:
            self._checks = 0
        self._check_at = min(self._check_at, now + CHECK.pause_s(self._checks + 1, self._rng))

    def at_once(self) -> None:
        """Have the next look now."""
        self._settled_at = -math.inf

    def begin(self, now: float) -> None:
        """Note that a look begins."""
        if now >= self._check_at:
            self._checks, self._checked_at = self._checks + 1, now
        self._settled_at = self._check_at = math.inf

    def saw(self, came_or_went: int, now: float) -> None:
        """Note how many members came or went between two looks."""
        if came_or_went:
            self._came_or_went += came_or_went
            self._unrest_at = now
            self._checks = 0
