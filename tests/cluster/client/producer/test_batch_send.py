"""``send_batch`` and one-way sends against a broker in memory."""

import asyncio

import pytest
from support.broker import MemoryCluster
from support.producers import SMALLEST_BUFFER, core_of, producer_of, space, stored, stored_in

import vq
from vq import aio
from vq.errors import (
    BatchFailed,
    BufferFull,
    InvalidArgument,
    InvalidState,
    NotSent,
    UnknownTopic,
    VqError,
)
from vq.model import Message, SendResult
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def numbered(count: int, size: int = 0) -> list[Message]:
    return [Message("t", b"%05d" % n + b"x" * size) for n in range(count)]


async def test_a_batch_is_stored_in_its_order_and_told_where(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory, batch_records=100)
    messages = numbered(1_000)
    results = await producer.send_batch(messages)
    (partition,) = {result.partition for result in results}
    assert [result.offset for result in results] == sorted({result.offset for result in results})
    assert await stored_in(factory, partition) == [message.content for message in messages]
    other = await producer.send_batch(iter(messages))
    assert {result.partition for result in other} == {1 - partition}
    assert space(core_of(producer)) == producer.config.buffer_bytes


@pytest.mark.parametrize(
    "bound", [{"buffer_messages": 7}, {"buffer_bytes": SMALLEST_BUFFER}], ids=str
)
async def test_a_batch_larger_than_the_buffer_waits_for_space(
    factory: aio.MessageFactory, bound: dict[str, int]
) -> None:
    """Also with ``when_full="raise"``, since the caller waits for the outcomes anyway."""
    producer = await producer_of(factory, when_full="raise", **bound)
    messages = numbered(50, 60_000)
    results = await producer.send_batch(messages)
    assert len(results) == 50
    assert await stored_in(factory, results[0].partition) == [each.content for each in messages]


async def test_a_partitioner_that_raises_refuses_one_message_of_a_batch(
    factory: aio.MessageFactory,
) -> None:
    def choose(message: Message, _: object) -> int:
        return {b"00000": 0, b"00002": 1}[message.content]

    producer = await producer_of(factory, partitioner=choose)
    with pytest.raises(BatchFailed) as failed:
        await producer.send_batch(numbered(3))
    kinds = [type(each) for each in failed.value.outcomes]
    assert kinds == [SendResult, InvalidArgument, SendResult]
    assert await stored(factory) == [b"00000", b"00002"]


async def test_each_message_of_a_batch_has_its_own_outcome(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    wrong = Message("t", "text")  # type: ignore[arg-type]
    with pytest.raises(BatchFailed) as failed:
        await producer.send_batch([*numbered(2), Message("nowhere", b"x"), wrong, *numbered(1)])
    assert [type(each) for each in failed.value.outcomes] == [
        SendResult, SendResult, UnknownTopic, InvalidArgument, SendResult
    ]  # fmt: skip
    assert failed.value.stored == [0, 1, 4]
    assert failed.value.refused == [2, 3]
    assert len(await stored(factory)) == 3


async def test_a_batch_has_one_deadline(factory: aio.MessageFactory) -> None:
    """What was accepted is not sent in time, and the rest finds no space in time."""
    producer = await producer_of(factory, buffer_messages=4)
    await producer.publish("t")
    core_of(producer).cluster.ids_ready = False  # nothing can be sent now
    with pytest.raises(BatchFailed) as failed:
        await producer.send_batch(numbered(6), timeout=0.3)
    assert [type(each) for each in failed.value.outcomes] == [NotSent] * 4 + [BufferFull] * 2
    assert space(core_of(producer)) == producer.config.buffer_bytes
    metrics = producer.metrics()
    assert (metrics.messages_accepted, metrics.buffer_full) == (4, 2)
    assert metrics.buffer_waits >= 1


async def test_a_cancelled_batch_is_sent_nevertheless(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    await producer.publish("t")
    core_of(producer).cluster.ids_ready = False
    call = asyncio.create_task(producer.send_batch(numbered(3)))
    await until(lambda: space(core_of(producer)) < producer.config.buffer_bytes)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    core_of(producer).cluster.ids_ready = True
    await producer.flush()
    assert len(await stored(factory)) == 3


async def test_a_closed_producer_takes_no_batch(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    await producer.close()
    with pytest.raises(InvalidState):
        await producer.send_batch(numbered(1))
    with pytest.raises(InvalidState):
        await producer.send_oneway(numbered(1)[0])


async def test_one_way_messages_are_stored_and_counted(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    for message in numbered(20):
        sent = await producer.send_oneway(message)  # type: ignore[func-returns-value]
        assert sent is None
    await producer.close()
    total = producer.metrics().total
    assert (total.messages_stored, total.messages_refused, total.messages_unknown) == (20, 0, 0)
    assert sorted(await stored(factory)) == [each.content for each in numbered(20)]


async def test_one_way_messages_that_are_not_stored_are_counted_and_logged(
    factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await producer_of(factory)
    await producer.publish("t")
    core_of(producer).cluster.ids_ready = False
    for message in numbered(20):
        await producer.send_oneway(message, timeout=0.05)
    await producer.close()
    total = producer.metrics().total
    assert (total.messages_stored, total.messages_refused, total.messages_unknown) == (0, 20, 0)
    (line,) = [line for line in caplog.messages if "one-way" in line]
    assert "topic=t count=20 outcome=refused cause=NotSent" in line


async def test_a_one_way_message_that_is_not_accepted_is_refused_at_once(
    factory: aio.MessageFactory, cluster: MemoryCluster
) -> None:
    producer = await producer_of(factory)
    with pytest.raises(UnknownTopic):
        await producer.send_oneway(Message("nowhere", b"x"))
    with pytest.raises(InvalidArgument):
        await producer.send_oneway(b"none")  # type: ignore[arg-type]
    assert producer.metrics().messages_accepted == 0


class Notes(vq.ProducerInterceptor):
    """Notes what passes, and the outcomes."""

    def __init__(self) -> None:
        self.before: list[bytes] = []
        self.after: list[str] = []

    def before_send(self, message: Message) -> Message:
        self.before.append(message.content)
        return message._replace(tag="seen")

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        assert message.tag == "seen"
        self.after.append(type(result or error).__name__)


async def test_interceptors_see_every_message_of_a_batch_once(factory: aio.MessageFactory) -> None:
    notes = Notes()
    producer = await producer_of(factory, interceptors=(notes,), buffer_messages=2)
    await producer.publish("t")
    await producer.send_batch(numbered(3))
    assert (notes.before, notes.after) == ([b"00000", b"00001", b"00002"], ["SendResult"] * 3)
    notes.after.clear()
    core_of(producer).cluster.ids_ready = False
    with pytest.raises(BatchFailed) as failed:
        await producer.send_batch([*numbered(3), Message("t", "text")], timeout=0.1)  # type: ignore[arg-type]
    names = [type(each).__name__ for each in failed.value.outcomes]
    # The time of all is over at once: the third one may get the space of the others just then.
    assert names[2] in {"BufferFull", "NotSent"}
    assert names[:2] + names[3:] == ["NotSent", "NotSent", "InvalidArgument"]
    assert sorted(notes.after) == sorted(names)
    notes.after.clear()
    call = asyncio.create_task(producer.send_batch(numbered(3), timeout=30.0))
    await until(lambda: core_of(producer).sender.space_line.waiting)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert notes.after == ["NotSent"], "the third; the others were accepted"
    core_of(producer).cluster.ids_ready = True
    await producer.flush()
    assert notes.after == ["NotSent", "SendResult", "SendResult"]
