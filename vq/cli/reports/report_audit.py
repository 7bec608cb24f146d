"""``vq report audit``: options and printing. ``pyspark_vq.reports.audit`` does the work."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.options import Invocation, WholeNumber, command_options, flag, option
from vq.cli.reports.report import (
    ReportFiles,
    connect_of,
    progress_of,
    report_options,
    told_failures,
)
from vq.cli.reports.report_capacity import rows_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_vq.reports.audit import Audit
from vq.cli.base.json_schema import shows
from vq.cli.reports import report_schemas

#: Below the directory of reports.
NAME: Final = "audit"
_FINDINGS: Final = "kind topic partition start end node detail"
_PARTITIONS: Final = "topic partition verdict start end bytes messages batches findings"


@click.command(name=NAME)
@report_options
@option(
    "--topic NAME ... as topics",
    "Only this one; may be repeated.  [all topics]",
    shell_complete=topic_names,
)
@flag("--no-copies", "Read masters only: compare no copies.")
@flag("--no-archives", "Have no node verify its archives whole.")
@option(
    "--findings N as findings_max",
    "Tell at most so many findings; all are counted.",
    WholeNumber(min=1, max=100_000),
    default=1_000,
)
@shows(report_schemas.AUDIT)
@command_options
def audit(
    invocation: Invocation,
    files: ReportFiles,
    top: int,
    start: "Callable[[str], SparkSession]",
    topics: Sequence[str],
    no_copies: bool,
    no_archives: bool,
    findings_max: int,
) -> None:
    """Check the stored contents of topics: checksums, gaps, duplicates, order, copies, archives.

    Reads every byte of every master and its copies in sync, archives too. Changes nothing. Exit
    code 0: all is sound; 1: something is wrong, or could not be checked.
    """
    connect = connect_of(invocation)
    spark = start("vq-content-audit")
    from pyspark_vq.reports import audit as reports
    from pyspark_vq.reports.audit_page import page
    from pyspark_vq.reports.outputs import write_text

    progress = progress_of(invocation)
    wanted = reports.Wanted(
        connect=connect,
        now_s=time.time(),
        topics=topics,
        copies=not no_copies,
        archives=not no_archives,
        findings_max=findings_max,
    )
    with told_failures():
        made = reports.audit(spark, wanted, progress)
        with progress.step("writing", spark.sparkContext):
            if files.out is not None:
                reports.write_history(spark, made, f"{files.out}/{NAME}")
            if files.csv is not None:
                reports.write_csv(made, files.csv)
            if files.html is not None:
                write_text(page(made, top=top), files.html)
    _show(invocation, made, files, top)
    wrong = made.total - made.unknown
    if made.total:
        raise CommandFailed(
            f"{wrong} findings, and {made.unknown} ranges could not be checked; "
            "docs/howto/audit-contents.md says what to do",
            outcome="failed" if wrong else "unknown",
            retriable=not wrong,
            facts={"findings": wrong, "unknown": made.unknown},
        )


def _show(invocation: Invocation, made: "Audit", files: ReportFiles, top: int) -> None:
    output = invocation.output
    findings = [asdict(each) for each in made.findings]
    if output.document(
        {
            "cluster": made.cluster,
            "snapshot": made.snapshot,
            "snapshot_s": int(made.now_s),
            "sound": not made.total,
            "total": made.total,
            "counts": dict(made.counts),
            "findings": findings,
            "partitions": rows_json(made.partitions),
            "sizes": {topic: list(counts) for topic, counts in made.sizes.items()},
            "archives": made.archives,
            "read_bytes": made.read_bytes,
            "compared_bytes": made.compared_bytes,
            "notes": list(made.notes),
            "files": files.written(),
        }
    ):
        return
    if findings:
        output.title("findings")
        output.table(findings[:top], columns=_FINDINGS)
        output.title("")
    if made.partitions:
        output.title("partitions")
        output.table(
            made.partitions[:top],
            columns=_PARTITIONS,
        )
    for note in made.notes:
        output.remark(note)
    counts = ", ".join(f"{count} {kind}" for kind, count in made.counts.items())
    output.remark(
        f"{len(made.partitions)} partitions, {made.read_bytes} bytes of masters and "
        f"{made.compared_bytes} of copies read: {counts or 'all is sound'}"
    )
