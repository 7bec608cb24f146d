"""Delayed messages on the simulated cluster: once, never early, and never after a cancellation."""

import os

import pytest
from support.cases import case
from support.simulation import run
from support.simulation.copies import UNCLEAN
from support.simulation.delays import Delays, judge_delays
from support.simulation.lossy import LossyDelays, play_lossy
from support.simulation.world import Size

KINDS = {
    "one node": (Size(brokers=2, partitions=2), ("kill broker", "pause", "reset", "lost reply")),
    "copies": (Size(brokers=1, copies=1), ("kill broker", "hand over", "cut", "expire")),
}
LOSSY_SEEDS = range(60) if os.environ.get("VQ_LONG") == "1" else (6,)


def play(seed: int, which: str, seconds: float = 20.0) -> run.Report:
    """Run one seed."""
    size, kinds = KINDS[which]
    return run.execute(
        lambda loop: Delays(loop, seed, seconds=seconds, size=size, kinds=kinds, tell=None)
    )


@pytest.mark.parametrize("which", KINDS)
def test_delayed_messages_come_once_and_not_early_whatever_strikes(which: str) -> None:
    for seed in (1, 2):
        with case(seed):
            report = play(seed, which)
            assert report.violations == []
            assert report.delivered >= 10
            assert sum(report.faults.values()) >= 3


@pytest.mark.slow
def test_delays_go_on_behind_an_unclean_election() -> None:
    """The journal and the partitions have lost their ends, each another one."""
    elections = 0
    for seed in LOSSY_SEEDS:
        with case(seed):
            report = play_lossy(seed, LossyDelays)
            assert report.violations == []
            assert report.effects["late"] >= 10
            elections += report.effects.get(UNCLEAN, 0)
    assert elections


def test_the_judge_knows_what_must_not_be() -> None:
    events = [
        (1.0, "delay", "d1", "a", 5.0),
        (1.1, "ok", "d1", "a", "waits", 0, 1),
        (2.0, "delay", "d1", "b", 0.5),
        (2.1, "ok", "d1", "b", "waits", 9, 2),
        (2.2, "cancel", "d1", "b", "CANCELLED"),
    ]
    assert judge_delays(events, ["a"]) == []
    early = (5.9, "read", "c1", "orders-0", 0, 9, "a")
    assert judge_delays([*events, early], ["a"]) == ["delayed: a came 0.100 s early"]
    assert judge_delays(events, ["a", "a"]) == ["delayed: a is stored 2 times"]
    assert judge_delays(events, ["b"]) == [
        "delayed: a is lost",
        "delayed: b was cancelled and is stored",
    ]
