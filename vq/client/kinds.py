"""Checks the kind of what an application gives. The error shows it, and says what to give."""

import functools
import inspect
from typing import Any, Final, TypeVar

from vq.errors import InvalidArgument
from vq.model import Message
from vq.shown import shown

T = TypeVar("T")
#: Flags of functions whose call alone runs nothing.
NOT_PLAIN: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR


def check_function(what: str, function: object, instead: str) -> None:
    """Refuse what cannot be called, and functions whose call alone runs nothing.

    Those are coroutine functions and generators: nothing awaits or iterates over what they return.

    Args:
        what: What it is for, such as ``callback``.
        function: What the application gave.
        instead: What to give.

    Raises:
        InvalidArgument: It is no plain function.
    """
    if not callable(function):
        raise InvalidArgument(f"{what} = {shown(function)} cannot be called; {instead}")
    if _runs_nothing(function) or _runs_nothing(type(function).__call__):
        raise InvalidArgument(
            f"{what} = {shown(function)} is a coroutine function or a generator, which a call "
            f"alone does not run; {instead}"
        )


def topic_named(message: object) -> str:
    """Return the topic of a message that was not checked; "": it is none, or has no text there."""
    topic = message.topic if isinstance(message, Message) else ""
    return topic if isinstance(topic, str) else ""


def check_handler(what: str, function: object, instead: str) -> None:
    """Refuse what cannot be called, classes and generators; coroutine functions may be handlers.

    Args:
        what, function, instead: See ``check_function``.

    Raises:
        InvalidArgument: It is no plain function, and no coroutine function.
    """
    if not callable(function) or inspect.isclass(function):
        raise InvalidArgument(f"{what} = {shown(function)} is {type(function).__name__}; {instead}")
    if _is_generator(function) or _is_generator(type(function).__call__):
        raise InvalidArgument(
            f"{what} = {shown(function)} is a generator, which a call alone does not run; {instead}"
        )


def check_arguments(name: str, function: Any, count: int, instead: str) -> None:
    """Refuse a function that cannot be called with so many arguments: it would fail each time.

    One that does not say what it takes is let through.

    Args:
        name: Of the function, as the error shows it before its signature.
        function, instead: See ``check_function``.
        count: How many arguments it gets.

    Raises:
        InvalidArgument: It cannot.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not all that is compiled has one
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise InvalidArgument(f"{name}{signature} cannot be called: {error}; {instead}") from error


def check_takes_message(what: str, function: Any) -> None:
    """Refuse a listener or a handler that does not take one argument.

    Raises:
        InvalidArgument: It does not.
    """
    name = getattr(function, "__name__", "") or shown(function)
    check_arguments(f"{what} {name}", function, 1, "give a function of one argument, the message")


def _runs_nothing(function: Any) -> bool:
    return inspect.iscoroutinefunction(_called(function)) or _is_generator(function)


def _is_generator(function: Any) -> bool:
    function = _called(function)
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def _called(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def check_text(what: str, text: object) -> None:
    """Refuse what is no text.

    Raises:
        InvalidArgument: It is none.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} = {shown(text)} is {type(text).__name__}; give text")


def settings_of(kind: type[T], given: object, name: str = "config") -> T:
    """Return the settings that an application gave, the defaults for None.

    Raises:
        InvalidArgument: They are of another class.
    """
    if given is None:
        return kind()
    return given_settings(kind, given, name, f"give vq.{kind.__name__}(...), or leave it out")


def given_settings(kind: type[T], given: object, name: str, instead: str) -> T:
    """Return the settings that an application gave; ``instead`` says what to give.

    Raises:
        InvalidArgument: They are of another class, or None.
    """
    if not isinstance(given, kind):
        what = f"the class {given.__name__}" if isinstance(given, type) else shown(given)
        raise InvalidArgument(f"{name} = {what} is no {kind.__name__}; {instead}")
    return given
