"""The scenario of a group with copies: what its figures mean."""

import pytest

from bench import replication
from vq.cli.bench.workload import WorkFailed


def test_a_gap_counts_from_the_last_ack_before_a_strike() -> None:
    """The strike is at 2.0; the pause between 0 and 1 is none of its doing."""
    assert replication.gap_around([0.0, 1.0, 1.5, 4.5, 4.6], begin=2.0) == 3.0
    assert replication.gap_around([0.0, 1.0, 2.5], begin=1.5) == 1.5


def test_a_client_that_got_no_ack_afterwards_has_measured_nothing() -> None:
    with pytest.raises(WorkFailed, match="no message was acknowledged afterwards"):
        replication.gap_around([0.0, 1.0], begin=2.0)
