"""A topic is deleted and brought back while brokers are killed with SIGKILL: no byte changes."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError
from support.cluster import ForkedBroker, ProcessCluster, process_cluster
from support.zookeeper import ZooKeeperService, admin

import vq
from vq.coordination.tree.values.topics import GraceClock
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

PARTITIONS = 3
COUNT = 200


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperService) -> Iterator[ProcessCluster]:
    """Group b1 with a master and a copy, and group b2; topic ``t`` with a partition that moved."""
    with process_cluster(tmp_path, zookeeper.hosts) as made:
        made.add("b1")
        made.vq_json("topic", "create", "t", "--partitions", str(PARTITIONS))
        send(made, range(COUNT))
        spec = replace(made.spec("b1", node="n2"), data=made.directory / "b1-n2")
        made.run(ForkedBroker(spec), name="b1-n2")
        made.add("b2")
        made.vq_json("topic", "move", "t", "--partition", "0", "--to", "b2", "--yes")
        send(made, range(COUNT, 2 * COUNT))
        read = made.vq("consume", "t", "--group", "g", "--max", str(COUNT))
        assert read.returncode == 0, read.stderr
        yield made


def send(cluster: ProcessCluster, numbers: range) -> None:
    lines = b"".join(b"%d\n" % number for number in numbers)
    ended = cluster.vq("produce", "t", stdin=lines)
    assert ended.returncode == 0, ended.stderr.decode()


def read_all(cluster: ProcessCluster) -> list[bytes]:
    ended = cluster.vq("consume", "t", "--json")
    assert ended.returncode == 0, ended.stderr.decode()
    return sorted(ended.stdout.splitlines())


def progress(cluster: ProcessCluster) -> list[tuple[object, ...]]:
    found = cluster.vq_json("group", "describe", "g")["partitions"]
    return [(each["partition"], each["committed"], each["end"]) for each in found]


def bytes_of(cluster: ProcessCluster) -> dict[str, str]:
    """Return a digest of what is stored of the topic on each node, without space taken ahead."""
    found = {}
    for broker in cluster.brokers.values():
        for path in sorted((broker.spec.data / "t").glob("*/*.block")):
            content = path.read_bytes().rstrip(b"\0")
            found[f"{broker.spec.data.name}/{path.name}"] = hashlib.sha256(content).hexdigest()
    return found


def kill(cluster: ProcessCluster) -> None:
    for broker in cluster.brokers.values():
        broker.kill()


def start(cluster: ProcessCluster) -> None:
    for broker in cluster.brokers.values():
        broker.start()
    for broker in cluster.brokers.values():
        broker.wait_ready(PROCESSES_WAIT_S)


def in_sync(cluster: ProcessCluster) -> bool:
    ended = cluster.vq("cluster", "status")
    return ended.returncode == 0


@pytest.mark.parametrize(
    "killed",
    [
        ("before the delete",),
        # The next one has this moment, too.
        pytest.param(("after the delete",), marks=pytest.mark.long),
        ("after the delete", "after the undelete"),
        ("during all of it",),
    ],
    ids=", ".join,
)
def test_what_was_acknowledged_is_there_byte_for_byte(
    cluster: ProcessCluster, killed: tuple[str, ...]
) -> None:
    """All brokers are killed at once, at one step or at several, and start again afterwards."""
    block_until(lambda: in_sync(cluster), "nodes are not in sync")
    messages, committed, stored = read_all(cluster), progress(cluster), bytes_of(cluster)
    assert len(messages) == 2 * COUNT
    described = cluster.vq_json("topic", "describe", "t")

    def at(moment: str, then: Callable[[], object] = lambda: None) -> None:
        if moment in killed:
            kill(cluster)
            then()
            start(cluster)

    at("before the delete")
    if "during all of it" in killed:
        kill(cluster)
    deleted = cluster.vq("topic", "delete", "t", "--yes")
    assert deleted.returncode == 0, deleted.stderr.decode()
    assert cluster.vq_json("topic", "list") == []
    (row,) = cluster.vq_json("topic", "list", "--deleted")
    assert (row["topic"], row["id"], row["grace_s"]) == ("t", described["id"], 72 * 3600)
    assert 0 < row["left_s"] <= row["grace_s"]
    refused = cluster.vq("produce", "t", stdin=b"late\n")
    assert refused.returncode == 1
    assert b"was deleted" in refused.stderr
    assert cluster.vq("topic", "create", "t").returncode == 1
    at("after the delete")
    assert cluster.vq_json("topic", "undelete", "t")["changed"] is True
    if "during all of it" in killed:
        start(cluster)
    at("after the undelete")

    block_until(lambda: in_sync(cluster), "nodes are not in sync again")
    block_until(lambda: cluster.vq("consume", "t", "--max", "1").returncode == 0)
    again = cluster.vq_json("topic", "describe", "t")
    assert (again["id"], again["created_s"]) == (described["id"], described["created_s"])
    assert [each["ranges"] for each in again["partitions"]] == [
        each["ranges"] for each in described["partitions"]
    ]
    assert read_all(cluster) == messages
    assert progress(cluster) == committed
    now = bytes_of(cluster)
    assert {name: now.get(name) for name in stored} == stored
    rest = cluster.vq("consume", "t", "--group", "g", "--max", str(COUNT))
    assert rest.returncode == 0, rest.stderr.decode()
    send(cluster, range(2 * COUNT, 2 * COUNT + 10))
    assert len(read_all(cluster)) == 2 * COUNT + 10


def test_a_producer_that_goes_on_loses_nothing_it_was_told(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """It sends while the topic is deleted, a broker is killed, and the topic is brought back."""
    config = vq.MessageFactoryConfig(zookeeper=cluster.zookeeper, cluster=cluster.name)
    stored: set[bytes] = set()
    unknown: set[bytes] = set()
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        numbers = itertools.count(1_000_000)

        def push(count: int) -> int:
            """Send so many; return how many were acknowledged."""
            taken = 0
            for _ in range(count):
                content = b"%d" % next(numbers)
                try:
                    producer.send_sync(vq.Message("t", content), timeout=30)
                except vq.OutcomeUnknown:
                    unknown.add(content)
                except (vq.Refused, vq.InvalidState):
                    pass
                else:
                    stored.add(content)
                    taken += 1
            return taken

        for _ in range(3):
            assert push(50)
            futures = [
                (content, producer.send_async(vq.Message("t", content)))
                for content in (b"%d" % next(numbers) for _ in range(300))
            ]
            factory.admin.delete_topic("t")
            for content, future in futures:
                try:
                    future.result(60)
                except vq.OutcomeUnknown:
                    unknown.add(content)
                except vq.Refused:
                    pass
                else:
                    stored.add(content)
            cluster.brokers["b1"].kill()
            factory.admin.undelete_topic("t")
            cluster.brokers["b1"].start()
            cluster.brokers["b1"].wait_ready(PROCESSES_WAIT_S)
            block_until(lambda: push(1), "nothing is taken after the undelete")
    found = cluster.vq("consume", "t")
    assert found.returncode == 0, found.stderr.decode()
    read = [each for each in found.stdout.splitlines() if len(each) == 7]
    assert stored <= set(read) <= stored | unknown
    assert len(read) == len(set(read)), "stored twice"


def test_brokers_remove_a_topic_whose_time_is_up_and_finish_what_a_killed_one_began(
    tmp_path: Path, zookeeper: ZooKeeperService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count is set forward in ZooKeeper, as if the time had passed; then all are killed."""
    monkeypatch.setenv("VQ_BROKER_GRACE_INTERVAL_S", "0.2")
    monkeypatch.setenv("VQ_BROKER_TRASH_KEEP_S", "0.5")
    with process_cluster(tmp_path, zookeeper.hosts) as cluster, admin(zookeeper.hosts) as client:
        for group in ("b1", "b2"):
            cluster.add(group)
        cluster.vq_json("topic", "create", "t", "--partitions", "6")
        send(cluster, range(COUNT))
        cluster.vq_json("topic", "delete", "t", "--yes")
        root = f"/vq/{cluster.name}"
        counted = lambda: json.loads(client.get(f"{root}/grace")[0])["counted_ms"]  # noqa: E731
        before = counted()
        block_until(lambda: counted() > before, "nobody counts")
        assert client.exists(f"{root}/topics/t"), "its time is not up"
        count = GraceClock(counted_ms=before + 72 * 3_600_000).encode()
        client.set(f"{root}/grace", count)

        def removed() -> bool:
            try:
                return b'"deleting"' in client.get(f"{root}/topics/t")[0]
            except NoNodeError:
                return True

        block_until(removed, "nobody removes it")
        kill(cluster)
        start(cluster)
        block_until(lambda: not client.exists(f"{root}/topics/t"), "its removal is not finished")
        for broker in cluster.brokers.values():
            data = broker.spec.data
            block_until(lambda data=data: not (data / "t").exists(), "data stay")
            block_until(
                lambda data=data: not list((data / "@trash").glob("t.*")), "the trash stays"
            )
        assert cluster.vq("topic", "undelete", "t").returncode == 1
        cluster.vq_json("topic", "create", "t")
        assert cluster.vq("consume", "t").stdout == b""
