"""A znode with something else than its value: it is named, and everything else works."""

import pytest
from support.broker import MemoryCluster

from vq.admin import groups, topics
from vq.admin.cluster import cluster_status
from vq.client.cluster import ClusterClient
from vq.coordination import registry
from vq.coordination import topics as topic_tree
from vq.coordination.groups import ensure_group
from vq.coordination.paths import BrokerGroup, ConsumerGroup, GroupState, Topic, Unreadable
from vq.model import TopicSettings

#: What ZooKeeper's shell stores of JSON without quotes.
HALF = b'{"v":'


async def test_a_list_of_topics_leaves_out_the_unreadable_one_and_names_its_znode(
    cluster: MemoryCluster, client: ClusterClient, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("good", partitions=1)
    await client.coordinator.set(Topic.path("t"), HALF)
    assert [each.name for each in await topics.list_topics(client)] == ["good"]
    assert "topics/t" in caplog.text
    with pytest.raises(Unreadable, match="topics/t"):
        await topic_tree.describe_topic(client.coordinator, "t")


async def test_a_list_of_groups_leaves_out_the_unreadable_one_and_names_its_znode(
    client: ClusterClient, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        await ensure_group(client.coordinator, name, ConsumerGroup(topics={"t": ""}))
    await client.coordinator.set(ConsumerGroup.path("bad"), HALF)
    assert [each.group for each in await groups.list_groups(client)] == ["good"]
    assert "consumers/bad" in caplog.text


@pytest.mark.parametrize("kind", [BrokerGroup, GroupState])
async def test_a_topic_is_placed_while_a_broker_group_cannot_be_read(
    cluster: MemoryCluster,
    client: ClusterClient,
    caplog: pytest.LogCaptureFixture,
    kind: type[BrokerGroup] | type[GroupState],
) -> None:
    """On the other groups."""
    await cluster.start("b2")
    await client.coordinator.set(kind.path("b2"), HALF)
    view = await topic_tree.create_topic(client.coordinator, "new", TopicSettings(partitions=2))
    assert {each.writer_group for each in view.partitions} == {"b1"}
    assert kind.path("b2") in caplog.text
    assert [each.alive for each in await registry.groups(client.coordinator)] == [True, False]


@pytest.mark.parametrize("kind", [BrokerGroup, GroupState])
async def test_the_status_shows_the_other_groups_and_names_the_znode(
    cluster: MemoryCluster,
    client: ClusterClient,
    kind: type[BrokerGroup] | type[GroupState],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await cluster.start("b2")
    await client.coordinator.set(kind.path("b2"), HALF)
    status = await cluster_status(client)
    by_group = {each.group.group: each for each in status.brokers}
    assert by_group["b1"].node is not None
    assert kind.path("b2") in caplog.text
    if kind is GroupState:
        assert kind.path("b2") in str(by_group["b2"])
