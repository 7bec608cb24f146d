"""``vq report capacity``: options and printing. ``pyspark_vq.reports.capacity`` does the work."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vq.cli.base.options import Invocation, WholeNumber, command_options, option
from vq.cli.base.text import in_seconds
from vq.cli.reports.report import (
    ReportFiles,
    connect_of,
    missing,
    progress_of,
    report_options,
    told_failures,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_vq.reports.capacity import Capacity
    from pyspark_vq.reports.capacity_summary import Summary
from vq.cli.base.json_schema import shows
from vq.cli.reports import report_schemas

#: Below the directory of reports.
NAME: Final = "capacity"
_DISKS: Final = (
    "verdict group node directory bytes_used bytes_free growth_bytes_per_day full_in_days "
    "full_earliest_days full_latest_days settles_at_bytes reason"
)
_TOPICS: Final = (
    "topic partitions hot idle unknown bytes copies_disk_bytes bytes_per_day "
    "messages_per_day mean_message_bytes skew"
)
_PARTITIONS: Final = "verdict topic partition group bytes_per_day share reason"
_WHAT_IFS: Final = "topic action hours group bytes_freed blocks"
_MOVES: Final = "topic partition from to bytes_per_day reason"


@click.command(name=NAME)
@report_options
@option(
    "--plan FILE as plan_file",
    "Write the proposed moves to this file, as JSON.",
    click.Path(dir_okay=False, path_type=Path),
)
@option(
    "--history FILE as history_file",
    "How full disks were, from `vq console history export FILE`: a forecast at once.",
    click.Path(exists=True, dir_okay=False, path_type=Path),
)
@option(
    "--retention-hours HOURS ... as retention_hours",
    "Try this setting of retention and archives; may be repeated.  [some below each topic's]",
    WholeNumber(min=1, max=2**31),
)
@option(
    "--moves N as moves_max",
    "Propose at most so many moves.",
    WholeNumber(min=0, max=1_000),
    default=20,
)
@shows(report_schemas.CAPACITY)
@command_options
def capacity(
    invocation: Invocation,
    files: ReportFiles,
    top: int,
    start: "Callable[[str], SparkSession]",
    plan_file: Path | None,
    history_file: Path | None,
    retention_hours: Sequence[int],
    moves_max: int,
) -> None:
    """Report what grows, which disk is full when, and what frees space.

    A forecast takes six snapshots: run it again and again with the same --out, or give it the
    history of the web console. It proposes moves of partitions and makes none. A broker that does
    not answer makes its rows unknown.
    """
    connect = connect_of(invocation)
    shares = {} if history_file is None else _shares(history_file)
    spark = start("vq-capacity-report")
    from pyspark_vq.reports import capacity as reports
    from pyspark_vq.reports.capacity_summary import summarize

    progress = progress_of(invocation)
    wanted = reports.Wanted(
        connect=connect,
        now_s=now_s(),
        out=None if files.out is None else f"{files.out}/{NAME}",
        retention_hours=retention_hours,
        moves_max=moves_max,
        shares=shares,
    )
    with told_failures(), reports.measure(spark, wanted, progress) as made:
        summary = summarize(made, top, progress)
        with progress.step("writing", spark.sparkContext):
            _write(made, summary, files, plan_file, top=top)
        _show(invocation, made, summary, files, plan_file)


def _shares(path: Path) -> "Mapping[tuple[str, str], Sequence[tuple[float, float]]]":
    """Return what a file of the console's history says of disks.

    Raises:
        InvalidArgument: It is none.
        SparkMissing: Spark is not installed.
    """
    try:
        from pyspark_vq.reports.past import read_shares
    except ImportError as error:
        raise missing(error) from error
    with path.open(encoding="utf-8", errors="backslashreplace") as lines:
        return read_shares(lines)


def now_s() -> float:
    """Return the moment of a report, in seconds since 1970."""
    return time.time()


def _write(
    made: "Capacity", summary: "Summary", files: ReportFiles, plan_file: Path | None, *, top: int
) -> None:
    from pyspark_vq.reports import capacity as reports
    from pyspark_vq.reports.allocation import plan_document
    from pyspark_vq.reports.capacity_page import page
    from pyspark_vq.reports.outputs import write_text

    if files.out is not None:
        reports.write_history(made, f"{files.out}/{NAME}")
    if files.csv is not None:
        reports.write_csv(made, files.csv)
    if files.html is not None:
        write_text(page(made, summary, top=top), files.html)
    if plan_file is not None:
        text = json.dumps(plan_document(made.plan), indent=2, ensure_ascii=True)
        write_text(text + "\n", plan_file)


def _show(
    invocation: Invocation,
    made: "Capacity",
    summary: "Summary",
    files: ReportFiles,
    plan_file: Path | None,
) -> None:
    from pyspark_vq.reports.allocation import plan_document

    output, moves = invocation.output, plan_document(made.plan)
    if output.document(
        {
            "cluster": made.cluster,
            "snapshot": made.snapshot,
            "snapshot_s": int(made.now_s),
            "disks": list(made.disks),
            "topics": rows_json(summary.topics),
            "topic_count": summary.topic_count,
            "partitions": rows_json(summary.partitions),
            "verdicts": dict(summary.verdicts),
            "what_ifs": rows_json(summary.what_ifs),
            "rates": rows_json(summary.rates),
            "sizes": rows_json(summary.sizes),
            "bytes_per_day": summary.bytes_per_day,
            "messages_per_day": summary.messages_per_day,
            "plan": moves,
            "silent": silent_json(made.silent),
            "files": {
                **files.written(),
                "plan": None if plan_file is None else str(plan_file),
            },
        }
    ):
        return
    for title, rows, columns in (
        ("disks", made.disks, _DISKS),
        ("topics", summary.topics, _TOPICS),
        ("hot, idle and unknown partitions", summary.partitions, _PARTITIONS),
        ("other settings would free", summary.what_ifs, _WHAT_IFS),
        ("proposed moves", moves["moves"], _MOVES),
    ):
        if rows:
            output.title(title)
            output.table([_rounded(row, columns.split()) for row in rows], columns=columns)
            output.title("")
    for line in moves["commands"]:
        output.remark(line)
    for note in moves["notes"]:
        output.remark(note)
    for (group, node), why in sorted(made.silent.items()):
        output.remark(f"{group}/{node} is unknown: {why}")


def _rounded(row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a row; bytes and messages of a day as whole numbers."""
    found = {name: row[name] for name in columns}
    return {
        name: ""
        if value is None and name == "reason"
        else round(value, 3 if name in {"skew", "share"} or name.endswith("_days") else None)
        if isinstance(value, float)
        else value
        for name, value in found.items()
    }


def rows_json(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for JSON: moments, which end in ``_ms``, in seconds."""
    return [
        {
            f"{name[:-3]}_s" if name.endswith("_ms") else name: in_seconds(value)
            if name.endswith("_ms")
            else value
            for name, value in row.items()
        }
        for row in rows
    ]


def silent_json(silent: Mapping[tuple[str, str], str]) -> list[dict[str, str]]:
    """Return the nodes that did not answer, for JSON."""
    return [
        {"group": group, "node": node, "error": why}
        for (group, node), why in sorted(silent.items())
    ]
