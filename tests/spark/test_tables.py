"""The tables of a real cluster, with a broker that is down."""

from collections.abc import Iterator

import pytest
from pyspark.sql import Row, SparkSession
from support.cluster import ProcessCluster
from support.zookeeper import admin

import pyspark_vq
import vq
from pyspark_vq import connection
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.message_filter import ALL
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow


@pytest.fixture
def factory(processes: ProcessCluster) -> Iterator[vq.MessageFactory]:
    """A client of two brokers, with a topic on both, a deleted one, and a group that has read."""
    for group in ("b1", "b2"):
        processes.add(group)
    config = vq.MessageFactoryConfig(
        zookeeper=processes.zookeeper, cluster=processes.name, client_id="maker"
    )
    with vq.MessageFactory(config) as made:
        made.admin.create_topic("orders", vq.TopicSettings(partitions=2))
        made.admin.create_topic("gone")
        made.admin.delete_topic("gone")
        with made.create_producer() as producer:
            for key in range(4):
                producer.send_sync(vq.Message("orders", b"x", key=key))
        reading = vq.ConsumerConfig(group="readers", commit_interval_s=0.05)
        with made.create_consumer(reading) as consumer:
            consumer.subscribe("orders").start()
            block_until(lambda: consumer.get_many(10, 0.1) == [] and not lag(made), lag(made))
        by_hand(processes)
        yield made
    connection.close_all()


def by_hand(processes: ProcessCluster) -> None:
    """Write a group that no client would write: numbers and texts that Spark cannot hold."""
    odd = CommittedOffset(offset=1 << 63, time_ms=10**18, member="m", stopped="\ud800")
    with admin(processes.zookeeper) as client:
        for path, value in (
            (ConsumerGroup.path("odd"), ConsumerGroup(topics={"orders": ALL})),
            (CommittedOffset.path("odd", "orders", 0), odd),
            (CommittedOffset.path("odd", "orders", 1), odd),
        ):
            client.create(f"/vq/{processes.name}/{path}", value.encode(), makepath=True)


def lag(factory: vq.MessageFactory) -> int | None:
    return factory.admin.describe_group("readers").lag_bytes


def test_tables_show_the_cluster_and_what_a_silent_broker_hides(
    spark: SparkSession, processes: ProcessCluster, factory: vq.MessageFactory
) -> None:
    """Its rows have nulls and an error; those of the other broker have their numbers."""
    pyspark_vq.register(spark)
    options = {"zookeeper": processes.zookeeper, "cluster": processes.name}

    def rows(name: str) -> list[Row]:
        return spark.read.format(name).options(**options).load().collect()

    found = rows("vq.audit")
    assert [(each.kind, each.topic) for each in found] == [
        ("topic_created", "orders"),
        ("topic_deleted", "gone"),
    ]
    assert all(each.who.startswith("maker@") and each.error is None for each in found)

    processes.brokers["b2"].kill()
    with vq.MessageFactory(factory.config) as client, client.create_producer() as producer:
        hosts = [each.writer_group for each in client.admin.placements("orders")]
        alive, silent = hosts.index("b1"), hosts.index("b2")
        producer.send_sync(vq.Message("orders", b"y", key=alive))

    brokers = {each.group: each for each in rows("vq.brokers")}
    assert (brokers["b1"].role, brokers["b1"].in_sync, brokers["b1"].error) == (
        "master",
        True,
        None,
    )
    assert brokers["b1"].partitions >= 1
    assert brokers["b1"].disks[0].bytes_total > 0
    assert brokers["b2"].error
    assert brokers["b2"].uptime_s is None
    assert brokers["b2"].disks is None

    topics = {each.topic: each for each in rows("vq.topics")}
    assert (topics["gone"].state, topics["gone"].settings) == ("deleted", None)
    assert topics["orders"].settings["partitions"] == "2"
    assert (topics["orders"].bytes, topics["orders"].silent_partitions) == (None, 1)
    assert topics["orders"].error == "the brokers of 1 partitions do not answer"

    found = rows("vq.lag")
    assert {each.group for each in found} == {"readers", "odd"}
    for each in found:
        if each.group == "odd":
            assert (each.committed, each.lag_bytes, each.verdict) == (None, None, "stopped")
            assert each.error == (
                "\\ud800; committed = 9223372036854775808 is outside [-2**63, 2**63)"
            )
    lags = {each.partition: each for each in found if each.group == "readers"}
    assert lags[alive].lag_messages == 1
    assert lags[alive].verdict == "stopped"  # it has no consumer any more
    assert (lags[alive].cause, lags[alive].start) == ("no_members", 0)
    assert lags[alive].error is None
    assert (lags[silent].end, lags[silent].lag_bytes) == (None, None)
    assert lags[silent].verdict == "unknown"
    assert lags[silent].error
    assert lags[silent].committed > 0
