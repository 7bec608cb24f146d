"""kill -9 of a broker, again and again, while messages flow.

    sender ──▶ broker ──✗ kill -9, start again on the same directory ──▶ member of a group

Goal: whatever was acknowledged is there at the end, once and in order; each message has an outcome;
who reads meanwhile gets every message once, and none that is not there afterwards.
"""

import signal
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.faults import (
    Sender,
    client_of,
    judge_run,
    kill,
    make_rng,
    member_of,
    read_back,
    read_files,
    times,
    wait_drained,
)
from support.judge import Claim, Fault

import vq
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow


def test_no_acknowledged_message_is_lost_or_doubled_by_kills(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """kill -9 at random moments, with many batches in flight to three partitions."""
    rng = make_rng()
    kills = times(3, 100)
    died = 0
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t", "--partitions", "3")
    histories = tmp_path / "h"
    with client_of(processes) as factory, member_of(processes, histories, "m0") as seen:
        with (
            Sender(factory, "t", histories / "s0.jsonl", rate=2000) as first,
            Sender(factory, "t", histories / "s1.jsonl", rate=200, size=5000) as second,
        ):
            for _ in range(kills):
                first.wait_sent(50 + rng.randrange(1500))
                died += kill(broker)
                processes.restart("b1")
            first.wait_sent(50)
            second.wait_sent(1)
            first.finish()
            second.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen)
    assert broker.stop() == 0
    assert read_files(processes, "t", 3) == log
    judge_run(
        histories,
        log,
        Fault("kill -9", died, strikes=kills),
        acknowledged_min=50,
        drained=True,
        group=True,
        claims=[Claim(0, partition, "m0") for partition in range(3)],
    )


def test_sends_that_outlive_their_deadline_are_unknown_and_never_doubled(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """The broker is stopped with batches on the wire, killed, and stays away past the deadline."""
    rng = make_rng()
    kills = times(1, 10)
    died = 0
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    config = vq.ProducerConfig(send_timeout_s=0.5)
    with client_of(processes) as factory:
        with Sender(factory, "t", tmp_path / "h" / "s0.jsonl", rate=1000, config=config) as sender:
            for _ in range(kills):
                sender.wait_sent(100 + rng.randrange(500))
                before = sender.unknown
                broker.signal(signal.SIGSTOP)
                block_until(lambda: sender.open > 20, "sends without an answer")
                died += kill(broker)
                block_until(
                    lambda before=before: sender.unknown > before, "a send past its deadline"
                )
                processes.restart("b1")
            sender.wait_sent(50)
            sender.finish()
        log = read_back(factory, "t")
    faults = [Fault("kill -9", died, strikes=kills), Fault("unknown", sender.unknown, strikes=0)]
    judge_run(tmp_path / "h", log, *faults, acknowledged_min=50)
