"""What every integration test may use.

Modules named in ``ON_BOTH_LOOPS`` run on asyncio's own loop and on uvloop; the others on asyncio's.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest
import uvloop
from support.cluster import ProcessCluster, process_cluster
from support.zookeeper import ZooKeeperService

ON_BOTH_LOOPS: Final = {
    "test_handshakes.py",
    "test_network_contract.py",
    "test_sessions_contract.py",
    "test_tls.py",
    "test_watches_contract.py",
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops that ``item`` runs on, by the name shown in its id."""
    if item.path.name in ON_BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    """Two broker groups for all tests of a module; a test that hurts one heals it."""
    with process_cluster(tmp_path_factory.mktemp("brokers"), zookeeper.hosts) as made:
        made.add_all("b1", "b2")
        yield made
