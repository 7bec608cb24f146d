"""``vq report``: reports on the whole cluster, made by Spark. Here are options and printing.

What a report reads, judges and writes is in ``pyspark_vq.reports``, which is imported when a report
is made: Spark is an extra. The programs in ``spark/`` call these commands, so that ``spark-submit``
runs the same.
"""

import contextlib
import functools
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from vq.cli.base.options import (
    Commands,
    Invocation,
    Seconds,
    Size,
    WholeNumber,
    command_options,
    flag,
    option,
    together,
)
from vq.clock import YEAR_S
from vq.errors import VqError
from vq.extras import install_command
from vq.operations.groups.lag_rules import LagThresholds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_vq.options import Connect
    from pyspark_vq.reports.lag import LagReport
    from pyspark_vq.reports.progress import Progress
from vq.cli.base.json_schema import shows
from vq.cli.reports import report_schemas

#: Rows that are shown, and drawn, of what may have very many.
TOP: Final = 20
TOP_MAX: Final = 1_000
#: Of the log of Spark's process, when it does not start.
_LOG_CHARS: Final = 2_000
#: The last line of a traceback of Python.
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\w.*)")
_NOT_THERE: Final = "the executors lack it: docs/howto/spark.md, on a cluster"


class SparkMissing(VqError):
    """Spark is not installed here."""

    hint = (
        f"{install_command('spark')}; Spark also needs Java 17 or later: {install_command('java')}"
    )


class SparkFailed(VqError):
    """Spark did not start, or a job of it failed; the message has its cause."""

    hint = "the cause is in the message; docs/howto/report-lag.md has the settings for size"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Where a report is written; None: nowhere.

    Attributes:
        out: Directory, or URL, of the history: Parquet, partitioned by snapshot.
        csv: File for the rows of this snapshot.
        html: File for the page.
    """

    out: str | None
    csv: Path | None
    html: Path | None

    def written(self) -> dict[str, str | None]:
        """Return the places as JSON has them."""
        texts = {"csv": self.csv, "html": self.html}
        return {
            "out": self.out,
            **{name: None if path is None else str(path) for name, path in texts.items()},
        }


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what all reports share: ``--out --csv --html --top --master --conf``.

    The command gets ``files``, ``top`` and ``start``, which takes the name of the report and
    returns a Spark session.
    """

    @functools.wraps(function)
    def call(
        *args: Any,
        out: str | None,
        csv: Path | None,
        html: Path | None,
        master: str,
        conf: Sequence[str],
        **rest: Any,
    ) -> Any:
        if out is not None and not out.strip():
            raise click.BadParameter("an empty text names no directory", param_hint="--out")
        files = ReportFiles(out=out, csv=csv, html=html)
        start = functools.partial(start_spark, master=master, conf=_pairs(conf))
        return function(*args, files=files, start=start, **rest)

    path = click.Path(dir_okay=False, path_type=Path)
    return together(
        option(
            "--out DIR",
            "Keep the history here, as Parquet; earlier snapshots in it show the trend.",
        ),
        option("--csv FILE", "Write all rows as CSV to this file.", path),
        option("--html FILE", "Write a page with charts to this file.", path),
        option(
            "--top N",
            "Show so many of each kind; the files have all.",
            WholeNumber(min=1, max=TOP_MAX),
            default=TOP,
        ),
        option(
            "--master URL", "Spark's master; spark-submit's own comes first.", default="local[*]"
        ),
        option("--conf KEY=VALUE ...", "A setting of Spark; may be repeated."),
    )(call)


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        key, found, value = each.partition("=")
        if not (found and key.startswith("spark.")):
            raise click.BadParameter(
                f"{each!r} is not a setting of Spark, such as spark.driver.memory=4g",
                param_hint="--conf",
            )
        pairs[key] = value
    return pairs


def start_spark(name: str, *, master: str, conf: Mapping[str, str]) -> "SparkSession":
    """Return the Spark session of a report.

    What Spark's own process says goes to a file: it would stand between our lines.

    Raises:
        SparkMissing: It is not installed.
        SparkFailed: It does not start.
        MissingPart: There is no Java.
    """
    try:
        from pyspark_vq.session import session, submitted
    except ImportError as error:
        raise missing(error) from error
    if master.startswith("local") and not submitted():  # two waves of small tasks, not two hundred
        conf = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)), **conf}
    with _error_stream_aside() as said:
        try:
            started = session(name, master=master, conf=conf)
        except VqError:
            raise
        except Exception as error:
            told = said.read_text(errors="backslashreplace")[-_LOG_CHARS:].strip()
            raise SparkFailed(f"Spark does not start: {error}\n{told}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupted)
    return started


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """End a report at ctrl-C.

    Spark's own handler asks Java to cancel, in the middle of another call to Java: that fails, and
    py4j logs a page. Spark ends with this process.
    """
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt


def missing(error: ImportError) -> SparkMissing:
    """Return the error that says how to install what an import did not find."""
    return SparkMissing(f"a report needs Spark, and it is not installed: {error}")


@contextlib.contextmanager
def _error_stream_aside() -> Iterator[Path]:
    """Let processes that start meanwhile write their errors to a file; yield the file.

    They keep it as long as they run. Under ``spark-submit`` the process runs already.
    """
    handle, name = tempfile.mkstemp(prefix="vq-spark-", suffix=".log")
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(handle, 2)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        Path(name).unlink(missing_ok=True)  # who writes to it has it open


@contextlib.contextmanager
def told_failures() -> Iterator[None]:
    """Turn a failure of Spark into an error with its cause and without a page of Java.

    Raises:
        SparkFailed: With the cause.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SparkFailed(f"a job of Spark failed: {_cause(str(error)) or repr(error)}") from error


def _cause(said: str) -> str:
    """Return the line of an error of Spark that has its cause.

    An error of vq, else what a Python worker raised, else Java's innermost exception, else the
    outermost, else the first line.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if found := [line for line in lines if line.startswith(("vq.", "pyspark_vq."))]:
        return found[-1]
    if raised := _RAISED.findall(said):
        cause = str(raised[-1])
        return f"{cause}; {_NOT_THERE}" if cause.startswith("ModuleNotFoundError") else cause
    for start in ("Caused by: ", ": "):
        if found := [line for line in lines if line.startswith(start)]:
            return found[-1].removeprefix(start)
    return lines[0] if lines else ""


def progress_of(invocation: Invocation) -> "Progress":
    """Return what shows the steps of a report: nothing with ``--json``."""
    from pyspark_vq.reports.progress import Progress

    return Progress(None if invocation.output.as_json else sys.stderr)


@click.group(cls=Commands)
def report() -> None:
    """Report on the whole cluster with Spark: lag, capacity, and an audit of contents."""


# lag ------------------------------------------------------------------------------------------
@report.command(name="lag")
@report_options
@option(
    "--warn-seconds SECONDS",
    "Warn when the oldest message that a group has not handled is so old; 0: never.",
    Seconds(min=0, max=float(YEAR_S)),
    default=300.0,
)
@option("--warn-bytes BYTES", "Warn at so many bytes, such as 10G.", Size(min=1))
@option("--warn-messages N", "Warn at so many messages.", WholeNumber(min=1))
@option(
    "--stalled-after SECONDS",
    "A group that has something to do and commits nothing for so long is stalled.",
    Seconds(min=1, max=float(YEAR_S)),
    default=300.0,
)
@option(
    "--window N",
    "Take the trend from so many earlier snapshots.",
    WholeNumber(min=1, max=1_000),
    default=24,
)
@flag("--no-count", "Leave out the lag in messages: less work.")
@option(
    "--zookeeper-tasks N",
    "Read ZooKeeper with so many tasks at a time.",
    WholeNumber(min=1, max=64),
    default=4,
)
@option(
    "--broker-requests N",
    "Ask each broker for so many counts at a time.",
    WholeNumber(min=1, max=256),
    default=16,
)
@shows(report_schemas.LAG)
@command_options
def lag(
    invocation: Invocation,
    files: ReportFiles,
    top: int,
    start: Callable[[str], "SparkSession"],
    warn_seconds: float,
    warn_bytes: int | None,
    warn_messages: int | None,
    stalled_after: float,
    window: int,
    no_count: bool,
    zookeeper_tasks: int,
    broker_requests: int,
) -> None:
    """Report how far every consumer group is behind, in every partition.

    Each row has a verdict: ok, warning, stalled, stopped or unknown, and its cause. A broker that
    does not answer makes its rows unknown. With --out, earlier snapshots show the trend.
    """
    if no_count and warn_messages is not None:
        raise click.UsageError("--warn-messages needs the count: leave out --no-count")
    connect = connect_of(invocation)
    spark = start("vq-lag-report")
    from pyspark_vq.reports import lag as lag_reports
    from pyspark_vq.reports.lag_reading import Load

    wanted = lag_reports.Wanted(
        thresholds=LagThresholds(
            warn_s=warn_seconds or None,
            warn_bytes=warn_bytes,
            warn_messages=warn_messages,
            stalled_after_s=stalled_after,
        ),
        load=Load(
            zookeeper_tasks=zookeeper_tasks, broker_requests=broker_requests, count=not no_count
        ),
        out=files.out,
        window=window,
        top=top,
    )
    with (
        told_failures(),
        lag_reports.lag_report(spark, connect, wanted, progress_of(invocation)) as made,
    ):
        _write_lag(made, files)
        _show_lag(invocation, made, files)


def connect_of(invocation: Invocation) -> "Connect":
    """Return how to reach the cluster, which is there: Spark need not start to find out.

    Raises:
        UnknownCluster: No broker has ever registered; the error names the clusters there are.
        CoordinationError: ZooKeeper does not answer.
    """
    from vq.operations.base.connect import cluster_client

    config = invocation.client_config()

    async def look() -> None:
        async with cluster_client(config):
            pass

    invocation.run(look())
    try:
        from pyspark_vq.options import Connect
    except ImportError as error:
        raise missing(error) from error
    return Connect(config)


def _write_lag(made: "LagReport", files: ReportFiles) -> None:
    if files.csv is not None:
        from pyspark_vq.reports.lag import write_csv

        write_csv(made, files.csv)
    if files.html is not None:
        from pyspark_vq.reports.lag_page import lag_page
        from pyspark_vq.reports.outputs import write_text
        from pyspark_vq.reports.page import render

        write_text(render(lag_page(made)), files.html)


_LAG_COLUMNS: Final = (
    "verdict group topic partition owner lag_bytes lag_messages lag_seconds trend cause"
)
_ROLLED_COLUMNS: Final = (
    "name partitions stopped stalled warning unknown ok lag_bytes lag_messages lag_seconds skew"
)


def _show_lag(invocation: Invocation, made: "LagReport", files: ReportFiles) -> None:
    output = invocation.output
    if output.document(
        {
            "cluster": made.cluster,
            "snapshot": made.snapshot,
            "snapshot_s": int(made.now_s),
            "groups": made.groups,
            "rows": sum(made.verdicts.values()),
            "verdicts": dict(made.verdicts),
            "thresholds": asdict(made.wanted.thresholds),
            "rollups": {
                kind: [_with_lag_s(each, "of", "rank") for each in rows]
                for kind, rows in made.rollups.items()
            },
            "offenders": [_with_lag_s(each, "snapshot") for each in made.offenders],
            "silent": dict(made.silent),
            "files": files.written(),
        }
    ):
        return
    for kind in ("group", "topic", "broker", "pool"):
        rows = made.rollups[kind]
        if not rows:
            continue
        left_out = rows[0]["of"] - len(rows)
        more = f", {left_out} more are left out" if left_out else ""
        output.title(f"by {kind}{more}")
        output.table(
            [rolled_cells(row) for row in rows],
            columns=_ROLLED_COLUMNS,
            optional="skew",
        )
        output.title("")
    if made.offenders:
        output.title("worst partitions")
        output.table(
            made.offenders,
            columns=_LAG_COLUMNS,
            optional="owner trend topic partition",
        )
    sums = [row for rows in made.rollups.values() for row in rows]
    if any(row["filter"] for row in made.offenders) or any(
        row["lag_is_upper_bound"] for row in sums
    ):
        output.remark(
            "groups with a filter are among these: messages that it leaves out lie in their lag, "
            "too, so it is an upper bound"
        )
    for name, why in sorted(made.silent.items()):
        output.remark(f"broker group {name} is unknown: {why}")
    counts = ", ".join(f"{count} {name}" for name, count in made.verdicts.items() if count)
    output.remark(f"{sum(made.verdicts.values())} rows: {counts or 'there are no consumer groups'}")


def rolled_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of sums as a table shows it.

    The skew has three digits after the point. A sum that lacks what is unknown is a lower bound,
    and one in which messages lie that a group leaves out is an upper bound.
    """
    skew, found = row["skew"], dict(row)
    if row["lag_is_upper_bound"]:
        for name in ("lag_bytes", "lag_messages", "lag_seconds"):
            if row[name] is not None:
                found[name] = f"<= {row[name]}"
    for name, unknown in (("lag_bytes", "unknown_lags"), ("lag_messages", "unknown_messages")):
        if row[unknown] and row[name] is not None:
            found[name] = f">= {row[name]}"
    return {**found, "skew": None if skew is None else round(skew, 3)}


def _with_lag_s(row: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    found = {**row, "lag_s": row["lag_seconds"]}
    return {name: found[name] for name in found if name not in {"lag_seconds", *left_out}}
