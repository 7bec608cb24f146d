"""Bounds of waits follow what ZooKeeper took lately."""

import pytest

from vq.clock import SystemClock
from vq.coordination.tree.round_trip import WINDOW_S, RoundTrips, bound_s
from vq.coordination.tree.session import SessionBase


def test_one_slow_answer_counts_for_a_while() -> None:
    trips = RoundTrips()
    assert trips.longest_s == 0.0
    trips.note(100.0, 0.4)
    trips.note(101.0, 0.01)
    assert trips.longest_s == 0.4
    trips.note(100.0 + WINDOW_S, 0.02)
    assert trips.longest_s == 0.4
    trips.note(100.0 + 2 * WINDOW_S, 0.01)
    assert trips.longest_s == 0.02


def test_without_answers_the_last_ones_count() -> None:
    """ZooKeeper was away: nothing says that it became faster."""
    trips = RoundTrips()
    trips.note(100.0, 0.4)
    trips.note(100.0 + 100 * WINDOW_S, 0.01)
    assert trips.longest_s == 0.4


@pytest.mark.parametrize(
    ("round_trip_s", "bound"), [(0.0, 2.0), (0.1, 2.8), (0.4, 5.2), (1.0, 6.0), (60.0, 6.0)]
)
def test_a_bound_grows_with_the_round_trip_up_to_the_most(
    round_trip_s: float, bound: float
) -> None:
    found = bound_s(2.0, calls=8, round_trip_s=round_trip_s, most_s=6.0)
    assert found == pytest.approx(bound)


def test_a_setting_above_the_most_counts() -> None:
    assert bound_s(9.0, calls=8, round_trip_s=1.0, most_s=6.0) == 9.0


def test_a_session_measures_what_its_answers_took() -> None:
    class Stopped(SystemClock):
        def monotonic(self) -> float:
            return 100.0

    session = SessionBase(clock=Stopped(), session_timeout_s=6)
    session.measured(99.6)
    assert session.round_trip_s == pytest.approx(0.4)
