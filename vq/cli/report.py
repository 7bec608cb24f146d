"""``vq report``: reports on the whole cluster, made by Spark. Here are options and printing.

What a report reads, judges and writes is in ``pyspark_vq.reports``, which is imported when a report
is made: Spark is an extra. The programs in ``spark/`` call these commands, so that ``spark-submit``
runs the same.
"""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from vq.cli.errors import CommandFailed
from vq.cli.options import Commands, Invocation, Seconds, Size, WholeNumber, command_options
from vq.errors import VqError
from vq.limits import GIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_vq.reports.lag import LagReport
    from pyspark_vq.reports.progress import Progress

#: Rows that are shown, and drawn, of what may have very many.
TOP: Final = 20
TOP_MAX: Final = 1_000
#: Of the log of Spark's process, when it does not start.
_LOG_CHARS: Final = 2_000
_YEAR_S: Final = 366 * 86_400.0


class SparkMissing(VqError):
    """Spark is not installed here."""

    hint = "pip install 'vq[spark]'; Spark also needs Java 17 or later: pip install 'vq[java]'"


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
        files = ReportFiles(out=out, csv=csv, html=html)
        start = functools.partial(start_spark, master=master, conf=_pairs(conf))
        return function(*args, files=files, start=start, **rest)

    path = click.Path(dir_okay=False, path_type=Path)
    for decorate in reversed(
        (
            click.option(
                "--out",
                metavar="DIR",
                help="Keep the history here, as Parquet; earlier snapshots in it show the trend.",
            ),
            click.option(
                "--csv", type=path, metavar="FILE", help="Write all rows as CSV to this file."
            ),
            click.option(
                "--html", type=path, metavar="FILE", help="Write a page with charts to this file."
            ),
            click.option(
                "--top",
                type=WholeNumber(min=1, max=TOP_MAX),
                metavar="N",
                default=TOP,
                show_default=True,
                help="Show so many of each kind; the files have all.",
            ),
            click.option(
                "--master",
                metavar="URL",
                default="local[*]",
                show_default=True,
                help="Spark's master; spark-submit's own comes first.",
            ),
            click.option(
                "--conf",
                multiple=True,
                metavar="KEY=VALUE",
                help="A setting of Spark; may be repeated.",
            ),
        )
    ):
        call = decorate(call)
    return call


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for each in given:
        key, found, value = each.partition("=")
        if not (found and key.startswith("spark.")):
            raise click.BadParameter(
                f"{each!r} is no setting of Spark, such as spark.driver.memory=4g",
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
        from pyspark_vq.session import session
    except ImportError as error:
        raise SparkMissing(f"a report needs Spark, and it is not installed: {error}") from error
    with _error_stream_aside() as said:
        try:
            return session(name, master=master, conf=conf)
        except VqError:
            raise
        except Exception as error:
            told = said.read_text(errors="backslashreplace")[-_LOG_CHARS:].strip()
            raise SparkFailed(f"Spark does not start: {error}\n{told}") from error


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
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        named = [line for line in lines if line.startswith(("vq.", "pyspark_vq."))]
        raise SparkFailed(
            f"a job of Spark failed: {(named or lines or [repr(error)])[-1 if named else 0]}"
        ) from error


def progress_of(invocation: Invocation) -> "Progress":
    """Return what shows the steps of a report: nothing with ``--json``."""
    from pyspark_vq.reports.progress import Progress

    return Progress(None if invocation.output.as_json else sys.stderr)


@click.group(cls=Commands)
def report() -> None:
    """Report on the whole cluster with Spark: the lag of consumer groups."""
