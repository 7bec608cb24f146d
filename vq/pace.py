"""A pace: how long to wait so that work stays below a rate, on average."""

import math


class Pace:
    """Turns an amount of work into a pause after it (GCRA).

    Args:
        per_s: The highest rate, in units a second; 0: there is none.
        credit_s: What was not used within so many seconds may be used at once.
        owed_s_max: The longest pause, however much was done.

    Attributes:
        due_s: When the next work may begin, of the clock that ``now`` is of.

    *Example*: at 10 a second, ``spend(5, now=100.0)`` has the next work wait until 100.5.
    """

    __slots__ = ("_credit_s", "_owed_s_max", "due_s", "per_s")

    def __init__(
        self, per_s: float, *, credit_s: float = 0.0, owed_s_max: float = math.inf
    ) -> None:
        self.per_s = per_s
        self.due_s = -math.inf
        self._credit_s = credit_s
        self._owed_s_max = owed_s_max

    def spend(self, amount: float, now: float) -> None:
        """Note work that is done; ``now`` is a time of a monotonic clock, in seconds."""
        if self.per_s:
            due_s, least, most = self.due_s, now - self._credit_s, now + self._owed_s_max
            due_s = (due_s if due_s > least else least) + amount / self.per_s
            self.due_s = due_s if due_s < most else most

    def pause_s(self, now: float) -> float:
        """Return how long the next work has to wait; 0.0: not at all."""
        return max(0.0, self.due_s - now)

    def change(self, per_s: float, now: float) -> None:
        """Go on at another rate, above 0: what is to be waited for stays the same amount."""
        owed = self.pause_s(now) * self.per_s
        if owed:
            self.due_s = now + min(owed / per_s, self._owed_s_max)
        self.per_s = per_s
