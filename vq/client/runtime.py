"""The event loop of the blocking API: one thread per factory, and its state after a fork."""

import asyncio
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, TypeVar

import uvloop

from vq.client import exits
from vq.client.future import CALLBACK_THREADS, after_fork
from vq.client.loop_calls import call_soon
from vq.errors import InvalidArgument, InvalidState, TimedOut
from vq.log_lines import get_logger, never_wait
from vq.model import check_timeout
from vq.waits import LoopWork, step_aside

logger = get_logger(__name__)
T = TypeVar("T")
_CANCEL_S = 5.0
_STOP_S = 10.0
_EXIT_S = 3.0
LOOK_S = 5.0
#: So long a callback may keep the loop while the last work waits.
HANGS_S = 30.0

_SHUT_DOWN = "the factory is shut down"
_OPEN: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


class LoopThread:
    """An event loop that runs in its own thread until ``stop`` or the end of the process.

    After a fork, the child does not have this thread, and it shares the parent's sockets. Every use
    in the child raises ``InvalidState``; otherwise it would hang.

    Attributes:
        losses: What is called when the thread is lost, see ``on_loss``.
    """

    def __init__(self, name: str) -> None:
        self.forked = False
        self.losses: dict[int, tuple[Callable[[str], None], Callable[[str], None]]] = {}
        self._loss_keys = itertools.count()
        self._exit_work: dict[int, tuple[exits.Work, float]] = {}
        self._lock = threading.Lock()
        self._ended = False  # under the lock: the loop takes no more work
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.loop.set_exception_handler(_log_failure)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ident = self._thread.ident
        _OPEN.add(self)
        exits.watch_process()

    def _run(self) -> None:
        never_wait()  # for a lock that the application holds while it waits for this loop
        try:
            asyncio.set_event_loop(self.loop)
            CALLBACK_THREADS.add(threading.get_ident())
            self.loop.run_forever()
        finally:
            CALLBACK_THREADS.discard(threading.get_ident())
            with self._lock:
                self._ended = True
            for _, give_up in list(self.losses.values()):
                self.loop.call_soon(give_up, _SHUT_DOWN)
            self.loop.run_until_complete(self._cancel_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _cancel_tasks(self) -> None:
        """Cancel all tasks, so that no thread waits for a result for ever.

        Work that was handed over last is a task by now, because the loop runs callbacks in order.
        """
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)

    def on_loss(
        self,
        *,
        forked: Callable[[str], None],
        ended: Callable[[str], None],
        exiting: tuple[exits.Work, float] | None = None,
    ) -> Callable[[], None]:
        """Register callbacks for the loss of the loop; return a function that removes them.

        Args:
            forked: Called as ``forked(why)`` in the child of a fork, where this loop does not run.
            ended: Called as ``ended(why)`` on the loop, as one of its last calls.
            exiting: Work on the loop at the end of the process, before the loop is stopped, and the
                seconds that it takes at most.
        """
        key = next(self._loss_keys)
        self.losses[key] = (forked, ended)

        def remove() -> None:
            self.losses.pop(key, None)
            self._exit_work.pop(key, None)

        if exiting is not None:
            self._exit_work[key] = exiting
        return remove

    def mark_forked(self) -> None:
        """Refuse every use from now on; called in the child of a fork."""
        self.forked = True
        for forked, _ in list(self.losses.values()):
            forked(exits.FORKED)

    @property
    def gone(self) -> bool:
        """Whether the loop takes no more work: it was stopped, or the process was forked."""
        return self.forked or self._ended

    def check(self) -> None:
        """Raise if the calling thread cannot use the loop.

        Raises:
            InvalidState: The process was forked, the loop has stopped, or the loop's own thread
                calls this.
        """
        if self.forked:
            self.check_parent()
        if self._ended:  # before the next question: another thread may have got its identifier
            raise InvalidState(_SHUT_DOWN)
        if threading.get_ident() == self._ident:
            self.check_outside()

    def check_parent(self) -> None:
        """Raise ``InvalidState`` in the child of a fork, where a lost thread may hold a lock."""
        if self.forked:
            raise InvalidState(exits.FORKED)

    def check_outside(self) -> None:
        """Raise ``InvalidState`` if the loop's own thread calls this while it takes work."""
        if not self._ended and threading.get_ident() == self._ident:
            raise InvalidState(
                "a blocking call inside a callback would wait for itself; use send_async there"
            )

    def finish(
        self, work: Callable[[], Coroutine[Any, Any, None]], timeout: float | None = None
    ) -> None:
        """Run the last work of a client; return if the loop ends before it does.

        Args:
            work: What is to be done on the loop.
            timeout: Seconds; None: ``work`` has a bound of its own.

        Raises:
            InvalidState: The loop's own thread calls this.
            TimedOut: It took longer, or the loop stood still for ``HANGS_S``: a callback does not
                return, perhaps because it waits for a lock that the caller holds.
        """
        self.check_outside()
        try:
            if timeout is not None:
                self.run(work(), timeout)
            else:
                last = self._hand_over(work())
                while not last.has_ended(LOOK_S):
                    self._check_runs()
                last.result()
        except (CancelledError, InvalidState):
            if not self.gone:
                raise

    def _check_runs(self) -> None:
        looks: LoopWork[None] = LoopWork()
        call_soon(self.loop, looks.call, lambda: None)
        if not looks.has_ended(HANGS_S):
            if self._ended:
                raise InvalidState(_SHUT_DOWN)
            raise TimedOut(
                f"the factory's thread has not gone on for {HANGS_S:g} s: a callback does not "
                "return, perhaps because it waits for a lock that the caller holds"
            )

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result.

        Raises:
            InvalidArgument: ``timeout`` is not a number.
            InvalidState: See ``check``; or the loop was stopped before the end.
            TimedOut: It took longer than ``timeout`` seconds and was cancelled.
        """
        try:
            bound = None if timeout is None else check_timeout(timeout)
        except InvalidArgument:
            work.close()
            raise
        return self._result(self._hand_over(work), bound)

    def call(self, work: Callable[[], T]) -> T:
        """Call a function on the loop, outside of a task, and return its result; see ``run``."""
        called: LoopWork[T] = LoopWork()
        self._give(called.call, work)
        return self._result(called, None)

    def _result(self, work: LoopWork[T], bound: float | None) -> T:
        if not work.has_ended(bound) and work.give_up():
            call_soon(self.loop, work.cancel)
            raise TimedOut(f"no result within {bound} s")
        try:
            return work.result()
        except CancelledError:
            raise InvalidState(_SHUT_DOWN) from None

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> LoopWork[T]:
        begun: LoopWork[T] = LoopWork()
        try:
            self._give(begun.begin, work)
        except InvalidState:
            work.close()
            raise
        return begun

    def _give(self, step: Callable[[Any], None], work: object) -> None:
        """Have a step begin work on the loop, which ends after all that it was given so."""
        self.check()
        step_aside()
        with self._lock:  # ``_cancel_tasks`` ends the tasks among it
            if not self._ended:
                self.loop.call_soon_threadsafe(step, work)
                return
        raise InvalidState(_SHUT_DOWN)

    def begin_exit(self) -> Callable[[], object]:
        """Begin the work that is left at the end of the process; return what waits for it."""
        works = list(self._exit_work.values())
        if self.gone or not works:
            return lambda: None

        async def work_all() -> None:
            for outcome in await asyncio.gather(
                *(work() for work, _ in works), return_exceptions=True
            ):
                if isinstance(outcome, Exception):
                    logger.error("last work of a factory failed", exc_info=outcome)

        done = self._hand_over(work_all())
        # An interrupt ends the wait; the end of the loop then cancels the work.
        return lambda: done.has_ended(max(seconds for _, seconds in works) + _EXIT_S)

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Stop the loop and wait, at most so long, for the end of its thread. May be repeated."""
        if self.forked:
            return
        with self._lock:
            if not self._ended:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_s)


def _log_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what a callback raised.

    asyncio would log it itself, and end the loop if the application's log handler raises.
    """
    error = context.get("exception")
    logger.error(
        "callback on the factory's loop failed",
        what=context.get("message"),
        error=error,
        exc_info=error,
    )


def _mark_forked() -> None:
    after_fork()
    for runtime in list(_OPEN):
        runtime.mark_forked()


def _stop_all() -> None:
    """End the loops of factories that were not shut down, before the interpreter ends.

    First they do their last work, all at the same time. A loop that runs after the end of the
    interpreter causes a segmentation fault.
    """
    runtimes = list(_OPEN)
    steps: list[Callable[[], Any]] = []
    for runtime in runtimes:
        with contextlib.suppress(InvalidState):  # another thread has just stopped it
            steps.append(runtime.begin_exit())
    steps += [partial(runtime.stop, _EXIT_S) for runtime in runtimes]
    for step in steps:
        # An interrupt, or another thread that stops a loop, ends the wait for that one only.
        with contextlib.suppress(KeyboardInterrupt, TimeoutError, CancelledError):
            step()


os.register_at_fork(after_in_child=_mark_forked)
exits.at_exit(_stop_all)
