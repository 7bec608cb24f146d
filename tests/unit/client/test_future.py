"""One message's outcome: told once, to everybody who waits, whatever they do with it."""

import asyncio
import functools
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.threads import in_thread

from vq.client import future as futures
from vq.client.future import LoopSendFuture, SendFuture
from vq.client.producer.queue.batch import Batch, fail_all
from vq.errors import Busy, InvalidArgument, InvalidState, TimedOut
from vq.model import ProducerStamp, SendResult
from vq.testing.waiting import WAIT_S


class Counts:
    """A callback that is an object."""

    def __call__(self, result: object, error: object) -> None:
        """Count."""

    def count(self, result: object, error: object) -> None:
        """Count."""


def pending(callback: Any = None) -> SendFuture:
    return SendFuture(b"x", None, callback, 1e9)


def batch_of(*items: SendFuture) -> Batch:
    return Batch(list(items), list(range(1, len(items) + 1)), ProducerStamp(1, 0, 0))


def test_a_stored_message_gives_its_place_and_no_error() -> None:
    first, second = pending(), pending()
    assert not first.done()
    batch_of(first, second).resolve(3, 88)
    assert first.done()
    assert first.result() == SendResult(3, 88, 1)
    assert second.result(0) == SendResult(3, 88 + 21, 2)
    assert first.exception() is None


def test_a_refused_message_raises_from_result_and_returns_from_exception() -> None:
    future = pending()
    error = Busy("too much")
    future.fail(error)
    assert future.exception() is error
    with pytest.raises(Busy, match="too much"):
        future.result()


def test_an_error_that_messages_share_keeps_nothing_of_those_who_got_it() -> None:
    """Python notes in an error every place where it is raised, with its local variables."""
    error = Busy("too much", details={"waiting": 3}, hint="wait")
    error.__cause__ = cause = OSError("the disk")
    futures = [pending() for _ in range(3)]
    fail_all(futures, error)
    for future in futures:
        with pytest.raises(Busy, match=r"^too much \(status 27\)") as caught:
            future.result()
        assert len(caught.traceback) == 2
        assert (caught.value.details, caught.value.hint) == (error.details, "wait")
        assert caught.value.__cause__ is cause
    assert error.__traceback__ is None
    assert error.__context__ is None


def test_waiting_ends_with_the_time_out_and_the_send_goes_on() -> None:
    future = pending()
    with pytest.raises(TimedOut, match="the send goes on"):
        future.result(0)
    with pytest.raises(TimedOut):
        future.exception(-5)
    batch_of(future).resolve(0, 88)
    assert future.result(0).offset == 88


def test_a_time_out_of_centuries_is_as_good_as_none() -> None:
    """Larger than a lock can wait: not an OverflowError."""
    future = pending()
    with in_thread(lambda: future.result(1e300)) as waiting:
        batch_of(future).resolve(0, 88)
        assert waiting.result(WAIT_S).offset == 88


@pytest.mark.parametrize("timeout", ["1", [], math.nan, None.__class__], ids=repr)
def test_a_time_out_that_is_no_number_is_refused(timeout: Any) -> None:
    future = pending()
    for ask in (future.result, future.exception):
        with pytest.raises(InvalidArgument, match="timeout"):
            ask(timeout)
    assert not future.waiters


def test_waiting_that_timed_out_leaves_nothing_behind() -> None:
    """Whoever asks every second must not make a future grow."""
    future = pending()
    told: list[SendFuture] = []
    future.add_done_callback(told.append)
    for _ in range(10):
        with pytest.raises(TimedOut):
            future.result(0.001)
    assert future.waiters is not None
    assert len(future.waiters) == 1
    batch_of(future).resolve(0, 88)
    assert told == [future]


def test_a_loop_is_not_made_to_wait_for_its_own_outcomes() -> None:
    """It would wait for ever. Another thread may wait."""
    future = LoopSendFuture(b"x", None, None, 1e9)

    async def main() -> None:
        for ask in (future.result, future.exception):
            with pytest.raises(InvalidState, match="await future"):
                ask()
        with in_thread(lambda: future.result(WAIT_S)) as waiting:
            batch_of(future).resolve(0, 88)
            assert waiting.result(WAIT_S).offset == 88
        assert future.result().offset == 88

    asyncio.run(main())


def test_a_task_awaits_an_outcome_as_often_as_it_likes() -> None:
    async def main() -> None:
        future = LoopSendFuture(b"x", None, None, 1e9)
        waits = [asyncio.ensure_future(future) for _ in range(2)]
        await asyncio.sleep(0)
        batch_of(future).resolve(0, 88)
        assert [each.offset for each in await asyncio.gather(*waits, future)] == [88] * 3

    asyncio.run(main())


def test_an_error_is_raised_where_the_outcome_is_awaited() -> None:
    async def main() -> None:
        future = LoopSendFuture(b"x", None, None, 1e9)
        wait = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        future.fail(Busy("too much"))
        with pytest.raises(Busy, match="too much"):
            await wait

    asyncio.run(main())


def test_a_cancelled_task_ends_its_wait_and_not_the_send() -> None:
    async def main() -> None:
        future = LoopSendFuture(b"x", None, None, 1e9)
        cancelled, other = (asyncio.ensure_future(future) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert future.waiters is not None
        assert len(future.waiters) == 1
        batch_of(future).resolve(0, 88)
        assert (await other).offset == (await future).offset == 88

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SendFuture, LoopSendFuture])
def test_a_loop_awaits_an_outcome_that_another_thread_sets(kind: type[SendFuture]) -> None:
    async def main() -> None:
        future = kind(b"x", None, None, 1e9)
        wait = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        with in_thread(lambda: batch_of(future).resolve(0, 88)):
            async with asyncio.timeout(WAIT_S):
                assert (await wait).offset == 88

    asyncio.run(main())


def test_every_thread_that_waits_is_woken() -> None:
    future = pending()
    with (
        in_thread(lambda: future.result()) as first,
        in_thread(lambda: future.exception()) as second,
        in_thread(lambda: future.result(WAIT_S)) as third,
    ):
        batch_of(future).resolve(0, 88)
        assert first.result(WAIT_S).id == third.result(WAIT_S).id == 1
        assert second.result(WAIT_S) is None


def test_two_first_waiters_at_the_same_moment_are_both_woken() -> None:
    """Both find no list of waiters yet; the one list they make must hold both."""

    class Interrupted(SendFuture):
        """Another thread comes along between a waiter's look at the list and its next step."""

        __slots__ = ("kept",)
        other: Callable[[], None] | None = None

        @property
        def waiters(self) -> Any:
            seen = getattr(self, "kept", None)
            other, Interrupted.other = Interrupted.other, None
            if other is not None:
                other()
            return seen

        @waiters.setter
        def waiters(self, value: Any) -> None:
            self.kept = value

    future = Interrupted(b"x", None, None, 1e9)
    told: list[str] = []
    second = threading.Thread(
        target=lambda: future.add_done_callback(lambda _: told.append("second")), daemon=True
    )

    def come_along() -> None:
        second.start()
        second.join(0.2)  # it gets through, or waits for the first one: both are fine

    Interrupted.other = come_along
    future.add_done_callback(lambda _: told.append("first"))
    second.join(WAIT_S)
    future.fail(Busy())
    assert sorted(told) == ["first", "second"]


def test_done_callbacks_come_in_order_and_at_once_when_it_is_done() -> None:
    future = pending()
    told: list[str] = []
    future.add_done_callback(lambda _: told.append("a"))
    future.add_done_callback(lambda _: told.append("b"))
    assert told == []
    future.fail(Busy())
    assert told == ["a", "b"]
    future.add_done_callback(lambda done: told.append(type(done.exception()).__name__))
    assert told == ["a", "b", "Busy"]


class Failed(BaseException):
    """As gevent's time-outs and the failures of test frameworks: no ``Exception``."""


RAISED = [
    ValueError("mine"),
    SystemExit(1),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    Failed(),
]


@pytest.mark.parametrize("raised", RAISED, ids=repr)
@pytest.mark.parametrize("stored", [True, False])
def test_a_callback_that_raises_takes_no_other_message_with_it(
    raised: BaseException, stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the callback of ``send_async`` nor a done callback; both are logged."""

    def fail(*_: object) -> None:
        raise raised

    items = [pending(fail), pending(), pending(fail), pending()]
    told: list[SendFuture] = []
    items[1].add_done_callback(fail)
    items[1].add_done_callback(told.append)
    if stored:
        batch_of(*items).resolve(0, 88)
    else:
        batch_of(*items).fail(Busy())
    assert all(item.done() for item in items)
    assert told == [items[1]]
    assert len(caplog.records) == 3
    assert all(record.exc_info for record in caplog.records), "with its traceback"


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_what_ends_a_program_is_raised_again_by_the_loop_of_the_application(
    raised: BaseException,
) -> None:
    """Once every message of the batch has its outcome: ctrl-C is not lost."""

    def fail(*_: object) -> None:
        raise raised

    items = [pending(fail), pending()]

    async def main() -> None:
        batch_of(*items).resolve(0, 88)
        assert all(item.done() for item in items)
        await asyncio.sleep(60)

    with pytest.raises(type(raised)):
        asyncio.run(main())


def test_on_the_thread_of_a_factory_a_callback_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(futures, "CALLBACK_THREADS", {threading.get_ident()})

    async def main() -> None:
        batch_of(pending(lambda *_: sys.exit(1)), pending()).resolve(0, 88)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("stored", [True, False])
def test_a_signal_between_two_messages_leaves_none_without_an_outcome(stored: bool) -> None:
    """The handler of ctrl-C raises anywhere; here, while a message's waiters are woken."""

    class Struck(SendFuture):
        __slots__ = ("struck",)

        def wake(self) -> None:
            if not hasattr(self, "struck"):
                self.struck = True
                raise KeyboardInterrupt
            super().wake()

    told: list[object] = []
    items = [pending(), Struck(b"x", None, None, 1e9), pending(lambda *_: told.append("called"))]
    items[1].add_done_callback(told.append)
    items[2].add_done_callback(told.append)
    batch = batch_of(*items)
    with pytest.raises(KeyboardInterrupt):
        batch.resolve(0, 88) if stored else batch.fail(Busy())
    assert all(item.done() for item in items)
    assert told == [items[1], "called", items[2]]


def test_waiting_where_outcomes_are_told_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for itself. What is known already may be asked for."""
    monkeypatch.setattr(futures, "CALLBACK_THREADS", {threading.get_ident()})
    known, unknown = pending(), pending()
    known.fail(Busy())
    assert isinstance(known.exception(), Busy)
    for ask in (unknown.result, unknown.exception):
        with pytest.raises(InvalidState, match="add_done_callback"):
            ask(1)


def test_an_outcome_is_set_once() -> None:
    future = pending()
    future.fail(Busy())
    with pytest.raises(AssertionError):
        future.fail(Busy())


@pytest.mark.parametrize(
    "callback",
    [lambda *_: None, Counts(), Counts().count, functools.partial(Counts().count, 1)],
    ids=["function", "object", "method", "partial"],
)
def test_the_usual_callbacks_are_checked_without_inspect(
    callback: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every send checks its callback; ``check_function`` takes longer than the send itself."""

    def slow(*_: object) -> None:
        raise AssertionError("the slow check")

    monkeypatch.setattr(futures, "check_function", slow)
    futures.check_callback(callback)
