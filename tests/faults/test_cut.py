"""Connections that end in the middle of a frame.

    senders ──▶ proxy ──✗ after a random byte of a request or a reply ──▶ broker

Goal: a resend after a cut stores nothing twice, loses nothing, and overtakes nothing: the batch's
producer stamp tells the broker what it has already.
"""

from pathlib import Path

import pytest
from support.chaos_proxy import DOWN, UP, ChaosProxy
from support.cluster import ProcessCluster
from support.faults import Sender, client_of, judge_run, make_rng, read_back, read_files, times
from support.judge import Fault

import vq

pytestmark = pytest.mark.slow

SENDERS = 3


def test_cuts_at_any_byte_lose_double_and_reorder_nothing(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """One partition per sender; every cut hits whichever batch is on the wire."""
    rng = make_rng()
    cuts = times(25, 500)
    with ChaosProxy() as proxy:
        broker = processes.add("b1", "--advertised", str(proxy.address))
        proxy.target = broker.spec.address
        for number in range(SENDERS):
            processes.vq_json("topic", "create", f"t{number}")
        # Small batches, so that a cut finds several in flight, before and behind it.
        config = vq.ProducerConfig(batch_records=20, retry_backoff_max_s=0.05)
        with client_of(processes) as factory:
            senders = [
                Sender(
                    factory,
                    f"t{number}",
                    tmp_path / f"h{number}" / f"s{number}.jsonl",
                    rate=1500,
                    size=60 + 300 * number,
                    config=config,
                )
                for number in range(SENDERS)
            ]
            for sender in senders:
                sender.start()
            try:
                for number in range(cuts):
                    for sender in senders:
                        sender.wait_sent(50)
                    after = rng.randrange(60_000) if rng.random() < 0.5 else rng.randrange(600)
                    direction = rng.choice([UP, DOWN])
                    if direction == DOWN:
                        after %= 2000  # replies are small
                    proxy.cut(direction, after, reset=rng.random() < 0.5)
                    assert proxy.wait_cuts(number + 1), "nothing was cut"
                for sender in senders:
                    sender.wait_sent(50)
            finally:
                for sender in senders:
                    sender.finish()
            inside = sum(cut.passed > 0 for cut in proxy.cuts)
            unheard = sum(cut.direction == DOWN for cut in proxy.cuts)
            logs = [read_back(factory, f"t{number}") for number in range(SENDERS)]
    assert broker.stop() == 0
    for number, log in enumerate(logs):
        assert read_files(processes, f"t{number}", 1) == log
        judge_run(
            tmp_path / f"h{number}",
            log,
            Fault("cut", len(proxy.cuts), strikes=cuts),
            Fault("cut inside what was being sent", inside, strikes=0),
            Fault("stored, and the answer lost", unheard, strikes=0),
            acknowledged_min=50,
        )
