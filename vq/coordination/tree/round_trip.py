"""How long ZooKeeper takes to answer, and bounds of waits that follow it. Pure.

A wait that ends by its bound while ZooKeeper is only slow never succeeds: it ends at the same place
each time. So what waits for some calls waits for its usual time, and for what these calls take
here, up to a bound of its own.
"""

import math
from typing import Final

#: What was measured counts for this time, and up to as long again. A heartbeat measures, too.
WINDOW_S: Final = 15.0


class RoundTrips:
    """The longest answer of ZooKeeper in the last two windows of calls.

    Without answers, what was measured last stays: nothing says that it became faster.
    """

    __slots__ = ("_before", "_longest", "_since")

    def __init__(self) -> None:
        self._since = -math.inf
        self._longest = 0.0
        self._before = 0.0

    @property
    def longest_s(self) -> float:
        """The longest lately; 0.0: none was measured."""
        return max(self._longest, self._before)

    def note(self, now: float, took_s: float) -> None:
        """Note at ``now`` (monotonic) that an answer took so long."""
        if now - self._since >= WINDOW_S:
            self._since, self._before, self._longest = now, self._longest, 0.0
        self._longest = max(self._longest, took_s)


def bound_s(least_s: float, *, calls: int, round_trip_s: float, most_s: float) -> float:
    """Return how long to wait for something that takes ``calls`` calls, one after the other.

    Args:
        least_s: Where ZooKeeper answers at once.
        calls: So many, and some to spare.
        round_trip_s: How long each may take.
        most_s: However slow it is; if ``least_s`` is more, that.
    """
    return max(least_s, min(least_s + calls * round_trip_s, most_s))
