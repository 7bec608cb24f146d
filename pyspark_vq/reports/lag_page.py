"""The page of a lag report: from its numbers to ``page.Page``; pure."""

from collections.abc import Callable, Container, Mapping, Sequence
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
from pyspark_vq.reports.page import Page, Section, Tile, advice, card, pair, table, tag, then
from vq.operations.groups.lag_rules import VERDICTS

_RESET: Final = (
    "Look at the plan of `vq group reset {group} --topic {topic} --to-committed`, or of another "
    "place such as `--to-earliest`; add `--yes`."
)
_UNREAD: Final = (
    "Write the value that belongs there, or give vq the right to read it; the detail names it."
)
_ASK: Final = "See which broker is away: `vq cluster status`, then `vq doctor`."
_FASTER: Final = (
    "Add consumers to {group}; if it has one for each partition, add partitions: "
    "`vq topic alter {topic} --partitions N`."
)
#: What a cause means, and what to do; between backticks are commands.
CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "group_unreadable": ("the group cannot be read in ZooKeeper", _UNREAD),
    "no_topics": (
        "the group reads no topic",
        "Start its consumers; if nobody needs it: `vq group delete {group}`.",
    ),
    "not_subscribed": (
        "no member subscribes to the topic",
        "If that stays so: `vq group forget {group} --topic {topic}`.",
    ),
    "topic_deleted": (
        "the topic was deleted",
        "Nothing, if that was meant; if nobody needs the group: `vq group delete {group}`.",
    ),
    "topic_not_ready": (
        "the topic is not ready",
        "Wait until it is made; if it stays so: `vq topic describe {topic}`.",
    ),
    "topic_unreadable": ("the topic cannot be read in ZooKeeper", _UNREAD),
    "not_readable": (
        "the topic is closed for reading",
        "Nothing, if that was meant; else an administrator opens it for reading.",
    ),
    "broadcasting": (
        "each member has progress of its own",
        "Nothing: the members of such a group have their own metrics.",
    ),
    "place_unreadable": ("the group's place cannot be read in ZooKeeper", _UNREAD),
    "needs_reset": ("only a reset lets the group go on", _RESET),
    "other_topic": (
        "the offset is of another topic of this name",
        "Look at the plan of `vq group reset {group} --topic {topic} --to-earliest`; add `--yes`.",
    ),
    "beyond_end": (
        "the committed offset lies beyond the end",
        "Find out which broker lost messages: `vq doctor`. Then "
        "`vq group reset {group} --topic {topic} --to-latest`.",
    ),
    "owner_error": (
        "its owner does not go on",
        "Repair the listener or the message; the detail has its error.",
    ),
    "placement": ("where it lives cannot be read", _ASK),
    "broker_silent": ("its end is not known", _ASK),
    "no_members": (
        "the group has no consumer",
        "Start one; if nobody needs the group: `vq group delete {group}`.",
    ),
    "unmoved": (
        "nothing was committed for long",
        "Look at the log of its owner: it hangs, or one message takes that long.",
    ),
    "overtaken": (
        "messages were deleted unread",
        "Keep them until they are read: `vq topic alter {topic} --retention-policy keep`; or make "
        "the group faster.",
    ),
    "no_owner": (
        "no member consumes it",
        "A rebalance goes on; if it stays so, look at the logs of the members: "
        "`vq group describe {group}`.",
    ),
    "old": ("its oldest message is old", _FASTER),
    "many_bytes": ("many bytes lie behind it", _FASTER),
    "many_messages": ("many messages lie behind it", _FASTER),
    "not_measured": (
        "a broker did not tell the age or the count",
        "Run the report again; if it stays so: `vq doctor`.",
    ),
}
#: A row is small if its lag is under this part of the largest.
_SMALL_PART: Final = 0.01
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
            Tile(label=each, figure=count_text(verdicts[each]), kind=each if verdicts[each] else "")
            for each in VERDICTS
        ),
        sections=tuple(_sections(report)),
        footer="Lags are sums of what is known; an unknown one is never counted as 0. A lag in "
        "seconds is the age of the oldest message that a group has not handled. Of a group that "
        "has a filter, what that leaves out lies in its lag, too: it is an upper bound (≤). "
        "Of a group that keeps its offsets in a store of its own, these are copies of them "
        "(committed_is_copy), seconds behind at most while its members run. Of a shared group "
        "(model) the lag begins at the lowest message that is not done; some behind it may be.",
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
                note="Their partitions are unknown. Start them, and make the report again.",
                blocks=[
                    card("", table(sorted(report.silent.items()), columns=("broker group", "why")))
                ],
            )
        )
    if report.causes:
        found.append(
            Section(
                title="What is wrong, and what to do",
                note=(
                    "One row for each group, topic and cause: the worst first, by verdict, then by "
                    "age, then by bytes. Grey rows lag by less than a hundredth of the largest."
                ),
                blocks=[card("", _causes(report.causes))],
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
        bounds = {each["name"] for each in report.rollups["group"] if each["lag_is_upper_bound"]}
        blocks.append(card("Lag over time, bytes", _over_time(report.history, bounds)))
    return blocks


def _bar(row: Mapping[str, Any], field: str) -> Bar:
    shown = size_text if field == "lag_bytes" else seconds_text
    bad = next((each for each in VERDICTS[:3] if row[each]), "c1")
    unknown = row["unknown_lags"]
    return Bar(
        label=row["name"],
        value=row[field],
        shown=_bounded(row, shown(row[field])),
        kind=bad,
        note=f"{count_text(unknown)} unknown" if unknown else "",
    )


def _over_time(history: Sequence[Mapping[str, Any]], bounds: Container[str]) -> Html:
    """Draw a line for each group; those whose lags are upper bounds are marked."""
    names = list(dict.fromkeys(each["group"] for each in history))
    series = [
        Line(
            label=f"{name} (≤)" if name in bounds else name,
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


def _causes(rows: Sequence[Mapping[str, Any]]) -> Html:
    columns = (
        "verdict",
        "group",
        "topic",
        "partitions",
        "lag",
        "messages",
        "oldest",
        "change/s",
        "cause, and what to do",
    )
    most = max((each["lag_bytes"] or 0 for each in rows), default=0)
    return table(
        [
            (
                tag(each["verdict"]),
                each["group"],
                _or(each["topic"], "-"),
                _partitions(each),
                _bounded(each, _or_nothing(each, "lag_bytes", "unknown_lags", size_text)),
                _bounded(each, _or_nothing(each, "lag_messages", "unknown_messages", count_text)),
                _bounded(each, seconds_text(each["lag_seconds"])),
                _trend(each["trend_bytes_per_s"]),
                then(_cause(each), _advice(each)),
            )
            for each in rows
        ],
        columns=columns,
        numbers=("lag", "messages", "oldest", "change/s"),
        optional=("topic", "partitions", "messages", "change/s"),
        small=[number for number, each in enumerate(rows) if _is_small(each, most)],
        total=rows[0]["of"],
        rest="; the files have all",
    )


def _is_small(row: Mapping[str, Any], most: int) -> bool:
    """Return whether little lies behind it, and it is not stopped until somebody acts."""
    waits = row["verdict"] == "stopped" and row["cause"] != "no_members"
    known = row["lag_bytes"] is not None and not row["unknown_lags"]
    return known and not waits and row["lag_bytes"] < most * _SMALL_PART


def _partitions(row: Mapping[str, Any]) -> str:
    """Return the partitions of a row: how many, and the first of them."""
    named = ", ".join(map(str, row["partitions"]))
    if not named:
        return "-"
    if row["count"] == len(row["partitions"]):
        return named
    return f"{count_text(row['count'])}: {named}, …"


def _or_nothing(
    row: Mapping[str, Any], name: str, unknown: str, shown: Callable[[float | None], str]
) -> str:
    """Return a sum; "-" where a lag means nothing: there is no partition to tell of."""
    return _known(shown(row[name]), row[unknown]) if row["partitions"] else "-"


def _some(one: str, count: int) -> str:
    return f"{one}, {count_text(count - 1)} more" if count > 1 else one


def _cause(row: Mapping[str, Any]) -> str:
    """Return the cause in words, with the error behind it and who consumes the partitions."""
    cause = row["cause"] or ""
    told = CAUSES[cause][0] if cause in CAUSES else cause
    if row["detail"]:
        told += f": {_some(row['detail'], row['details'])}"
    if row["owner"]:
        told += f" (owner: {_some(row['owner'], row['owners'])})"
    return told


def _advice(row: Mapping[str, Any]) -> Html:
    _, text = CAUSES.get(row["cause"] or "", ("", ""))
    return advice(text, group=row["group"], topic=row["topic"] or "")


def _trend(rate: float | None) -> str:
    """Return the change of a lag with its sign; "-" without an earlier snapshot."""
    if rate is None:
        return "-"
    return "steady" if not round(rate) else f"{'+' if rate > 0 else ''}{size_text(rate)}"


def _rolled(rows: Sequence[Mapping[str, Any]], kind: str) -> Html:
    columns = (kind, "partitions", *VERDICTS, "lag", "messages", "oldest", "skew")
    return table(
        [
            (
                each["name"],
                count_text(each["partitions"]),
                *(count_text(each[verdict]) if each[verdict] else "·" for verdict in VERDICTS),
                _bounded(each, _known(size_text(each["lag_bytes"]), each["unknown_lags"])),
                _bounded(each, _known(count_text(each["lag_messages"]), each["unknown_messages"])),
                _bounded(each, seconds_text(each["lag_seconds"])),
                "-" if each["skew"] is None else f"{each['skew']:.1f}",
            )
            for each in rows
        ],
        columns=columns,
        numbers=columns[1:],
        optional=(*VERDICTS, "messages", "skew"),
        total=rows[0]["of"],
        rest="; the files have all",
    )


def _known(text: str, unknown: int) -> str:
    """Return a sum that lacks so many unknown parts as such."""
    return f"≥ {text}" if unknown and text != UNKNOWN else text


def _bounded(row: Mapping[str, Any], text: str) -> str:
    """Return a lag in which what a filter leaves out may lie as the upper bound that it is."""
    has_number = any(letter.isdigit() for letter in text)
    is_bound = row["lag_is_upper_bound"] and has_number and "≥" not in text
    return f"≤ {text}" if is_bound else text


def _or(value: Any, otherwise: str) -> str:
    return otherwise if value is None else str(value)
