"""Spark reading a topic: against vq's plain client, the disk, and Spark's own Kafka source.

    python -m bench.spark_read [--count 1000000] [--size 100] [--rounds 8]

The works run in turns in one Spark session with two threads, on one broker of each kind, and read
the same messages. A query counts the messages and sums the lengths of their contents. Processor
time is that of this process with all its children, so of Spark's JVM and its Python workers; that
of the brokers is shown beside it. MB are 10**6 bytes of contents; medians of all rounds but the
first three, in which the JVM compiles its code.

Kafka is measured if ``KAFKA_JARS`` names the directory of its server (see ``bench.peers.kafka``),
and ``SPARK_KAFKA_JARS`` one with spark-sql-kafka-0-10_2.13, spark-token-provider-kafka-0-10_2.13,
kafka-clients and commons-pool2.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

import vq
from bench.cluster import cluster
from bench.figures import markdown_table
from bench.peers import kafka
from bench.peers.peer import PAGE_CACHE, Missing
from bench.processor import processor_s
from pyspark_vq.session import session

PARTITIONS: Final = 2
TOPIC: Final = "messages"
_READ_BYTES: Final = 1 << 20
#: Rounds in which the JVM compiles its code: a query takes up to ten times as long.
_WARM: Final = 3
#: Needed by Spark's Kafka source.
_CONNECTOR: Final = (
    "spark-sql-kafka-0-10_2.13-*.jar",
    "spark-token-provider-kafka-0-10_2.13-*.jar",
    "kafka-clients-*.jar",
    "commons-pool2-*.jar",
)


@dataclass
class Work:
    """What is measured: it returns how many messages it saw, and the bytes of their contents."""

    name: str
    run: Callable[[], tuple[int, int]]
    broker_pid: int | None = None
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    broker: list[float] = field(default_factory=list)

    def measure(self, count: int, size: int) -> None:
        """Run it once and note the times.

        Raises:
            AssertionError: It did not see what was sent.
        """
        own, other = _own_processor_s(), _processor_s(self.broker_pid)
        begin = time.perf_counter()
        seen, seen_bytes = self.run()
        self.seconds.append(time.perf_counter() - begin)
        self.processor.append(_own_processor_s() - own)
        self.broker.append(_processor_s(self.broker_pid) - other)
        assert seen in {count, 0}, f"{self.name}: {seen} messages instead of {count}"
        assert seen_bytes == count * size or not seen, f"{self.name}: {seen_bytes} bytes"

    def row(self, count: int, size: int) -> list[str]:
        """Return the figures of all rounds but the first ones."""
        wall, own, broker = (
            statistics.median(each[_WARM:] or each)
            for each in (self.seconds, self.processor, self.broker)
        )
        per_core = count / (own + broker) if own + broker > 0 else 0.0
        return [
            self.name,
            f"{count / wall:,.0f}",
            f"{count * size / wall / 1e6:,.0f}",
            f"{own:.2f}",
            f"{broker:.2f}",
            f"{per_core:,.0f}",
        ]


def _processor_s(pid: int | None) -> float:
    return 0.0 if pid is None else processor_s(pid)


def _own_processor_s() -> float:
    """Return the processor time of this process and all its descendants, ended ones included."""
    children: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(place.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        times[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        if pid in times and pid not in NOT_OWN:
            found += times[pid]
            waiting += children.get(pid, [])
    return found


#: Servers that this process has started.
NOT_OWN: Final[set[int]] = set()


def produce(config: vq.MessageFactoryConfig, count: int, size: int) -> None:
    """Send the messages."""
    settings = vq.TopicSettings(partitions=PARTITIONS, flush="async", retention_hours=None)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        factory.admin.create_topic(TOPIC, settings)
        content = os.urandom(size)
        for number in range(count):
            producer.send_async(vq.Message(TOPIC, content, key=number))
        producer.flush()


# Works ------------------------------------------------------------------------------------------
def plain_client(config: vq.MessageFactoryConfig) -> tuple[int, int]:
    """Read as a consumer does by position: a Python object for each message."""
    seen = seen_bytes = 0
    with vq.MessageFactory(config) as factory, factory.create_consumer() as consumer:
        for number in range(PARTITIONS):
            bounds = consumer.get_bounds(TOPIC, number)
            at = bounds.earliest
            while at < bounds.latest:
                some = consumer.get(TOPIC, number, at, _READ_BYTES)
                seen += len(some)
                seen_bytes += sum(len(each.content) for each in some)
                at = some[-1].next_offset
    return seen, seen_bytes


def columns_of_client(
    config: vq.MessageFactoryConfig, topic: str = TOPIC, *, archives_directly: bool = False
) -> tuple[int, int]:
    """Read columns: what a task of Spark does, without Spark."""
    seen = seen_bytes = 0
    with vq.MessageFactory(config) as factory:
        for number, ends in factory.admin.bounds(topic).items():
            assert ends is not None
            for each in factory.admin.read_columns(
                topic, number, ends.earliest, ends.latest, archives_directly=archives_directly
            ):
                seen += each.table.rows
                assert each.table.value is not None
                seen_bytes += len(each.table.value.data)
    return seen, seen_bytes


def disk(data: Path) -> tuple[int, int]:
    """Read the files of the topic, from memory if the system has them there."""
    for path in sorted((data / TOPIC).rglob("*.block")):
        with path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass
    return 0, 0


def query(frame: DataFrame) -> tuple[int, int]:
    """Count messages, and sum the lengths of their contents."""
    [row] = frame.selectExpr("count(*)", "sum(length(value))").collect()
    return row[0], row[1]


def vq_frame(
    spark: SparkSession,
    config: vq.MessageFactoryConfig,
    schema: str = "",
    topic: str = TOPIC,
    **options: str,
) -> DataFrame:
    """Return a topic, with all columns or those of a schema."""
    reader = spark.read.format("vq").option("zookeeper", config.zookeeper)
    reader = reader.option("cluster", config.cluster).option("topics", topic).options(**options)
    return (reader.schema(schema) if schema else reader).load()


# Kafka ------------------------------------------------------------------------------------------
def connector() -> list[str]:
    """Return the jars of Spark's Kafka source.

    Raises:
        Missing: They are not here.
    """
    place = Path(os.environ.get("SPARK_KAFKA_JARS", ""))
    found = [sorted(place.glob(pattern)) for pattern in _CONNECTOR]
    if not os.environ.get("SPARK_KAFKA_JARS") or not all(found):
        raise Missing(f"SPARK_KAFKA_JARS names no directory with {', '.join(_CONNECTOR)}")
    return [str(each[-1]) for each in found]


def kafka_frame(spark: SparkSession, port: int) -> DataFrame:
    """Return the same messages in Kafka."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", f"127.0.0.1:{port}")
    return reader.option("subscribe", TOPIC).load()


def copy_to_kafka(frame: DataFrame, port: int) -> None:
    """Write all messages to a topic of Kafka with as many partitions."""
    writer = frame.selectExpr("CAST(key AS STRING) AS key", "value", "partition").write
    writer = writer.format("kafka").option("kafka.bootstrap.servers", f"127.0.0.1:{port}")
    writer.option("topic", TOPIC).option("kafka.linger.ms", "20").save()


@contextlib.contextmanager
def kafka_server(directory: Path) -> Iterator[tuple[int, int]]:
    """Run a node of Kafka; yield its port and the id of its process."""
    directory.mkdir()
    before = children()
    with kafka.running(directory, durability=PAGE_CACHE, partitions=PARTITIONS) as values:
        [pid] = children() - before
        NOT_OWN.add(pid)
        yield values["port"], pid


def children() -> set[int]:
    """Return the ids of the processes that this one has started."""
    place = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return set(map(int, place.read_text().split()))


# All --------------------------------------------------------------------------------------------
def works(
    spark: SparkSession, config: vq.MessageFactoryConfig, data: Path, broker: int
) -> list[Work]:
    """Return what is measured without Kafka."""
    return [
        Work("the disk's files", lambda: disk(data)),
        Work("plain client", lambda: plain_client(config), broker),
        Work("plain client, columns", lambda: columns_of_client(config), broker),
        Work("Spark, vq, all columns", lambda: query(vq_frame(spark, config)), broker),
        Work(
            "Spark, vq, `value` alone",
            lambda: query(vq_frame(spark, config, "value BINARY")),
            broker,
        ),
    ]


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsItIs)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args(arguments)
    try:
        kafka.command("kafka-server-start")
        jars = connector()
    except Missing as error:
        print(f"without Kafka: {error}", file=sys.stderr)
        jars = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(cluster(directory))
        NOT_OWN.update(children())
        config = vq.MessageFactoryConfig(**made.client)
        produce(config, given.count, given.size)
        conf: Mapping[str, str] = {"spark.jars": ",".join(jars)} if jars else {}
        spark = session("vq-bench", master="local[2]", conf=conf)
        stack.callback(spark.stop)
        found = works(spark, config, made.broker.spec.data, made.broker.pid)
        if jars:
            port, pid = stack.enter_context(kafka_server(directory / "kafka"))
            copy_to_kafka(vq_frame(spark, config), port)
            found.append(Work("Spark, Kafka", lambda: query(kafka_frame(spark, port)), pid))
        for _ in range(given.rounds):
            for work in found:
                work.measure(given.count, given.size)
    print(f"{given.count:,} messages of {given.size} bytes, {PARTITIONS} partitions\n")
    head = ["", "messages/s", "MB/s", "processor s", "broker's s", "messages per processor s"]
    print(markdown_table(head, [work.row(given.count, given.size) for work in found]))


class _AsItIs(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    main(sys.argv[1:])
