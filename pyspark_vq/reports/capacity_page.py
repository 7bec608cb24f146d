"""The capacity report as one HTML page. Pure: rows in, text out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from pyspark_vq.reports.capacity_changes import plan_section, setting_command, what_ifs_section
from pyspark_vq.reports.capacity_summary import LINES, Summary
from pyspark_vq.reports.charts import Band, Bar, Html, Limit, Line, bars, html, lines
from pyspark_vq.reports.figures import UNKNOWN, count_text, moment_text, size_text
from pyspark_vq.reports.forecast import AHEAD, CONFIDENCE, DAY_S, POINTS_MIN
from pyspark_vq.reports.growth import HOUR_MS
from pyspark_vq.reports.page import Page, Section, Tile, advice, card, pair, render, table, then

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
    disks = file_systems(made.disks)
    unknown = summary.verdicts["unknown"]
    return render(
        Page(
            title=f"Capacity of {made.cluster}",
            lead=_lead(disks),
            facts=[
                ("snapshot", moment_text(made.now_s)),
                ("disks", count_text(len(disks))),
                ("data directories", count_text(len(made.disks))),
                ("topics", count_text(summary.topic_count)),
                ("partitions", count_text(sum(summary.verdicts.values()))),
            ],
            tiles=[
                *_disk_tiles(disks),
                Tile(label="stored in a day", figure=size_text(summary.bytes_per_day)),
                Tile(
                    label="messages in a day", figure=count_text(rounded(summary.messages_per_day))
                ),
                Tile(
                    label="partitions of which too little is known",
                    figure=count_text(unknown),
                    kind="unknown" if unknown else "",
                ),
                Tile(label="moves proposed", figure=count_text(len(made.plan.moves))),
            ],
            sections=[
                _silent(made),
                _disks(made, disks, summary, top),
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


#: Verdicts of disks of which something must be done.
_FILLING: Final = frozenset({"full", "fills"})


def file_systems(disks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return one row for each file system: data directories on the same one share its space.

    ``place`` names all of them. What vq has there is the sum over them, and not known if it is not
    of one. A directory whose file system is not known has a row of its own.
    """
    found: dict[object, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(disks):
        found.setdefault(row["file_system"] or number, []).append(row)
    return [
        {
            **rows[0],
            "place": ", ".join(f"{row['group']}/{row['node']} {row['directory']}" for row in rows),
            "groups": list(dict.fromkeys(row["group"] for row in rows)),
            **{
                name: None if None in values else sum(values)
                for name in ("vq_bytes", "vq_bytes_per_day", "settles_at_bytes")
                for values in [[row[name] for row in rows]]
            },
        }
        for rows in found.values()
    ]


def _needed_runs(disks: Iterable[Mapping[str, Any]]) -> int:
    """Return how many more runs it takes until every disk that answers has a forecast."""
    return max(
        (POINTS_MIN - row["points"] for row in disks if _is_young(row)),
        default=0,
    )


def _is_young(row: Mapping[str, Any]) -> bool:
    """Return whether a disk only lacks snapshots."""
    return (
        row["verdict"] == "unknown"
        and row["bytes_used"] is not None
        and 0 < row["points"] < POINTS_MIN
    )


def _runs_text(count: int) -> str:
    return f"needs {count} more run{'s' if count > 1 else ''} with the same --out"


def _lead(disks: Sequence[Mapping[str, Any]]) -> str:
    """Return in a sentence or two how the disks stand."""
    full = [row for row in disks if row["verdict"] == "full"]
    filling = [row for row in disks if row["verdict"] == "fills"]
    unknown = [row for row in disks if row["verdict"] == "unknown"]
    told = []
    if full:
        told.append(f"{count_text(len(full))} of {count_text(len(disks))} disks are full.")
    if filling:
        when = days_text(filling[0]["full_in_days"])
        told.append(f"{filling[0]['place']} is full in {when}.")
    elif not full and len(unknown) < len(disks):
        told.append("No disk of which there is a forecast fills up.")
    if unknown:
        count, runs = len(unknown), _needed_runs(unknown)
        have = f"{count_text(count)} disk{'s have' if count > 1 else ' has'} no forecast yet"
        why = f"it {_runs_text(runs)}" if runs else "no broker tells how full"
        told.append(f"{'No disk has a forecast yet' if count == len(disks) else have}: {why}.")
    return " ".join(told) or "No broker told of a disk."


def _disk_tiles(disks: Sequence[Mapping[str, Any]]) -> list[Tile]:
    """Return how many disks fill up and when the first one does; unknown is neither 0 nor good."""
    filling = [row for row in disks if row["verdict"] in _FILLING]
    known = sum(row["verdict"] != "unknown" for row in disks)
    if filling:
        soonest = filling[0]
        kind = KINDS[soonest["verdict"]]
        return [
            Tile(label="disks fill up", figure=count_text(len(filling)), kind=kind),
            Tile(
                label="until the first disk is full",
                figure=days_text(soonest["full_in_days"]),
                kind=kind,
            ),
        ]
    whole = known == len(disks) > 0
    figure = UNKNOWN if not known else "0" if whole else f"0 of {count_text(known)} known"
    return [
        Tile(label="disks fill up", figure=figure, kind="ok" if whole else "unknown"),
        Tile(
            label="until the first disk is full",
            figure="later" if whole else UNKNOWN,
            kind="" if whole else "unknown",
        ),
    ]


def _full_in(row: Mapping[str, Any]) -> str:
    """Return when a disk is full, and the interval of that."""
    if row["verdict"] in {"unknown", "full"}:
        return "now" if row["verdict"] == "full" else UNKNOWN
    earliest, latest = row["full_earliest_days"], row["full_latest_days"]
    if earliest is None and latest is None:
        return f"not within {days_text(row['horizon_days'])}"
    return f"{days_text(row['full_in_days'])} ({days_text(earliest)} to {days_text(latest)})"


def _silent(made: Capacity) -> Section:
    rows = [(f"{group}/{node}", why) for (group, node), why in sorted(made.silent.items())]
    if not rows:
        return Section(title="Brokers", note="Every broker told what it holds.")
    return Section(
        title="Brokers that did not answer",
        note=(
            "Their disks, and partitions that no other node holds, are unknown. Start them, and "
            "make the report again."
        ),
        blocks=[card("", table(rows, columns=("broker", "why")))],
    )


# Disks ----------------------------------------------------------------------------------------
def _disks(
    made: Capacity, disks: Sequence[Mapping[str, Any]], summary: Summary, top: int
) -> Section:
    shown = disks[:top]
    columns = (
        "disk",
        "verdict",
        "used",
        "free",
        "of vq",
        "vq gets a day",
        "grows a day",
        "full in",
        "settles at",
        "what to do",
    )
    rows = [
        (
            row["place"],
            verdict_tag(row["verdict"]),
            share_text(row["bytes_used"], row["bytes_total"]),
            size_text(row["bytes_free"]),
            size_text(row["vq_bytes"]),
            size_text(row["vq_bytes_per_day"]),
            size_text(row["growth_bytes_per_day"]),
            _full_in(row),
            size_text(row["settles_at_bytes"]),
            then("" if _is_young(row) else row["reason"], _disk_advice(row, made, summary)),
        )
        for row in shown
    ]
    used = bars(
        [
            Bar(
                label=row["place"],
                value=part_of(row["bytes_used"], row["bytes_total"]),
                shown=share_text(row["bytes_used"], row["bytes_total"]),
                kind=KINDS[row["verdict"]],
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
            "Data directories on one file system are one disk. The growth is the median of the "
            "slopes between snapshots (Theil and Sen); the "
            f"interval holds it with {CONFIDENCE:.0%} confidence. A forecast takes {POINTS_MIN} "
            f"snapshots, and looks ahead {AHEAD} times the time that they span. “Settles at” is "
            "what vq will have there once as much is deleted and archived as comes in."
        ),
        blocks=[
            card(
                "",
                table(
                    rows,
                    columns=columns,
                    numbers=columns[2:9],
                    optional=columns[4:],
                    total=len(disks),
                    rest=": the files have all",
                ),
            ),
            card("How full", used),
            pair(*drawn) if drawn else Html(""),
        ],
    )


def _disk_advice(row: Mapping[str, Any], made: Capacity, summary: Summary) -> Html | str:
    """Return what keeps a disk from being full: the setting that frees most, and the moves."""
    if row["verdict"] == "unknown":
        return "" if row["bytes_used"] is not None else "Start the node, and make the report again."
    if row["verdict"] == "steady":
        return ""
    groups, told = set(row["groups"]), []
    setting = next(
        (each for each in summary.what_ifs if each["group"] in groups and each["bytes_freed"]),
        None,
    )
    if setting is not None:
        text = f"`{setting_command(setting)}` frees {{freed}}."
        freed = size_text(setting["bytes_freed"])
        told.append(advice(text, topic=setting["topic"], freed=freed))
    away = sum(move.source in groups for move in made.plan.moves)
    if away:
        text = "Carry out the proposed moves: {away} lead away from here."
        told.append(advice(text, away=count_text(away)))
    if not told:
        told.append(advice("Keep less of its topics, or add a disk or a broker group."))
    return Html(" ".join(told))


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
        row["place"],
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
            card(
                "",
                table(
                    rows,
                    columns=columns,
                    numbers=columns[1:],
                    total=summary.topic_count,
                    rest=": the files have all",
                ),
            )
        ],
    )


#: What is told of partitions with each verdict: a title, and what to do.
_TOLD: Final = {
    "hot": (
        "More than twice an even share of their topic",
        "Choose keys that spread, or send without keys.",
    ),
    "unknown": ("Too little is known", ""),
    "idle": ("Nothing came in the last day", ""),
}


def _partitions(summary: Summary, top: int) -> Section:
    blocks = []
    for verdict, (about, to_do) in _TOLD.items():
        some: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for row in summary.partitions:
            if row["verdict"] == verdict:  # each hot one is a case of its own
                place = row["partition"] if verdict == "hot" else None
                some.setdefault((row["topic"], place, row["group"], row["reason"]), []).append(row)
        rows = [_partition_row(each) for each in some.values()]
        left_out = summary.verdicts.get(verdict, 0) - sum(map(len, some.values()))
        columns = ("topic", "partitions", "group", "a day", "share", "stored", "last", "why")
        if rows:
            found = table(
                rows,
                columns=columns,
                numbers=("a day", "share", "stored"),
                optional=columns[3:],
                total=len(rows) + max(0, left_out),
                rest=": the files have all",
            )
            told = Html(f'<p class="left">{html(to_do)}</p>') if to_do else Html("")
            blocks.append(card(about, Html(f"{found}{told}")))
    counts = ", ".join(f"{count_text(n)} {name}" for name, n in summary.verdicts.items() if n)
    return Section(
        title="Hot and idle partitions",
        note=f"{counts or 'There are no partitions'}. At most {top} of each are shown.",
        blocks=blocks,
    )


def _partition_row(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a row of partitions of one topic and group with the same reason."""
    one, shares = rows[0], [row["share"] for row in rows]
    last = [row["last_ms"] for row in rows if row["last_ms"] is not None]
    return (
        one["topic"],
        ", ".join(str(number) for number in sorted(row["partition"] for row in rows)),
        one["group"] or "none",
        size_text(_sum_of(rows, "bytes_per_day")),
        UNKNOWN if None in shares else f"{max(shares):.2f}",
        size_text(_sum_of(rows, "bytes")),
        moment_text(max(last) / 1000 if last else None),
        one["reason"] or "",
    )


def _sum_of(rows: Iterable[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows]
    return None if None in values else sum(values)


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
            card("", table(rates, columns=columns, numbers=columns[1:])),
            card("Messages by mean size", bars(sizes, about="Messages by size")),
        ],
    )
