"""What a report leaves behind: Parquet by snapshot, one CSV file, one page.

Files of one machine are written beside their name and get it when they are whole. Parquet may lie
wherever Spark writes; a snapshot is there whole or not at all.
"""

import contextlib
import csv
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pyspark_vq.reports.figures import visible

#: Rows in one file of Parquet, about.
FILE_ROWS: Final = 500_000
#: How a snapshot is named: the moment it began, in UTC. Names sort by time.
_SNAPSHOT: Final = "%Y%m%dT%H%M%SZ"
_NAME: Final = "^[0-9]{8}T[0-9]{6}Z$"
#: A cell that begins so is a formula to a spreadsheet; some take the wide signs of Asia as well.
_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def snapshot_name(seconds: float) -> str:
    """Return the name of the snapshot of a moment since 1970: ``20261126T134510Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_SNAPSHOT)


def snapshot_seconds(name: str) -> float:
    """Return the moment of a snapshot, in seconds since 1970.

    Raises:
        ValueError: That is no name of a snapshot.
    """
    return datetime.strptime(name, _SNAPSHOT).replace(tzinfo=UTC).timestamp()


# Parquet --------------------------------------------------------------------------------------
def write_snapshot(rows: DataFrame, directory: str, *, count: int) -> None:
    """Write rows as Parquet into ``directory``, partitioned by their column ``snapshot``.

    A snapshot of the same name is replaced; the others stay. ``count`` is about how many rows there
    are: few become one file.
    """
    (
        rows.coalesce(1 + count // FILE_ROWS)
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("snapshot")
        .parquet(directory)
    )


def read_snapshots(
    spark: SparkSession, directory: str, schema: StructType, *, before: str, at_most: int
) -> DataFrame | None:
    """Return the rows of the newest ``at_most`` snapshots before ``before``; None without any.

    ``schema`` says what columns to read; those that an older report did not write are null.
    """
    try:
        found = spark.read.schema(schema).parquet(directory)
        is_one = F.col("snapshot").rlike(_NAME) & (F.col("snapshot") < before)
        names = found.where(is_one).select("snapshot").distinct()
        newest = [row[0] for row in names.orderBy(F.desc("snapshot")).limit(at_most).collect()]
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    if not newest:
        return None
    return found.where(F.col("snapshot").isin(newest))


# One file -------------------------------------------------------------------------------------
def write_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], path: Path) -> int:
    """Write rows as CSV with a line of names; return how many rows.

    What is unknown is an empty cell. A text that a spreadsheet would take for a formula gets a
    ``'`` in front, and what cannot be seen is shown: names come from ZooKeeper, where anybody may
    have written them.
    """
    count = 0
    with _whole_file(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row[name]) for name in columns])
            count += 1
    return count


def write_text(text: str, path: Path) -> None:
    """Write one text file in UTF-8."""
    with _whole_file(path) as file:
        file.write(text)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    shown = visible(value)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[IO[str]]:
    """Open a file that gets its name at the end, if nothing failed until then.

    A link stays one. What is no file, such as ``/dev/stdout`` or a pipe, is written as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            yield stream
        return
    path = path.resolve()
    beside = path.with_name(f".vq-report.{secrets.token_hex(8)}")
    try:
        with beside.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
