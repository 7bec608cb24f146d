"""The figures in the promises are those of the code: who changes one changes the promise."""

import re
from pathlib import Path

import pytest

from vq import limits
from vq.broker.connections.admission import KNOWN_S

TEXT = re.sub(r"\s+", " ", (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text())
MIB = limits.MIB


@pytest.mark.parametrize(
    ("told", "value", "figure"),
    [
        ("the last 4 096 producers", limits.PRODUCERS_PER_PARTITION_MAX, 4_096),
        ("after more than 4 096 others", limits.PRODUCERS_PER_PARTITION_MAX, 4_096),
        ("the last five batches of each", limits.PRODUCER_BATCHES_REMEMBERED, 5),
        ("clients of the last ten minutes", KNOWN_S, 600.0),
        ("4 KiB per frame before HELLO", limits.FRAME_BYTES_MAX_BEFORE_HELLO, 4_096),
        ("before HELLO, 16 MiB after", limits.FRAME_BYTES_MAX, 16 * MIB),
    ],
)
def test_a_promise_names_the_bound_of_the_code(told: str, value: float, figure: float) -> None:
    assert told in TEXT
    assert value == figure
