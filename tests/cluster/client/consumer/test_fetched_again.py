"""A FETCH is answered again and again while little of what it asked for has come."""

from typing import Any

import pytest
from support.consumers import send, texts

from vq import aio, limits
from vq.broker.serving.fetching import ServedSession
from vq.client.config import ConsumerConfig
from vq.model import Message
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

MESSAGES = 40


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each FETCH asked for, of its first partition."""
    found: list[int] = []
    take = ServedSession.take

    def noted(self: ServedSession, request_id: Any, header: Any) -> None:
        found.extend(each.max_bytes for each in header.partitions[:1])
        take(self, request_id, header)

    monkeypatch.setattr(ServedSession, "take", noted)
    return found


async def received(factory: aio.MessageFactory, length: int) -> list[bytes]:
    """Send messages one at a time, each when the one before it has come; return what came."""
    got: list[bytes] = []

    async def listener(message: Message) -> None:
        got.append(message.content)

    consumer = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=5.0))
    async with await consumer.subscribe("t", length, listener).start():
        for number in range(MESSAGES):
            await send(factory, *texts(number))
            await until(lambda: len(got) == number + 1)  # noqa: B023
    return got


async def test_messages_that_come_one_by_one_need_no_request_each(
    factory: aio.MessageFactory, asked: list[int]
) -> None:
    assert await received(factory, limits.MIB) == [b"%d" % number for number in range(MESSAGES)]
    assert asked == [limits.MIB]


async def test_a_partition_is_asked_for_again_when_much_of_its_bytes_has_come(
    factory: aio.MessageFactory, asked: list[int]
) -> None:
    """Each answer counts more than its bytes, as it does in the consumer's memory."""
    length = limits.FETCH_AGAIN_BYTES + 4 * limits.FETCH_ANSWER_BYTES
    assert await received(factory, length) == [b"%d" % number for number in range(MESSAGES)]
    assert set(asked) == {length}
    assert MESSAGES // 4 <= len(asked) <= MESSAGES // 3 + 1
