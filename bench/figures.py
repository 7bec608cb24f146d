"""Figures, what they are measured against, and the table they end in. Pure: measures nothing."""

import enum
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


class Verdict(enum.StrEnum):
    """How a figure stands to its target."""

    MET = "met"
    MISSED = "MISSED"
    SHOWN = "shown"  # there is no target


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one round, with the room measured just before it.

    Attributes:
        room: What the bare machine gave, in the same unit; None where there is nothing to compare.
        limit: The bound of this round where it follows from the room (``AtMostRoom``).
        details: More numbers of the same measurement, for the JSON file.
    """

    name: str
    value: float
    unit: str
    room: float | None = None
    limit: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach: a share of the room, a bound, or the round's own limit."""

    ratio_min: float | None = None
    value_max: float | None = None
    limit: bool = False

    def text(self, row: "Row") -> str:
        """Return the target for people."""
        if self.ratio_min is not None:
            return f"≥ {self.ratio_min:.2f} of the room"
        if self.value_max is not None:
            return f"≤ {shown(self.value_max)} {row.unit}"
        return f"≤ {shown(row.limit or 0.0)} {row.unit}"

    def is_met(self, row: "Row") -> bool:
        """Whether the medians reach it."""
        if self.ratio_min is not None:
            return row.ratio is not None and row.ratio >= self.ratio_min
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
    room: float | None
    ratio: float | None
    limit: float | None
    target: str = ""
    verdict: Verdict = Verdict.SHOWN
    details: list[Mapping[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return everything there is."""
        return asdict(self)


def rows_of(scenario: str, figures: Iterable[Figure], targets: Mapping[str, Target]) -> list[Row]:
    """Return one row per figure name, in order of first appearance.

    The ratio is the median of the rounds' own ratios: figure and room of one round were measured
    within seconds of each other, so that what the machine does meanwhile hits both.
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
        room=_median(figure.room for figure in own),
        ratio=_median(figure.value / figure.room for figure in own if figure.room),
        limit=_median(figure.limit for figure in own),
        details=[figure.details for figure in own if figure.details],
    )
    if target is not None:
        row.target = target.text(row)
        row.verdict = Verdict.MET if target.is_met(row) else Verdict.MISSED
    return row


def _median(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def shown(value: float | None) -> str:
    """Return a number for people: three digits that count, thousands set apart."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4f}"


COLUMNS = ("scenario", "figure", "least – most", "room", "ratio", "target", "verdict")


def cells(row: Row) -> tuple[str, ...]:
    """Return one row of the table; the columns are ``COLUMNS``."""
    return (
        row.name,
        f"{shown(row.value)} {row.unit}",
        f"{shown(row.least)} – {shown(row.most)}" if row.rounds > 1 else "–",
        shown(row.room),
        shown(row.ratio),
        row.target or "–",
        str(row.verdict),
    )


def markdown_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table as docs/performance.md has it."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
