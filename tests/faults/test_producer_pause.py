"""A broker stands still for longer than sends may take, and goes on.

    threads ──▶ one producer ──▶ broker ──✗ SIGSTOP … SIGCONT

Goal: every outcome is true. What was refused is stored nowhere, what was acknowledged once, what is
unknown once at most; later sends succeed.
"""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.faults import Sender, Way, client_of, judge_run, make_rng, read_back, times
from support.judge import Fault

import vq
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

WAYS = {
    "async": lambda number: Way(key=str(number % 3)),
    "sync": lambda number: Way(waits=True),
    "mixed": lambda number: Way(key="same", waits=number % 10 == 9),
}


def test_outcomes_are_true_while_a_broker_stands_still(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """What is on the wire becomes unknown and is stored late, what waits behind it is refused."""
    rng = make_rng()
    pauses = times(3, 40)
    struck = 0
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t", "--partitions", "2")
    histories = tmp_path / "h"
    config = vq.ProducerConfig(send_timeout_s=0.3, batch_records=20, retry_backoff_max_s=0.05)
    with client_of(processes) as factory:
        with factory.create_producer(config) as producer, ExitStack() as stack:
            senders = [
                Sender(factory, "t", histories / f"{name}.jsonl", producer=producer, way=way)
                for name, way in WAYS.items()
            ]
            for sender in senders:
                stack.enter_context(sender)
            for _ in range(pauses):
                for sender in senders:
                    sender.wait_sent(20 + rng.randrange(20))
                unknown = sum(sender.unknown for sender in senders)
                refused = sum(sender.refused for sender in senders)
                broker.signal(signal.SIGSTOP)
                try:
                    block_until(lambda n=unknown: sum(s.unknown for s in senders) > n, "unknown")
                    block_until(lambda n=refused: sum(s.refused for s in senders) > n, "refused")
                finally:
                    broker.signal(signal.SIGCONT)
                struck += 1
            for sender in senders:
                sender.wait_sent(20)
                sender.finish()
        log = read_back(factory, "t")
    counts = [sum(getattr(s, kind) for s in senders) for kind in ("unknown", "refused")]
    judge_run(
        histories,
        log,
        Fault("pause", struck, strikes=pauses),
        Fault("unknown", counts[0], strikes=0),
        Fault("refused", counts[1], strikes=0),
        acknowledged_min=50,
    )
