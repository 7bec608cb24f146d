"""Figures, their targets, and the table of them. Pure functions; nothing is measured here."""

import enum
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


class Verdict(enum.StrEnum):
    """Whether a figure reaches its target."""

    MET = "met"
    MISSED = "MISSED"
    SHOWN = "shown"  # there is no target


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one round, with the baseline measured just before it.

    Attributes:
        baseline: The figure of the bare machine, in the same unit; None: nothing to compare.
        limit: The bound of this round if it follows from the baseline.
        details: More numbers of the same measurement, for the JSON file.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    limit: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """The goal of a figure: a share of the baseline, a bound, or the round's own limit."""

    ratio_min: float | None = None
    ratio_max: float | None = None
    value_max: float | None = None
    limit: bool = False

    def text(self, row: "Row") -> str:
        """Return the target as text."""
        if self.ratio_min is not None:
            return f"≥ {self.ratio_min:.2f} of the baseline"
        if self.ratio_max is not None:
            return f"≤ {self.ratio_max:.2f} of the baseline"
        if self.value_max is not None:
            return f"≤ {shown(self.value_max)} {row.unit}"
        return f"≤ {shown(row.limit or 0.0)} {row.unit}"

    def is_met(self, row: "Row") -> bool:
        """Return whether the medians reach it."""
        if self.ratio_min is not None:
            return row.ratio is not None and row.ratio >= self.ratio_min
        if self.ratio_max is not None:
            return row.ratio is not None and row.ratio <= self.ratio_max
        bound = self.value_max if self.value_max is not None else row.limit
        return bound is not None and row.value <= bound


@dataclass(slots=True)
class Row:
    """The median of one figure over all rounds."""

    scenario: str
    name: str
    unit: str
    value: float
    least: float
    most: float
    rounds: int
    baseline: float | None
    ratio: float | None
    limit: float | None
    target: str = ""
    verdict: Verdict = Verdict.SHOWN
    details: list[Mapping[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def rows_of(scenario: str, figures: Iterable[Figure], targets: Mapping[str, Target]) -> list[Row]:
    """Return one row per figure name, in order of first appearance.

    The ratio is the median of the rounds' ratios. Figure and baseline of one round are measured
    within seconds of each other, so that other load on the machine affects both.
    """
    rounds: dict[str, list[Figure]] = defaultdict(list)
    for figure in figures:
        rounds[figure.name].append(figure)
    return [_row(scenario, name, own, targets.get(name)) for name, own in rounds.items()]


def _row(scenario: str, name: str, own: Sequence[Figure], target: Target | None) -> Row:
    values = [figure.value for figure in own]
    row = Row(
        scenario=scenario,
        name=name,
        unit=own[0].unit,
        value=statistics.median(values),
        least=min(values),
        most=max(values),
        rounds=len(own),
        baseline=_median(figure.baseline for figure in own),
        ratio=_median(figure.value / figure.baseline for figure in own if figure.baseline),
        limit=_median(figure.limit for figure in own),
        details=[figure.details for figure in own if figure.details],
    )
    if target is not None:
        row.target = target.text(row)
        row.verdict = Verdict.MET if target.is_met(row) else Verdict.MISSED
    return row


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def shown(value: float | None) -> str:
    """Return a number as text: three significant digits, thousands separated."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4f}"


COLUMNS = ("scenario", "figure", "least – most", "baseline", "ratio", "target", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """Return one row of the table; the columns are ``COLUMNS``."""
    return (
        row.name,
        f"{shown(row.value)} {row.unit}",
        f"{shown(row.least)} – {shown(row.most)}" if row.rounds > 1 else "–",
        shown(row.baseline),
        shown(row.ratio),
        row.target or "–",
        str(row.verdict),
    )


def markdown_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table as docs/performance.md has it."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
