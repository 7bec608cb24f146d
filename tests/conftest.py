"""Fixtures of every test: a real ZooKeeper with a root of one's own, and servers to break."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.zookeeper import ZooKeeperRoot, ZooKeeperService, embedded, own_root, service

from vq.coordination.embedded import EmbeddedZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperService]:
    """A ZooKeeper shared by all tests of this process; do not stop it."""
    with service(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def zookeeper_root(zookeeper: ZooKeeperService) -> Iterator[ZooKeeperRoot]:
    """A root in the shared ZooKeeper that belongs to this test."""
    with own_root(zookeeper.hosts) as root:
        yield root


@pytest.fixture
def make_zookeeper(tmp_path: Path) -> Iterator[Callable[..., EmbeddedZooKeeper]]:
    """Start ZooKeeper servers of this test's own: ``make_zookeeper(servers=3, tick_ms=100)``."""
    with ExitStack() as stack:

        def make(*, servers: int = 1, tick_ms: int = 500) -> EmbeddedZooKeeper:
            place = tmp_path / f"zookeeper-{len(list(tmp_path.glob('zookeeper-*')))}"
            return stack.enter_context(embedded(place, servers=servers, tick_ms=tick_ms))

        yield make
