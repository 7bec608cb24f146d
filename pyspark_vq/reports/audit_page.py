"""The audit of contents as one HTML page. Pure: an audit in, text out."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark_vq.reports.audit import Audit
from pyspark_vq.reports.charts import Bar, Html, Share, bars, shares
from pyspark_vq.reports.contents import UNKNOWN_KINDS
from pyspark_vq.reports.figures import UNKNOWN, count_text, moment_text, size_text
from pyspark_vq.reports.page import Page, Section, Tile, card, render, table, tag

__all__ = ["KINDS", "page"]

#: What each kind of finding means, in the order in which they are shown.
KINDS: Final = {
    "missing": "bytes are lost",
    "damaged": "no intact batch",
    "unreadable": "the medium does not deliver the bytes, or their archive is damaged",
    "archive": "the archive is not what the node knows of it",
    "differs": "a copy has another batch, and both are intact",
    "record": "the batch is as it was written, and a record in it never was sound",
    "sequence": "a batch of a producer is missing, or stored twice",
    "duplicate": "the message id is there before",
    "epoch": "it was written by an older master than the batch before",
    "time": "it was appended before the batch before",
    "unreachable": "nothing is known of it",
    "not_readable": "nothing is known of it: the topic is closed for reading",
}
_VERDICTS: Final = {"sound": "ok", "unknown": "unknown", "bad": "stopped"}


def page(made: Audit, *, top: int) -> str:
    """Return the page; ``top``: so many rows of each table."""
    return render(
        Page(
            title=f"Audit of contents of {made.cluster}",
            lead="Whether everything is there that topics should have, and is what was written.",
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
                    kind="stopped" if made.total > made.unknown else "ok",
                ),
                Tile(
                    label="ranges that could not be checked",
                    figure=count_text(made.unknown),
                    kind="unknown" if made.unknown else "ok",
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


def _findings(made: Audit, top: int) -> Section:
    counts = [
        Bar(
            label=f"{kind}: {meaning}",
            value=float(made.counts[kind]),
            shown=count_text(made.counts[kind]),
            kind="unknown" if kind in UNKNOWN_KINDS else "stopped",
        )
        for kind, meaning in KINDS.items()
        if made.counts.get(kind)
    ]
    rows = [
        (
            each.kind,
            f"{each.topic}-{each.partition}",
            f"[{each.start}, {'…' if each.end is None else each.end})",
            each.node,
            each.detail,
        )
        for each in made.findings[:top]
    ]
    blocks: list[Html] = []
    if counts:
        blocks.append(card("By kind", bars(counts, about="Findings by kind")))
    blocks.append(
        table(
            rows,
            columns=("kind", "partition", "offsets", "node", "what"),
            total=made.total,
            rest=": the files have more",
        )
    )
    return Section(
        title="Findings", note=" ".join(f"{note}." for note in made.notes), blocks=blocks
    )


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
            Html(tag(_VERDICTS[row["verdict"]]).replace(f">{_VERDICTS[row['verdict']]}<",
                                                        f">{row['verdict']}<")),
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
    ]  # fmt: skip
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
            shares(
                [
                    Share(label=each, count=verdicts.count(each), kind=kind)
                    for each, kind in _VERDICTS.items()
                ],
                about="Partitions by verdict",
            ),
            table(
                rows,
                columns=columns,
                numbers=columns[2:],
                total=len(made.partitions),
                rest=": the files have all",
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
