"""A znode with something else than its value: it is named, and everything else works."""

import pytest
from support.broker import MemoryCluster
from support.coordination import deny_reading

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import group_views
from vq.coordination.groups.groups import ensure_group
from vq.coordination.topics import topics as topic_tree
from vq.coordination.topics.remains import read_remains
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import UnknownTopic
from vq.message_filter import ALL
from vq.model import TopicSettings
from vq.operations.cluster.cluster import cluster_status
from vq.operations.groups import group_removal, groups
from vq.operations.topics import deletion, topics

pytestmark = pytest.mark.virtual_time

#: What ZooKeeper's shell stores of JSON without quotes.
HALF = b'{"v":'


async def test_a_list_of_topics_leaves_out_the_unreadable_one_and_names_its_znode(
    cluster: MemoryCluster, client: ClusterClient, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.create_topic("good", partitions=1)
    await client.coordinator.set(TopicNode.path("t"), HALF)
    assert [each.name for each in await topics.list_topics(client)] == ["good"]
    assert "topics/t" in caplog.text
    with pytest.raises(Unreadable, match="topics/t"):
        await topic_tree.describe_topic(client.coordinator, "t")


async def test_a_list_of_groups_leaves_out_the_unreadable_one_and_names_its_znode(
    client: ClusterClient, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good"):
        await ensure_group(client.coordinator, name, ConsumerGroup(topics={"t": ALL}))
    await client.coordinator.set(ConsumerGroup.path("bad"), HALF)
    assert [each.group for each in await groups.list_groups(client)] == ["good"]
    assert "consumers/bad" in caplog.text


async def test_a_group_of_an_impossible_name_is_named_beside_the_others(
    client: ClusterClient,
) -> None:
    """Somebody made its node by hand."""
    await ensure_group(client.coordinator, "good", ConsumerGroup(topics={"t": ALL}))
    await client.coordinator.create(ConsumerGroup.path("a b"), HALF)
    found, unreadable = await groups.readable_groups(client)
    assert [each.group for each in found] == ["good"]
    assert list(unreadable) == ["a b"]


async def test_a_group_without_a_contract_can_be_deleted(client: ClusterClient) -> None:
    """It is listed: its node was made as a parent."""
    await client.coordinator.create(ConsumerGroup.path("bare"), parents=True)
    assert [each.group for each in await groups.list_groups(client)] == ["bare"]
    assert (await group_removal.plan_delete_group(client, "bare")).partitions == 0
    await group_removal.delete_group(client, "bare")
    assert await groups.list_groups(client) == []


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
    assert [each.alive for each in await group_views.groups(client.coordinator)] == [True, False]


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


@pytest.mark.parametrize(
    ("path", "data", "keeps_data"),
    [
        (TopicNode.path("t"), HALF, True),
        (TopicNode.path("t"), b'{"v": 1, "id": "%s"}', False),
        (TopicNode.path("t"), b'{"v": 99, "id": "%s"}', False),
        (Partition.path("t", 1), HALF, False),
        (Partition.path("t", 1), None, False),
    ],
    ids=["nothing", "only the id", "of a later version", "a partition", "a partition is missing"],
)
async def test_an_unreadable_topic_is_deleted(
    cluster: MemoryCluster, client: ClusterClient, path: str, data: bytes | None, keeps_data: bool
) -> None:
    """Brokers delete its data if its id is known; a new topic of the name may follow."""
    view = await topic_tree.describe_topic(client.coordinator, "t")
    if data is None:
        await client.coordinator.delete(path)
    else:
        await client.coordinator.set(path, data.replace(b"%s", view.id.encode()))
    planned = await deletion.plan_delete(client, "t", now=True)
    assert planned.unreadable
    assert (planned.exact, planned.keeps_data) == (False, keeps_data)
    await deletion.delete_topic(client, "t", now=True)
    assert await topic_tree.was_deleted(client.coordinator, view.id) is not keeps_data
    assert await topic_tree.list_topics(client.coordinator) == []
    await cluster.create_topic("t", partitions=2)


async def test_a_deletion_that_stopped_half_way_is_finished(client: ClusterClient) -> None:
    """As the error for its name advises."""
    found = await read_remains(client.coordinator, "t")
    await client.coordinator.set(TopicNode.path("t"), found.topic.encode())
    with pytest.raises(UnknownTopic, match="it is deleting"):
        await topics.describe_topic(client, "t")
    assert (await deletion.plan_delete(client, "t", now=True)).partitions == 2
    await deletion.delete_topic(client, "t", now=True)
    with pytest.raises(UnknownTopic):
        await deletion.plan_delete(client, "t", now=True)


async def test_a_node_that_may_not_be_read_counts_as_unreadable(
    cluster: MemoryCluster, client: ClusterClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ACL is another one than that of vq's nodes."""
    await cluster.create_topic("good", partitions=1)
    for name in ("ours", "theirs"):
        await ensure_group(client.coordinator, name, ConsumerGroup(topics={"good": ALL}))
    deny_reading(client.coordinator, ConsumerGroup.path("theirs"))
    deny_reading(client.coordinator, TopicNode.path("t"))
    assert [each.name for each in await topics.list_topics(client)] == ["good"]
    assert [each.group for each in await groups.list_groups(client)] == ["ours"]
    assert "does not allow this to vq: 'topics/t'" in caplog.text
    assert "does not allow this to vq: 'consumers/theirs'" in caplog.text
