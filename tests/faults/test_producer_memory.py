"""Far more messages than the buffer holds, while the broker stands still or hardly works.

    a million sends ──▶ buffer ──▶ broker ──✗ SIGSTOP

Goal: the memory of the sending process keeps to what ``buffer_bytes`` promises, and every message
that was accepted gets its outcome.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.faults import client_of, times
from support.filling_process import BUFFER_BYTES, SIZE

from vq.client.config import MESSAGE_OVERHEAD_BYTES
from vq.devtools.processes import BrokerChild
from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
#: "At most about twice as much" as ``buffer_bytes``.
GROWTH_MAX = 2 * BUFFER_BYTES
STANDS_S, GOES_S = 0.1, 0.02


@contextmanager
def hardly_working(broker: BrokerChild) -> Iterator[list[int]]:
    """Let a broker stand still most of the time; count how often it did."""
    ended = threading.Event()
    pauses = [0]

    def run() -> None:
        while not ended.is_set():
            broker.signal(signal.SIGSTOP)
            pauses[0] += 1
            ended.wait(STANDS_S)
            broker.signal(signal.SIGCONT)
            ended.wait(GOES_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield pauses
    finally:
        ended.set()
        thread.join()


def test_a_million_sends_keep_to_the_memory_of_the_buffer(processes: ProcessCluster) -> None:
    """First to a broker that is stopped, with sends refused; then to a slow one, with waiting."""
    count = times(200_000, 1_000_000)
    assert count * (SIZE + MESSAGE_OVERHEAD_BYTES) > 2 * GROWTH_MAX, "too few to need a bound"
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    command = [sys.executable, "-m", "support.filling_process"]
    command += [processes.zookeeper, processes.name, "t", str(count), str(os.getpid())]
    with subprocess.Popen(
        command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as filler:

        def told() -> dict[str, int]:
            assert filler.stdout is not None
            line = filler.stdout.readline()
            assert line, "the program ended"
            return json.loads(line)

        def stage() -> dict[str, int]:
            assert filler.stdin is not None
            filler.stdin.write("go\n")
            filler.stdin.flush()
            return told()

        told()
        broker.signal(signal.SIGSTOP)
        full = stage()
        broker.signal(signal.SIGCONT)
        settled = stage()
        with hardly_working(broker) as pauses:
            flowed = stage()
        closed = stage()
        assert filler.wait(PROCESSES_WAIT_S) == 0
    print(f"{count} sends: {full}, {settled}, {flowed} in {pauses[0]} pauses, {closed}")
    assert full["full"] > count // 4, "the buffer was not full: the run is void"
    assert full["accepted"] + full["full"] == count
    assert settled.get("sent") == full["accepted"], "each of them has one outcome"
    assert flowed["accepted"] == closed.get("sent") == count
    assert pauses[0] > 1, "the broker was not slow: the run is void"
    assert closed["growth"] < GROWTH_MAX, (
        f"it grew by {closed['growth'] / BUFFER_BYTES:.1f} buffers"
    )
    with client_of(processes) as factory, factory.create_consumer() as consumer:
        bounds = consumer.get_bounds("t", 0)
    assert bounds.latest > 0
