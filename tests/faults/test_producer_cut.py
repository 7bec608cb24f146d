"""One producer, several threads, two brokers: every connection is cut again and again.

    threads ──▶ one producer ──▶ proxy ──✗──▶ b1    kill -9 and start again, in between
                            └──▶ proxy ──✗──▶ b2    a partition moves there and back, in between

Goal: what was acknowledged is stored once, in the order of its thread, however it was sent: with a
key or without, waiting for its outcome or not.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from support.chaos_proxy import DOWN, UP, ChaosProxy
from support.cluster import ProcessCluster
from support.faults import (
    Sender,
    Way,
    client_of,
    judge_run,
    kill,
    make_rng,
    read_back,
    times,
)
from support.judge import Fault

import vq
from vq.client.producer.queue.batch import Batch
from vq.client.producer.queue.partition_queue import PartitionQueue

pytestmark = pytest.mark.slow

GROUPS = ("b1", "b2")
PARTITIONS = 4
#: Every way to send; the last thread mixes them in one partition.
WAYS: dict[str, Callable[[int], Way]] = {
    "async": lambda number: Way(),
    "async-key": lambda number: Way(key=str(number % 7)),
    "sync": lambda number: Way(waits=True),
    "sync-key": lambda number: Way(key=str(number % 5), waits=True),
    "mixed": lambda number: Way(key="same", waits=number % 10 == 9),
}
#: Small batches, so that a cut meets several in flight.
CONFIG = vq.ProducerConfig(batch_records=3, retry_backoff_max_s=0.05)
#: How far into what follows a cut comes: in a frame's head, in a batch, batches later.
REACHES = {UP: (24, 600, 20_000), DOWN: (24, 600)}


@contextmanager
def proxied(processes: ProcessCluster) -> Iterator[dict[str, ChaosProxy]]:
    """Run both brokers behind a proxy each, and make the topic."""
    with ExitStack() as stack:
        proxies = {}
        for group in GROUPS:
            proxy = proxies[group] = stack.enter_context(ChaosProxy())
            broker = processes.add(group, "--advertised", str(proxy.address))
            proxy.target = broker.spec.address
        processes.vq_json("topic", "create", "t", "--partitions", str(PARTITIONS))
        yield proxies


@contextmanager
def sending(factory: vq.MessageFactory, histories: Path) -> Iterator[list[Sender]]:
    """Send in every way, with one producer; afterwards each message has its outcome."""
    with factory.create_producer(CONFIG) as producer:
        senders = [
            Sender(
                factory,
                "t",
                histories / f"{name}.jsonl",
                rate=400,
                size=60 + 100 * number,
                producer=producer,
                way=way,
            )
            for number, (name, way) in enumerate(WAYS.items())
        ]
        with ExitStack() as stack:
            for sender in senders:
                stack.enter_context(sender)
            yield senders
        for sender in senders:
            sender.finish()


def cut_once(rng: Random, proxies: dict[str, ChaosProxy], senders: list[Sender]) -> None:
    """Cut the connection to one broker at a random byte, while every thread gets on."""
    proxy = proxies[rng.choice(GROUPS)]
    direction = rng.choice((UP, DOWN))
    before = len(proxy.cuts)
    proxy.cut(direction, rng.randrange(rng.choice(REACHES[direction])), reset=rng.random() < 0.5)
    assert proxy.wait_cuts(before + 1), "nothing was cut"
    for sender in senders:
        sender.wait_sent(5)


def move_away(processes: ProcessCluster, factory: vq.MessageFactory) -> int:
    """Let the other broker group take the appends of partition 0; return how many were moved.

    Each group keeps at least one of the other partitions, so each link has something to cut.
    """
    now = factory.get_partitions_for_topic("t")[0].writer_group
    (other,) = set(GROUPS) - {now}
    arguments = ("topic", "move", "t", "--partition", "0", "--to", other, "--yes")
    return len(processes.vq_json(*arguments))


@pytest.fixture
def under_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches of its partition were in flight, for each that lost its answer."""
    counts: list[int] = []
    on_unanswered = PartitionQueue.on_unanswered

    def watched(queue: PartitionQueue, batches: Iterable[Batch], now: float) -> None:
        counts.append(sum(batch.sent for batch in queue.in_flight))
        on_unanswered(queue, batches, now)

    monkeypatch.setattr(PartitionQueue, "on_unanswered", watched)
    return counts


def test_threads_of_one_producer_lose_double_and_reorder_nothing(
    processes: ProcessCluster, tmp_path: Path, under_way: list[int]
) -> None:
    """Random cuts of both links; a broker is killed and a partition moved in between."""
    rng = make_rng()
    rounds, cuts = times(3, 25), times(10, 20)
    killed = moved = 0
    histories = tmp_path / "h"
    with proxied(processes) as proxies, client_of(processes) as factory:
        with sending(factory, histories) as senders:
            for _ in range(rounds):
                for _ in range(cuts):
                    cut_once(rng, proxies, senders)
                moved += move_away(processes, factory)
                group = rng.choice(GROUPS)
                killed += kill(processes.brokers[group])
                processes.restart(group)
                for sender in senders:
                    sender.wait_sent(5)
        log = read_back(factory, "t")
        every = [cut for proxy in proxies.values() for cut in proxy.cuts]
    assert all(broker.stop() == 0 for broker in processes.brokers.values())
    judge_run(
        histories,
        log,
        Fault("cut", len(every), strikes=rounds * cuts),
        Fault("cut inside what was being sent", sum(cut.passed > 0 for cut in every), strikes=0),
        Fault("answer lost", sum(cut.direction == DOWN for cut in every), strikes=0),
        Fault("several batches in flight", sum(count > 1 for count in under_way), strikes=0),
        Fault("kill -9", killed, strikes=rounds),
        Fault("move", moved, strikes=rounds),
        acknowledged_min=20,
    )
