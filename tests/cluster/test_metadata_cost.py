"""What topics cost ZooKeeper: calls counted at its twin, in clusters of many sizes.

Making, describing, moving and deleting a topic cost what they touch: the topic's own nodes and a
few for each broker group, whatever else the cluster has. A list costs two reads for each topic.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from support.coordination import LeadingBroker, client_of

from vq.broker.logs.topics_view import TopicsView
from vq.coordination.topics import summaries, topics
from vq.coordination.topics.placement import move
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.reading import TopicView
from vq.model import TopicSettings
from vq.testing.waiting import WAIT_S

PARTITIONS = 20
GROUPS = ("b1", "b2")
#: The topic's node, its list of changes, its partitions at once, and whether it is still the same
#: topic.
READ_CALLS = 4
#: The names of the groups; of each its settings, its state, its master, its nodes, its count.
GROUP_CALLS = 1 + 5 * len(GROUPS)
#: Is the topic there, is there any; the groups; the change; the result.
CREATE_CALLS = 2 + GROUP_CALLS + 1 + READ_CALLS
#: The topic's node, the partition, the list of changes; the counts; the change.
MOVE_CALLS = 3 + len(GROUPS) + 1
#: The topic; the list of deleted ones; the counts; the change; the names of consumer groups; the
#: partitions' names and their nodes in one step; their parent; the topic and its child.
DELETE_CALLS_MAX = READ_CALLS + 1 + len(GROUPS) + 1 + 1 + 8
#: The names of topics; whether this one is there; the topic.
FOLLOW_CALLS = 2 + READ_CALLS

SIZES = [
    pytest.param(size, marks=pytest.mark.long if size >= 1_000 else ()) for size in (10, 100, 1_000)
]


@asynccontextmanager
async def cluster_of(count: int) -> AsyncIterator[tuple[MemoryEnsemble, MemoryCoordinator]]:
    """Two groups, and so many topics of 20 partitions."""
    ensemble = MemoryEnsemble()
    async with client_of(ensemble, session_timeout_s=3600.0) as client:
        brokers = [LeadingBroker(client, group=group) for group in GROUPS]
        for broker in brokers:
            await broker.start()
        settings = TopicSettings(partitions=PARTITIONS)
        for number in range(count):
            await topics.create_topic(client, f"t{number}", settings)
        yield ensemble, client
        for broker in brokers:
            await broker.stop()


async def calls(ensemble: MemoryEnsemble, work: Awaitable[object]) -> int:
    """Return how many calls ZooKeeper served for it."""
    before = ensemble.served
    await work
    return ensemble.served - before


@pytest.mark.parametrize("size", SIZES)
async def test_a_change_costs_the_same_in_a_cluster_of_any_size(size: int) -> None:
    async with cluster_of(size) as (ensemble, client):
        settings = TopicSettings(partitions=PARTITIONS)
        made = await calls(ensemble, topics.create_topic(client, "z", settings))
        assert made == CREATE_CALLS
        assert await calls(ensemble, topics.describe_topic(client, "z")) == READ_CALLS
        view = await topics.describe_topic(client, "z")
        placement = view.partitions[3]
        target = "b2" if placement.writer_group == "b1" else "b1"
        change = topics.change_placement(client, view, move(placement, 5, target))
        assert await calls(ensemble, change) == MOVE_CALLS
        assert await calls(ensemble, topics.delete_topic(client, "z")) <= DELETE_CALLS_MAX


@pytest.mark.parametrize("size", SIZES)
async def test_a_list_costs_two_reads_for_each_topic(size: int) -> None:
    async with cluster_of(size) as (ensemble, client):
        assert await calls(ensemble, summaries.summarize_topics(client)) == 1 + 2 * size


@pytest.mark.parametrize("size", SIZES)
async def test_a_broker_reads_the_topics_that_came_or_went(size: int) -> None:
    """And no other: a thousand topics are not read again because there is one more."""
    told: list[str] = []

    class Notes:
        async def apply_topic(self, view: TopicView) -> None:
            told.append(view.name)

        async def remove_topic(self, name: str) -> None:
            told.append(f"no {name}")

    async with (
        cluster_of(size) as (ensemble, client),
        client_of(ensemble, session_timeout_s=3600.0) as broker,
    ):
        view = TopicsView(broker, follower=Notes(), interval_s=3600.0)
        await view.refresh()
        assert len(told) == size
        del told[:]
        await topics.create_topic(client, "z", TopicSettings(partitions=PARTITIONS))
        await heard(view)
        assert await calls(ensemble, view.refresh()) == FOLLOW_CALLS
        await topics.delete_topic(client, "t0")
        await heard(view)
        await view.refresh()
        await view.refresh()
        assert told == ["z", "no t0"]
        assert await calls(ensemble, view.refresh()) == 0


async def heard(view: TopicsView) -> None:
    """Wait until a watch has fired."""
    async with asyncio.timeout(WAIT_S):
        await view.hinted.wait()
    view.hinted.clear()
