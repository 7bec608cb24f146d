"""Interceptors: their order, what refuses a message, and one outcome for each."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from vq.client.producer.interceptors import Interceptors, ProducerInterceptor
from vq.errors import BufferFull, InvalidArgument, NotSent, OutcomeUnknown, VqError
from vq.model import Message, SendResult

PLACE = SendResult(1, 2, 3)
MESSAGE = Message("t", b"x")


class Noting(ProducerInterceptor):
    """Adds its name to the content; notes its calls."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name = name
        self.notes = notes

    def before_send(self, message: Message) -> Message:
        self.notes.append(("before", self.name))
        return message._replace(content=message.content + self.name.encode())

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        self.notes.append(("after", self.name, message.content, result or error))


class Calling(ProducerInterceptor):
    """Calls a function before or after a send."""

    def __init__(
        self,
        before: Callable[[Message], Any] = lambda message: message,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self.before = before
        self.after = after

    def before_send(self, message: Message) -> Message:
        found: Message = self.before(message)
        return found

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        self.after()


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: object) -> None:
        raise error

    return function


def test_the_base_class_changes_nothing() -> None:
    with Interceptors([ProducerInterceptor()]).begin(MESSAGE) as sending:
        assert sending.message is MESSAGE
        sending.ended(PLACE, None)


def test_before_runs_in_order_and_after_in_reverse_with_the_own_message() -> None:
    notes: list[Any] = []
    interceptors = Interceptors([Noting("1", notes), Noting("2", notes)])
    sending = interceptors.begin(MESSAGE, lambda *outcome: notes.append(outcome))
    assert sending.message.content == b"x12"
    sending(PLACE, None)
    assert notes == [
        ("before", "1"),
        ("before", "2"),
        ("after", "2", b"x12", PLACE),
        ("after", "1", b"x1", PLACE),
        (PLACE, None),
    ]


def test_only_the_first_outcome_counts() -> None:
    notes: list[Any] = []
    with pytest.raises(KeyboardInterrupt), Interceptors([Noting("1", notes)]).begin(MESSAGE) as one:
        raise KeyboardInterrupt
    one(PLACE, None)
    one.ended(PLACE, None)
    [_, (*_, error)] = notes
    assert isinstance(error, OutcomeUnknown), "the message may have been appended"
    assert isinstance(error.__cause__, KeyboardInterrupt)


@pytest.mark.parametrize(
    ("raised", "told"),
    [(BufferFull("full"), BufferFull), (asyncio.CancelledError(), NotSent)],
)
def test_what_is_not_accepted_is_an_outcome(raised: BaseException, told: type[VqError]) -> None:
    notes: list[Any] = []
    with pytest.raises(type(raised)), Interceptors([Noting("1", notes)]).begin(MESSAGE):
        raise raised
    assert len(notes) == 2
    assert isinstance(notes[1][-1], told)


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (raising(LookupError("no tenant")), r"before_send of Calling raised LookupError\('no te"),
        (lambda message: message._replace(topic="u"), "changed the topic from 't' to 'u'"),
        (lambda _: None, "returned NoneType; return a vq.Message"),
    ],
)
def test_a_message_is_refused_and_the_earlier_interceptors_know(
    before: Callable[[Message], Any], text: str
) -> None:
    notes: list[Any] = []
    never: list[Any] = []
    refusing = Calling(before, after=lambda: notes.append("never"))
    interceptors = Interceptors([Noting("1", notes), refusing, Noting("3", never)])
    with pytest.raises(InvalidArgument, match=text) as refused:
        interceptors.begin(MESSAGE)
    assert notes == [("before", "1"), ("after", "1", b"x1", refused.value)]
    assert not never


def test_the_exception_is_the_cause() -> None:
    cause = LookupError("no tenant")
    with pytest.raises(InvalidArgument) as refused:
        Interceptors([Calling(raising(cause))]).begin(MESSAGE)
    assert refused.value.__cause__ is cause


def test_the_end_of_the_program_in_before_send_is_passed_on() -> None:
    notes: list[Any] = []
    with pytest.raises(SystemExit):
        Interceptors([Noting("1", notes), Calling(raising(SystemExit()))]).begin(MESSAGE)
    assert isinstance(notes[-1][-1], InvalidArgument), "certainly not sent"


def test_other_things_than_messages_reach_no_interceptor() -> None:
    notes: list[Any] = []
    with pytest.raises(InvalidArgument, match=r"a message is a vq\.Message, not bytes"):
        Interceptors([Noting("1", notes)]).begin(b"x")  # type: ignore[arg-type]
    assert not notes


def test_an_exception_of_after_send_is_logged_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for end in ("call", "ended"):
        notes: list[Any] = []
        bad = Calling(after=raising(RuntimeError("no")))
        sending = Interceptors([Noting("1", notes), bad]).begin(MESSAGE)
        with caplog.at_level(logging.ERROR):
            sending(PLACE, None) if end == "call" else sending.ended(PLACE, None)
        assert notes[-1] == ("after", "1", b"x1", PLACE)
    assert caplog.text.count("after_send of Calling") == 2


def test_the_end_of_the_program_in_the_senders_thread_waits_for_the_others() -> None:
    notes: list[Any] = []
    sending = Interceptors([Noting("1", notes), Calling(after=raising(SystemExit()))]).begin(
        MESSAGE
    )
    with pytest.raises(SystemExit):
        sending.ended(PLACE, None)
    assert notes[-1] == ("after", "1", b"x1", PLACE)
