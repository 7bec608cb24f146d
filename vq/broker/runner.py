"""Where blocking work that is not a flush runs: opening and closing logs, deleting files."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Runner(Protocol):
    """Runs blocking calls without holding up the event loop, where there is a way to."""

    async def run(self, call: Callable[[], T]) -> T:
        """Return what ``call()`` returns, or raise what it raises."""
        ...

    def close(self) -> None:
        """Take no more calls; those under way are finished."""
        ...


class ThreadRunner:
    """Runs calls in order on one thread: they share one disk, and order is easy to follow."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vq-disk")

    async def run(self, call: Callable[[], T]) -> T:
        """See ``Runner.run``."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """See ``Runner.close``."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class InlineRunner:
    """The twin for simulated clusters: runs calls on the loop."""

    async def run(self, call: Callable[[], T]) -> T:
        """See ``Runner.run``. Gives way once, as the real one does."""
        await asyncio.sleep(0)
        return call()

    def close(self) -> None:
        """See ``Runner.close``."""
