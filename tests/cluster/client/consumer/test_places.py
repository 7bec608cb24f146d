"""A group whose log came back shorter, or as another: it is stopped, told, and goes on when reset.

offsets   0 ──── m0 ──── m1 ──── m2 ──── m3 ──── commit
cut       0 ──── m0 ──── m1 ┄┄┄ n0 ┄┄┄ n1 ┄┄┄ n2 ┄┄┄     the same offsets, other messages
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import DATA, MemoryCluster, memory_cluster
from support.client import factory_of, started
from support.consumers import core_of

from vq import aio
from vq.client.config import ConsumerConfig, ProducerConfig, StartPosition
from vq.client.consumer.group.hold_states import State
from vq.client.consumer.place import places
from vq.client.consumer.place.stops import Stops
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import topics
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import (
    CorruptData,
    GroupStopped,
    LogTruncated,
    OffsetOutOfRange,
    ProtocolError,
)
from vq.model import Message, TopicPartition
from vq.operations.groups import resets
from vq.operations.groups.resets import Goal, Target, plan_reset
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time

WHERE = TopicPartition("t", 0)
BLOCK = DATA / "t" / "0" / f"{0:016d}.block"
SIZE = 88 + 20 + 2  # of a batch with one message of two bytes, no tag


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker; four messages in the only partition of ``t``."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        await send(cluster, "m", 4)
        yield cluster


async def send(cluster: MemoryCluster, mark: str, count: int, tag: str | None = None) -> None:
    """Store messages, one batch each, with a producer of its own."""
    async with (
        factory_of(cluster, host="sender", seed=ord(mark)) as factory,
        await factory.create_producer(ProducerConfig(batch_records=1)) as producer,
    ):
        for number in range(count):
            await producer.send(Message("t", f"{mark}{number}".encode(), tag))


async def member(factory: aio.MessageFactory, **settings: Any) -> aio.MessageConsumer:
    """Return a consumer of the group, started."""
    filter_ = settings.pop("message_filter", None)
    config = {"group": "g", "max_wait_s": 0.2, "audit_interval_s": 0.1, **settings}
    consumer = await factory.create_consumer(ConsumerConfig(**config))
    consumer.subscribe("t", message_filter=filter_)
    await consumer.start()
    return consumer


async def take(consumer: aio.MessageConsumer, count: int) -> list[str]:
    """Take so many messages; the last one is consumed when the next is asked for, or at the end."""
    messages = aiter(consumer)
    async with asyncio.timeout(WAIT_S):
        return [(await anext(messages)).content.decode() for _ in range(count)]


async def consume(cluster: MemoryCluster, count: int, **settings: Any) -> list[str]:
    """Consume so many messages with a member of its own, and commit them."""
    async with factory_of(cluster) as factory, await member(factory, **settings) as consumer:
        return await take(consumer, count)


async def crash(cluster: MemoryCluster, *, keep: int) -> None:
    """Kill the broker, keep so many batches of its log, start it again."""
    coordinator = cluster.coordinators["b1"]
    cluster.ensemble.crash(coordinator)
    cluster.network.kill("b1")
    disk = cluster.disks["b1"]
    disk.release_locks()
    file = disk.open(BLOCK)
    file.truncate(keep * SIZE)
    file.datasync()
    file.close()
    await cluster.start()


async def committed(cluster: MemoryCluster) -> CommittedOffset:
    async with cluster.admin() as coordinator:
        return (await ZooKeeperOffsets(coordinator).read("g", ["t"]))[WHERE]


async def until_stopped(cluster: MemoryCluster, consumer: aio.MessageConsumer) -> CommittedOffset:
    """Wait until the consumer says that the group was stopped, and the tree does."""
    await until(lambda: isinstance(consumer.last_error, GroupStopped))

    async def is_there() -> bool:
        return bool((await committed(cluster)).stopped)

    await until_true(is_there)
    assert isinstance(consumer.troubles()[WHERE].error, GroupStopped)
    return await committed(cluster)


async def reset(cluster: MemoryCluster, goal: Goal, *, fence: bool = False) -> None:
    async with started(cluster, host="operator") as client:
        planned = await plan_reset(client, "g", Target(goal=goal), only_stopped=True)
        assert len(planned) == 1
        await resets.reset(client, "g", planned, fence=fence)


async def test_a_commit_says_what_identifies_its_place(cluster: MemoryCluster) -> None:
    """The message before it, its epoch and the topic's id; with them a group goes on as before."""
    assert await consume(cluster, 3) == ["m0", "m1", "m2"]
    value = await committed(cluster)
    channel = cluster.nodes["b1"].parts.partitions.channels[WHERE]
    assert value.topic_id == channel.topic_id
    assert value.message_id
    assert value.epoch == cluster.nodes["b1"].epoch
    assert value.stopped == ""
    await crash(cluster, keep=4)
    assert await consume(cluster, 1) == ["m3"]


async def test_a_group_ahead_of_its_log_is_stopped_and_does_not_jump(
    cluster: MemoryCluster,
) -> None:
    """Not when it finds out, nor when the log has grown past it, nor with the next member."""
    await consume(cluster, 4)
    await crash(cluster, keep=2)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        value = await until_stopped(cluster, consumer)
        assert f"from offset {2 * SIZE} to {4 * SIZE} is gone" in value.stopped
        assert value.offset == 4 * SIZE
        assert "vq group reset g" in str(consumer.last_error)
        await send(cluster, "n", 4)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(aiter(consumer))
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until(lambda: isinstance(consumer.last_error, GroupStopped))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(aiter(consumer))
    assert await committed(cluster) == value
    await reset(cluster, Goal.EARLIEST)
    assert await consume(cluster, 6) == ["m0", "m1", "n0", "n1", "n2", "n3"]


async def test_a_log_that_has_grown_past_a_group_meanwhile_is_another_place(
    cluster: MemoryCluster,
) -> None:
    """The offset is a boundary again; the message before it is another one."""
    await consume(cluster, 3)
    await crash(cluster, keep=2)
    await send(cluster, "n", 3)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        value = await until_stopped(cluster, consumer)
    assert value.offset == 3 * SIZE
    assert f"from offset {2 * SIZE} to {3 * SIZE} is gone" in value.stopped
    await reset(cluster, Goal.LATEST)
    await send(cluster, "o", 1)
    assert await consume(cluster, 1) == ["o0"]


async def test_a_group_without_a_message_before_its_offset_stays_stopped(
    cluster: MemoryCluster,
) -> None:
    """It began at the latest offset and handled nothing: no id tells its place from another."""
    async with (
        factory_of(cluster) as factory,
        await member(factory, start_position=StartPosition.LATEST) as consumer,
    ):
        await until(lambda: consumer.assignment() == [WHERE])
    assert (await committed(cluster)).message_id is None
    await crash(cluster, keep=2)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until_stopped(cluster, consumer)
        await send(cluster, "n", 4)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until(lambda: isinstance(consumer.last_error, GroupStopped))
        assert consumer.assignment() == [WHERE]


@pytest.mark.parametrize("grown", [0, 4])
async def test_a_running_member_notices_that_its_broker_lost_messages(
    cluster: MemoryCluster, grown: int
) -> None:
    """Whether or not the log has grown past it before it reads on."""
    async with factory_of(cluster, host="reader") as reader, await member(reader) as consumer:
        assert await take(consumer, 4) == ["m0", "m1", "m2", "m3"]
        rest = asyncio.ensure_future(take(consumer, 3 + grown))
        await asyncio.sleep(0)
        cluster.network.cut("reader", "b1")
        await crash(cluster, keep=2)
        await send(cluster, "n", grown)
        cluster.network.heal()
        value = await until_stopped(cluster, consumer)
        assert value.offset == 4 * SIZE
        await reset(cluster, Goal.EARLIEST, fence=True)
        await send(cluster, "o", 1)
        assert await rest == ["m0", "m1", *(f"n{n}" for n in range(grown)), "o0"]


async def test_a_place_is_compared_again_after_a_pause(cluster: MemoryCluster) -> None:
    """While a member is without ZooKeeper, its broker may come back with a shorter log."""
    async with factory_of(cluster, host="reader") as reader, await member(reader) as consumer:
        assert await take(consumer, 4) == ["m0", "m1", "m2", "m3"]
        core = core_of(consumer)
        (hold,) = core.holds
        assert core._membership is not None
        rest = asyncio.create_task(take(consumer, 1))
        await until(lambda: hold.reading and hold.reading.progress().position == 4 * SIZE)
        core._membership.is_paused = True
        core.suspend()
        await until(lambda: hold.state is State.PAUSED)
        await crash(cluster, keep=2)
        await send(cluster, "n", 4)
        core.resume()
        assert (await until_stopped(cluster, consumer)).offset == 4 * SIZE
        rest.cancel()


async def test_a_running_member_goes_on_when_its_broker_lost_nothing(
    cluster: MemoryCluster,
) -> None:
    """A restart is no loss: nothing is repeated or skipped."""
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        assert await take(consumer, 2) == ["m0", "m1"]
        await crash(cluster, keep=4)
        await send(cluster, "n", 2)
        assert await take(consumer, 4) == ["m2", "m3", "n0", "n1"]
        assert consumer.troubles() == {}


async def test_a_group_with_a_filter_is_told_by_the_messages_of_its_filter(
    cluster: MemoryCluster,
) -> None:
    """Those that it does not get say nothing about its place."""
    await send(cluster, "a", 1, "red")
    await send(cluster, "b", 3, "blue")
    await send(cluster, "c", 1, "red")
    assert await consume(cluster, 1, message_filter="red") == ["a0"]
    assert await consume(cluster, 1, message_filter="red") == ["c0"]
    await crash(cluster, keep=2)
    await send(cluster, "n", 9, "red")
    async with (
        factory_of(cluster) as factory,
        await member(factory, message_filter="red") as consumer,
    ):
        await until_stopped(cluster, consumer)


async def test_a_commit_of_a_topic_of_that_name_that_was_deleted_is_no_place(
    cluster: MemoryCluster,
) -> None:
    """It may have been left behind, or written by hand; offsets mean nothing in another topic."""
    await consume(cluster, 2)
    value = await committed(cluster)
    async with started(cluster, host="operator") as client:
        old = CommittedOffset(offset=value.offset, message_id=value.message_id, topic_id="0ld")
        await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, old)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        stopped = await until_stopped(cluster, consumer)
    assert "another topic of this name (id 0ld" in stopped.stopped
    await reset(cluster, Goal.EARLIEST)
    assert await consume(cluster, 1) == ["m0"]


async def test_a_commit_of_a_topic_that_was_made_again_is_no_place(
    cluster: MemoryCluster,
) -> None:
    """Also if the new one has the same messages at the same offsets, of the same epoch."""
    await consume(cluster, 2)
    value = await committed(cluster)
    async with started(cluster, host="operator") as client:
        await topics.delete_topic(client.coordinator, "t")
        await until(lambda: WHERE not in cluster.nodes["b1"].parts.partitions.channels)
        await cluster.create_topic("t", partitions=1)
        await send(cluster, "m", 4)
        await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, value)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        stopped = await until_stopped(cluster, consumer)
    assert f"another topic of this name (id {value.topic_id}" in stopped.stopped


async def test_a_commit_of_an_earlier_vq_is_a_place(cluster: MemoryCluster) -> None:
    """It has no epoch and maybe no topic: the message tells. The next commit has all."""
    await consume(cluster, 2)
    value = await committed(cluster)
    async with started(cluster, host="operator") as client:
        old = CommittedOffset(offset=value.offset, message_id=value.message_id)
        await ZooKeeperOffsets(client.coordinator).reset("g", WHERE, old)
    assert await consume(cluster, 2) == ["m2", "m3"]
    last = await committed(cluster)
    assert (last.offset, last.topic_id, last.epoch) == (4 * SIZE, value.topic_id, value.epoch)
    assert value.epoch == 1


async def test_a_place_that_was_not_reached_by_reading_has_no_epoch(
    cluster: MemoryCluster,
) -> None:
    """A seek and a reset do not know it, and say nothing rather than something wrong."""
    await consume(cluster, 1)
    assert (await committed(cluster)).epoch
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until(lambda: consumer.assignment() == [WHERE])
        await consumer.seek(WHERE, 2 * SIZE)
    value = await committed(cluster)
    assert (value.offset, value.epoch, value.message_id) == (2 * SIZE, 0, None)
    assert await consume(cluster, 2) == ["m2", "m3"]
    async with started(cluster, host="operator") as client:
        planned = await plan_reset(client, "g", Target(goal=Goal.EARLIEST))
        assert [each.after.epoch for each in planned] == [0]


async def test_a_place_is_asked_for_until_somebody_answers(cluster: MemoryCluster) -> None:
    """A broker that is away keeps the partition waiting, not given up."""
    await consume(cluster, 2)
    await cluster.nodes["b1"].stop()
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until(lambda: consumer.assignment() == [WHERE])
        await cluster.start()
        assert await take(consumer, 2) == ["m2", "m3"]


async def test_the_trouble_of_asking_for_a_place_ends_with_the_answer(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is to be read: no answer to a FETCH ends it there."""
    await consume(cluster, 4)
    why_another, errors = places.why_another, [CorruptData("bad")]

    async def fail(*arguments: Any) -> str:
        if errors:
            raise errors[0]
        return await why_another(*arguments)

    monkeypatch.setattr(places, "why_another", fail)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until(consumer.troubles)
        errors.clear()
        await until(lambda: not consumer.troubles())
        assert consumer.assignment() == [WHERE]


async def test_a_place_that_is_given_up_is_not_asked_for_any_longer(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker may stay away for ever."""
    await consume(cluster, 1)

    async def why_another(*_: object) -> str:
        return await asyncio.Event().wait() and ""

    monkeypatch.setattr(places, "why_another", why_another)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until(consumer.assignment)
        (reading,) = core_of(consumer).holds.readings()
        checking = reading.task
        assert checking is not None
    await asyncio.wait([checking], timeout=WAIT_S)
    assert checking.cancelled()


async def test_a_loss_that_the_question_itself_shows_ends_the_questions(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is stopped; nobody asks on for ever behind its back."""
    await consume(cluster, 1)

    async def why_another(*_: object) -> str:
        raise OffsetOutOfRange("the log ends before it", details={"latest": 0})

    monkeypatch.setattr(places, "why_another", why_another)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until_stopped(cluster, consumer)
        coroutines = [task.get_coro() for task in asyncio.all_tasks()]
        assert not [each for each in coroutines if "_check_place" in repr(each)]


async def test_a_fenced_member_goes_on_from_the_reset_with_its_next_commit(
    cluster: MemoryCluster,
) -> None:
    """Not with the next audit, which may be far off."""

    async def first_is_committed() -> bool:
        return (await committed(cluster)).offset == SIZE

    async with (
        factory_of(cluster) as factory,
        await member(factory, audit_interval_s=600.0, commit_interval_s=0.05) as consumer,
        started(cluster, host="operator") as operator,
    ):
        assert await take(consumer, 2) == ["m0", "m1"]
        await until_true(first_is_committed)
        planned = await plan_reset(operator, "g", Target(goal=Goal.EARLIEST))
        await resets.reset(operator, "g", planned, fence=True)
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                if message.content == b"m0":
                    break


async def test_a_stop_is_shown_on_when_the_messages_in_hand_go_on(cluster: MemoryCluster) -> None:
    """What was fetched before is handled to its end; something else may keep it for a while."""
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        assert await take(consumer, 1) == ["m0"]
        core = core_of(consumer)
        (reading,) = core.holds.readings()
        core.stops.stop(reading, "the log was cut")
        core.stops.stuck(reading, CorruptData("m1"))
        assert isinstance(consumer.troubles()[WHERE].error, CorruptData)
        core.stops.went_on(reading)
        assert isinstance(consumer.troubles()[WHERE].error, GroupStopped)


async def test_bytes_that_come_again_end_no_trouble_of_the_messages(cluster: MemoryCluster) -> None:
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        assert await take(consumer, 1) == ["m0"]
        core = core_of(consumer)
        (reading,) = core.holds.readings()
        core.stops.fetch_reported(reading, ProtocolError("no answer"))
        core.stops.stuck(reading, CorruptData("m1"))
        core.stops.fetch_reported(reading, None)
        assert isinstance(consumer.troubles()[WHERE].error, CorruptData)
        core.stops.went_on(reading)
        assert consumer.troubles() == {}


async def test_a_reader_by_position_that_was_ahead_of_its_log_is_told(
    cluster: MemoryCluster,
) -> None:
    """It gets an error, not other messages under the same offsets; also when the log has grown."""
    async with factory_of(cluster) as factory:
        consumer = await factory.create_consumer()
        at = 0
        for _ in range(2):
            at = (await consumer.get("t", 0, at, 2 * SIZE))[-1].next_offset
        await crash(cluster, keep=2)
        await send(cluster, "n", 2)
        with pytest.raises(LogTruncated) as caught:
            await consumer.get("t", 0, at, 2 * SIZE)
        assert caught.value.details["parts_at"] == 2 * SIZE
        (found,) = await consumer.get("t", 0, 2 * SIZE, SIZE)
        assert found.content == b"n0"


async def test_a_group_that_was_ahead_of_a_truncation_is_stopped(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the epoch alone: here nobody compares messages."""

    async def same(*_: object) -> str:
        return ""

    monkeypatch.setattr(places, "why_another", same)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        assert await take(consumer, 4) == ["m0", "m1", "m2", "m3"]
        await crash(cluster, keep=2)
        await send(cluster, "n", 3)
        value = await until_stopped(cluster, consumer)
        assert "is gone" in value.stopped


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_seek_at_the_start_hides_no_loss(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, pauses: bool
) -> None:
    """The member's own question is still open, or a pause has ended it."""
    await consume(cluster, 3)
    await crash(cluster, keep=1)
    await send(cluster, "n", 4)
    ask = Stops._check_place

    async def late(*arguments: Any) -> None:
        await asyncio.sleep(1.0)
        await ask(*arguments)

    monkeypatch.setattr(Stops, "_check_place", late)
    async with factory_of(cluster) as factory, await member(factory) as consumer:
        await until(lambda: consumer.assignment() == [WHERE])
        if pauses:
            consumer.pause()
        with pytest.raises(GroupStopped):
            await consumer.seek(WHERE, "earliest")
        consumer.resume()
        await until_stopped(cluster, consumer)
    assert (await committed(cluster)).offset == 3 * SIZE
