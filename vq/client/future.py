"""The answer to one ``send``: a future light enough to be made for every message.

``concurrent.futures.Future`` builds a condition variable at birth, which alone costs more than
sending a message may. This one makes its lock only when somebody waits.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from vq.errors import InvalidState, TimedOut, VqError
from vq.log_lines import get_logger
from vq.model import SendResult, check_timeout

logger = get_logger(__name__)

#: Threads in which outcomes are told. One that waited there for another outcome would wait for
#: itself; kept by ``runtime``.
TELLING_THREADS: set[int] = set()

_first_waiter = threading.Lock()  # two threads must not both make the list of a future's waiters


def after_fork() -> None:
    """In the child of a fork: only the calling thread is left.

    A new thread may have the identifier of one that stayed behind, and that one may have held the
    lock.
    """
    global _first_waiter
    TELLING_THREADS.intersection_update({threading.get_ident()})
    _first_waiter = threading.Lock()


#: Of a message without a key: it goes to the partition whose turn it is when batches are made.
ANY_PARTITION = -1

SendCallback = Callable[[SendResult | None, VqError | None], Any]
"""Called once per message with ``(result, None)`` or ``(None, error)``."""


def report(what: str, error: BaseException) -> None:
    """Log what a callback raised, whatever it is, so that the other messages get their outcome.

    ``KeyboardInterrupt`` and ``SystemExit`` are raised again by the application's own event loop
    (``vq.aio``), in its next turn: they end the program as in any asyncio callback, and ctrl-C is
    not lost. On a factory's thread they could only end the sending, so they are logged and no more.
    """
    ends_program = isinstance(error, KeyboardInterrupt | SystemExit)
    if ends_program and threading.get_ident() not in TELLING_THREADS:
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            asyncio.get_running_loop().call_soon(_raise, error)
    logger.error(
        "callback raised", callback=what, exc_info=error
    )  # last: the application's logging may raise


def _raise(error: BaseException) -> None:
    raise error


class SendFuture:
    """What became of one message: pending, stored, refused, or unknown.

    Made by ``send_async``. ``result`` may be called from any thread but the factory's own (where
    callbacks run): waiting there could never end. The public slots are the sender's own notes:

    Attributes:
        content: The payload.
        head: The record's flag bits and the bytes before its payload, None for a plain record.
        callback: See ``SendCallback``.
        deadline: Monotonic time by which there must be an outcome.
        outcome: The result or the error, None while pending; set once.
        waiters: What to call when there is one.
        size: Bytes of the payload and the head.
        partition: Where it shall go, or ``ANY_PARTITION``.
    """

    __slots__ = (
        "callback",
        "content",
        "deadline",
        "head",
        "outcome",
        "partition",
        "size",
        "waiters",
    )

    def __init__(
        self,
        content: bytes,
        head: tuple[int, bytes] | None,
        callback: SendCallback | None,
        deadline: float,
        partition: int = ANY_PARTITION,
    ) -> None:
        self.content = content
        self.head = head
        self.callback = callback
        self.deadline = deadline
        self.outcome: SendResult | VqError | None = None
        self.waiters: list[Callable[[], Any]] | None = None
        self.size = len(content) if head is None else len(content) + len(head[1])
        self.partition = partition

    def done(self) -> bool:
        """Whether the outcome is known (or known to stay unknown)."""
        return self.outcome is not None

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the outcome and return where the message lies.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored.
            TimedOut: ``timeout`` seconds went by first; the send itself goes on.
            InvalidState: This is a callback on the factory's thread, and the outcome is not known.
        """
        outcome = self._wait(timeout)
        if isinstance(outcome, VqError):
            raise outcome
        return outcome

    def exception(self, timeout: float | None = None) -> VqError | None:
        """Wait for the outcome and return its error, or None when the message is stored.

        Raises:
            TimedOut: ``timeout`` seconds went by first.
        """
        outcome = self._wait(timeout)
        return outcome if isinstance(outcome, VqError) else None

    def _wait(self, timeout: float | None) -> SendResult | VqError:
        if self.outcome is None:
            if threading.get_ident() in TELLING_THREADS:
                raise InvalidState(
                    "waiting for an outcome inside a callback would wait for itself; "
                    "use add_done_callback there"
                )
            bound = -1 if timeout is None else check_timeout(timeout)
            lock = threading.Lock()
            lock.acquire()
            self._on_done(lock.release)
            if not lock.acquire(timeout=bound):
                with contextlib.suppress(ValueError, AttributeError):  # it is being called now
                    self.waiters.remove(lock.release)  # type: ignore[union-attr]
                raise TimedOut(f"no outcome within {timeout} s; the send goes on")
        assert self.outcome is not None
        return self.outcome

    def add_done_callback(self, callback: "Callable[[SendFuture], Any]") -> None:
        """Call ``callback(self)`` once the outcome is known, at once if it already is.

        It runs on the factory's thread: it must be short and must not wait for vq. What it raises
        is logged, whatever it is.
        """

        def tell() -> None:
            try:
                callback(self)
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                report("a done callback of a send", error)

        self._on_done(tell)

    def _on_done(self, wake: Callable[[], Any]) -> None:
        with _first_waiter:
            if self.waiters is None:
                self.waiters = []
        self.waiters.append(wake)
        # The outcome may have come between the caller's look and the append: then nobody else
        # calls the waiters any more. Each is popped before it is called, so none is called twice.
        if self.outcome is not None:
            self.wake()

    def wake(self) -> None:
        """Call whoever waits. For the sender only, after the outcome was noted."""
        waiters = self.waiters
        while waiters:
            try:
                wake = waiters.pop(0)
            except IndexError:
                return
            wake()

    def fail(self, error: VqError) -> None:
        """Note that the message was refused or its fate is unknown. For the sender only, once."""
        assert self.outcome is None, "the outcome of a send is set once"
        self._tell(error, None, error)

    def succeed(self, result: SendResult) -> None:
        """Note where the message is stored. For the sender only, once; batches do it faster."""
        self._tell(result, result, None)

    def _tell(
        self, outcome: SendResult | VqError, result: SendResult | None, error: VqError | None
    ) -> None:
        self.outcome = outcome
        if self.callback is not None:
            try:
                self.callback(result, error)
            except BaseException as raised:  # noqa: BLE001 - the user's code may raise anything
                report("a send callback", raised)
        if self.waiters is not None:
            self.wake()


class BlockingSendFuture(SendFuture):
    """The outcome of a blocking send. Its thread sleeps until there is one, or it shall lead.

    Attributes:
        leads: Its thread may be given the lead: it sends what waits for the partition. Set by that
            thread, which takes it back before anything else when it leaves; an owner of a queue
            without it has gone.
    """

    __slots__ = ("_turn", "leads")

    def __init__(
        self,
        content: bytes,
        head: tuple[int, bytes] | None,
        callback: SendCallback | None,
        deadline: float,
    ) -> None:
        super().__init__(content, head, callback, deadline)
        self.leads = False
        self._turn = threading.Lock()
        self._turn.acquire()
        self.waiters = []

    def wake(self) -> None:
        """Wake its thread, and call whoever else waits; again, when it was interrupted."""
        self.rouse()
        super().wake()

    def rouse(self) -> None:
        """Wake its thread, or keep it from falling asleep once."""
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._turn.release()

    def sleep(self, seconds: float) -> bool:
        """Sleep until it is roused, at most so long; return whether it was. For its thread only."""
        return self._turn.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))


class LoopSendFuture(SendFuture):
    """The outcome of a send of ``vq.aio``. It comes on the loop, which must not wait for it."""

    __slots__ = ()

    def _wait(self, timeout: float | None) -> SendResult | VqError:
        if self.outcome is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass  # another thread, which may wait
            else:
                raise InvalidState(
                    "waiting for an outcome here would keep the event loop from getting it; use "
                    "`await producer.send(...)`, or add_done_callback"
                )
        return super()._wait(timeout)
