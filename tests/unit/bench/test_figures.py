"""Medians, ratios and verdicts: a missed target must be called missed."""

import pytest

from bench.figures import (
    COLUMNS,
    Figure,
    Row,
    Target,
    Verdict,
    cells,
    markdown_table,
    rows_of,
    shown,
)


def row_of(*figures: Figure, target: Target | None = None) -> Row:
    targets = {} if target is None else {figures[0].name: target}
    (row,) = rows_of("scenario", figures, targets)
    return row


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    row = row_of(
        Figure("f", 100, "msg/s", baseline=1_000),
        Figure("f", 300, "msg/s", baseline=600),
        Figure("f", 200, "msg/s", baseline=2_000),
    )
    assert (row.value, row.least, row.most, row.rounds) == (200, 100, 300, 3)
    assert row.baseline == 1_000
    assert row.ratio == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("value", "target", "verdict"),
    [
        (25, Target(ratio_min=0.25), Verdict.MET),
        (24.9, Target(ratio_min=0.25), Verdict.MISSED),
        (300, Target(ratio_max=3.0), Verdict.MET),
        (301, Target(ratio_max=3.0), Verdict.MISSED),
        (2.0, Target(value_max=2.0), Verdict.MET),
        (2.1, Target(value_max=2.0), Verdict.MISSED),
        (0, Target(value_max=0.0), Verdict.MET),
        (7, Target(limit=True), Verdict.MET),
        (7.1, Target(limit=True), Verdict.MISSED),
        (1, None, Verdict.SHOWN),
    ],
)
def test_a_verdict_follows_from_the_medians(
    value: float, target: Target | None, verdict: Verdict
) -> None:
    row = row_of(Figure("f", value, "s", baseline=100, limit=7), target=target)
    assert row.verdict is verdict


@pytest.mark.parametrize(
    "target", [Target(ratio_min=0.1), Target(ratio_max=9.0), Target(limit=True)]
)
def test_a_target_without_a_room_or_limit_is_missed_not_met(target: Target) -> None:
    assert row_of(Figure("f", 1, "s"), target=target).verdict is Verdict.MISSED


def test_figures_keep_their_order_and_stay_apart() -> None:
    rows = rows_of("s", [Figure("b", 1, "s"), Figure("a", 2, "s"), Figure("b", 3, "s")], {})
    assert [(row.name, row.value) for row in rows] == [("b", 2), ("a", 2)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1_234_567.8, "1 234 568"),
        (123.4, "123"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.0113, "0.0113"),
        (0, "0.00"),
        (None, "–"),
    ],
)
def test_numbers_for_people(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_the_markdown_table_has_a_cell_per_column() -> None:
    row = row_of(Figure("f", 1, "s", baseline=2), target=Target(ratio_min=0.5))
    assert len(cells(row)) == len(COLUMNS)
    assert markdown_table(COLUMNS, [cells(row)]).splitlines()[-1] == (
        "| f | 1.00 s | – | 2.00 | 0.50 | ≥ 0.50 of the baseline | met |"
    )
