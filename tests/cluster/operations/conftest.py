"""A cluster in memory of two broker groups, for what operators do across groups."""

from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster, memory_cluster


@pytest.fixture
async def two_groups() -> AsyncIterator[MemoryCluster]:
    """Two brokers, and topic ``t`` with partition 0 on b1 and 1 on b2."""
    async with memory_cluster() as made:
        await made.start("b1")
        await made.start("b2")
        await made.create_topic("t", partitions=2)
        yield made
