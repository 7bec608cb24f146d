"""What real processes serve over HTTP: a broker, and the exporter of lags."""

import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.cluster import ProcessCluster
from support.http import samples

from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow


def fetch(port: int, path: str) -> tuple[int, str]:
    """Return status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_broker_process_serves_metrics_and_says_so(processes: ProcessCluster) -> None:
    """Its port is in ZooKeeper, the status and the log; the process has numbers of its own."""
    port = processes.hold_port()
    broker = processes.add("b1", "--metrics-port", str(port))
    assert processes.vq("topic", "create", "t").returncode == 0
    assert processes.vq("produce", "t", stdin=b"one\ntwo\n").returncode == 0
    assert fetch(port, "/healthz") == (200, "ok\n")
    assert fetch(port, "/readyz") == (200, "ready\n")
    found = samples(fetch(port, "/metrics")[1])
    assert found["vq_appended_messages_total"] == 2
    assert found["vq_acknowledgement_seconds_count"] >= 1
    assert found["process_resident_memory_bytes"] > 0
    (row,) = processes.vq_json("cluster", "status")
    assert row["metrics_port"] == port
    assert f"http://127.0.0.1:{port}/metrics" in broker.spec.log.read_text()


def test_scrapes_leave_no_thread_behind(processes: ProcessCluster) -> None:
    """They are answered by the broker's own loop."""
    port = processes.hold_port()
    broker = processes.add("b1", "--metrics-port", str(port))

    def threads() -> int:
        with open(f"/proc/{broker.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))

    fetch(port, "/metrics")
    before = threads()
    peers = [threading.Thread(target=fetch, args=(port, "/metrics")) for _ in range(8)]
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join()
    assert threads() <= before


@contextmanager
def exporting(
    processes: ProcessCluster, *options: str
) -> Iterator[tuple[int, Callable[[], dict[str, float]]]]:
    """Run an exporter; yield its port, and what reads its metrics, none while it starts.

    It ends with 0 at SIGTERM.
    """
    port = processes.hold_port()
    exporter = subprocess.Popen(
        processes.command("lag-exporter", "--port", str(port), *options),
        env=processes.environ,
        stderr=subprocess.DEVNULL,
    )

    def found() -> dict[str, float]:
        try:
            return samples(fetch(port, "/metrics")[1])
        except OSError:
            return {}

    try:
        yield port, found
    finally:
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(PROCESSES_WAIT_S) == 0


def test_the_exporter_tells_the_lag_of_groups(processes: ProcessCluster) -> None:
    """It ends with 0 at SIGTERM."""
    processes.add("b1")
    assert processes.vq("topic", "create", "t", "--partitions", "1").returncode == 0
    assert processes.vq("produce", "t", stdin=b"one\ntwo\nthree\n").returncode == 0
    read = processes.vq("consume", "t", "--group", "g", "--max", "1")
    assert read.returncode == 0
    with exporting(processes, "--interval", "1") as (port, found):
        labels = '{group="g",partition="0",topic="t"}'
        block_until(lambda: found().get(f"vq_group_lag_messages{labels}") == 2, found)
        assert found()[f"vq_group_lag_bytes{labels}"] > 0
        assert found()[f"vq_group_lag_seconds{labels}"] > 0
        assert found()['vq_group_members{group="g"}'] == 0
        assert fetch(port, "/readyz") == (200, "ready\n")


def test_the_probe_outlives_a_broker_that_is_killed(processes: ProcessCluster) -> None:
    """Sends to it fail, those to the other group do not, and nothing is lost."""
    processes.add_all("b1", "b2")

    with exporting(processes, "--probe") as (_, found):

        def told(what: str, group: str) -> float:
            return found().get(f'vq_probe_{what}{{broker_group="{group}"}}', -1)

        for group in ("b1", "b2"):
            block_until(lambda group=group: told("received_total", group) > 0, found)  # type: ignore[misc]
        processes.brokers["b2"].kill()
        block_until(lambda: told("failed_total", "b2") > 0, found)
        before = told("received_total", "b2")
        assert before > 0
        processes.restart("b2")
        block_until(lambda: told("received_total", "b2") > before, found)
        assert told("lost_total", "b2") == told("lost_total", "b1") == 0
        assert told("failed_total", "b1") == 0
