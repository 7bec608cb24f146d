"""When a disk will be full, with an interval, from how full it was at earlier snapshots.

Pure functions. The growth is the median of the slopes between any two points (Theil 1950, Sen
1968): one large deletion, or a file that comes and goes, does not move it. Its interval is Sen's:
the slopes of rank ``(N - C) / 2`` and ``(N + C) / 2 + 1`` of all N, rounded to the outside: falling
points have the interval of rising ones. C is the quantile of the normal distribution times the
standard deviation of Kendall's S, ``sqrt(n (n - 1) (2 n + 5) / 18)`` (Gilbert, Statistical Methods
for Environmental Pollution Monitoring, 1987, section 16.5). The interval of the moment at which the
disk is full also has the distance of the points from the line: the disk may be that much fuller, or
emptier, than the line says.

Nothing is forecast from fewer than ``POINTS_MIN`` points, nor further ahead than ``AHEAD`` times
the time that they span: the trend of a week says little of the next year. Nor does it look back
further than that: a few points that lie so long before all others, such as one of a clock that
stood at 1970, are left out (``nearby``).

*Example*: points (0 h, 10), (1 h, 12), (2 h, 14), (3 h, 17) have the slopes 2, 2, 3, 2, 2.5 and
7/3; the median is (2 + 7/3) / 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt
from statistics import NormalDist, median
from typing import Final

#: Fewer points have no interval that means anything: of five, Sen's interval is all slopes.
POINTS_MIN: Final = 6
#: How sure the intervals are.
CONFIDENCE: Final = 0.9
#: How far ahead a forecast looks, in times of the span of its points.
AHEAD: Final = 10
#: Of all points, up to this share is left out if it lies long before the others.
FAR_SHARE: Final = 0.25
#: Of more points, so many are compared with each other, evenly spread.
POINTS_MAX: Final = 500
DAY_S: Final = 86_400.0

Point = tuple[float, float]  # seconds, bytes in use


@dataclass(frozen=True, slots=True)
class Trend:
    """How fast something grows, per second, with the interval of ``CONFIDENCE``.

    Attributes:
        slope, low, high: The median of all slopes, and its interval.
        spread: Of nine in ten points, how far they lie from the line at most.
        points: So many were used.
        span_s: From the first to the last.
    """

    slope: float
    low: float
    high: float
    spread: float
    points: int
    span_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a disk is full.

    Attributes:
        verdict: ``full``; ``fills``: at its growth; ``may fill``: only at the high end of the
            interval; ``steady``: not at its growth, within the horizon; ``unknown``.
        why: What an unknown forecast lacks, and which points it leaves out; "": nothing.
        trend: None: unknown.
        full_in_s: At the growth; None: it does not fill up within the horizon, or is unknown.
        earliest_s, latest_s: The interval of that; None: beyond the horizon, or never.
        horizon_s: Nothing is said about what comes later; None: unknown.
    """

    verdict: str
    why: str
    trend: Trend | None
    full_in_s: float | None
    earliest_s: float | None
    latest_s: float | None
    horizon_s: float | None


def nearby(points: Sequence[Point]) -> list[Point]:
    """Return points in rising order of time without those that lie long before the others.

    These are at most ``FAR_SHARE`` of them, and a pause of more than ``AHEAD`` times the time that
    all later points span follows.
    """
    end = points[-1][0] if points else 0.0
    for far in range(int(len(points) * FAR_SHARE), 0, -1):
        first = points[far][0]
        if first - points[far - 1][0] > AHEAD * (end - first):
            return list(points[far:])
    return list(points)


def trend(points: Sequence[Point]) -> Trend | None:
    """Return the trend of points in rising order of time; None: there are too few."""
    some = _thinned(points)
    count = len(some)
    if count < POINTS_MIN:
        return None
    slopes = sorted(
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(some)
        for later in some[number + 1 :]
        if later[0] > earlier[0]
    )
    if not slopes:
        return None
    middle = median(slopes)
    total = len(slopes)
    quantile = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    half = quantile * sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = slopes[max(0, floor((total - half) / 2) - 1)]
    high = slopes[min(total - 1, ceil((total + half) / 2))]
    level = median(value - middle * time for time, value in some)
    away = sorted(abs(value - middle * time - level) for time, value in some)
    spread = away[ceil(CONFIDENCE * count) - 1]
    return Trend(middle, low, high, spread, count, some[-1][0] - some[0][0])


def forecast(points: Sequence[Point], limit: float | None) -> Forecast:
    """Return when what the points say reaches ``limit`` bytes, counted from the last point.

    Args:
        points: Bytes in use, in rising order of time.
        limit: Bytes at which the disk counts as full; None: not known.
    """
    if limit is None or not points:
        return _unknown("the size of the disk is not known" if points else "there is no snapshot")
    near = nearby(points)
    far = len(points) - len(near)
    left_out = f"{far} of {len(points)} snapshots left out: long before the others" if far else ""
    used = near[-1][1]
    found = trend(near)
    if used >= limit:
        return Forecast("full", left_out, found, 0.0, 0.0, 0.0, None)
    if found is None:
        lacking = (
            f"{len(near)} of the {POINTS_MIN} snapshots that a forecast takes: run the report "
            "again later with the same --out, or give it --history"
        )
        return _unknown(f"{lacking}; {left_out}" if left_out else lacking)
    left, horizon_s = limit - used, AHEAD * found.span_s
    full_s = _reached(left, found.slope, horizon_s)
    earliest_s = _reached(max(0.0, left - found.spread), found.high, horizon_s)
    latest_s = _reached(left + found.spread, found.low, horizon_s)
    verdict = "fills" if full_s is not None else "may fill" if earliest_s is not None else "steady"
    return Forecast(verdict, left_out, found, full_s, earliest_s, latest_s, horizon_s)


def _reached(left: float, growth: float, horizon_s: float) -> float | None:
    """Return after how many seconds ``left`` bytes are used up; None: not within the horizon."""
    if growth <= 0:
        return None
    seconds = left / growth
    return seconds if seconds <= horizon_s else None


def _thinned(points: Sequence[Point]) -> list[Point]:
    step = -(-len(points) // POINTS_MAX) or 1
    return list(points)[::-1][::step][::-1]


def _unknown(why: str) -> Forecast:
    return Forecast("unknown", why, None, None, None, None, None)
