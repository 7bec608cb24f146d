"""Two brokers that are a table of answers."""

from collections.abc import AsyncIterator

import pytest
from support.admin import Brokers, register
from support.coordination import client_of

from vq.coordination.topics import topics
from vq.coordination.tree.memory import MemoryEnsemble
from vq.model import TopicSettings


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    """Groups b1 and b2 with masters, and topic ``t`` with partition 0 on b1 and 1 on b2."""
    async with client_of(MemoryEnsemble()) as coordinator:
        for group in ("b1", "b2"):
            await register(coordinator, group)
        await topics.create_topic(coordinator, "t", TopicSettings(partitions=2))
        yield Brokers(coordinator)
