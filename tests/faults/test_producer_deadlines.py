"""The time-out of a send covers all of it, whatever does not answer.

    send ──▶ routes? ─▶ connection? ─▶ answer? ──▶ outcome, by the deadline

Goal: a send with a time-out of half a second has its outcome soon after it, although the producer's
own time-out, and those of connections and of ZooKeeper, are longer. What is refused is not stored.
(Space in the buffer is the fourth thing to wait for: ``test_a_full_buffer_waits_and_then_refuses``
in ``integration/blocking/test_sending.py``.)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from support.chaos_proxy import ChaosProxy
from support.cluster import ProcessCluster, process_cluster
from support.faults import LONG, StallWatch, client_of, judge_run, kill, read_back
from support.history import History, read_history
from support.judge import Fault
from support.threads import spawn
from support.topics import create_topic

import vq
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.testing.waiting import PROCESSES_WAIT_S, WAIT_S

pytestmark = pytest.mark.slow

TIMEOUT_S = 0.5
#: A long queue is searched for late messages once a second; the long form has the machine alone.
LATE_S = 1.5 if LONG else WAIT_S
#: Nothing but the time-out of the send ends a send in time.
CONFIG = vq.ProducerConfig(send_timeout_s=PROCESSES_WAIT_S)
SYNC = 6  # threads; more than a producer has connections to a broker


class Cluster(NamedTuple):
    """A broker behind a proxy, with a ZooKeeper of its own."""

    zookeeper: EmbeddedZooKeeper
    processes: ProcessCluster
    proxy: ChaosProxy


class Scene(NamedTuple):
    """Something that does not answer: what begins it, whether it had an effect, what ends it.

    Attributes:
        known: The producer has the topic's routes.
    """

    begin: Callable[[Cluster], object]
    struck: Callable[[Cluster], object]
    end: Callable[[Cluster], object]
    known: bool = True


def forget_connections(cluster: Cluster) -> None:
    """Take every new connection, also that for HELLO, and never answer."""
    cluster.proxy.forget(1_000_000)
    cluster.proxy.cut_now(reset=True)


def remember_connections(cluster: Cluster) -> None:
    """Serve new connections again, and end those that were never answered."""
    cluster.proxy.forget(0)
    cluster.proxy.cut_now(reset=True)


def broker_is_gone(cluster: Cluster) -> bool:
    """Return whether no broker runs."""
    return not cluster.processes.brokers["b1"].running


def stop_both(cluster: Cluster) -> None:
    """Have neither broker nor ZooKeeper answer."""
    kill(cluster.processes.brokers["b1"])
    cluster.zookeeper.pause()


def start_both(cluster: Cluster) -> None:
    """Repair what ``stop_both`` did."""
    cluster.zookeeper.resume()
    cluster.processes.restart("b1")


SCENES = {
    "an open connection that is not answered": Scene(
        lambda cluster: cluster.proxy.swallow(),
        lambda cluster: cluster.proxy.swallowed,
        lambda cluster: cluster.proxy.heal(),
    ),
    "connections that are taken and not answered": Scene(
        forget_connections, lambda cluster: cluster.proxy.forgotten, remember_connections
    ),
    "no broker": Scene(
        lambda cluster: kill(cluster.processes.brokers["b1"]),
        broker_is_gone,
        lambda cluster: cluster.processes.restart("b1"),
    ),
    "neither broker nor ZooKeeper": Scene(stop_both, broker_is_gone, start_both),
    "no routes": Scene(
        lambda cluster: cluster.zookeeper.pause(),
        lambda cluster: True,  # the send would find the routes, and be acknowledged
        lambda cluster: cluster.zookeeper.resume(),
        known=False,
    ),
}


@contextmanager
def cluster_of(zookeeper: EmbeddedZooKeeper, directory: Path) -> Iterator[Cluster]:
    """Run the broker."""
    with process_cluster(directory, zookeeper.hosts) as processes, ChaosProxy() as proxy:
        broker = processes.add("b1", "--advertised", str(proxy.address))
        proxy.target = broker.spec.address
        yield Cluster(zookeeper, processes, proxy)


def send_all(producer: vq.MessageProducer, path: Path, topic: str, *, many: int) -> None:
    """Send in every way at once; return when each send has its outcome."""
    name = path.stem

    def send_one(number: int) -> None:
        history.send_sync(producer, vq.Message(topic, f"{name}-s{number}".encode()), TIMEOUT_S)

    with History(path) as history:
        waiting = [spawn(lambda number=number: send_one(number)) for number in range(SYNC)]
        for number in range(many):
            message = vq.Message(topic, f"{name}-a{number}".encode())
            history.send(producer, message, TIMEOUT_S)
        for each in waiting:
            each.result(PROCESSES_WAIT_S)
        producer.flush(PROCESSES_WAIT_S)


def latest_s(path: Path) -> float:
    """Return how long after its deadline the last outcome of a history came."""
    begun: dict[str, float] = {}
    worst = 0.0
    for event in read_history(path):
        if event["kind"] == "send":
            begun[event["value"]] = event["at"]
        elif event["kind"] != "end":
            worst = max(worst, event["at"] - begun[event["value"]] - TIMEOUT_S)
    return worst


def test_a_send_has_its_outcome_by_its_deadline_whatever_does_not_answer(
    make_zookeeper: Callable[..., EmbeddedZooKeeper], tmp_path: Path
) -> None:
    """3,000 async sends, more than are searched at every tick, and sync ones of six threads."""
    faults: dict[str, list[Fault]] = {}
    logs: dict[str, dict[int, list[tuple[int, str]]]] = {}
    with cluster_of(make_zookeeper(), tmp_path / "brokers") as cluster:
        processes = cluster.processes
        create_topic(processes, "t", partitions=1)
        with client_of(processes) as factory, factory.create_producer(CONFIG) as producer:
            producer.publish("t")
            for number, (name, scene) in enumerate(SCENES.items()):
                topic = "t" if scene.known else f"new{number}"
                if not scene.known:
                    create_topic(processes, topic, partitions=1)
                path = tmp_path / topic / f"h{number}.jsonl"
                scene.begin(cluster)
                try:
                    with StallWatch() as watch:
                        send_all(producer, path, topic, many=3_000 if scene.known else 2)
                finally:
                    struck = scene.struck(cluster)
                    scene.end(cluster)
                late_s = latest_s(path) - watch.longest_s
                print(f"{name}: {late_s:.2f} s late, machine stalled {watch.longest_s:.2f} s")
                assert late_s < LATE_S, name
                kinds = {event["kind"] for event in read_history(path)}
                assert "sent" not in kinds, f"{name}: {kinds}"
                faults.setdefault(topic, []).append(Fault(name, bool(struck), strikes=1))
                with History(tmp_path / topic / f"after{number}.jsonl") as history:
                    message = vq.Message(topic, f"after-{number}".encode())
                    assert history.send_sync(producer, message, PROCESSES_WAIT_S)
                logs[topic] = read_back(factory, topic)
    for topic, log in logs.items():
        judge_run(tmp_path / topic, log, *faults[topic])
