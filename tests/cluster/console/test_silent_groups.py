"""Pages about logs that several broker groups have: one that is silent hides no other."""

import re
from collections.abc import AsyncIterator

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.console import running
from support.consumers import send
from support.journals import transact

from vq.console.database.database import Database
from vq.model import Message, TopicPartition, TransactionState

pytestmark = pytest.mark.virtual_time  # a page waits for seconds for what is silent

SENT = 24
#: Messages for one partition that wait about as long are in one log; each of these is in another.
DELAYS_S = (60.0, 3_600.0, 86_400.0, 2_000_000.0)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Two broker groups; both have a part of what waits."""
    async with memory_cluster() as made:
        for group in ("b1", "b2"):
            await made.start(group)
        await made.create_topic("t", partitions=2)
        yield made


async def test_what_answers_is_shown_and_what_does_not_is_named(
    cluster: MemoryCluster, database: Database
) -> None:
    """The page is there, with the delayed messages of the group that runs."""
    async with factory_of(cluster) as factory:
        for number in range(SENT):
            await send(factory, Message("t", b"%d" % number, delay_s=DELAYS_S[number % 4]))
            await transact(factory.admin.cluster, TransactionState.PREPARED, TopicPartition("t", 0))
        async with running(cluster, database, open=True) as console:
            await cluster.nodes["b2"].stop()
            browser = console.browser()
            for page in ("delayed", "transactions"):
                answer = await browser.get(f"/c/test/{page}")
                assert answer.status_code == 200
                assert "Did not answer:" in answer.text
                if page == "delayed":  # those of transactions wait in one log here
                    assert re.search(r"[1-9]\d* messages wait for their time", answer.text)
