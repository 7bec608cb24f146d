"""Attempts to send a batch: a late answer settles nothing; what is given up frees its space."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.producers import client_of, ended, published, send, space
from support.timers import NotedTimers

from vq import aio
from vq.client.config import MESSAGE_OVERHEAD_BYTES
from vq.client.ids import IdsUsedUp
from vq.errors import (
    Busy,
    ConnectionCut,
    MessageTooLarge,
    NotSent,
    UnknownProducer,
    VqError,
)
from vq.model import Message
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import encode_error
from vq.remoting.wire_pb2 import PutRequest, PutResponse
from vq.testing.waiting import until


class Wire:
    """A connection whose answers the test gives, in any order and as late as it likes."""

    def __init__(self) -> None:
        self.sent: list[tuple[PutRequest, Any]] = []

    def waits_s(self) -> float:
        return 0.0

    def send(self, command: int, header: bytes, body: bytes, on_reply: Any) -> int:
        assert command == Command.PUT
        self.sent.append((PutRequest.FromString(header), on_reply))
        return len(self.sent)

    def afterwards(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def stored(self, number: int, offset: int) -> None:
        header = PutResponse(offset=offset).SerializeToString()
        self.sent[number][1](Frame(Command.PUT, 0, 1, 0, header, b""))

    def refused(self, number: int, error: VqError) -> None:
        status, header = encode_error(error)
        self.sent[number][1](Frame(Command.PUT, status, 1, 0, header, b""))

    def stamps(self, begin: int = 0) -> list[tuple[int, int]]:
        return [(header.producer_epoch, header.sequence) for header, _ in self.sent[begin:]]


@pytest.fixture
def wire(factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(client_of(factory), "live_connection", lambda _: wire)
    return wire


@pytest.mark.parametrize("late", [UnknownProducer("late"), MessageTooLarge("late"), None], ids=repr)
async def test_an_answer_to_an_earlier_attempt_settles_nothing(
    factory: aio.MessageFactory, wire: Wire, late: VqError | None
) -> None:
    """Three batches on their way; the first is refused as of an unknown producer, all are sent
    again under the next epoch, and then come the answers to the first attempts of the others."""
    core = await published(factory, batch_records=1, retry_backoff_s=0.001)
    futures = [core.append_any(Message("t", b"%d" % n, key="k")) for n in range(3)]
    await until(lambda: len(wire.sent) == 3)
    assert wire.stamps() == [(0, 0), (0, 1), (0, 2)]
    wire.refused(0, UnknownProducer("forgotten"))
    await until(lambda: len(wire.sent) == 6)
    assert wire.stamps(3) == [(1, 0), (1, 1), (1, 2)]
    for number in (1, 2):
        if late is None:
            wire.stored(number, 7_000)
        else:
            wire.refused(number, late)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(future.done() for future in futures)
    assert len(wire.sent) == 6
    for number in range(3):
        wire.stored(3 + number, 88 + number)
    assert [future.result(0).offset for future in futures] == [88, 89, 90]
    assert space(core) == core.config.buffer_bytes
    await core.close()


async def test_a_connection_that_takes_no_batch_costs_no_message(
    factory: aio.MessageFactory, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent over one that has just ended, or is full: the batch goes out later."""
    core = await published(factory, retry_backoff_s=0.001)
    timers: Any = NotedTimers(core.sender.loop)
    core.sender.loop = timers
    send_over, refusals = wire.send, [Busy("full"), ConnectionCut("ended")]

    def refuse_at_first(*request: Any) -> int:
        if refusals:
            raise refusals.pop()
        return send_over(*request)

    monkeypatch.setattr(wire, "send", refuse_at_first)
    future = core.append_any(Message("t", b"x"))
    await until(lambda: wire.sent or future.done())
    assert not future.done()
    ((header, _),) = wire.sent
    assert not header.resend, "no copy of it can be stored"
    wire.stored(0, 88)
    assert future.result(0).offset == 88
    watch = core.sender.on_silence
    assert (timers.started(watch), timers.left(watch)) == (3, 0)
    await core.close()


async def test_messages_wait_when_a_burst_has_used_all_ids(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await published(factory)
    take_ids = core.cluster.take_ids
    asked: list[int] = []

    def none_left(count: int) -> list[int]:
        asked.append(count)
        raise IdsUsedUp("all ids up to the mark are used")

    monkeypatch.setattr(core.sender, "take_ids", none_left)
    future = send(core, Message("t", b"x"))
    await until(lambda: asked)
    assert not future.done()
    monkeypatch.setattr(core.sender, "take_ids", take_ids)
    assert (await ended(future)).id > 0
    await core.close()


@pytest.mark.parametrize("fate", ["never sent", "no answer", "refused again and again", "one left"])
async def test_a_given_up_send_gives_its_buffer_space_back(
    factory: aio.MessageFactory, wire: Wire, fate: str
) -> None:
    core = await published(factory)
    core.cluster.ids_ready = fate != "never sent"
    message = Message("t", b"x" * 1_000, key="k", headers={"h": "y" * 500})
    futures = [core.append_any(message, None, 0.05) for _ in range(3)]
    if fate == "one left":  # of the same batch
        futures.append(core.append_any(message, None, 60.0))
    assert space(core) < core.config.buffer_bytes - 3 * 1_500
    if fate != "never sent":
        await until(lambda: wire.sent)
    if fate == "refused again and again":
        wire.refused(0, Busy("later"))
    await until(lambda: all(future.done() for future in futures[:3]))
    kept = futures[3].size + MESSAGE_OVERHEAD_BYTES if fate == "one left" else 0
    assert space(core) == core.config.buffer_bytes - kept
    if wire.sent:  # an answer that comes after all gives nothing twice
        if fate != "refused again and again":
            wire.stored(0, 88)
        assert space(core) == core.config.buffer_bytes
    for queue in core.accumulator.topics["t"].queues:
        queue.close(NotSent())
    assert space(core) == core.config.buffer_bytes
    await core.close()


async def test_a_blocking_send_that_is_given_up_gives_its_buffer_space_back(
    factory: aio.MessageFactory,
) -> None:
    core = await published(factory)
    core.cluster.ids_ready = False
    message = Message("t", b"x" * 1_000, key="k", headers={"h": "y" * 500})
    future = await asyncio.to_thread(core.send_blocking, message, 0.05)
    assert isinstance(future.outcome, NotSent)
    assert space(core) == core.config.buffer_bytes
    await core.close()
