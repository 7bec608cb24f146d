"""Whether one state of vq is slower than another, by turns of both."""

import random

from bench.guard import COLUMNS, Comparison, Turn, ratio_of


def test_a_loss_of_three_percent_is_seen_behind_what_both_sides_share() -> None:
    """The machine makes turns up to three times as long, for both; each has 1 % of its own."""
    rng = random.Random(1)
    pairs = []
    for _ in range(12):
        shared = rng.uniform(1.0, 3.0)
        pairs.append((shared * rng.gauss(1.0, 0.01), 1.03 * shared * rng.gauss(1.0, 0.01)))
    found = ratio_of(pairs, rng)
    assert 1.0 < found.least <= found.value <= found.most < 1.06


def test_a_table_has_a_row_for_each_way() -> None:
    found = Comparison("HEAD", {"one by one": [Turn(1e-3, 2e-3, 1e-4, 1e-4)] * 3})
    (row,) = found.lines()
    assert row == (
        "one by one", "1000.00", "2000.00", "2.000", "2.000 – 2.000", "1.000", "1.000 – 1.000"
    )  # fmt: skip
    assert len(row) == len(COLUMNS)
