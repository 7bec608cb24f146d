"""Transactions on the simulated cluster: all of each or nothing, once, in order, never early."""

import os

import pytest
from support.cases import case
from support.simulation.copies import UNCLEAN
from support.simulation.lossy import LossyTransactions, play_lossy
from support.simulation.transactions import ROWS, judge_transactions, play

LOSSY_SEEDS = range(60) if os.environ.get("VQ_LONG") == "1" else (2,)


@pytest.mark.parametrize("which", ROWS)
def test_transactions_are_stored_as_a_whole_whatever_strikes(which: str) -> None:
    report = play(1, which)
    assert report.violations == []
    assert report.acknowledged >= 20
    assert sum(report.faults.values()) >= 3


@pytest.mark.slow
def test_transactions_go_on_behind_an_unclean_election() -> None:
    """The journal and the partitions have lost their ends, each another one."""
    elections = 0
    for seed in LOSSY_SEEDS:
        with case(seed):
            report = play_lossy(seed, LossyTransactions)
            assert report.violations == []
            assert report.effects["late"] >= 10
            elections += report.effects.get(UNCLEAN, 0)
    assert elections


def test_the_judge_knows_what_must_not_be() -> None:
    events = [
        (1.0, "add", "t1", "t1/0", "t1/0/0"),
        (1.0, "add", "t1", "t1/0", "t1/0/1"),
        (1.1, "asked", "t1", "t1/0"),
        (1.2, "ok", "t1", "t1/0"),
        (2.0, "add", "t1", "t1/1", "t1/1/0"),
        (2.1, "back", "t1", "t1/1"),
    ]
    good = {"a-0": ["t1/0/0", "t1/0/1"]}
    assert judge_transactions(events, good) == []
    assert judge_transactions([*events, (1.15, "read", "c1", "a-0", 0, 9, "t1/0/0")], good) == []
    for stored, says in (
        ({"a-0": ["t1/0/0"]}, "1 of 2"),
        ({"a-0": []}, "lost"),
        ({"a-0": ["t1/0/0", "t1/0/1"], "a-1": ["t1/0/1"]}, "2 times"),
        ({"a-0": ["t1/0/1", "t1/0/0"]}, "one piece"),
        ({"a-0": ["t1/0/0", "t2/0/0", "t1/0/1"]}, "one piece"),
        ({"a-0": ["t1/0/0", "t1/0/1", "t1/1/0"]}, "not committed (back)"),
    ):
        assert any(says in each for each in judge_transactions(events, stored))
    early = (1.05, "read", "c1", "a-0", 0, 9, "t1/0/0")
    assert judge_transactions([*events, early], good) == [
        "transactions: t1/0/0 was read before its commit"
    ]
