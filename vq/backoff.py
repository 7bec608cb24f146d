"""Back-off: how long to pause before the next try, as arithmetic.

In here: one formula and its bound. Not in here: counting the failures, drawing random numbers,
waiting; whoever tries again does that. Example, ``first_s = 0.1`` and ``most_s = 1.0``::

    failures in a row    1    2    3    4    5 …
    pause in seconds   0.1  0.2  0.4  0.8  1.0 …
"""

from dataclasses import dataclass
from typing import Final, Protocol

#: Doublings that are computed; the pause has reached any bound long before.
DOUBLINGS_MAX: Final = 60


class Draws(Protocol):
    """Where the jitter comes from: a ``random.Random``."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A pause that doubles with every failure in a row, up to a bound.

    Attributes:
        first_s: The pause after the first failure, > 0.
        most_s: The longest pause, before jitter.
        jitter: How far a pause is spread, as a part of it, in [0, 1]: a pause p is drawn from
            [p * (1 - jitter), p * (1 + jitter)). Use it where many processes fail at once, so
            that they do not all come back at once.
    """

    first_s: float
    most_s: float
    jitter: float = 0.0

    def pause_s(self, failures: int, rng: Draws | None = None) -> float:
        """Return the pause after ``failures`` failures in a row, >= 1; jitter needs ``rng``."""
        assert failures >= 1, f"{failures} failures: there is nothing to back off from"
        doublings = min(failures - 1, DOUBLINGS_MAX)
        return self._spread(min(self.most_s, self.first_s * 2.0**doublings), rng)

    def longest_s(self, rng: Draws | None = None) -> float:
        """Return the longest pause: for a failure that will not pass soon."""
        return self._spread(self.most_s, rng)

    def _spread(self, pause_s: float, rng: Draws | None) -> float:
        if not self.jitter:
            return pause_s
        assert rng is not None, f"jitter = {self.jitter} needs a source of random numbers"
        return pause_s * (1 - self.jitter + 2 * self.jitter * rng.random())
