"""Many sends at once, as ``asyncio.gather`` starts them: each costs what one of a few costs."""

import asyncio
import gc
import sys
from types import FrameType
from typing import Any

import pytest
from support.producers import core_of, producer_of

from vq import aio
from vq.client.producer.intake.stages import Stages
from vq.model import Message

pytestmark = pytest.mark.virtual_time

FEW = 200
MANY = 20 * FEW


async def calls_per_send(factory: aio.MessageFactory, count: int) -> float:
    """Send ``count`` messages at once through a buffer of ``FEW``; return the calls for each."""
    producer = await producer_of(factory, buffer_messages=FEW)
    await producer.publish("t")
    calls = 0

    def note(_frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sends = [producer.send(Message("t", b"x" * 100)) for _ in range(count)]
    sys.setprofile(note)
    try:
        results = await asyncio.gather(*sends)
    finally:
        sys.setprofile(None)
    await producer.close()
    assert len({(each.partition, each.offset) for each in results}) == count
    return calls / count


async def test_a_send_among_many_makes_few_more_calls_than_one_among_few(
    factory: aio.MessageFactory,
) -> None:
    """Those beyond the buffer wait for space: that is one more wait, and no second try."""
    few, many = await calls_per_send(factory, FEW), await calls_per_send(factory, MANY)
    print(f"calls per send: {few:.0f} of {FEW}, {many:.0f} of {MANY}")
    assert many < 2 * few


async def test_a_message_that_waits_for_space_is_prepared_once(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its serializer, its checks and its compression run when there is space."""
    producer = await producer_of(factory, buffer_messages=2)
    await producer.publish("t")
    prepare, prepared = Stages.prepare, 0

    def counted(self: Any, *args: Any) -> Any:
        nonlocal prepared
        prepared += 1
        return prepare(self, *args)

    monkeypatch.setattr(Stages, "prepare", counted)
    count = 50
    await asyncio.gather(
        *(producer.send(Message("t", b"%d" % n, key=f"ä{n}")) for n in range(count))
    )
    assert prepared == count


async def objects_per_send(producer: aio.MessageProducer, count: int) -> float:
    """Return how many objects of the garbage collector each of ``count`` waiting sends has."""
    before = len(gc.get_objects())
    messages = [Message("t", b"x") for _ in range(count)]
    tasks = [asyncio.ensure_future(producer.send(message)) for message in messages]
    for _ in range(3):
        await asyncio.sleep(0)
    found = (len(gc.get_objects()) - before) / count
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return found


async def test_a_send_that_waits_has_few_objects(factory: aio.MessageFactory) -> None:
    """The garbage collector visits those of all waiting sends, again and again.

    About eight are asyncio's: the task with its context, and what its loop keeps of it.
    """
    producer = await producer_of(factory, buffer_messages=1)
    await producer.publish("t")
    core = core_of(producer)
    core.cluster.ids_ready = False  # nothing can be sent now
    first = asyncio.ensure_future(producer.send(Message("t", b"x")))
    await asyncio.sleep(0)
    for_space = await objects_per_send(producer, 500)
    print(f"objects of a send that waits for space: {for_space:.1f}")
    assert for_space <= 15
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    await first
