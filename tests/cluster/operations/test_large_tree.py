"""The large tree of ``support.large_tree`` is one that vq reads, with brokers that vq asks."""

from collections.abc import Sequence

from support.client import started
from support.large_tree import TreeSize, large_cluster

from vq.coordination.topics.topics import describe_topic
from vq.coordination.tree.coordinator import Read
from vq.coordination.tree.reading import read_topics
from vq.coordination.tree.values.topics import TopicNode
from vq.model import TopicPartition
from vq.operations.cluster.bulk import bounds_on, list_broker_groups, read_contracts
from vq.operations.cluster.cluster import cluster_status
from vq.operations.groups.groups import describe_group
from vq.operations.partitions.offsets import PartitionEnds

SIZE = TreeSize(
    groups=6, nodes=2, topics=9, partitions=31, consumer_groups=20, readers_of_first=5, pools=2
)


async def test_vq_reads_the_tree_and_asks_its_brokers() -> None:
    async with large_cluster(SIZE) as (cluster, made, _), started(cluster) as client:
        found = await list_broker_groups(client)
        assert [each.group for each in found] == made.groups
        assert {each.pool for each in found} == {None, "pool-1"}
        assert sum(each.partitions for each in found) == SIZE.partitions == len(made.partitions)
        view = await describe_topic(client.coordinator, "topic-0000")
        assert len(view.partitions) == made.topics["topic-0000"] == 4
        ends: dict[TopicPartition, PartitionEnds | None] = {}
        for group in made.groups:
            ends |= await bounds_on(client, group)
        assert ends.keys() == made.partitions.keys()
        key = TopicPartition("topic-0003", 1)
        found_ends = ends[key]
        assert found_ends is not None
        assert found_ends.latest >= made.partitions[key].stored_bytes > 0
        status = await cluster_status(client)
        assert len(status.brokers) == SIZE.groups * SIZE.nodes
        assert not status.silent
        contracts = await read_contracts(client)
        assert sum("topic-0000" in each.topics for each in contracts) == SIZE.readers_of_first
        assert [each.members for each in contracts] == [1, 0, 0, 0] * 5
        progress = await describe_group(client, "readers-00000")
        assert len(progress.partitions) == 4


async def test_many_topics_are_read_with_few_requests() -> None:
    """As each by itself: also one that is gone, and one that changes while all are read."""
    async with large_cluster(SIZE) as (cluster, made, _), started(cluster) as client:
        coordinator = client.coordinator
        alone = {name: await describe_topic(coordinator, name) for name in made.topics}
        before = cluster.ensemble.served
        assert await read_topics(coordinator, [*made.topics, "gone"]) == alone
        assert cluster.ensemble.served - before == 4
        get_many, changed = coordinator.get_many, TopicNode.path("topic-0002")

        async def late(paths: Sequence[str]) -> list[Read]:
            found = await get_many(paths)
            if len(paths) == SIZE.partitions:  # all of them: once
                await coordinator.set(changed, (await coordinator.get(changed)).data)
            return found

        coordinator.get_many = late  # type: ignore[method-assign]
        found = await read_topics(coordinator, list(made.topics))
        assert found["topic-0002"] == await describe_topic(coordinator, "topic-0002")
        assert found["topic-0002"].version == alone["topic-0002"].version + 1
