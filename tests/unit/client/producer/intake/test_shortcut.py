"""A shortcut does what its function does, and looks like it."""

import copy
import functools
import inspect
import pickle
import typing
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from support.queues import queues_of

import vq
from vq.client.future import FailureCallback, SendFuture, check_callback
from vq.client.producer.intake import appender
from vq.client.producer.intake.appender import Appender, PythonAppender, make_appender
from vq.client.producer.intake.shortcut import send_async_shortcut, send_oneway_shortcut
from vq.errors import InvalidArgument
from vq.model import Message

PLAIN, OTHER = Message("t", b"x"), Message("t", b"x", tag="unknown")
TAG_HEAD = (1, b"\0\0\0\1a")
needs_compiled = pytest.mark.skipif(
    not appender.COMPILED, reason="it was not compiled here (no C compiler)"
)


def appender_of(make: Callable[..., Appender], **settings: Any) -> Appender:
    """Return an appender with the topic ``t`` that wakes nobody."""
    wake = settings.get("wake", lambda: None)
    lock = mock.MagicMock()
    made = make(lock, lambda: 1_000.0, 60.0, wake, {"a": TAG_HEAD}, 10_000, 1_000)
    made.topics["t"] = queues_of()
    return made


class Producer:
    """A producer as far as its shortcuts go; ``rest`` notes what is not plain."""

    def __init__(self, appender: Appender) -> None:
        self.appender = appender
        self._append = appender.append
        self._checked = None
        self._unheard = {"t": FailureCallback(print)}
        self.rest: list[tuple[Any, ...]] = []
        self.functions = 0  # calls of them

    @send_async_shortcut
    def send_async(self, message: Any, callback: Any = None, timeout: Any = None) -> Any:
        """Send."""
        self.functions += 1
        if callback is not self._checked:
            check_callback(callback)
            self._checked = callback
        return self._append(message, callback, timeout) or self._send(message, callback, timeout)

    def _send(self, *arguments: Any) -> str:
        self.rest.append(arguments)
        return "the rest"

    @send_oneway_shortcut
    def send_oneway(self, message: Any, timeout: Any = None) -> None:
        self.functions += 1
        if self.appender.append_unheard(message, self._unheard, timeout) is None:
            self._send_unheard(message, timeout)

    def _send_unheard(self, *arguments: Any) -> None:
        self.rest.append(arguments)

    @property
    def appended(self) -> list[SendFuture]:
        return self.appender.topics["t"].appended


@pytest.fixture(
    params=[
        pytest.param(PythonAppender, id="python"),
        pytest.param(make_appender, id="compiled", marks=needs_compiled),
    ]
)
def producer(request: pytest.FixtureRequest) -> Producer:
    """A producer whose shortcuts call their functions, and one where they append by themselves."""
    return Producer(appender_of(request.param))


def callback(_: object, error: object) -> None:
    """Do nothing."""


class Heard:
    def method(self, _: object, error: object) -> None:
        """Do nothing."""


CALLS: list[tuple[tuple[Any, ...], dict[str, Any], Any, float]] = [
    ((), {}, None, 1_060.0),
    ((callback,), {}, callback, 1_060.0),
    ((callback, 2.0), {}, callback, 1_002.0),
    ((), {"callback": callback}, callback, 1_060.0),
    ((), {"timeout": 2}, None, 1_002.0),
    ((callback,), {"timeout": 2}, callback, 1_002.0),
    ((), {"timeout": 2, "callback": callback}, callback, 1_002.0),
    ((None, None), {}, None, 1_060.0),
]


@pytest.mark.parametrize(("given", "named", "heard", "deadline"), CALLS)
def test_a_plain_message_is_appended_however_the_call_is_written(
    producer: Producer, given: Any, named: Any, heard: Any, deadline: float
) -> None:
    future = producer.send_async(PLAIN, *given, **named)
    assert producer.appended == [future]
    assert (future.content, future.callback, future.deadline) == (b"x", heard, deadline)
    assert not producer.rest


@needs_compiled
@pytest.mark.parametrize("given", [None, callback, lambda _, __: None, Heard().method])
def test_a_plain_message_needs_no_function(given: Any) -> None:
    producer = Producer(appender_of(make_appender))
    bound = producer.send_async
    for send in (producer.send_async, bound, functools.partial(Producer.send_async, producer)):
        send(PLAIN, given)
    producer.send_oneway(PLAIN)
    producer.send_oneway(PLAIN, timeout=1)
    assert len(producer.appended) == 5
    assert producer.functions == 0


def test_what_is_not_plain_is_left_to_the_rest(producer: Producer) -> None:
    assert producer.send_async(OTHER, callback, timeout=2) == "the rest"
    assert producer.send_async(message=PLAIN).content == b"x"
    producer.send_oneway(OTHER, 2)
    producer.send_oneway(PLAIN._replace(topic="no callback"))
    assert producer.rest == [
        (OTHER, callback, 2),
        (OTHER, 2),
        (PLAIN._replace(topic="no callback"), None),
    ]


def test_a_one_way_message_gets_the_callback_of_its_topic(producer: Producer) -> None:
    assert producer.send_oneway(PLAIN) is None
    assert producer.send_oneway(PLAIN, timeout=2) is None
    heard = producer._unheard["t"]
    assert [(each.callback, each.deadline) for each in producer.appended] == [
        (heard, 1_060.0),
        (heard, 1_002.0),
    ]


def test_other_code_that_appends_is_called(producer: Producer) -> None:
    """Such as while a transaction is open, or with interceptors."""
    given = []
    producer._append = lambda *arguments: given.append(arguments)
    assert producer.send_async(PLAIN, callback) == "the rest"
    assert given == [(PLAIN, callback, None)]
    assert not producer.appended


async def _waits(_: object, __: object) -> None:
    """A coroutine function."""


def _yields(_: object, __: object) -> Any:
    yield None


class Waiting:
    async def method(self, _: object, __: object) -> None:
        """A coroutine function."""


@pytest.mark.parametrize("refused", [_waits, _yields, Waiting().method, 7, "told"])
def test_no_callback_passes_that_the_function_refuses(producer: Producer, refused: Any) -> None:
    with pytest.raises(InvalidArgument, match="callback = "):
        producer.send_async(PLAIN, refused)
    assert not producer.appended


def test_other_callbacks_are_checked_once(producer: Producer) -> None:
    """An object with ``__call__``: the function looks at it, and lets it pass from then on."""
    heard = functools.partial(callback)
    producer.send_async(PLAIN, heard)
    before = producer.functions
    producer.send_async(PLAIN, heard)
    assert [each.callback for each in producer.appended] == [heard, heard]
    assert producer.functions - before == (
        0 if producer.appender.__class__ is not PythonAppender else 1
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), {}),
        ((PLAIN, None, None, None), {}),
        ((PLAIN, None), {"callback": None}),
        ((PLAIN,), {"message": PLAIN}),
        ((PLAIN,), {"other": None}),
    ],
)
def test_a_wrong_call_raises_what_the_function_raises(
    producer: Producer, given: Any, named: Any
) -> None:
    with pytest.raises(TypeError, match=r"send_async\(\)"):
        producer.send_async(*given, **named)
    with pytest.raises(TypeError, match=r"send_oneway\(\)"):
        producer.send_oneway(*given, **named)
    assert not producer.appended


def test_without_a_producer_the_function_is_called() -> None:
    with pytest.raises(TypeError, match=r"Producer\.send_async\(\) missing"):
        Producer.send_async()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Producer.send_async(object(), PLAIN)  # type: ignore[arg-type]


def test_a_producer_that_is_half_made_raises_as_in_python() -> None:
    """A signal handler may call one whose ``__init__`` was interrupted."""
    producer = object.__new__(Producer)
    for call in (producer.send_async, producer.send_oneway):
        with pytest.raises(AttributeError):
            call(PLAIN)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(PythonAppender, id="python"),
        pytest.param(make_appender, id="compiled", marks=needs_compiled),
    ],
)
def test_what_the_append_raises_comes_out(make: Callable[..., Appender]) -> None:
    def wake() -> None:
        raise KeyboardInterrupt

    producer = Producer(appender_of(make, wake=wake))
    for call in (producer.send_async, producer.send_oneway):
        with pytest.raises(KeyboardInterrupt):
            call(PLAIN)
    assert len(producer.appended) == 2


# What it looks like ---------------------------------------------------------------------------
METHODS = [vq.MessageProducer.send_async, vq.MessageProducer.send_oneway]


@pytest.mark.parametrize("method", METHODS)
def test_to_who_looks_at_it_a_shortcut_is_its_function(method: Any) -> None:
    assert inspect.isfunction(method)
    assert list(inspect.signature(method).parameters)[:2] == ["self", "message"]
    assert "return" in typing.get_type_hints(method)
    assert "Accept one message" in inspect.getdoc(method)
    assert inspect.getsource(method)
    assert repr(method).startswith(f"<function MessageProducer.{method.__name__} at ")
    assert pickle.loads(pickle.dumps(method)) is method
    assert copy.deepcopy(method) is method
    assert getattr(vq.MessageProducer, method.__name__) is method
    assert weakref.ref(method)() is method


def test_a_method_may_be_kept_without_its_producer(producer: Producer) -> None:
    """As libraries of signals keep who listens."""
    for kept in (weakref.WeakMethod(producer.send_async), weakref.WeakMethod(producer.send_oneway)):
        kept()(PLAIN)  # type: ignore[misc]
    assert len(producer.appended) == 2
    gone = weakref.WeakMethod(Producer(producer.appender).send_async)
    assert gone() is None


@needs_compiled
def test_a_shortcut_that_is_gone_is_no_longer_referred_to() -> None:
    def send_async(self: Any, message: Any) -> None:
        """Send."""

    made = appender.accumulator.SendShortcut(send_async, "_send", 0, False)
    kept = weakref.ref(made)
    assert kept() is made
    del made
    assert kept() is None


def test_a_producer_may_be_replaced_by_one_with_the_same_signatures() -> None:
    replaced = mock.create_autospec(vq.MessageProducer, instance=True)
    replaced.send_async(PLAIN, timeout=1)
    with pytest.raises(TypeError, match="missing a required argument: 'message'"):
        replaced.send_async(wrong=1)


def test_a_producer_may_override_its_methods(producer: Producer) -> None:
    class Counting(Producer):
        sent = 0

        def send_async(self, message: Any, callback: Any = None, timeout: Any = None) -> Any:
            self.sent += 1
            return super().send_async(message, callback, timeout)

    derived = Counting(producer.appender)
    assert derived.send_async(PLAIN).content == b"x"
    assert derived.sent == 1


def test_a_producer_may_have_any_other_class_as_a_base() -> None:
    """As wrappers and mixins do: what a shortcut needs takes no place in the layout of objects."""

    class Slotted:
        __slots__ = ("owner",)

    for bases in ((vq.MessageProducer, Slotted), (Slotted, vq.MessageProducer)):
        made = type("Producer", bases, {})
        assert made.send_async is vq.MessageProducer.send_async  # type: ignore[attr-defined]


def test_a_producer_may_look_up_its_attributes_itself(producer: Producer) -> None:
    class Lazy(Producer):
        def __getattribute__(self, name: str) -> Any:
            if name == "_append" and interrupts:
                raise KeyboardInterrupt  # as a signal handler there
            return super().__getattribute__(name)

    interrupts: list[bool] = []
    derived = Lazy(producer.appender)
    assert derived.send_async(PLAIN).content == b"x"
    interrupts.append(True)
    with pytest.raises(KeyboardInterrupt):
        derived.send_async(PLAIN)
    assert len(producer.appended) == 1


@needs_compiled
def test_a_shortcut_is_made_of_fitting_parts_only() -> None:
    make: Any = appender.accumulator.SendShortcut

    def function() -> None:
        pass

    for wrong in [(print, "_send", 0, False), (function, 7, 0, False)]:
        with pytest.raises(TypeError):
            make(*wrong)
    with pytest.raises(TypeError, match="no keyword"):
        make(function=function)
