"""Streams on a real cluster: each message once, across restarts and changes of the topic."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from support.cluster import ProcessCluster

import vq
from pyspark_vq.group import PAUSE_S
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

#: So often Spark may fail to start a worker.
_STARTS = 3
Batches = dict[int, Counter[tuple[int, int, bytes]]]


class Query:
    """A stream with a checkpoint; each run reads what is there, and ends.

    Attributes:
        batches: By micro-batch its rows: partition, offset, value.
        fails_at: The micro-batch that fails behind its rows, once; None: none does.
        lasts_s: How long each micro-batch lasts at least.
    """

    def __init__(
        self, spark: SparkSession, cluster: ProcessCluster, checkpoint: Path, **options: Any
    ) -> None:
        self.batches: Batches = {}
        self.replayed: Batches = {}
        self.fails_at: int | None = None
        self.lasts_s = 0.0
        self._checkpoint = str(checkpoint)
        reader = spark.readStream.format("vq").option("zookeeper", cluster.zookeeper)
        self._reader = reader.option("cluster", cluster.name).options(**options)

    def _take(self, frame: DataFrame, number: int) -> None:
        time.sleep(self.lasts_s)
        rows = Counter((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
        if number in self.batches:
            self.replayed[number] = rows
        self.batches[number] = rows
        if number == self.fails_at:
            self.fails_at = None
            raise RuntimeError("the query fails here")

    def run(self, **options: Any) -> None:
        """Read what there is.

        Spark gives a worker ten seconds to start, which a busy machine may not keep; then nothing
        was done yet.
        """
        for left in range(_STARTS, -1, -1):
            try:
                self._run(options)
                return
            except StreamingQueryException as error:
                if not left or "failed to connect back" not in str(error):
                    raise

    def _run(self, options: dict[str, Any]) -> None:
        frame = self._reader.options(**options).load()
        writer = frame.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", self._checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    def rows(self) -> Counter[tuple[int, int, bytes]]:
        return sum(self.batches.values(), Counter())


@pytest.fixture
def query(spark: SparkSession, cluster: ProcessCluster, tmp_path: Path) -> Callable[..., Query]:
    def query(topic: str, checkpoint: str = "checkpoint", **options: Any) -> Query:
        options = {"topics": topic, "startingOffsets": "earliest", **options}
        return Query(spark, cluster, tmp_path / checkpoint, **options)

    return query


def send(factory: vq.MessageFactory, topic: str, contents: Sequence[bytes]) -> Counter[Any]:
    """Send messages, the n-th with the key n; return them as a query gives them."""
    with factory.create_producer() as producer:
        results = producer.send_batch(
            [vq.Message(topic, each, key=number) for number, each in enumerate(contents)]
        )
    return Counter(
        (each.partition, each.offset, content)
        for each, content in zip(results, contents, strict=True)
    )


def committed(factory: vq.MessageFactory, group: str) -> tuple[dict[int, int], int | None]:
    """Return where a group is, by partition, and its lag in bytes."""
    described = factory.admin.describe_group(group)
    places = {each.partition: each.committed for each in described.partitions}
    return {n: at for n, at in places.items() if at is not None}, described.lag_bytes


def earliest(factory: vq.MessageFactory, topic: str) -> int:
    """Return where the first partition of a topic begins now."""
    ends = factory.admin.bounds(topic)[0]
    return ends.earliest if ends else 0


def overtake(factory: vq.MessageFactory, topic: str) -> Counter[Any]:
    """Send until retention deletes the first block of a topic; return what was sent."""
    sent = send(factory, topic, [b"%d" % n + bytes(500_000) for n in range(40)])
    factory.admin.alter_topic(topic, retention_bytes=1)
    block_until(lambda: earliest(factory, topic) > 1_000_000, "retention deletes blocks")
    factory.admin.alter_topic(topic, retention_bytes=None)
    return sent


def test_a_restart_neither_loses_nor_repeats(
    query: Callable[..., Query], factory: vq.MessageFactory
) -> None:
    """A failed micro-batch comes again with the same rows, also when the topic has grown.

    Then the topic gains partitions, and the group's progress is seen.
    """
    factory.admin.create_topic("restarts", vq.TopicSettings(partitions=2))
    sent = send(factory, "restarts", [b"%d" % n * 2_000 for n in range(60)])
    stream = query("restarts", group="spark-restarts", maxBytesPerTrigger="64k", minPartitions=3)
    stream.lasts_s = PAUSE_S  # so the second micro-batch commits the first one as it begins
    stream.fails_at = 1
    with pytest.raises(StreamingQueryException, match="the query fails here"):
        stream.run()
    stream.lasts_s = 0.0
    first = dict(stream.batches)
    assert set(first) == {0, 1}
    places, _ = committed(factory, "spark-restarts")
    done = {(p, o) for p, o, _ in first[0]}
    assert all(all(o < places[p] for q, o in done if q == p) for p in places)
    assert not any(o < places[p] for p, o, _ in first[1]), "what is not done is not committed"

    sent += send(factory, "restarts", [b"%d" % n for n in range(10)])
    stream.run()
    assert stream.replayed == {1: first[1]}
    assert stream.rows() == sent
    assert len(stream.batches) >= 3, "each has a bound"

    factory.admin.add_partitions("restarts", 2)
    with factory.create_consumer() as consumer:
        block_until(lambda: consumer.get_bounds("restarts", 3), "the new partitions are served")
    sent += send(factory, "restarts", [b"more %d" % n for n in range(20)])
    assert {partition for partition, _, _ in sent} == {0, 1, 2, 3}
    stream.run()
    assert stream.rows() == sent
    ends = {n: each and each.latest for n, each in factory.admin.bounds("restarts").items()}
    assert committed(factory, "spark-restarts") == (ends, 0)
    batches = len(stream.batches)
    stream.run()
    assert len(stream.batches) == batches, "nothing is left"


def test_a_stream_that_retention_overtakes_fails_or_goes_on(
    query: Callable[..., Query], factory: vq.MessageFactory
) -> None:
    """As ``failOnDataLoss`` says; it goes on with all that is left."""
    factory.admin.create_topic("short", vq.TopicSettings())
    stream = query("short")
    sent = send(factory, "short", [b"first"])
    stream.run()
    sent += overtake(factory, "short")
    with pytest.raises(StreamingQueryException, match="was deleted before it was read"):
        stream.run()
    stream.run(failOnDataLoss="false")
    left = Counter({row: n for row, n in sent.items() if row[1] >= earliest(factory, "short")})
    assert left
    first = Counter({row: n for row, n in sent.items() if row[2] == b"first"})
    assert stream.rows() == first + left


@pytest.mark.long
def test_a_first_micro_batch_that_was_not_done_and_that_retention_overtakes(
    query: Callable[..., Query], factory: vq.MessageFactory
) -> None:
    """It comes again, from where it began: fails, or goes on with all that is left."""
    factory.admin.create_topic("begun", vq.TopicSettings())
    sent = send(factory, "begun", [b"first"])
    stream = query("begun")
    stream.fails_at = 0
    with pytest.raises(StreamingQueryException, match="the query fails here"):
        stream.run()
    sent += overtake(factory, "begun")
    with pytest.raises(StreamingQueryException, match=r"\[0, \d+\) of begun-0 cannot be read"):
        stream.run()
    stream.run(failOnDataLoss="false")
    left = Counter({row: n for row, n in sent.items() if row[1] >= earliest(factory, "begun")})
    assert left
    assert stream.rows() == left


def test_a_topic_that_is_made_again_is_another_one(
    query: Callable[..., Query], factory: vq.MessageFactory
) -> None:
    factory.admin.create_topic("again", vq.TopicSettings())
    stream = query("again")
    sent = send(factory, "again", [b"%d" % n for n in range(9)])
    stream.run()
    factory.admin.delete_topic("again", now=True)

    def gone() -> bool:
        return not any(each.name == "again" for each in factory.admin.list_topics()) and not any(
            each.name == "again" for each in factory.admin.deleted_topics()
        )

    block_until(gone, "the topic is removed")
    block_until(lambda: _made(factory, "again"), "its name is free")
    sent_again = send(factory, "again", [b"new"])
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.rows() == sent + sent_again


def _made(factory: vq.MessageFactory, topic: str) -> bool:
    try:
        factory.admin.create_topic(topic, vq.TopicSettings())
    except vq.VqError:
        return False
    return True


def test_a_stream_waits_for_a_broker_and_reads_the_other_partitions(
    spark: SparkSession,
    cluster: ProcessCluster,
    factory: vq.MessageFactory,
    tmp_path: Path,
) -> None:
    """It runs for ever; the group's lag falls to 0 while it waits for more."""
    factory.admin.create_topic("waits", vq.TopicSettings(partitions=2))
    groups = {each.partition: each.spans[-1].group for each in factory.admin.placements("waits")}
    away = next(number for number, group in groups.items() if group == "b2")
    reader = spark.readStream.format("vq").option("zookeeper", cluster.zookeeper)
    reader = reader.option("cluster", cluster.name).option("topics", "waits")
    frame = reader.options(group="spark-waits", startingOffsets="earliest").load()
    rows: list[tuple[int, bytes]] = []

    def take(some: DataFrame, _: int) -> None:
        rows.extend((row.partition, bytes(row.value)) for row in some.collect())

    writer = frame.writeStream.foreachBatch(take).trigger(processingTime="100 milliseconds")
    running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        send(factory, "waits", [b"a", b"b"])
        block_until(lambda: len(rows) == 2, rows)
        cluster.brokers["b2"].stop()
        with factory.create_producer() as producer:
            producer.send_sync(vq.Message("waits", b"c", key=1 - away))
        block_until(lambda: len(rows) == 3, rows)
        cluster.restart("b2")
        with factory.create_producer() as producer:
            producer.send_sync(vq.Message("waits", b"d", key=away), timeout=30)
        block_until(lambda: len(rows) == 4, rows)
        block_until(lambda: committed(factory, "spark-waits")[1] == 0, "the group has no lag")
        assert factory.admin.describe_group("spark-waits").by_stream, "and it needs no members"
    finally:
        running.stop()
        if not cluster.brokers["b2"].running:
            cluster.restart("b2")
    assert sorted(rows) == sorted([(0, b"a"), (1, b"b"), (1 - away, b"c"), (away, b"d")])
