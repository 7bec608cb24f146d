"""One row for each disk: how full it is, what vq has there, when it is full. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_vq.reports.forecast import DAY_S, Forecast, Point, forecast, nearby
from pyspark_vq.reports.holdings import Disk

#: Columns of ``disk_rows``, in order, with their types in Spark's notation.
DISKS: Final = (
    "group string, node string, directory string, file_system string, level string, "
    "bytes_total bigint, bytes_used bigint, bytes_free bigint, vq_bytes bigint, "
    "vq_bytes_per_day double, settles_at_bytes double, verdict string, "
    "growth_bytes_per_day double, growth_low double, growth_high double, full_in_days double, "
    "full_earliest_days double, full_latest_days double, horizon_days double, points bigint, "
    "broker_growth_bytes_per_day double, broker_full_in_days double, reason string"
)
#: Which disk: group, node, directory.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Held:
    """What vq has on one disk.

    Attributes:
        disk_bytes: Of block files and archives.
        bytes_per_day: What comes in; None: of some partitions that is not known.
        settles_at_bytes: What there will be once as much is deleted, and archived, as comes in;
            None: not known, or a topic that grows is kept for ever.
    """

    disk_bytes: int
    bytes_per_day: float | None
    settles_at_bytes: float | None


def points_of(rows: Iterable[Mapping[str, Any]]) -> dict[Key, list[Point]]:
    """Return how full each disk was at earlier snapshots, in rising order of time.

    A snapshot counts once, also if its files were copied: a forecast takes several moments.

    Args:
        rows: With group, node, directory, seconds and bytes_used.
    """
    found: dict[Key, dict[float, float]] = {}
    for row in rows:
        if row["bytes_used"] is not None:
            key = (row["group"], row["node"], row["directory"])
            found.setdefault(key, {})[row["seconds"]] = float(row["bytes_used"])
    return {key: sorted(points.items()) for key, points in found.items()}


def disk_rows(
    disks: Sequence[Disk],
    history: Mapping[Key, Sequence[Point]],
    held: Mapping[Key, Held],
    *,
    now_s: float,
) -> list[dict[str, Any]]:
    """Return the rows, those that fill up first in front, unknown ones before steady ones."""
    rows = [_row(each, history, held, now_s) for each in disks]
    order = {"full": 0, "fills": 1, "may fill": 2, "unknown": 3, "steady": 4}
    return sorted(
        rows,
        key=lambda row: (
            order[row["verdict"]],
            row["full_in_days"] if row["full_in_days"] is not None else float("inf"),
            row["group"],
            row["node"],
            row["directory"],
        ),
    )


def _row(
    disk: Disk, history: Mapping[Key, Sequence[Point]], held: Mapping[Key, Held], now_s: float
) -> dict[str, Any]:
    key = (disk.group, disk.node, disk.directory)
    used = None
    if disk.bytes_total is not None and disk.bytes_free is not None:
        used = disk.bytes_total - disk.bytes_free
    points = [] if used is None else [*history.get(key, ()), (now_s, float(used))]
    found = forecast(points, disk.bytes_total)
    trend, mine = found.trend, held.get(key)
    growth = disk.growth_bytes_per_hour
    return {
        "group": disk.group,
        "node": disk.node,
        "directory": disk.directory,
        "file_system": disk.file_system,
        "level": disk.level,
        "bytes_total": disk.bytes_total,
        "bytes_used": used,
        "bytes_free": disk.bytes_free,
        "vq_bytes": None if mine is None else mine.disk_bytes,
        "vq_bytes_per_day": None if mine is None else mine.bytes_per_day,
        "settles_at_bytes": None if mine is None else mine.settles_at_bytes,
        "verdict": found.verdict,
        "growth_bytes_per_day": None if trend is None else trend.slope * DAY_S,
        "growth_low": None if trend is None else trend.low * DAY_S,
        "growth_high": None if trend is None else trend.high * DAY_S,
        "full_in_days": _days(found.full_in_s),
        "full_earliest_days": _days(found.earliest_s),
        "full_latest_days": _days(found.latest_s),
        "horizon_days": _days(found.horizon_s),
        "points": len(nearby(points)),
        "broker_growth_bytes_per_day": None if growth is None else growth * 24.0,
        "broker_full_in_days": (
            None if disk.full_in_hours is None else round(disk.full_in_hours / 24, 3)
        ),
        "reason": _reason(disk, found),
    }


def _reason(disk: Disk, found: Forecast) -> str:
    return disk.error or found.why


def _days(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / DAY_S, 3)
