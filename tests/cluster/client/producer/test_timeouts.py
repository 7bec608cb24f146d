"""The time-out of a send: what it may be, and what a message gets once it has passed."""

import asyncio
import math
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.producers import core_of, ended, producer_of, published, send, space

from vq import aio
from vq.client.producer.send import sender
from vq.errors import (
    BatchFailed,
    InvalidArgument,
    NotSent,
    Refused,
)
from vq.model import Message, SendResult
from vq.remoting import broker_connection
from vq.testing.waiting import WAIT_S, until


async def test_no_broker_within_the_deadline_means_not_sent(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory, send_timeout_s=600.0)
    cluster.network.kill("b1")
    begin = asyncio.get_running_loop().time()
    outcome = await ended(send(core, Message("t", b"x"), None, 0.2))
    assert isinstance(outcome, Refused), "no connection, hence no doubt"
    assert 0.15 < asyncio.get_running_loop().time() - begin < WAIT_S


ENDLESS = [math.inf, 1e300, 10**400, 2.0**63]


@pytest.mark.parametrize("timeout", ENDLESS, ids=repr)
async def test_an_endless_time_out_is_as_good_as_a_long_one(
    factory: aio.MessageFactory, timeout: Any
) -> None:
    producer = await producer_of(factory)
    assert (await producer.send(Message("t", b"1"), timeout)).id > 0
    future = await producer.send_async(Message("t", b"2", key="k"), timeout=timeout)
    assert (await ended(future)).id > 0
    assert future.deadline < math.inf
    core = core_of(producer)
    blocking = await asyncio.to_thread(core.send_blocking, Message("t", b"3"), timeout)
    assert blocking.result(0).id > 0
    consumer = await factory.create_consumer()
    assert len(await consumer.get("t", 0, 0, 1 << 20, timeout)) > 0


@pytest.mark.parametrize("timeout", [math.nan, "1", [], None.__class__], ids=repr)
async def test_a_time_out_that_is_no_number_is_refused(
    factory: aio.MessageFactory, timeout: Any
) -> None:
    """Not-a-number most of all: no deadline of its batch would ever pass."""
    producer = await producer_of(factory)
    consumer = await factory.create_consumer()
    for published_before in (False, True):
        for call in (
            producer.send(Message("t", b"x"), timeout),
            producer.send_async(Message("t", b"x"), timeout=timeout),
            producer.send_async(Message("t", b"x", key="k"), timeout=timeout),
            consumer.get("t", 0, 0, 1 << 20, timeout),
        ):
            with pytest.raises(InvalidArgument, match="timeout"):
                await call
        if not published_before:
            await producer.publish("t")
    assert space(core_of(producer)) == producer.config.buffer_bytes


async def test_a_time_out_of_0_waits_for_no_routes(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await producer_of(factory)
    for call in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(NotSent, match="t is not published, and a time-out of 0 s"):
            await call(Message("t", b"x"), timeout=0)
    with pytest.raises(BatchFailed) as failed:
        await producer.send_batch([Message("t", b"x")], timeout=0)
    assert "is not published" in str(failed.value.outcomes[0])
    await producer.publish("t")
    # On a busy machine the sender might look at deadlines before it sees the answer.
    monkeypatch.setattr(core_of(producer).sender, "tick", lambda: None)
    assert (await producer.send(Message("t", b"x"), timeout=0)).id > 0, "the broker is at hand"


async def test_a_time_out_of_0_waits_for_no_answer_to_other_messages(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on a new connection either, where larger batches wait for the first one's answer."""
    monkeypatch.setattr(broker_connection, "FIRST_ANSWER_S", 1e6)
    monkeypatch.setattr(sender, "SILENCE_S", 1e6)
    await cluster.create_topic("async", partitions=1, flush="async")
    core = await published(factory)
    await core.publish("async")
    # As above: deadlines have to be looked at behind the answer.
    monkeypatch.setattr(core.sender, "tick", lambda: None)
    cluster.flushers["b1"].held = True
    first = send(core, Message("t", b"x"))
    await until(lambda: any(queue.in_flight for queue in core.accumulator.queues()))
    try:
        outcome = await ended(send(core, Message("async", b"x"), None, 0))
        assert isinstance(outcome, SendResult)
        assert not first.done()
    finally:
        monkeypatch.undo()
        cluster.flushers["b1"].release()
    assert isinstance(await ended(first), SendResult)


async def test_a_time_out_below_zero_has_gone_by(factory: aio.MessageFactory) -> None:
    core = await published(factory)
    core.cluster.ids_ready = False
    for timeout in (-1, -math.inf, -(10**400), 0):
        assert isinstance(await ended(send(core, Message("t", b"x"), None, timeout)), NotSent)
    assert space(core) == core.config.buffer_bytes
