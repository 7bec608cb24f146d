"""How often a value was how large: the counts behind a histogram of Prometheus."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

#: Upper bounds of flushes and acknowledgements, in seconds: from a fast SSD to a disk that hangs.
SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class Histogram:
    """Counts observations by their size. About 150 ns for each, so at most one for a batch.

    Args:
        bounds: The upper bounds of the buckets, rising; a value that equals one belongs to it.

    Attributes:
        bounds: See the argument.
        counts: Observations in each bucket; the last one is for what is above all bounds.
        sum: Of all observations.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
