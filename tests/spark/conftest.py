"""One Spark session for all Spark tests of a process, and a cluster for those of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.cluster import ProcessCluster, process_cluster
from support.faults import broker_settings, client_of
from support.java import SHORT_LIVED
from support.zookeeper import ZooKeeperService

import vq
from pyspark_vq.connection import close_all
from pyspark_vq.session import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two threads, which tries a task twice; do not stop it."""
    scratch: Path = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch} {SHORT_LIVED}",
        "spark.jars.ivy": str(scratch / "ivy"),
        # Plans for small tables are interpreted: compiling and adapting them takes longer.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        # Otherwise each call on a column asks Java and the stack where it was called.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    made = session("vq-tests", master="local[2,2]", conf=conf)
    yield made
    made.stop()


#: The smallest blocks, so that a topic has several; retention is looked at all the time.
BROKER = {"block_bytes": 8 << 20, "session_timeout_s": 4.0, "retention_interval_s": 0.2}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    """Two broker groups for all tests of a module; a test that hurts one heals it."""
    directory = tmp_path_factory.mktemp("brokers")
    settings = broker_settings(directory / "broker.toml", **BROKER)
    with process_cluster(directory, zookeeper.hosts) as made:
        made.add_all("b1", "b2", more=settings)
        yield made
        close_all()  # clients of this process, which a test may have used instead of Spark's


@pytest.fixture(scope="module")
def factory(cluster: ProcessCluster) -> Iterator[vq.MessageFactory]:
    """A client of that cluster."""
    with client_of(cluster) as made:
        yield made
