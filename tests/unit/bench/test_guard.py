"""Whether one state of vq is slower than another, by turns of both."""

import random

from bench.guard import COLUMNS, ROUNDS, Comparison, Turn, ratio_of


def test_a_loss_of_three_percent_is_seen_behind_what_both_sides_share() -> None:
    """The machine makes turns up to three times as long, for both; each has 6 % of its own."""
    rng = random.Random(1)
    pairs = []
    for _ in range(ROUNDS):
        shared = rng.uniform(1.0, 3.0)
        pairs.append((shared * rng.gauss(1.0, 0.06), 1.03 * shared * rng.gauss(1.0, 0.06)))
    found = ratio_of(pairs)
    assert 1.0 < found.least <= found.value <= found.most < 1.06


def test_turns_that_something_else_spoils_are_no_difference() -> None:
    """Two of ten turns of one side take up to five times as long."""
    rng = random.Random(2)
    pairs = []
    for number in range(ROUNDS):
        spoilt = rng.uniform(1.0, 5.0) if number % 5 == 0 else 1.0
        pairs.append((rng.gauss(1.0, 0.02), spoilt * rng.gauss(1.0, 0.02)))
    found = ratio_of(pairs)
    assert 0.98 < found.value < 1.02


def test_one_pair_is_its_own_interval() -> None:
    assert ratio_of([(2.0, 3.0)]) == (1.5, 1.5, 1.5)


def test_a_table_has_a_row_for_each_way() -> None:
    found = Comparison("HEAD", {"one by one": [Turn(1e-3, 2e-3, 1e-4, 1e-4)] * 3})
    (row,) = found.lines()
    assert row == (
        "one by one", "1000.00", "2000.00", "2.000", "2.000 – 2.000", "1.000", "1.000 – 1.000"
    )  # fmt: skip
    assert len(row) == len(COLUMNS)
