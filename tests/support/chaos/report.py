"""The summary of many runs: JSON for machines, a table for people."""

import json
import os
import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from support.chaos.rows import ROWS
from support.chaos.run import Outcome

from vq.version import __version__

_COLUMNS: Final = (
    "row",
    "runs",
    "faults",
    "effects",
    "fail-overs",
    "acknowledged",
    "unknown",
    "refused",
    "anomalies",
    "void",
    "gap p50",
    "p95",
    "max s",
)


def summary(outcomes: Sequence[Outcome], seed: int) -> dict[str, Any]:
    """Return everything that is worth keeping of some runs."""
    names = [name for name in ROWS if any(each.row == name for each in outcomes)]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "machine": machine(),
        "rows": {name: _row([each for each in outcomes if each.row == name]) for name in names},
    }


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "vq": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
    }


def _row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    strikes = [strike for each in outcomes for strike in each.strikes]
    counts = sum((each.verdict.counts for each in outcomes), Counter[str]())
    anomalies = Counter(a.kind for each in outcomes for a in each.verdict.anomalies)
    void = anomalies.pop("void", 0)
    return {
        "runs": len(outcomes),
        "seconds": round(sum(each.seconds for each in outcomes)),
        "faults": len(strikes),
        "effects": sum(strike.effect for strike in strikes),
        "by_fault": dict(Counter(strike.fault for strike in strikes)),
        "fail-overs": sum(strike.failovers for strike in strikes),
        "acknowledged": counts["sent"],
        "delayed": counts["waits"],
        "unknown": counts["unknown"],
        "refused": counts["refused"],
        "received": counts["received"],
        "stored": counts["stored"],
        "anomalies": dict(anomalies),
        "void": void,
        "gap_s": spread([strike.gap_s for strike in strikes]),
        "whole_s": spread([strike.whole_s for strike in strikes]),
        "failed": [
            {"seed": each.seed, "why": (each.failure or str(each.verdict)).splitlines()[-8:]}
            for each in outcomes
            if not each.good
        ],
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and largest of some values."""
    if not values:
        return {}
    found = sorted(values)
    return {
        "p50": round(statistics.median(found), 2),
        "p95": round(found[min(len(found) - 1, int(len(found) * 0.95))], 2),
        "max": round(found[-1], 2),
    }


def table(found: dict[str, Any]) -> str:
    """Return the rows of a summary as lines."""
    lines = [list(_COLUMNS)]
    for name, row in found["rows"].items():
        gap = row["gap_s"]
        failed = sum(bool(each["why"]) for each in row["failed"])
        anomalies = sum(row["anomalies"].values())
        shown = str(anomalies) if not failed else f"{anomalies} ({failed} runs)"
        keys = ("runs", "faults", "effects", "fail-overs", "acknowledged", "unknown", "refused")
        cells = [name, *(str(row[key]) for key in keys), shown, str(row["void"])]
        lines.append([*cells, *(str(gap.get(key, "")) for key in ("p50", "p95", "max"))])
    widths = [max(len(line[at]) for line in lines) for at in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def write(found: dict[str, Any], directory: Path) -> None:
    """Write ``summary.json`` and ``summary.txt``."""
    (directory / "summary.json").write_text(json.dumps(found, indent=2) + "\n")
    (directory / "summary.txt").write_text(table(found) + "\n")
