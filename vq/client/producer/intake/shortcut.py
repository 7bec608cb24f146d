"""Shortcuts: methods of a producer that take plain messages without a frame of Python.

An application calls ``send_async`` once per message. As a function of Python it costs as much as a
half of what it does: a frame, and the arguments once more for ``Appender.append``. Where the loops
are compiled, the class has a *shortcut* in its place (``_shortcut.h``): it reads the arguments,
appends a plain message by itself, and calls the function for everything else. To everyone who looks
at it, it is that function: signature, documentation, ``inspect.isfunction``. It may be overridden.

It reads three attributes of a producer: ``_append`` takes a plain message, and only
``Appender.append`` is called by a shortcut itself; ``_checked`` is a callback that
``check_callback`` has let through; ``_unheard`` has the callbacks of one-way messages by topic.
They are no slots: a class with slots could have no other base with slots.

The function is the reference, and it runs if nothing was compiled.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from vq.client.future import accumulator
from vq.client.kinds import NOT_PLAIN

F = TypeVar("F", bound=Callable[..., object])


def send_async_shortcut(method: F) -> F:
    """Return the shortcut of a ``send_async``; it calls ``_send`` if the message is not plain."""
    return _shortcut(method, "_send", is_oneway=False)


def send_oneway_shortcut(method: F) -> F:
    """Return the shortcut of a ``send_oneway``; it calls ``_send_unheard`` if it is not plain."""
    return _shortcut(method, "_send_unheard", is_oneway=True)


def _shortcut(method: F, rest: str, *, is_oneway: bool) -> F:
    if accumulator is None:
        return method
    return cast("F", accumulator.SendShortcut(method, rest, NOT_PLAIN, is_oneway))
