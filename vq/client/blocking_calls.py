"""Threads for calls that block, and that may never return.

In here: a bound on how many there are, and on how long somebody waits. They are daemons: a call
that hangs does not keep the process from ending, as those of ``concurrent.futures`` would.
"""

import asyncio
import contextlib
import errno
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
#: What a thread does: a call, and who gets its result and its error. None: end.
_Work = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]] | None


class BlockingCalls:
    """Runs calls on threads, which are made as they are needed and kept. Loop-bound.

    Args:
        threads_max: So many calls run at a time; one that hangs takes a thread for good.
        name: Of the threads.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._free = asyncio.Semaphore(threads_max)
        self._name = name
        self._queue: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._threads = 0
        self._running = 0

    async def run(self, call: Callable[[], T], timeout_s: float) -> T:
        """Return what ``call()`` returns, or raise what it raises.

        A call that takes longer goes on, and nobody gets its result.

        Raises:
            TimeoutError: It takes longer, or no thread gets free in that time.
            OSError: The process may have no more threads.
        """
        async with asyncio.timeout(timeout_s):
            await self._free.acquire()
        async with asyncio.timeout(timeout_s):
            return await self._begin(call)

    def _begin(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Have a free thread make a call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def end(result: Any, error: BaseException | None) -> None:
            self._running -= 1
            self._free.release()
            if future.done():  # nobody waits
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def tell(result: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, result, error)

        if self._running >= self._threads:
            self._add_thread()
        self._running += 1
        self._queue.put((call, tell))
        return future

    def _add_thread(self) -> None:
        try:
            threading.Thread(
                target=_work, args=(self._queue,), name=self._name, daemon=True
            ).start()
        except RuntimeError as error:  # the process may have no more
            self._free.release()
            raise OSError(errno.EAGAIN, str(error)) from error
        self._threads += 1

    def close(self) -> None:
        """End the threads, each after its call."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0


def _work(calls: "queue.SimpleQueue[_Work]") -> None:
    while (work := calls.get()) is not None:
        call, tell = work
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  who waits gets it
            tell(None, error)
        else:
            tell(result, None)
        del work, call, tell
