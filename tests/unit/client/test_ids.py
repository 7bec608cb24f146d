"""Message ids: time-ordered, and never two the same, whatever the clock and the lease do."""

import random

import pytest

from vq import limits
from vq.client.ids import EPOCH_MS, IdGenerator, IdsUsedUp
from vq.clock import ManualClock
from vq.errors import InvalidArgument
from vq.model import time_ms_of

PER_MS = 1 << limits.ID_SEQUENCE_BITS


def generator(slot: int = 5, *, since_epoch_ms: int = 0) -> tuple[IdGenerator, ManualClock]:
    clock = ManualClock(wall_ms=EPOCH_MS + since_epoch_ms)
    return IdGenerator(slot, clock), clock


def parts(message_id: int) -> tuple[int, int, int]:
    """Milliseconds since the epoch, slot, sequence."""
    sequence = message_id % PER_MS
    slot = (message_id >> limits.ID_SEQUENCE_BITS) % limits.SLOTS_MAX
    return time_ms_of(message_id) - EPOCH_MS, slot, sequence


def test_the_first_id_is_the_documented_one() -> None:
    ids, _ = generator()
    assert ids.take(1) == [5120]
    assert ids.take(2) == [5121, 5122]


def test_an_id_tells_its_time_its_slot_and_its_number() -> None:
    ids, clock = generator(8_191, since_epoch_ms=123_456_789)
    assert [parts(each) for each in ids.take(2)] == [
        (123_456_789, 8_191, 0),
        (123_456_789, 8_191, 1),
    ]
    clock.advance(0.002)
    assert parts(ids.take(1)[0]) == (123_456_791, 8_191, 0)


def test_ids_fit_into_63_bits_up_to_the_last_millisecond() -> None:
    ids, _ = generator(limits.SLOTS_MAX - 1, since_epoch_ms=(1 << limits.ID_TIME_BITS) - 1)
    last = ids.take(PER_MS)
    assert last[-1] == 2**63 - 1


def test_a_burst_borrows_from_the_following_milliseconds() -> None:
    ids, clock = generator()
    burst = ids.take(3 * PER_MS + 1)
    assert [parts(burst[number * PER_MS]) for number in range(4)] == [
        (number, 5, 0) for number in range(4)
    ]
    clock.advance(0.002)
    assert parts(ids.take(1)[0]) == (3, 5, 1), "what was borrowed is not used again"


def test_a_clock_set_back_is_outwaited() -> None:
    ids, clock = generator(since_epoch_ms=10_000)
    before = ids.take(10)
    clock.step_wall_ms(-5_000)
    after = ids.take(2 * PER_MS)
    assert after[0] == before[-1] + 1
    assert after == sorted(set(after))
    clock.step_wall_ms(20_000)
    assert parts(ids.take(1)[0]) == (25_000, 5, 0)


def test_ids_go_on_behind_the_last_one_while_the_clock_is_beyond_the_mark() -> None:
    clock = ManualClock(wall_ms=EPOCH_MS + 1_000)
    ids = IdGenerator(5, clock, until_ms=EPOCH_MS + 2_000)
    assert parts(ids.take(1)[0]) == (1_000, 5, 0)
    clock.step_wall_ms(1_001)
    assert parts(ids.take(1)[0]) == (1_000, 5, 1)
    assert ids.wants_mark
    ids.limit_to(EPOCH_MS + 3_000)
    assert not ids.wants_mark
    assert parts(ids.take(1)[0]) == (2_001, 5, 0)


def test_no_id_is_later_than_the_mark() -> None:
    clock = ManualClock(wall_ms=EPOCH_MS + 1_000)
    ids = IdGenerator(5, clock, until_ms=EPOCH_MS + 1_001)
    last = ids.take(2 * PER_MS)[-1]
    assert parts(last) == (1_001, 5, PER_MS - 1)
    with pytest.raises(IdsUsedUp, match=f"{EPOCH_MS + 1_001}"):
        ids.take(1)
    assert ids.wants_mark
    ids.limit_to(EPOCH_MS + 2_000)
    assert parts(ids.take(1)[0]) == (1_002, 5, 0)


def test_another_slot_makes_other_ids() -> None:
    ids, _ = generator(5)
    first = ids.take(3)
    ids.use_slot(6)
    second = ids.take(3)
    ids.use_slot(5)
    third = ids.take(3)
    assert [parts(each)[1] for each in first + second + third] == [5] * 3 + [6] * 3 + [5] * 3
    assert len(set(first + second + third)) == 9


def test_ids_of_a_slot_begin_behind_those_of_its_former_holder() -> None:
    """Whatever this clock says: it may have been set back since."""
    ids, clock = generator(since_epoch_ms=1_000)
    ids.take(3 * PER_MS)
    assert ids.used_ms == EPOCH_MS + 1_002
    clock.step_wall_ms(-600)
    heir = IdGenerator(5, clock, after_ms=ids.used_ms)
    assert parts(heir.take(1)[0]) == (1_003, 5, 0)
    other = IdGenerator(7, clock)
    other.use_slot(5, after_ms=heir.used_ms)
    assert parts(other.take(1)[0]) == (1_004, 5, 0)
    clock.step_wall_ms(9_600)
    other.use_slot(5, after_ms=heir.used_ms)
    assert parts(other.take(1)[0]) == (10_000, 5, 0), "the clock is ahead of them all"


@pytest.mark.parametrize("slot", [-1, limits.SLOTS_MAX])
def test_a_slot_that_does_not_fit_is_refused(slot: int) -> None:
    with pytest.raises(InvalidArgument, match=str(slot)):
        generator(slot)


@pytest.mark.parametrize("since_epoch_ms", [-1, 1 << limits.ID_TIME_BITS])
def test_a_clock_outside_the_range_is_refused_and_costs_nothing(since_epoch_ms: int) -> None:
    ids, clock = generator()
    clock.step_wall_ms(since_epoch_ms)
    with pytest.raises(InvalidArgument, match="2025 to 2059"):
        ids.take(1)
    clock.step_wall_ms(-since_epoch_ms)
    assert ids.take(1) == [5120]


@pytest.mark.parametrize("seed", range(20))
def test_never_two_the_same_and_always_rising_within_a_slot(seed: int) -> None:
    """Clocks that jump both ways, bursts, and leases that come and go."""
    rng = random.Random(seed)
    ids, clock = generator(1, since_epoch_ms=1_000_000)
    slot, seen, last = 1, set(), -1
    for _ in range(300):
        act = rng.random()
        if act < 0.2:
            clock.step_wall_ms(rng.randint(-50_000, 50_000))
        elif act < 0.5:
            clock.advance(rng.choice([0.0, 0.001, 0.5]))
        elif act < 0.6:
            slot, last = rng.randrange(4), -1
            ids.use_slot(slot)
        else:
            taken = ids.take(rng.choice([1, 2, 7, 1_023, 1_024, 1_025, 3_000]))
            assert taken == sorted(taken)
            assert taken[0] > last
            assert not seen & set(taken)
            assert {parts(each)[1] for each in taken} == {slot}
            seen.update(taken)
            last = taken[-1]
