"""Waits of a thread for others, or for a loop, that the handler of a signal may leave anywhere.

``threading.Event``, ``queue.Queue`` and the futures of ``concurrent`` have a condition. Where the
handler of a signal raises in the entry of a condition, its lock stays taken, and whoever is to
set the event waits for it for ever: an event loop, say. Where it raises in the wait, RuntimeError
may take the place of what it raised. Where the handler itself sets the event, it may wait for the
thread that it has interrupted. A plain lock has none of this.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
#: What a thread does for others that wait for it, by its ident, see ``step_aside``: have them do it
#: themselves, or raise InvalidState.
DUTIES: Final[dict[int, Callable[[], None]]] = {}
#: A wait looks so often whether a signal came just before it, or to another thread.
SIGNALS_S = 1.0


def step_aside() -> None:
    """Leave to others what this thread was doing for them; it is going to wait for an outcome.

    There is such a thing only if the handler of a signal, or a finalizer, has interrupted it: what
    that waits for may be what the thread was doing. Whoever waits for a send, or for a loop, calls
    it first; not so the waits of which the doing consists, as for an answer.

    Raises:
        InvalidState: Nobody else can go on with it.
    """
    duty = DUTIES.get(threading.get_ident())
    if duty is not None:
        duty()


class Latch:
    """What is set once. One thread waits at a time; others find it set ``SIGNALS_S`` later.

    Attributes:
        is_set: Whether it is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_set = False

    def set(self) -> None:
        """Wake the thread that waits; any thread, and the handler of a signal, also again."""
        self.is_set = True
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was set before, and nobody has waited since

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most so many seconds; return whether it is.

        Only a signal that comes during the wait ends it. One that comes between the last
        instruction and the wait, or that the kernel gives to another thread, is seen when the wait
        ends: without a bound, a ctrl-C would be lost.
        """
        ends = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set:
            left = ends - time.monotonic()
            if left <= 0:
                return False
            self._lock.acquire(timeout=min(left, SIGNALS_S))
        return True


class LoopWork(Generic[T]):
    """Work on a loop, or in another thread, and the thread that waits for its end.

    A future of ``concurrent`` would have a condition; see the module.
    """

    def __init__(self) -> None:
        self._ended = Latch()
        self._is_given_up = False
        self._task: asyncio.Task[T] | None = None
        self._results: list[T] = []
        self._error: BaseException | None = None

    # On the loop, or in the other thread
    def call(self, work: Callable[[], T]) -> None:
        """Call a function."""
        if self._is_given_up:
            return
        try:
            self._end(work())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self._fail(error)

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        """Run a coroutine."""
        if self._is_given_up:
            work.close()
            return
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._fail(CancelledError())
            return
        error = task.exception()
        if error is not None:
            self._fail(error)
        else:
            self._end(task.result())

    def _end(self, result: T) -> None:
        self._results.append(result)
        self._ended.set()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._ended.set()

    def cancel(self) -> None:
        """End it, if it has not ended; nobody waits for it."""
        if self._task is not None:
            self._task.cancel()

    # In the thread
    def give_up(self) -> bool:
        """Have it not begun; return whether it has not ended. The caller has it cancelled."""
        self._is_given_up = True
        return not self._ended.is_set

    def has_ended(self, timeout: float | None) -> bool:
        """Wait for its end, at most so many seconds; return whether it came."""
        return self._ended.wait(timeout)

    def result(self) -> T:
        """Return what came of it, once it has ended; once."""
        error, self._error = self._error, None
        if error is None:
            return self._results.pop()
        try:
            raise error
        finally:
            del error  # its frames refer to it
