"""``vq report lag`` on a real cluster: two snapshots, against a table made by hand.

One run of the command is seconds of Spark, so each tells many claims. The session is that of the
tests, and the command runs in this process.
"""

import csv
import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest
from kazoo.client import KazooClient
from pyspark.sql import SparkSession
from support.cluster import ProcessCluster
from support.html_page import PageReader
from support.json_schema import schema_of, wrong
from support.zookeeper import ZooKeeperService, admin, let_read

import vq
from pyspark_vq import connection
from pyspark_vq.reports.lag_rules import SCHEMA
from vq.cli import main
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup, Member, Owner
from vq.message_filter import ALL, Filter

#: Two reports; a machine that is busy with other work needs minutes for them.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

JOB: Final = Path(__file__).resolve().parents[2] / "spark" / "lag_report.py"
HOSTILE: Final = "=HYPERLINK(<script>alert(1)<!script>)"
MESSAGES: Final = 20
#: Nothing becomes old or stalled while a busy machine takes its time.
NEVER_OLD: Final = ("--warn-seconds", "0", "--stalled-after", str(300 * 86_400))
Run = Callable[..., Any]


@pytest.fixture
def run(
    processes: ProcessCluster,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:
    """Run ``vq report lag --json`` in this process; return its document, checked by its schema."""
    assert spark is SparkSession.getActiveSession()
    monkeypatch.setenv("VQ_ZOOKEEPER", processes.zookeeper)
    monkeypatch.setenv("VQ_CLUSTER", processes.name)

    def call(*options: str) -> Any:
        code = main.run(["report", "lag", "--json", *NEVER_OLD, *options])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        assert printed.err == ""
        document = json.loads(printed.out)
        assert not list(wrong(document, schema_of(["report", "lag"])))
        return document

    yield call
    connection.close_all()


class Tree:
    """Consumer groups, written into ZooKeeper by hand; owners live as long as this."""

    def __init__(self, client: KazooClient, cluster: str) -> None:
        self._client = client
        self._hosts = "{}:{}".format(*client.hosts[0])
        self._root = f"/vq/{cluster}"
        self._denied: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let what deletes the root read it."""
        for path in self._denied:
            let_read(self._hosts, path, allowed=True)

    def deny(self, path: str) -> None:
        """Let nobody read a node, as one that is somebody else's."""
        self._denied.append(f"{self._root}/{path}")
        let_read(self._hosts, self._denied[-1], allowed=False)

    def put(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        full = f"{self._root}/{path}"
        if self._client.exists(full):
            self._client.set(full, data)
        else:
            self._client.create(full, data, ephemeral=ephemeral, makepath=True)

    def group(self, name: str, *topics: str, members: int = 1, **more: Any) -> None:
        contract = ConsumerGroup(topics=dict.fromkeys(topics, ALL), **more)
        self.put(ConsumerGroup.path(name), contract.encode())
        for number in range(members):
            path = Member.path(name, f"m{number}")
            self.put(path, Member(host="h", topics=topics).encode(), ephemeral=True)

    def commit(self, group: str, topic: str, number: int, offset: int, **more: Any) -> None:
        now_ms = int(time.time() * 1000)
        committed = CommittedOffset(offset=offset, time_ms=now_ms, member="m0", **more)
        self.put(CommittedOffset.path(group, topic, number), committed.encode())

    def own(self, group: str, topic: str, number: int, **more: Any) -> None:
        path = Owner.path(group, topic, number)
        self.put(path, Owner(member="m0", **more).encode(), ephemeral=True)


def send(processes: ProcessCluster, topic: str, count: int) -> dict[int, list[int]]:
    """Send ``count`` messages to each partition of a topic of two; return their offsets."""
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    offsets: dict[int, list[int]] = {0: [], 1: []}
    with vq.MessageFactory(config) as factory:
        producer = factory.create_producer()
        for number in range(2 * count):
            sent = producer.send_sync(vq.Message(topic, b"content", key=number), timeout=30)
            offsets[sent.partition].append(sent.offset)
        for partition, ends in factory.admin.bounds(topic).items():
            assert ends is not None
            offsets[partition].append(ends.latest)
    return offsets


def test_two_snapshots_of_a_cluster(
    processes: ProcessCluster,
    zookeeper: ZooKeeperService,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Groups of every kind; then one of them has gone on, and one of two brokers was killed."""
    for name in ("b1", "b2"):
        processes.add(name)
    out = tmp_path / "out"
    for topic in ("orders", "idle"):
        processes.vq_json("topic", "create", topic, "--partitions", "2")
    processes.vq_json("topic", "create", "dropped", "--partitions", "1")
    processes.vq_json("topic", "delete", "dropped", "--yes")
    sent = send(processes, "orders", MESSAGES)
    processes.vq_json("topic", "close", "orders")
    with admin(zookeeper.hosts) as client, Tree(client, processes.name) as tree:
        make_groups(tree, sent)
        first = run("--out", str(out), "--csv", str(tmp_path / "lag.csv"))
        rows = read_rows(tmp_path / "lag.csv")
        partitions = [key for key in WANTED if key[1] in {"orders", "idle"}]
        assert len(rows) == 2 * len(partitions) + len(WANTED) - len(partitions)
        check_rows(rows, sent, counted=True)
        assert {row["trend"] for row in rows.values()} == {""}
        assert {key[0] for key, row in rows.items() if row["filter"]} == {"behind"}
        assert (first["groups"], first["rows"], first["silent"]) == (16, len(rows), {})

        live, dead = partition_of(rows, "b1"), partition_of(rows, "b2")
        tree.commit("behind", "orders", int(live), sent[int(live)][15])
        processes.brokers["b2"].kill()
        html = tmp_path / "lag.html"
        second = run(
            *("--out", str(out), "--csv", str(tmp_path / "lag.csv"), "--html", str(html)),
            *("--no-count", "--top", "3"),
        )
    rows = read_rows(tmp_path / "lag.csv")
    known = {key: row for key, row in rows.items() if row["broker"] != "b2"}
    check_rows(known, sent, counted=False, gone_on=(live, 15))
    assert known["behind", "orders", live]["trend"] == "falling"
    assert float(known["behind", "orders", live]["trend_bytes_per_s"]) < 0
    assert known["alone", "orders", live]["trend"] == "steady"
    assert list(second["silent"]) == ["b2"]
    silent = rows["behind", "orders", dead]
    assert (silent["verdict"], silent["cause"]) == ("unknown", "broker_silent")
    assert silent["detail"] == second["silent"]["b2"] != ""
    assert (silent["end"], silent["lag_bytes"], silent["lag_seconds"]) == ("", "", "")
    assert {row["verdict"] for row in rows.values() if row["broker"] == "b2"} == {
        "unknown",
        "stopped",  # what ZooKeeper alone proves
    }
    check_page(html, second)
    check_parquet(out, rows, live, second, first)

    monkeypatch.setattr(sys, "argv", [str(JOB), "--cluster", "no-such-cluster"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOB), run_name="__main__")
    assert ended.value.code == 1
    assert "there is no cluster 'no-such-cluster'" in capsys.readouterr().err


def make_groups(tree: Tree, sent: dict[int, list[int]]) -> None:
    """Make a group of every kind; all but the hostile one are of this test's own making."""
    end = {number: offsets[-1] for number, offsets in sent.items()}
    tree.group("behind", "orders")
    contract = ConsumerGroup(topics={"orders": Filter(("a", "b"))})
    tree.put(ConsumerGroup.path("behind"), contract.encode())
    tree.group("alone", "orders", members=0)
    tree.group("stream", "orders", members=0, by_stream=True)
    tree.group("fresh", "orders", start="latest")
    tree.group("owned", "orders", "idle", "dropped")
    tree.group("held", "orders")
    tree.group("lost", "orders")
    tree.group("renamed", "orders")
    tree.group("failing", "orders")
    tree.group("radio", "orders", model="broadcasting")
    tree.group("odd", "orders", "never\ud800")
    tree.group("none")
    tree.group("locked", "orders")
    tree.group("secret", "orders")
    tree.deny(ConsumerGroup.path("secret"))
    tree.put(ConsumerGroup.path("broken"), b"{")
    tree.put(f"consumers/{HOSTILE}", ConsumerGroup().encode())
    for number in sent:
        tree.own("behind", "orders", number)
        tree.commit("behind", "orders", number, sent[number][5])
        tree.commit("alone", "orders", number, sent[number][19])
        tree.commit("stream", "orders", number, sent[number][19])
        tree.own("owned", "orders", number)
        tree.commit("owned", "orders", number, end[number])
        tree.commit("held", "orders", number, end[number], stopped="the data are damaged")
        tree.commit("lost", "orders", number, end[number] + 1)
        tree.commit("renamed", "orders", number, 0, topic_id="another")
        tree.commit("failing", "orders", number, sent[number][10])
        tree.own("failing", "orders", number, stopped="ListenerFailed", stopped_at=1)
        tree.commit("odd", "orders", number, 10**30)
        tree.commit("locked", "orders", number, 0)
        tree.deny(CommittedOffset.path("locked", "orders", number))
        owner = Owner(member="\ud800\x1b[31m=1")
        tree.put(Owner.path("odd", "orders", number), owner.encode(), ephemeral=True)


#: Of each group and topic: messages behind, verdict, cause.
WANTED: Final[dict[tuple[str, str], tuple[int | None, str, str]]] = {
    ("behind", "orders"): (15, "ok", ""),
    ("alone", "orders"): (1, "stopped", "no_members"),
    ("stream", "orders"): (1, "ok", ""),
    ("fresh", "orders"): (0, "ok", ""),
    ("owned", "orders"): (0, "ok", ""),
    ("owned", "idle"): (0, "ok", ""),
    ("owned", "dropped"): (None, "unknown", "topic_deleted"),
    ("held", "orders"): (0, "stopped", "needs_reset"),
    ("lost", "orders"): (None, "stopped", "beyond_end"),
    ("renamed", "orders"): (None, "stopped", "other_topic"),
    ("failing", "orders"): (10, "stopped", "owner_error"),
    ("radio", "orders"): (None, "unknown", "broadcasting"),
    ("odd", "orders"): (None, "unknown", "place_unreadable"),
    ("odd", "never\\ud800"): (None, "unknown", "topic_deleted"),
    ("none", ""): (None, "unknown", "no_topics"),
    ("locked", "orders"): (None, "unknown", "place_unreadable"),
    ("secret", ""): (None, "unknown", "group_unreadable"),
    ("broken", ""): (None, "unknown", "group_unreadable"),
    (f"'{HOSTILE}", ""): (None, "unknown", "group_unreadable"),
}


def read_rows(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == SCHEMA.names
        return {(row["group"], row["topic"], row["partition"]): row for row in reader}


def check_rows(
    rows: dict[tuple[str, str, str], dict[str, str]],
    sent: dict[int, list[int]],
    *,
    counted: bool,
    gone_on: tuple[str, int] | None = None,
) -> None:
    """Compare rows with ``WANTED``; ``gone_on`` is a partition, and where ``behind`` is in it."""
    for (group, topic, partition), row in rows.items():
        messages, verdict, cause = WANTED[group, topic]
        assert (row["verdict"], row["cause"]) == (verdict, cause), row
        if messages is None:
            assert row["lag_bytes"] == row["lag_messages"] == row["lag_seconds"] == "", row
            continue
        ends = sent[int(partition)] if topic == "orders" else [0] * (MESSAGES + 1)
        if gone_on is not None and (group, partition) == ("behind", gone_on[0]):
            messages = MESSAGES - gone_on[1]
        begin = ends[MESSAGES - messages]
        assert row["lag_bytes"] == str(ends[-1] - begin), row
        assert row["lag_messages"] == (str(messages) if counted else ""), row
        assert 0 <= float(row["lag_seconds"]) < 3_600
        assert (float(row["lag_seconds"]) > 0) == (messages > 0), row
        assert (row["end"], row["start"]) == (str(ends[-1]), "0"), row
        assert row["broker"] in {"b1", "b2"}
        assert row["pool"] == "common"
        assert row["members"] == ("0" if group in {"alone", "stream"} else "1")


def partition_of(rows: dict[tuple[str, str, str], dict[str, str]], broker: str) -> str:
    [found] = {
        key[2] for key, row in rows.items() if key[1] == "orders" and row["broker"] == broker
    }
    return found


def check_page(path: Path, document: Any) -> None:
    """Every number of its charts is in the data, and nothing in it acts."""
    page = path.read_text()
    reader = PageReader(page)
    assert not {"script", "link", "img"} & set(reader.tags)
    assert "<script>alert" not in page
    assert f"'{HOSTILE}" not in page
    data = {float(count) for count in document["verdicts"].values()}
    for rows in document["rollups"].values():
        data |= {float(row["lag_bytes"]) for row in rows if row["lag_bytes"] is not None}
        data |= {float(row["lag_s"]) for row in rows if row["lag_s"] is not None}
    charted = set(reader.values)
    assert len(charted) > 5
    assert len(charted - data) <= 6  # earlier values of the groups that are drawn
    assert "more are left out; the files have all" in reader.text


def check_parquet(
    out: Path, rows: dict[tuple[str, str, str], dict[str, str]], live: str, *documents: Any
) -> None:
    """The history has each snapshot once, and the newest is what the CSV has."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    found = spark.read.parquet(str(out / "lag")).collect()
    names = [document["snapshot"] for document in documents]
    assert {row["snapshot"] for row in found} == set(names)
    newest = [row for row in found if row["snapshot"] == names[0]]
    assert len(newest) == len(rows)
    lags = {(row["group"], row["partition"]): row["lag_bytes"] for row in newest}
    assert str(lags["behind", int(live)]) == rows["behind", "orders", live]["lag_bytes"]
