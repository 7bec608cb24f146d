"""One Spark session for all Spark tests of a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_vq.session import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two threads; do not stop it."""
    scratch: Path = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        # The second compiler of Java pays off in minutes; tests take seconds.
        "spark.driver.extraJavaOptions": (
            f"-Dderby.system.home={scratch} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
        "spark.jars.ivy": str(scratch / "ivy"),
    }
    made = session("vq-tests", master="local[2]", conf=conf)
    yield made
    made.stop()


@pytest.fixture
def interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have Spark interpret plans for small tables: compiling and adapting them takes longer.

    A test without the session is left alone.
    """
    if "spark" not in request.fixturenames:
        yield
        return
    conf = request.getfixturevalue("spark").conf
    wanted = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    before = {name: conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        conf.set(name, value)
    yield
    for name, value in before.items():
        if value is None:
            conf.unset(name)
        else:
            conf.set(name, value)
