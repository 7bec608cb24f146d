"""The outcome of one ``send``: a future that is cheap enough to make for every message.

``concurrent.futures.Future`` makes a condition variable in its constructor, which alone costs more
than a send may. ``SendFuture`` makes a lock only when a thread waits.
"""

import asyncio
import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Generator
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, cast

from vq.client.kinds import NOT_PLAIN, check_function
from vq.client.loop_calls import call_soon
from vq.errors import InvalidState, TimedOut, VqError
from vq.log_lines import get_logger
from vq.model import SendResult, check_timeout
from vq.waits import Latch, step_aside

try:
    from vq.client.producer import _accumulator
except ImportError:  # it was not compiled
    _accumulator = None  # type: ignore[assignment]

#: What producers run per message, compiled; None: nothing was, or by an earlier checkout, whose
#: module has not all of it.
accumulator: Final[Any] = _accumulator if hasattr(_accumulator, "SendShortcut") else None

logger = get_logger(__name__)

#: Threads that run callbacks; ``runtime`` keeps the set. A callback that waited for an outcome in
#: such a thread would wait for itself.
CALLBACK_THREADS: set[int] = set()

_first_waiter = threading.Lock()  # guards the creation of a future's list of waiters


def after_fork() -> None:
    """Reset the module in the child of a fork, where only the calling thread exists.

    A new thread may get the identifier of a thread of the parent, which may have held the lock.
    """
    global _first_waiter
    CALLBACK_THREADS.intersection_update({threading.get_ident()})
    _first_waiter = threading.Lock()


#: The partition of a message without a key: the round robin chooses it when batches are made.
ANY_PARTITION = -1

SendCallback = Callable[[SendResult | None, VqError | None], Any]
"""Called once per message with ``(result, None)`` or ``(None, error)``."""


#: Classes whose ``__call__`` is a plain function: their objects need no further look. Bounded: it
#: keeps the classes alive.
_PLAIN_KINDS: set[type] = set()
_PLAIN_KINDS_MAX = 64


def check_callback(callback: object) -> None:
    """Refuse what cannot be a send's callback.

    Each send calls it, so the usual kinds take a fast way: functions, methods, ``partial`` of them,
    and objects whose class defines ``__call__``. ``check_function`` costs more than a send.

    Raises:
        InvalidArgument: It is no function, or a coroutine function, which nothing would await.
    """
    if callback is None:
        return
    kind, function = type(callback), cast("Any", callback)
    if kind in _PLAIN_KINDS:
        return
    if kind is FunctionType and not function.__code__.co_flags & NOT_PLAIN:
        return
    while type(function) is functools.partial:
        function = function.func
    if type(function) is MethodType:
        function = function.__func__
    elif type(function) is not FunctionType:
        function = type(function).__call__
    if type(function) is FunctionType and not function.__code__.co_flags & NOT_PLAIN:
        if kind not in {MethodType, functools.partial} and len(_PLAIN_KINDS) < _PLAIN_KINDS_MAX:
            _PLAIN_KINDS.add(kind)
        return
    check_function("callback", callback, "give a plain function of the result and the error")


def report(what: str, error: BaseException) -> None:
    """Log any exception of a callback, so that the other messages still get their outcome.

    With ``vq.aio`` the application's event loop raises ``KeyboardInterrupt`` and ``SystemExit``
    again in its next iteration: they end the program as in any asyncio callback, and Ctrl-C is not
    lost. On a factory's thread they could only stop the sending, so they are only logged.
    """
    ends_program = isinstance(error, KeyboardInterrupt | SystemExit)
    if ends_program and threading.get_ident() not in CALLBACK_THREADS:
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            asyncio.get_running_loop().call_soon(_raise, error)
    logger.error(
        "callback raised", callback=what, exc_info=error
    )  # the last step, because the application's logging may raise


def _raise(error: BaseException) -> None:
    raise error


def _own(error: VqError) -> VqError:
    """Return a copy of an outcome, to be raised.

    All messages of a batch share one error. Python notes in an error each place where it is raised,
    with the local variables there, and keeps them as long as the error.
    """
    raised = copy.copy(error)
    if error.__cause__ is not None:
        raised.__cause__ = error.__cause__
    return raised


def _end_wait(loop: asyncio.AbstractEventLoop, waiter: "asyncio.Future[None]") -> None:
    """End the wait of a task for an outcome; from any thread."""
    if asyncio._get_running_loop() is not loop:
        call_soon(loop, _end_wait, loop, waiter)
    elif not waiter.done():
        waiter.set_result(None)


def _hand_over(
    loop: asyncio.AbstractEventLoop, turn: "asyncio.Future[SendResult | None]", future: "SendFuture"
) -> None:
    """Give the outcome of ``future`` to the task that awaits ``turn``; from any thread."""
    if asyncio._get_running_loop() is not loop:
        call_soon(loop, _hand_over, loop, turn, future)
    elif not turn.done():
        outcome = future.outcome
        if isinstance(outcome, VqError):
            turn.set_exception(_own(outcome))
        else:
            turn.set_result(outcome)


class FailureCallback:
    """A callback of sends that does nothing with a result, so nobody need call it with one.

    Args:
        failed: Called with the error of a message that is not known to be stored.
    """

    __slots__ = ("__weakref__", "_failed")

    def __init__(self, failed: Callable[[VqError], object]) -> None:
        self._failed = failed

    def __call__(self, _: SendResult | None, error: VqError | None) -> None:
        """See ``SendCallback``."""
        if error is not None:
            self._failed(error)


class PythonFutureFields:
    """What a future holds; in C, ``_future.h``, where that was compiled. See ``SendFuture``."""

    __slots__ = (
        "appended_at",
        "callback",
        "content",
        "deadline",
        "dealt",
        "head",
        "outcome",
        "partition",
        "size",
        "waiters",
    )
    appended_at: float
    callback: SendCallback | None
    content: bytes
    deadline: float
    dealt: bool
    head: tuple[int, bytes] | None
    outcome: SendResult | VqError | None
    partition: int
    size: int
    waiters: list[Callable[[], Any]] | None

    def __init__(
        self,
        content: bytes,
        head: tuple[int, bytes] | None,
        callback: SendCallback | None,
        deadline: float,
        partition: int = ANY_PARTITION,
        appended_at: float = 0.0,
    ) -> None:
        self.content = content
        self.head = head
        self.callback = callback
        self.appended_at = appended_at
        self.deadline = deadline
        self.outcome = None
        self.waiters = None
        self.size = len(content) if head is None else len(content) + len(head[1])
        self.partition = partition


if TYPE_CHECKING:
    FutureFields = PythonFutureFields
else:
    FutureFields = PythonFutureFields if accumulator is None else accumulator.FutureFields


class SendFuture(FutureFields):
    """The outcome of one message: pending, stored, refused, or unknown.

    ``send_async`` makes it. Any thread may call ``result``, except the factory's own, which runs
    callbacks: a wait there would never end. With asyncio, ``await future``: ``result`` would block
    the loop, so with ``vq.aio`` it raises ``InvalidState`` before there is an outcome.

    For the sender only:

    Attributes:
        content: The payload.
        head: The record's flag bits and the bytes before its payload, None for a plain record.
        callback: See ``SendCallback``; dropped once it was called.
        appended_at: Monotonic time at which the message was accepted.
        deadline: Monotonic time by which there must be an outcome.
        outcome: The result or the error, None while pending; set once.
        waiters: Functions to call when the outcome is set.
        size: Bytes of the payload and the head.
        partition: The partition it goes to, or ``ANY_PARTITION``.
        dealt: The spread chose ``partition``, not a key or a partitioner. Only set if it is so,
            see ``is_dealt``: a message without it costs nothing for it.
    """

    __slots__ = ()

    @property
    def is_dealt(self) -> bool:
        """Whether the spread chose its partition, or is to choose it. For the sender only."""
        return self.partition == ANY_PARTITION or getattr(self, "dealt", False)

    def done(self) -> bool:
        """Return whether there is an outcome; "unknown" is one, too."""
        return self.outcome is not None

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the outcome and return the message's partition, offset and id.

        The error is raised as an object of its own at each call; ``exception`` returns the one that
        all messages of a batch share.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored.
            TimedOut: There is no outcome within ``timeout`` seconds; the send goes on.
            InvalidArgument: ``timeout`` is not a number.
            InvalidState: A callback on the factory's thread calls this before there is an outcome.
        """
        outcome = self._wait(None if timeout is None else check_timeout(timeout))
        if isinstance(outcome, VqError):
            raise _own(outcome)
        return outcome

    def exception(self, timeout: float | None = None) -> VqError | None:
        """Wait for the outcome and return its error, or None when the message is stored.

        Raises:
            TimedOut: There is no outcome within ``timeout`` seconds.
        """
        outcome = self._wait(None if timeout is None else check_timeout(timeout))
        return outcome if isinstance(outcome, VqError) else None

    def _wait(self, bound: float | None) -> SendResult | VqError:
        """Wait for so many seconds, without end for None."""
        if self.outcome is None:
            if threading.get_ident() in CALLBACK_THREADS:
                raise InvalidState(
                    "waiting for an outcome inside a callback would wait for itself; "
                    "use add_done_callback there"
                )
            step_aside()
            ended = Latch()
            self._on_done(ended.set)
            if not ended.wait(bound):
                self._forget(ended.set)
                raise TimedOut(
                    f"no outcome within {bound:g} s; the send goes on",
                    hint="wait again, or for longer; the message has a deadline of its own",
                )
        assert self.outcome is not None
        return self.outcome

    def __await__(self) -> Generator[Any, None, SendResult]:
        """Wait for the outcome on an event loop, as ``result`` does in a thread.

        ``await future``, ``asyncio.gather`` and ``asyncio.wait_for`` all take it, on any loop and
        as often as you like. If the waiting task is cancelled, only its wait ends: the message is
        sent nevertheless, and the future still gets its outcome.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored.
        """
        if self.outcome is None:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            # One object instead of two closures with their cells: many sends are awaited at once,
            # and the garbage collector visits the objects of all of them.
            wake = functools.partial(_end_wait, loop, waiter)
            self._on_done(wake)
            try:
                yield from waiter
            finally:
                self._forget(wake)
        return self.result()

    def end_with(self, turn: "asyncio.Future[SendResult | None]") -> None:
        """Give ``turn`` the outcome, on its loop, once there is one. For the sender only."""
        self._on_done(functools.partial(_hand_over, turn.get_loop(), turn, self))

    def add_done_callback(self, callback: "Callable[[SendFuture], Any]") -> None:
        """Call ``callback(self)`` once there is an outcome; at once if there is one already.

        It runs on the factory's thread: it must be short and must not wait for vq. An exception
        that it raises is logged.

        Raises:
            InvalidArgument: It is no function, or a coroutine function.
        """
        check_function("callback", callback, "give a plain function of the future")

        def call() -> None:
            try:
                callback(self)
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
                report("a done callback of a send", error)

        self._on_done(call)

    def _on_done(self, wake: Callable[[], Any]) -> None:
        with _first_waiter:
            if self.waiters is None:
                self.waiters = []
        self.waiters.append(wake)
        # The outcome may have been set just before the append; then only this thread can call the
        # waiter. ``wake`` pops each waiter before the call, so none is called twice.
        if self.outcome is not None:
            self.wake()

    def _forget(self, wake: Callable[[], Any]) -> None:
        """Do not call a waiter any more; it may be called just now, or was."""
        if self.waiters:
            with contextlib.suppress(ValueError):
                self.waiters.remove(wake)

    def wake(self) -> None:
        """Call the waiters. For the sender only, after it has set the outcome."""
        waiters = self.waiters
        while waiters:
            try:
                wake = waiters.pop(0)
            except IndexError:
                return
            wake()

    def fail(self, error: VqError) -> None:
        """Set the outcome to an error: refused or unknown. For the sender only, once."""
        assert self.outcome is None, "the outcome of a send is set once"
        self._resolve(error, None, error)

    def succeed(self, result: SendResult) -> None:
        """Set the outcome to "stored". For the sender only, once; ``Batch`` is faster."""
        self._resolve(result, result, None)

    def _resolve(
        self, outcome: SendResult | VqError, result: SendResult | None, error: VqError | None
    ) -> None:
        self.outcome = outcome
        callback = self.callback
        if callback is not None:
            try:
                callback(result, error)
            except BaseException as raised:  # noqa: BLE001 - the user's code may raise anything
                report("a send callback", raised)
            self.callback = None  # it may refer to this future
        if self.waiters is not None:
            self.wake()


class BlockingSendFuture(SendFuture):
    """The outcome of a blocking send. Its thread sleeps until there is one, or until it leads.

    Attributes:
        leads: The thread may take the lead: it sends the waiting messages of the partition. None:
            it has not asked yet, and does so next. The thread sets it, and clears it as its first
            step when it leaves. If the owner of a queue has it cleared, its thread has left.
        is_busy: Its thread may be about to change the queue, so that nobody can take over. Cleared
            while it waits: for its outcome, for space, for other messages, or for the broker.
    """

    __slots__ = ("_wake_lock", "is_busy", "leads")

    def __init__(
        self,
        content: bytes,
        head: tuple[int, bytes] | None,
        callback: SendCallback | None,
        deadline: float,
        partition: int = ANY_PARTITION,
        appended_at: float = 0.0,
    ) -> None:
        super().__init__(content, head, callback, deadline, partition, appended_at)
        self.leads: bool | None = None
        self.is_busy = True
        self._wake_lock = threading.Lock()
        self._wake_lock.acquire()
        self.waiters = []

    def wake(self) -> None:
        """Wake the thread and call the other waiters; may be called again after an interrupt."""
        self.rouse()
        if self.waiters:
            super().wake()

    def rouse(self) -> None:
        """Wake the thread; if it is awake, its next sleep returns at once."""
        try:  # not ``contextlib.suppress``, which costs as much as a batch's checksum
            self._wake_lock.release()
        except RuntimeError:
            pass  # it is awake already

    def sleep(self, seconds: float) -> bool:
        """Sleep until ``rouse``, at most so long; return whether it came. For its thread only."""
        return self._wake_lock.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))


class LoopSendFuture(SendFuture):
    """The outcome of a send of ``vq.aio``. The loop sets it, so the loop must not wait for it."""

    __slots__ = ()

    def _wait(self, bound: float | None) -> SendResult | VqError:
        if self.outcome is None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass  # another thread, which may wait
            else:
                raise InvalidState(
                    "waiting for an outcome here would keep the event loop from getting it; use "
                    "`await future`, or add_done_callback"
                )
        return super()._wait(bound)
