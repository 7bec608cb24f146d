"""Fixtures for pytest: ``pytest_plugins = ["vq.testing.fixtures"]`` in ``conftest.py``.

``vq_cluster``
    A ``Cluster`` on the loop of the test, for coroutines (with pytest-asyncio or anyio).
``vq_thread_cluster``
    A ``ThreadCluster``, for blocking code.
``vq_real_cluster``
    The configuration of a real cluster for the whole session: ZooKeeper and a broker as processes
    on this machine, with sockets and files. Needs ``vq[standalone]`` and a Java.

Tests in virtual time have the decorator ``vq.testing.simulated`` and need no fixture.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from vq.client.config import MessageFactoryConfig
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import Address
from vq.remoting.ports import free_port
from vq.testing.cluster import Cluster
from vq.testing.machines import CLUSTER
from vq.testing.threads import ThreadCluster

_async_fixture: Any = pytest.fixture  # as anyio takes it
with contextlib.suppress(ImportError):
    from pytest_asyncio import fixture as _async_fixture


@_async_fixture  # type: ignore[untyped-decorator]
async def vq_cluster() -> AsyncIterator[Cluster]:
    """A cluster in memory, on the loop of the test."""
    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
def vq_thread_cluster() -> Iterator[ThreadCluster]:
    """A cluster in memory, for blocking code."""
    with ThreadCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def vq_real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageFactoryConfig]:
    """How to reach a real cluster of one broker; all tests of the session share it."""
    with real_cluster(tmp_path_factory.mktemp("vq")) as config:
        yield config


@contextlib.contextmanager
def real_cluster(directory: Path) -> Iterator[MessageFactoryConfig]:
    """Run ZooKeeper and a broker as processes, with their data in a directory.

    Raises:
        MissingPart: There is no Java, or no ZooKeeper for it; the message says what to install.
        ChildFailed: One of them does not start; the message has the end of its log.
    """
    with EmbeddedZooKeeper(directory / "zookeeper") as zookeeper:
        spec = BrokerSpec(
            data=directory / "b1",
            group="b1",
            node="n1",
            address=Address("127.0.0.1", free_port()),
            zookeeper=zookeeper.hosts,
            cluster=CLUSTER,
        )
        broker = BrokerChild(spec)
        broker.start()
        try:
            broker.wait_ready()
            yield MessageFactoryConfig(zookeeper=zookeeper.hosts, cluster=CLUSTER)
        finally:
            broker.stop()
