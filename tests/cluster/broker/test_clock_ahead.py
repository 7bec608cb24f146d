"""A clock that was ahead for one message: what depends on append times goes on all the same."""

import pytest
from support.archives import done
from support.broker import message
from support.client import factory_of, started
from support.late_clock import LateClock, give_clock, give_wall_clock
from support.node_pair import settled

from vq.broker.partition.ranges import earliest
from vq.client.config import ProducerConfig
from vq.coordination.topics.topics import change_settings
from vq.model import Message, TopicSettings
from vq.operations.partitions import placements
from vq.operations.topics.clocks import plan_new_logs
from vq.testing.waiting import until

ONE = ProducerConfig(partitioner=lambda message, partitions: 0)

pytestmark = pytest.mark.virtual_time

YEAR_H = 8_760.0
HOUR_S = 3_600.0


class SetClock(LateClock):
    """A clock that an operator sets, and that goes on faster than the loop's."""

    def __init__(self, clock) -> None:
        super().__init__(clock, 0.0)
        self.passed_h = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.passed_h * HOUR_S * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_h * HOUR_S


async def ahead(served, **settings: object) -> SetClock:
    """Store a message under a clock that is a year ahead, then some under one that is right."""
    clock = SetClock(served.node.parts.context.clock)
    wanted = TopicSettings(**{"partitions": 2, **settings})
    async with served.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", wanted)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.settings == wanted)
    await served.client.put("t", 0, [message(b"before")])
    log = channel.log
    give_wall_clock(log, clock.wall_ms)
    clock.hours = YEAR_H
    await served.client.put("t", 0, [message(b"ahead")])
    clock.hours = 0.0
    await served.client.put("t", 0, [message(b"behind")])
    assert log.last_append_time_ms > clock.wall_ms() + 300 * 24 * HOUR_S * 1000
    await settled(channel)
    return clock


async def test_retention_deletes_what_was_stored_under_a_clock_that_was_ahead(served) -> None:
    """As old as the time since the broker saw that; also if the clock is set meanwhile."""
    clock = await ahead(served)
    retainer = served.node.parts.upkeep.retainer
    give_clock(retainer, clock)
    log = served.node.parts.partitions.channels["t", 0].log
    for passed_h in (0, 74, 100, 145):
        clock.passed_h = passed_h
        clock.hours = 5_000.0 if passed_h == 100 else 0.0
        await retainer.look()
        if passed_h == 74:
            assert log.open_block is None, "it ends, so that it can go"
        assert log.start_offset == 0
    clock.passed_h = 148
    await retainer.look()
    assert log.start_offset == log.end_offset > 0


async def test_what_was_stored_under_a_clock_that_was_ahead_becomes_an_archive(served) -> None:
    clock = await ahead(served, retention_policy="archive")
    archiver = served.node.parts.upkeep.archiver
    archiver.clock = clock
    log = served.node.parts.partitions.channels["t", 0].log
    async with served.cluster.admin() as coordinator:
        for number, passed_h in enumerate((0, 2, 3, 28)):
            clock.passed_h = passed_h
            found = await done(coordinator, served.node, passed_h, nonce=str(number))
            assert found.total.blocks == (1 if passed_h == 28 else 0)
    assert [each.is_archived for each in log.closed_blocks] == [True]


async def test_a_message_is_found_by_its_id_behind_a_clock_that_was_ahead(served) -> None:
    await ahead(served)
    async with factory_of(served.cluster) as factory:
        async with await factory.create_producer(ONE) as producer:
            sent = await producer.send(Message("t", b"here"))
        found = await factory.admin.find_messages("t", id=sent.id)
    assert [each.content for each in found.messages] == [b"here"]


async def test_a_message_behind_a_clock_that_was_ahead_is_found_in_the_range_it_was_sent_in(
    served,
) -> None:
    """Its append time says little, so the time in its id counts, too, give or take an hour."""
    clock = await ahead(served)
    async with factory_of(served.cluster) as factory:
        async with await factory.create_producer(ONE) as producer:
            sent = await producer.send(Message("t", b"here"))
        now_ms, hour_ms = clock.wall_ms(), 3_600_000

        async def found(since_ms: int | None, until_ms: int | None) -> list[bytes]:
            found = await factory.admin.find_messages(
                "t", since_ms=since_ms, until_ms=until_ms, offsets={0: sent.offset}
            )
            return [each.content for each in found.messages]

        assert await found(now_ms - hour_ms, now_ms + hour_ms) == [b"here"]
        assert await found(None, now_ms + hour_ms) == [b"here"]
        assert await found(now_ms - hour_ms, None) == [b"here"]
        assert await found(now_ms - 9 * hour_ms, now_ms - 5 * hour_ms) == []
        assert await found(None, now_ms - 5 * hour_ms) == []
        assert await found(now_ms + 5 * hour_ms, None) == [b"here"], "by its append time"


async def test_a_node_tells_of_append_times_ahead_of_its_clock(served) -> None:
    assert served.node.parts.partitions.told_problems() == []
    await ahead(served)
    [told] = served.node.parts.partitions.told_problems()
    assert "append times of 1 partition(s) lie ahead of the clock, those of t-0 by 87" in told


async def heal(cluster, topic: str = "t") -> list[int]:
    """Have partitions begin new logs with true times; return which."""
    async with started(cluster) as client:
        planned = await plan_new_logs(client, topic)
        done = await placements.move_all(client, planned)
    return [each.partition for each in done]


async def test_a_partition_begins_a_new_log_with_true_times(served) -> None:
    """Its messages keep their offsets and are found by time; what was stored before is there."""
    clock = await ahead(served)
    channel = served.node.parts.partitions.channels["t", 0]
    end = channel.log.end_offset
    assert await heal(served.cluster) == [0]
    await until(lambda: channel.takes_puts and channel.log.start_offset == end)
    assert (await served.client.put("t", 0, [message(b"true")])).offset > end
    assert channel.log.last_append_time_ms <= clock.wall_ms()
    assert served.node.parts.partitions.told_problems() == []
    assert await heal(served.cluster) == []
    async with factory_of(served.cluster) as factory:
        now_ms = clock.wall_ms()
        found = await factory.admin.find_messages(
            "t", since_ms=now_ms - 60_000, until_ms=now_ms + 60_000, offsets={0: end}
        )
        assert [each.content for each in found.messages] == [b"true"]
        found = await factory.admin.find_messages("t", since_ms=0, offsets={0: 0})
    assert [each.content for each in found.messages] == [b"before", b"ahead", b"behind", b"true"]


async def test_a_resend_is_known_behind_the_begin_of_a_new_log(served) -> None:
    await ahead(served)
    stamp = {"producer_id": 5, "producer_epoch": 0, "sequence": 0}
    first = await served.client.put("t", 0, [message(b"once")], **stamp)
    assert await heal(served.cluster) == [0]
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.takes_puts)
    again = await served.client.put("t", 0, [message(b"once")], **stamp)
    assert again.duplicate
    assert again.offset == first.offset


async def test_a_restart_knows_how_old_the_messages_before_a_new_log_are(served) -> None:
    """At most as old as what follows: no count since the broker's start is needed."""
    clock = await ahead(served)
    await heal(served.cluster)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.takes_puts)
    await served.client.put("t", 0, [message(b"true")])
    channel.log.roll()
    end = channel.log.end_offset
    await settled(channel)
    await served.node.stop()
    node = await served.cluster.start()
    await until(lambda: ("t", 0) in node.parts.partitions.channels and node.epoch > 0)
    channel = node.parts.partitions.channels["t", 0]
    await until(lambda: channel.takes_puts)
    retainer = node.parts.upkeep.retainer
    give_clock(retainer, clock)
    clock.passed_h = 74
    await retainer.look()
    assert earliest(channel) == end


async def test_a_copy_begins_a_new_log_with_its_master(node_pair) -> None:
    """Also one that was away meanwhile, and one that leads later."""
    await node_pair.put(3)
    await until(node_pair.same)
    await node_pair.in_sync()
    log = node_pair.log("n1")
    now_ms = node_pair.nodes["n1"].parts.context.clock.wall_ms
    wall_ms = give_wall_clock(log, lambda: now_ms() + int(YEAR_H * HOUR_S * 1000))
    await node_pair.put(1)
    give_wall_clock(log, wall_ms)
    await node_pair.put(1)
    await until(node_pair.same)
    end = node_pair.log("n1").end_offset
    assert await heal(node_pair.cluster) == [0]
    await until(lambda: node_pair.channel("n1").takes_puts)
    await node_pair.put(2)
    await until(lambda: node_pair.log("n2").start_offset == end)
    await until(node_pair.same)
    await node_pair.stop("n2")
    await node_pair.put(1)
    await node_pair.start("n2")
    await until(node_pair.same)
    await node_pair.in_sync()
    await node_pair.stop("n1")
    await until(lambda: node_pair.nodes["n2"].epoch > 0)
    await node_pair.put(1)
    now_ms = node_pair.nodes["n2"].parts.context.clock.wall_ms()
    assert node_pair.log("n2").last_append_time_ms <= now_ms
    [older] = node_pair.channel("n2").older
    assert (older.start_offset, older.log.end_offset) == (0, end)
    await node_pair.start("n1")
    await until(node_pair.same)
    assert node_pair.log("n1").start_offset == end
