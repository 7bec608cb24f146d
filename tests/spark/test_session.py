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
