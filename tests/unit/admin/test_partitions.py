"""Moves and backlogs: what is refused before anything happens, and what is unknown stays so.

The brokers are a table of answers; the tree is the twin's.
"""

from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.coordination import client_of

from vq.admin import partitions as admin
from vq.admin.partitions import Inspector, PartitionEnds
from vq.client.cluster import ClusterClient
from vq.clock import ManualClock
from vq.coordination import topics
from vq.coordination.coordinator import BadVersion, Coordinator
from vq.coordination.memory import MemoryEnsemble
from vq.coordination.paths import BrokerGroup, BrokerNode, GroupState
from vq.coordination.placement import close_span
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    NotMaster,
    TimedOut,
    UnknownPartition,
    UnknownTopic,
)
from vq.model import Address, PartitionPlacement, Span, TopicSettings
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    AdoptRequest,
    AdoptResponse,
    OffsetsRequest,
    OffsetsResponse,
    PingResponse,
    SealRequest,
    SealResponse,
)

EPOCH = 3
ADDRESS = {name: Address("127.0.0.1", port) for port, name in enumerate(("b1", "b2", "b3"), 1)}


class Brokers:
    """Answers requests as the brokers of ``ends`` would; records them in order."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.clock = ManualClock()
        self.asked: list[tuple[Address, Any]] = []
        self.silent: set[Address] = set()
        self.damaged: set[Address] = set()
        self.ends: Mapping[Address, tuple[int, int]] = {}
        self.at_time: Mapping[Address, int] = {}

    async def request(self, address: Address, command: int, message: Any) -> tuple[Any, bytes]:
        self.asked.append((address, message))
        if address in self.silent:
            raise TimedOut(f"{address} is silent")
        if command == Command.SEAL:
            return SealResponse(end_offset=500, producers=b"table"), b""
        if command == Command.ADOPT:
            return AdoptResponse(), b""
        assert isinstance(message, OffsetsRequest)
        earliest, latest = self.ends[address]
        exact = address not in self.damaged
        answer = OffsetsResponse(
            earliest=earliest,
            latest=latest,
            log_end_offset=latest,
            count=(message.to_offset - message.from_offset) // 100 if exact else 0,
            count_exact=exact,
            offset=self.at_time[address] if message.by_time else 0,
        )
        return answer, b""


async def register(coordinator: Coordinator, group: str, *, pool: str | None = None) -> None:
    node = BrokerNode(host=ADDRESS[group].host, port=ADDRESS[group].port)
    await coordinator.create(BrokerGroup.path(group), BrokerGroup(pool=pool).encode(), parents=True)
    path = BrokerNode.path(group, "n1")
    stat = await coordinator.create(path, node.encode(), ephemeral=True, parents=True)
    state = GroupState(epoch=EPOCH, master="n1", insync=("n1",), incarnations={"n1": stat.czxid})
    await coordinator.create(GroupState.path(group), state.encode())


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    """Groups b1 and b2 with masters, and topic ``t`` with partition 0 on b1 and 1 on b2."""
    async with client_of(MemoryEnsemble()) as coordinator:
        for group in ("b1", "b2"):
            await register(coordinator, group)
        await topics.create_topic(coordinator, "t", TopicSettings(partitions=2))
        yield Brokers(coordinator)


def cluster_of(brokers: Brokers) -> ClusterClient:
    face = SimpleNamespace(
        coordinator=brokers.coordinator, clock=brokers.clock, request=brokers.request
    )
    return cast("ClusterClient", face)


async def test_a_move_seals_adopts_and_then_changes_the_tree(brokers: Brokers) -> None:
    (planned,) = await admin.plan_moves(cluster_of(brokers), "t", [0, 1], "b2")
    assert (planned.placement.partition, planned.source.group) == (0, "b1")
    assert await admin.carry_out(cluster_of(brokers), planned) == 500
    (source, seal), (target, adopt) = brokers.asked
    assert isinstance(seal, SealRequest)
    assert isinstance(adopt, AdoptRequest)
    assert (source, target) == (ADDRESS["b1"], ADDRESS["b2"])
    assert (adopt.start_offset, adopt.producers) == (500, b"table")
    assert adopt.placement_version == seal.placement_version == planned.version
    view = await topics.describe_topic(brokers.coordinator, "t")
    assert adopt.topic_id == view.id
    assert view.partitions[0].spans == (Span("b1", 0, 500), Span("b2", 500))
    assert await admin.plan_moves(cluster_of(brokers), "t", [0, 1], "b2") == []


@pytest.mark.parametrize("silent", ["b1", "b2"])
async def test_a_broker_that_does_not_answer_leaves_the_tree_as_it_was(
    brokers: Brokers, silent: str
) -> None:
    (planned,) = await admin.plan_moves(cluster_of(brokers), "t", [0], "b2")
    brokers.silent = {ADDRESS[silent]}
    with pytest.raises(TimedOut):
        await admin.carry_out(cluster_of(brokers), planned)
    view = await topics.describe_topic(brokers.coordinator, "t")
    assert view.partitions[0].spans == (Span("b1", 0),)


async def test_a_partition_that_changed_meanwhile_is_not_moved(brokers: Brokers) -> None:
    """The old master took it back (or another mover was faster): the version no longer fits."""
    (planned,) = await admin.plan_moves(cluster_of(brokers), "t", [0], "b2")
    path = "topics/t/partitions/0"
    node = await brokers.coordinator.get(path)
    await brokers.coordinator.set(path, node.data)
    with pytest.raises(BadVersion):
        await admin.carry_out(cluster_of(brokers), planned)


async def test_what_cannot_be_moved_is_refused_before_anything_happens(brokers: Brokers) -> None:
    cluster = cluster_of(brokers)
    coordinator = brokers.coordinator
    with pytest.raises(UnknownTopic):
        await admin.plan_moves(cluster, "other", [0], "b2")
    with pytest.raises(UnknownPartition, match="0 to 1, not 2"):
        await admin.plan_moves(cluster, "t", [2], "b2")
    with pytest.raises(InvalidArgument, match="known: b1, b2"):
        await admin.plan_moves(cluster, "t", [0], "b9")
    await coordinator.create(BrokerGroup.path("b3"), BrokerGroup().encode())
    with pytest.raises(NotMaster, match="'b3' has no running master"):
        await admin.plan_moves(cluster, "t", [0], "b3")
    view = await topics.describe_topic(coordinator, "t")
    await topics.change_placement(coordinator, view, close_span(view.partitions[0], 7))
    with pytest.raises(CoordinationError, match="open on no group"):
        await admin.plan_moves(cluster, "t", [0], "b2")
    assert brokers.asked == []


async def test_a_topic_stays_in_its_pool(brokers: Brokers) -> None:
    await register(brokers.coordinator, "b3", pool="fast")
    await topics.create_topic(brokers.coordinator, "pooled", TopicSettings(pool="fast"))
    with pytest.raises(InvalidArgument, match="pool 'fast'"):
        await admin.plan_moves(cluster_of(brokers), "pooled", [0], "b1")
    with pytest.raises(InvalidArgument, match="the common pool, but group 'b3' is of pool 'fast'"):
        await admin.plan_moves(cluster_of(brokers), "t", [0], "b3")


PLACEMENT = PartitionPlacement("t", 0, (Span("b1", 0, 500), Span("b2", 500)))


async def test_the_ends_of_a_moved_partition_come_from_both_its_groups(brokers: Brokers) -> None:
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    ends = await Inspector(cluster_of(brokers)).ends(PLACEMENT)
    assert ends == PartitionEnds(100, 900, 900)


@pytest.mark.parametrize("silent", ["b1", "b2"])
async def test_an_end_that_nobody_tells_is_unknown(brokers: Brokers, silent: str) -> None:
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    brokers.silent = {ADDRESS[silent]}
    assert await Inspector(cluster_of(brokers)).ends(PLACEMENT) is None
    assert await Inspector(cluster_of(brokers)).count(PLACEMENT, 100, 900) is None


@pytest.mark.parametrize("ahead_s", [-3.0, 0.0, 3.0])
async def test_a_clock_is_compared_with_the_middle_of_the_round_trip(ahead_s: float) -> None:
    clock = ManualClock(wall_ms=1_000_000)

    async def connection(_: Address) -> None:
        clock.advance(5.0)  # does not count

    async def request(*_: object) -> tuple[PingResponse, bytes]:
        clock.advance(0.1)
        answer = PingResponse(wall_ms=clock.wall_ms() + int(ahead_s * 1000))
        clock.advance(0.1)
        return answer, b""

    face = SimpleNamespace(clock=clock, connection=connection, request=request)
    trip_s, skew_s = await admin.ping(cast("ClusterClient", face), ADDRESS["b1"])
    assert (trip_s, skew_s) == (pytest.approx(0.2), pytest.approx(ahead_s, abs=0.002))


@pytest.mark.parametrize(
    ("first", "second", "found", "asked"),
    [
        (300, 700, 300, ["b1"]),
        (500, 500, 500, ["b1", "b2"]),
        (500, 700, 700, ["b1", "b2"]),
        (500, 900, 900, ["b1", "b2"]),
    ],
)
async def test_a_time_is_looked_for_in_one_group_after_the_other(
    brokers: Brokers, first: int, second: int, found: int, asked: list[str]
) -> None:
    """A group answers with its end when it has nothing that young."""
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    brokers.at_time = {ADDRESS["b1"]: first, ADDRESS["b2"]: second}
    inspector = Inspector(cluster_of(brokers))
    assert await inspector.offset_at_time(PLACEMENT, 5) == found
    assert [address for address, _ in brokers.asked] == [ADDRESS[name] for name in asked]
    brokers.silent = {ADDRESS[asked[-1]]}
    assert await inspector.offset_at_time(PLACEMENT, 5) is None


@pytest.mark.parametrize(
    ("start", "end", "count", "asked"),
    [
        (100, 900, 4 + 4, ["b1", "b2"]),
        (100, 500, 4, ["b1"]),
        (500, 900, 4, ["b2"]),
        (300, 300, 0, []),
    ],
)
async def test_messages_are_counted_where_they_lie(
    brokers: Brokers, start: int, end: int, count: int, asked: list[str]
) -> None:
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    assert await Inspector(cluster_of(brokers)).count(PLACEMENT, start, end) == count
    assert [address for address, _ in brokers.asked] == [ADDRESS[name] for name in asked]
    assert all(request.epoch == EPOCH for _, request in brokers.asked)


@pytest.mark.parametrize("damaged", ["b1", "b2"])
async def test_a_count_that_is_not_exact_is_unknown(brokers: Brokers, damaged: str) -> None:
    """A broker that cannot read what it holds answers 0, and that it is not exact."""
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    brokers.damaged = {ADDRESS[damaged]}
    assert await Inspector(cluster_of(brokers)).count(PLACEMENT, 100, 900) is None
    assert await Inspector(cluster_of(brokers)).ends(PLACEMENT) == PartitionEnds(100, 900, 900)
