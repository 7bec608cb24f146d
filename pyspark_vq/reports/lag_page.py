"""The page of a lag report: from its numbers to ``page.Page``; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark_vq.reports import charts, outputs
from pyspark_vq.reports.charts import Bar, Html, Line, Share
from pyspark_vq.reports.figures import (
    UNKNOWN,
    count_text,
    moment_text,
    seconds_text,
    size_text,
)
from pyspark_vq.reports.lag import LagReport
from pyspark_vq.reports.page import Page, Section, Tile, card, pair, table, tag
from vq.admin.lag_rules import VERDICTS

#: What a cause means, in a few words.
CAUSES: Final[Mapping[str, str]] = {
    "group_unreadable": "the group cannot be read in ZooKeeper",
    "no_topics": "the group reads no topic",
    "not_subscribed": "no member subscribes to the topic",
    "topic_deleted": "the topic was deleted",
    "topic_not_ready": "the topic is not ready",
    "topic_unreadable": "the topic cannot be read in ZooKeeper",
    "not_readable": "the topic is closed for reading",
    "broadcasting": "each member has progress of its own",
    "place_unreadable": "the group's place cannot be read in ZooKeeper",
    "needs_reset": "only a reset lets the group go on",
    "other_topic": "the offset is of another topic of this name",
    "beyond_end": "the committed offset lies beyond the end",
    "owner_error": "its owner does not go on",
    "placement": "where it lives cannot be read",
    "broker_silent": "its end is not known",
    "no_members": "the group has no consumer",
    "unmoved": "nothing was committed for long",
    "overtaken": "messages were deleted unread",
    "no_owner": "no member consumes it",
    "old": "its oldest message is old",
    "many_bytes": "many bytes lie behind it",
    "many_messages": "many messages lie behind it",
    "not_measured": "a broker did not tell the age or the count",
}
_ROLLED: Final = {
    "group": "Consumer groups",
    "topic": "Topics",
    "broker": "Broker groups",
    "pool": "Pools",
}


def lag_page(report: LagReport) -> Page:
    """Return the page of a report."""
    verdicts = report.verdicts
    rows = sum(verdicts.values())
    thresholds = report.wanted.thresholds
    limits = [
        f"warning from {seconds_text(thresholds.warn_s)}" if thresholds.warn_s else "",
        f"{size_text(thresholds.warn_bytes)}" if thresholds.warn_bytes else "",
        f"{count_text(thresholds.warn_messages)} messages" if thresholds.warn_messages else "",
        f"stalled after {seconds_text(thresholds.stalled_after_s)} without a commit",
    ]
    return Page(
        title=f"Lag of consumer groups in {report.cluster}",
        lead=_lead(report, rows),
        facts=(
            ("Read", moment_text(report.now_s)),
            ("Groups", count_text(report.groups)),
            ("Group partitions", count_text(rows)),
            ("Took", seconds_text(report.took_s)),
            ("Thresholds", ", ".join(each for each in limits if each)),
        ),
        tiles=tuple(
            Tile(label=each, figure=count_text(verdicts[each]), kind=each) for each in VERDICTS
        ),
        sections=tuple(_sections(report)),
        footer="Lags are sums of what is known; an unknown one is never counted as 0. A lag in "
        "seconds is the age of the oldest message that a group has not handled. Of a group that "
        "filters by tag, messages with other tags lie in its lag, too: it is an upper bound (≤).",
    )


def _lead(report: LagReport, rows: int) -> str:
    bad = [
        f"{count_text(report.verdicts[each])} {each}"
        for each in VERDICTS
        if each != "ok" and report.verdicts[each]
    ]
    if not rows:
        return "There are no consumer groups."
    if not bad:
        return "Every group keeps up in every partition."
    return f"Of {count_text(rows)} group partitions: {', '.join(bad)}; the others are ok."


def _sections(report: LagReport) -> list[Section]:
    found = []
    if report.silent:
        found.append(
            Section(
                title="Brokers that did not answer",
                note="Their partitions are unknown.",
                blocks=[
                    card("", table(sorted(report.silent.items()), columns=("broker group", "why")))
                ],
            )
        )
    shares = [
        Share(label=each, count=report.verdicts[each], kind=each)
        for each in (*VERDICTS[:3], "ok", "unknown")
    ]
    charted = [card("Verdicts", charts.shares(shares, about="Rows by verdict"))]
    if sum(report.verdicts.values()):
        note = "A bar has the colour of the worst verdict in it, and is blue when none is bad."
        found.append(Section(title="Overview", note=note, blocks=[*charted, *_drawn(report)]))
    found.append(
        Section(
            title="Worst partitions",
            note="By verdict, then by age, then by bytes.",
            blocks=[card("", _worst(report))],
        )
    )
    for kind, title in _ROLLED.items():
        rows = report.rollups[kind]
        if rows:
            found.append(Section(title=title, blocks=[card("", _rolled(rows, kind))]))
    return found


def _drawn(report: LagReport) -> list[Html]:
    """Return the charts: the largest groups and topics, by bytes and by age, and over time."""
    blocks = []
    for kind in ("group", "topic"):
        rows = report.rollups[kind][:10]
        size = charts.bars([_bar(each, "lag_bytes") for each in rows], about=f"Lag by {kind}")
        oldest = sorted(rows, key=lambda each: -(each["lag_seconds"] or 0))
        age = charts.bars([_bar(each, "lag_seconds") for each in oldest], about=f"Age by {kind}")
        blocks.append(
            pair(
                card(f"Largest lag by {kind}, bytes", size),
                card(f"Oldest unhandled message of these {kind}s", age),
            )
        )
    if len({each["snapshot"] for each in report.history}) > 1:
        blocks.append(card("Lag over time, bytes", _over_time(report.history)))
    return blocks


def _bar(row: Mapping[str, Any], field: str) -> Bar:
    shown = size_text if field == "lag_bytes" else seconds_text
    bad = next((each for each in VERDICTS[:3] if row[each]), "c1")
    unknown = row["unknown_lags"]
    return Bar(
        label=row["name"],
        value=row[field],
        shown=shown(row[field]),
        kind=bad,
        note=f"{count_text(unknown)} unknown" if unknown else "",
    )


def _over_time(history: Sequence[Mapping[str, Any]]) -> Html:
    names = list(dict.fromkeys(each["group"] for each in history))
    series = [
        Line(
            label=name,
            points=[
                (outputs.snapshot_seconds(each["snapshot"]), each["lag_bytes"])
                for each in history
                if each["group"] == name
            ],
        )
        for name in names
    ]
    return charts.lines(
        series, about="Lag of the largest groups over time", shown=size_text, base=1024
    )


def _worst(report: LagReport) -> Html:
    bad = sum(report.verdicts[each] for each in VERDICTS if each != "ok")
    columns = (
        "verdict",
        "group",
        "topic",
        "partition",
        "lag",
        "messages",
        "oldest",
        "trend",
        "owner",
        "cause",
    )
    return table(
        [
            (
                tag(each["verdict"]),
                each["group"],
                _or(each["topic"], "-"),
                _or(each["partition"], "-"),
                _bounded(size_text(each["lag_bytes"]), each["filter"]),
                _bounded(count_text(each["lag_messages"]), each["filter"]),
                _bounded(seconds_text(each["lag_seconds"]), each["filter"]),
                _trend(each),
                _or(each["owner"], "-"),
                _cause(each),
            )
            for each in report.offenders
        ],
        columns=columns,
        numbers=("partition", "lag", "messages", "oldest"),
        total=bad,
        rest="; the files have all",
    )


def _cause(row: Mapping[str, Any]) -> str:
    told = CAUSES.get(row["cause"] or "", row["cause"] or "")
    return f"{told}: {row['detail']}" if row["detail"] else told


def _trend(row: Mapping[str, Any]) -> str:
    if row["trend"] is None:
        return "-"
    rate = row["trend_bytes_per_s"]
    return row["trend"] if not rate else f"{row['trend']}, {size_text(rate)}/s"


def _rolled(rows: Sequence[Mapping[str, Any]], kind: str) -> Html:
    columns = (kind, "partitions", *VERDICTS, "lag", "messages", "oldest", "skew")
    return table(
        [
            (
                each["name"],
                count_text(each["partitions"]),
                *(count_text(each[verdict]) if each[verdict] else "·" for verdict in VERDICTS),
                _known(size_text(each["lag_bytes"]), each["unknown_lags"]),
                _known(count_text(each["lag_messages"]), each["unknown_messages"]),
                seconds_text(each["lag_seconds"]),
                "-" if each["skew"] is None else f"{each['skew']:.1f}",
            )
            for each in rows
        ],
        columns=columns,
        numbers=columns[1:],
        total=rows[0]["of"],
        rest="; the files have all",
    )


def _known(text: str, unknown: int) -> str:
    """Return a sum that lacks so many unknown parts as such."""
    return f"≥ {text}" if unknown and text != UNKNOWN else text


def _bounded(text: str, message_filter: str | None) -> str:
    """Return a lag in which messages of other tags may lie as the upper bound that it is."""
    return f"≤ {text}" if message_filter and text != UNKNOWN else text


def _or(value: Any, otherwise: str) -> str:
    return otherwise if value is None else str(value)
