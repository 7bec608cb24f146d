"""The judge of ``vq bench``: it must see every kind of damage, or its figures mean nothing."""

import pytest

from vq.cli.bench.workload import (
    Audit,
    Outcomes,
    WorkFailed,
    audit_partitions,
    content,
    contents,
    due_ns,
    number_of,
    percentiles,
)
from vq.errors import BufferFull
from vq.model import SendResult

SIZE = 32


def audit_of(*given: bytes) -> Audit:
    audit = Audit(SIZE)
    audit.begin_partition()
    for each in given:
        audit.take(each)
    return audit


def test_contents_are_numbered_and_of_the_size_asked_for() -> None:
    made = contents(3, 10, 4, SIZE)
    assert made == [content(3, number, SIZE) for number in range(10, 14)]
    assert {len(each) for each in made} == {SIZE}
    assert len(set(made)) == 4


def test_everything_once_and_in_order_passes() -> None:
    audit_of(*contents(0, 0, 5, SIZE), *contents(1, 0, 2, SIZE)).check({0: 5, 1: 2})


def test_partitions_may_interleave_the_numbers() -> None:
    made = contents(0, 0, 6, SIZE)
    audit = audit_of(*made[::2])
    audit.begin_partition()
    for each in made[1::2]:
        audit.take(each)
    audit.check({0: 6})


@pytest.mark.parametrize(
    ("given", "sent", "says"),
    [
        (contents(0, 0, 4, SIZE), {0: 5}, "1 are missing"),
        (contents(0, 0, 4, SIZE), {0: 4, 1: 2}, "2 are missing"),
        ([content(0, 0, SIZE), content(0, 2, SIZE)], {0: 3}, "1 are missing"),
        ([content(0, 0, SIZE)] * 2, {0: 1}, "1 are doubled"),
        ([content(0, 1, SIZE), content(0, 0, SIZE)], {0: 2}, "1 are out of order"),
        ([content(0, 0, SIZE)[:-1] + b"!"], {0: 1}, "1 altered"),
        ([content(0, 0, SIZE)[:-1]], {0: 1}, "1 altered"),
        (contents(0, 0, 3, SIZE), {0: 2}, "1 never acknowledged"),
        (contents(7, 0, 1, SIZE), {}, "1 never acknowledged"),
    ],
)
def test_every_damage_is_told(given: list[bytes], sent: dict[int, int], says: str) -> None:
    with pytest.raises(WorkFailed, match=says):
        audit_of(*given).check(sent)


def test_partitions_that_arrive_in_turns_are_judged_one_by_one() -> None:
    made = contents(0, 0, 6, SIZE)
    arrived = [(number % 2, made[number]) for number in (1, 0, 2, 3, 5, 4)]
    audit_partitions(arrived, SIZE).check({0: 6})
    arrived[0], arrived[3] = arrived[3], arrived[0]  # 3 before 1, both of partition 1
    with pytest.raises(WorkFailed, match="1 are out of order"):
        audit_partitions(arrived, SIZE).check({0: 6})


def test_contents_of_which_only_the_order_is_unknown() -> None:
    audit = Audit(SIZE)
    for each in reversed(contents(0, 0, 3, SIZE)):
        audit.take_unordered(each)
    audit.check({0: 3})


def test_a_number_says_when_it_was_due() -> None:
    assert number_of(content(3, 1_000, SIZE)) == 1_000
    assert due_ns(500, 5_000, 1_000) == 500 + 200_000_000


def test_an_outcome_that_is_no_acknowledgement_fails_the_measurement() -> None:
    outcomes = Outcomes()
    outcomes(SendResult(0, 0, 1), None)
    outcomes(None, BufferFull("no room"))
    with pytest.raises(WorkFailed, match="no room"):
        outcomes.check(2)


def test_percentiles_of_a_hundred_values() -> None:
    values = [number / 1000 for number in range(101)]
    found = percentiles(values, unit_s=1e-3)
    assert found == pytest.approx({"p50": 50, "p90": 90, "p99": 99, "p99.9": 100, "max": 100})


def test_no_values_are_no_measurement() -> None:
    with pytest.raises(WorkFailed):
        percentiles([], unit_s=1e-3)
