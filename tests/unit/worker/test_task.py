"""Tasks: a call is a message, and a message is a call."""

import asyncio
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


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"topic": "a b"}, "topic name"),
        ({"topic": ""}, "has no topic; give one"),
        ({"cron": 5}, "cron = 5 is no line"),
        ({"name": ""}, "task name"),
        ({"version": 0}, "version = 0"),
        ({"version": True}, "version = True"),
        ({"key": "more"}, "is no parameter"),
        ({"every_s": 0.1}, "every_s = 0.1"),
        ({"every_s": True}, "every_s = True"),
        ({"every_s": 60, "cron": "* * * * *"}, "give one"),
        ({"every_s": 60}, "called without arguments"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        vq.task(**{"topic": "t", **settings})(welcome.function)


def test_a_key_is_a_parameter_with_values_that_keys_may_have() -> None:
    def function(users: list[int], user: int | None = None) -> None: ...

    with pytest.raises(InvalidArgument, match="key = 'users' of function is a list or a dict"):
        vq.task(topic="t", key="users")(function)
    assert vq.task(topic="t", key="user")(function).message([]).key is None


def test_what_a_call_alone_does_not_run_is_no_task() -> None:
    def steps(user: int) -> Any:
        yield user

    async def more_steps(user: int) -> Any:
        yield user

    class Own:
        pass

    for wrong, why in (
        (steps, "is a generator, which a call alone does not run"),
        (more_steps, "is a generator"),
        (Own, "is type; give a plain function"),
        (5, "is int; give a plain function"),
    ):
        with case(why), pytest.raises(InvalidArgument, match=why):
            vq.task(topic="t")(wrong)  # type: ignore[arg-type]


def test_what_is_no_producer_sends_no_tasks() -> None:
    with pytest.raises(InvalidArgument, match="producer = 5 is no producer"):
        vq.Task.use(5)


def test_an_error_names_the_element_of_an_optional_list() -> None:
    @vq.task(topic="t")
    def function(users: list[int] | None = None) -> None: ...

    with pytest.raises(InvalidArgument, match=r"users\[0\] = 'a' is str, not int"):
        function.message(["a"])  # type: ignore[list-item]


def test_a_parameter_that_the_content_cannot_have_is_refused_where_the_task_is_made() -> None:
    def function(data: bytes) -> None: ...

    with pytest.raises(InvalidArgument, match=r"data of .* is bytes, which JSON has not"):
        vq.task(topic="t")(function)
