"""A cluster in memory of one broker, and a client and a factory of it."""

from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of, started

from vq import aio
from vq.client.cluster import ClusterClient
from vq.operations.security import users
from vq.security import scram


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords cost as little to derive as they may: a test of users derives dozens."""
    for module in (scram, users):
        monkeypatch.setattr(module, "ITERATIONS", scram.ITERATIONS_MIN)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker, and topic ``t`` of two partitions."""
    async with memory_cluster() as made:
        await made.start()
        await made.create_topic("t", partitions=2)
        yield made


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[ClusterClient]:
    """What producers and consumers share, started."""
    async with started(cluster) as made:
        yield made


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """The asynchronous API, open."""
    async with factory_of(cluster) as made:
        yield made
