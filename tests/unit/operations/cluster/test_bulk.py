"""Many facts with few requests: what is there, what cannot be read, what no broker tells."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.admin import ADDRESS, Brokers, cluster_of
from support.coordination import deny_reading

from vq.coordination.tree.values.brokers import GroupState
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
)
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import CorruptData, InvalidArgument, NotMaster, TimedOut
from vq.message_filter import ALL, Filter
from vq.model import PartitionPlacement, Span, TopicPartition
from vq.operations.cluster import bulk
from vq.operations.cluster.bulk import GroupTopic, MeasuredRange, MessageRange
from vq.operations.partitions.offsets import PartitionEnds
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    GetResponse,
    OffsetsResponse,
    PartitionStatus,
    StatusRequest,
    StatusResponse,
)


async def put(brokers: Brokers, path: str, data: bytes, *, ephemeral: bool = False) -> None:
    await brokers.coordinator.create(path, data, ephemeral=ephemeral, parents=True)


# Groups and topics ----------------------------------------------------------------------------
async def test_contracts_of_all_groups_are_read_with_those_that_cannot_be(
    brokers: Brokers,
) -> None:
    contract = ConsumerGroup(model="broadcasting", start="latest", topics={"t": Filter(("a", "b"))})
    await put(brokers, ConsumerGroup.path("g"), contract.encode())
    await put(brokers, Member.path("g", "m1"), Member().encode(), ephemeral=True)
    await put(brokers, ConsumerGroup.path("broken"), b"{")
    await put(brokers, Member.path("young", "m1"), Member().encode(), ephemeral=True)
    await put(brokers, "consumers/<b>", ConsumerGroup().encode())
    found = {each.group: each for each in await bulk.read_contracts(cluster_of(brokers))}
    assert list(found) == ["<b>", "broken", "g", "young"]
    assert found["g"].topics == {"t": "a || b"}
    assert (found["g"].model, found["g"].start, found["g"].members) == (
        "broadcasting",
        "latest",
        1,
    )
    assert not found["g"].error
    assert "consumers/broken" in found["broken"].error
    assert "is not a valid name" in found["<b>"].error
    assert (found["young"].topics, found["young"].members, found["young"].error) == ({}, 1, "")


async def test_topics_in_any_phase_are_told_with_those_that_cannot_be_read(
    brokers: Brokers,
) -> None:
    await put(brokers, TopicNode.path("broken"), b"no topic")
    [broken, t] = await bulk.read_topic_states(cluster_of(brokers))
    assert "topics/broken" in broken.error
    assert (t.topic, t.partitions, t.phase, t.writable, t.readable, t.error) == (
        "t",
        2,
        "ready",
        True,
        True,
        "",
    )
    assert [each.group for each in await bulk.list_broker_groups(cluster_of(brokers))] == [
        "b1",
        "b2",
    ]


# Partitions -----------------------------------------------------------------------------------
async def test_a_partition_that_is_missing_or_damaged_has_its_error(brokers: Brokers) -> None:
    await brokers.coordinator.set(Partition.path("t", 1), b"{}")
    found = await bulk.read_placements(cluster_of(brokers), {"t": 3})
    assert [each.partition for each in found] == [0, 1, 2]
    assert found[0].placement == PartitionPlacement("t", 0, (Span("b1", 0),))
    assert found[1].placement is found[2].placement is None
    assert "is not a partition" in found[1].error
    assert "is missing" in found[2].error


async def test_places_have_offset_owner_and_what_stops_it(brokers: Brokers) -> None:
    committed = CommittedOffset(offset=700, time_ms=5, member="m1", topic_id="x")
    owner = Owner(member="m1", stopped="ListenerFailed", stopped_at=700, stopped_since_ms=9)
    await put(brokers, CommittedOffset.path("g", "t", 0), committed.encode())
    await put(brokers, Owner.path("g", "t", 0), owner.encode(), ephemeral=True)
    await put(brokers, CommittedOffset.path("g", "t", 1), b"{}")
    wanted = [
        GroupTopic(group="g", topic="t", partitions=2),
        GroupTopic(group="other", topic="t", partitions=1, has_members=False),
    ]
    first, second, third = await bulk.read_places(cluster_of(brokers), wanted)
    assert (first.group, first.topic, first.partition) == ("g", "t", 0)
    assert (first.committed, first.owner) == (committed, "m1")
    assert (first.stopped, first.stopped_since_ms) == ("ListenerFailed", 9)
    assert second.committed is None
    assert "is not a offset" in second.error
    assert (third.group, third.committed, third.owner, third.error) == ("other", None, None, "")


async def test_a_node_that_may_not_be_read_is_told_where_it_belongs(brokers: Brokers) -> None:
    """One row of many has its error; the others have what they have."""
    committed = CommittedOffset(offset=7, time_ms=5, member="m")
    for group in ("g", "h"):
        await put(brokers, ConsumerGroup.path(group), ConsumerGroup(topics={"t": ALL}).encode())
        await put(brokers, Member.path(group, "m"), Member().encode(), ephemeral=True)
        for number in (0, 1):
            path = CommittedOffset.path(group, "t", number)
            await put(brokers, path, committed.encode())
    cluster = cluster_of(brokers)
    wanted = [GroupTopic(group=each, topic="t", partitions=2) for each in ("g", "h")]

    deny_reading(brokers.coordinator, CommittedOffset.path("g", "t", 1))
    found = await bulk.read_places(cluster, wanted)
    assert [each.committed for each in found] == [committed, None, committed, committed]
    assert [bool(each.error) for each in found] == [False, True, False, False]
    assert "does not allow this to vq: 'consumers/g/offsets/t/1'" in found[1].error

    deny_reading(brokers.coordinator, Partition.path("t", 0))
    first, second = await bulk.read_placements(cluster, {"t": 2})
    assert first.placement is None
    assert "topics/t/partitions/0" in first.error
    assert second.placement is not None
    fresh = GroupTopic(group="new", topic="t", partitions=2, with_younger=True)
    assert [bool(each.error) for each in await bulk.read_places(cluster, [fresh])] == [True, False]

    deny_reading(brokers.coordinator, Member.parent("g"))
    deny_reading(brokers.coordinator, ConsumerGroup.path("h"))
    deny_reading(brokers.coordinator, TopicNode.path("t"))
    g, h = await bulk.read_contracts(cluster)
    assert "consumers/g/members" in g.error
    assert "'consumers/h'" in h.error
    [topic] = await bulk.read_topic_states(cluster)
    assert "'topics/t'" in topic.error


async def test_who_leads_a_broker_group_may_be_unreadable(brokers: Brokers) -> None:
    deny_reading(brokers.coordinator, GroupState.path("b1"))
    with pytest.raises(NotMaster, match="the master of broker group b1 cannot be read"):
        await bulk.bounds_on(cluster_of(brokers), "b1")


async def test_a_partition_that_came_after_the_group_is_younger(brokers: Brokers) -> None:
    await put(brokers, Assignment.path("g", "t", 0), Assignment(member="m").encode())
    data = (await brokers.coordinator.get(Partition.path("t", 1))).data
    await brokers.coordinator.delete(Partition.path("t", 1))
    await put(brokers, Partition.path("t", 1), data)
    asked = GroupTopic(group="g", topic="t", partitions=2, with_younger=True)
    fresh = GroupTopic(group="never", topic="t", partitions=2, with_younger=True)
    found = await bulk.read_places(cluster_of(brokers), [asked, fresh])
    assert [each.younger for each in found] == [False, True, False, False]


async def test_ten_thousand_places_cost_a_request_for_each_two_hundred_nodes(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    read = brokers.coordinator.get_many

    async def counted(paths: Any) -> Any:
        calls.append(len(paths))
        return await read(paths)

    monkeypatch.setattr(brokers.coordinator, "get_many", counted)
    wanted = [
        GroupTopic(group=f"g{number}", topic="t", partitions=100, has_members=False)
        for number in range(100)
    ]
    found = await bulk.read_places(cluster_of(brokers), wanted)
    assert len(found) == 10_000
    assert calls == [200] * 50


# Brokers --------------------------------------------------------------------------------------
class Statuses:
    """A broker that tells its partitions, two in each answer."""

    def __init__(self, brokers: Brokers, *told: PartitionStatus, master: bool = True) -> None:
        self.coordinator, self.clock = brokers.coordinator, brokers.clock
        self._told, self._master = told, master

    async def request(self, _address: Any, command: int, asked: Any) -> tuple[Any, bytes]:
        assert command == Command.STATUS
        assert isinstance(asked, StatusRequest)
        after = (asked.after_topic, asked.after_partition)
        left = [each for each in self._told if not after[0] or (each.topic, each.partition) > after]
        answer = StatusResponse(
            group="b1", master=self._master, partitions=left[:2], more=len(left) > 2
        )
        return answer, b""


def status(number: int, state: str = "rw") -> PartitionStatus:
    return PartitionStatus(
        topic="t",
        partition=number,
        log_start_offset=number,
        high_watermark=number + 100,
        log_end_offset=number + 200,
        state=state,
    )


async def test_the_ends_of_all_partitions_of_a_broker_come_in_few_answers(
    brokers: Brokers,
) -> None:
    told = [status(0), status(1, "failed"), status(2, "closed"), status(3), status(4)]
    cluster: Any = Statuses(brokers, *told)
    assert await bulk.bounds_on(cluster, "b1") == {
        TopicPartition("t", 0): PartitionEnds(0, 100, 200),
        TopicPartition("t", 1): None,
        TopicPartition("t", 2): PartitionEnds(2, 102, 202),
        TopicPartition("t", 3): PartitionEnds(3, 103, 203),
        TopicPartition("t", 4): PartitionEnds(4, 104, 204),
    }


async def test_a_broker_that_tells_the_same_partitions_again_is_not_asked_for_ever(
    brokers: Brokers,
) -> None:
    async def request(*_: Any) -> tuple[Any, bytes]:
        return StatusResponse(group="b1", master=True, partitions=[status(0)], more=True), b""

    cluster: Any = SimpleNamespace(coordinator=brokers.coordinator, request=request)
    with pytest.raises(CorruptData, match="does not get behind"):
        await bulk.bounds_on(cluster, "b1")


async def test_a_node_that_does_not_lead_is_not_believed(brokers: Brokers) -> None:
    cluster: Any = Statuses(brokers, status(0), master=False)
    with pytest.raises(NotMaster, match="does not lead broker group b1"):
        await bulk.bounds_on(cluster, "b1")
    with pytest.raises(NotMaster, match="has no master"):
        await bulk.bounds_on(cluster, "b9")
    brokers.silent = {ADDRESS["b2"]}
    with pytest.raises(TimedOut):
        await bulk.bounds_on(cluster_of(brokers), "b2")


async def test_equal_ranges_are_measured_once_and_a_silent_broker_is_unknown(
    brokers: Brokers,
) -> None:
    brokers.ends = {ADDRESS["b1"]: (0, 900), ADDRESS["b2"]: (0, 900)}
    brokers.silent = {ADDRESS["b2"]}
    on_b1 = PartitionPlacement("t", 0, (Span("b1", 0),))
    on_b2 = PartitionPlacement("t", 1, (Span("b2", 0),))
    ranges = [
        MessageRange(on_b1, 100, 900),
        MessageRange(on_b2, 100, 900),
        MessageRange(on_b1, 900, 900),
        MessageRange(on_b1, 100, 900),
    ]
    counts = [0]

    async def request(address: Any, command: int, message: Any) -> tuple[Any, bytes]:
        if command == Command.GET:
            raise TimedOut("no ages here")
        counts[0] += 1
        return await brokers.request(address, command, message)

    cluster: Any = SimpleNamespace(
        coordinator=brokers.coordinator, clock=brokers.clock, request=request
    )
    found = await bulk.measure(cluster, ranges[1:3], at_once=1)
    assert found == [MeasuredRange(None, None), MeasuredRange(0, 0.0)]
    found = await bulk.measure(cluster_of(brokers), [], count=False)
    assert found == []
    with pytest.raises(InvalidArgument, match="at_once = 0 is outside"):
        await bulk.measure(cluster, ranges, at_once=0)


async def test_a_range_of_batches_without_messages_has_no_age(brokers: Brokers) -> None:
    """It is no silent broker: the age is that of nothing."""

    async def request(_address: Any, command: int, _asked: Any) -> tuple[Any, bytes]:
        if command == Command.GET:
            return GetResponse(), b""
        return OffsetsResponse(count=0, count_exact=True), b""

    cluster: Any = SimpleNamespace(
        coordinator=brokers.coordinator, clock=brokers.clock, request=request
    )
    wanted = MessageRange(PartitionPlacement("t", 0, (Span("b1", 0),)), 100, 900)
    assert await bulk.measure(cluster, [wanted]) == [MeasuredRange(0, 0.0)]
    assert await bulk.measure(cluster, [wanted], count=False) == [MeasuredRange(None, None)]


@pytest.mark.parametrize("partitions", [-1, 4_097, 20_000_000])
async def test_no_more_partitions_are_read_than_a_topic_may_have(
    brokers: Brokers, partitions: int
) -> None:
    """Whoever asks says how many there are: that is no reason to read so many nodes."""
    cluster = cluster_of(brokers)
    wanted = GroupTopic(group="g", topic="t", partitions=partitions)
    with pytest.raises(InvalidArgument, match="outside"):
        await bulk.read_placements(cluster, {"t": partitions})
    with pytest.raises(InvalidArgument, match="outside"):
        await bulk.read_places(cluster, [wanted])
