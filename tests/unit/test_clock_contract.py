"""What every clock promises: the system's, and the one that tests and simulations move by hand."""

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from vq.clock import Clock, ManualClock, SystemClock

#: 2025-01-01 and 2200-01-01 UTC: milliseconds are no seconds and no microseconds.
PLAUSIBLE_MS = range(1_735_689_600_000, 7_258_118_400_000)
READS = 2_000


class Subject(NamedTuple):
    """A clock, and how to let a time pass on it."""

    clock: Clock
    let_pass: Callable[[float], None]


def system_clock() -> Subject:
    clock = SystemClock()

    def let_pass(seconds: float) -> None:
        end = clock.monotonic() + seconds
        while clock.monotonic() < end:
            pass

    return Subject(clock, let_pass)


def manual_clock() -> Subject:
    clock = ManualClock()
    return Subject(clock, clock.advance)


@pytest.fixture(params=[system_clock, manual_clock], ids=lambda make: make.__name__)
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param()
    return made


def test_the_wall_clock_counts_whole_milliseconds_since_1970(subject: Subject) -> None:
    wall_ms = subject.clock.wall_ms()
    assert type(wall_ms) is int
    assert wall_ms in PLAUSIBLE_MS


def test_the_monotonic_clock_never_goes_back(subject: Subject) -> None:
    """Also not where a time passes that is too short to be seen."""
    before = subject.clock.monotonic()
    assert type(before) is float
    for _ in range(READS):
        subject.let_pass(0.0)
        now = subject.clock.monotonic()
        assert now >= before
        before = now


def test_both_clocks_move_on_by_what_has_passed(subject: Subject) -> None:
    wall_ms, begin = subject.clock.wall_ms(), subject.clock.monotonic()
    subject.let_pass(0.005)
    assert subject.clock.monotonic() - begin >= 0.005 * (1 - 1e-9)
    assert subject.clock.wall_ms() - wall_ms >= 4, "whole milliseconds: one may be cut off"


def test_deadlines_may_be_compared_across_threads(subject: Subject) -> None:
    """A reading of one thread means the same in another."""
    found: list[float] = []
    before = subject.clock.monotonic()
    thread = threading.Thread(target=lambda: found.append(subject.clock.monotonic()))
    thread.start()
    thread.join()
    assert before <= found[0] <= subject.clock.monotonic()


@pytest.mark.parametrize("delta_ms", [3_600_000, -3_600_000])
def test_a_step_of_the_wall_clock_leaves_the_monotonic_one_alone(delta_ms: int) -> None:
    """Only the manual clock can be stepped here; the system's is not ours to set."""
    clock = ManualClock()
    wall_ms, begin = clock.wall_ms(), clock.monotonic()
    clock.step_wall_ms(delta_ms)
    assert (clock.wall_ms(), clock.monotonic()) == (wall_ms + delta_ms, begin)
    clock.advance(1.0)
    assert (clock.wall_ms(), clock.monotonic()) == (wall_ms + delta_ms + 1_000, begin + 1.0)


def test_a_clock_moved_by_hand_moves_forward_only() -> None:
    """By fractions of a millisecond, too, which add up."""
    clock = ManualClock(wall_ms=PLAUSIBLE_MS.start)
    with pytest.raises(ValueError, match="only moves forward"):
        clock.advance(-0.001)
    for _ in range(4):
        clock.advance(0.00025)
    assert clock.wall_ms() == PLAUSIBLE_MS.start + 1
