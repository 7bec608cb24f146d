"""``vq bench`` against a real broker process: it measures, compares and leaves nothing."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import ProcessCluster, process_cluster
from support.zookeeper import ZooKeeperService

from vq.cli.bench.worker import Worker, on_schedule, run
from vq.cli.bench.workload import WorkFailed
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperService) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path, zookeeper.hosts) as made:
        made.add("b1")
        yield made


def test_every_part_is_measured_and_nothing_stays(cluster: ProcessCluster) -> None:
    rows = cluster.vq_json(
        "bench", "--messages", "2000", "--seconds", "0.2", "--partitions", "3", "--threads", "2",
        "--rate", "500",
    )  # fmt: skip
    assert [row["benchmark"] for row in rows] == [
        "send_async, 2 threads",
        "consume, a listener",
        "send_sync, 2 threads",
        "end to end, 500/s",
    ]
    assert all(row["per_second"] > 0 for row in rows)
    assert [row["messages"] for row in rows[:2]] == [2000, 2000]  # none seems to be missing
    assert 0 < rows[3]["p50_s"] <= rows[3]["p99_s"] <= rows[3]["max_s"]
    assert cluster.vq_json("topic", "list") == []
    assert cluster.vq_json("group", "list") == []


def test_a_topic_that_lacks_a_message_fails_the_work(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "t")
    client: dict[str, Any] = {"zookeeper": cluster.zookeeper, "cluster": cluster.name}
    with Worker("verify", client=client, topic="t", size=16, sent={"0": 1}) as worker:
        worker.wait_ready(PROCESSES_WAIT_S).go()
        with pytest.raises(WorkFailed, match="1 are missing"):
            worker.result(60)


def test_a_temporary_cluster_goes_when_the_measurement_is_told_to_end(tmp_path: Path) -> None:
    """SIGTERM: no process and no directory of it stays."""
    with subprocess.Popen(
        [sys.executable, "-m", "vq.cli.main", "bench", "--standalone", "--seconds", "3600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as running:
        assert running.stderr is not None
        while b"send_async" not in running.stderr.readline():
            assert running.poll() is None
        assert list(tmp_path.iterdir()) != []
        assert _processes_of(tmp_path) != []
        running.send_signal(signal.SIGTERM)
        assert running.wait(PROCESSES_WAIT_S) == 143
    assert list(tmp_path.iterdir()) == []
    block_until(lambda: _processes_of(tmp_path) == [], "ZooKeeper and the broker end")


def _processes_of(directory: Path) -> list[int]:
    """Return the processes whose command line names the directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
    return found


GARBAGE = b"".join(b"garbage %d\n" % number for number in range(500))


@pytest.mark.parametrize("work", ["receive_on_schedule", "consume"])
def test_contents_that_were_never_sent_fail_the_measurement(
    cluster: ProcessCluster, work: str
) -> None:
    """As many as were to come, and of the right size: only their contents tell."""
    cluster.vq_json("topic", "create", work)
    lines = [line.ljust(16, b"!") for line in GARBAGE.splitlines()]
    cluster.vq_json("produce", work, stdin=b"\n".join(lines) + b"\n")
    client: dict[str, Any] = {"zookeeper": cluster.zookeeper, "cluster": cluster.name}
    values: dict[str, Any] = {"client": client, "topic": work, "group": work, "size": 16}
    if work == "receive_on_schedule":
        values |= {"warm_up": 0, "rate": 1000}
    with Worker(work, count=500, **values) as worker:
        worker.wait_ready(PROCESSES_WAIT_S).go(begin_ns=0)
        with pytest.raises(WorkFailed, match="500 altered"):
            worker.result(60)


def test_a_message_beside_the_measured_ones_fails_the_bench(cluster: ProcessCluster) -> None:
    """What nobody sent is found when the topic is read back."""
    cluster.vq_json("topic", "create", "beside")
    client: dict[str, Any] = {"zookeeper": cluster.zookeeper, "cluster": cluster.name}
    values: dict[str, Any] = {"client": client, "topic": "beside", "size": 16}
    send = Worker("send_on_schedule", rate=1000, seconds=0.2, **values)
    receive = Worker("receive_on_schedule", group="b", count=200, warm_up=20, rate=1000, **values)
    with send, receive:
        sent, received = on_schedule(send, receive)
    assert (sent["sent"], received["messages"]) == ({"0": 200}, 180)
    assert 0 < received["latency_ms"]["p50"] <= received["latency_ms"]["max"]
    run("verify", sent=sent["sent"], **values)
    cluster.vq_json("produce", "beside", stdin=b"garbage\n")
    with pytest.raises(WorkFailed, match="1 altered"):
        run("verify", sent=sent["sent"], **values)


def test_every_client_begins_with_what_it_made_frozen(cluster: ProcessCluster) -> None:
    """The garbage collector's share is the same for every measured client, vq's or another's."""
    program = (
        "import gc, sys, vq.cli.bench.worker as w\n"
        "def look(ready):\n"
        "    ready()\n"
        "    return {'frozen': gc.get_freeze_count()}\n"
        "sys.exit(w.serve({'look': look}))"
    )
    with Worker("look", command=(sys.executable, "-c", program)) as worker:
        assert worker.wait_ready(PROCESSES_WAIT_S).go().result(PROCESSES_WAIT_S)["frozen"] > 1_000


def test_a_worker_that_says_nothing_is_given_up() -> None:
    silent = (sys.executable, "-c", "import sys; sys.stdin.read()")
    before = set(threading.enumerate())
    with Worker("nothing", command=silent) as worker, pytest.raises(WorkFailed, match="ended"):
        worker.wait_ready(0.2)
    block_until(lambda: set(threading.enumerate()) <= before, "the timer that ended it, ends too")
