"""A pace spreads what looks cost: over time, and over brokers."""

import asyncio

import pytest

from vq.operations.cluster.pace import LookPace
from vq.testing.loop import clock_of_loop

pytestmark = pytest.mark.virtual_time


async def test_reads_and_requests_of_each_broker_have_a_bound() -> None:
    loop = asyncio.get_running_loop()
    pace = LookPace(clock_of_loop(), reads_per_s=1_000, requests_per_s=10)
    begun = loop.time()
    for _ in range(4):
        await pace.reads(500)  # what was allowed is read at once, and paid for by the next
    assert loop.time() - begun == pytest.approx(1.5)
    await asyncio.gather(*(pace.request(group) for group in ("b1", "b2") for _ in range(6)))
    assert loop.time() - begun == pytest.approx(2.0), "two brokers answer side by side"
