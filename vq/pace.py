"""A pace: how long to wait so that work stays below a rate, on average."""

__all__ = ["Pace"]


class Pace:
    """Turns an amount of work into a pause after it. Keeps no credit for time without work.

    Args:
        per_s: The highest rate, in units a second; 0: there is none.

    *Example*: at 10 a second, ``spend(5, now=100.0)`` has the next work wait until 100.5.
    """

    __slots__ = ("_due_s", "per_s")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._due_s = 0.0

    def spend(self, amount: float, now: float) -> None:
        """Note work that is done; ``now`` is a time of a monotonic clock, in seconds."""
        if self.per_s:
            self._due_s = max(self._due_s, now) + amount / self.per_s

    def pause_s(self, now: float) -> float:
        """Return how long the next work has to wait; 0.0: not at all."""
        return max(0.0, self._due_s - now)
