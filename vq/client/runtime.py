"""The event loop behind the blocking API: one thread per factory, and what a fork does to it."""

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from vq.errors import InvalidState, TimedOut

T = TypeVar("T")

_FORKED = (
    "this factory was opened before the process forked; open a new one in the child (its "
    "connections belong to the parent)"
)
_OPEN: "weakref.WeakSet[LoopThread]" = weakref.WeakSet()


class LoopThread:
    """An event loop that runs in a thread of its own until ``stop``.

    After a fork the child has no such thread, and sockets shared with its parent: every use there
    raises ``InvalidState`` instead of hanging.
    """

    def __init__(self, name: str) -> None:
        self.forked = False
        self._on_fork: list[Callable[[str], None]] = []
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def on_fork(self, refuse: Callable[[str], None]) -> None:
        """Have ``refuse(why)`` called in the child of a fork."""
        self._on_fork.append(refuse)

    def mark_forked(self) -> None:
        """Called in the child of a fork."""
        self.forked = True
        for refuse in self._on_fork:
            refuse(_FORKED)

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
        if self.loop.is_closed() or not self._thread.is_alive():
            raise InvalidState("the factory is shut down")

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return its result.

        Raises:
            InvalidState: See ``check``.
            TimedOut: It took longer than ``timeout`` seconds; it was cancelled.
        """
        try:
            self.check()
        except InvalidState:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimedOut(f"no result within {timeout} s") from None

    def stop(self) -> None:
        """End the loop and its thread. May be called again."""
        if self.loop.is_closed() or self.forked:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10.0)


def _mark_forked() -> None:
    for runtime in list(_OPEN):
        runtime.mark_forked()


os.register_at_fork(after_in_child=_mark_forked)
