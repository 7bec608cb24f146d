"""What is done to all futures of a batch at once is the same in Python and compiled."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from vq.client.future import FailureCallback, LoopSendFuture, SendFuture
from vq.client.producer.intake.appender import PythonAppender
from vq.client.producer.queue import futures as module
from vq.errors import Busy, TimedOut, VqError
from vq.model import DivertedResult, SendResult

needs_compiled = pytest.mark.skipif(not module.COMPILED, reason="it was not compiled here")
TELLS = [
    pytest.param(module.python_tell, id="python"),
    pytest.param(module.tell, id="compiled", marks=needs_compiled),
]


def future(callback: Any = None, deadline: float = 1e9, content: bytes = b"x") -> SendFuture:
    return SendFuture(content, None, callback, deadline)


@pytest.fixture(params=TELLS)
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    def run(items: list[SendFuture], first: int = 88) -> None:
        count = len(items)
        request.param(items, 3, first, [30] * count, list(range(7, 7 + count)))

    return run


# Outcomes ----------------------------------------------------------------------------------------
def test_each_future_gets_its_place_before_its_callback_runs(tell: Callable[..., None]) -> None:
    told: list[object] = []
    items = [future(), future(lambda *each: told.append((*each, items[1].outcome)))]
    items += [LoopSendFuture(b"", None, None, 1.0)]
    items[2].add_done_callback(told.append)
    tell(items[:])
    places = [SendResult(3, 88, 7), SendResult(3, 118, 8), SendResult(3, 148, 9)]
    assert [each.outcome for each in items] == places
    assert [each.callback for each in items] == [None] * 3
    assert told == [(places[1], None, places[1]), items[2]]
    assert type(items[0].outcome) is SendResult


def test_callbacks_get_results_of_their_own_though_nobody_has_the_futures(
    tell: Callable[..., None],
) -> None:
    """One that keeps its result keeps what it says."""
    told: list[Any] = []
    seen: list[str] = []
    keep = [lambda result, _: told.append(result), lambda result, _: seen.append(repr(result))]
    tell([future(keep[number % 2]) for number in range(6)])
    assert told == [SendResult(3, 88 + 30 * number, 7 + number) for number in (0, 2, 4)]
    assert seen == [repr(SendResult(3, 88 + 30 * number, 7 + number)) for number in (1, 3, 5)]
    assert len({hash(each) for each in told}) == 3


def test_what_has_an_outcome_keeps_it(tell: Callable[..., None]) -> None:
    told: list[object] = []
    late, other = future(lambda *each: told.append(each)), future()
    late.fail(TimedOut())
    tell([late, other])
    assert isinstance(late.outcome, TimedOut)
    assert other.outcome == SendResult(3, 118, 8)
    assert len(told) == 1


def test_a_message_without_a_future_is_known_to_be_done(tell: Callable[..., None]) -> None:
    items = [future(), future(FailureCallback(print))]
    tell(items)
    assert all(each.done() and not isinstance(each.outcome, VqError) for each in items)


def test_a_callback_for_failures_hears_of_nothing_else(tell: Callable[..., None]) -> None:
    errors: list[VqError] = []
    stored, refused = future(FailureCallback(errors.append)), future(FailureCallback(errors.append))
    tell([stored])
    refused.fail(Busy())
    assert errors == [refused.outcome]


def test_a_waiter_that_comes_while_the_callback_runs_is_woken(tell: Callable[..., None]) -> None:
    told: list[SendFuture] = []
    item = future(lambda *_: item.add_done_callback(told.append))
    tell([item])
    assert told == [item]


def test_what_a_callback_raises_is_logged_and_the_others_go_on(
    tell: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    items = [future(lambda *_: 1 // 0), future(), future(lambda: None)]
    tell(items[:])
    assert all(each.done() for each in items)
    causes = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert causes == [ZeroDivisionError, TypeError]
    assert caplog.records[0].exc_info
    assert caplog.records[0].exc_info[2], "with its traceback"


def test_what_reporting_raises_is_passed_on(
    tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may raise there; the caller gives the others their outcome."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "report", interrupted)
    items = [future(lambda *_: 1 // 0), future()]
    with pytest.raises(KeyboardInterrupt):
        tell(items[:])
    assert [each.done() for each in items] == [True, False]


def test_lists_of_other_lengths_are_refused() -> None:
    for run in (module.python_tell, module.tell):
        for sizes, ids in (([1, 2], [1]), ([1], [1, 2]), ([], []), ([1, 2], [1, 2])):
            with pytest.raises(ValueError, match=r"leng|shorter|longer"):
                run([future()], 0, 0, sizes, ids)


@needs_compiled
def test_what_is_no_future_is_refused() -> None:
    odd: list[Any] = [object()]
    for run in (
        lambda: module.tell(odd, 0, 0, [1], [1]),
        lambda: module.bytes_of(odd),
        lambda: module.columns(odd),
        lambda: module.fitting(odd, 1, 1),
        lambda: module.bytes_of(tuple(odd)),
        lambda: module.columns(tuple(odd)),  # type: ignore[arg-type]
        lambda: module.tell([future()], 0, 0, [1.0], [1]),  # type: ignore[list-item]
        lambda: module.tell([future()], 0, 0, [1], ["1"]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError):
            run()
    for offset, size in ((2**63 - 1, 1), (0, 2**64)):
        with pytest.raises(OverflowError):
            module.tell([future()], 0, offset, [size], [1])


# Columns -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("columns", [module.python_columns, module.columns])
def test_contents_heads_and_the_first_deadline(columns: Callable[..., Any]) -> None:
    head = (1, b"t")
    items = [future(deadline=9.0), SendFuture(b"yy", head, None, 5.0), future(deadline=math.inf)]
    assert columns(items) == ([b"x", b"yy", b"x"], [None, head, None], 5.0)
    assert columns([]) == ([], [], math.inf)


@pytest.mark.parametrize("bytes_of", [module.python_bytes_of, module.bytes_of])
def test_the_bytes_of_messages(bytes_of: Callable[..., int]) -> None:
    assert bytes_of([future(), SendFuture(b"yy", (1, b"ttt"), None, 5.0)]) == 6
    assert bytes_of([]) == 0


@pytest.mark.parametrize("fitting", [module.python_fitting, module.fitting])
def test_how_many_of_the_first_messages_fit(fitting: Callable[..., int]) -> None:
    items = [SendFuture(bytes(size), None, None, 5.0) for size in (10, 0, 30, 5)]
    most = (0, 29, 30, 50, 99, 100, 124, 125, 1000)
    assert [fitting(items, each, 20) for each in most] == [1, 1, 1, 2, 2, 3, 3, 4, 4]
    assert fitting(items, 0, 0) == 1, "a message that is too large for a batch is one alone"
    assert fitting(items[1:2] * 5, 0, 0) == 5
    assert fitting([], 100, 20) == 0


@pytest.mark.parametrize("divide", [module.python_divide, module.divide])
def test_futures_are_divided_by_partition_in_their_order(divide: Callable[..., Any]) -> None:
    items = [SendFuture(b"x", None, None, 1.0, number) for number in (3, 1, 3, 40_000, 1, 1)]
    first, second, third, fourth, fifth, sixth = items
    expected = [(3, [first, third]), (1, [second, fifth, sixth]), (40_000, [fourth])]
    assert divide(items) == expected
    assert divide([]) == []
    assert divide([first, third]) == [(3, [first, third])]
    assert divide([*items, future()]) is None


@pytest.mark.parametrize("outcomes", [module.python_outcomes, module.outcomes])
def test_outcomes_of_sends_some_of_which_were_refused_at_once(outcomes: Callable[..., Any]) -> None:
    refused = Busy()
    stored, waiting = future(), future()
    stored.succeed(SendResult(0, 1, 2))
    found = [refused, stored.outcome, None, None]
    assert outcomes([refused, stored, waiting, None], SendResult) == (found, False)
    for some in ([waiting], [None], [stored, refused]):
        assert outcomes(some, SendResult)[1] is False
    diverted = future()
    diverted.succeed(DivertedResult(0, 1, 2))
    assert outcomes([stored, diverted], SendResult) == ([stored.outcome, diverted.outcome], True)
    assert outcomes([], SendResult) == ([], True)


@pytest.mark.parametrize("last_waiting", [module.python_last_waiting, module.last_waiting])
def test_the_last_send_that_waits(last_waiting: Callable[..., Any]) -> None:
    items: list[Any] = [future(), future(), Busy(), None]
    assert last_waiting(items) is items[1]
    items[1].fail(Busy())
    assert last_waiting(items) is items[0]
    items[0].succeed(SendResult(0, 1, 2))
    assert last_waiting(items) is None


# The collector -----------------------------------------------------------------------------------
def appended(callback: Any = None) -> SendFuture:
    from support.queues import queues_of

    from vq.client.producer.intake.appender import make_appender
    from vq.model import Message

    made = make_appender(None, lambda: 0.0, 1.0, lambda: None, {}, 1_000, 10)  # type: ignore[arg-type]
    assert type(made) is not PythonAppender
    made.topics["t"] = queues = queues_of()
    item = made.append(Message("t", b"x"), callback, None)
    assert item is not None
    queues.appended.clear()
    return item


@needs_compiled
def test_a_future_costs_the_collector_nothing_until_it_can_be_in_a_cycle() -> None:
    item = appended(print)
    assert not gc.is_tracked(item)
    module.tell([item], 0, 88, [30], [7])
    assert not gc.is_tracked(item)
    for change in (
        lambda each: each.fail(Busy()),
        lambda each: each.add_done_callback(print),
        lambda each: setattr(each, "callback", lambda: each),
    ):
        item = appended()
        change(item)
        assert gc.is_tracked(item)


@needs_compiled
def test_cycles_of_futures_with_an_outcome_are_freed() -> None:
    """A callback that refers to its future, and an error whose frames do."""

    class Seen:
        def __call__(self, *_: object) -> None: ...

    callback: Any = Seen()
    callback.future = appended(callback)
    seen = weakref.ref(callback)
    module.tell([callback.future], 0, 88, [30], [7])
    gc.disable()
    try:
        del callback
        assert seen() is None, "the future has dropped its callback"
    finally:
        gc.enable()

    callback = Seen()
    callback.future = appended(callback)
    seen = weakref.ref(callback)
    error: Any = Busy()
    error.callback = callback
    callback.future.fail(error)
    del callback, error
    gc.collect()
    assert seen() is None
