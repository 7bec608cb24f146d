"""What nodes say of their slow passes over all that they store."""

import asyncio

import pytest
from support.broker import Client, MemoryCluster, memory_cluster, message
from support.client import started

from vq.operations.brokers.scrubs import Scrub, scrubs
from vq.testing.waiting import WAIT_S

pytestmark = pytest.mark.virtual_time


async def found(cluster: MemoryCluster) -> Scrub:
    async with started(cluster) as client:
        (one,) = await scrubs(client)
        return one


async def test_a_pass_is_told_from_none_and_from_one_that_ended() -> None:
    """What was not read yet is unknown, not 0. The pass is as slow as its bound."""
    async with memory_cluster() as cluster:
        node = await cluster.start(scrub_interval_s=20.0, scrub_bytes_per_s=100)
        await cluster.create_topic("t", partitions=1)
        client = await Client.connect(cluster.network, node.address)
        await client.put("t", 0, [message(b"x" * 1000)])
        before = await found(cluster)
        assert (before.begun_ms, before.read_bytes, before.running) == (None, None, False)
        assert (before.bytes_per_s, before.damaged_ranges, before.repairs) == (100, 0, 0)
        async with asyncio.timeout(WAIT_S * 10):
            while not (now := await found(cluster)).running:
                await asyncio.sleep(0.5)
            while (now := await found(cluster)).running:
                await asyncio.sleep(0.5)
        assert now.read_bytes == now.stored_bytes
        assert None not in (now.begun_ms, now.ended_ms, now.stored_bytes)
        took_ms = now.ended_ms - now.begun_ms + 2  # type: ignore[operator]  # both are cut to ms
        assert took_ms >= now.stored_bytes / 100 * 1000  # type: ignore[operator]
