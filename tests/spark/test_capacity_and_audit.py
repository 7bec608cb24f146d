"""``vq report audit`` and ``vq report capacity`` on a real cluster with known topics.

The audit finds a flipped bit, on a node alone and beside an intact copy, a lost block, a message
that is stored twice and a damaged archive, each once and with its place, and nothing else. Then one
broker is stopped: the capacity report has its numbers as unknown, with the cause, and those of the
other as they are.

One run of a command is seconds of Spark, so each tells many claims. The session is that of the
tests, and the commands run in this process.
"""

import csv
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.cluster import ProcessCluster
from support.html_page import PageReader
from support.json_schema import schema_of, wrong
from support.raw_client import RawClient, message

import vq
from pyspark_vq import connection
from pyspark_vq.reports import loads
from vq.admin import ArchivedBlock
from vq.cli import main
from vq.cli.reports import report_capacity
from vq.devtools.processes import BrokerChild
from vq.testing.waiting import block_until

#: Two reports; a machine that is busy with other work needs minutes for them.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = 60
CONTENT = b"a known content " * 20
DAY_MS = 86_400_000
Run = Callable[..., Any]


@pytest.fixture
def run(
    processes: ProcessCluster,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Run a report with ``--json`` in this process; return its document, checked by its schema."""
    assert spark is SparkSession.getActiveSession()
    monkeypatch.setenv("VQ_ZOOKEEPER", processes.zookeeper)
    monkeypatch.setenv("VQ_CLUSTER", processes.name)

    def call(name: str, *options: str, code: int = 0) -> Any:
        found = main.run(["report", name, "--json", *options])
        printed = capsys.readouterr()
        assert found == code, printed.err
        document = json.loads(printed.out)
        assert not list(wrong(document, schema_of(["report", name])))
        return document

    yield call
    connection.close_all()


def fill(factory: vq.MessageFactory, topic: str) -> None:
    with factory.create_producer() as producer:
        producer.publish(topic)
        for number in range(MESSAGES):
            producer.send_sync(vq.Message(topic, b"%d %s" % (number, CONTENT)))


def archived(admin: vq.Admin, topic: str) -> ArchivedBlock:
    """Have all of a topic become an archive; return the only one."""
    later = int(time.time() * 1000) + 2 * DAY_MS
    admin.wait_for_archive_run(admin.start_archive_run(topic, as_of_ms=later))
    [block] = admin.list_archives(topic)[0]
    return block


def in_sync(admin: vq.Admin, group: str) -> list[str]:
    brokers = admin.cluster_status().brokers
    return sorted(each.name for each in brokers if each.group.group == group and each.in_sync)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 4]))


def prepare(processes: ProcessCluster) -> dict[str, Any]:
    """Topics on b1, each with a defect of its own, ``sound`` without one, and ``far`` on b2.

    ``pair`` and ``copy`` are on the master and the copy of b3, with a defect on one of them.
    """
    kept = vq.TopicSettings(retention_policy="archive", retention_hours=72)
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as factory:
        admin = factory.admin
        homes = {"far": "b2", "pair": "b3", "copy": "b3"}
        for topic in ("flip", "gone", "twice", "zip", "sound", *homes):
            admin.create_topic(topic, kept)
            admin.move(admin.plan_moves(topic, [0], homes.get(topic, "b1")))
            fill(factory, topic)
        zips = {topic: archived(admin, topic) for topic in ("gone", "zip", "sound")}
        admin.restore_archive(zips["gone"])
        for topic in zips:
            fill(factory, topic)
        with RawClient(processes.brokers["b1"].spec.address) as client:
            for record_id in (7, 8, 7):  # a producer without a stamp, and with an id of its own
                client.put("twice", 0, [message(b"again", record_id)])
        ends = {topic: admin.bounds(topic)[0] for topic in ("sound", "twice")}
        block_until(lambda: in_sync(admin, "b3") == ["n1", "n2"], "the copy follows")
    broker = processes.brokers["b1"]
    broker.stop()
    data = broker.spec.data
    flip(data / "zip" / "0" / "0000000000000000.zip", 1_000)
    (data / "gone" / "0" / "0000000000000000.block").unlink()
    processes.restart("b1")
    master, copy = (processes.brokers[each].spec.data for each in ("b3", "b3-n2"))
    for log in (data / "flip", master / "pair", copy / "copy"):
        [block] = (log / "0").glob("*.block")
        flip(block, 3_000)  # as rot does: recovery has not seen it
    return {"zips": zips, "ends": ends}


def test_each_defect_is_found_and_nothing_else_and_a_silent_broker_is_unknown(
    run: Run, processes: ProcessCluster, spark: SparkSession, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    processes.add("b1")
    processes.add("b2")
    processes.add("b3")
    copy = replace(processes.spec("b3", node="n2"), data=processes.directory / "b3-n2")
    processes.run(BrokerChild(copy), name="b3-n2")
    known = prepare(processes)
    zips = known["zips"]
    out, page = str(tmp_path / "out"), tmp_path / "audit.html"

    audited = run("audit", "--out", out, "--html", str(page), code=1)
    found = {each["topic"]: each for each in audited["findings"]}
    assert {topic: each["kind"] for topic, each in found.items()} == {
        "flip": "damaged",
        "gone": "missing",
        "twice": "duplicate",
        "zip": "archive",
        "pair": "damaged",
        "copy": "damaged",
    }
    assert audited["total"] == len(audited["findings"]) == 6
    kinds = ("archive", "damaged", "duplicate", "missing")
    assert audited["counts"] == {**dict.fromkeys(kinds, 1), "damaged": 3}
    assert (found["gone"]["start"], found["gone"]["end"]) == (0, zips["gone"].end)
    assert (found["zip"]["start"], found["zip"]["end"]) == (0, zips["zip"].end)
    for topic, node in (("flip", "b1/n1"), ("pair", "b3/n1"), ("copy", "b3/n2")):
        damage = found[topic]
        assert (damage["partition"], damage["node"]) == (0, node)
        assert damage["start"] <= 3_000 < damage["end"] < damage["start"] + 1_000
        assert ("b3/n2 has these bytes intact" in damage["detail"]) == (topic == "pair")
    twice = found["twice"]
    assert twice["start"] > known["ends"]["twice"].earliest
    assert "message id 7 is at offset" in twice["detail"]
    assert {each["node"] for each in audited["findings"]} == {"b1/n1", "b3/n1", "b3/n2", ""}
    rows = {each["topic"]: each for each in audited["partitions"]}
    assert {topic for topic, row in rows.items() if row["verdict"] == "sound"} == {"sound", "far"}
    sound = rows["sound"]
    assert (sound["messages"], sound["start"]) == (2 * MESSAGES, 0)
    assert sound["end"] == sound["bytes"] == known["ends"]["sound"].latest
    assert rows["flip"]["messages"] == rows["pair"]["messages"] == MESSAGES - 1
    assert rows["copy"]["messages"] == MESSAGES
    bad = {topic for topic, row in rows.items() if row["verdict"] == "bad"}
    assert bad == {"flip", "gone", "twice", "zip", "pair", "copy"}
    assert rows["twice"]["messages"] == MESSAGES + 3
    assert rows["gone"]["messages"] == rows["zip"]["messages"] == MESSAGES
    assert sum(audited["sizes"]["sound"]) == 2 * MESSAGES
    assert (audited["archives"], audited["notes"]) == (2, [])
    reader = PageReader(page.read_text())
    assert "message id 7" in reader.text
    kept = spark.read.parquet(f"{out}/audit/findings")
    assert kept.count() == 6

    processes.brokers["b2"].stop()
    monkeypatch.setattr(report_capacity, "now_s", lambda: time.time() + 7_200)
    page, rows_file, plan = (tmp_path / name for name in ("c.html", "c.csv", "plan.json"))
    made = run(
        "capacity", "--out", out, "--html", str(page), "--csv", str(rows_file), "--plan", str(plan)
    )
    parts = {(each["topic"], each["partition"]): each for each in made["partitions"]}
    far = parts["far", 0]
    assert (far["verdict"], far["bytes"], far["bytes_per_day"]) == ("unknown", None, None)
    assert "b2" in far["reason"]
    topics = {each["topic"]: each for each in made["topics"]}
    assert topics["sound"]["bytes"] == known["ends"]["sound"].latest
    assert topics["sound"]["messages"] == 2 * MESSAGES
    assert topics["sound"]["archive_bytes"] == zips["sound"].zip_bytes
    assert topics["sound"]["archived_bytes"] == zips["sound"].end
    disk = topics["sound"]["disk_bytes"]
    assert disk == zips["sound"].zip_bytes + topics["sound"]["bytes"] - zips["sound"].end
    rate = topics["sound"]["bytes_per_day"]  # all within minutes, two hours before "now"
    assert 11 * topics["sound"]["bytes"] < rate <= 24 * topics["sound"]["bytes"]
    assert topics["far"]["bytes"] is None
    assert made["bytes_per_day"] is None  # a part is unknown, so the whole is
    assert made["verdicts"]["unknown"] == 1
    disks = {each["group"]: each for each in made["disks"]}
    assert disks["b1"]["bytes_used"] > 0
    assert (disks["b1"]["verdict"], disks["b1"]["growth_bytes_per_day"]) == ("unknown", None)
    assert "1 of the 6 snapshots" in disks["b1"]["reason"]
    if "b2" in disks:  # gone from ZooKeeper, or not yet
        assert disks["b2"]["bytes_used"] is None
    moves = made["plan"]["moves"]
    assert not any("b2" in (each["from"], each["to"]) for each in moves), "nothing is known of it"
    assert any(note.startswith("b2 is left out") for note in made["plan"]["notes"])
    assert json.loads(plan.read_text()) == made["plan"]
    reader = PageReader(page.read_text())
    assert "Nothing was moved" in reader.text
    assert "script" not in reader.tags
    with rows_file.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == list(loads.PARTITIONS)
    assert len(written) == 8
    assert [row["bytes"] for row in written if row["topic"] == "far"] == [""]
    history = spark.read.parquet(f"{out}/capacity/disks").collect()
    assert {row["snapshot"] for row in history} == {made["snapshot"]}
