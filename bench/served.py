"""A server of HTTP beside the cluster of a scenario."""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.cluster import Cluster
from vq.cli.bench.workload import WorkFailed
from vq.remoting.ports import free_port

START_S: Final = 60.0


@contextlib.contextmanager
def served(cluster: Cluster, words: Sequence[str], path: str) -> Iterator[tuple[str, int]]:
    """Run a command of vq that serves; return its address, and its process.

    Args:
        cluster: Whose.
        words: The command.
        path: Answers once it serves.
    """
    port = free_port()
    client = cluster.client
    command = [sys.executable, "-m", "vq.cli.main", *words, "--port", str(port)]
    command += ["--zookeeper", client["zookeeper"], "--cluster", client["cluster"]]
    log = Path(cluster.directory) / f"{words[0]}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _answers(url + path):
            if process.poll() is not None or time.monotonic() > deadline:
                raise WorkFailed(f"vq {words[0]} does not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
