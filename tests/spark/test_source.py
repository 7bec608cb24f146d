"""Batch queries on a real cluster give exactly what was produced.

One topic of 30,000 messages is for all tests of the module: several blocks, archived ones,
messages with tags, headers, keys of three types, and compressed ones.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import GreaterThanOrEqual
from support.cluster import ProcessCluster
from support.faults import kill
from support.raw_client import RawClient, message

import vq
from pyspark_vq import register
from pyspark_vq.columns import SCHEMA
from pyspark_vq.options import ReadOptions
from pyspark_vq.reader import BatchReader, DataLost
from vq.columns import Selection
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

COUNT = 30_000
#: So many messages come after the others were archived.
NEWEST = 4_500
#: Behind the number in a message: several blocks need bytes, and each row costs time.
PAD = bytes(range(32, 127)) * 10 + bytes(90)
TOPIC = "big"
#: What is asked of a DataFrame, and counted while messages are produced.
SUMS = (
    "count(*)",
    "count(distinct partition)",
    "sum(crc32(value))",
    "sum(length(value))",
    "sum(crc32(key))",
    "sum(crc32(tag))",
    "sum(size(headers))",
    "sum(crc32(headers['n']))",
)


@dataclass
class Sent:
    """What was produced, as ``SUMS`` count it."""

    rows: int = 0
    values: int = 0
    bytes: int = 0
    keys: int = 0
    tags: int = 0
    headers: int = 0
    texts: int = 0

    def add(self, message: vq.Message) -> None:
        key = message.key if isinstance(message.key, bytes) else str(message.key).encode()
        self.rows += 1
        self.values += crc32(message.content)
        self.bytes += len(message.content)
        self.keys += crc32(key)
        self.tags += crc32((message.tag or "").encode())
        if message.headers:
            self.headers += len(message.headers)
            self.texts += crc32(message.headers["n"].encode())

    def add_plain(self, contents: list[bytes]) -> None:
        """Add messages whose key is the integer that their content shows."""
        self.rows += len(contents)
        self.values += sum(map(crc32, contents))
        self.keys += sum(crc32(each.removesuffix(PAD)) for each in contents)
        self.bytes += sum(map(len, contents))

    def expected(self) -> list[int | None]:
        found = [self.rows, 2, self.values, self.bytes, self.keys]
        return [*found, self.tags or None, self.headers or None, self.texts or None]


def special(number: int) -> vq.Message:
    """Return a message with a tag, and perhaps headers; every tenth one is compressed."""
    content = b"%d" % number
    tag = "even" if not number % 200 else "odd"
    headers = {"n": str(number), "é": ""} if number % 300 else None
    key = (f"k{number}", b"\xff%d" % number, number)[number // 100 % 3]
    return vq.Message(TOPIC, content * (300 if not number % 1_000 else 1), tag, key, headers)


@dataclass
class Produced:
    """The topic: what all messages have, what those with a tag have, and what is archived.

    Attributes:
        archived: Where archives end, by partition.
        elsewhere_bytes: In archives at a URL; others lie beside the log.
    """

    all: Sent = field(default_factory=Sent)
    even: Sent = field(default_factory=Sent)
    archived: dict[int, int] = field(default_factory=dict)
    elsewhere_bytes: int = 0

    def produce(self, producer: vq.MessageProducer, numbers: range) -> None:
        send, message = producer.send_async, vq.Message
        for start in numbers[::100]:
            first = special(start)
            send(first)
            self.all.add(first)
            if first.tag == "even":
                self.even.add(first)
            contents = [b"%d%b" % (number, PAD) for number in range(start + 1, start + 100)]
            self.all.add_plain(contents)
            for number, content in enumerate(contents, start + 1):
                send(message(TOPIC, content, None, number))
        producer.flush()


@pytest.fixture(scope="module")
def produced(factory: vq.MessageFactory, tmp_path_factory: pytest.TempPathFactory) -> Produced:
    """Make the topic, and archive most of its blocks: beside the logs, then at a URL."""
    settings = vq.TopicSettings(
        partitions=2,
        retention_policy="archive",
        compression="zstd",
        compression_threshold=1_100,
        flush="async",
    )
    factory.admin.create_topic(TOPIC, settings)
    found = Produced()
    first = range(COUNT * 2 // 3)
    with factory.create_producer() as producer:
        found.produce(producer, first)
        archive_all(factory.admin, TOPIC)
        place = tmp_path_factory.mktemp("archives").as_uri()
        factory.admin.alter_topic(TOPIC, archive_to=place)
        found.produce(producer, range(first.stop, COUNT - NEWEST))
        archive_all(factory.admin, TOPIC)
        found.produce(producer, range(COUNT - NEWEST, COUNT))
    blocks, _ = factory.admin.list_archives(TOPIC)
    assert {each.partition for each in blocks if each.url} == {0, 1}
    assert {each.partition for each in blocks if not each.url} == {0, 1}
    assert len(blocks) > 4, "several blocks of each partition"
    for block in blocks:
        found.archived[block.partition] = max(found.archived.get(block.partition, 0), block.end)
    found.elsewhere_bytes = sum(each.size_bytes for each in blocks if each.url)
    return found


def archive_all(admin: vq.Admin, topic: str) -> None:
    """Have all blocks become archives, also those that take messages."""
    as_of = datetime.now(UTC) + timedelta(hours=30)
    run = admin.start_archive_run(topic, as_of_ms=int(as_of.timestamp() * 1000))
    admin.wait_for_archive_run(run)


@pytest.fixture
def read(spark: SparkSession, cluster: ProcessCluster) -> Callable[..., DataFrame]:
    """Return a DataFrame of topics: ``read("orders", startingOffsets="latest")``."""

    def read(topics: str = TOPIC, schema: str = "", **options: Any) -> DataFrame:
        reader = spark.read.format("vq").option("zookeeper", cluster.zookeeper)
        reader = reader.option("cluster", cluster.name).option("topics", topics).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return read


def sums(frame: DataFrame) -> list[int | None]:
    return list(frame.selectExpr(*SUMS).collect()[0])


def test_all_messages_come_as_they_were_produced(
    read: Callable[..., DataFrame], produced: Produced
) -> None:
    assert sums(read(minPartitions=5)) == produced.all.expected()


def test_tasks_read_archives_at_urls_and_brokers_do_not(
    read: Callable[..., DataFrame], produced: Produced, factory: vq.MessageFactory
) -> None:
    """If they are told to. The messages are the same, also of tasks that begin in a message."""

    def sent_bytes() -> int:
        brokers = factory.admin.cluster_status().brokers
        return sum(each.status.raw["bytes_out"] for each in brokers if each.status is not None)

    stored = sum(each.latest for each in factory.admin.bounds(TOPIC).values() if each is not None)
    before = sent_bytes()
    assert sums(read(minPartitions=5, archives="direct")) == produced.all.expected()
    assert 0 < sent_bytes() - before < stored - produced.elsewhere_bytes + (64 << 10)
    before = sent_bytes()
    assert sums(read(tag="even || none", archives="direct")) == produced.even.expected()
    assert 0 < sent_bytes() - before < stored - produced.elsewhere_bytes + (64 << 10)


def test_only_messages_with_a_tag_are_given(
    read: Callable[..., DataFrame], produced: Produced
) -> None:
    assert sums(read(tag="even || none")) == produced.even.expected()


def test_only_messages_of_which_an_expression_is_true_are_given(
    read: Callable[..., DataFrame], produced: Produced
) -> None:
    """As Spark itself leaves them, by tags and by headers; compressed ones, too."""
    newest = {"includeArchive": "false", "minPartitions": 3}
    half = COUNT - NEWEST // 2
    even = read(tag="even", **newest)
    assert sums(read(where="TAGS = 'even'", **newest)) == sums(even)
    late = sums(even.where(f"cast(headers['n'] as int) > {half}"))
    assert late[0]
    assert sums(read(where=f"TAGS = 'even' AND n > {half}", **newest)) == late
    assert sums(read(where="TAGS = 'neither'", **newest))[0] == 0


def test_all_columns_are_those_of_a_consumer(
    read: Callable[..., DataFrame], produced: Produced, factory: vq.MessageFactory
) -> None:
    """In an archived range that begins inside a message; also a column that is given on demand."""
    start, end = 1_000_001, 2_400_000
    assert produced.archived[0] > end
    options = {
        "startingOffsets": f'{{"{TOPIC}": {{"0": {start}, "1": "latest"}}}}',
        "endingOffsets": f'{{"{TOPIC}": {{"0": {end}, "1": "latest"}}}}',
    }
    schema = (
        "key_type STRING, topic STRING, partition INT, offset LONG, id LONG, timestamp TIMESTAMP, "
        "tag STRING, key BINARY, headers MAP<STRING, STRING>, value BINARY"
    )
    frame = read(schema=schema, **options).selectExpr("*", "unix_millis(timestamp) AS ms")
    rows = frame.drop("timestamp").collect()
    with factory.create_consumer() as consumer:
        with pytest.raises(vq.errors.OffsetNotBoundary) as inside:
            consumer.get(TOPIC, 0, start, 1)
        at = int(inside.value.details["next"])
        expected: list[vq.Message] = []
        while at < end:
            some = consumer.get(TOPIC, 0, at, 1 << 20)
            expected += [each for each in some if each.offset < end]
            at = some[-1].next_offset
    assert len(rows) == len(expected) > 1_000
    types = {str: "text", bytes: "bytes", int: "int"}
    for row, each in zip(rows, expected, strict=True):
        assert each.timestamp is not None
        assert each.key is not None
        key = each.key if isinstance(each.key, bytes) else str(each.key).encode()
        assert tuple(row) == (
            types[type(each.key)],
            TOPIC,
            0,
            each.offset,
            each.id,
            each.tag,
            key,
            each.headers,
            each.content,
            round(each.timestamp.timestamp() * 1000),
        )


def test_messages_are_numbered_over_blocks_archives_and_tasks(
    read: Callable[..., DataFrame], spark: SparkSession
) -> None:
    """Each partition from 0 on without a gap; filters of rows change no number."""
    schema = "partition INT, offset LONG, tag STRING, number LONG"
    read(schema=schema, minPartitions="9").createOrReplaceTempView("numbered")
    [wrong, least] = spark.sql(
        "SELECT count_if(number <> place), min(number) FROM (SELECT *, row_number() OVER "
        "(PARTITION BY partition ORDER BY offset) - 1 AS place FROM numbered)"
    ).first()
    assert (wrong, least) == (0, 0)
    where = "tag = 'even' AND offset >= 2000000 AND number IS NOT NULL"
    all_rows = spark.sql(f"SELECT count(*), sum(number) FROM numbered WHERE {where}").first()
    assert all_rows[0] > 0
    checked = spark.sql(
        "SELECT count(*), sum(number) FROM (SELECT *, row_number() OVER (PARTITION BY partition "
        f"ORDER BY offset) AS place FROM numbered) WHERE {where}"
    ).first()
    assert all_rows == checked
    with pytest.raises(PySparkException, match="leave them out"):
        read(schema=schema, tag="even").count()


def test_archived_blocks_are_left_out_if_they_are_not_wanted(
    read: Callable[..., DataFrame], produced: Produced
) -> None:
    schema = "partition INT, offset LONG, timestamp TIMESTAMP"
    [newest] = read(schema=schema, includeArchive="false").selectExpr("count(*)").collect()
    behind = " OR ".join(
        f"(partition = {number} AND offset >= {end})" for number, end in produced.archived.items()
    )
    [same] = read(schema=schema).where(behind).selectExpr("count(*)").collect()
    assert 0 < newest[0] < COUNT
    assert newest == same


def test_filters_give_the_same_with_push_down_and_without(
    read: Callable[..., DataFrame], produced: Produced, spark: SparkSession
) -> None:
    frame = read(schema="partition INT, offset LONG, tag STRING, timestamp TIMESTAMP").where(
        "partition = 1 AND offset >= 777 AND offset < 12000000 AND tag IN ('even', 'odd') "
        "AND timestamp >= '2026-01-01' AND timestamp < '2100-01-01' AND NOT offset = 778"
    )
    asked = ["count(*)", "sum(offset)", "min(offset)", "max(offset)", "count(distinct tag)"]
    found = []
    for enabled in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            found += frame.selectExpr(*asked).collect()
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert found[0] == found[1]
    assert found[0][0] > 50
    assert found[0][4] == 2


def test_a_broker_may_be_killed_and_come_back_while_a_query_reads(
    read: Callable[..., DataFrame],
    produced: Produced,
    cluster: ProcessCluster,
    spark: SparkSession,
) -> None:
    found: list[Any] = []
    query = threading.Thread(target=lambda: found.append(sums(read(minPartitions=4))))
    query.start()
    while query.is_alive() and not spark.sparkContext.statusTracker().getActiveStageIds():
        query.join(0.01)
    assert query.is_alive(), "the broker is killed while the query runs"
    assert kill(cluster.brokers["b1"])
    cluster.restart("b1")
    query.join(120)
    assert found == [produced.all.expected()]


def test_a_broker_that_is_away_is_named_and_other_partitions_are_read(
    read: Callable[..., DataFrame], factory: vq.MessageFactory, cluster: ProcessCluster
) -> None:
    factory.admin.create_topic("two", vq.TopicSettings(partitions=2))
    groups = {each.partition: each.spans[-1].group for each in factory.admin.placements("two")}
    assert set(groups.values()) == {"b1", "b2"}
    with factory.create_producer() as producer:
        for number in range(4):
            producer.send_sync(vq.Message("two", b"%d" % number, key=number))
    away = next(number for number, group in groups.items() if group == "b2")
    cluster.brokers["b2"].stop()
    try:
        frame = read("two", timeout="1.5")
        with pytest.raises(PySparkException, match=rf"such as \[{away}\]"):
            frame.collect()
        rows = frame.where(f"partition = {1 - away}").collect()
        assert [int(row.value) % 2 for row in rows] == [1 - away] * 2
    finally:
        cluster.restart("b2")


def test_what_cannot_be_read_is_said(
    spark: SparkSession, read: Callable[..., DataFrame], produced: Produced
) -> None:
    """As Spark tells it; all that is refused is in the tests of options and columns."""
    register(spark)  # again does no harm
    for frame, said in (
        (lambda: read("missing"), "missing"),
        (lambda: read(startingOffset="earliest"), "do you mean startingOffsets?"),
        (lambda: read(startingOffsets=f'{{"{TOPIC}": {{"7": 1}}}}'), "partitions 0 to 1"),
        (lambda: read(startingOffsets=f'{{"{TOPIC}": {{"0": {1 << 60}}}}}'), "is outside"),
    ):
        with pytest.raises(PySparkException, match=said.replace("?", r"\?")) as raised:
            frame().collect()
        assert len(str(raised.value).splitlines()) <= 6, "no calls of vq"


def test_a_clock_that_is_ahead_is_allowed_for_or_told(
    cluster: ProcessCluster, factory: vq.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """A filter on the time of sending passes what was stored before it, less ``clockAhead``.

    Two messages of a clock that is three hours ahead; the filter lies between their storing.
    """
    factory.admin.create_topic("ahead", vq.TopicSettings())
    [placement] = factory.admin.placements("ahead")
    address = cluster.brokers[str(placement.writer_group)].spec.address

    def send(content: bytes) -> int:
        now_ms = time.time_ns() // 1_000_000
        with RawClient(address) as client:
            client.put("ahead", 0, [message(content, Selection.id_at(now_ms + 3 * 3_600_000))])
        return time.time_ns() // 1_000_000

    between_ms = send(b"first") + 10
    block_until(lambda: time.time_ns() // 1_000_000 > between_ms + 10, "the clock goes on")
    send(b"second")
    since = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(between_ms / 1000, UTC))

    def contents(clock_ahead_s: float, fails: str = "true") -> list[bytes]:
        options = {"zookeeper": cluster.zookeeper, "cluster": cluster.name, "topics": "ahead"}
        more = {"clockAhead": str(clock_ahead_s), "failOnDataLoss": fails}
        reader = BatchReader(ReadOptions.parsed({**options, **more}, stream=False), SCHEMA)
        assert reader.push([since]) == []
        found: list[bytes] = []
        for task in reader.partitions():
            for some in reader.read(task):
                found += some.column("value").to_pylist()
        return found

    assert contents(4 * 3_600) == [b"first", b"second"]
    with pytest.raises(DataLost, match=r"messages of ahead-0 may be missing: .* clockAhead"):
        contents(0.001)
    assert contents(0.001, "false") == [b"second"]
    assert "messages of ahead-0 may be missing" in caplog.text
    caplog.clear()
    assert contents(3_600) == [b"first", b"second"], "nothing is passed, so nothing is missing"
    assert not caplog.text


@pytest.mark.parametrize("fails", ["true", "false"])
def test_damage_fails_a_query_or_is_told(
    cluster: ProcessCluster,
    factory: vq.MessageFactory,
    fails: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What lies before and behind it is read. (In this process: its log is looked at.)"""
    topic = f"hurt-{fails}"
    factory.admin.create_topic(topic, vq.TopicSettings())
    contents = [[b"%d-%d-" % (batch, n) + bytes(200) for n in range(100)] for batch in range(4)]
    with factory.create_producer() as producer:
        for batch in contents:
            producer.send_batch([vq.Message(topic, content) for content in batch])
    [block] = [
        path
        for broker in cluster.brokers.values()
        for path in (broker.spec.data / topic).rglob("*.block")
    ]
    with block.open("r+b") as file:
        at = file.read().index(b"2-50-")
        file.seek(at)
        file.write(b"X")
    options = {"zookeeper": cluster.zookeeper, "cluster": cluster.name, "topics": topic}
    parsed = ReadOptions.parsed({**options, "failOnDataLoss": fails}, stream=False)
    reader = BatchReader(parsed, SCHEMA)
    [task] = reader.partitions()
    found: list[bytes] = []
    before = [*contents[0], *contents[1], *contents[2][:50]]
    with pytest.raises(DataLost) if fails == "true" else contextlib.nullcontext() as error:
        for some in reader.read(task):
            found += some.column("value").to_pylist()
    if error is not None:
        assert error.value.details["offset"] == at - 20
        assert found == before
    else:
        assert "the query goes on behind it" in caplog.text
        assert found == before + contents[3]


def test_an_archive_that_changes_between_plan_and_task_costs_no_message(
    cluster: ProcessCluster,
    factory: vq.MessageFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is damaged, then restored. (In this process: its log is looked at.)"""
    settings = vq.TopicSettings(retention_policy="archive", archive_to=tmp_path.as_uri())
    factory.admin.create_topic("kept", settings)
    contents = [b"%d" % number for number in range(2_000)]
    with factory.create_producer() as producer:
        producer.send_batch([vq.Message("kept", content) for content in contents])
    archive_all(factory.admin, "kept")
    options = {"zookeeper": cluster.zookeeper, "cluster": cluster.name, "topics": "kept"}
    reader = BatchReader(
        ReadOptions.parsed({**options, "archives": "direct"}, stream=False), SCHEMA
    )
    [task] = reader.partitions()

    def values() -> list[bytes]:
        return [each for some in reader.read(task) for each in some.column("value").to_pylist()]

    assert values() == contents
    assert caplog.text == ""
    [block] = factory.admin.list_archives("kept")[0]
    path = Path(block.url.removeprefix("file://"))
    whole = path.read_bytes()
    factory.admin.read_range("kept", 0, 0)  # from now on the broker has it in memory
    path.write_bytes(b"X" * 200 + whole[200:])
    assert values() == contents
    block_until(lambda: f"asking its broker url={block.url}" in caplog.text)
    path.write_bytes(whole)
    factory.admin.restore_archive(block)
    caplog.clear()
    assert values() == contents
    assert caplog.text == ""
