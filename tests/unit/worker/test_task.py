"""Tasks: a call is a message, and a message is a call."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.cases import case

import vq
from vq.errors import ContentUnreadable, InvalidArgument, InvalidState
from vq.model import Message
from vq.worker.task import TASK_HEADER, arguments_of, name_in


@vq.task(topic="mail", key="user")
def welcome(user: int, language: str = "en") -> str:
    """Greet."""
    return f"{user} {language}"


class Producer:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send_sync(self, message: Message) -> str:
        self.sent.append(message)
        return "stored"


def test_a_call_calls_and_a_message_has_the_arguments() -> None:
    assert welcome(3) == "3 en"
    assert (welcome.__name__, welcome.__doc__) == ("welcome", "Greet.")
    message = welcome.message(3, language="zh")
    assert (message.topic, message.key) == ("mail", 3)
    assert message.headers == {TASK_HEADER: "welcome@1"}
    assert name_in(message) == "welcome@1"
    assert message.content == b'{"user":3,"language":"zh"}'
    assert arguments_of(welcome, message) == {"user": 3, "language": "zh"}


def test_it_is_sent_now_or_later_by_the_producer_of_the_process() -> None:
    producer = Producer()
    with pytest.raises(InvalidState, match=r"vq\.Task\.use"):
        welcome.send(1)
    vq.Task.use(producer)
    try:
        assert welcome.send(1) == "stored"
        welcome.send_later(2.5, 1)
        moment = datetime(2030, 1, 1, tzinfo=UTC)
        welcome.send_at(moment, 1)
    finally:
        vq.Task.use(None)
    assert [each.delay_s for each in producer.sent] == [None, 2.5, None]
    assert producer.sent[2].deliver_at == moment


def test_a_coroutine_producer_gives_a_coroutine() -> None:
    class Async:
        async def send(self, message: Message) -> str:
            return message.topic

    vq.Task.use(Async())
    try:
        assert asyncio.run(welcome.send(1)) == "mail"
    finally:
        vq.Task.use(None)


def test_arguments_may_be_hessian() -> None:
    @vq.task(topic="t", serializer=vq.serializers.Hessian2(), name="store", version=2)
    def keep(data: bytes, parts: list[int]) -> None: ...

    message = keep.message(b"\x00\xff", [1, 2])
    assert name_in(message) == "store@2"
    assert arguments_of(keep, message) == {"data": b"\x00\xff", "parts": [1, 2]}


def test_a_content_that_is_none_is_unreadable() -> None:
    for content in (b"{", b"[]", b'{"user":"3"}', b'{"language":"en"}'):
        with case(content), pytest.raises(ContentUnreadable):
            arguments_of(welcome, Message("mail", content))


def test_what_a_call_alone_does_not_run_is_no_task() -> None:
    """Its messages would count as handled, and nothing had run."""

    def each() -> Iterator[int]:
        yield 1

    async def each_later() -> AsyncIterator[int]:
        yield 1

    for function in (each, each_later, functools.partial(each), int, 3):
        with case(function), pytest.raises(InvalidArgument, match="the function of a task = "):
            vq.task(topic="t", name="x")(function)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"topic": "a b"}, "topic name"),
        ({"name": ""}, "task name"),
        ({"version": 0}, "version = 0"),
        ({"version": True}, "version = True"),
        ({"key": "more"}, "is no parameter"),
        ({"every_s": 0.1}, "every_s = 0.1"),
        ({"every_s": True}, "every_s = True"),
        ({"every_s": 60, "cron": "* * * * *"}, "give one"),
        ({"every_s": 60}, "called without arguments"),
        ({"cron": "61 * * * *"}, "is no line of five fields"),
        ({"cron": "* * *"}, "got 3, expected 5"),
        ({"cron": 5}, "cron = 5 is no line of five fields"),
        ({"cron": "0 2 30 2 *"}, "is never due"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        vq.task(**{"topic": "t", **settings})(welcome.function)
