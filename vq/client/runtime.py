"""The event loop behind the blocking API: one thread per factory, and what a fork does to it."""

import asyncio
import atexit
import concurrent.futures
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from vq.client.future import TELLING_THREADS, after_fork
from vq.errors import InvalidArgument, InvalidState, TimedOut
from vq.model import check_timeout

T = TypeVar("T")
_CANCEL_S = 5.0
_STOP_S = 10.0
_EXIT_S = 3.0

_FORKED = (
    "this factory was opened before the process forked; open a new one in the child (its "
    "connections belong to the parent)"
)
_SHUT_DOWN = "the factory is shut down"
_OPEN: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


class LoopThread:
    """An event loop that runs in a thread of its own until ``stop``, or the end of the process.

    After a fork the child has no such thread, and sockets shared with its parent: every use there
    raises ``InvalidState`` instead of hanging.
    """

    def __init__(self, name: str) -> None:
        self.forked = False
        self._on_loss: dict[int, tuple[Callable[[str], None], Callable[[str], None]]] = {}
        self._loss_keys = itertools.count()
        self._lock = threading.Lock()
        self._ended = False  # under the lock: nothing is given to the loop any more
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        TELLING_THREADS.add(threading.get_ident())
        try:
            self.loop.run_forever()
        finally:
            TELLING_THREADS.discard(threading.get_ident())
            with self._lock:
                self._ended = True
            for _, give_up in list(self._on_loss.values()):
                self.loop.call_soon(give_up, _SHUT_DOWN)
            self.loop.run_until_complete(self._cancel_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _cancel_tasks(self) -> None:
        """End what still runs, so that no thread waits for ever for its result.

        What was handed over last is a task by now: the loop calls back in the order in which it was
        asked to.
        """
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)

    def on_loss(
        self, *, forked: Callable[[str], None], ended: Callable[[str], None]
    ) -> Callable[[], None]:
        """Have those told that need the loop; returns a remover.

        Args:
            forked: Called as ``forked(why)`` in the child of a fork, which has no such loop.
            ended: Called as ``ended(why)`` on the loop, as one of its last calls.
        """
        key = next(self._loss_keys)
        self._on_loss[key] = (forked, ended)

        def remove() -> None:
            self._on_loss.pop(key, None)

        return remove

    def mark_forked(self) -> None:
        """Called in the child of a fork."""
        self.forked = True
        for refuse, _ in list(self._on_loss.values()):
            refuse(_FORKED)

    @property
    def gone(self) -> bool:
        """Whether nothing can be asked of the loop any more: it was stopped, or stayed behind when
        the process was forked."""
        return self.forked or self._ended

    def check(self) -> None:
        """Raise if the loop cannot be used from here.

        Raises:
            InvalidState: The process was forked, the loop has stopped, or this is its own thread.
        """
        if self.forked:
            raise InvalidState(_FORKED)
        if threading.current_thread() is self._thread:
            raise InvalidState(
                "a blocking call inside a callback would wait for itself; use send_async there"
            )
        if self._ended or not self._thread.is_alive():
            raise InvalidState(_SHUT_DOWN)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result.

        Raises:
            InvalidArgument: ``timeout`` is no number.
            InvalidState: See ``check``; or the loop was stopped meanwhile.
            TimedOut: It took longer than ``timeout`` seconds; it was cancelled.
        """
        try:
            bound = None if timeout is None else check_timeout(timeout)
        except InvalidArgument:
            work.close()
            raise
        future = self._hand_over(work)
        try:
            try:
                return future.result(bound)
            except TimeoutError:
                if future.cancel():
                    raise TimedOut(f"no result within {timeout} s") from None
                return future.result()  # it ended just now, perhaps with a TimeoutError of its own
        except concurrent.futures.CancelledError:
            raise InvalidState(_SHUT_DOWN) from None

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        try:
            self.check()
            with self._lock:  # whatever is handed over in here is ended by ``_cancel_tasks``
                if not self._ended:
                    return asyncio.run_coroutine_threadsafe(work, self.loop)
            raise InvalidState(_SHUT_DOWN)
        except InvalidState:
            work.close()
            raise

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """End the loop and its thread, and wait so long for that. May be called again."""
        if self.forked:
            return
        with self._lock:
            if not self._ended:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_s)


def _mark_forked() -> None:
    after_fork()
    for runtime in list(_OPEN):
        runtime.mark_forked()


def _stop_all() -> None:
    """End the loops of factories that nobody shut down, before the interpreter goes.

    A loop that woke up after that would call into an interpreter that is no more: a segmentation
    fault at the end of a program that had done its work.
    """
    for runtime in list(_OPEN):
        runtime.stop(_EXIT_S)


os.register_at_fork(after_in_child=_mark_forked)
atexit.register(_stop_all)
