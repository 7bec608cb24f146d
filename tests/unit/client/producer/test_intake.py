"""Both intakes take and leave the same; a quickened ``Message`` is made like any named tuple."""

import copy
import gc
import itertools
import math
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from support.threads import spawn

from vq.client.future import LoopSendFuture, SendFuture
from vq.client.producer import intake as intakes
from vq.client.producer.intake import Intake, PythonIntake, make_intake
from vq.limits import TIMEOUT_S_MAX
from vq.model import Message

BYTES_MAX = 100
TAG_HEAD = (1, b"\0\0\0\1a")
needs_compiled = pytest.mark.skipif(
    not intakes.COMPILED, reason="the intake was not compiled here (no C compiler)"
)
MAKERS = [
    pytest.param(PythonIntake, id="python"),
    pytest.param(make_intake, id="compiled", marks=needs_compiled),
]
WAIT_S = 20.0


class Bench:
    """An intake with one topic, ``t``, a clock that says 1000, and a count of wakes."""

    def __init__(self, make: Callable[..., Intake]) -> None:
        self.now: Any = 1_000.0
        self.wakes = 0
        self.on_wake: Callable[[], object] = lambda: None
        self.lock = threading.Lock()
        self.items: list[SendFuture] = []
        self.intake = make(
            self.lock, lambda: self.now, 60.0, self._wake, {"a": TAG_HEAD}, BYTES_MAX
        )
        self.intake.lines["t"] = (self.items, BYTES_MAX - 10)
        self.intake.most = 3

    def _wake(self) -> None:
        self.on_wake()
        self.wakes += 1
        self.intake.awake = True

    def take(self, message: Any, callback: Any = None, timeout: Any = None) -> SendFuture | None:
        return self.intake.take(message, callback, timeout)


@pytest.fixture(params=MAKERS)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


def fields(future: SendFuture) -> dict[str, Any]:
    return {name: getattr(future, name) for name in SendFuture.__slots__}


# What is taken --------------------------------------------------------------------------------
@pytest.mark.parametrize(("tag", "head"), [(None, None), ("a", TAG_HEAD)])
def test_a_plain_message_stands_in_its_line(bench: Bench, tag: str | None, head: Any) -> None:
    """Its future is the one that ``SendFuture(...)`` makes, with the configured time-out."""
    future = bench.take(Message("t", b"x", tag), print)
    assert future is not None
    assert fields(future) == fields(SendFuture(b"x", head, print, 1_060.0))
    assert bench.items == [future]
    assert not future.done()


def test_a_tag_counts_towards_the_size_of_a_message(bench: Bench) -> None:
    tagged, plain = bench.take(Message("t", b"xy", "a")), bench.take(Message("t", b"xy"))
    assert tagged is not None
    assert plain is not None
    assert (tagged.size, plain.size) == (2 + len(TAG_HEAD[1]), 2)


@pytest.mark.parametrize(
    ("timeout", "deadline"),
    [
        (None, 1_060.0),
        (0.5, 1_000.5),
        (2, 1_002.0),
        (0, 1_000.0),
        (TIMEOUT_S_MAX, TIMEOUT_S_MAX + 1_000.0),
    ],
)
def test_a_send_may_have_its_own_time_out(bench: Bench, timeout: Any, deadline: float) -> None:
    future = bench.take(Message("t", b"x"), None, timeout)
    assert future is not None
    assert future.deadline == deadline


def test_the_loop_is_woken_once_until_it_slept_again(bench: Bench) -> None:
    bench.take(Message("t", b"1"))
    bench.take(Message("t", b"2"))
    assert bench.wakes == 1
    bench.intake.awake = False
    bench.take(Message("t", b"3"))
    assert bench.wakes == 2


def test_a_line_is_full_at_most(bench: Bench) -> None:
    assert all(bench.take(Message("t", b"x")) for _ in range(3))
    assert bench.take(Message("t", b"x")) is None
    bench.items.clear()
    assert bench.take(Message("t", b"x")) is not None


def test_bounds_are_the_largest_that_fits(bench: Bench) -> None:
    """The topic's own bound, and that of all topics."""
    assert bench.take(Message("t", b"x" * (BYTES_MAX - 10))) is not None
    assert bench.take(Message("t", b"x" * (BYTES_MAX - 9))) is None
    bench.intake.lines["t"] = (bench.items, 1 << 20)
    assert bench.take(Message("t", b"x" * BYTES_MAX)) is not None
    assert bench.take(Message("t", b"x" * (BYTES_MAX + 1))) is None


# What is left ---------------------------------------------------------------------------------
class OtherMessage(Message):
    """What a user may have derived."""


class Text(str):
    """Text that may look different whenever it is looked at."""


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", key="k"),
        Message("t", b"x", headers={"h": "1"}),
        Message("t", b"x", tag="never seen"),
        Message("t", b"x", tag=Text("a")),
        Message("t", b"x", tag=[]),  # type: ignore[arg-type]
        Message("t", bytearray(b"x")),  # type: ignore[arg-type]
        Message("t", "x"),  # type: ignore[arg-type]
        Message("unknown", b"x"),
        Message(Text("t"), b"x"),
        Message([], b"x"),  # type: ignore[arg-type]
        OtherMessage("t", b"x"),
        ("t", b"x", None, None, None),
        b"x",
        None,
    ],
    ids=repr,
)
def test_what_is_not_plain_is_left_to_the_producer(bench: Bench, message: Any) -> None:
    assert bench.take(message) is None
    assert bench.items == []
    assert bench.wakes == 0


@pytest.mark.parametrize("line", [None, (), ([], 1, 2), ((), 1)], ids=repr)
@needs_compiled
def test_a_line_of_another_shape_takes_nothing(line: Any) -> None:
    """The compiled intake reads lines by position; whatever stands there, it holds."""
    bench = Bench(make_intake)
    bench.intake.lines["t"] = line
    assert bench.take(Message("t", b"x")) is None


@pytest.mark.parametrize(
    "timeout",
    ["1", b"", [], (), True, Fraction(1), math.nan, math.inf, -math.inf, -1, -0.5, 10**400,
     -(10**400), math.nextafter(TIMEOUT_S_MAX, math.inf)],
    ids=repr,
)  # fmt: skip
def test_an_odd_time_out_is_left_to_the_producer(bench: Bench, timeout: Any) -> None:
    """Which says what is wrong with it, or what it counts as."""
    assert bench.take(Message("t", b"x"), None, timeout) is None
    assert bench.items == []


def test_a_future_may_be_of_a_derived_type(bench: Bench) -> None:
    make = type(bench.intake)
    arguments: list[Any] = [lambda: 0.0, 1.0, lambda: None, {}, BYTES_MAX]
    if make is PythonIntake:
        intake: Intake = PythonIntake(bench.lock, *arguments, LoopSendFuture)
    else:
        intake = make_intake(bench.lock, *arguments, LoopSendFuture)
    intake.lines["t"] = (bench.items, BYTES_MAX)
    intake.most = 1
    future = intake.take(Message("t", b"x"), print, 2)
    assert type(future) is LoopSendFuture
    assert fields(future) == fields(LoopSendFuture(b"x", None, print, 2.0))


def test_a_clock_that_fails_is_told(bench: Bench) -> None:
    bench.now = "late"
    with pytest.raises(TypeError):
        bench.take(Message("t", b"x"))
    assert bench.items == []


def test_a_loop_that_cannot_be_woken_is_told(bench: Bench) -> None:
    """As calling into a closed loop is; the message stands in its line all the same."""
    bench.on_wake = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        bench.take(Message("t", b"x"))
    assert len(bench.items) == 1


# Lines that go --------------------------------------------------------------------------------
@pytest.mark.parametrize("round_", range(5))
def test_nothing_is_lost_when_a_line_goes(bench: Bench, round_: int) -> None:
    """What ``take`` said it took is found by whoever takes the line away and empties it."""
    bench.intake.most = 1 << 30
    message = Message("t", b"x")

    def send() -> int:
        for count in itertools.count():
            if bench.take(message) is None:
                return count
        raise AssertionError

    threads = [spawn(send) for _ in range(4)]
    deadline = time.monotonic() + WAIT_S
    while len(bench.items) < 2_000:
        assert time.monotonic() < deadline
    bench.intake.lines.clear()
    with bench.lock:
        found = len(bench.items)
        del bench.items[:found]
    assert sum(thread.result(WAIT_S) for thread in threads) == found
    assert bench.items == []


class Struck(list[SendFuture]):
    """A line to which something happens just after an append."""

    def __init__(self, strike: Callable[["Struck"], object]) -> None:
        super().__init__()
        self._strike = strike

    def append(self, item: SendFuture) -> None:
        super().append(item)
        self._strike(self)


@pytest.mark.parametrize(
    ("strike", "taken", "left"),
    [
        (lambda bench, _: bench.intake.lines.clear(), False, 0),
        (lambda bench, line: (bench.intake.lines.clear(), line.clear()), True, 0),
        (lambda bench, line: bench.intake.lines.update(t=(line, 7)), True, 1),
        (lambda bench, _: bench.intake.lines.update(t=([], 7)), False, 0),
    ],
    ids=["line gone", "taken along", "another bound", "another line"],
)
def test_a_caller_that_came_too_late_takes_its_message_back(
    strike: Callable[[Bench, Struck], object], taken: bool, left: int
) -> None:
    """In Python other threads may come between the look-up of a line and the append."""
    bench = Bench(PythonIntake)
    line = Struck(lambda line: strike(bench, line))
    bench.intake.lines["t"] = (line, BYTES_MAX)
    assert (bench.take(Message("t", b"x")) is not None) is taken
    assert len(line) == left


# The compiled type ------------------------------------------------------------------------------
@needs_compiled
def test_an_intake_that_is_part_of_a_cycle_is_collected() -> None:
    """A producer holds its intake, which holds the producer's method that wakes the loop."""

    class Owner:
        def __init__(self) -> None:
            self.intake = make_intake(threading.Lock(), lambda: 0.0, 1.0, self.wake, {}, BYTES_MAX)
            self.intake.lines["t"] = ([], BYTES_MAX)

        def wake(self) -> None: ...

    seen = weakref.ref(Owner())
    gc.collect()
    assert seen() is None


@needs_compiled
def test_an_intake_is_made_of_fitting_parts_only() -> None:
    from vq.client.producer import _intake

    good: list[Any] = [Message, SendFuture, lambda: 0.0, 1.0, print, {}, 10]
    assert _intake.Intake(*good).lines == {}
    for place, wrong in [(0, int), (0, 1), (1, Message), (1, 1), (3, "1"), (5, []), (6, "1")]:
        with pytest.raises((TypeError, AttributeError)):
            _intake.Intake(*good[:place], wrong, *good[place + 1 :])
    for arguments in ([], good[:-1], [*good, 1]):
        with pytest.raises(TypeError):
            _intake.Intake(*arguments)
    with pytest.raises(TypeError, match="keyword"):
        _intake.Intake(*good, more=1)  # type: ignore[call-arg]
    made = _intake.Intake(*good)
    with pytest.raises(TypeError):
        made.take(Message("t", b"x"))  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        made.lines = {}  # type: ignore[misc]


# Messages -------------------------------------------------------------------------------------
NAMES = Message._fields


def reference(*args: Any, **kwargs: Any) -> Message:
    """What a named tuple's own constructor makes or raises."""
    made = Message.__new__(Message, *args, **kwargs)
    assert isinstance(made, Message)
    return made


@pytest.mark.parametrize("positional", range(11))
def test_a_message_is_made_as_any_named_tuple(positional: int) -> None:
    """Every split into positional and named arguments, too many and too few of them too."""
    values = [f"v{n}" for n in range(11)]
    for named in range(10 - min(positional, 9)):
        kwargs = dict(
            zip(NAMES[positional : positional + named], values[positional:], strict=False)
        )
        outcomes = []
        for make in (Message, reference):
            try:
                outcomes.append((type(made := make(*values[:positional], **kwargs)), tuple(made)))
            except TypeError as error:
                outcomes.append((TypeError, str(error)))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {"content": b"x"}),
        (("t",), {"topic": "u", "content": b"x"}),
        (("t", b"x"), {"unknown": 1}),
        (("t", b"x"), {"content": b"y"}),
        ((), {"id": 7, "headers": {"h": "1"}, "content": b"x", "topic": "t"}),
        (("t",), {"".join(["con", "tent"]): b"x"}),  # a name that is not the interned one
    ],
)
def test_odd_calls_end_alike(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    outcomes = []
    for make in (Message, reference):
        try:
            outcomes.append(repr(make(*args, **kwargs)))
        except TypeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_messages_are_copied_pickled_and_derived_as_before() -> None:
    message = Message("t", b"x", key="k", headers={"h": "1"})
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message
    assert message._replace(key=None) == Message("t", b"x", headers={"h": "1"})
    assert type(OtherMessage("t", b"x")) is OtherMessage
    assert OtherMessage("t", b"x") == Message("t", b"x")


@needs_compiled
def test_the_collector_looks_at_a_message_only_where_it_could_matter() -> None:
    assert not gc.is_tracked(Message("t", b"x", "tag", "key", id=1 << 70))
    assert gc.is_tracked(Message("t", b"x", headers={"h": "1"}))
    holder: list[Any] = []
    event = threading.Event()
    seen = weakref.ref(event)
    holder += [Message("t", holder), event]  # type: ignore[arg-type]
    del holder, event
    gc.collect()
    assert seen() is None


@needs_compiled
def test_only_a_named_tuple_can_be_quickened() -> None:
    from vq.client.producer import _intake

    for wrong in (int, 1, None):
        with pytest.raises(TypeError):
            _intake.quicken(wrong)  # type: ignore[arg-type]
    _intake.quicken(Message)  # again: nothing happens
    assert Message("t", b"x").content == b"x"
