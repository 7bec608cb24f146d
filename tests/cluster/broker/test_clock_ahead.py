"""A clock that was ahead for one message: what depends on append times goes on all the same."""

import pytest
from support.archives import done
from support.broker import message
from support.client import factory_of
from support.late_clock import LateClock
from support.node_pair import settled
from support.waiting import until

from vq.client.config import ProducerConfig
from vq.coordination.topics import change_settings
from vq.model import Message, TopicSettings

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
    clock = SetClock(served.node._clock)
    wanted = TopicSettings(**{"partitions": 2, **settings})
    async with served.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", wanted)
    channel = served.node._partitions.channels["t", 0]
    await until(lambda: channel.settings == wanted)
    await served.client.put("t", 0, [message(b"before")])
    log = channel.log
    log._wall_ms = clock.wall_ms
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
    retainer = served.node._monitor._watched.retainer
    retainer._clock = clock
    log = served.node._partitions.channels["t", 0].log
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
    archiver = served.node._monitor._watched.archiver
    archiver._clock = clock
    log = served.node._partitions.channels["t", 0].log
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


async def test_a_node_tells_of_append_times_ahead_of_its_clock(served) -> None:
    assert served.node._partitions.told_problems() == []
    await ahead(served)
    [told] = served.node._partitions.told_problems()
    assert "append times of 1 partition(s) lie ahead of the clock, those of t-0 by 87" in told
