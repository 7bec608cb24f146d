"""What was measured, over time: means and peaks of intervals, the older the wider.

A series is a name such as ``bytes_in b1``. Functions on a connection of the database.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import sqlalchemy
from sqlalchemy import Connection

from vq.console.config import HISTORY_SERIES
from vq.console.database.schema import samples

#: Width of the intervals, and how long they are kept, in seconds.
STEPS: Final[Mapping[int, int]] = {
    60: 24 * 3600,
    900: 30 * 24 * 3600,
    86_400: 400 * 24 * 3600,
}
#: Points of a chart.
_POINTS_MAX: Final = 1_500
_POINTS_MIN: Final = 15
#: A series that is kept stays up to this part of the bound behind it.
_STAYS: Final = 4


@dataclass(slots=True)
class MinuteMeter:
    """Collects values of one cluster until their minute is over. Loop-bound.

    Beyond the bound, the first series in the order of the values are kept. One that was kept stays
    until it is well behind the bound: otherwise two that are alike take turns, each with gaps.

    Attributes:
        series_max: How many series are kept.
        left_out: How many series were beyond the bound lately.
    """

    series_max: int = HISTORY_SERIES
    left_out: int = 0
    _minute: int = 0
    _kept: set[str] = field(default_factory=set)
    _values: dict[str, list[float]] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """How many series are kept."""
        return len(self._kept)

    def add(self, values: Mapping[str, float], now_s: float) -> tuple[int, dict[str, list[float]]]:
        """Take values, the most important series first.

        Returns:
            A minute and its values if one is over, else nothing in it.
        """
        minute = int(now_s) // 60 * 60
        done: tuple[int, dict[str, list[float]]] = (self._minute, {})
        if minute != self._minute:
            done = (self._minute, self._values)
            self._minute, self._values = minute, {}
            near = list(values)[: self.series_max + self.series_max // _STAYS]
            self._kept = set([each for each in near if each in self._kept][: self.series_max])
        for series in values:
            if len(self._kept) >= self.series_max:
                break
            self._kept.add(series)
        for series in self._kept & values.keys():
            self._values.setdefault(series, []).append(values[series])
        self.left_out = len(values.keys() - self._kept)
        return done


def store_minute(
    connection: Connection, cluster: str, minute_s: int, values: Mapping[str, list[float]]
) -> None:
    """Store a minute; widen the intervals that have ended, and delete what is too old.

    An interval ends with the next minute that is stored, however much later that is.
    """
    before = connection.execute(
        sqlalchemy.select(sqlalchemy.func.max(samples.c.time_s)).where(
            samples.c.cluster == cluster, samples.c.step_s == 60, samples.c.time_s < minute_s
        )
    ).scalar()
    rows: dict[str, Mapping[str, str | float]] = {}
    for series, found in values.items():
        name = series[:200]  # long names that begin alike are one series
        mean = sum(found) / len(found)
        rows[name] = {"series": name, "mean": mean, "most": max(found), "count": len(found)}
    _replace(connection, cluster, 60, minute_s, list(rows.values()))
    for step, wider in pairwise(STEPS):
        if before is not None and minute_s // wider != before // wider:
            _widen(connection, cluster, step, wider, before // wider * wider)
    if minute_s // 3600 != (minute_s - 60) // 3600:
        forget_old(connection, time.time())


def forget_old(connection: Connection, now_s: float) -> None:
    """Delete what is older than its kind is kept."""
    for step, kept_s in STEPS.items():
        old = (samples.c.step_s == step) & (samples.c.time_s < int(now_s) - kept_s)
        connection.execute(samples.delete().where(old))


def _replace(
    connection: Connection,
    cluster: str,
    step_s: int,
    begin_s: int,
    rows: Sequence[Mapping[str, str | float]],
) -> None:
    """Store an interval with two statements, whatever the number of series.

    Rows of it that are there, of a console that was started again, are replaced.
    """
    key = {"cluster": cluster, "step_s": step_s, "time_s": begin_s}
    where = [samples.c[name] == value for name, value in key.items()]
    connection.execute(samples.delete().where(*where))
    if rows:
        connection.execute(samples.insert(), [{**key, **each} for each in rows])


def _widen(connection: Connection, cluster: str, step: int, wider: int, begin_s: int) -> None:
    narrow = connection.execute(
        sqlalchemy.select(
            samples.c.series,
            sqlalchemy.func.sum(samples.c.mean * samples.c.count).label("sum"),
            sqlalchemy.func.max(samples.c.most).label("most"),
            sqlalchemy.func.sum(samples.c.count).label("times"),
        )
        .where(
            samples.c.cluster == cluster,
            samples.c.step_s == step,
            samples.c.time_s >= begin_s,
            samples.c.time_s < begin_s + wider,
        )
        .group_by(samples.c.series)
    ).all()
    rows = [
        {
            "series": each.series,
            "mean": float(each.sum) / int(each.times),
            "most": float(each.most),
            "count": int(each.times),
        }
        for each in narrow
    ]
    _replace(connection, cluster, wider, begin_s, rows)


def kept_clusters(connection: Connection) -> list[str]:
    """Return the names of the clusters of which something is kept, sorted."""
    found = connection.execute(sqlalchemy.select(samples.c.cluster).distinct())
    return sorted(each.cluster for each in found)


def all_samples(
    connection: Connection, cluster: str, begin: str = ""
) -> Iterator[dict[str, str | float]]:
    """Yield all intervals of the series whose names have this begin, by series and time.

    Each has ``series``, ``step_s`` (its width), ``time_s`` (its begin, in seconds since 1970),
    ``mean``, ``most`` and ``count``. Rows are read in parts: the history may be large.
    """
    columns = [each for each in samples.c if each.name != "cluster"]
    rows = connection.execution_options(yield_per=1_000).execute(
        sqlalchemy.select(*columns)
        .where(samples.c.cluster == cluster, samples.c.series.startswith(begin, autoescape=True))
        .order_by(samples.c.series, samples.c.step_s, samples.c.time_s)
    )
    for each in rows:
        yield dict(each._mapping)


def export_samples(connection: Connection, cluster: str, file: Path, *, begin: str = "") -> int:
    """Write what ``all_samples`` yields as lines of JSON; return how many."""
    count = 0
    with file.open("w", encoding="utf-8") as lines:
        for each in all_samples(connection, cluster, begin):
            lines.write(f"{json.dumps(each)}\n")
            count += 1
    return count


def read_series(
    connection: Connection, cluster: str, series: list[str], since_s: int, until_s: int
) -> tuple[list[int], dict[str, list[float | None]]]:
    """Return moments and the means of series at them, None where nothing was measured.

    The step is the narrowest one that is kept for so long and gives ``_POINTS_MAX`` points at most.
    Of a young cluster, which the narrowest one has as a whole, they are the points of that. They
    begin with the first value, but are ``_POINTS_MIN`` at least.
    """
    span = until_s - since_s
    age = int(time.time()) - since_s
    step = next(
        (each for each, kept in STEPS.items() if age <= kept and span // each <= _POINTS_MAX),
        max(STEPS),
    )
    first = since_s // step * step
    times = list(range(first, until_s + 1, step))
    place = {moment: index for index, moment in enumerate(times)}
    found: dict[str, list[float | None]] = {each: [None] * len(times) for each in series}
    rows = connection.execute(
        sqlalchemy.select(samples.c.series, samples.c.time_s, samples.c.mean).where(
            samples.c.cluster == cluster,
            samples.c.series.in_(series),
            samples.c.step_s == step,
            samples.c.time_s >= first,
            samples.c.time_s <= until_s,
        )
    )
    for each in rows:
        if each.time_s in place:
            found[each.series][place[each.time_s]] = each.mean
    values = zip(*found.values(), strict=True) if found else ()
    known = (at for at, each in enumerate(values) if any(value is not None for value in each))
    begin = next(known, len(times))
    young_s = until_s - _POINTS_MAX * min(STEPS) // 2
    is_young = begin == len(times) or times[begin] >= young_s
    is_kept = time.time() - young_s <= STEPS[min(STEPS)]
    if is_young and is_kept and step != min(STEPS) and since_s < young_s:
        return read_series(connection, cluster, series, young_s, until_s)
    begin = max(0, min(begin - 1, len(times) - _POINTS_MIN))
    return times[begin:], {name: each[begin:] for name, each in found.items()}
