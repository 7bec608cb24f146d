"""Which blocks a run takes, and which it ends first."""

import pytest

from vq.clock import HOUR_MS
from vq.store.log.archive_age import EARLY_MS_MAX, due, must_roll
from vq.store.log.retention import Kept, OpenBlock

DAY_MS = 24 * HOUR_MS
NOW_MS = 1_800_000_000_000


def blocks(*hours: float | None) -> list[Kept]:
    """Blocks of 10 bytes, with the age of the last batch of each, in hours."""
    return [
        Kept(at * 10, at * 10 + 10, None if each is None else NOW_MS - int(each * HOUR_MS))
        for at, each in enumerate(hours)
    ]


@pytest.mark.parametrize(
    ("ages", "count"),
    [
        ((), 0),
        ((25,), 1),
        ((22,), 1),  # what the last run ended
        ((21.9,), 0),
        ((50, 26, 21, 30), 2),
        ((None, 30), 2),
        ((30, None, 10), 1),
        ((30, None), 1),
    ],
)
def test_blocks_are_due_in_order_by_their_last_batch(
    ages: tuple[float | None, ...], count: int
) -> None:
    assert due(blocks(*ages), after_hours=24, as_of_ms=NOW_MS) == count


@pytest.mark.parametrize(("follows", "count"), [(30, 3), (20, 1), (None, 1)])
def test_a_block_whose_time_lay_ahead_is_as_old_as_what_follows(
    follows: float | None, count: int
) -> None:
    """Its own time is when that was seen."""
    first, ahead, last = blocks(30, 1, follows)
    found = [first, ahead._replace(is_ahead=True), last]
    assert due(found, after_hours=24, as_of_ms=NOW_MS) == count


@pytest.mark.parametrize(("hours", "early"), [(1, 1 / 12), (12, 1), (24, 2), (1_000, 2)])
def test_a_block_is_due_a_twelfth_of_its_age_early_and_at_most_two_hours(
    hours: int, early: float
) -> None:
    for age, count in ((hours - early, 1), (hours - early - 0.01, 0)):
        assert due(blocks(age), after_hours=hours, as_of_ms=NOW_MS) == count


@pytest.mark.parametrize(
    ("age", "size", "ends"),
    [(1, 1, True), (0.99, 1, False), (48, 1, True), (48, 0, False), (-3, 1, False)],
)
def test_a_run_ends_a_block_with_messages_of_an_hour_before_it(
    age: float, size: int, ends: bool
) -> None:
    block = OpenBlock(5, 5 + size, NOW_MS - int(age * HOUR_MS))
    assert must_roll(block, as_of_ms=NOW_MS) is ends


def test_a_block_whose_time_is_not_known_is_not_ended() -> None:
    assert not must_roll(OpenBlock(0, 5, None), as_of_ms=NOW_MS)


@pytest.mark.parametrize("day_hours", [23, 24, 25])
@pytest.mark.parametrize("late_s", [0, 3, 3_000])
def test_what_one_run_ends_the_next_one_takes(day_hours: int, late_s: int) -> None:
    """Also if it ends it a while after its time, and the day has 23 hours."""
    last_ms = NOW_MS + late_s * 1_000
    assert must_roll(OpenBlock(0, 10, NOW_MS - DAY_MS), as_of_ms=NOW_MS)
    next_ms = NOW_MS + day_hours * HOUR_MS
    assert due([Kept(0, 10, last_ms)], after_hours=24, as_of_ms=next_ms) == 1


def test_the_early_share_is_more_than_a_short_day_takes() -> None:
    assert EARLY_MS_MAX > HOUR_MS
