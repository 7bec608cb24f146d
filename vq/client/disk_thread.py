"""A thread for the calls of one member that wait for a disk or a database."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vq.errors import VqError

T = TypeVar("T")


class DiskThread:
    """Makes one call after the other, and waits for each in bounded time. Loop-bound.

    What hangs goes on, and may still be done; later calls wait behind it. So a disk that hangs
    holds one thread up, and none of those that the application shares. The thread begins with the
    first call.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    async def call(self, work: Callable[[], T], within_s: float, late: Callable[[], VqError]) -> T:
        """Return what ``work`` returns, or raise what it raises.

        Args:
            work: The call.
            within_s: How long to wait for it, and for those before it.
            late: Makes the error for a call that took longer.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except TimeoutError:
            raise late() from None

    def close(self) -> None:
        """End the thread once its call has ended; calls that wait are not made.

        A later call begins another one.
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
