"""Runs last work when the process ends, so that nothing of a client vanishes with it.

    end of the interpreter           ``atexit``, after all threads that are not daemons
    end of a forked child            of ``multiprocessing``: its own finalizers, since it runs no
                                     ``atexit`` function before Python 3.13
    end of an event loop             an asynchronous generator: ``asyncio.run`` closes it after it
                                     has cancelled all tasks, while the loop still runs

``os._exit``, a signal without a handler, and a crash end a process without any of these.
"""

import asyncio
import atexit
import multiprocessing
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

from vq.log_lines import drain, get_logger

#: Why a factory refuses every use in the child of a fork.
FORKED: Final = (
    "this factory was opened before the process forked; open a new one in the child (its "
    "connections belong to the parent)"
)
_NOT_RUN_S: Final = 1.0  # added to the time of the work: its loop's thread may be busy

logger = get_logger(__name__)
Work = Callable[[], Coroutine[Any, Any, None]]


class LoopExit:
    """Runs work of an application's loop once: when that loop, or the process, ends.

    Loop-bound, except that the end of the process runs it in the main thread.

    Args:
        work: What is to be done on the loop; bounded in time.
        ended: Called instead when the loop is closed already and can run nothing any more.
        timeout_s: Bound of ``work``.
    """

    def __init__(self, work: Work, *, ended: Callable[[], None], timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._ended = ended
        self._timeout_s = timeout_s
        self._guard = self._until_closed()

    async def begin(self) -> None:
        """Watch for the end from now on, until ``forget``."""
        _OPEN.add(self)
        await anext(self._guard)

    async def forget(self) -> None:
        """Watch no longer: the work is not needed any more."""
        _OPEN.discard(self)
        await self._guard.aclose()

    async def _until_closed(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self in _OPEN:
                _OPEN.discard(self)
                await self._work()

    def run(self) -> None:
        """Do the work at the end of the process, if its loop has not done it."""
        _OPEN.discard(self)
        if self._loop.is_closed():
            self._ended()
        elif self._loop.is_running():  # in a daemon thread
            done = asyncio.run_coroutine_threadsafe(self._work(), self._loop)
            done.result(self._timeout_s + _NOT_RUN_S)
        else:
            self._loop.run_until_complete(self._work())


_OPEN: set[LoopExit] = set()
_at_exit: list[Callable[[], None]] = []
_watched: set[int] = set()


def at_exit(work: Callable[[], None]) -> None:
    """Have ``work`` done when a process ends that has called ``watch_process``; once per module."""
    _at_exit.append(work)


def watch_process() -> None:
    """See to it that the end of this process is noticed; called when a factory is opened."""
    util, pid = sys.modules.get("multiprocessing.util"), os.getpid()
    if util is not None and multiprocessing.parent_process() is not None and pid not in _watched:
        _watched.add(pid)
        # Above those of queues and pools, which end at 0 and below.
        util.Finalize(None, _run_all, exitpriority=1_000)


def _run_all() -> None:
    """Do all last work, each once, and have its log lines written."""
    for work in (*_at_exit, *(each.run for each in list(_OPEN)), drain):
        try:
            work()
        except KeyboardInterrupt:
            continue  # do not wait for this one any longer
        except Exception:
            logger.exception("last work at the end of the process failed")


atexit.register(_run_all)
os.register_at_fork(after_in_child=_OPEN.clear)
