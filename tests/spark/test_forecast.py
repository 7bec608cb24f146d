"""A forecast says what its points say, how sure that is, and nothing without points."""

import math
import random
from itertools import combinations
from statistics import median

import pytest
from support.cases import case

from pyspark_vq.reports.disks import Held, disk_rows, points_of
from pyspark_vq.reports.forecast import AHEAD, POINTS_MIN, Point, forecast, nearby, trend
from pyspark_vq.reports.holdings import Disk

DAY = 86_400.0


def line(count: int, slope: float, start: float = 100.0, step: float = DAY) -> list[Point]:
    return [(number * step, start + slope * number * step) for number in range(count)]


def test_a_straight_line_is_its_own_trend() -> None:
    """Its interval has no width, and it reaches the limit when arithmetic says so."""
    points = line(10, 5 / DAY)  # from 100 by 5 a day: 145 on the last day
    found = forecast(points, 195.0)
    assert found.trend is not None
    assert found.trend.slope * DAY == pytest.approx(5)
    assert (found.trend.low, found.trend.high) == pytest.approx((found.trend.slope,) * 2)
    assert found.verdict == "fills"
    assert found.full_in_s == pytest.approx(10 * DAY)
    assert (found.earliest_s, found.latest_s) == pytest.approx((10 * DAY, 10 * DAY))


def test_the_example_of_the_module_can_be_counted_by_hand() -> None:
    """Six points: 15 slopes; C = 1.645 * sqrt(6 * 5 * 17 / 18) = 8.76; ranks 3.12 and 12.88, so
    3 and 13: the third from below and the third from above."""
    points = [(0.0, 10.0), (1.0, 12.0), (2.0, 14.0), (3.0, 17.0), (4.0, 18.0), (5.0, 21.0)]
    slopes = sorted(
        (b[1] - a[1]) / (b[0] - a[0]) for n, a in enumerate(points) for b in points[n + 1 :]
    )
    found = trend(points)
    assert found is not None
    assert len(slopes) == 15
    assert found.slope == median(slopes)
    assert (found.low, found.high) == (slopes[2], slopes[12])


def test_falling_points_have_the_interval_of_rising_ones() -> None:
    for count in range(POINTS_MIN, 40):
        rng = random.Random(count)
        points = [(t, value + rng.gauss(0, 8)) for t, value in line(count, 2 / DAY)]
        rising, falling = trend(points), trend([(t, -value) for t, value in points])
        with case(count):
            assert rising is not None
            assert falling is not None
            assert (-falling.high, -falling.low) == (rising.low, rising.high)


def test_one_point_of_ten_that_lies_far_away_is_not_in_the_spread() -> None:
    points = line(10, 5 / DAY)
    points[4] = (points[4][0], 900.0)
    found = trend(points)
    assert found is not None
    assert found.spread == pytest.approx(0, abs=1e-6)


def test_a_snapshot_that_is_there_several_times_is_one_point() -> None:
    """Six rows of one moment, and now, are two points: no forecast."""
    row = {"group": "b1", "node": "n1", "directory": "/a", "seconds": 0.0, "bytes_used": 1}
    assert points_of([row] * 6) == {("b1", "n1", "/a"): [(0.0, 1.0)]}


def test_one_large_deletion_does_not_move_the_trend() -> None:
    points = line(12, 5 / DAY)
    points[6] = (points[6][0], 3.0)
    found = trend(points)
    assert found is not None
    assert found.slope * DAY == pytest.approx(5)


@pytest.mark.parametrize("count", range(POINTS_MIN))
def test_too_few_points_give_no_number(count: int) -> None:
    found = forecast(line(count, 5 / DAY), 1_000.0)
    assert found.verdict == "unknown"
    assert (found.trend, found.full_in_s, found.earliest_s, found.latest_s) == (None,) * 4
    assert found.why


def test_a_disk_of_unknown_size_gives_no_number() -> None:
    assert forecast(line(20, 1.0), None).verdict == "unknown"


def test_a_disk_at_its_limit_is_full_whatever_the_trend() -> None:
    assert forecast([(0.0, 50.0)], 50.0).full_in_s == 0.0
    assert forecast(line(9, -1 / DAY), 50.0).verdict == "full"


def test_nothing_is_said_beyond_the_horizon() -> None:
    """Ten points of a day each: 90 days ahead at most."""
    points = line(10, 1 / DAY)
    assert forecast(points, 109 + AHEAD * 9 - 1.0).verdict == "fills"
    found = forecast(points, 109 + AHEAD * 9 + 1.0)
    assert (found.verdict, found.full_in_s) == ("steady", None)
    assert found.horizon_s == pytest.approx(AHEAD * 9 * DAY)


def test_a_disk_that_shrinks_or_rests_does_not_fill() -> None:
    for slope in (0.0, -3 / DAY):
        assert forecast(line(10, slope), 1e9).verdict == "steady"


def test_noise_widens_the_interval_and_the_truth_lies_in_it() -> None:
    """Nine in ten times, over random walks around a known slope; fixed seed."""
    rng = random.Random(7)
    hits = 0
    for _ in range(200):
        points = [(t, value + rng.gauss(0, 8)) for t, value in line(20, 2 / DAY)]
        found = trend(points)
        assert found is not None
        assert found.low <= found.slope <= found.high
        hits += found.low * DAY <= 2 <= found.high * DAY
    assert 0.85 * 200 <= hits <= 0.97 * 200


def test_a_trend_that_may_be_flat_may_fill() -> None:
    """Only the high end of its interval reaches the limit, and the latest moment is never."""
    rng = random.Random(3)
    points = [(t, 100 + rng.gauss(0, 5)) for t, _ in line(8, 0)]
    found = forecast(points, 130.0)
    assert found.trend is not None
    assert found.trend.low < 0 < found.trend.high
    assert found.latest_s is None
    assert found.verdict in {"may fill", "fills"}


def test_thousands_of_points_are_thinned_and_end_with_the_last() -> None:
    points = line(5_000, 1 / DAY)
    found = trend(points)
    assert found is not None
    assert found.points <= 500
    assert found.slope * DAY == pytest.approx(1)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_snapshots_of_a_wrong_clock_change_nothing_of_a_forecast(count: int) -> None:
    """Of 12 days; 1970 lies further back than a forecast looks ahead, and the reason says it."""
    start = 20_000 * DAY
    points = [(start + time, value) for time, value in line(12, 5 / DAY)]
    wrong = [(number * 10 * 365 * DAY, 40.0) for number in range(count)]
    alone, found = forecast(points, 300.0), forecast([*wrong, *points], 300.0)
    assert found.horizon_s == alone.horizon_s == pytest.approx(AHEAD * 11 * DAY)
    assert found.trend == alone.trend
    assert (found.verdict, found.full_in_s) == (alone.verdict, alone.full_in_s)
    assert (found.earliest_s, found.latest_s) == (alone.earliest_s, alone.latest_s)
    assert alone.why == ""
    assert found.why == f"{count} of {12 + count} snapshots left out: long before the others"


def test_a_snapshot_of_1970_is_none_of_the_six() -> None:
    points = [(20_000 * DAY + time, value) for time, value in line(5, 5 / DAY)]
    found = forecast([(0.0, 1.0), *points], 300.0)
    assert (found.verdict, found.trend) == ("unknown", None)
    assert found.why.startswith("5 of the 6 snapshots")
    assert found.why.endswith("1 of 6 snapshots left out: long before the others")


@pytest.mark.parametrize(
    "times",
    [
        [*range(10), 15, 16],  # daily runs, and a pause
        [*range(30), *(30 + minute / 1440 for minute in range(40))],  # and somebody tries it
        [0, 1, *(60 + hour / 24 for hour in range(5))],  # too many of them to be a mistake
    ],
)
def test_a_pause_is_no_wrong_clock(times: list[float]) -> None:
    points = [(time * DAY, 100.0 + time) for time in times]
    assert nearby(points) == points


def by_hand(points: list[Point]) -> tuple[float, float, float, float]:
    """The median slope, its interval and the spread, in other words than the module's."""
    slopes = sorted(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1
    )
    n, total = len(points), len(slopes)
    at = total // 2
    middle = slopes[at] if total % 2 else (slopes[at - 1] + slopes[at]) / 2
    half = 1.6448536269514722 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low_rank, high_rank = math.floor((total - half) / 2), math.ceil((total + half) / 2) + 1
    rests = sorted(y - middle * x for x, y in points)
    level = rests[n // 2] if n % 2 else (rests[n // 2 - 1] + rests[n // 2]) / 2
    away = sorted(abs(rest - level) for rest in rests)
    return (
        middle,
        slopes[max(low_rank, 1) - 1],
        slopes[min(high_rank, total) - 1],
        away[math.ceil(0.9 * n) - 1],
    )


def test_a_forecast_of_any_disk_is_the_one_worked_out_by_hand() -> None:
    """Irregular runs, noise, rising or falling; moments and verdict follow from the slopes."""
    for seed in range(40):
        with case(seed):
            check_by_hand(seed)


def check_by_hand(seed: int) -> None:
    rng = random.Random(seed)
    count, time = rng.randint(POINTS_MIN, 60), 20_000 * DAY
    points = []
    for _ in range(count):
        time += rng.choice([3600.0, DAY, 2 * DAY])
        points.append((time, 1e6 + rng.uniform(-1, 4) * time / DAY + rng.gauss(0, 50)))
    used = points[-1][1]
    limit = used + rng.choice([10.0, 500.0, 1e5])
    slope, low, high, spread = by_hand(points)
    found = forecast(points, limit)
    assert found.trend is not None
    assert (found.trend.slope, found.trend.low, found.trend.high) == pytest.approx(
        (slope, low, high)
    )
    assert found.trend.spread == pytest.approx(spread)
    horizon = 10 * (points[-1][0] - points[0][0])
    assert found.horizon_s == pytest.approx(horizon)

    def reached(left: float, rate: float) -> float | None:
        after = left / rate if rate > 0 else math.inf
        return pytest.approx(after) if after <= horizon else None

    assert found.full_in_s == reached(limit - used, slope)
    assert found.earliest_s == reached(max(0.0, limit - used - spread), high)
    assert found.latest_s == reached(limit - used + spread, low)
    expected = (
        "fills" if found.full_in_s is not None
        else "may fill" if found.earliest_s is not None
        else "steady"
    )  # fmt: skip
    assert found.verdict == expected


# Rows of disks --------------------------------------------------------------------------------
GIB = 1 << 30


def test_disks_are_told_in_the_order_in_which_they_need_attention() -> None:
    """With what vq has there; a silent node has a row without numbers and with the cause."""
    now = 9 * DAY
    disks = [
        Disk("b1", "n1", "/a", 100 * GIB, 40 * GIB, "ok", GIB // 24, 400.0, ""),
        Disk("b2", "n1", "/b", 100 * GIB, 90 * GIB, "ok", None, None, ""),
        Disk("b3", "n1", "", None, None, "unknown", None, None, "Unreachable: no answer"),
    ]
    rows = [
        {"group": "b1", "node": "n1", "directory": "/a", "seconds": day * DAY, "bytes_used": used}
        for day, used in enumerate([(51 + day) * GIB for day in range(9)])
    ]
    history = points_of(reversed([*rows, {**rows[0], "bytes_used": None}]))
    held = {("b1", "n1", "/a"): Held(30 * GIB, 2.0 * GIB, 60.0 * GIB)}
    first, few, silent = disk_rows(disks, history, held, now_s=now)
    assert (first["group"], first["verdict"], first["points"]) == ("b1", "fills", 10)
    assert first["growth_bytes_per_day"] == pytest.approx(GIB)
    assert first["full_in_days"] == pytest.approx(40)
    assert (first["vq_bytes"], first["settles_at_bytes"]) == (30 * GIB, 60.0 * GIB)
    assert first["broker_growth_bytes_per_day"] == pytest.approx(GIB, rel=1e-6)
    assert first["broker_full_in_days"] == pytest.approx(400 / 24, abs=1e-3)
    assert (few["verdict"], few["growth_bytes_per_day"], few["vq_bytes"]) == ("unknown", None, None)
    assert "1 of the 6 snapshots" in few["reason"]
    assert (few["group"], few["bytes_used"]) == ("b2", 10 * GIB)
    assert (silent["group"], silent["bytes_used"]) == ("b3", None)
    assert silent["reason"] == "Unreachable: no answer"


def test_a_snapshot_of_1970_is_not_counted_on_its_disk() -> None:
    disk = Disk("b1", "n1", "/a", 100 * GIB, 40 * GIB, "ok", None, None, "")
    start = 20_000 * DAY
    days = [(start + day * DAY, float((51 + day) * GIB)) for day in range(9)]
    key = ("b1", "n1", "/a")
    [row] = disk_rows([disk], {key: [(0.0, 1.0), *days]}, {}, now_s=start + 9 * DAY)
    assert (row["points"], row["verdict"]) == (10, "fills")
    assert row["horizon_days"] == pytest.approx(90)
    assert row["reason"] == "1 of 11 snapshots left out: long before the others"
