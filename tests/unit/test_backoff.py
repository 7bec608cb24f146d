"""Back-off: pauses double up to a bound, and jitter spreads them around it."""

import random

import pytest

from vq.backoff import Backoff


class Drawn:
    """A source of one number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


def test_a_pause_doubles_up_to_its_bound() -> None:
    """The table in the module's text, and any number of failures after it."""
    backoff = Backoff(first_s=0.1, most_s=1.0)
    pauses = [backoff.pause_s(failures) for failures in (1, 2, 3, 4, 5, 6, 10**9)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert backoff.longest_s() == 1.0


def test_a_first_pause_above_the_bound_is_the_bound() -> None:
    """Both may come from a user's settings."""
    assert Backoff(first_s=60.0, most_s=30.0).pause_s(1) == 30.0


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.75, 2.5)])
def test_jitter_spreads_a_pause_around_it(drawn: float, expected: float) -> None:
    """Half of 2 s to either side; the longest pause likewise."""
    backoff = Backoff(first_s=2.0, most_s=2.0, jitter=0.5)
    assert backoff.pause_s(1, Drawn(drawn)) == expected
    assert backoff.longest_s(Drawn(drawn)) == expected


def test_the_same_seed_gives_the_same_pauses() -> None:
    """One number is drawn for each pause, so that a simulation replays."""
    backoff = Backoff(first_s=0.1, most_s=5.0, jitter=0.2)
    one, other = random.Random(7), random.Random(7)
    pauses = [backoff.pause_s(failures, one) for failures in range(1, 5)]
    assert pauses == [backoff.pause_s(failures, other) for failures in range(1, 5)]
    assert one.random() == other.random()


def test_misuse_is_a_bug() -> None:
    """No failure, and jitter without a source."""
    with pytest.raises(AssertionError, match="0 failures"):
        Backoff(first_s=0.1, most_s=1.0).pause_s(0)
    with pytest.raises(AssertionError, match="random numbers"):
        Backoff(first_s=0.1, most_s=1.0, jitter=0.5).pause_s(1)
