"""Log lines: one event a line, a constant message, then ``key=value`` pairs.

In here: the form, and the logger that every module of vq takes from ``get_logger``. Not in here:
handlers, levels, where lines go; an application or a command sets these up. Example::

    logger = get_logger(__name__)
    logger.warning("disk is full, appends are refused", path=path, error=error)

    disk is full, appends are refused path=/var/lib/vq/b1 error="OSError: [Errno 28] No space …"

A value is quoted if it is empty, is ``-``, or holds a space, ``"``, ``=``, ``\\`` or a character
that is not printable; inside quotes, ``"`` and ``\\`` have a ``\\`` in front, and what is not
printable is escaped (``\\n``, ``\\x1b``). None is ``-``, a truth value ``true`` or ``false``.

A logging call raises no ``Exception``. Handlers and filters are the application's: what they raise
would end the task that logs, or leave its work half done. It goes to ``sys.stderr``, as ``logging``
does with errors of its own handlers.
"""

import contextlib
import logging
import re
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, Final

#: Longest text of one value. A text from a peer or from an application may be longer; it is cut.
VALUE_CHARS_MAX: Final = 2000
_NEEDS_QUOTES: Final = re.compile(r'[ "=\\]')
#: Keyword arguments of a logging call that are not fields of the line.
_OPTIONS: Final = ("exc_info", "stack_info", "stacklevel")


class Line:
    """A message and its fields; the text is made when a handler asks for it.

    Attributes:
        message: What happened, the same text each time.
        fields: The values of this time, by key.
    """

    __slots__ = ("fields", "message")

    def __init__(self, message: str, fields: dict[str, Any]) -> None:
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        pairs = (f"{key}={_quoted(_text_of(value))}" for key, value in self.fields.items())
        return " ".join((self.message, *pairs))


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls take a constant message, and the fields as keyword arguments.

    A line below the logger's level costs the call alone: no text is made.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Line, MutableMapping[str, Any]]:
        """Make the line; called by ``logging``, for a level that is enabled."""
        options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
        fields = {key: value for key, value in kwargs.items() if key not in _OPTIONS}
        return Line(msg, fields), options

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line; every other method calls this one."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's place, not this one
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - the application's handler raises anything
            _show_failure()


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(logging.getLogger(name), {})


def _show_failure() -> None:
    """Show the present exception where ``logging`` shows errors of its handlers."""
    if logging.raiseExceptions and sys.stderr is not None:
        with contextlib.suppress(Exception):  # a closed stream, say
            sys.stderr.write("--- Logging error ---\n")
            traceback.print_exc(file=sys.stderr)


def _text_of(value: object) -> str | None:
    """Return a value as text, None for None; an exception begins with its class."""
    if value is None:
        return None
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, BaseException):
        text = ": ".join(filter(None, (type(value).__name__, str(value))))
    else:
        text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def _quoted(text: str | None) -> str:
    if text is None:
        return "-"
    if text not in {"", "-"} and text.isprintable() and not _NEEDS_QUOTES.search(text):
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char.isprintable() else repr(char)[1:-1]
