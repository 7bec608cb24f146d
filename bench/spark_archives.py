"""Spark reading archives at a URL: through the broker, and directly.

    python -m bench.spark_archives [--count 1000000] [--size 200] [--kind KIND] [--rounds 8]

Two topics have the same messages: one as blocks, one as archives in a directory of this machine.
The works run in turns in one Spark session with two threads. Everything is in the memory of the
system, so this is what processors have to do; an object store takes its time in all cases. The
topic should have more than the 64 MiB that a broker keeps of archives in its memory. For figures
and columns see ``bench.spark_read``.
"""

import argparse
import contextlib
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import vq
from bench.cluster import cluster
from bench.contents import KINDS
from bench.figures import markdown_table
from bench.spark_read import (
    NOT_OWN,
    PARTITIONS,
    Work,
    children,
    columns_of_client,
    query,
    vq_frame,
)
from pyspark_vq.session import session

BLOCKS: Final = "blocks"
ARCHIVES: Final = "archives"
#: Different contents: more than what deflate looks back at.
_CONTENTS: Final = 5_000


def produce(config: vq.MessageFactoryConfig, place: str, kind: str, count: int, size: int) -> None:
    """Send the messages to both topics, and archive one of them."""
    later = datetime.now(UTC) + timedelta(hours=30)
    settings = vq.TopicSettings(partitions=PARTITIONS, flush="async", retention_hours=None)
    archived = replace(settings, retention_policy="archive", archive_to=place, retention_hours=999)
    contents = [KINDS[kind](number, size) for number in range(_CONTENTS)]
    with vq.MessageFactory(config) as factory:
        with factory.create_producer() as producer:
            for topic, each in ((BLOCKS, settings), (ARCHIVES, archived)):
                factory.admin.create_topic(topic, each)
                for number in range(count):
                    content = contents[number % _CONTENTS]
                    producer.send_async(vq.Message(topic, content, key=number))
                producer.flush()
        ends = factory.admin.bounds(ARCHIVES).values()
        wanted = sum(each.latest for each in ends if each is not None)
        stored = 0
        while stored < wanted:  # what is not flushed yet is not archived
            run = factory.admin.start_archive_run(ARCHIVES, as_of_ms=int(later.timestamp() * 1000))
            factory.admin.wait_for_archive_run(run)
            blocks, _ = factory.admin.list_archives(ARCHIVES)
            stored = sum(each.size_bytes for each in blocks)
    zipped = sum(each.zip_bytes for each in blocks)
    print(f"{len(blocks)} archives: {stored / 1e6:.0f} MB in {zipped / 1e6:.0f} MB of zips")


def works(spark: SparkSession, config: vq.MessageFactoryConfig, broker: int) -> list[Work]:
    """Return what is measured."""
    found = []
    for name, topic, archives in (
        ("blocks", BLOCKS, "broker"),
        ("archives, by the broker", ARCHIVES, "broker"),
        ("archives, directly", ARCHIVES, "direct"),
    ):
        is_direct = archives == "direct"
        plain = partial(columns_of_client, config, topic, archives_directly=is_direct)
        frame = vq_frame(spark, config, "value BINARY", topic, archives=archives)
        found.append(Work(f"plain client, columns, {name}", plain, broker))
        found.append(Work(f"Spark, `value` alone, {name}", partial(query, frame), broker))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--kind", choices=list(KINDS), default=next(iter(KINDS)))
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(cluster(directory))
        NOT_OWN.update(children())
        config = vq.MessageFactoryConfig(**made.client)
        place = (directory / "archives").as_uri()
        produce(config, place, given.kind, given.count, given.size)
        spark = session("vq-bench", master="local[2]")
        stack.callback(spark.stop)
        found = works(spark, config, made.broker.pid)
        for _ in range(given.rounds):
            for work in found:
                work.measure(given.count, given.size)
    print(f"{given.count:,} messages of {given.size} bytes, {PARTITIONS} partitions\n")
    head = ["", "messages/s", "MB/s", "processor s", "broker's s", "messages per processor s"]
    print(markdown_table(head, [work.row(given.count, given.size) for work in found]))


if __name__ == "__main__":
    main()
