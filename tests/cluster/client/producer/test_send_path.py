"""How straight the way of a blocking send is, from the application to the socket."""

import asyncio
import sys
from types import FrameType
from typing import Any

from support.producers import core_of, producer_of

from vq import MessageProducer, aio
from vq.client.runtime import LoopThread
from vq.model import Message, SendResult
from vq.remoting.memory_stream import MemoryStream
from vq.testing.waiting import until

#: Python calls of a plain message, without a key, until its bytes are handed to the connection.
CALLS_MAX = 50


def calls_of(producer: MessageProducer, message: Message) -> list[str]:
    """Send a message in this thread; return each Python call until the connection has the bytes."""
    calls: list[str] = []
    last = MemoryStream.send.__code__
    sent = False

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal sent
        if event == "call" and not sent:
            calls.append(f"{frame.f_globals['__name__']}:{frame.f_code.co_qualname}")
            sent = frame.f_code is last

    sys.setprofile(note)
    try:
        result = producer.send_sync(message)
    finally:
        sys.setprofile(None)
    assert isinstance(result, SendResult)
    assert sent, "the thread does the round trip itself"
    return calls


async def test_a_blocking_send_takes_few_calls_to_the_socket(factory: aio.MessageFactory) -> None:
    """Each call costs a thread time in which no other one runs."""
    core = core_of(await producer_of(factory))
    await core.publish("t")
    runtime = LoopThread("test")
    try:
        producer = MessageProducer(core, runtime)
        each = []
        for _ in range(3):  # the first one connects; on a slow machine another one may do so again
            await until(lambda: not core.accumulator.awake)
            each.append(await asyncio.to_thread(calls_of, producer, Message("t", b"x")))
        calls = min(each, key=len)
        print(f"{len(calls)} calls:", *calls, sep="\n")
        assert len(calls) <= CALLS_MAX
        assert not core.accumulator.awake, "the loop has nothing to do"
    finally:
        runtime.stop()
    await core.close()


async def test_a_thread_that_waits_for_its_own_answer_leaves_its_batch_to_nobody(
    factory: aio.MessageFactory,
) -> None:
    """Only a handler of a signal that waits has the loop send it once more."""
    core = core_of(await producer_of(factory))
    await core.publish("t")
    runtime = LoopThread("test")
    try:
        producer = MessageProducer(core, runtime)
        for _ in range(5):
            await asyncio.to_thread(producer.send_sync, Message("t", b"x"))
            await asyncio.to_thread(producer.send_batch, [Message("t", b"x")] * 3)
        total = producer.metrics().total
        assert (total.messages_stored, total.resends) == (20, 0)
    finally:
        runtime.stop()
    await core.close()
