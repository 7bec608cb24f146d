"""Other settings and proposed moves on the page of the capacity report. Pure functions."""

from collections.abc import Collection, Mapping
from typing import Any

from pyspark_vq.reports.allocation import commands
from pyspark_vq.reports.capacity import Capacity
from pyspark_vq.reports.capacity_summary import Summary
from pyspark_vq.reports.charts import Bar, Html, bars, html
from pyspark_vq.reports.figures import count_text, size_text
from pyspark_vq.reports.page import Section, advice, card, pair, table


def what_ifs_section(summary: Summary, silent: Collection[str]) -> Section:
    """Return what other settings would free; of ``silent`` groups a node did not answer."""
    rows = [
        (
            row["group"],
            size_text(row["bytes_freed"]),
            count_text(row["blocks"]),
            advice(f"`{setting_command(row)}`", topic=row["topic"]),
            _note(row, silent),
        )
        for row in summary.what_ifs
    ]  # fmt: skip
    return Section(
        title="What other settings would free",
        note=(
            "Now, on all nodes of a group together: whole blocks that are old enough. With the "
            "policy keep, a consumer group that still needs messages holds them back."
        ),
        blocks=[
            card(
                "",
                table(
                    rows,
                    columns=("group", "frees", "blocks", "with", "note"),
                    numbers=("frees", "blocks"),
                    optional=("note",),
                ),
            )
        ],
    )


def setting_command(row: Mapping[str, Any]) -> str:
    """Return the command that makes a setting so, with ``{topic}`` for the topic."""
    if row["action"] == "retention":
        return f"vq topic alter {{topic}} --retention-hours {row['hours']}"
    hours = row["hours"]
    return f"vq topic alter {{topic}} --retention-policy archive --archive-after-hours {hours}"


def _note(row: Mapping[str, Any], silent: Collection[str]) -> str:
    notes = []
    if row["group"] in silent:
        notes.append("a node of the group did not answer")
    if row["action"] == "archive" and row["ratio_of"] == "cluster":
        notes.append("with the compression of other topics: this one has no archive yet")
    if row["action"] == "archive" and row["ratio_of"] is None:
        notes.append("no archive shows yet how well messages compress")
    if row["action"] == "archive" and row["ratio_of"] == "url":
        notes.append("archives go to a URL, off these disks")
    if row["unknown_blocks"]:
        notes.append(f"{row['unknown_blocks']} blocks tell no times, and may count too")
    return "; ".join(notes)


def plan_section(made: Capacity) -> Section:
    """Return the proposed moves, and the commands that make them."""
    moves = made.plan.moves
    rows = [
        (f"{m.topic}-{m.partition}", m.source, m.target, size_text(m.bytes_per_day), m.reason)
        for m in moves
    ]
    names = sorted(made.plan.before)
    before = [
        Bar(label=name, value=made.plan.before[name], shown=f"{made.plan.before[name]:.2%}")
        for name in names
    ]
    after = [
        Bar(
            label=name,
            value=made.plan.after[name],
            shown=f"{made.plan.after[name]:.2%}",
            kind="c3",
        )
        for name in names
    ]
    most = max([*made.plan.before.values(), *made.plan.after.values()], default=0.0)
    about = "Share of the free space that a day takes"
    blocks = [
        card(
            "",
            table(rows, columns=("partition", "from", "to", "a day", "why"), numbers=("a day",)),
        ),
        pair(card(f"{about}: now", bars(before, about=about, whole=most)),
             card(f"{about}: with the plan", bars(after, about=about, whole=most)))
        if names else Html(""),
    ]  # fmt: skip
    if moves:
        text = "\n".join(html(line) for line in commands(moves))
        blocks.append(card("Commands", Html(f"<pre>{text}</pre>")))
    notes = " ".join(f"{note}." for note in made.plan.notes)
    return Section(
        title="Proposed moves",
        note=(
            "So that disks fill evenly. A move copies nothing: the new group takes what is "
            f"appended from then on. {notes} Nothing was moved."
        ),
        blocks=blocks,
    )
