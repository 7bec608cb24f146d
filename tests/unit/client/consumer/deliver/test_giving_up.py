"""A listener that gives up: the copy takes the place of a further try, and must be stored."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.cases import case

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.giving_up import Copied, FailedTries, Spent, awaiting, calling
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tries import RETRY, NotCopied, Retry, tried_again
from vq.errors import ContentUnreadable, OutcomeUnknown
from vq.model import Message
from vq.reserved import DeliveryFailure


def message(offset: int, attempts: int = 1) -> Message:
    made = Message("t", b"x", partition=1, offset=offset, next_offset=offset + 9)
    return made if attempts == 1 else tried_again(made, attempts)


class Case:
    """A listener that does what it is told, and a store of copies that may refuse."""

    def __init__(self, result: Any, *, max_attempts: int, is_async: bool) -> None:
        self.result = result
        self.calls = 0
        self.copied: list[tuple[int, DeliveryFailure]] = []
        self.refuse_at: int | None = None
        self.now_ms = 1_000
        config = ConsumerConfig(
            on_failure="dead-letter", on_bad_record="dead-letter", max_attempts=max_attempts
        )
        failing = FailedTries(PolicyInForce(config), lambda: self.now_ms)
        if is_async:
            self._call = awaiting(self._listen_async, failing, self._copy_async)
        else:
            self._call = calling(self._listen, failing, self._copy)
        self._is_async = is_async

    def _listen(self, _: Any) -> Any:
        self.calls += 1
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    async def _listen_async(self, given: Any) -> Any:
        return self._listen(given)

    def _copy(self, spent: Sequence[Spent]) -> Copied:
        for count, each in enumerate(spent):
            if each.message.offset == self.refuse_at:
                return count, OutcomeUnknown("no answer")
            self.copied.append((each.message.offset, each.failure))
        return len(spent), None

    async def _copy_async(self, spent: Sequence[Spent]) -> Copied:
        return self._copy(spent)

    def __call__(self, given: Message | Sequence[Message]) -> Any:
        self.now_ms += 10
        found = self._call(given)
        return asyncio.run(found) if self._is_async else found


@pytest.fixture(params=[False, True], ids=["blocking", "aio"])
def made(request: pytest.FixtureRequest) -> Callable[..., Case]:
    def make(result: Any, max_attempts: int = 3) -> Case:
        return Case(result, max_attempts=max_attempts, is_async=request.param)

    return make


def test_what_is_handled_is_not_copied(made: Callable[..., Case]) -> None:
    for result in (None, 5):
        listener = made(result)
        assert listener(message(0)) == result
        assert not listener.copied


def test_the_last_failed_try_ends_with_a_copy(made: Callable[..., Case]) -> None:
    """Of an exception, whatever it is, and of an answer that asks for another try."""
    for result, why in (
        (ValueError("no id"), "ValueError('no id')"),
        (KeyboardInterrupt(), "KeyboardInterrupt()"),
        (RETRY, "vq.Retry"),
        (Retry, "vq.Retry"),  # the class: the parentheses forgotten
    ):
        with case(result):
            listener = made(result)
            for attempts in (1, 2):
                if result in (RETRY, Retry):
                    assert listener(message(7, attempts)) is result
                else:
                    with pytest.raises(type(result)):
                        listener(message(7, attempts))
            assert not listener.copied
            assert listener(message(7, 3)) is None
            assert listener.copied == [(7, DeliveryFailure(3, 1_010, why))]


def test_a_content_that_nobody_can_read_is_copied_at_the_first_try(
    made: Callable[..., Case],
) -> None:
    """Of a list it is not known which one it is, so they are tried one by one."""
    listener = made(ContentUnreadable("no json"))
    assert listener(message(7)) is None
    assert listener.copied == [(7, DeliveryFailure(1, 1_010, "ContentUnreadable('no json')"))]
    with pytest.raises(ContentUnreadable):
        listener([message(8), message(9)])
    assert len(listener.copied) == 1


def test_a_copy_that_is_not_stored_is_made_again_without_the_listener(
    made: Callable[..., Case],
) -> None:
    listener = made(ValueError("no id"), 1)
    listener.refuse_at = 7
    for attempts in (1, 2, 3):
        with pytest.raises(NotCopied, match="not stored: no answer"):
            listener(message(7, attempts))
    listener.refuse_at = None
    assert listener(message(7, 4)) is None
    assert listener.calls == 1
    assert listener.copied == [(7, DeliveryFailure(1, 1_010, "ValueError('no id')"))]
    with pytest.raises(ValueError, match="no id"):  # another message begins anew
        made(ValueError("no id"), 2)(message(7))


def test_of_a_list_each_message_is_copied_and_what_is_copied_is_not_tried_again(
    made: Callable[..., Case],
) -> None:
    listener = made(ValueError("no id"), 1)
    listener.refuse_at = 2
    assert listener([message(0), message(1), message(2), message(3)]) == Retry(done=2)
    assert [offset for offset, _ in listener.copied] == [0, 1]
    listener.refuse_at = None
    assert listener([message(2, 2)]) is None
    assert listener([message(3, 2)]) is None
    assert [offset for offset, _ in listener.copied] == [0, 1, 2, 3]
    assert listener.calls == 1


def test_of_a_list_that_is_done_in_part_the_rest_is_copied(made: Callable[..., Case]) -> None:
    listener = made(Retry(done=1), 1)
    listener.refuse_at = 2
    assert listener([message(0), message(1), message(2)]) == Retry(done=2)
    assert [offset for offset, _ in listener.copied] == [1]


def test_a_message_that_is_handled_at_last_is_forgotten(made: Callable[..., Case]) -> None:
    listener = made(ValueError("no id"), 2)
    with pytest.raises(ValueError, match="no id"):
        listener(message(7))
    listener.result = None
    assert listener(message(7, 2)) is None
    listener.result = ValueError("other")
    with pytest.raises(ValueError, match="other"):
        listener(message(7))
    listener(message(7, 2))
    assert listener.copied == [(7, DeliveryFailure(2, 1_030, "ValueError('other')"))]
