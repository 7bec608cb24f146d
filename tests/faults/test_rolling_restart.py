"""Two groups of two nodes are restarted, switched and drained one after the other, under load.

Goal: what an operator does to a cluster that works costs no message and no send: each send is
acknowledged, and each message is stored once and in order. Real processes and the real command.
The long form (``make test-long``) goes round more often.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.cluster import ForkedBroker, ProcessCluster

import vq
from vq.devtools.processes import BrokerChild
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow
ROUNDS = 10 if os.environ.get("VQ_LONG") == "1" else 1
PARTITIONS = 4
PACE_S = 0.003
GROUPS = ("b1", "b2")


class Load(threading.Thread):
    """Sends some hundred numbers a second, each when the last is stored; notes where they are."""

    def __init__(self, factory: vq.MessageFactory, first: int) -> None:
        super().__init__()
        self._factory = factory
        self._stops = threading.Event()
        self.number = first
        self.sent: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.error: BaseException | None = None

    def run(self) -> None:
        """See the class's text."""
        try:
            with self._factory.create_producer() as producer:
                # A copy flushes once for each batch that it catches up with (decision 0040):
                # without a pace, it would not come to the end of what a long run has sent.
                while not self._stops.wait(PACE_S):
                    stored = producer.send_sync(vq.Message("t", b"%d" % self.number))
                    self.sent[stored.partition].append(self.number)
                    self.number += 1
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        """Stop, and raise what a send raised."""
        self._stops.set()
        self.join(PROCESSES_WAIT_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


class Cluster:
    """Nodes n1 and n2 of groups b1 and b2, and what an operator does to them."""

    def __init__(self, processes: ProcessCluster, factory: vq.MessageFactory) -> None:
        self.processes = processes
        self.factory = factory

    def add(self, group: str, node: str) -> None:
        spec = self.processes.spec(group, node=node)
        name = f"{group}-{node}"
        child = ForkedBroker(replace(spec, data=self.processes.directory / name))
        self.processes.run(child, name=name)

    def child(self, group: str, node: str) -> BrokerChild:
        return self.processes.brokers[f"{group}-{node}"]

    def looks(self, group: str) -> tuple[str, set[str]]:
        """Return the master of a group, and its nodes in sync."""
        found = [
            each
            for each in self.factory.admin.cluster_status().brokers
            if each.group.group == group and each.node is not None
        ]
        masters = [each.node.node for each in found if each.status and each.status.raw["master"]]
        return "".join(masters), {each.node.node for each in found if each.in_sync}

    def named(self, group: str) -> set[str]:
        """Return the nodes that are in sync by the group's record, also those that are gone."""
        found = self.factory.admin.cluster_status().brokers
        return {each.name for each in found if each.group.group == group and each.in_sync}

    def wait(self, group: str, master: str = "") -> str:
        """Return the master once both nodes are in sync, and ``master`` leads."""

        def is_well() -> bool:
            leads, in_sync = self.looks(group)
            return in_sync == {"n1", "n2"} and leads in ({"n1", "n2"} if not master else {master})

        block_until(is_well, f"{group} is not in sync, or not led by {master or 'anybody'}")
        return self.looks(group)[0]

    def restart(self, group: str, node: str) -> None:
        child = self.child(group, node)
        assert child.stop() == 0
        child.start()
        child.wait_ready(PROCESSES_WAIT_S)
        self.wait(group)


@pytest.fixture
def cluster(processes: ProcessCluster) -> Iterator[Cluster]:
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as factory:
        yield Cluster(processes, factory)


def stored(factory: vq.MessageFactory, first: int) -> list[list[int]]:
    """Return the numbers of one sender in each partition, in order."""
    found = []
    with factory.create_consumer() as consumer:
        for partition in range(PARTITIONS):
            numbers, bounds = [], consumer.get_bounds("t", partition)
            offset = bounds.earliest
            while offset < bounds.latest:
                for each in consumer.get("t", partition, offset, 1 << 20):
                    numbers.append(int(each.content))
                    offset = each.next_offset
            found.append([each for each in numbers if first <= each < first + 10_000_000])
    return found


def judge(cluster: Cluster, loads: list[Load], firsts: list[int]) -> None:
    """Check that everything that was acknowledged is stored, once, and in order."""
    for load in loads:
        load.finish()
    for load, first in zip(loads, firsts, strict=True):
        assert load.number - first > 20, "the load did nothing"
        assert stored(cluster.factory, first) == load.sent


def test_a_whole_cluster_is_restarted_under_load(cluster: Cluster) -> None:
    """Slaves are added while messages come; then each node is stopped and started, masters too."""
    for group in GROUPS:
        cluster.add(group, "n1")
    assert cluster.processes.vq("topic", "create", "t", "--partitions", "4").returncode == 0
    firsts = [10_000_000, 20_000_000]
    loads = [Load(cluster.factory, first) for first in firsts]
    for load in loads:
        load.start()
    for group in GROUPS:
        cluster.add(group, "n2")
    for group in GROUPS:
        cluster.wait(group, "n1")
    for _ in range(ROUNDS):
        for group in GROUPS:
            for node in ("n2", "n1"):
                cluster.restart(group, node)
    judge(cluster, loads, firsts)
    assert {cluster.looks(group)[0] for group in GROUPS} <= {"n1", "n2"}


def test_masters_are_switched_and_drained_and_a_disk_is_replaced(cluster: Cluster) -> None:
    """With the commands of the operator's page, under load."""
    processes = cluster.processes
    for node in ("n1", "n2"):
        cluster.add("b1", node)
    assert processes.vq("topic", "create", "t", "--partitions", "4").returncode == 0
    load = Load(cluster.factory, 10_000_000)
    load.start()
    cluster.wait("b1", "n1")
    for _ in range(ROUNDS):
        # Switch.
        done = processes.vq_json("cluster", "switch", "b1")
        assert (done["group"], done["source"], done["target"]) == ("b1", "n1", "n2")
        again = processes.vq_json("cluster", "switch", "b1", "--to", "n2")
        assert (again["source"], again["target"]) == ("n2", "n2")
        refused = processes.vq("cluster", "switch", "b1", "--to", "n9")
        assert refused.returncode == 1
        assert b"'n9' cannot take over, it is not in sync" in refused.stderr
        cluster.wait("b1", "n2")
        # Drain a node.
        assert processes.vq_json("broker", "drain", "b1/n2")["master"] == "n1"
        cluster.wait("b1", "n1")
        told = processes.vq("cluster", "status")
        assert told.returncode == 0
        assert b"b1/n2 is drained: it leads only if no other node can" in told.stderr
        assert processes.vq("cluster", "switch", "b1").returncode == 1
        # Replace the disk of the drained node.
        child = cluster.child("b1", "n2")
        assert child.stop() == 0
        block_until(lambda: "n2" not in cluster.named("b1"), "n2 is in sync")
        shutil.rmtree(child.spec.data)
        child.start()
        child.wait_ready(PROCESSES_WAIT_S)
        cluster.wait("b1", "n1")
        assert not processes.vq_json("broker", "drain", "b1/n2", "--undo")["drained"]
        processes.vq_json("cluster", "switch", "b1", "--to", "n2")
        cluster.wait("b1", "n2")
        processes.vq_json("cluster", "switch", "b1", "--to", "n1")
        cluster.wait("b1", "n1")
    judge(cluster, [load], [10_000_000])


def test_a_group_is_drained_and_emptied(processes: ProcessCluster) -> None:
    """New partitions go elsewhere; the open ones are moved when the operator says so."""
    processes.add("b1")
    processes.add("b2")
    assert processes.vq("topic", "create", "old", "--partitions", "4").returncode == 0
    done = processes.vq_json("broker", "drain", "b1")
    assert done == {"group": "b1", "draining": True, "partitions": 2}
    made = processes.vq_json("topic", "create", "new", "--partitions", "2")
    assert {row["group"] for row in made["partitions"]} == {"b2"}
    planned = processes.vq("broker", "drain", "b1", "--move")
    assert planned.returncode == 0
    assert planned.stderr.count(b"plan: old-") == 2
    assert processes.vq_json("broker", "drain", "b1", "--move", "--yes")["partitions"] == 0
    described = processes.vq_json("topic", "describe", "old")
    assert {row["group"] for row in described["partitions"]} == {"b2"}
    assert processes.vq_json("broker", "drain", "b1", "--undo")["draining"] is False
    for wrong in (("b9",), ("b1/n9",)):
        ended = processes.vq("broker", "drain", *wrong)
        assert ended.returncode == 2
        assert b"known: " in ended.stderr
    assert processes.vq("broker", "drain", "b1/n1", "--move").returncode == 2
