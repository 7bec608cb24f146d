"""Charts of a report: bars, shares and lines, as HTML and SVG without a script. Pure functions.

Every value is also text beside its mark or in its ``<title>``, and in ``data-value``: a chart is
read without colours, and a test compares it with the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from pyspark_vq.reports.figures import UNKNOWN, axis_texts, count_text, moment_text, visible

#: Height of the plot in pixels, without its marks. Its width is that of what it stands in: places
#: across are shares of it, so texts and strokes keep their size on a screen of any width.
_HEIGHT: Final = 212
#: Units across in the picture of lines and bands, which is stretched.
_ACROSS: Final = 10_000
#: Marks on an axis, about so many.
_TICKS: Final = 5
#: Above so many points in a line each is a small dot.
_LARGE_DOTS: Final = 40
#: The colours of lines, in this order; further lines begin again, dashed.
LINE_KINDS: Final = ("c1", "c2", "c3", "c4", "c5", "c6")


class Html(str):
    """Text that is HTML already; any other text is escaped before it gets into a page."""

    __slots__ = ()


def html(value: object) -> Html:
    """Return a value as HTML: ``Html`` as it is, any other text escaped and made visible."""
    if isinstance(value, Html):
        return value
    return Html(escape(visible(str(value)), quote=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar: ``value`` None is unknown. ``kind`` is a class of colour; see ``page.STYLE``."""

    label: str
    value: float | None
    shown: str
    kind: str = "c1"
    note: str = ""


def bars(items: Sequence[Bar], *, about: str, whole: float | None = None) -> Html:
    """Return horizontal bars from 0 to the largest value, or to ``whole``, in the order given."""
    most = whole or max((each.value for each in items if each.value is not None), default=0.0)
    rows = "".join(_bar(each, most) for each in items)
    return Html(f'<div class="bars" role="img" aria-label="{html(about)}">{rows}</div>')


def _bar(item: Bar, most: float) -> str:
    share = 0.0 if item.value is None or most <= 0 else min(1.0, max(0.0, item.value) / most)
    value = "" if item.value is None else f' data-value="{item.value!r}"'
    unknown = " unknown" if item.value is None else ""
    note = f'<span class="note">{html(item.note)}</span>' if item.note else ""
    return (
        f'<div class="bar{unknown}"{value}><span class="name"><bdi>{html(item.label)}</bdi>{note}'
        f'</span><span class="track"><span class="fill {html(item.kind)}" '
        f'style="width:{share * 100:.2f}%"></span></span>'
        f'<span class="value">{html(item.shown)}</span></div>'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a whole, with a class of colour."""

    label: str
    count: int
    kind: str


def shares(parts: Sequence[Share], *, about: str) -> Html:
    """Return one bar cut into parts, and a legend with each count; parts of 0 are in the legend."""
    whole = sum(each.count for each in parts)
    pieces = "".join(
        f'<span class="part {html(each.kind)}" style="flex-grow:{each.count}" '
        f'data-value="{each.count}" title="{html(each.label)}: {html(count_text(each.count))}">'
        "</span>"
        for each in parts
        if each.count
    )
    keys = "".join(
        f'<li><span class="key {html(each.kind)}"></span>{html(each.label)} '
        f"<strong>{html(count_text(each.count))}</strong>"
        f'<span class="note">{_percent(each.count, whole)}</span></li>'
        for each in parts
    )
    return Html(
        f'<div class="shares" role="img" aria-label="{html(about)}">{pieces}</div>'
        f'<ul class="legend">{keys}</ul>'
    )


def _percent(count: int, whole: int) -> str:
    if not whole:
        return ""
    part = count / whole * 100
    return "under 1 %" if 0 < part < 1 else "over 99 %" if 99 < part < 100 else f"{part:.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line over time: points are (seconds since 1970, value); a value None interrupts it."""

    label: str
    points: Sequence[tuple[float, float | None]]
    kind: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A range of values over time, such as an interval of a forecast: (seconds, low, high)."""

    label: str
    points: Sequence[tuple[float, float, float]]
    kind: str = "c1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A level that is drawn across the chart, such as the size of a disk."""

    label: str
    value: float


def lines(
    series: Sequence[Line],
    *,
    about: str,
    shown: Callable[[float | None], str] = count_text,
    bands: Sequence[Band] = (),
    limits: Sequence[Limit] = (),
    base: int = 10,
) -> Html:
    """Return lines over time from 0 to the largest value, with a legend; "" without any point.

    With one moment there is no line: its values are bars, and a note says when they were.

    ``base``: of the units that ``shown`` writes: 10, or 1024 for bytes; the axis is round in them.
    """
    times = [time for line in series for time, _ in line.points]
    times += [time for band in bands for time, _, _ in band.points]
    values = [value for line in series for _, value in line.points if value is not None]
    values += [high for band in bands for _, _, high in band.points]
    values += [limit.value for limit in limits]
    if not times or not values:
        return Html("")
    if min(times) == max(times):
        return _moment(series, limits, times[0], about=about, shown=shown)
    scale = _Scale(min(times), max(times), _nice(max(*values, 0.0), base))
    parts = [*_grid(scale, base), *(_limit(scale, each, shown) for each in limits)]
    stretched = [_band(scale, each) for each in bands]
    keys = []
    for number, line in enumerate(series):
        kind = line.kind or LINE_KINDS[number % len(LINE_KINDS)]
        dashed = " dashed" if line.dashed or (not line.kind and number >= len(LINE_KINDS)) else ""
        stretched += _line(scale, line, f"{kind}{dashed}")
        parts += _dots(scale, line, f"{kind}{dashed}", shown)
        last = next((v for _, v in reversed(line.points) if v is not None), None)
        keys.append(
            f'<li><span class="key {html(kind)}{dashed}"></span><bdi>{html(line.label)}</bdi> '
            f"<strong>{html(UNKNOWN if last is None else shown(last))}</strong></li>"
        )
    keys += [
        f'<li><span class="key band {html(each.kind)}"></span>{html(each.label)}</li>'
        for each in bands
    ]
    return Html(
        f'<svg class="lines" role="img" aria-label="{html(about)}">{"".join(parts)}'
        f'<svg width="100%" height="{_HEIGHT}" viewBox="0 0 {_ACROSS} {_HEIGHT}" '
        f'preserveAspectRatio="none">{"".join(stretched)}</svg>'
        f'</svg><ul class="legend">{"".join(keys)}</ul>'
    )


def _moment(
    series: Sequence[Line],
    limits: Sequence[Limit],
    time: float,
    *,
    about: str,
    shown: Callable[[float | None], str],
) -> Html:
    """Return the values of one moment as bars."""
    found = [
        Bar(
            label=line.label,
            value=value,
            shown=shown(value),
            kind=line.kind or LINE_KINDS[number % len(LINE_KINDS)],
        )
        for number, line in enumerate(series)
        for value in [next((value for _, value in line.points if value is not None), None)]
    ]
    whole = max((limit.value for limit in limits), default=None)
    note = f"At {moment_text(time)} only: a line takes two moments."
    return Html(f'{bars(found, about=about, whole=whole)}<p class="left">{html(note)}</p>')


@dataclass(frozen=True, slots=True)
class _Scale:
    """From seconds and values to places in the picture."""

    first: float
    last: float
    most: float

    def x(self, time: float) -> float:
        """Return the share of the width; 0 to 1."""
        span = self.last - self.first
        return 0.5 if span <= 0 else (time - self.first) / span

    def y(self, value: float) -> float:
        """Return pixels from above."""
        part = 0.0 if self.most <= 0 else min(1.0, max(0.0, value / self.most))
        return _HEIGHT - part * _HEIGHT

    def point(self, time: float, value: float) -> str:
        """Return a place in the picture that is stretched."""
        return f"{self.x(time) * _ACROSS:.1f},{self.y(value):.1f}"


def _nice(most: float, base: int) -> float:
    """Return the next round number from ``most`` on, so that marks on the axis are round."""
    if most <= 0:
        return 1.0
    unit = float(base) ** max(0, math.floor(math.log(most, base)))
    step = unit * 10.0 ** math.floor(math.log10(most / unit))
    return next(each * step for each in (1.0, 2.0, 2.5, 5.0, 10.0) if each * step >= most * 0.9999)


def _grid(scale: _Scale, base: int) -> list[str]:
    parts = []
    values = [scale.most * number / _TICKS for number in range(_TICKS + 1)]
    for value, text in zip(values, axis_texts(values, base), strict=True):
        y = scale.y(value)
        parts.append(
            f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="-8" y="{y + 4:.1f}" text-anchor="end">{html(text)}</text>'
        )
    span = scale.last - scale.first
    for number in range(_TICKS):
        time = scale.first + span * number / (_TICKS - 1)
        anchor = "middle" if 0 < number < _TICKS - 1 else "end" if number else "start"
        between = " between" if number % 2 else ""  # left out where the window is narrow
        parts.append(
            f'<text class="tick{between}" x="{scale.x(time):.2%}" y="{_HEIGHT + 20}" '
            f'text-anchor="{anchor}">{html(_time_text(time, span))}</text>'
        )
    return parts


def _time_text(time: float, span: float) -> str:
    form = "%H:%M:%S" if span < 600 else "%m-%d %H:%M" if span < 14 * 86_400 else "%Y-%m-%d"
    try:
        return datetime.fromtimestamp(time, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):  # of a clock that was set to any time
        return moment_text(time)


def _line(scale: _Scale, line: Line, kind: str) -> list[str]:
    parts, run = [], list[str]()
    for time, value in [*line.points, (0.0, None)]:
        if value is not None:
            run.append(scale.point(time, value))
            continue
        if len(run) > 1:
            parts.append(f'<polyline class="line {html(kind)}" points="{" ".join(run)}"/>')
        run = []
    return parts


def _dots(scale: _Scale, line: Line, kind: str, shown: Callable[[float | None], str]) -> list[str]:
    radius = 3 if len(line.points) <= _LARGE_DOTS else 1.5
    return [
        f'<circle class="dot {html(kind)}" cx="{scale.x(time):.2%}" cy="{scale.y(value):.1f}" '
        f'r="{radius}" data-value="{value!r}"><title>{html(line.label)}, '
        f"{html(_time_text(time, 86_400))} UTC: {html(shown(value))}</title></circle>"
        for time, value in line.points
        if value is not None
    ]


def _band(scale: _Scale, band: Band) -> str:
    upper = [scale.point(time, high) for time, _, high in band.points]
    lower = [scale.point(time, low) for time, low, _ in reversed(band.points)]
    return f'<polygon class="band {html(band.kind)}" points="{" ".join([*upper, *lower])}"/>'


def _limit(scale: _Scale, limit: Limit, shown: Callable[[float | None], str]) -> str:
    y = scale.y(limit.value)
    return (
        f'<line class="limit" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" '
        f'data-value="{limit.value!r}"/><text class="tick limit" x="0.5%" '
        f'y="{y - 5:.1f}">{html(limit.label)}: {html(shown(limit.value))}</text>'
    )
