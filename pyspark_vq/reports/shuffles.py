"""How many tasks the shuffles of a report have, where nobody has said so.

Spark's default of 200 is for many gigabytes: of a small cluster nearly all of them are empty, and
each takes some ten milliseconds, more where executors are busy. Reports keep what they have read,
and Spark does not join small tasks before a table that is kept.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

from pyspark.sql import SparkSession

SETTING: Final = "spark.sql.shuffle.partitions"
#: A task sorts so many rows in a few hundred megabytes.
TASK_ROWS: Final = 100_000


def tasks_for(rows: int, cores: int) -> int:
    """Return how many tasks shuffle so many rows: at least two waves of them, of equal size."""
    return max(2 * cores, -(-rows // TASK_ROWS))


@contextlib.contextmanager
def fitting_shuffles(spark: SparkSession, rows: int) -> Iterator[None]:
    """Have shuffles fit ``rows`` while the block runs, unless the session has a number already.

    A session has one that was submitted, is in ``spark-defaults.conf``, or was set by its user.
    """
    if SETTING in spark.conf.getAll:
        yield
        return
    spark.conf.set(SETTING, str(tasks_for(rows, spark.sparkContext.defaultParallelism)))
    try:
        yield
    finally:
        spark.conf.unset(SETTING)
