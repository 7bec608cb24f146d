"""The Python of Spark's workers, which has imported everything already.

    Spark ── -m pyspark.daemon ──▶ this one ── fork ──▶ a worker

Spark asks a new process how to read, what it may leave out, how to write, and for what a task does:
several for each query, and each takes most of a second to import what it needs. The daemon of
pyspark forks them, and imports nothing before that it does not need itself; this one does. What is
not the daemon is run as it is.
"""

import gc
import importlib
import os
import pkgutil
import runpy
import shlex
import sys
from pathlib import Path
from typing import Final

_DAEMON: Final = ["-m", "pyspark.daemon"]
#: What workers import; of vq, what a source and a sink use of it.
_PACKAGES: Final = ("pyspark.sql.worker", "pyspark_vq")
_MODULES: Final = ("pyspark.worker", "vq.blocking.factory", "vq.blocking.producer")
#: Threads of a library that survives a fork.
_THREADS: Final = {"jemalloc_bg_thd"}


def write_program(directory: Path) -> Path:
    """Write the program that Spark is to start instead of Python; return its path."""
    path = directory / "python"
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", __file__])} "$@"\n')
    path.chmod(0o755)
    return path


def _import_all() -> None:
    names = list(_MODULES)
    for name in _PACKAGES:
        package = importlib.import_module(name)
        names += [each.name for each in pkgutil.iter_modules(package.__path__, f"{name}.")]
    for name in names:
        importlib.import_module(name)
    tasks = Path("/proc/self/task").glob("*/comm")
    others = {path.read_text().strip() for path in tasks if path.parent.name != str(os.getpid())}
    if not others <= _THREADS:
        sys.exit(f"a process with threads must not fork: {sorted(others)}")
    gc.freeze()  # a collection in a worker would copy every page


if __name__ == "__main__":
    if sys.argv[1:3] != _DAEMON:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    sys.path.insert(0, os.getcwd())  # as ``-m`` does
    _import_all()
    sys.argv[1:3] = []
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
