"""Spark on a cluster that asks for TLS, a user, and an identity at ZooKeeper."""

import contextlib
import io
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.certificates import write_tls
from support.cluster import ForkedBroker, ProcessCluster

import pyspark_vq
from pyspark_vq import connection
from pyspark_vq.options import Connect, Given
from pyspark_vq.reports.holdings import read_blocks, read_cluster

pytestmark = pytest.mark.slow

PASSWORD = "correct horse battery staple"
AUTHS = {name: f"{name}:{name}-0123456789abcdef" for name in ("operators", "brokers", "spark")}
ROWS = 100


def secured(
    processes: ProcessCluster, place: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Start a broker, add the user ``spark``, close the tree; return the options of Spark."""
    place.mkdir()
    tls = write_tls(place / "tls", trustme.CA())
    files = {"password": PASSWORD, **AUTHS}
    for name, text in files.items():
        (place / name).write_text(f"{text}\n")
        (place / name).chmod(0o600)
    settings = place / "broker.toml"
    settings.write_text('[broker]\nauthentication = "required"\n')
    monkeypatch.setenv("VQ_ZOOKEEPER_AUTH", AUTHS["brokers"])
    spec = replace(processes.spec("b1", "--config", str(settings)), tls=tls)
    processes.run(ForkedBroker(spec))
    monkeypatch.delenv("VQ_ZOOKEEPER_AUTH")
    processes.zookeeper_auth = AUTHS["operators"]
    processes.vq_json("user", "add", "spark", "--new-password-file", str(place / "password"))
    for topic in ("orders", "copies"):
        processes.vq_json("topic", "create", topic, "--partitions", "2", f"--tls-ca={tls.ca}")
    holders = {"operators": "operators", "brokers": "brokers", "clients": "spark"}
    identities = [f"--{holder}={place / name}" for holder, name in holders.items()]
    processes.vq_json("zk", "secure", *identities, "--yes")
    return {
        "zookeeper": processes.zookeeper,
        "cluster": processes.name,
        "user": "spark",
        "tlsCa": str(tls.ca),
        "zookeeperAuthFile": str(place / "spark"),
    }


def test_spark_proves_who_it_is_and_shows_no_secret(
    spark: SparkSession,
    processes: ProcessCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A batch, a stream, a table and what reports read; what Spark keeps of them is searched."""
    common = secured(processes, files := tmp_path / "files", monkeypatch)
    pyspark_vq.register(spark)
    by_file = {**common, "passwordFile": str(files / "password")}
    by_value = {**common, "password": PASSWORD}
    shown = []
    try:
        frame = spark.range(ROWS).selectExpr("concat('order ', id) AS value", "id AS key")
        frame.write.format("vq").options(**by_value, topic="orders").mode("append").save()
        orders = spark.read.format("vq").options(**by_value, topics="orders").load()
        assert orders.selectExpr("count(DISTINCT value)").first() == (ROWS,)
        with contextlib.redirect_stdout(io.StringIO()) as plan:
            orders.explain(extended=True)
        shown += [plan.getvalue(), orders._jdf.queryExecution().toString()]

        query = (
            spark.readStream.format("vq")
            .options(**by_value, topics="orders", startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format("vq")
            .options(**by_value, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        shown += [each.json for each in query.recentProgress]
        copies = spark.read.format("vq").options(**by_file, topics="copies").load()
        assert copies.count() == ROWS

        topics = spark.read.format("vq.topics").options(**by_value).load()
        assert {row.topic for row in topics.collect()} == {"orders", "copies"}
        connect = Connect.taken(Given(by_file, Connect.NAMES))
        read = read_cluster(connect)
        assert {row.topic for row in read_blocks(spark, connect, read).collect()} >= {"orders"}

        with pytest.raises(PySparkException) as refused:
            spark.read.format("vq").options(
                **{**common, "password": "guess-of-a-stranger"}, topics="orders", timeout="1"
            ).load().collect()
        assert "password is wrong" in str(refused.value)
        shown.append(str(refused.value))
    finally:
        connection.close_all()
        processes.vq_json("zk", "secure", "--undo", "--yes")
    store = spark._jsparkSession.sharedState().statusStore().executionsList()
    for number in range(store.size()):
        execution = store.apply(number)
        shown += [execution.physicalPlanDescription(), execution.details()]
    shown += [
        text
        for each in tmp_path.rglob("checkpoint/**/*")
        if each.is_file()
        for text in [each.read_bytes().decode("latin-1")]
    ]
    shown += capfd.readouterr()
    shown.append(processes.brokers["b1"].spec.log.read_text())
    assert any("RelationV2" in text for text in shown)
    for secret in (PASSWORD, "guess-of-a-stranger", "0123456789abcdef"):
        assert not [text for text in shown if secret in text]
