"""The capacity report as one HTML page. Pure: rows in, text out."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pyspark_vq.reports.capacity import Capacity
from pyspark_vq.reports.capacity_cells import (
    KINDS,
    days_text,
    part_of,
    rate_text,
    ratio_text,
    rounded,
    share_text,
    verdict_tag,
)
from pyspark_vq.reports.capacity_changes import plan_section, what_ifs_section
from pyspark_vq.reports.capacity_summary import LINES, Summary
from pyspark_vq.reports.charts import Band, Bar, Html, Limit, Line, bars, lines
from pyspark_vq.reports.figures import UNKNOWN, count_text, moment_text, size_text
from pyspark_vq.reports.forecast import AHEAD, CONFIDENCE, DAY_S, POINTS_MIN
from pyspark_vq.reports.growth import HOUR_MS
from pyspark_vq.reports.page import Page, Section, Tile, card, pair, render, table

__all__ = ["page"]

#: Disks that are drawn.
_DRAWN: Final = 4
#: Up to so many days charts show hours; more show days.
_HOURS_DAYS: Final = 3


def page(made: Capacity, summary: Summary, *, top: int) -> str:
    """Return the page.

    Args:
        made: The report.
        summary: Of the report.
        top: So many rows of each table.
    """
    filling = [row for row in made.disks if row["verdict"] in {"full", "fills"}]
    soonest = filling[0] if filling else None
    unknown = summary.verdicts["unknown"]
    return render(
        Page(
            title=f"Capacity of {made.cluster}",
            lead="What grows, which disk is full when, what would free space, what should move.",
            facts=[
                ("snapshot", moment_text(made.now_s)),
                ("disks", count_text(len(made.disks))),
                ("topics", count_text(summary.topic_count)),
                ("partitions", count_text(sum(summary.verdicts.values()))),
            ],
            tiles=[
                Tile(
                    label="disks fill up",
                    figure=count_text(len(filling)),
                    kind="stalled" if filling else "ok",
                ),
                Tile(
                    label="until the first disk is full",
                    figure=UNKNOWN if soonest is None else days_text(soonest["full_in_days"]),
                    kind="" if soonest is None else KINDS[soonest["verdict"]],
                ),
                Tile(label="stored in a day", figure=size_text(summary.bytes_per_day)),
                Tile(
                    label="messages in a day", figure=count_text(rounded(summary.messages_per_day))
                ),
                Tile(
                    label="partitions of which too little is known",
                    figure=count_text(unknown),
                    kind="unknown" if unknown else "ok",
                ),
                Tile(label="moves proposed", figure=count_text(len(made.plan.moves))),
            ],
            sections=[
                _silent(made),
                _disks(made, top),
                _growth(summary, made.now_s),
                _topics(made, summary),
                _partitions(summary, top),
                _messages(summary),
                what_ifs_section(summary, {group for group, _ in made.silent}),
                plan_section(made),
            ],
            footer="Made by vq report capacity. Nothing was changed in the cluster.",
        )
    )


def _interval(row: Mapping[str, Any]) -> str:
    if row["verdict"] in {"unknown", "full"}:
        return "" if row["verdict"] == "full" else UNKNOWN
    earliest, latest = row["full_earliest_days"], row["full_latest_days"]
    if earliest is None and latest is None:
        return f"not within {days_text(row['horizon_days'])}"
    return f"{days_text(earliest)} to {days_text(latest)}"


def _silent(made: Capacity) -> Section:
    rows = [(f"{group}/{node}", why) for (group, node), why in sorted(made.silent.items())]
    if not rows:
        return Section(title="Brokers", note="Every broker told what it holds.")
    return Section(
        title="Brokers that did not answer",
        note="Their disks, and partitions that no other node holds, are unknown.",
        blocks=[table(rows, columns=("broker", "why"))],
    )


# Disks ----------------------------------------------------------------------------------------
def _disks(made: Capacity, top: int) -> Section:
    shown = made.disks[:top]
    rows = [
        (
            f"{row['group']}/{row['node']} {row['directory']}",
            verdict_tag(row["verdict"]),
            share_text(row["bytes_used"], row["bytes_total"]),
            size_text(row["bytes_free"]),
            size_text(row["vq_bytes"]),
            f"{size_text(row['vq_bytes_per_day'])}",
            size_text(row["growth_bytes_per_day"]),
            days_text(row["full_in_days"]) if row["verdict"] != "unknown" else UNKNOWN,
            _interval(row),
            size_text(row["settles_at_bytes"]),
            row["reason"],
        )
        for row in shown
    ]
    used = bars(
        [
            Bar(
                label=f"{row['group']}/{row['node']}",
                value=part_of(row["bytes_used"], row["bytes_total"]),
                shown=share_text(row["bytes_used"], row["bytes_total"]),
                kind=KINDS[row["verdict"]],
                note=row["directory"],
            )
            for row in shown
        ],
        about="How full each disk is",
        whole=1.0,
    )
    drawn = [chart for row in shown if (chart := _forecast_chart(made, row))][:_DRAWN]
    return Section(
        title="Disks",
        note=(
            "The growth is the median of the slopes between snapshots (Theil and Sen); the "
            f"interval holds it with {CONFIDENCE:.0%} confidence. A forecast takes {POINTS_MIN} "
            f"snapshots, and looks ahead {AHEAD} times the time that they span. “Settles at” is "
            "what vq will have there once as much is deleted and archived as comes in."
        ),
        blocks=[
            table(
                rows,
                columns=(
                    "disk",
                    "verdict",
                    "used",
                    "free",
                    "of vq",
                    "vq gets a day",
                    "grows a day",
                    "full in",
                    "interval",
                    "settles at",
                    "why",
                ),
                numbers=(
                    "used",
                    "free",
                    "of vq",
                    "vq gets a day",
                    "grows a day",
                    "full in",
                    "settles at",
                ),
                total=len(made.disks),
                rest=": the files have all",
            ),
            card("How full", used),
            pair(*drawn) if drawn else Html(""),
        ],
    )


def _forecast_chart(made: Capacity, row: Mapping[str, Any]) -> Html:
    """Return how full a disk was and will be; "" with too few snapshots."""
    points = made.history.get((row["group"], row["node"], row["directory"]), ())
    if row["growth_bytes_per_day"] is None or len(points) < 2 or row["bytes_total"] is None:
        return Html("")
    ahead = row["full_latest_days"] or row["full_in_days"] or row["full_earliest_days"]
    span = (made.now_s - points[0][0]) / DAY_S
    days = min(ahead if ahead is not None else span, row["horizon_days"] or span)
    used, limit = points[-1][1], float(row["bytes_total"])
    rates = {
        "middle": row["growth_bytes_per_day"],
        "low": row["growth_low"],
        "high": row["growth_high"],
    }
    places = [
        (
            made.now_s + day * DAY_S,
            {name: min(limit, max(0.0, used + rate * day)) for name, rate in rates.items()},
        )
        for day in _bends(used, limit, rates.values(), days)
    ]
    return card(
        f"{row['group']}/{row['node']} {row['directory']}",
        lines(
            [
                Line(label="in use", points=list(points), kind="c1"),
                Line(
                    label="at its growth",
                    points=[(time, at["middle"]) for time, at in places],
                    kind="c2",
                    dashed=True,
                ),
            ],
            bands=[
                Band(
                    label=f"{CONFIDENCE:.0%} interval",
                    points=[(time, at["low"], at["high"]) for time, at in places],
                    kind="c2",
                )
            ],
            limits=[Limit(label="size", value=limit)],
            shown=size_text,
            base=1024,
            about=f"Bytes in use on {row['directory']}, and the forecast",
        ),
    )


def _bends(used: float, limit: float, rates: Iterable[float], days: float) -> list[float]:
    """Return the days from 0 to ``days`` at which lines of these rates begin, end, or are bent.

    A disk that is full stays full, and an empty one empty: a line is level from there on.
    """
    bends = [((limit if rate > 0 else 0.0) - used) / rate for rate in rates if rate]
    return sorted({0.0, days, *(day for day in bends if 0 < day < days)})


# Growth ---------------------------------------------------------------------------------------
def _growth(summary: Summary, now_s: float) -> Section:
    most = f"The {LINES} topics" if summary.topic_count > LINES else "The topics"
    return Section(
        title="Growth",
        note=(
            "Bytes stored, by the times of blocks; a block that spans hours is spread evenly over "
            "them. What retention has deleted is not seen."
        ),
        blocks=[
            pair(
                card(
                    f"{most} that get most",
                    _by_time(summary.topic_hours, "topic", "bytes", size_text, now_s),
                ),
                card(
                    "Broker groups",
                    _by_time(summary.group_hours, "group", "bytes", size_text, now_s),
                ),
            ),
            card(
                f"Messages of {most[0].lower()}{most[1:]} that get most",
                _by_time(summary.topic_hours, "topic", "messages", count_text, now_s),
            ),
        ],
    )


def _by_time(
    rows: Iterable[Mapping[str, Any]],
    key: str,
    value: str,
    shown: Callable[[float | None], str],
    now_s: float,
) -> Html:
    """Return lines over whole hours, or days: one that has just begun would look like a fall.

    A line begins with the oldest block: before it nothing is known, since retention deletes.
    """
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row[value] is not None:
            found.setdefault(row[key], {})[row["hour_ms"]] = row[value]
    moments = [moment for each in found.values() for moment in each]
    if not moments:
        return Html('<p class="left">There is no block with times.</p>')
    step = HOUR_MS if max(moments) - min(moments) <= _HOURS_DAYS * 24 * HOUR_MS else 24 * HOUR_MS
    first, last = -(-min(moments) // step) * step, int(now_s * 1000) // step * step - step
    if last - first < step:  # too little for whole hours, or days, alone
        first, last = min(moments) // step * step, max(moments) // step * step
    series = []
    for name, hours in sorted(found.items(), key=lambda item: -sum(item[1].values()))[:LINES]:
        sums = dict.fromkeys(range(first, last + 1, step), 0.0)
        for moment, amount in hours.items():
            if moment // step * step in sums:
                sums[moment // step * step] += amount
        begin = min(hours) // step * step
        points = [
            (moment / 1000, amount if moment >= begin else None) for moment, amount in sums.items()
        ]
        series.append(Line(label=name, points=points))
    per = "an hour" if step == HOUR_MS else "a day"
    base = 1024 if value == "bytes" else 10
    chart = lines(series, about=f"{value} {per}", shown=shown, base=base)
    return Html(f'<p class="left">{value} {per}</p>{chart}')


def _topics(made: Capacity, summary: Summary) -> Section:
    rows = []
    for row in summary.topics:
        settings = made.settings.get(row["topic"])
        kept = None if settings is None else settings.retention_hours
        rows.append(
            (
                row["topic"],
                count_text(row["partitions"]),
                size_text(row["bytes"]),
                size_text(row["copies_disk_bytes"]),
                size_text(row["bytes_per_day"]),
                count_text(rounded(row["messages_per_day"])),
                size_text(row["mean_message_bytes"]),
                UNKNOWN if row["skew"] is None else f"{row['skew']:.2f}",
                UNKNOWN if settings is None else "for ever" if kept is None else f"{kept} h",
                ratio_text(row["archive_bytes"], row["archived_bytes"]),
            )
        )
    columns = (
        "topic",
        "partitions",
        "stored",
        "on all disks",
        "a day",
        "messages a day",
        "mean message",
        "skew",
        "kept",
        "archives take",
    )
    return Section(
        title="Topics",
        note=(
            "“Stored” counts each message once and not compressed by archives; “on all disks” is "
            "what block files and archives of all copies take. Skew: what the busiest partition "
            "gets, in times of an even spread."
        ),
        blocks=[
            table(
                rows,
                columns=columns,
                numbers=columns[1:],
                total=summary.topic_count,
                rest=": the files have all",
            )
        ],
    )


def _partitions(summary: Summary, top: int) -> Section:
    blocks = []
    for verdict, about in (
        ("hot", "More than twice an even share of their topic"),
        ("unknown", "Too little is known"),
        ("idle", "Nothing came in the last day"),
    ):
        rows = [
            (
                f"{row['topic']}-{row['partition']}",
                row["group"] or "none",
                size_text(row["bytes_per_day"]),
                UNKNOWN if row["share"] is None else f"{row['share']:.2f}",
                size_text(row["bytes"]),
                moment_text(None if row["last_ms"] is None else row["last_ms"] / 1000),
                row["reason"] or "",
            )
            for row in summary.partitions
            if row["verdict"] == verdict
        ]
        if rows:
            blocks.append(
                card(
                    about,
                    table(
                        rows,
                        columns=("partition", "group", "a day", "share", "stored", "last", "why"),
                        numbers=("a day", "share", "stored", "last"),
                        total=summary.verdicts[verdict],
                        rest=": the files have all",
                    ),
                )
            )
    counts = ", ".join(f"{count_text(n)} {name}" for name, n in summary.verdicts.items() if n)
    return Section(
        title="Hot and idle partitions",
        note=f"{counts or 'There are no partitions'}. At most {top} of each are shown.",
        blocks=blocks,
    )


def _messages(summary: Summary) -> Section:
    rates = [
        (
            row["topic"],
            count_text(row["hours"]),
            *(rate_text(row[f"messages_per_s_{name}"]) for name in ("p50", "p95", "max")),
            *(size_text(row[f"bytes_per_s_{name}"]) for name in ("p50", "p95", "max")),
        )
        for row in summary.rates
    ]
    columns = (
        "topic",
        "hours",
        "messages/s: median",
        "95 %",
        "most",
        "bytes/s: median",
        " 95 %",
        " most",
    )
    sizes = [
        Bar(
            label=f"{size_text(1 << (row['bits'] - 1))} to {size_text((1 << row['bits']) - 1)}",
            value=float(row["messages"]),
            shown=count_text(row["messages"]),
            note=size_text(row["bytes"]),
        )
        for row in summary.sizes
    ]
    return Section(
        title="Rates and sizes of messages",
        note=(
            "Rates are means of an hour, of hours in which something came. Sizes are the mean of a "
            "block, with all that a message takes in the log; vq report audit counts single ones."
        ),
        blocks=[
            table(rates, columns=columns, numbers=columns[1:]),
            card("Messages by mean size", bars(sizes, about="Messages by size")),
        ],
    )
