"""A group in memory whose members a test makes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from support.broker import memory_cluster
from support.membership import Group


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    """One broker, and topic ``t`` of four partitions; members are closed at the end."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=4)
        async with AsyncExitStack() as stack:
            yield Group(cluster, stack)
