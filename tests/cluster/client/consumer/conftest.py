"""A broker and the asynchronous API for its consumers, and a group whose members a test makes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.membership import Group

from vq import aio


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, topic ``t`` with a single partition and ``wide`` with four."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        await cluster.create_topic("wide", partitions=4)
        yield cluster


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """The asynchronous API, open; its session ends soon when ZooKeeper is away."""
    async with factory_of(cluster, session_timeout_s=2.0) as factory:
        yield factory


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    """One broker, and topic ``t`` of four partitions; members are closed at the end."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=4)
        async with AsyncExitStack() as stack:
            yield Group(cluster, stack)
