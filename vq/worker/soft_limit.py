"""The soft time limit: an exception in the thread of a handler that takes too long.

It is raised between two steps of the handler's Python code, so code that waits inside a call of the
system gets it when that returns; the hard limit of the parent is for those. What the handler
does then is its own: it may tidy up, and raise or return.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from vq.errors import VqError
from vq.model import Message

_LOOKS: Final = 10  # in a limit
_LOOK_S_MAX: Final = 0.5
#: Steps of a loop after which an exception that another thread raised here has come.
_STEPS: Final = 1_000

_raise_in: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc


class SoftTimeLimit(VqError, TimeoutError):
    """The handler of a message takes longer than the soft time limit of its worker."""

    retriable = True
    hint = "the message is tried again, as after any error of its handler"


class SoftLimit:
    """Raises ``SoftTimeLimit`` in threads that are in a handler for longer than ``limit_s``."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._since: dict[int, float] = {}  # by thread
        self._raised: set[int] = set()  # threads whose call was late
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="vq-soft-limit", daemon=True).start()

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()

    def call(self, handler: Callable[[Message], Any], message: Message) -> Any:
        """Call a handler within the limit."""
        thread = threading.get_ident()
        with self._lock:
            self._since[thread] = time.monotonic()
        try:
            return handler(message)
        finally:
            self._leave(thread)

    def _leave(self, thread: int) -> None:
        """Forget a call. What was raised for it and is not here yet comes now, and is dropped.

        It is not taken back: CPython would look for it before each instruction from then on, and
        a thread with a profile function would not go on at all.
        """
        while True:
            try:
                with self._lock:
                    self._since.pop(thread, None)
                    was_late = thread in self._raised
                    self._raised.discard(thread)
                if was_late:
                    for _ in range(_STEPS):
                        pass
                return
            except SoftTimeLimit:  # it came just now: the handler has ended in time
                continue

    def _watch(self) -> None:
        while not self._ended.wait(min(self._limit_s / _LOOKS, _LOOK_S_MAX)):
            late_s = time.monotonic() - self._limit_s
            with self._lock:
                for thread in [each for each, since in self._since.items() if since <= late_s]:
                    del self._since[thread]  # once for each message
                    self._raised.add(thread)
                    _raise_in(ctypes.c_ulong(thread), ctypes.py_object(SoftTimeLimit))
