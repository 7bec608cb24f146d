"""Spark writing a topic: against vq's plain client, in turns.

    python -m bench.spark_write [--count 500000] [--size 100] [--rounds 4]

All works write the same messages, with a key, to one broker with ``flush = async``. Spark makes the
rows itself in two tasks, so "Spark, no sink" (the same rows, thrown away) is beside it. "repeated"
is the same named write run again: its tasks read what is stored, compare, and send nothing. Rates
are medians of all rounds but the first, in which the JVM compiles its code.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import vq
from bench.cluster import cluster
from bench.figures import markdown_table
from pyspark_vq.session import session
from vq.errors import VqError

PARTITIONS = 4


def send(config: vq.MessageFactoryConfig, topic: str, number: int, size: int, **more: bool) -> None:
    """Send as a program does: an object and a callback for each message."""
    failed: list[VqError] = []

    def ended(_: vq.SendResult | None, error: VqError | None) -> None:
        if error is not None:
            failed.append(error)

    content = b"x" * size
    settings = vq.ProducerConfig(**more)
    with vq.MessageFactory(config) as factory, factory.create_producer(settings) as producer:
        for key in range(number):
            producer.send_async(vq.Message(topic, content, key=key), ended)
    assert not failed, failed[0]


def rows(spark: SparkSession, number: int, size: int) -> DataFrame:
    """Return the messages as rows of two tasks."""
    frame = spark.range(number, numPartitions=2)
    return frame.selectExpr(f"cast(repeat('x', {size}) as binary) as value", "id as key")


def write(frame: DataFrame, config: vq.MessageFactoryConfig, topic: str, **more: str) -> None:
    """Write rows with the sink."""
    options = {"zookeeper": config.zookeeper, "cluster": config.cluster, "topic": topic, **more}
    frame.write.format("vq").options(**options).mode("append").save()


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsItIs)
    parser.add_argument("--count", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args(arguments)
    number, size = given.count, given.size
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = vq.MessageFactoryConfig(**stack.enter_context(cluster(directory)).client)
        admin = stack.enter_context(vq.MessageFactory(config)).admin
        settings = vq.TopicSettings(partitions=PARTITIONS, flush="async", retention_hours=None)
        spark = session("vq-bench", master="local[2]")
        stack.callback(spark.stop)
        frame, names = rows(spark, number, size), count()
        works: dict[str, Callable[[str], None]] = {
            "plain client": lambda topic: send(config, topic, number, size),
            "plain client, ordered": lambda topic: send(config, topic, number, size, ordered=True),
            "Spark, no sink": lambda topic: frame.write.format("noop").mode("overwrite").save(),
            "Spark, vq": lambda topic: write(frame, config, topic),
            "Spark, vq, idempotent = false": lambda topic: write(
                frame, config, topic, idempotent="false"
            ),
            "Spark, vq, repeated": lambda topic: write(frame, config, topic, writeId=topic),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(given.rounds):
            for name, work in works.items():
                topic = f"t{next(names)}"
                admin.create_topic(topic, settings)
                if "repeated" in name:
                    work(topic)
                begin = time.perf_counter()
                work(topic)
                seconds[name].append(time.perf_counter() - begin)
                admin.delete_topic(topic, now=True)
    print(f"{number:,} messages of {size} bytes, {PARTITIONS} partitions\n")
    table = [
        [name, f"{number / statistics.median(each[1:] or each):,.0f}", f"{min(each):.2f}"]
        for name, each in seconds.items()
    ]
    print(markdown_table(["", "messages/s", "best s"], table))


class _AsItIs(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    main(sys.argv[1:])
