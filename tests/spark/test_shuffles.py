"""Reports choose how many tasks their shuffles have, unless somebody has said so."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_vq.reports.shuffles import SETTING, fitting_shuffles, tasks_for


@pytest.mark.parametrize(
    ("rows", "cores", "tasks"),
    [(0, 1, 2), (12, 8, 16), (1_600_000, 8, 16), (1_600_001, 8, 17), (20_000_000, 8, 200)],
)
def test_two_tasks_a_core_are_least_and_many_rows_take_more(
    rows: int, cores: int, tasks: int
) -> None:
    assert tasks_for(rows, cores) == tasks


@pytest.fixture
def unset(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of the tests, of which nobody has said how many tasks shuffle."""
    before = spark.conf.get(SETTING)
    spark.conf.unset(SETTING)
    yield spark
    spark.conf.set(SETTING, before)


@pytest.mark.slow
def test_shuffles_fit_for_as_long_as_the_report_is_made(unset: SparkSession) -> None:
    default = unset.conf.get(SETTING)
    with fitting_shuffles(unset, 900_000):
        assert unset.conf.get(SETTING) == "9"
    assert unset.conf.get(SETTING) == default
    assert SETTING not in unset.conf.getAll


@pytest.mark.slow
def test_a_number_that_was_submitted_or_set_stays(spark: SparkSession) -> None:
    """The session of the tests was made with 2, as ``spark-submit --conf`` makes one."""
    with fitting_shuffles(spark, 900_000):
        assert spark.conf.get(SETTING) == "2"
    assert spark.conf.get(SETTING) == "2"
