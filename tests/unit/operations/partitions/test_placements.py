"""Moves: what is refused before anything happens. The brokers are a table of answers."""

from dataclasses import replace

import pytest
from support.admin import ADDRESS, Brokers, cluster_of, register
from support.broker import memory_cluster
from support.client import started
from support.coordination import client_of

from vq.coordination.topics import topics
from vq.coordination.topics.placement import close_span
from vq.coordination.tree.coordinator import BadVersion, ConnectionLost
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.brokers import BrokerGroup
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    NotMaster,
    TimedOut,
    UnknownPartition,
    UnknownTopic,
)
from vq.model import Span, TopicSettings
from vq.operations.base.changes import ChangeUnknown
from vq.operations.partitions import placements
from vq.remoting.wire_pb2 import AdoptRequest, PingRequest, SealRequest
from vq.testing.loop import clock_of_loop

pytestmark = pytest.mark.virtual_time


async def test_a_move_seals_adopts_and_then_changes_the_tree(brokers: Brokers) -> None:
    (planned,) = await placements.plan_moves(cluster_of(brokers), "t", [0, 1], "b2")
    assert (planned.placement.partition, planned.source.group) == (0, "b1")
    assert await placements.carry_out(cluster_of(brokers), planned) == 500
    (first, ping), (source, seal), (target, adopt) = brokers.asked
    assert isinstance(ping, PingRequest)
    assert isinstance(seal, SealRequest)
    assert isinstance(adopt, AdoptRequest)
    assert (first, source, target) == (ADDRESS["b2"], ADDRESS["b1"], ADDRESS["b2"])
    assert (source, target) == (ADDRESS["b1"], ADDRESS["b2"])
    assert (adopt.start_offset, adopt.producers) == (500, b"table")
    assert adopt.placement_version == seal.placement_version == planned.version
    view = await topics.describe_topic(brokers.coordinator, "t")
    assert adopt.topic_id == view.id
    assert view.partitions[0].spans == (Span("b1", 0, 500), Span("b2", 500))
    assert await placements.plan_moves(cluster_of(brokers), "t", [0, 1], "b2") == []


@pytest.mark.parametrize("silent", ["b1", "b2"])
async def test_a_broker_that_does_not_answer_leaves_the_tree_as_it_was(
    brokers: Brokers, silent: str
) -> None:
    (planned,) = await placements.plan_moves(cluster_of(brokers), "t", [0], "b2")
    brokers.silent = {ADDRESS[silent]}
    with pytest.raises(TimedOut):
        await placements.carry_out(cluster_of(brokers), planned)
    view = await topics.describe_topic(brokers.coordinator, "t")
    assert view.partitions[0].spans == (Span("b1", 0),)


async def test_nothing_is_sealed_for_a_new_place_that_does_not_answer(brokers: Brokers) -> None:
    (planned,) = await placements.plan_moves(cluster_of(brokers), "t", [0], "b2")
    brokers.silent = {ADDRESS["b2"]}
    with pytest.raises(TimedOut):
        await placements.carry_out(cluster_of(brokers), planned)
    assert not any(isinstance(request, SealRequest) for _, request in brokers.asked)


async def test_a_group_with_another_master_meanwhile_is_said_so(brokers: Brokers) -> None:
    """A switch between the plan and the last step: what to do stands beside the error."""
    (planned,) = await placements.plan_moves(cluster_of(brokers), "t", [0], "b2")
    later = replace(planned, epochs={"b1": planned.epochs["b1"] + 1})
    with pytest.raises(BadVersion, match=r"t-0 was not moved: .* another master") as caught:
        await placements.carry_out(cluster_of(brokers), later)
    assert "repeat the move" in caught.value.hint
    view = await topics.describe_topic(brokers.coordinator, "t")
    assert view.partition_versions[0] > planned.version, "the seal is undone"


async def test_a_failed_move_is_undone_with_a_slow_zookeeper() -> None:
    """Each call takes so long that the usual bound of undoing it would end it."""
    delay_s = 0.0
    ensemble = MemoryEnsemble(clock=clock_of_loop(), delay=lambda: delay_s)
    async with client_of(ensemble) as coordinator:
        for group in ("b1", "b2"):
            await register(coordinator, group)
        await topics.create_topic(coordinator, "t", TopicSettings(partitions=2))
        brokers = Brokers(coordinator)
        (planned,) = await placements.plan_moves(cluster_of(brokers), "t", [0], "b2")
        delay_s = placements.UNDO_TIMEOUT_S / 4
        brokers.silent = {ADDRESS["b1"]}
        await coordinator.sync()
        with pytest.raises(TimedOut):
            await placements.carry_out(cluster_of(brokers), planned)
        view = await topics.describe_topic(coordinator, "t")
        assert view.partition_versions[0] > planned.version


async def test_a_group_with_too_few_nodes_gets_no_partition_that_would_take_nothing(
    brokers: Brokers,
) -> None:
    """Its master would refuse every message; nobody else would tell the operator."""
    settings = TopicSettings(min_insync=2)
    with pytest.raises(CoordinationError, match=r"b1 has 1 node\(s\).*min_insync is 2"):
        await topics.create_topic(brokers.coordinator, "two", settings)
    await topics.create_topic(brokers.coordinator, "two", TopicSettings())
    await topics.change_settings(brokers.coordinator, "two", settings)
    holder = (await topics.describe_topic(brokers.coordinator, "two")).partitions[0].writer_group
    other = "b2" if holder == "b1" else "b1"
    with pytest.raises(InvalidArgument, match="would take no message there"):
        await placements.plan_moves(cluster_of(brokers), "two", [0], other)
    with pytest.raises(CoordinationError, match="min_insync is 2"):
        await placements.plan_emptying(cluster_of(brokers), holder or "")


async def test_a_partition_that_changed_meanwhile_is_not_moved(brokers: Brokers) -> None:
    """The old master took it back (or another mover was faster): the version no longer fits."""
    (planned,) = await placements.plan_moves(cluster_of(brokers), "t", [0], "b2")
    path = "topics/t/partitions/0"
    node = await brokers.coordinator.get(path)
    await brokers.coordinator.set(path, node.data)
    with pytest.raises(BadVersion):
        await placements.carry_out(cluster_of(brokers), planned)


async def test_what_cannot_be_moved_is_refused_before_anything_happens(brokers: Brokers) -> None:
    cluster = cluster_of(brokers)
    coordinator = brokers.coordinator
    with pytest.raises(UnknownTopic):
        await placements.plan_moves(cluster, "other", [0], "b2")
    with pytest.raises(UnknownPartition, match="0 to 1, not 2"):
        await placements.plan_moves(cluster, "t", [2], "b2")
    with pytest.raises(InvalidArgument, match="known: b1, b2"):
        await placements.plan_moves(cluster, "t", [0], "b9")
    await coordinator.create(BrokerGroup.path("b3"), BrokerGroup().encode())
    with pytest.raises(NotMaster, match="'b3' has no running master"):
        await placements.plan_moves(cluster, "t", [0], "b3")
    view = await topics.describe_topic(coordinator, "t")
    await topics.change_placement(coordinator, view, close_span(view.partitions[0], 7))
    with pytest.raises(CoordinationError, match="open on no group"):
        await placements.plan_moves(cluster, "t", [0], "b2")
    assert brokers.asked == []


async def test_a_topic_stays_in_its_pool(brokers: Brokers) -> None:
    await register(brokers.coordinator, "b3", pool="fast")
    await topics.create_topic(brokers.coordinator, "pooled", TopicSettings(pool="fast"))
    with pytest.raises(InvalidArgument, match="pool 'fast'"):
        await placements.plan_moves(cluster_of(brokers), "pooled", [0], "b1")
    with pytest.raises(InvalidArgument, match="the common pool, but group 'b3' is of pool 'fast'"):
        await placements.plan_moves(cluster_of(brokers), "t", [0], "b3")


async def test_moves_are_made_one_after_the_other_and_told(brokers: Brokers) -> None:
    cluster = cluster_of(brokers)
    moves = await placements.plan_moves(cluster, "t", [0], "b2")
    moves += await placements.plan_moves(cluster, "t", [1], "b1")
    assert await placements.move_all(cluster, moves) == [
        placements.Moved("t", 0, "b1", "b2", 500),
        placements.Moved("t", 1, "b2", "b1", 500),
    ]


async def test_a_move_that_fails_leaves_the_rest_where_it_was(brokers: Brokers) -> None:
    cluster = cluster_of(brokers)
    moves = await placements.plan_moves(cluster, "t", [0], "b2")
    moves += await placements.plan_moves(cluster, "t", [1], "b1")
    path = "topics/t/partitions/0"
    await brokers.coordinator.set(path, (await brokers.coordinator.get(path)).data)
    with pytest.raises(BadVersion):
        await placements.move_all(cluster, moves)
    view = await topics.describe_topic(brokers.coordinator, "t")
    assert [each.writer_group for each in view.partitions] == ["b1", "b2"]


async def test_where_the_partitions_of_a_topic_live() -> None:
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=2)
        async with started(cluster) as client:
            found = await placements.partitions_of(client, "t")
    assert [(each.partition, each.writer_group) for each in found] == [(0, "b1"), (1, "b1")]


async def test_a_move_that_was_cut_is_perhaps_done(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(*_: object) -> int:
        raise ConnectionLost("no reply")

    planned = await placements.plan_moves(cluster_of(brokers), "t", [0], "b2")
    monkeypatch.setattr(placements, "carry_out", cut)
    with pytest.raises(ChangeUnknown, match="moving t-0 may or may not"):
        await placements.move_all(cluster_of(brokers), planned)
