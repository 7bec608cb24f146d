"""A time that Python cannot hold fails no query: Spark checks its filter."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual
from pyspark.sql.types import VariantVal
from support.cluster import ProcessCluster

import vq
from pyspark_vq.far_times import BEYOND, tolerate
from pyspark_vq.filters import EVERYTHING, narrowed_by

#: A primitive of Spark's type 12, a timestamp in microseconds; metadata without names.
HEAD, METADATA = bytes([12 << 2]), bytes([1, 0, 0])
YEAR_US = 31_556_952 * 10**6


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VariantVal, "toPython", VariantVal.toPython)  # put back at the end
    tolerate()
    tolerate()


def variant(microseconds: int) -> VariantVal:
    return VariantVal(HEAD + microseconds.to_bytes(8, "little", signed=True), METADATA)


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("year", [20_000, 294_000, -3_000])
def test_a_time_beyond_python_is_a_value_that_no_filter_handles(year: int) -> None:
    value = variant((year - 1970) * YEAR_US).toPython()
    assert value is BEYOND
    for kind in (GreaterThan, LessThanOrEqual, EqualTo, In):  # of In: for all of its values
        for column in ("timestamp", "offset", "topic", "tag"):
            each = kind((column,), value)
            assert narrowed_by([each], EVERYTHING) == (EVERYTHING, [each])


@pytest.mark.usefixtures("reading")
def test_any_other_time_is_read_as_before() -> None:
    noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    passed = (noon - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert variant(passed).toPython() == noon


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [pytest.param("true", marks=pytest.mark.long), "false"])
def test_a_query_may_name_a_year_that_python_does_not_have(
    spark: SparkSession, cluster: ProcessCluster, factory: vq.MessageFactory, enabled: str
) -> None:
    """Spark has the year 20000, and years before the first one; other filters narrow as before."""
    topic = f"far-{enabled}"
    factory.admin.create_topic(topic, vq.TopicSettings(partitions=2))
    with factory.create_producer() as producer:
        producer.send_batch([vq.Message(topic, b"%d" % number) for number in range(20)])
    options = {"zookeeper": cluster.zookeeper, "cluster": cluster.name, "topics": topic}
    frame = spark.read.format("vq").options(**options).load().where("partition >= 0")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        for condition, count in (
            (
                "timestamp < timestamp'+20000-01-01 00:00:00' "
                "AND timestamp > timestamp'-3000-01-01 00:00:00' AND timestamp > '2020-01-01'",
                20,
            ),
            ("timestamp >= timestamp'+20000-01-01 00:00:00'", 0),
            (
                "timestamp IN (timestamp'+20000-01-01', timestamp'+30000-01-01') "
                "AND (timestamp = timestamp'+20000-01-01 00:00:00' OR tag = 'x')",
                0,
            ),
        ):
            assert frame.where(condition).count() == count, condition
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
