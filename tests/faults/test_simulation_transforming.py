"""Consume, transform, produce on the simulated cluster: each input has one output."""

import pytest
from support.cases import case
from support.simulation.transforming import ROWS, judge_outputs, play


@pytest.mark.parametrize("which", ROWS)
def test_each_input_has_one_output_whatever_strikes(which: str) -> None:
    """Clients and brokers crash, sessions and partitions are lost between read and commit."""
    with case(1):
        report = play(1, which)
        assert report.violations == []
        assert report.acknowledged >= 20
        assert sum(report.faults.values()) >= 3


def test_the_judge_knows_what_must_not_be() -> None:
    assert judge_outputs(["1", "2", "1'", "2'"]) == []
    assert judge_outputs(["1", "2", "1'", "1'"]) == [
        "transform: input 1 has 2 outputs",
        "transform: input 2 has no output",
    ]
