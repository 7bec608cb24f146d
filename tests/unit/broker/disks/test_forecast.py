"""When a disk will be full."""

import random
from collections.abc import Callable

import pytest

from vq.broker.disks.forecast import LEAST_S, SAMPLE_S, WINDOWS_S, Growth, full_in_s, slope

HOUR_S = 3_600.0
GIB = 2**30


def grown(used: Callable[[float], float], hours: float, growth: Growth | None = None) -> Growth:
    """A disk whose use is a function of the time in hours, looked at every 20 s."""
    growth = growth or Growth()
    for step in range(int(hours * HOUR_S / 20) + 1):
        growth.note(step * 20.0, int(used(step * 20 / HOUR_S)))
    return growth


def per_hour(growth: Growth) -> float | None:
    return None if growth.bytes_per_s is None else growth.bytes_per_s * HOUR_S / GIB


def test_the_example_of_the_module() -> None:
    growth = grown(lambda h: GIB * (h / 2 if h < 22 else 11 + 2 * (h - 22)), 24)
    assert per_hour(growth) == pytest.approx(2, rel=0.05)
    seconds = full_in_s(growth.bytes_per_s, 10 * GIB)
    assert seconds == pytest.approx(5 * HOUR_S, rel=0.05)


def test_nothing_is_known_from_too_little() -> None:
    growth = Growth()
    growth.note(0, 5)
    growth.note(LEAST_S - 1, 500)
    assert growth.bytes_per_s is None
    assert full_in_s(growth.bytes_per_s, 100) is None
    growth.note(LEAST_S + SAMPLE_S, 500)
    assert growth.bytes_per_s is not None


def test_a_steady_growth_is_known_after_twenty_minutes() -> None:
    assert per_hour(grown(lambda h: h * GIB, 0.4)) == pytest.approx(1, rel=0.01)


def test_a_disk_that_does_not_fill_up_has_no_end() -> None:
    growth = grown(lambda h: 10 * GIB, 2)
    assert growth.bytes_per_s == 0
    assert full_in_s(growth.bytes_per_s, GIB) is None
    shrinks = grown(lambda h: (10 - h) * GIB, 2)
    assert full_in_s(shrinks.bytes_per_s, GIB) is None


@pytest.mark.parametrize("growth", [1e-300, 4e-16, 1e-5])
def test_a_growth_that_fills_a_disk_in_no_lifetime_has_no_end(growth: float) -> None:
    """The median of rises and falls may differ from 0 by rounding alone."""
    assert full_in_s(growth, GIB) is None


def test_a_full_disk_is_full_now_whatever_is_known() -> None:
    assert full_in_s(None, 0) == full_in_s(-5.0, -1) == full_in_s(5.0, 0) == 0


def test_retention_that_deletes_as_much_as_is_written_does_not_fill_the_disk() -> None:
    """Blocks of half a GiB go whenever one has come."""
    growth = grown(lambda h: 50 * GIB + (h * GIB) % (GIB / 2), 24)
    assert abs(per_hour(growth) or 0) < 0.2


@pytest.mark.parametrize("hours", [0.3, 1, 5, 12])
def test_one_large_deletion_does_not_hide_that_the_disk_fills(hours: float) -> None:
    """Some hours before now, 100 GiB went; since then and before, it grows by 1 GiB an hour."""
    growth = grown(lambda h: GIB * (200 + h - (100 if h > 24 - hours else 0)), 24)
    found = per_hour(growth)
    assert found is not None
    assert 0.5 < found < 1.1


def test_a_file_that_comes_and_goes_does_not_count() -> None:
    growth = grown(lambda h: GIB * (h + (500 if 3.2 < h < 3.4 else 0)), 4)
    assert per_hour(growth) == pytest.approx(1, rel=0.1)


def test_the_history_is_bounded() -> None:
    growth = grown(lambda h: h * GIB, 30)
    assert len(growth.notes) <= WINDOWS_S[-1] / SAMPLE_S + 1


def test_the_slope_is_the_median_one() -> None:
    assert slope([(0, 5)]) is None
    assert slope([(0, 0), (1, 2), (2, 4), (3, 1_000), (4, 8)]) == 2
    rng = random.Random(5)
    notes = [(float(x), 7 * x + rng.randrange(-50, 50)) for x in range(720)]
    assert slope(notes) == pytest.approx(7, rel=0.05)
