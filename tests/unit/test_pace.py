"""How long work waits so that it stays below a rate."""

import pytest

from vq.pace import Pace


def test_work_waits_as_long_as_the_work_before_it_may_take() -> None:
    pace = Pace(10)
    pace.spend(5, now=100.0)
    assert pace.pause_s(100.2) == pytest.approx(0.3)
    assert pace.pause_s(100.6) == 0.0


def test_work_in_one_moment_adds_up() -> None:
    pace = Pace(10)
    for _ in range(4):
        pace.spend(5, now=100.0)
    assert pace.pause_s(100.0) == pytest.approx(2.0)


def test_time_without_work_is_no_credit() -> None:
    pace = Pace(10)
    pace.spend(5, now=100.0)
    pace.spend(5, now=1_000.0)
    assert pace.pause_s(1_000.0) == pytest.approx(0.5)


def test_a_rate_of_0_is_no_limit() -> None:
    pace = Pace(0)
    pace.spend(1 << 40, now=100.0)
    assert pace.pause_s(100.0) == 0.0
