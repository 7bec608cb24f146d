"""The tree of a cluster in memory: checked, repaired, exported, and a cluster made of the copy."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of, started
from support.consumers import consumer_of, send, take
from support.coordination import FAULTS, deny_reading, disarm, strike
from support.explained import check_command

from vq import aio
from vq.admin import (
    ActNotRecorded,
    CheckedTree,
    Goal,
    Severity,
    Target,
    TreeExport,
    TreeUnknown,
    read_tree,
)
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.coordination.tree.coordinator import NoNode, join
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.brokers import BrokerGroup, OpenPartitions
from vq.coordination.tree.values.cluster import ClusterSecret
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
)
from vq.coordination.tree.values.decisions import Decision
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.topics import CREATING, DeletionFence, TopicNode
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.message_filter import ALL
from vq.model import Message, Span, TopicPartition, TopicSettings
from vq.operations.tree.checking import check_tree, plan_repair_tree, repair_tree
from vq.operations.tree.copying import (
    ImportAction,
    export_tree,
    import_tree,
    plan_import_tree,
)
from vq.operations.tree.walking import walk_tree
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

EARLIEST = Target(goal=Goal.EARLIEST)


@pytest.fixture
async def busy() -> AsyncIterator[tuple[MemoryCluster, aio.MessageFactory]]:
    """Two brokers, topics, a group with a member, delayed messages, a transaction with offsets."""
    async with memory_cluster() as cluster:
        await cluster.start("b1")
        await cluster.start("b2")
        await cluster.create_topic("t", partitions=4)
        await cluster.create_topic("gone", partitions=2)
        async with factory_of(cluster) as factory:
            await send(factory, *(Message("t", b"%d" % each, key=each) for each in range(8)))
            await send(factory, Message("t", b"later", delay_s=100.0))
            async with await factory.create_producer(ProducerConfig()) as producer:
                transaction = await producer.begin_transaction()
                await producer.send(Message("t", b"x", key=0))
                await transaction.commit()
            await factory.admin.delete_topic("gone")
            await factory.admin.begin_write("job")
            await factory.admin.set_auto_create(TopicSettings())
            async with await consumer_of(factory, member_id="m") as consumer:
                await take(consumer, 3)
                await consumer.commit()
                yield cluster, factory


async def exported(client: ClusterClient, **options: Any) -> tuple[list[str], TreeExport]:
    lines = [each async for each in export_tree(client, **options)]
    return lines, read_tree(lines)


def problems(found: CheckedTree) -> set[tuple[str, str]]:
    for each in found.findings:
        for command in each.commands:
            check_command(command)
    return {(each.path, each.problem) for each in found.findings}


# Checking -----------------------------------------------------------------------------------------
async def test_a_cluster_at_work_has_only_nodes_that_are_known_and_hold(
    busy: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = busy
    found = await factory.admin.check_tree()
    assert (problems(found), found.errors) == (set(), 0)
    assert found.nodes > 50


def counted(coordinator: MemoryCoordinator) -> list[str]:
    """Return a list that gets the name of each read from now on."""
    calls: list[str] = []
    for name in ("get_many", "listing", "children"):
        read = getattr(coordinator, name)

        async def note(*arguments: Any, _read: Any = read, _name: str = name, **more: Any) -> Any:
            calls.append(_name)
            return await _read(*arguments, **more)

        setattr(coordinator, name, note)
    return calls


async def test_a_walk_asks_many_nodes_at_a_time_and_parents_come_first(
    busy: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = busy
    coordinator = factory.admin.cluster.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    await factory.admin.create_topic("wide", TopicSettings(partitions=500))
    calls = counted(coordinator)
    seen: list[str] = []
    async for node in walk_tree(coordinator):
        parent = node.path.rpartition("/")[0]
        assert parent == "" or parent in seen
        seen.append(node.path)
    assert len(seen) == len(set(seen))
    assert len(calls) < len(seen) / 4, "leaves are not asked for children"
    assert [each for each in seen if "/" not in each][:3] == ["brokers", "topics", "consumers"]
    part = [each.path async for each in walk_tree(coordinator, "topics/t")]
    assert part == [each for each in seen if each == "topics/t" or each.startswith("topics/t/")]


WRONG = {
    ("brokers/b1/nodes/ghost", "not_ephemeral"),
    ("consumers/g/members/old", "not_ephemeral"),
    ("consumers/half", "group_half_made"),
    ("consumers/g/offsets/none/0", "offset_left"),
    ("consumers/g/offsets/lost/0", "offset_left"),
    ("consumers/g/offsets/t/9", "partition_missing"),
    ("consumers/g/offsets/t/3", "other_topic"),
    ("consumers/g", "topic_missing"),
    ("topics/half", "half_made"),
    ("topics/t", "partitions_missing"),
    ("topics/t/partitions/1", "unknown_broker_group"),
    ("topics/t/partitions/2", "unreadable"),
    ("topics/t/deleting-old", "fence_left"),
    ("topics/a b", "impossible_name"),
    ("mine", "unknown_node"),
    ("topics/mine/partitions/x", "unknown_node"),
    ("brokers/b2", "not_allowed"),
    ("grace", "newer_format"),
}


async def broken(client: ClusterClient) -> None:
    """Break a tree in many ways at once."""
    tree = client.coordinator
    view = TopicNode.decode("t", (await tree.get("topics/t")).data)
    await tree.create("brokers/b1/nodes/ghost", b'{"v": 1, "host": "h", "port": 1}')
    await tree.create(Member.path("g", "old"), Member().encode(), parents=True)
    at = CommittedOffset(offset=5)
    await tree.create(CommittedOffset.path("half", "t", 0), at.encode(), parents=True)
    gone = replace(at, topic_id="dead")
    await tree.create(CommittedOffset.path("g", "none", 0), gone.encode(), parents=True)
    await tree.create(CommittedOffset.path("g", "lost", 0), at.encode(), parents=True)
    await tree.create(CommittedOffset.path("g", "t", 9), at.encode(), parents=True)
    other = replace(at, topic_id="another").encode()
    await tree.create(CommittedOffset.path("g", "t", 3), other)
    await tree.create("deleted", json.dumps({"v": 1, "topics": {"dead": "none"}}).encode())
    contract = ConsumerGroup(topics={"t": ALL, "none": ALL})
    await tree.set(ConsumerGroup.path("g"), contract.encode())
    half = replace(view, id="half", phase=CREATING)
    await tree.create(TopicNode.path("half"), half.encode())
    await tree.delete(Partition.path("t", 3))
    await tree.set(Partition.path("t", 1), Partition(spans=(Span("b9", 0),)).encode())
    await tree.set(Partition.path("t", 2), b'{"v":')
    await tree.create(DeletionFence.path("t", "old"), DeletionFence().encode())
    await tree.create("topics/a b", half.encode())
    await tree.create("mine", b"of ours")
    await tree.create("topics/mine/partitions/x", b"", parents=True)
    await tree.create("brokers/b2", BrokerGroup().encode())
    deny_reading(tree, "brokers/b2")
    await tree.create("grace", b'{"v": 7}')


async def test_what_does_not_hold_is_found_and_only_what_is_safe_is_repaired(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await cluster.create_topic("spare", partitions=1)
    async with factory_of(cluster, host="other", seed=5) as factory:
        await factory.admin.add_partitions("t", 2)
        planned = await factory.admin.plan_create_group("g", {"t": "*"}, EARLIEST)
        await factory.admin.make_group(planned)
    for number in range(4):
        await client.offsets.reset("g", TopicPartition("t", number), CommittedOffset(offset=0))
    await client.coordinator.delete(CommittedOffset.path("g", "t", 3))
    await broken(client)
    found = await check_tree(client)
    assert problems(found) >= WRONG
    assert [each.severity for each in found.findings] == sorted(
        (each.severity for each in found.findings), key=list(Severity).index
    )
    planned_repairs = await plan_repair_tree(client)
    repaired = {(each.path, each.problem) for each in planned_repairs}
    assert repaired == {
        ("brokers/b1/nodes/ghost", "not_ephemeral"),
        ("consumers/g/members/old", "not_ephemeral"),
        ("consumers/g/offsets/none/0", "offset_left"),
    }
    assert {each.why_not for each in await repair_tree(client, planned_repairs)} == {""}
    assert problems(await check_tree(client)) == problems(found) - repaired


async def test_a_wrong_count_is_written_anew_and_a_right_one_is_not(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await cluster.nodes["b1"].stop()  # a broker would mend it by itself
    tree = client.coordinator
    path = PlacementChanges.path("t")
    node = await tree.get(path)
    wrong = PlacementChanges(version=node.stat.version + 1, open={"b1": 9})
    await tree.set(path, wrong.encode())
    await tree.set(OpenPartitions.path("b1"), OpenPartitions(open=7).encode())
    planned = await plan_repair_tree(client)
    assert [each.problem for each in planned] == ["wrong_count"] * 2
    await repair_tree(client, planned)
    found = PlacementChanges.of_node(path, *_value(await tree.get(path)))
    assert found.open == {"b1": 2}
    count = await tree.get(OpenPartitions.path("b1"))
    assert OpenPartitions.decode("", count.data).open == 2
    assert await plan_repair_tree(client) == []


def _value(node: Any) -> tuple[bytes, int]:
    return node.data, node.stat.version


async def test_a_node_that_changed_since_the_plan_is_left_as_it_is(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    tree = client.coordinator
    for name in ("one", "two"):
        await tree.create(Member.path("g", name), Member().encode(), parents=True)
    planned = await plan_repair_tree(client)
    await tree.set(Member.path("g", "one"), Member(host="new").encode())
    await tree.delete(Member.path("g", "two"))
    reasons = [each.why_not for each in await repair_tree(client, planned)]
    assert reasons == ["the node has changed since the check; check again", "the node is gone"]
    assert await tree.exists(Member.path("g", "one")) is not None


# Exporting ----------------------------------------------------------------------------------------
async def test_an_export_has_everything_but_what_belongs_to_sessions_and_the_secret(
    busy: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = busy
    client = factory.admin.cluster
    wanted: set[str] = set()
    secret = ClusterSecret.path()
    async for node in walk_tree(client.coordinator):
        if not node.stat.ephemeral_owner:
            wanted.add(node.path)
    lines, found = await exported(client)
    secrets = {secret, *(each for each in wanted if each.startswith("audit/acts/"))}
    assert len(secrets) > 1
    assert {each.path for each in found.nodes} == wanted - secrets
    assert not found.has_secrets
    key = json.loads((await client.coordinator.get(secret)).data)["secret"]
    assert key not in "".join(lines)
    _, with_secret = await exported(client, with_secrets=True)
    assert {each.path for each in with_secret.nodes} == wanted
    _, part = await exported(client, below="topics/t")
    assert {each.path for each in part.nodes} == {
        each for each in wanted if each == "topics/t" or each.startswith("topics/t/")
    }
    with pytest.raises(InvalidArgument, match="there is no node 'topics/none'"):
        await exported(client, below="topics/none")
    with pytest.raises(InvalidArgument, match="is no path"):
        await exported(client, below="topics//t")


async def test_an_export_is_no_file_if_a_node_may_not_be_read(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    deny_reading(client.coordinator, "topics/t")
    with pytest.raises(CoordinationError, match="topics/t"):
        await exported(client)


# Importing ----------------------------------------------------------------------------------------
async def test_a_cluster_that_is_made_of_a_copy_goes_on_where_the_other_one_was(
    busy: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    """With the brokers' disks: every message is there, the group goes on, the delayed one comes."""
    first, factory = busy
    client = factory.admin.cluster
    _, copy = await exported(client, with_secrets=True)
    before = await client.offsets.read("g", ["t"])
    await first.stop()
    async with memory_cluster() as second:
        second.disks.update(first.disks)
        second.nodes.clear()
        second.ensemble = MemoryEnsemble(clock=first.ensemble.clock)
        async with started(second, host="operator") as operator:
            await operator.coordinator.delete("")  # as it is before anybody has connected
            planned = await plan_import_tree(operator, copy)
            assert planned.count(ImportAction.CREATE) == len(copy.nodes) == len(planned.steps)
            await import_tree(operator, planned)
            again = await plan_import_tree(operator, copy)
            assert (again.steps, again.same) == ((), len(copy.nodes))
            found = await check_tree(operator)
            assert found.errors == 0, found.findings
            assert await operator.offsets.read("g", ["t"]) == before
        await second.start("b1")
        await second.start("b2")
        async with factory_of(second, host="new", seed=99) as other:
            async with await consumer_of(other, member_id="m") as consumer:
                left = await take(consumer, 7)
                assert len({*left}) == 7
                assert b"x" in left
            await asyncio.sleep(100)
            await until_true(lambda: _has_later(other))


async def _has_later(factory: aio.MessageFactory) -> bool:
    found = await factory.admin.find_messages("t", since_ms=0)
    return any(each.content == b"later" for each in found.messages)


async def test_what_is_made_together_is_made_together_and_in_the_same_order(
    busy: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    """By that a group tells which partitions are younger than itself."""
    first, factory = busy
    await factory.admin.add_partitions("t", 2)
    _, copy = await exported(factory.admin.cluster)
    async with memory_cluster() as second, started(second) as operator:
        await import_tree(operator, await plan_import_tree(operator, copy))
        _, other = await exported(operator)
    order = {each.path: each.czxid for each in copy.nodes}
    made = {each.path: each.czxid for each in other.nodes}
    paths = sorted(order, key=lambda path: (order[path], path))
    assert [made[each] for each in paths] == sorted(made[each] for each in paths)
    for one, two in itertools.pairwise(paths):
        assert (order[one] == order[two]) == (made[one] == made[two]), (one, two)
    assert first


async def test_versions_that_mean_something_are_as_they_were(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    tree = client.coordinator
    path = Decision.path(0, "0123456789abcdef")
    await tree.create(path, Decision().encode(), parents=True)
    for number in range(1, 1_203):
        await tree.set(path, Decision(transaction=number).encode())
    fence = Assignment.path("g", "t", 0)
    await tree.create(fence, Assignment().encode(), parents=True)
    await tree.set(fence, Assignment(member="m", generation=1).encode())
    _, copy = await exported(client)
    async with memory_cluster() as second, started(second) as operator:
        await import_tree(operator, await plan_import_tree(operator, copy))
        node = await operator.coordinator.get(path)
        assert (node.stat.version, Decision.decode(path, node.data).transaction) == (1_202, 1_202)
        node = await operator.coordinator.get(fence)
        assert (node.stat.version, Assignment.decode(fence, node.data).generation) == (0, 0)


async def test_an_import_into_a_tree_that_is_there_destroys_nothing_unless_told(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    _, copy = await exported(client)
    await cluster.nodes["b1"].stop()
    tree = client.coordinator
    await tree.delete(Partition.path("t", 1))
    node = await tree.get(TopicNode.path("t"))
    topic = TopicNode.decode("t", node.data)
    settings = replace(topic.settings, retention_hours=5)
    await tree.set(TopicNode.path("t"), replace(topic, settings=settings).encode())
    await tree.create("topics/new", replace(topic, id="new").encode())
    await until(lambda: cluster.ensemble)  # the node of the stopped broker is gone by then
    planned = await plan_import_tree(client, copy)
    assert planned.different == ("topics/t",)
    assert [(str(each.action), each.path) for each in planned.steps] == [
        ("create", "topics/t/partitions/1")
    ]
    with pytest.raises(InvalidState, match="have other values than in the file"):
        await import_tree(client, planned)
    planned = await plan_import_tree(client, copy, change=True, prune=True)
    assert {(str(each.action), each.path) for each in planned.steps} >= {
        ("create", "topics/t/partitions/1"),
        ("change", "topics/t"),
        ("delete", "topics/new"),
    }
    assert ("delete", ClusterSecret.path()) not in {
        (str(each.action), each.path) for each in planned.steps
    }
    await import_tree(client, planned)
    assert (await tree.get(TopicNode.path("t"))).data == node.data
    assert await tree.exists("topics/new") is None


async def test_a_tree_under_running_brokers_is_changed_in_parts_only(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    _, copy = await exported(client)
    tree = client.coordinator
    node = await tree.get(TopicNode.path("t"))
    await tree.set(TopicNode.path("t"), b'{"v":')
    planned = await plan_import_tree(client, copy, change=True)
    with pytest.raises(InvalidState, match="under running brokers"):
        await import_tree(client, planned)
    planned = await plan_import_tree(client, copy, below="topics/t", change=True)
    await import_tree(client, planned)
    assert (await tree.get(TopicNode.path("t"))).data == node.data


async def test_a_znode_that_changes_between_plan_and_import_is_not_overwritten(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    _, copy = await exported(client)
    tree = client.coordinator
    await tree.delete(Partition.path("t", 1))
    planned = await plan_import_tree(client, copy, below="topics/t")
    await tree.create(Partition.path("t", 1), b"of somebody else")
    with pytest.raises(InvalidState, match="topics/t/partitions/1' has changed since the plan"):
        await import_tree(client, planned)
    assert (await tree.get(Partition.path("t", 1))).data == b"of somebody else"
    node = await tree.get(TopicNode.path("t"))
    await tree.set(TopicNode.path("t"), b"1")
    planned = await plan_import_tree(client, copy, below="topics/t", change=True)
    await tree.set(TopicNode.path("t"), b"2")
    with pytest.raises(InvalidState, match="has changed since the plan"):
        await import_tree(client, planned)
    assert node


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_import_that_zookeeper_cuts_off_may_be_repeated(
    cluster: MemoryCluster, client: ClusterClient, fault: str
) -> None:
    """At each of its first writes: what is done is not planned again, and the end is the same."""
    _, copy = await exported(client)
    for skip in range(0, 12, 3):
        async with memory_cluster() as second, started(second) as operator:
            coordinator = operator.coordinator
            assert isinstance(coordinator, MemoryCoordinator)
            planned = await plan_import_tree(operator, copy)
            strike(second.ensemble, coordinator, fault, skip)
            with_cut = False
            try:
                await import_tree(operator, planned)
            except (TreeUnknown, ActNotRecorded):
                with_cut = True
            assert with_cut or not disarm(coordinator)
            await until_true(lambda c=coordinator: _answers(c))  # type: ignore[misc]
            await import_tree(operator, await plan_import_tree(operator, copy))
            again = await plan_import_tree(operator, copy)
            assert (again.steps, again.different) == ((), ())


async def _answers(coordinator: MemoryCoordinator) -> bool:
    try:
        await coordinator.exists("")
    except CoordinationError:
        return False
    return True


async def test_an_import_of_a_part_makes_what_lies_above_it(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    _, copy = await exported(client)
    async with memory_cluster() as second, started(second) as operator:
        with pytest.raises(InvalidArgument, match="the file has no node 'topics/none'"):
            await plan_import_tree(operator, copy, below="topics/none")
        planned = await plan_import_tree(operator, copy, below=Partition.parent("t"))
        await import_tree(operator, planned)
        assert await operator.coordinator.children("topics") == ["t"]
        with pytest.raises(NoNode):
            await operator.coordinator.get(join("consumers", "g"))


async def test_an_owner_without_a_member_is_only_a_remark(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    tree = client.coordinator
    await tree.create("consumers/g/owners/t", parents=True)
    owner = Owner(member="m", generation=1).encode()
    await tree.create(Owner.path("g", "t", 0), owner, ephemeral=True)
    found = await check_tree(client)
    assert (Owner.path("g", "t", 0), "owner_without_member") in problems(found)
    assert found.errors == 0
