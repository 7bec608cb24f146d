"""The scenario of a broker group with copies, beside one without, in turns.

All brokers, ZooKeeper and the client share this machine: two nodes have twice the work of one, and
the client's beside it. Messages have 128 bytes, the topic one partition and ``flush = sync``.
"""

import asyncio
import itertools
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure, Target
from bench.processor import processor_s
from vq.cli.bench.workload import WorkFailed
from vq.devtools.processes import BrokerChild, ask_status

SIZE: Final = 128
RATE: Final = 5_000
IDLE_PARTITIONS: Final = 1_000
#: ZooKeeper ends the session of a dead broker after this time, the default of brokers.
SESSION_S: Final = 10.0
ALONE: Final = "one node"
SYNC: Final = "two nodes, sync"
ASYNC: Final = "two nodes, async"

TARGETS: Final = {
    f"pipelined, {SYNC}": Target(ratio_min=0.50),
    f"pipelined, {ASYNC}": Target(ratio_min=0.80),
    f"send at 5 000/s, {SYNC}, p99": Target(value_max=8.0),
    "catch-up of a new node": Target(ratio_min=1.0),
    "send_sync, one node, while another one catches up": Target(ratio_min=0.80),
    f"{IDLE_PARTITIONS} idle partitions, master": Target(value_max=3.0),
    f"{IDLE_PARTITIONS} idle partitions, copy": Target(value_max=3.0),
    "longest gap of acks, kill -9 of the master": Target(value_max=SESSION_S + 1),
    "longest gap of acks, planned switch": Target(value_max=0.5),
}
#: What a new node is to copy in a second: the baseline of that figure.
CATCH_UP_MB: Final = 200.0


def replication(context: Context) -> Rounds:
    """Throughput, latency, catch-up, idle cost and take-over of a group of two nodes.

    The baseline of throughput and latency is a group of one node in the same round.
    """
    with context.cluster() as alone, context.cluster(nodes=2) as copied:
        ways = {ALONE: (alone, "sync"), SYNC: (copied, "sync"), ASYNC: (copied, "async")}
        for cluster in (alone, copied):
            topic = cluster.topic()
            cluster.wait_in_sync()
            cluster.run("send_async", topic=topic, count=20_000, size=SIZE)
            cluster.drop(topic)
        for _ in range(context.rounds):
            figures = _throughput(context, ways)
            figures += _one_by_one(context, ways)
            figures += _on_schedule(context, ways)
            yield figures
    for _ in range(context.rounds):
        yield _catch_up(context)
    yield _idle(context)
    for _ in range(context.rounds):
        with context.cluster(nodes=2) as cluster:
            figures = _switch(cluster)
            figures += [
                Figure("longest gap of acks, kill -9 of the master", gap_after_kill(cluster), "s")
            ]
        yield figures


def _each(
    ways: dict[str, tuple[Cluster, str]], work: str, **values: Any
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Run a work in each way; read back what was acknowledged."""
    for name, (cluster, kind) in ways.items():
        topic = cluster.topic(replication=kind)
        cluster.wait_in_sync()
        measured = cluster.run(work, topic=topic, size=SIZE, **values)
        cluster.run("verify", topic=topic, size=SIZE, sent=measured["sent"])
        cluster.drop(topic)
        yield name, measured


def _throughput(context: Context, ways: dict[str, tuple[Cluster, str]]) -> list[Figure]:
    count = context.pick(1_000_000, 50_000)
    rates = {
        name: measured["messages"] / measured["seconds"]
        for name, measured in _each(ways, "send_async", count=count)
    }
    return [Figure(f"pipelined, {each}", rates[each], "msg/s", rates[ALONE]) for each in rates]


def _one_by_one(context: Context, ways: dict[str, tuple[Cluster, str]]) -> list[Figure]:
    seconds = 0.5 if context.quick else 4.0
    found = dict(_each(ways, "send_sync", seconds=seconds))
    rates = {name: own["messages"] / own["seconds"] for name, own in found.items()}
    return [
        Figure(f"send_sync, {name}", rate, "msg/s", rates[ALONE], details=found[name]["latency_ms"])
        for name, rate in rates.items()
    ]


def _on_schedule(context: Context, ways: dict[str, tuple[Cluster, str]]) -> list[Figure]:
    seconds, warm_up_s = (0.5, 0.2) if context.quick else (6.0, 1.0)
    load = {"rate": RATE, "seconds": seconds, "warm_up_s": warm_up_s}
    found = {
        name: measured["latency_ms"] for name, measured in _each(ways, "acks_on_schedule", **load)
    }
    return [
        Figure(f"send at 5 000/s, {name}, {p}", own[p], "ms", found[ALONE][p], details=own)
        for name, own in found.items()
        for p in ("p50", "p99")
    ]


# Catching up ------------------------------------------------------------------------------------
def _catch_up(context: Context) -> list[Figure]:
    """Start a second node with an empty disk beside a log; send one by one to another topic."""
    size = context.pick(1_500_000_000, 100_000_000)
    with context.cluster(nodes=2) as cluster:
        master, copy = cluster.nodes
        copy.stop()
        shutil.rmtree(copy.spec.data)
        old, new = cluster.topic(), cluster.topic()
        for number in range(5):  # the client has all contents of a run in memory
            cluster.run("send_async", topic=old, count=size // 5 // 1024, size=1024, stream=number)
        with cluster.worker("acks_over_time", topic=new, size=SIZE, stream=0) as sender:
            sender.wait_ready().go()
            sender.wait_ready()
            time.sleep(0.5)
            quiet = time.monotonic()
            time.sleep(1.0 if context.quick else 4.0)
            started = time.monotonic()
            copy.start()
            begin, end, copied = _watch(master, size)
            result = sender.go().result()
        cluster.run("verify", topic=new, size=SIZE, sent=result["sent"])
    rates = [
        sum(since <= each < until for each in result["times"]) / (until - since)
        for since, until in ((quiet, started), (begin, end))
    ]
    speed = copied / (end - begin) / 1e6
    return [
        Figure("catch-up of a new node", speed, "MB/s", CATCH_UP_MB),
        Figure("send_sync, one node, while another one catches up", rates[1], "msg/s", rates[0]),
    ]


def _watch(master: BrokerChild, size: int) -> tuple[float, float, int]:
    """Return when a copy began and ended to catch up with ``size`` bytes, and what it copied.

    It ends with one part in a hundred left: the rest is not much more than what is sent meanwhile.
    """
    deadline = time.monotonic() + 300
    first: tuple[float, int] | None = None
    while time.monotonic() < deadline:
        status = asyncio.run(ask_status(master.spec.address))
        now = time.monotonic()
        left = [copy.bytes_behind for copy in status.copies] if status is not None else []
        if left and first is None and left[0] > size // 2:
            first = now, left[0]
        if left and first is not None and left[0] < size // 100:
            return first[0], now, first[1] - left[0]
        time.sleep(0.02)
    raise WorkFailed("the new node did not catch up in 300 s")


# Idle -------------------------------------------------------------------------------------------
def _idle(context: Context) -> list[Figure]:
    """Many partitions with a message each, which nobody uses: the processor time of each node."""
    partitions = context.pick(IDLE_PARTITIONS, 100)
    with context.cluster(nodes=2) as cluster:
        topic = cluster.topic(partitions)
        cluster.run("send_one_each", topic=topic, partitions=partitions, size=SIZE)
        cluster.wait_in_sync()
        time.sleep(2.0)
        before, begin = [processor_s(each.pid) for each in cluster.nodes], time.monotonic()
        time.sleep(2.0 if context.quick else 20.0)
        took = time.monotonic() - begin
        used = [processor_s(each.pid) - at for each, at in zip(cluster.nodes, before, strict=True)]
    return [
        Figure(f"{IDLE_PARTITIONS} idle partitions, {name}", own / took * 100, "% of a core")
        for name, own in zip(("master", "copy"), used, strict=True)
    ]


# Take-over --------------------------------------------------------------------------------------
def longest_gap(cluster: Cluster, strike: Callable[[], None], lasts_s: float) -> float:
    """Send one by one, strike, and go on for a while; return the longest time without an ack.

    Everything is read back afterwards.
    """
    topic = cluster.topic()
    cluster.wait_in_sync()
    with cluster.worker("acks_over_time", topic=topic, size=SIZE, stream=0) as sender:
        sender.wait_ready().go()
        sender.wait_ready()
        time.sleep(1.0)
        begin = time.monotonic()
        strike()
        time.sleep(max(0.0, begin + lasts_s - time.monotonic()))
        result = sender.go().result()
    cluster.run("verify", topic=topic, size=SIZE, sent=result["sent"])
    return gap_around(result["times"], begin)


def gap_around(times: Sequence[float], begin: float) -> float:
    """Return the longest time between two acknowledgements of which one is after ``begin``."""
    gaps = [after - before for before, after in itertools.pairwise(times) if after >= begin]
    if not gaps:
        raise WorkFailed("no message was acknowledged afterwards")
    return max(gaps)


def gap_after_kill(cluster: Cluster) -> float:
    """Kill the master while a client sends; return the longest time without an ack."""
    master = cluster.master()
    return longest_gap(cluster, lambda: master.signal(signal.SIGKILL), SESSION_S + 5)


def _switch(cluster: Cluster) -> list[Figure]:
    """Hand the group over on purpose."""
    command = [sys.executable, "-m", "vq.cli.main", "cluster", "switch"]
    flags = ["--zookeeper", cluster.zookeeper, "--cluster", cluster.client["cluster"]]

    def strike() -> None:
        done = subprocess.run([*command, "b1", *flags], capture_output=True, text=True, check=False)
        if done.returncode:
            raise WorkFailed(f"vq cluster switch: {done.stderr}")

    gap = longest_gap(cluster, strike, 4.0)
    return [Figure("longest gap of acks, planned switch", gap, "s")]
