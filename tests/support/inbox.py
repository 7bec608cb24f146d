"""Partitions whose messages come through an inbox, and short ways to take them."""

import asyncio
import importlib.util
import random
import sys
import types
from unittest import mock

import pytest
from support.delivery import Told, endless

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver import asking, inbox
from vq.client.consumer.deliver.failures import Failures
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.reading.chunk import Chunk
from vq.model import TopicPartition
from vq.store.records.record import encode_record
from vq.testing.waiting import WAIT_S


def _python_messages() -> type[Messages]:
    """Return ``Messages`` with the twin in Python of what is compiled in it."""
    twin = types.ModuleType(asking.__name__)
    twin.Asking = asking.PythonAsking  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("python_inbox", inbox.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {asking.__name__: twin}):
        spec.loader.exec_module(module)
    found: type[Messages] = module.Messages
    return found


ITERATIONS = [
    pytest.param(_python_messages(), id="python"),
    pytest.param(
        Messages,
        id="compiled",
        marks=pytest.mark.skipif(
            asking.Asking is asking.PythonAsking, reason="it was not compiled here (no C compiler)"
        ),
    ),
]
"""Both kinds of iterations."""


class Partition:
    """A held partition; message contents are its number and a count from 0."""

    def __init__(self, inbox: Inbox, number: int = 0, most: int = 10_000) -> None:
        self.number, self.offset, self.count = number, 0, 0
        self.stopped = False
        self.told = Told()
        where = TopicPartition("t", number)
        self.delivery = InTurn(
            where,
            0,
            None,
            Failures(where, "g", PolicyInForce(ConsumerConfig()), random.Random(0), lambda: 0),
            executor=inbox,
            permit=endless(),
            hooks=self.told.hooks,
            most=most,
        )

    @property
    def consumed(self) -> int:
        return self.told.consumed

    def add(self, count: int, *, picked: bool = False, gap: int = 0, damage: bool = False) -> Chunk:
        begin, offsets, body = self.offset, [], b""
        for _ in range(count):
            record = encode_record(self.count + 1, b"%d.%d" % (self.number, self.count))
            offsets.append(self.offset)
            self.offset += len(record)
            self.count += 1
            body += record
        if damage:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.offset += gap
        chunk = Chunk(begin, self.offset, body, offsets if picked else None)
        self.delivery.add(chunk)
        return chunk

    def stop(self) -> None:
        self.delivery.stop(lambda: setattr(self, "stopped", True))


async def take(inbox: Inbox, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        async with asyncio.timeout(WAIT_S):
            message = await inbox.next()
        assert message is not None
        found.append(message.content)
    return found


async def nothing_comes(inbox: Inbox) -> bool:
    waiting = asyncio.ensure_future(inbox.next())
    for _ in range(5):
        await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not done


async def nothing() -> None:
    """Begin an iteration that needs no beginning."""


async def take_one(messages: Messages) -> bytes:
    return (await anext(messages)).content
