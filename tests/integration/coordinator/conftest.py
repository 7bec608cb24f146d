"""Either implementation of the Coordinator port: the twin in memory and a real ZooKeeper.

Whatever holds here holds in simulations and in production alike, so the twin cannot drift.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from support.coordinator_contract import Ensemble, InMemory, Real


@pytest.fixture(params=["memory", "real"])
async def ensemble(request: pytest.FixtureRequest) -> AsyncIterator[Ensemble]:
    """Either implementation; every client it made is closed afterwards."""
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield InMemory(stack)
        else:
            yield Real(stack, request.getfixturevalue("zookeeper_root"))


@pytest.fixture(autouse=True)
def _need_zookeeper(request: pytest.FixtureRequest) -> None:
    """Start the real server outside of the running loop, for it blocks."""
    if "real" in request.node.callspec.id:
        request.getfixturevalue("zookeeper_root")
