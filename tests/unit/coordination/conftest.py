"""One in-memory ensemble for each test, and clients of it."""

from collections.abc import AsyncIterator

import pytest
from support.coordination import client_of

from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble(reconnect_delay_s=0.0)


@pytest.fixture
async def client(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    async with client_of(ensemble) as made:
        yield made


@pytest.fixture
async def other(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    """A second session."""
    async with client_of(ensemble) as made:
        yield made
