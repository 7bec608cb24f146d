"""How long the lag report takes, and how that grows: a thousand to a hundred thousand rows.

    python -m bench.spark_lag                  1 000, 10 000 and 100 000 group partitions
    python -m bench.spark_lag --sizes 10000    10 000 alone

ZooKeeper and two brokers run as processes on this machine. Ten topics of a hundred partitions have
messages; groups that read all of them are written into ZooKeeper, many nodes a transaction, each
with a committed offset of its own in each partition. So brokers measure each row: no two are alike.
A report of the smallest size is made first and not counted: Spark compiles its code in it.
"""

import argparse
import io
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

import vq
from pyspark_vq.options import Connect
from pyspark_vq.reports.lag import Wanted, lag_report
from pyspark_vq.reports.progress import Progress
from pyspark_vq.session import session
from vq import MessageFactoryConfig
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.message_filter import ALL
from vq.model import Address
from vq.remoting.ports import free_port

CLUSTER: Final = "bench"
TOPICS: Final = 10
PARTITIONS: Final = 100
MESSAGES: Final = 120
CONTENT: Final = b"x" * 200
#: Group partitions of the reports.
SIZES: Final = (1_000, 10_000, 100_000)
#: Nodes of one transaction.
STEP: Final = 500


@contextmanager
def cluster(place: Path) -> Iterator[str]:
    """Run ZooKeeper and two brokers; yield ZooKeeper's address."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedZooKeeper(place / "zookeeper", memory_mb=1_024))
        for group in ("b1", "b2"):
            broker = BrokerChild(
                BrokerSpec(
                    data=place / group,
                    group=group,
                    node="n1",
                    address=Address("127.0.0.1", free_port()),
                    zookeeper=server.hosts,
                    cluster=CLUSTER,
                )
            )
            broker.start()
            stack.callback(broker.stop)
            broker.wait_ready(120)
        yield server.hosts


def fill(zookeeper: str) -> dict[tuple[str, int], list[int]]:
    """Make the topics and send messages; return where each message of a partition begins."""
    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=CLUSTER)
    offsets: dict[tuple[str, int], list[int]] = {}
    with vq.MessageFactory(config) as factory:
        names = [f"topic-{number}" for number in range(TOPICS)]
        for name in names:
            factory.admin.create_topic(
                name, vq.TopicSettings(partitions=PARTITIONS, flush=vq.FlushMode.ASYNC)
            )
        producer = factory.create_producer()
        for name in names:
            sent = [
                producer.send_async(vq.Message(name, CONTENT, key=key), timeout=300)
                for _ in range(MESSAGES)
                for key in range(PARTITIONS)
            ]
            for each in sent:
                result = each.result(300)
                offsets.setdefault((name, result.partition), []).append(result.offset)
    return offsets


def add_groups(
    client: KazooClient, offsets: dict[tuple[str, int], list[int]], first: int, end: int
) -> None:
    """Write groups ``[first, end)``."""
    root, rng = f"/vq/{CLUSTER}/", random.Random(first)
    client.ensure_path(f"{root}consumers")
    contract = ConsumerGroup(topics={topic: ALL for topic, _ in offsets}).encode()
    now_ms = int(time.time() * 1000)
    for number in range(first, end):
        name = f"group-{number}"
        nodes = [
            (root + ConsumerGroup.path(name), contract),
            (f"{root}consumers/{name}/offsets", b""),
            *(
                (f"{root}consumers/{name}/offsets/{t}", b"")
                for t in sorted({t for t, _ in offsets})
            ),
        ]
        for (topic, partition), places in offsets.items():
            at = places[(number + rng.randrange(2)) % len(places)]
            value = CommittedOffset(offset=at, time_ms=now_ms, member="m").encode()
            nodes.append((root + CommittedOffset.path(name, topic, partition), value))
        for start in range(0, len(nodes), STEP):
            transaction = client.transaction()
            for path, data in nodes[start : start + STEP]:
                transaction.create(path, data)
            for answer in transaction.commit():
                if isinstance(answer, Exception):
                    raise answer


def processor_s() -> float:
    """Return the processor time of this process and all below it: Spark, brokers, ZooKeeper.

    It says what a report costs on a machine that others use, too. A process that has ended
    meanwhile does not count; those of a report stay.
    """
    parents, taken = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                taken[int(entry.name)] = int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= found
    return sum(taken.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def measured(connect: Connect, *, count: bool) -> tuple[int, float, float, list[str]]:
    """Make one report; return its rows, its time, that of processors, and those of its steps."""
    spark = session("vq-bench")
    steps = io.StringIO()
    wanted = Wanted()
    if not count:
        wanted = Wanted(load=type(wanted.load)(count=False))
    begun, begun_processor_s = time.monotonic(), processor_s()
    with lag_report(spark, connect, wanted, Progress(steps)) as made:
        taken, processor = time.monotonic() - begun, processor_s() - begun_processor_s
        return sum(made.verdicts.values()), taken, processor, steps.getvalue().splitlines()


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="numbers of rows, thousands, rising"
    )
    parser.add_argument("--place", type=Path, help="where to keep data meanwhile")
    given = parser.parse_args(arguments)
    whole = TOPICS * PARTITIONS
    with tempfile.TemporaryDirectory(dir=given.place) as place, cluster(Path(place)) as zookeeper:
        offsets = fill(zookeeper)
        client = KazooClient(zookeeper, timeout=60)
        client.start()
        conf = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
        session("vq-bench", conf={**conf, "spark.driver.memory": "2g"})
        connect = Connect(MessageFactoryConfig(zookeeper=zookeeper, cluster=CLUSTER))
        names = ("group partitions", "report", "processor", "per row", "no count", "processor")
        print(f"| {' | '.join(names)} |")
        print("| --- | --- | --- | --- | --- | --- |")
        add_groups(client, offsets, 0, 1)
        measured(connect, count=True)
        there = 1
        for size in given.sizes:
            add_groups(client, offsets, there, size // whole)
            there = size // whole
            rows, taken_s, used_s, steps = measured(connect, count=True)
            _, uncounted_s, uncounted_used_s, _ = measured(connect, count=False)
            assert rows == size, (rows, size)
            print(
                f"| {rows} | {taken_s:.1f} s | {used_s:.1f} s | {used_s / rows * 1e3:.2f} ms "
                f"| {uncounted_s:.1f} s | {uncounted_used_s:.1f} s |",
                flush=True,
            )
            print(*steps, sep="; ", file=sys.stderr, flush=True)
        client.stop()
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
