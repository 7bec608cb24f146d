"""Messages found by id, key, tag and time: what is found, and that no gap is silent."""

import asyncio
import errno
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.late_clock import give_wall_clock

from vq import aio
from vq.broker.serving import finding as broker_finding
from vq.client.config import ProducerConfig
from vq.errors import InvalidArgument, MessageTooLarge, UnknownPartition, UnknownTopic
from vq.model import Message, SendResult, time_ms_of
from vq.operations.messages import finding
from vq.operations.messages.searched import FoundMessages, GapKind
from vq.store.log.piece import Piece
from vq.store.records.format import CONTROL_BYTES
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

COUNT = 12


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    return two_groups


async def send(factory: aio.MessageFactory, numbers: Any, pause_s: float = 1.0) -> list[SendResult]:
    """Send messages one by one; each third has a tag, each has a key, by turns of three kinds."""
    config = ProducerConfig(
        batch_records=1, partitioner=lambda message, partitions: int(message.content) % 2
    )
    sent = []
    async with await factory.create_producer(config) as producer:
        for number in numbers:
            key = (f"k{number}", b"k%d" % number, number)[number % 3]
            tag = "red" if number % 3 == 0 else None
            sent.append(await producer.send(Message("t", b"%d" % number, tag=tag, key=key)))
            await asyncio.sleep(pause_s)
    return sent


def numbers(found: FoundMessages) -> list[int]:
    return [int(each.content) for each in found.messages]


async def test_a_message_is_found_by_its_id(factory: aio.MessageFactory) -> None:
    """All that it has comes with it; the answer says what was searched."""
    sent = await send(factory, range(COUNT))
    found = await factory.admin.find_messages("t", id=sent[5].id)
    (message,) = found.messages
    assert message[:5] == ("t", b"5", None, 5, None)
    assert (message.partition, message.offset, message.id) == sent[5]
    assert message.next_offset > message.offset
    assert message.append_time_ms is not None
    assert found.complete
    assert found.stopped is None
    born = time_ms_of(sent[5].id)
    assert (found.since_ms, found.until_ms) == (born - 3_600_000, born + 3_600_000)
    ends = await factory.admin.bounds("t")
    for each in found.searched:
        end = ends[each.partition]
        assert end is not None
        assert (each.start, each.end, each.next_offset) == (0, end.latest, end.latest)
        assert (each.read_bytes, each.skipped_bytes, each.gaps) == (end.latest, 0, ())
        assert each.first_ms is not None
        assert each.last_ms is not None
        assert each.first_ms < each.last_ms


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"key": "k3"}, [3]),
        ({"key": b"k4"}, [4]),
        ({"key": 5}, [5]),
        ({"key": "k4"}, []),
        ({"key": b"5"}, []),
        ({"tag": "red"}, [0, 3, 6, 9]),
        ({"tag": "red || blue"}, [0, 3, 6, 9]),
        ({"tag": "blue"}, []),
        ({"key": "k3", "tag": "red"}, [3]),
        ({"key": 5, "tag": "red"}, []),
        ({"tag": "red", "partitions": [1]}, [3, 9]),
        ({"since_ms": 0}, list(range(COUNT))),
    ],
)
async def test_messages_are_found_that_have_all_that_is_given(
    factory: aio.MessageFactory, wish: dict[str, Any], expected: list[int]
) -> None:
    """In the order in which they were sent."""
    await send(factory, range(COUNT))
    found = await factory.admin.find_messages("t", **wish)
    assert numbers(found) == expected
    assert found.complete


async def test_times_bound_what_is_searched(factory: aio.MessageFactory) -> None:
    """From the first batch stored at or after one time to the last one before the other."""
    await send(factory, range(COUNT))
    whole = await factory.admin.find_messages("t", since_ms=0)
    times = [each.append_time_ms or 0 for each in whole.messages]
    found = await factory.admin.find_messages("t", since_ms=times[3], until_ms=times[7])
    assert numbers(found) == [3, 4, 5, 6]
    for each, before in zip(found.searched, whole.searched, strict=True):
        assert 0 < each.start < each.next_offset < before.next_offset
    assert [(each.first_ms, each.last_ms) for each in found.searched] == [
        (times[4], times[6]),
        (times[3], times[5]),
    ]
    found = await factory.admin.find_messages("t", since_ms=times[10], tag="red")
    assert (numbers(found), found.complete) == ([], True)
    found = await factory.admin.find_messages("t", until_ms=times[1], key="k0")
    assert numbers(found) == [0]
    later = await factory.admin.find_messages("t", since_ms=times[-1] + 1)
    assert (numbers(later), later.complete) == ([], True)
    assert all(each.start == each.end == each.next_offset for each in later.searched)


async def test_an_id_is_looked_for_around_its_time_and_further_when_asked(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that a producer stored much later is found with a wider range."""
    monkeypatch.setattr(finding, "AROUND_MS", 10_000)
    sent = await send(factory, [0], pause_s=0)
    await asyncio.sleep(20)
    await send(factory, range(1, COUNT))
    (late,) = (await factory.admin.find_messages("t", key=5)).messages
    early = time_ms_of(sent[0].id)
    found = await factory.admin.find_messages("t", id=sent[0].id)
    assert numbers(found) == [0]
    assert found.searched[0].next_offset < late.offset + 10_000
    assert found.until_ms == early + 10_000
    assert not (await factory.admin.find_messages("t", id=late.id, until_ms=early + 1)).messages
    assert numbers(await factory.admin.find_messages("t", id=late.id, since_ms=0)) == [5]


@pytest.mark.parametrize("limit", [1, 5, 7, 11])
async def test_a_search_stops_at_a_limit_and_goes_on(
    factory: aio.MessageFactory, limit: int
) -> None:
    """Nothing is found twice and nothing is missed, though partitions are searched at once."""
    await send(factory, range(COUNT), pause_s=0)
    offsets: dict[int, int] | None = None
    got: list[int] = []
    for _ in range(COUNT + 2):
        found = await factory.admin.find_messages("t", since_ms=0, offsets=offsets, limit=limit)
        assert len(found.messages) <= limit
        got += numbers(found)
        offsets = found.rest
        if not offsets:
            break
        assert found.stopped == "limit"
        assert not found.complete
    assert sorted(got) == list(range(COUNT))
    assert found.complete


async def test_a_search_stops_after_so_many_bytes(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vq.store.care.walk.STEP_BYTES_MIN", 130)
    monkeypatch.setattr("vq.store.care.walk.STEP_BYTES_MAX", 130)
    await send(factory, range(COUNT), pause_s=0)
    found = await factory.admin.find_messages("t", key="nobody", max_bytes=1)
    assert (found.stopped, found.complete) == ("bytes", False)
    assert found.rest


async def test_a_search_stops_when_its_time_is_up(factory: aio.MessageFactory) -> None:
    await send(factory, range(COUNT), pause_s=0)
    found = await factory.admin.find_messages("t", key="nobody", timeout=0)
    assert (found.stopped, found.rest, found.gaps) == ("timeout", {0: 0, 1: 0}, [])


async def test_a_broker_that_hangs_holds_a_search_no_longer_than_its_time(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """What the others found counts; the rest is left, and is no gap."""
    await send(factory, range(COUNT), pause_s=0)
    begun = asyncio.get_running_loop().time()
    with cluster.runners["b2"].held():
        found = await factory.admin.find_messages("t", since_ms=0, timeout=1.5)
    assert asyncio.get_running_loop().time() - begun < 2
    assert numbers(found) == [0, 2, 4, 6, 8, 10]
    assert (found.stopped, found.rest, found.gaps) == ("timeout", {1: 0}, [])


async def test_what_a_broker_that_is_away_has_is_a_gap(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The others are searched all the same."""
    await send(factory, range(COUNT))
    await cluster.nodes["b2"].stop()
    found = await factory.admin.find_messages("t", since_ms=0)
    assert numbers(found) == [0, 2, 4, 6, 8, 10]
    ((partition, gap),) = found.gaps
    assert (partition, gap.start, gap.end, gap.kind) == (1, 0, None, GapKind.UNREACHABLE)
    assert "b2" in gap.reason
    assert not found.complete
    assert not found.rest
    assert found.searched[1].end is None


async def test_a_broker_that_is_away_is_waited_for_once(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Not once for each of its partitions."""
    await cluster.create_topic("many", partitions=40)
    await cluster.nodes["b2"].stop()
    begun = asyncio.get_running_loop().time()
    found = await factory.admin.find_messages("many", since_ms=0)
    assert asyncio.get_running_loop().time() - begun < 12
    assert len(found.gaps) == 20


async def served_up_to(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, offset: int, for_s: float
) -> None:
    """Have b1 serve less of ``t-0`` once its end was asked for, as a new master may."""
    channel = cluster.nodes["b1"].parts.partitions.channels["t", 0]
    bounds = finding.ClusterSearch._bounds

    async def then_take_over(self: Any, work: Any, span: Any) -> int:
        end = await bounds(self, work, span)
        if work.partition.partition == 0:
            before, channel.high_watermark = channel.high_watermark, offset
            asyncio.get_running_loop().call_later(
                for_s, lambda: setattr(channel, "high_watermark", before)
            )
        return end

    monkeypatch.setattr(finding.ClusterSearch, "_bounds", then_take_over)


async def test_what_a_new_master_does_not_serve_yet_is_waited_for(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await send(factory, range(COUNT), pause_s=0)
    await served_up_to(cluster, monkeypatch, sent[6].offset - CONTROL_BYTES, for_s=5.0)
    found = await all_of(factory)
    assert sorted(numbers(found)) == list(range(COUNT))
    assert found.complete


async def test_what_a_new_master_does_not_serve_is_a_gap(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told as searched."""
    sent = await send(factory, range(COUNT), pause_s=0)
    at = sent[6].offset - CONTROL_BYTES
    end = (await all_of(factory)).searched[0].end
    await served_up_to(cluster, monkeypatch, at, for_s=1e6)
    found = await all_of(factory)
    assert sorted(numbers(found)) == [each for each in range(COUNT) if each % 2 or each < 6]
    ((partition, gap),) = found.gaps
    assert (partition, gap.start, gap.end, gap.kind) == (0, at, end, GapKind.UNREACHABLE)
    assert not found.complete


async def test_a_group_with_a_clock_that_is_behind_is_searched_too(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """What precedes its range in the partition may have been stored later by the other clock."""
    await send(factory, range(4))
    plan = await factory.admin.plan_moves("t", [0], "b2")
    await factory.admin.move(plan)
    there = cluster.nodes["b2"].parts.partitions.channels["t", 0]
    await until(lambda: there.log is not None)
    wall_ms = there.context.clock.wall_ms
    give_wall_clock(there.log, lambda: wall_ms() - 60_000)
    await send(factory, [4, 6])
    whole = await all_of(factory)
    times = {int(each.content): each.append_time_ms or 0 for each in whole.messages}
    assert times[6] < times[0]
    found = await factory.admin.find_messages("t", until_ms=times[0], partitions=[0])
    assert numbers(found) == [4, 6]
    found = await factory.admin.find_messages("t", until_ms=times[4], partitions=[0])
    assert (numbers(found), found.complete) == ([], True)
    assert found.searched[0].start == found.searched[0].next_offset == 0


async def test_a_broker_that_dies_in_the_middle_leaves_a_gap_from_there_on(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found before counts."""
    await send(factory, range(COUNT), pause_s=0)
    monkeypatch.setattr(broker_finding, "ANSWER_S", 0.0)
    search_some = finding.ClusterSearch.search_some

    async def stop_then_search(self: Any, work: Any, end: int) -> None:
        if work.partition.partition == 1 and work.position > 0:
            await cluster.nodes["b2"].stop()
        await search_some(self, work, end)

    monkeypatch.setattr(finding.ClusterSearch, "search_some", stop_then_search)
    monkeypatch.setattr("vq.limits.FIND_MESSAGES_MAX", 2)
    found = await factory.admin.find_messages("t", since_ms=0)
    got = numbers(found)
    assert [each for each in got if each % 2 == 0] == [0, 2, 4, 6, 8, 10]
    assert [each for each in got if each % 2] == [1, 3]
    ((partition, gap),) = found.gaps
    assert partition == 1
    assert gap.start == found.searched[1].next_offset > 0
    assert gap.kind is GapKind.UNREACHABLE


async def test_a_moved_partition_is_searched_at_each_of_its_brokers(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """One that moved away and came back, too; and a range that ends where a span does."""
    sent = 4
    await send(factory, range(sent))
    for group in ("b2", "b1", "b2"):
        plan = await factory.admin.plan_moves("t", [0], group)
        await factory.admin.move(plan)
        await send(factory, range(sent, sent + 4))
        sent += 4
    found = await all_of(factory)
    assert sorted(numbers(found)) == list(range(16))
    assert found.complete
    assert found.gaps == []
    (one,) = (await factory.admin.find_messages("t", since_ms=0, partitions=[0])).searched
    assert one.start == 0
    assert one.read_bytes == one.next_offset == one.end
    times = [each.append_time_ms or 0 for each in found.messages]
    middle = await factory.admin.find_messages("t", since_ms=times[2], until_ms=times[13])
    assert numbers(middle) == list(range(2, 13))
    await cluster.nodes["b1"].stop()
    found = await all_of(factory)
    assert {partition for partition, _ in found.gaps} == {0}
    ends = [(gap.start, gap.end) for _, gap in found.gaps]
    spans = (await factory.admin.placements("t"))[0].spans
    assert ends == [(span.start, span.end) for span in spans if span.group == "b1"]


async def all_of(factory: aio.MessageFactory) -> FoundMessages:
    return await factory.admin.find_messages("t", since_ms=0)


async def test_damage_is_a_gap_and_the_rest_is_searched(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    sent = await send(factory, range(COUNT), pause_s=0)
    log = cluster.nodes["b1"].parts.partitions.channels["t", 0].log
    assert log is not None
    (piece,) = log.reader.pieces(0, log.end_offset)
    file = cluster.disks["b1"].open(piece.path)
    file.pwrite([b"\xff\xff"], sent[4].offset + 20)
    file.close()
    found = await factory.admin.find_messages("t", since_ms=0)
    assert sorted(numbers(found)) == [each for each in range(COUNT) if each != 4]
    ((partition, gap),) = found.gaps
    assert (partition, gap.kind) == (0, GapKind.DAMAGED)
    assert gap.start == sent[4].offset - CONTROL_BYTES
    assert str(piece.path) in gap.reason
    assert not found.complete


async def test_damage_that_another_node_has_intact_is_no_gap(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The search has the broker look at it, which repairs it; a moment later it is searched."""
    sent = await send(factory, range(COUNT), pause_s=0)
    await cluster.start("b1", node="n2")
    channels = cluster.nodes["b1-n2"].parts.partitions.channels
    master = cluster.nodes["b1"].parts.partitions.channels["t", 0]
    await until(lambda: ("t", 0) in channels and channels["t", 0].log is not None)
    await until(lambda: channels["t", 0].log.end_offset == master.log.end_offset)
    (piece,) = master.log.reader.pieces(0, master.log.end_offset)
    file = cluster.disks["b1"].open(piece.path)
    file.pwrite([b"\xff\xff"], sent[4].offset + 20)
    file.pwrite([b"\xff\xff"], sent[8].offset + 20)
    file.close()
    found = await factory.admin.find_messages("t", since_ms=0)
    assert numbers(found) == list(range(COUNT))
    assert (found.complete, found.gaps) == (True, [])


async def test_what_a_broker_cannot_reach_now_is_a_gap_of_its_own_kind(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damaged, as far as anybody knows."""
    await send(factory, range(COUNT), pause_s=0)

    def away(self: Any, disk: Any) -> Any:
        raise OSError(errno.EHOSTUNREACH, "no route to the archive")

    monkeypatch.setattr(Piece, "open", away)
    found = await factory.admin.find_messages("t", since_ms=0, partitions=[0])
    ((_, gap),) = found.gaps
    assert (gap.start, gap.end) == (0, found.searched[0].end)
    assert gap.kind is GapKind.UNREACHABLE
    assert gap.reason.startswith("no route to the archive")
    assert (found.complete, found.rest) == (False, {})


async def test_what_was_deleted_is_a_gap_and_the_search_is_complete(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Unless it is too old to be asked for."""
    await send(factory, range(4))
    node = cluster.nodes["b1"]
    channel = node.parts.partitions.channels["t", 0]
    assert channel.log is not None
    channel.log.roll()
    end = channel.log.end_offset
    await send(factory, range(4, COUNT))
    await node.parts.partitions.logs.drop_before(channel, end)
    found = await factory.admin.find_messages("t", since_ms=0, partitions=[0])
    assert numbers(found) == [4, 6, 8, 10]
    ((_, gap),) = found.gaps
    assert (gap.start, gap.end, gap.kind) == (0, end, GapKind.DELETED)
    assert found.complete
    young = found.messages[1].append_time_ms
    found = await factory.admin.find_messages("t", since_ms=young, partitions=[0])
    assert (numbers(found), found.gaps) == ([6, 8, 10], [])


async def test_a_topic_of_which_all_was_deleted_is_complete(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, range(4))
    node = cluster.nodes["b1"]
    channel = node.parts.partitions.channels["t", 0]
    assert channel.log is not None
    channel.log.roll()
    end = channel.log.end_offset
    await node.parts.partitions.logs.drop_before(channel, end)
    for wish in ({"key": "k0"}, {"since_ms": 1}):
        found = await factory.admin.find_messages("t", partitions=[0], **wish)  # type: ignore[arg-type]
        ((_, gap),) = found.gaps
        assert (gap.start, gap.end, gap.kind) == (0, end, GapKind.DELETED)
        assert (found.complete, found.messages) == (True, ())


async def test_messages_that_are_sent_during_a_search_do_not_prolong_it(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(factory, range(4), pause_s=0)
    search_some = finding.ClusterSearch.search_some
    more = iter(range(4, 1_000))

    async def send_then_search(self: Any, work: Any, end: int) -> None:
        await send(factory, [next(more), next(more)], pause_s=0)
        await search_some(self, work, end)

    monkeypatch.setattr(finding.ClusterSearch, "search_some", send_then_search)
    found = await factory.admin.find_messages("t", since_ms=0)
    assert found.complete
    assert set(range(4)) <= set(numbers(found)) < set(range(12))


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"id": 0},
        {"id": 2**63},
        {"id": "5"},
        {"key": ""},
        {"key": 1.5},
        {"key": 2**63},
        {"tag": ""},
        {"tag": "a", "limit": 0},
        {"tag": "a", "limit": 100_001},
        {"tag": "a", "max_bytes": 0},
        {"tag": "a", "timeout": "soon"},
        {"since_ms": -1},
        {"since_ms": 5, "until_ms": 5},
        {"tag": "a", "offsets": {0: -1}},
        {"tag": "a", "offsets": {0: 1}, "partitions": [1]},
    ],
)
async def test_what_cannot_be_asked_is_refused(
    factory: aio.MessageFactory, wish: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument):
        await factory.admin.find_messages("t", **wish)


async def test_what_is_not_there_is_refused(factory: aio.MessageFactory) -> None:
    with pytest.raises(UnknownTopic):
        await factory.admin.find_messages("none", tag="a")
    for wish in ({"partitions": [2]}, {"offsets": {-1: 0}}):
        with pytest.raises(UnknownPartition):
            await factory.admin.find_messages("t", tag="a", **wish)  # type: ignore[arg-type]
    with pytest.raises(MessageTooLarge):
        await factory.admin.find_messages("t", key="k" * 40_000)


async def test_a_topic_without_messages_is_searched(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    found = await factory.admin.find_messages("t", tag="a")
    assert (found.messages, found.complete) == ((), True)
    assert [each.end for each in found.searched] == [0, 0]
