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

A thread that called ``never_wait`` waits for no lock of ``logging`` and for no handler: one thread
of this module writes its lines. Whoever waits for such a thread may hold these locks: whatever
``logging.config.dictConfig`` calls holds the lock of the module, and a handler holds its own. The
lines keep their order, time, thread and context. At most ``LINES_MAX`` wait. At this bound the
thread waits as long as lines are written; once none was for ``STALLED_S``, further ones are
dropped, and their number is logged.
"""

import atexit
import contextlib
import contextvars
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final

#: Longest text of one value. A text from a peer or from an application may be longer; it is cut.
VALUE_CHARS_MAX: Final = 2000
_NEEDS_QUOTES: Final = re.compile(r'[ "=\\]')
#: Keyword arguments of a logging call that are not fields of the line.
_OPTIONS: Final = ("exc_info", "stack_info", "stacklevel")

#: Lines that wait for the thread that writes them.
LINES_MAX: Final = 1000
#: Without a line written for so long, a thread that never waits loses lines instead of waiting.
STALLED_S: Final = 1.0
#: How long the end of the process waits for lines that are not written.
_EXIT_S: Final = 2.0
#: After so long without a line the thread that writes ends.
_IDLE_S: Final = 0.5


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

    def settle(self) -> None:
        """Make text of values that may change before the line is written."""
        for key, value in self.fields.items():
            if not isinstance(value, str | int | float | BaseException | None):
                self.fields[key] = _text_of(value)

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
            if getattr(_thread, "never_waits", False):
                self._hand_on(level, msg, args, kwargs)
            else:
                super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - the application's handler raises anything
            _show_failure()

    def _hand_on(
        self, level: int, msg: object, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> None:
        """Make the record of a line here, and have it written by another thread."""
        logger = self.logger
        # Not ``isEnabledFor``: it takes the lock of ``logging`` for a level that is not cached.
        if logger.disabled or level <= logger.manager.disable or level < logger.getEffectiveLevel():
            return
        line, options = self.process(msg, kwargs)
        line.settle()
        cause = options.get("exc_info")
        if isinstance(cause, BaseException):
            cause = (type(cause), cause, cause.__traceback__)
        elif cause and not isinstance(cause, tuple):
            cause = sys.exc_info()
        file, number, function, stack = logger.findCaller(
            options.get("stack_info", False), options["stacklevel"] + 1
        )
        record = logger.makeRecord(
            logger.name, level, file, number, line, args, cause or None, function, sinfo=stack
        )
        _writer.write(logger, record)


class _LineWriter:
    """Writes the lines of threads that never wait, on a thread that exists while there are some."""

    def __init__(self) -> None:
        self._lines: deque[tuple[contextvars.Context, logging.Logger, logging.LogRecord]] = deque()
        # Guards the rest; reentrant: finalizers log. Entered as the lock that it is: where the
        # handler of a signal raises in the entry of a condition, the lock stays taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._is_running = False
        self._written_at = 0.0
        self._dropped = 0

    def write(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        """Have a record written, or lose it if none has been written for ``STALLED_S``."""
        with self._lock:
            if self._is_running or self._start():
                self._append(logger, record)
                return
        logger.handle(record)

    def _append(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        while len(self._lines) >= LINES_MAX:
            left_s = self._written_at + STALLED_S - time.monotonic()
            if left_s <= 0.0:
                self._dropped += 1
                return
            self._changed.wait(left_s)
        if not self._lines:
            self._written_at = time.monotonic()
        self._lines.append((contextvars.copy_context(), logger, record))
        self._changed.notify_all()

    def _start(self) -> bool:
        """Start the thread; False: a process that ends, for one, may start none."""
        self._is_running = True
        try:
            threading.Thread(target=self._run, name="vq-log-lines", daemon=True).start()
        except RuntimeError:
            self._is_running = False
        return self._is_running

    def drain(self, timeout_s: float) -> None:
        """Wait, at most so long, until everything is written."""
        with self._lock:
            self._changed.wait_for(lambda: not self._lines, timeout_s)

    def _run(self) -> None:
        while True:
            self._write_all()
            with self._lock:
                if not self._changed.wait_for(lambda: self._lines, _IDLE_S):
                    self._is_running = False
                    return

    def _write_all(self) -> None:
        while self._lines:
            context, logger, record = self._lines[0]
            try:
                context.run(logger.handle, record)
            except BaseException:  # noqa: BLE001 - a handler cannot end the program from here
                _show_failure()
            with self._lock:
                self._lines.popleft()  # now: ``drain`` waits for what is being written, too
                self._written_at = time.monotonic()
                dropped, self._dropped = self._dropped, 0
                self._changed.notify_all()
            if dropped:
                _logger.warning(
                    "log lines were dropped, because handlers took none for some time",
                    dropped=dropped,
                    stalled_s=STALLED_S,
                )


def never_wait() -> None:
    """Have this thread never wait for handlers: from now on another one writes its lines."""
    _thread.never_waits = True


def drain() -> None:
    """Wait a bounded time for the lines of threads that never wait; for the end of a process."""
    _writer.drain(_EXIT_S)


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(logging.getLogger(name), {})


def _after_fork() -> None:
    """Begin anew in the child of a fork: its parent writes the lines that wait."""
    global _writer
    _writer = _LineWriter()


_thread = threading.local()
_writer = _LineWriter()
_logger = get_logger(__name__)
atexit.register(drain)  # after the last work of factories, before ``logging.shutdown``
os.register_at_fork(after_in_child=_after_fork)


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
