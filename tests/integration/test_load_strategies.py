"""Producers send less to a slow broker and to one whose disk is full, by what brokers publish.

    producer ──▶ b1
             ──▶ b2   every flush takes 60 ms longer (strace)
             ──▶ b3   on a small file system that a stranger has filled up to 92 %

Goal: the shares of messages follow, whichever load a strategy looks at.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.cluster import ForkedBroker, ProcessCluster, process_cluster
from support.faults import broker_settings, client_of
from support.small_disk import small_disk_at
from support.strace import attached, need_strace
from support.zookeeper import ZooKeeperService

import vq
from vq.client import broker_loads
from vq.client.producer.spread import following, weights
from vq.limits import MIB
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = [pytest.mark.slow, pytest.mark.root]

DISK_BYTES = 192 * MIB
SLOWER = "inject=fdatasync,syncfs:delay_exit=60000"
ROUND = 200  # messages in flight together; small, so that the rest of the disk is not filled


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have producers read loads ten times as often, so that the test takes seconds.

    The traffic between two readings, which ``least-stored`` leaves out of account, is less by as
    much: with a whole 30 s of it, a fast machine sends so much that 16 MiB count for nothing.
    """
    for sense, interval_s in following.INTERVAL_S.items():
        monkeypatch.setitem(following.INTERVAL_S, sense, interval_s / 10)
    monkeypatch.setattr(weights, "FLOOR_TRAFFIC_S", weights.FLOOR_TRAFFIC_S / 10)
    monkeypatch.setattr(broker_loads, "READ_AGAIN_S", 0.2)


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperService) -> Iterator[ProcessCluster]:
    """A cluster without brokers."""
    with process_cluster(tmp_path, zookeeper.hosts) as made:
        yield made


def start(cluster: ProcessCluster, group: str, place: Path | None = None) -> None:
    """Start a broker that publishes its load often and refuses nothing at 92 %."""
    flags = broker_settings(
        cluster.directory / f"{group}.toml",
        load_interval_s=0.5,
        block_bytes=8 * MIB,
        disk_refuse=0.99,
    )
    spec = cluster.spec(group, *flags)
    if place is not None:
        spec = replace(spec, data=place / group)
    cluster.run(ForkedBroker(spec))


def create_topic(cluster: ProcessCluster) -> dict[str, int]:
    """Make a topic with a partition on each broker; return which broker has which."""
    count = str(len(cluster.brokers))
    cluster.vq_json("topic", "create", "t", "--partitions", count)
    with client_of(cluster) as factory:
        found = factory.get_partitions_for_topic("t")
    return {each.spans[-1].group: each.partition for each in found}


class Shares:
    """Sends with a strategy, and tells the share of each partition in the last messages."""

    def __init__(self, factory: vq.MessageFactory, strategy: str, where: dict[str, int]) -> None:
        self._where = where
        self._producer = factory.create_producer(vq.ProducerConfig(partitioner=strategy))
        self._producer.publish("t")
        self.last: Counter[int] = Counter()

    def send(self) -> None:
        """Send messages and wait for all of them."""
        futures = [self._producer.send_async(vq.Message("t", bytes(100))) for _ in range(ROUND)]
        self.last = Counter(each.result(PROCESSES_WAIT_S).partition for each in futures)

    def of(self, group: str) -> float:
        """Return the share of a broker in the last messages."""
        return self.last[self._where[group]] / ROUND

    def send_until(self, holds: Callable[[], bool], what: str) -> None:
        """Send until it holds."""

        def sent() -> bool:
            self.send()
            return holds()

        block_until(sent, what)


@pytest.mark.parametrize(
    "strategy", ["headroom", pytest.param("least-loaded", marks=pytest.mark.long)]
)
def test_a_slow_broker_gets_less(cluster: ProcessCluster, tmp_path: Path, strategy: str) -> None:
    """First all get messages; then one gets slow."""
    need_strace(attaching=True)
    for group in ("b1", "b2", "b3"):
        start(cluster, group)
    where = create_topic(cluster)
    with client_of(cluster) as factory:
        shares = Shares(factory, strategy, where)
        shares.send_until(lambda: shares.of("b2") > 0.2, "all brokers get messages")
        with attached(
            cluster.brokers["b2"].pid,
            tmp_path / "trace",
            "-e",
            "trace=fdatasync,syncfs",
            "-e",
            SLOWER,
        ):
            shares.send_until(
                lambda: 2 * shares.of("b2") < min(shares.of("b1"), shares.of("b3")),
                "the slow broker gets less than half of what each of the others gets",
            )


@pytest.mark.parametrize(
    "strategy",
    [
        "least-stored",
        *(pytest.param(e, marks=pytest.mark.long) for e in ("headroom", "least-loaded")),
    ],
)
def test_a_broker_on_a_full_disk_gets_nothing(
    cluster: ProcessCluster, tmp_path: Path, strategy: str
) -> None:
    """Each strategy, although that broker takes messages and has the least to do."""
    with small_disk_at(tmp_path / "small", DISK_BYTES) as place:
        try:
            start(cluster, "b1")
            start(cluster, "b2")
            start(cluster, "b3", place)
            where = create_topic(cluster)
            with client_of(cluster) as factory:
                shares = Shares(factory, strategy, where)
                shares.send_until(lambda: shares.of("b3") > 0.2, "all brokers get messages")
                fill(place)
                shares.send_until(
                    lambda: shares.of("b3") == 0 < min(shares.of("b1"), shares.of("b2")),
                    "the full broker gets nothing, and the others go on",
                )
        finally:
            cluster.brokers["b3"].stop()  # before its disk goes


def fill(place: Path) -> None:
    """Take as much of the file system as leaves 8 % free."""
    (place / "ballast").write_bytes(bytes(int(DISK_BYTES * 0.92) - used(place)))


def used(place: Path) -> int:
    return sum(each.stat().st_blocks * 512 for each in place.rglob("*") if each.is_file())


def test_the_partition_with_the_most_bytes_gets_less(cluster: ProcessCluster) -> None:
    """Until the others have as many."""
    for group in ("b1", "b2", "b3"):
        start(cluster, group)
    where = create_topic(cluster)
    with client_of(cluster) as factory:
        fill_one = vq.ProducerConfig(partitioner=lambda *_: where["b1"])
        with factory.create_producer(fill_one) as producer:
            producer.publish("t")
            for _ in range(16):
                producer.send_sync(vq.Message("t", bytes(MIB)))
        shares = Shares(factory, "least-stored", where)
        shares.send_until(
            lambda: 2 * shares.of("b1") < min(shares.of("b2"), shares.of("b3")),
            "the fullest partition gets less than half of what each of the others gets",
        )
