"""A Spark session starts from parts that pip installs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.java import SHORT_LIVED

from pyspark_vq import session
from vq.devtools.zookeeper import find_java

ROOT = Path(__file__).parents[2]

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


PROGRAM = """
from pyspark_vq.session import session

made = session("submitted", conf={"spark.sql.shuffle.partitions": "3"})
print("host", made.sparkContext.getConf().get("spark.driver.host"))
print("zone", made.conf.get("spark.sql.session.timeZone"))
print("pushdown", made.conf.get("spark.sql.python.filterPushdown.enabled"))
"""


@pytest.mark.long
def test_under_spark_submit_the_session_has_what_was_submitted(tmp_path: Path) -> None:
    """Only a real submission shows where Spark keeps its settings before there is a session.

    It starts a Java of its own; what is chosen of what was submitted, a test above says.
    """
    import pyspark

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    given = {
        "spark.driver.host": "localhost",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
    }
    settings = [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
    home = Path(pyspark.__file__).parent
    submit = [home / "bin" / "spark-submit", "--master", "local[1]", *settings, program]
    told = subprocess.run(
        submit,
        cwd=tmp_path,
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(session.java_home(find_java())),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == ["host localhost", "zone Asia/Tokyo", "pushdown true"]
