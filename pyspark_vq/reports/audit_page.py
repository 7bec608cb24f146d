"""The audit of contents as one HTML page. Pure: an audit in, text out."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pyspark_vq.reports.audit import Audit
from pyspark_vq.reports.charts import Bar, Html, Share, bars, shares
from pyspark_vq.reports.contents import UNKNOWN_KINDS, Finding
from pyspark_vq.reports.figures import UNKNOWN, count_text, moment_text, size_text
from pyspark_vq.reports.page import Page, Section, Tile, advice, card, render, table, tag

_VERIFY: Final = (
    "`vq topic verify {topic}` finds it on each node, and a group with several nodes repairs it."
)
#: What each kind of finding means, and what to do; the worst first. Between backticks are commands.
KINDS: Final = {
    "missing": (
        "bytes are lost",
        "Look for a node that has them before anything is deleted: `vq topic describe {topic}`.",
    ),
    "damaged": ("no intact batch", _VERIFY),
    "unreadable": (
        "the medium does not deliver the bytes, or their archive is damaged",
        f"{_VERIFY} Replace the disk.",
    ),
    "archive": (
        "the archive is not what the node knows of it",
        "Take the archive from another node, or from a backup.",
    ),
    "differs": (
        "a copy has another batch, and both are intact",
        "This must not be: keep both data directories, and look at unclean elections of that time.",
    ),
    "record": (
        "the batch is as it was written, and a record in it never was sound",
        "Look at the producer, and at the way from it to the broker.",
    ),
    "sequence": (
        "a batch of a producer is missing, or stored twice",
        "Compare with what the producer was told: a batch that failed, or one that it sent again.",
    ),
    "duplicate": (
        "the message id is there before",
        "Look for a producer without a stamp, an import that ran twice, or an old backup of "
        "ZooKeeper.",
    ),
    "epoch": (
        "it was written by an older master than the batch before",
        "Look at the take-over of that time, or at who put the data directory together.",
    ),
    "time": (
        "it was appended before the batch before",
        "Look at the clocks of the masters, and at who put the data directory together.",
    ),
    "unreachable": (
        "nothing is known of it",
        "Start the broker, `vq cluster status` has it, and run the audit again.",
    ),
    "not_readable": (
        "nothing is known of it: the topic is closed for reading",
        "Open it for reading and run the audit again, if it is to be audited.",
    ),
}
_VERDICTS: Final = {"sound": "ok", "unknown": "unknown", "bad": "stopped"}


def page(made: Audit, *, top: int) -> str:
    """Return the page; ``top``: so many rows of each table."""
    return render(
        Page(
            title=f"Audit of contents of {made.cluster}",
            lead=_lead(made),
            facts=[
                ("snapshot", moment_text(made.now_s)),
                ("partitions", count_text(len(made.partitions))),
                ("read", size_text(made.read_bytes)),
                ("compared with copies", size_text(made.compared_bytes)),
                ("archives verified", UNKNOWN if made.archives is None else str(made.archives)),
            ],
            tiles=[
                Tile(
                    label="findings",
                    figure=count_text(made.total - made.unknown),
                    kind="stopped" if made.total > made.unknown else _sound(made),
                ),
                Tile(
                    label="ranges that could not be checked",
                    figure=count_text(made.unknown),
                    kind="unknown" if made.unknown else "",
                ),
                Tile(
                    label="messages read",
                    figure=count_text(_sum(made, "messages")),
                ),
                Tile(label="bytes intact", figure=size_text(_sum(made, "bytes"))),
            ],
            sections=[_findings(made, top), _partitions(made, top), _sizes(made, top)],
            footer="Made by vq report audit. It reads, and changes nothing.",
        )
    )


def _sound(made: Audit) -> str:
    """Return the colour of no finding: it is good only if everything could be checked."""
    return "unknown" if made.unknown else "ok"


def _lead(made: Audit) -> str:
    wrong = made.total - made.unknown
    if not made.partitions and not made.total:
        return "There is nothing to check."
    told = (
        f"{count_text(wrong)} finding{'s' if wrong > 1 else ''}, by kind and place below."
        if wrong
        else "Nothing wrong was found."
        if made.unknown
        else "Everything is there that topics should have, and is what was written."
    )
    if not made.unknown:
        return told
    return f"{told} {count_text(made.unknown)} ranges could not be checked: they may be bad."


def _findings(made: Audit, top: int) -> Section:
    kinds, places = _kinds(made), _places(made, top)
    notes = [*made.notes]
    left = made.total - len(made.findings)
    if left > 0 and made.findings:
        notes.append(
            f"Places are those of the first {count_text(len(made.findings))} findings, and "
            f"{count_text(left)} more are counted by kind only"
        )
    title = "By place, the worst kind first" if made.findings else ""
    return Section(
        title="Findings",
        note=" ".join(f"{note}." for note in notes),
        blocks=[card("By kind", kinds), card(title, places)],
    )


def _kinds(made: Audit) -> Html:
    """Return a row for each kind of finding, the worst first, with what to do; "": none."""
    by_kind: dict[str, set[str]] = {}
    for each in made.findings:
        by_kind.setdefault(each.kind, set()).add(each.topic)
    rows = [
        (
            tag("unknown" if kind in UNKNOWN_KINDS else "stopped", kind),
            count_text(made.counts[kind]),
            meaning,
            advice(to_do, topic=_one_of(by_kind.get(kind, ()))),
        )
        for kind, (meaning, to_do) in KINDS.items()
        if made.counts.get(kind)
    ]
    columns = ("kind", "findings", "what is wrong", "what to do")
    return table(rows, columns=columns, numbers=("findings",)) if rows else Html("")


def _places(made: Audit, top: int) -> Html:
    """Return a row for each kind, partition and node, the worst kind first."""
    places: dict[tuple[str, str, int, str], list[Finding]] = {}
    for each in made.findings:
        place = (each.kind, each.topic, each.partition, each.node)
        places.setdefault(place, []).append(each)
    order = list(KINDS)
    ranked = sorted(
        places.values(), key=lambda some: (order.index(some[0].kind), -len(some), _where(some[0]))
    )
    rows = [
        (
            some[0].kind,
            _where(some[0]),
            count_text(len(some)),
            f"[{some[0].start}, {'…' if some[0].end is None else some[0].end})",
            some[0].node or "-",
            some[0].detail,
        )
        for some in ranked[:top]
    ]
    return table(
        rows,
        columns=("kind", "partition", "findings", "first offsets", "node", "what the first is"),
        numbers=("findings",),
        optional=("node",),
        total=len(ranked),
        rest=": the files have more",
    )


def _where(finding: Finding) -> str:
    return f"{finding.topic}-{finding.partition}"


def _one_of(topics: Collection[str]) -> str:
    """Return the topic, or TOPIC if there are several."""
    return next(iter(topics)) if len(topics) == 1 else "TOPIC"


def _partitions(made: Audit, top: int) -> Section:
    order = {"bad": 0, "unknown": 1, "sound": 2}
    shown = sorted(
        made.partitions,
        key=lambda row: (order[row["verdict"]], row["topic"], row["partition"]),
    )[:top]
    verdicts = [row["verdict"] for row in made.partitions]
    rows = [
        (
            f"{row['topic']}-{row['partition']}",
            tag(_VERDICTS[row["verdict"]], row["verdict"]),
            UNKNOWN if row["start"] is None else str(row["start"]),
            UNKNOWN if row["end"] is None else str(row["end"]),
            size_text(row["bytes"]),
            count_text(row["messages"]),
            count_text(row["batches"]),
            _moment(row, "first_ms"),
            _moment(row, "last_ms"),
            count_text(row["findings"]),
        )
        for row in shown
    ]
    columns = (
        "partition",
        "verdict",
        "from",
        "to",
        "intact",
        "messages",
        "batches",
        "first",
        "last",
        "findings",
    )
    return Section(
        title="Partitions",
        note="What lies before “from” was deleted by retention.",
        blocks=[
            card(
                "",
                shares(
                    [
                        Share(label=each, count=verdicts.count(each), kind=kind)
                        for each, kind in _VERDICTS.items()
                    ],
                    about="Partitions by verdict",
                ),
            ),
            card(
                "",
                table(
                    rows,
                    columns=columns,
                    numbers=columns[2:],
                    total=len(made.partitions),
                    rest=": the files have all",
                ),
            ),
        ],
    )


def _moment(row: Mapping[str, Any], name: str) -> str:
    """Return when the first or last message was stored; a partition known to be empty has none."""
    if row[name] is None and row["verdict"] == "sound" and not row["messages"]:
        return "-"
    return moment_text(None if row[name] is None else row[name] / 1000)


def _sizes(made: Audit, top: int) -> Section:
    blocks = [
        card(topic, bars(_bars(counts), about=f"Messages of {topic} by size"))
        for topic, counts in sorted(made.sizes.items())[:top]
        if any(counts)
    ]
    left = max(0, len(made.sizes) - top)
    return Section(
        title="Sizes of messages",
        note="Each message counts, with its key and headers, and compressed if it is stored so."
        + (f" {left} more topics are left out." if left else ""),
        blocks=blocks,
    )


def _bars(counts: Sequence[int]) -> list[Bar]:
    used = [bits for bits, count in enumerate(counts) if count]
    return [
        Bar(
            label="0 B"
            if not bits
            else f"{size_text(1 << (bits - 1))} to {size_text((1 << bits) - 1)}",
            value=float(counts[bits]),
            shown=count_text(counts[bits]),
        )
        for bits in range(used[0], used[-1] + 1)
    ]


def _sum(made: Audit, name: str) -> int:
    return sum(row[name] or 0 for row in made.partitions)  # what was read: not of what cannot be
