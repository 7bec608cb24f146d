"""A consumer goes on after lost sessions, restarts and pauses, or says that it has ended."""

import asyncio
from collections.abc import Callable

import pytest
from support.broker import MemoryCluster
from support.consumers import (
    ask_for_more,
    consumer_of,
    coordinator_of,
    core_of,
    cut_off_for_long,
    membership_of,
    send,
    take,
    texts,
)

from vq import aio
from vq.client.consumer.deliver.delivery import Delivery
from vq.client.consumer.group.hold_states import Event, State
from vq.coordination.topics import topics
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import (
    CoordinationError,
)
from vq.model import Message, TopicPartition
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def test_it_goes_on_after_a_lost_session(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(1))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    await ask_for_more(consumer)
    await consumer.commit()
    coordinator = coordinator_of(factory)
    assert isinstance(coordinator, MemoryCoordinator)
    cluster.ensemble.expire(coordinator)
    await send(factory, *texts(2))
    first = await take(consumer, 1)
    if first == [b"1"]:  # once more: its commit may have met the end of the session
        first = await take(consumer, 1)
    assert first == [b"2"]


async def test_it_goes_on_after_a_broker_restart(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(1, 2))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    await cluster.nodes["b1"].stop()
    await cluster.start("b1")
    assert await take(consumer, 1) == [b"2"]
    await send(factory, *texts(3))
    assert await take(consumer, 1) == [b"3"]


async def test_after_too_long_without_zookeeper_delivery_pauses_and_goes_on(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(factory)
    await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]
    membership = membership_of(consumer)
    await ask_for_more(consumer)
    await consumer.commit()
    coordinator = cut_off_for_long(cluster, factory, consumer)
    await until(lambda: all(hold.state is State.PAUSED for hold in core_of(consumer).holds))
    cluster.ensemble.reconnect(coordinator)
    await until(lambda: not membership.is_paused)
    await send(factory, *texts(2))
    assert await take(consumer, 1) == [b"2"]


async def test_a_message_in_hand_during_a_pause_holds_up_its_own_partition_alone(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The others go on when ownership is proved, and this one when its listener returns."""
    consumer = await consumer_of(factory, topic="wide")
    await send(factory, *(Message("wide", b"%d" % n, key=str(n)) for n in range(40)))
    messages = aiter(consumer)
    await anext(messages)
    core = core_of(consumer)
    await until(lambda: len(consumer.assignment()) == 4)
    coordinator = cut_off_for_long(cluster, factory, consumer)
    await until(lambda: sum(hold.state is State.PAUSED for hold in core.holds) == 3)
    cluster.ensemble.reconnect(coordinator)
    await until(lambda: sum(hold.state is State.DELIVERING for hold in core.holds) == 3)
    assert [hold.state for hold in core.holds if hold.state is not State.DELIVERING] == [
        State.PAUSING
    ]
    async with asyncio.timeout(WAIT_S):
        for _ in range(39):
            await anext(messages)
    await until(lambda: all(hold.state is State.DELIVERING for hold in core.holds))


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_consumer_whose_session_ended_for_good_says_so(
    factory: aio.MessageFactory, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it waits for a message, has one in hand, or has more that are ready."""
    consumer = await consumer_of(factory)
    messages = aiter(consumer)
    results = await send(factory, *texts(*range(count)))
    waiting = asyncio.ensure_future(anext(messages))
    if count:
        assert (await waiting).content == b"0"
        reading = next(iter(core_of(consumer).holds.readings()))
        await until(lambda: reading.fetcher.position > results[-1].offset)
        waiting = asyncio.ensure_future(asyncio.sleep(0))
    else:
        await until(consumer.assignment)
    coordinator = coordinator_of(factory)
    coordinator.give_up("its clients died")
    async with asyncio.timeout(WAIT_S):
        if not count:
            with pytest.raises(CoordinationError, match="its clients died"):
                await waiting
        for _ in range(2):
            with pytest.raises(CoordinationError, match="its clients died"):
                await anext(messages)
        await until(lambda: consumer.assignment() == [])
        (trouble,) = consumer.troubles().values()
        assert trouble.error is consumer.last_error
        assert isinstance(consumer.last_error, CoordinationError)
        assert caplog.text.count("consumer has ended, no partition goes on") == 1
        await consumer.close()
    assert await anext(messages, None) is None


async def test_a_deleted_topic_ends_nothing_but_itself(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(factory)
    consumer.subscribe("wide")
    await consumer.start()
    await until(lambda: len(consumer.assignment()) == 5)
    async with cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, "wide")
    await until(lambda: len(consumer.assignment()) == 1)
    await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]


async def test_a_partition_whose_stop_fails_is_given_up_at_the_next_try(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(factory, *texts(0, 1))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"0"]
    stop, failed = Delivery.stop, 0

    def stumble(self: Delivery, on_stopped: Callable[[], None]) -> None:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise RuntimeError("a bug")
        stop(self, on_stopped)

    monkeypatch.setattr(Delivery, "stop", stumble)
    core = core_of(consumer)
    hold = core.holds.get(TopicPartition("t", 0))
    assert hold is not None
    with pytest.raises(RuntimeError, match="a bug"):
        await core.drain(hold)
    async with asyncio.timeout(WAIT_S):
        await consumer.close()
    assert failed == 2
    assert consumer.assignment() == []


async def test_a_pause_does_not_bring_back_what_is_given_up(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its message is in hand while ownership comes in doubt; it is handed over all the same."""
    consumer = await consumer_of(factory)
    await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]
    core = core_of(consumer)
    (hold,) = core.holds
    hold.on(Event.GIVE_UP)
    draining = asyncio.create_task(core.drain(hold))
    core.suspend()
    await ask_for_more(consumer)
    async with asyncio.timeout(WAIT_S):
        await draining
    core.resume()
    assert hold.state is State.DRAINING
    hold.on(Event.DRAINED)


async def test_what_was_handled_before_a_pause_is_committed_after_it(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Otherwise the next owner gets it again."""
    consumer = await consumer_of(factory, commit_interval_s=60.0)
    (stored,) = await send(factory, *texts(1))
    assert await take(consumer, 1) == [b"1"]
    await ask_for_more(consumer)
    membership = membership_of(consumer)
    coordinator = cut_off_for_long(cluster, factory, consumer)
    await until(lambda: all(hold.state is State.PAUSED for hold in core_of(consumer).holds))
    cluster.ensemble.reconnect(coordinator)
    await until(lambda: not membership.is_paused)
    await consumer.commit()
    committed = await consumer.get_offset("t")
    assert committed[TopicPartition("t", 0)] > stored.offset
