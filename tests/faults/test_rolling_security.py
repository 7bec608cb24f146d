"""A running cluster changes from plain TCP to TLS, one broker after the other, under load.

Goal: no send fails, and each message is stored once. The clients change between two changes of the
brokers. Real processes; only in the long form, for each step restarts them all.
"""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from support.certificates import write_tls
from support.cluster import ForkedBroker, ProcessCluster
from support.waiting import PROCESSES_WAIT_S, block_until

import vq
from vq.security.tls import Tls, TlsMode

PACE_S = 0.005
NODES = ("n1", "n2")


class Sender(threading.Thread):
    """Sends numbers, each when the last is stored."""

    def __init__(self, factory: vq.MessageFactory, first: int) -> None:
        super().__init__()
        self._factory = factory
        self._stops = threading.Event()
        self.sent: list[int] = []
        self._number = first
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._factory.create_producer() as producer:
                while not self._stops.wait(PACE_S):
                    producer.send_sync(vq.Message("t", b"%d" % self._number), timeout=None)
                    self.sent.append(self._number)
                    self._number += 1
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Stop, and raise what a send raised."""
        self._stops.set()
        self.join(PROCESSES_WAIT_S)
        if self._error is not None:
            raise self._error
        assert len(self.sent) > 20, "it did nothing"


def restart(cluster: ProcessCluster, factory: vq.MessageFactory, tls: Tls, mode: TlsMode) -> None:
    """Restart both nodes with a mode, and wait for each until both are in sync."""
    for node in NODES:
        old = cluster.brokers[node]
        assert old.stop() == 0
        spec = replace(old.spec, tls=tls, more=("--tls-mode", str(mode)))
        cluster.run(ForkedBroker(spec), name=node)

        def in_sync() -> bool:
            found = factory.admin.cluster_status().brokers
            return {each.name for each in found if each.in_sync and each.status} == {*NODES}

        block_until(in_sync, f"not both in sync after {node} has {mode}")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_running_cluster_changes_to_tls(processes: ProcessCluster, tmp_path: Path) -> None:
    tls = write_tls(tmp_path, trustme.CA())
    for node in NODES:
        spec = processes.spec("b1", node=node)
        spec = replace(spec, data=processes.directory / f"b1-{node}")
        processes.run(ForkedBroker(spec), name=node)
    assert processes.vq("topic", "create", "t", "--partitions", "1").returncode == 0
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with (
        vq.MessageFactory(config) as plain,
        vq.MessageFactory(replace(config, tls=Tls(ca=tls.ca))) as secure,
    ):
        first = Sender(plain, 0)
        first.start()
        restart(processes, plain, tls, TlsMode.ACCEPTED)
        restart(processes, plain, tls, TlsMode.PREFERRED)
        second = Sender(secure, 1_000_000)
        second.start()
        block_until(lambda: len(second.sent) > 20)
        first.finish()
        restart(processes, secure, tls, TlsMode.REQUIRED)
        second.finish()
        with secure.create_consumer() as consumer:
            bounds = consumer.get_bounds("t", 0)
            offset, found = bounds.earliest, []
            while offset < bounds.latest:
                for each in consumer.get("t", 0, offset, 1 << 20):
                    found.append(int(each.content))
                    offset = each.next_offset
    assert sorted(found) == sorted([*first.sent, *second.sent])
