"""The producer's core against a broker in memory: every message gets its outcome, once."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import started
from support.producers import (
    client_of,
    core_of,
    ended,
    producer_of,
    published,
    queue_of,
    send,
    space,
    stored,
)

from vq import aio
from vq.client.producer.intake import accumulator, appender
from vq.client.producer.spread.partitioner import key_partition
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import (
    InvalidState,
    NotPublished,
    NotSent,
    PermissionRefused,
)
from vq.model import Message, SendResult
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def test_messages_are_stored_and_told_where(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    results = [await producer.send(Message("t", b"%d" % n, key="k")) for n in range(5)]
    assert len({result.partition for result in results}) == 1
    assert sorted(result.offset for result in results) == [result.offset for result in results]
    assert await stored(factory) == [b"0", b"1", b"2", b"3", b"4"]


async def test_callbacks_get_the_result_or_the_error_once(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    told: list[tuple[Any, Any]] = []
    await producer.send_async(Message("t", b"1"), lambda *outcome: told.append(outcome))
    await producer.flush()
    core = core_of(producer)
    core.cluster.ids_ready = False  # nothing can be sent now
    await producer.send_async(Message("t", b"2"), lambda *outcome: told.append(outcome), 0.05)
    await until(lambda: len(told) == 2)
    assert told[0][0].partition in {0, 1}
    assert told[0][1] is None
    assert told[1][0] is None
    assert isinstance(told[1][1], NotSent)


class Failed(BaseException):
    """As gevent's time-outs and the failures of test frameworks: no ``Exception``."""


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), Failed(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("make", [appender.make_appender, appender.PythonAppender])
@pytest.mark.parametrize("stored", [True, False])
async def test_whatever_a_callback_raises_its_neighbours_get_their_outcome(
    factory: aio.MessageFactory,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    make: Any,
    stored: bool,
) -> None:
    """Once; the connection stays, and the buffer gets its space back."""
    monkeypatch.setattr(accumulator, "make_appender", make)
    core = await published(factory)
    await ended(send(core, Message("t", b"first")))
    (master,) = (each.address for each in core.cluster.routes.masters.values())
    connection = core.cluster.live_connection(master)
    assert connection is not None
    core.cluster.ids_ready = stored
    told: list[bytes] = []

    def callback(number: int) -> Any:
        def tell(*_: object) -> None:
            told.append(b"%d" % number)
            if number % 2:
                raise raised

        return tell

    timeout = None if stored else 0.05
    futures = [send(core, Message("t", b"%d" % n), callback(n), timeout) for n in range(6)]
    await core.flush()
    assert {type(future.outcome) for future in futures} == {SendResult if stored else NotSent}
    assert sorted(told) == [b"%d" % n for n in range(6)]
    assert not connection.closed
    assert core.cluster.live_connection(master) is connection
    assert space(core) == core.config.buffer_bytes
    core.cluster.ids_ready = True
    assert (await ended(send(core, Message("t", b"last")))).id > 0
    await core.close()


async def test_a_send_carries_the_epoch_of_the_master_it_was_made_for(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    producer = await producer_of(factory)
    await producer.send(Message("t", b"x"))
    await producer.send(Message("t", b"x"))
    master = client_of(factory).routes.master("b1")
    assert master is not None
    queues = core_of(producer).accumulator.topics["t"].queues
    assert {queue.epoch for queue in queues} == {master[1]}
    assert master[1] > 0
    await producer.close()


async def test_a_topic_that_is_not_writable_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("frozen", writable=False)
    producer = await producer_of(factory)
    with pytest.raises(PermissionRefused, match="frozen"):
        await producer.send(Message("frozen", b"x"))


async def test_a_topic_must_be_published_before_the_core_takes_anything(
    factory: aio.MessageFactory,
) -> None:
    core = core_of(await producer_of(factory))
    with pytest.raises(NotPublished):
        send(core, Message("t", b"x"))


async def test_wrong_clock_tells_the_reason_and_heals(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No id can be made; the message is not lost without a word, the next ones are sent."""
    core = await published(factory)
    assert core.cluster.ids_ready
    with monkeypatch.context() as wrong:
        wrong.setattr(core.cluster.clock, "wall_ms", lambda: 0)
        outcome = await ended(send(core, Message("t", b"x")))
    assert isinstance(outcome, NotSent)
    assert "clock" in str(outcome)
    result = await ended(send(core, Message("t", b"y")))
    assert result.id > 0
    await core.close()


async def test_a_coordinator_that_gave_up_ends_sending_with_its_reason(
    factory: aio.MessageFactory,
) -> None:
    """Without it there will be no ids: nobody waits for a deadline in vain."""
    core = await published(factory)
    assert (await ended(send(core, Message("t", b"before")))).offset > 0
    coordinator = core.cluster.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    coordinator.give_up("its clients died")
    begin = asyncio.get_running_loop().time()
    for _ in range(3):
        outcome = await ended(send(core, Message("t", b"x"), None, 60.0))
        assert isinstance(outcome, NotSent)
        assert "its clients died" in str(outcome)
    assert asyncio.get_running_loop().time() - begin < 5
    assert await stored(factory) == [b"before"]


async def test_a_bug_in_one_queue_stops_neither_the_others_nor_the_deadlines(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = await published(factory)

    def stumble(*_: object) -> None:
        raise RuntimeError("a bug")

    broken, sound = (
        next(key for key in "abcdefgh" if key_partition(key, 2) == number) for number in (0, 1)
    )
    monkeypatch.setattr(queue_of(core, 0), "next_to_send", stumble)
    first = send(core, Message("t", b"x", key=broken), None, 0.05)
    second = send(core, Message("t", b"x", key=sound))
    assert isinstance(await ended(first), NotSent)
    assert (await ended(second)).partition == 1
    assert "sending from a queue failed" in caplog.text
    await core.close()


async def test_waiting_for_an_outcome_on_the_loop_is_refused(factory: aio.MessageFactory) -> None:
    """It would keep the loop from getting it."""
    producer = await producer_of(factory)
    for message in (Message("t", b"x"), Message("t", b"x", key="k")):
        future = await producer.send_async(message)
        with pytest.raises(InvalidState, match="event loop"):
            future.result()
        await ended(future)
        assert future.result().id > 0


async def test_shutdown_waits_for_a_producer_that_another_task_is_closing(
    cluster: MemoryCluster,
) -> None:
    """Also if another producer was made since."""
    async with started(cluster) as client:
        factory = aio.MessageFactory.on_cluster(client)
        producer = await producer_of(factory)
        await producer.publish("t")
        client.ids_ready = False  # nothing can be sent
        future = await producer.send_async(Message("t", b"x"))
        closing = asyncio.create_task(producer.close())
        await until(lambda: producer.closed)
        await producer_of(factory)
        ending = asyncio.create_task(factory.shutdown())
        for _ in range(100):
            await asyncio.sleep(0)
        client.ids_ready = True
        client.changed()
        await asyncio.gather(closing, ending)
        assert isinstance(future.outcome, SendResult)


async def test_a_cancelled_send_is_sent_nevertheless(factory: aio.MessageFactory) -> None:
    """Only the wait ends: the message was accepted."""
    producer = await producer_of(factory)
    await producer.publish("t")
    core_of(producer).cluster.ids_ready = False  # nothing can be sent now
    call = asyncio.create_task(producer.send(Message("t", b"x")))
    await until(lambda: space(core_of(producer)) < producer.config.buffer_bytes)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    core_of(producer).cluster.ids_ready = True
    await producer.flush()
    assert await stored(factory) == [b"x"]
