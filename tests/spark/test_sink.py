"""DataFrames and streams that Spark writes into topics of a real cluster."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, udf
from support.cluster import ProcessCluster

import vq
from pyspark_vq import connection, register
from pyspark_vq.session import session
from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow

T = TypeVar("T")


@pytest.fixture
def factory(processes: ProcessCluster) -> Iterator[vq.MessageFactory]:
    """A client of a cluster of one broker, with topics ``a`` and ``b`` of three partitions."""
    processes.add("b1")
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as made:
        for topic in ("a", "b"):
            made.admin.create_topic(topic, vq.TopicSettings(partitions=3))
        yield made
    connection.close_all()


def options_of(processes: ProcessCluster, **more: str) -> dict[str, str]:
    return {"zookeeper": processes.zookeeper, "cluster": processes.name, **more}


def stored(factory: vq.MessageFactory, topic: str) -> list[vq.Message]:
    found: list[vq.Message] = []
    for partition, ends in factory.admin.bounds(topic).items():
        at = 0
        while ends is not None and at < ends.latest:
            part = factory.admin.read_range(topic, partition, at, max_bytes=8 << 20)
            found += part.messages()
            at = part.next_offset
    return found


def contents(factory: vq.MessageFactory, topic: str) -> Counter[bytes]:
    return Counter(each.content for each in stored(factory, topic))


def test_a_dataframe_is_written_with_all_its_columns(
    spark: SparkSession, processes: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """Each row is the message that it describes; what is null is absent.

    A copy made by reading and writing has the same messages, keys with their types.
    """
    frame = spark.range(300, numPartitions=2).select(
        expr("cast(concat('v', id) as binary) as value"),
        expr("case id % 3 when 0 then null else concat('k', id) end as key"),
        expr("case id % 2 when 0 then concat('t', id % 5) end as tag"),
        expr("case id % 4 when 0 then map('n', cast(id as string), 'm', '') end as headers"),
        expr("case id % 2 when 0 then 'b' end as topic"),
        expr("cast(id % 3 as int) as partition"),
        expr("id as offset"),  # of a source; left out
    )
    options = options_of(processes, topic="a")
    frame.write.format("vq").options(**options).mode("append").save()
    for topic, first in (("b", 0), ("a", 1)):
        found = {int(each.content[1:]): each for each in stored(factory, topic)}
        assert sorted(found) == list(range(first, 300, 2))
        for number, message in found.items():
            assert message.partition == number % 3
            assert message.key == (f"k{number}" if number % 3 else None)
            assert message.tag == (f"t{number % 5}" if number % 2 == 0 else None)
            assert message.headers == ({"n": str(number), "m": ""} if number % 4 == 0 else None)
    assert factory.admin.list_writes() == []

    with factory.create_producer() as producer:
        producer.send_batch(
            [vq.Message("a", b"typed", key=key) for key in ("text", b"\xff\x00", -7, "", None)]
        )
    columns = (
        "topic string, partition int, key binary, key_type string, tag string, "
        "headers map<string,string>, value binary"
    )
    read = spark.read.format("vq").options(**options_of(processes, topics="a,b")).schema(columns)
    copied = read.load().selectExpr(
        "'copy' as topic", "partition", "key", "key_type", "tag", "headers", "value"
    )
    factory.admin.create_topic("copy", vq.TopicSettings(partitions=3))
    copied.write.format("vq").options(**options_of(processes)).mode("append").save()

    def what_is_in(topic: str) -> list[str]:
        return [
            repr((each.partition, each.key, each.tag, each.headers, each.content))
            for each in stored(factory, topic)
        ]

    assert sorted(what_is_in("copy")) == sorted(what_is_in("a") + what_is_in("b"))


@pytest.mark.long
def test_threads_of_a_driver_read_and_write(
    spark: SparkSession, processes: ProcessCluster, factory: vq.MessageFactory, tmp_path: Path
) -> None:
    """A thread finds the session by itself, or is told it; its settings stay as they are."""
    push_down = "spark.sql.python.filterPushdown.enabled"

    def found_by_itself() -> SparkSession:
        return session("threads", master="local[1]", conf={"spark.sql.shuffle.partitions": "77"})

    def told() -> SparkSession:
        register(spark)
        return spark

    def write(number: int, mine: SparkSession) -> int:
        rows = mine.range(50).select(expr(f"cast(concat('{number}-', id) as binary) as value"))
        rows.write.format("vq").options(**options_of(processes, topic="a")).mode("append").save()
        read = mine.read.format("vq").options(**options_of(processes, topics="a"))
        return read.load().where(f"cast(value as string) like '{number}-%'").count()

    def count(mine: SparkSession) -> int:
        return mine.read.format("vq").options(**options_of(processes, topics="a")).load().count()

    def copy(mine: SparkSession) -> None:
        read = mine.readStream.format("vq").option("startingOffsets", "earliest")
        stream = read.options(**options_of(processes, topics="a")).load().select("value")
        options = options_of(processes, topic="b", checkpointLocation=str(tmp_path / "checkpoint"))
        query = stream.writeStream.format("vq").options(**options)
        query.trigger(availableNow=True).start().awaitTermination(PROCESSES_WAIT_S)

    def in_a_thread(call: Callable[[], T]) -> T:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    spark.conf.set(push_down, "false")
    try:
        assert in_a_thread(lambda: write(0, found_by_itself())) == 50
        assert spark.conf.get(push_down) == "false"
    finally:
        spark.conf.set(push_down, "true")
    assert in_a_thread(lambda: write(1, told())) == 50
    assert in_a_thread(lambda: count(spark)) == 100  # which needs neither
    in_a_thread(lambda: copy(found_by_itself()))
    assert spark.conf.get("spark.sql.shuffle.partitions") != "77"
    assert len(stored(factory, "a")) == len(stored(factory, "b")) == 100


def test_what_cannot_be_written_is_refused_before_anything_is_sent(
    spark: SparkSession, processes: ProcessCluster, factory: vq.MessageFactory, tmp_path: Path
) -> None:
    """The error names the column, its type, and what it may be; or the option, or the topic.

    The topic of a stream is looked at before it has a row. That of a column is known to tasks only.
    """
    frame = spark.range(1).selectExpr("'v' as value", "id as key")
    wrong: list[tuple[DataFrame, dict[str, str], str, str]] = [
        (frame.selectExpr("key"), {}, "append", "column 'value' (binary or string) is missing"),
        (frame.selectExpr("key as value"), {}, "append", "column 'value' is bigint; it must be"),
        (frame, {"topic": ""}, "append", "option topic is empty"),
        (frame, {"topics": "a"}, "append", "there is no option 'topics' here; do you mean topic?"),
        (frame, {}, "overwrite", "a topic cannot be overwritten"),
        (frame, {"topic": "missing"}, "append", "there is no topic 'missing'; create it"),
        (frame, {"topic": "shut"}, "append", "topic shut is closed for writes"),
        (frame, {"topic": "missing", "idempotent": "false"}, "append", "no topic 'missing'"),
    ]
    factory.admin.create_topic("shut")
    factory.admin.close_topic("shut")
    for rows, more, mode, told in wrong:
        options = {**options_of(processes, topic="a"), **more}
        with pytest.raises(AnalysisException, match=r"vq\.errors\.") as raised:
            rows.write.format("vq").options(**options).mode(mode).save()
        assert told in str(raised.value)
        assert len(str(raised.value).splitlines()) <= 6, "no calls of vq"
    assert factory.admin.list_writes() == []
    rates = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    query = (
        rates.writeStream.format("vq")
        .options(**options_of(processes, topic="missing"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="writer: Traceback") as stream:
        query.awaitTermination(2 * PROCESSES_WAIT_S)
    assert "there is no topic 'missing'" in str(stream.value)
    with pytest.raises(PySparkException) as late:
        frame.selectExpr("value", "'missing' as topic").write.format("vq").options(
            **options_of(processes)
        ).mode("append").save()
    assert "UnknownTopic" in str(late.value)
    assert len(str(late.value).splitlines()) <= 6
    assert stored(factory, "a") == []


def lines_of(directory: Path, count: int, files: int) -> set[bytes]:
    """Write files of lines, too large for the buffers of Spark; return the lines, all different."""
    directory.mkdir()
    found = {}
    for number in range(files):
        found[number] = [f"{number}-{each}".ljust(2_000) for each in range(count)]
        (directory / f"{number}.txt").write_text("\n".join(found[number]))
    return {each.encode() for lines in found.values() for each in lines}


def test_a_stream_stores_each_row_once_whatever_is_tried_again(
    spark: SparkSession, processes: ProcessCluster, factory: vq.MessageFactory, tmp_path: Path
) -> None:
    """A task fails when some of its rows are stored; a query ends between the sends and the commit.

    The restarted query replays the micro-batch: its commit was not in the checkpoint, as after a
    kill. Spark shuffles the rows, so their order may be another one.
    """
    lines = lines_of(tmp_path / "in", 400, 3)
    failing = tmp_path / "failed"
    zookeeper, name = processes.zookeeper, processes.name

    seen = [0]  # by each task, which has a copy

    def fail_once(line: str) -> str:
        task = TaskContext.get()
        assert task is not None
        seen[0] += 1
        if line.startswith("0-") and seen[0] == 150 and task.attemptNumber() == 0:
            config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=name)
            with vq.MessageFactory(config) as client:
                bounds = client.admin.bounds
                deadline = time.monotonic() + PROCESSES_WAIT_S
                while not any(each.latest for each in bounds("a").values() if each):
                    assert time.monotonic() < deadline, "no row is stored"
                    time.sleep(0.01)
            failing.touch()
            raise ValueError("after some rows are stored")
        return line

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")

    def run() -> Any:
        frame = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", 1)
            .load(str(tmp_path / "in"))
            .repartition(2)
            .select(udf(fail_once, "string", useArrow=False)("value").alias("value"))
        )
        query = (
            frame.writeStream.format("vq")
            .options(**options_of(processes, topic="a"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(2 * PROCESSES_WAIT_S)
            assert query.exception() is None
        finally:
            query.stop()
        return query

    try:
        run()
        assert failing.exists()
        assert contents(factory, "a") == Counter(lines)
        commits = tmp_path / "checkpoint" / "commits"
        assert sorted(each.name for each in commits.iterdir() if each.name.isdigit()) == [*"012"]
        (commits / "2").unlink()
        (commits / ".2.crc").unlink()
        again = run()
        assert again.lastProgress["batchId"] == 2
        assert contents(factory, "a") == Counter(lines)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert factory.admin.list_writes() == [f"spark-stream-{again.id}"]
