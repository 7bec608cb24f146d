"""The answer to one ``send``: a future light enough to be made for every message.

``concurrent.futures.Future`` builds a condition variable at birth, which alone costs more than
sending a message may. This one makes its lock only when somebody waits.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from vq.errors import InvalidState, TimedOut, VqError
from vq.model import SendResult

logger = logging.getLogger(__name__)

SendCallback = Callable[[SendResult | None, VqError | None], Any]
"""Called once per message with ``(result, None)`` or ``(None, error)``."""


class SendFuture:
    """What became of one message: pending, stored, refused, or unknown.

    Made by ``send_async``. ``result`` may be called from any thread but the factory's own (where
    callbacks run): waiting there could never end. The slots without underscore are the sender's
    own notes about the message.
    """

    __slots__ = (
        "_error",
        "callback",
        "content",
        "deadline",
        "message_id",
        "offset",
        "partition",
        "properties",
        "tag",
        "waiters",
    )

    def __init__(
        self,
        content: bytes,
        tag: bytes | None,
        properties: bytes | None,
        callback: SendCallback | None,
        deadline: float,
    ) -> None:
        self.content = content
        self.tag = tag
        self.properties = properties
        self.callback = callback
        self.deadline = deadline
        self.message_id = 0
        self.partition = -1
        self.offset = -1
        self._error: VqError | None = None
        self.waiters: list[Callable[[], Any]] | None = None

    def done(self) -> bool:
        """Whether the outcome is known (or known to stay unknown)."""
        return self.offset >= 0 or self._error is not None

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the outcome and return where the message lies.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored.
            TimedOut: ``timeout`` seconds went by first; the send itself goes on.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return SendResult(self.partition, self.offset, self.message_id)

    def exception(self, timeout: float | None = None) -> VqError | None:
        """Wait for the outcome and return its error, or None when the message is stored.

        Raises:
            TimedOut: ``timeout`` seconds went by first.
        """
        if not self.done():
            lock = threading.Lock()
            lock.acquire()
            self._on_done(lock.release)
            if not lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
                raise TimedOut(f"no outcome within {timeout} s; the send goes on")
        return self._error

    def add_done_callback(self, callback: "Callable[[SendFuture], Any]") -> None:
        """Call ``callback(self)`` once the outcome is known, at once if it already is.

        It runs on the factory's thread: it must be short and must not wait for vq.
        """
        self._on_done(lambda: callback(self))

    def _on_done(self, wake: Callable[[], Any]) -> None:
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(wake)
        # The outcome may have come between the caller's look and the append: then nobody else
        # calls the waiters any more. Each is popped before it is called, so none is called twice.
        if self.done():
            self.wake()

    def wake(self) -> None:
        """Call whoever waits. For the sender only, after the outcome was noted."""
        waiters = self.waiters
        while waiters:
            try:
                wake = waiters.pop()
            except IndexError:
                return
            wake()

    def fail(self, error: VqError) -> None:
        """Note that the message was refused or its fate is unknown. For the sender only, once."""
        if self.done():
            raise InvalidState("the outcome of a send is set once")
        self._error = error
        if self.callback is not None:
            self._call(None, error)
        if self.waiters is not None:
            self.wake()

    def _call(self, result: SendResult | None, error: VqError | None) -> None:
        """Run the callback; what it raises is its own fault and must not reach the sender."""
        assert self.callback is not None
        try:
            self.callback(result, error)
        except Exception:
            logger.exception("a send callback raised")
