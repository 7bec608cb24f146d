"""A Spark session starts from parts that pip installs."""

import sys

import pytest
from pyspark.sql import SparkSession

from pyspark_vq import session

pytestmark = pytest.mark.slow


def test_a_session_runs_python_of_this_environment(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_the_session_of_the_process_is_used_again(spark: SparkSession) -> None:
    assert session.session("other") is spark


def test_a_submission_goes_before_the_defaults_and_keeps_its_address() -> None:
    """Executors on other machines cannot reach a driver that calls itself 127.0.0.1."""
    submitted = {
        "spark.master": "spark://master:7077",
        "spark.driver.host": "10.0.0.9",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    chosen = session.chosen_conf("spark://master:7077", submitted, {"spark.executor.cores": "2"})
    assert not submitted.keys() & chosen.keys()
    assert "spark.driver.bindAddress" not in chosen
    assert chosen["spark.log.level"] == "WARN"  # it says that there are no executors
    assert chosen["spark.executor.cores"] == "2"
    assert session.chosen_conf("local[2]", {}, {})["spark.driver.host"] == "127.0.0.1"
    assert session.chosen_conf("local[2]", {}, submitted)["spark.driver.host"] == "10.0.0.9"
