"""Cells of the capacity report's tables: numbers of days, shares, verdicts. Pure functions."""

from typing import Final

from pyspark_vq.reports.charts import Html
from pyspark_vq.reports.figures import UNKNOWN, count_text
from pyspark_vq.reports.page import tag

#: Classes of colour of verdicts.
KINDS: Final = {
    "full": "stopped",
    "fills": "stalled",
    "may fill": "warning",
    "steady": "ok",
    "unknown": "unknown",
    "hot": "warning",
    "idle": "unknown",
    "normal": "ok",
}


def days_text(days: float | None) -> str:
    """Return a number of days as people read it; None: beyond what a forecast says."""
    if days is None:
        return "later"
    if days == 0:
        return "now"
    if days < 2:
        return f"{days * 24:.0f} h"
    return f"{days:.0f} d" if days >= 10 else f"{days:.1f} d"


def verdict_tag(verdict: str) -> Html:
    """Return a verdict with its colour."""
    return tag(KINDS[verdict], verdict)


def part_of(part: float | None, whole: float | None) -> float | None:
    """Return the share that a part has; None: one of them is unknown, or there is no whole."""
    return None if part is None or not whole else part / whole


def share_text(part: float | None, whole: float | None) -> str:
    """Return such a share for people."""
    found = part_of(part, whole)
    return UNKNOWN if found is None else f"{found:.1%}"


def ratio_text(part: float | None, whole: float | None) -> str:
    """Return what archives take of the bytes in them; there may be none yet."""
    return share_text(part, whole) if whole else "none yet"


def rate_text(value: float | None) -> str:
    """Return a number per second."""
    return UNKNOWN if value is None else count_text(round(value, 2))


def rounded(value: float | None) -> float | None:
    """Return a whole number; None stays None."""
    return None if value is None else round(value)
