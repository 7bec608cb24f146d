"""How fast the audit of contents is, per core, beside plain reads of the same bytes.

    python -m bench.spark_audit                    256 MiB of messages of 200 bytes and of 1 KiB
    python -m bench.spark_audit --mib 1024

ZooKeeper and one broker run as processes on this machine. Four figures for each size of message:
reading alone, reading and checking in one process, both in MB per second of processor time of that
process, so that other load on the machine counts little; the whole audit by Spark on two threads,
in MB per second of the clock; and the share of it that comparing message ids takes.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import vq
from pyspark_vq.connection import close_all, factory_of
from pyspark_vq.options import Connect
from pyspark_vq.reports import audit
from pyspark_vq.reports.contents import READ_BYTES, check_split
from pyspark_vq.reports.progress import Progress
from pyspark_vq.session import session
from vq import MessageFactoryConfig
from vq.admin import ContentCheck
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import Address
from vq.remoting.ports import free_port

CLUSTER: Final = "bench"
PARTITIONS: Final = 4
SIZES: Final = (200, 1024)
MIB: Final = 1 << 20


@contextmanager
def cluster(place: Path) -> Iterator[Connect]:
    """Run ZooKeeper and one broker; yield how to reach them."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedZooKeeper(place / "zookeeper"))
        broker = BrokerChild(
            BrokerSpec(
                data=place / "b1",
                group="b1",
                node="n1",
                address=Address("127.0.0.1", free_port()),
                zookeeper=server.hosts,
                cluster=CLUSTER,
            )
        )
        stack.callback(broker.stop)
        broker.start()
        broker.wait_ready(60)
        yield Connect(MessageFactoryConfig(zookeeper=server.hosts, cluster=CLUSTER))


def fill(connect: Connect, topic: str, size: int, total: int) -> int:
    """Send messages of a size; return how many."""
    factory = factory_of(connect)
    settings = vq.TopicSettings(partitions=PARTITIONS, flush="async")
    factory.admin.create_topic(topic, settings)
    count = total // size
    content = os.urandom(size - 12)
    with factory.create_producer() as producer:
        producer.publish(topic)
        for number in range(count):
            producer.send_async(vq.Message(topic, b"%12d" % number + content))
    return count


def read_alone(connect: Connect, wanted: audit.Wanted) -> tuple[int, float]:
    """Read all bytes and throw them away; return how many, and processor seconds."""
    read = factory_of(connect).admin.read_bytes
    size, begun = 0, time.process_time()
    for split in audit.read_layout(wanted).splits:
        at = split.start
        while at < split.end:
            most = min(READ_BYTES, split.end - at)
            at = read(split.topic, split.partition, at, max_bytes=most).next_offset
        size += split.end - split.start
    return size, time.process_time() - begun


def check_alone(connect: Connect, wanted: audit.Wanted) -> tuple[int, float]:
    """Read and check all bytes in this process; return how many, and processor seconds."""
    read = factory_of(connect).admin.read_bytes

    def forget(check: ContentCheck) -> None:
        check.take_messages()

    size, begun = 0, time.process_time()
    for split in audit.read_layout(wanted).splits:
        size += check_split(split, read, on_messages=forget).read_bytes
    return size, time.process_time() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="bytes of messages of each size")
    total = parser.parse_args().mib * MIB
    with tempfile.TemporaryDirectory(prefix="vq-bench-") as place, cluster(Path(place)) as connect:
        spark = session("vq-bench-audit", master="local[2]")
        spark.range(1000).rdd.map(lambda row: row[0]).sum()  # starts workers
        print("message    read/core   checked/core   audit on 2 threads   seconds, of ids")
        for size in SIZES:
            topic = f"t{size}"
            fill(connect, topic, size, total)
            wanted = audit.Wanted(connect=connect, now_s=time.time(), topics=[topic])
            read, read_s = read_alone(connect, wanted)
            checked, checked_s = check_alone(connect, wanted)
            steps: dict[str, float] = {}
            begun = time.monotonic()
            made = audit.audit(spark, wanted, _Noted(steps))
            took = time.monotonic() - begun
            assert made.total == 0, made.findings
            print(
                f"{size:>6} B  {read / read_s / 1e6:>7.0f} MB/s  {checked / checked_s / 1e6:>9.0f} "
                f"MB/s  {made.read_bytes / took / 1e6:>14.0f} MB/s  {took:>9.1f}, "
                f"{steps['message ids']:.1f}"
            )
        spark.stop()
        close_all()
    return 0


class _Noted(Progress):
    """Notes how long each step took."""

    def __init__(self, steps: dict[str, float]) -> None:
        super().__init__(None)
        self._steps = steps

    @contextmanager
    def step(self, what: str, context: object = None) -> Iterator[None]:  # type: ignore[override]
        begun = time.monotonic()
        yield
        self._steps[what] = time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main())
