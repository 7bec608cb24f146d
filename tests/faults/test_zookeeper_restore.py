"""ZooKeeper comes back from a backup that is older than a topic: the topic's data stay.

backup ── topic young, messages ── ZooKeeper dies, the backup is restored ──▶ brokers
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import ProcessCluster, process_cluster
from support.zookeeper import embedded

from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    with embedded(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def cluster(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProcessCluster]:
    monkeypatch.setenv("VQ_BROKER_TRASH_KEEP_S", "0.2")
    monkeypatch.setenv("VQ_BROKER_REFRESH_INTERVAL_S", "0.5")
    monkeypatch.setenv("VQ_BROKER_SESSION_TIMEOUT_S", "2")
    with process_cluster(tmp_path / "cluster", zookeeper.hosts) as cluster:
        yield cluster


def make_and_fill(cluster: ProcessCluster, topic: str) -> None:
    cluster.vq_json("topic", "create", topic)
    cluster.vq_json("produce", topic, stdin=b"kept")


def blocks(broker_data: Path, topic: str) -> list[bytes]:
    return [path.read_bytes() for path in (broker_data / topic / "0").glob("*.block")]


@pytest.mark.parametrize(
    "restart",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["running", "restarted"],
)
def test_data_of_a_topic_younger_than_the_backup_stay(
    cluster: ProcessCluster, zookeeper: EmbeddedZooKeeper, tmp_path: Path, restart: bool
) -> None:
    """A broker says so, whether it ran through or starts anew; a namesake gets its own place."""
    broker = cluster.add("b1")
    make_and_fill(cluster, "old")
    zookeeper.stop()
    shutil.copytree(tmp_path / "zookeeper", tmp_path / "backup")
    zookeeper.start()
    make_and_fill(cluster, "young")
    data = broker.spec.data
    before = blocks(data, "young")
    assert b"kept" in before[0]

    if restart:
        assert broker.stop() == 0
    zookeeper.kill()
    shutil.rmtree(tmp_path / "zookeeper")
    shutil.copytree(tmp_path / "backup", tmp_path / "zookeeper")
    zookeeper.restart()
    if restart:
        cluster.restart("b1")
    block_until(
        lambda: "gone from ZooKeeper and was not deleted" in broker.spec.log.read_text(), "told"
    )
    assert blocks(data, "young")[0].startswith(before[0].rstrip(b"\0"))
    cluster.vq_json("produce", "old", stdin=b"more")

    make_and_fill(cluster, "young")
    (kept,) = (data / "@kept").iterdir()
    assert kept.name.startswith("young.")
    assert b"kept" in next((kept / "0").glob("*.block")).read_bytes()
    assert not (data / "@trash").exists() or not list((data / "@trash").iterdir())
