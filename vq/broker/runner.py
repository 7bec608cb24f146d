"""Where blocking work that is not a flush runs: opening logs, deleting files, reading cold data."""

import asyncio
import contextlib
import enum
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

#: Calls of a lane that may never answer: nobody waits for them for ever, so they would pile up.
CALLS_MAX: Final = 256


class Lane(enum.Enum):
    """A kind of blocking work with threads of its own; the value is how many.

    Work of one lane with one thread is done in the order in which it was handed in.
    """

    LOGS = ("logs", 1)  # opening and closing
    MOVES = ("moves", 1)  # sealing, and putting logs aside
    READ = ("read", 4)  # bytes that readers wait for
    PURGE = ("purge", 1)  # deleting files, which may take seconds each
    VERIFY = ("verify", 1)  # reading everything, slowly
    ARCHIVE = ("archive", 1)  # archiving and restoring beside the log
    # Places of archives that may not answer for ever. Nothing else waits behind these two.
    ELSEWHERE = ("elsewhere", 4)  # reading there
    UPLOAD = ("upload", 1)  # writing and removing there, one thing after the other
    FIND = ("find", 1)  # searching for messages
    KEYS = ("keys", 1)  # making key indexes
    # One call for each data directory at most; any of them may hang.
    LOOK = ("look", 64)  # looking at data directories

    @property
    def threads(self) -> int:
        """How many calls of the lane may run at once."""
        return self.value[1]

    @property
    def calls_max(self) -> int | None:
        """How many calls may run or wait; None: who hands them in bounds them, by waiting."""
        return CALLS_MAX if self in (Lane.ELSEWHERE, Lane.UPLOAD) else None


class Runner(Protocol):
    """Runs blocking calls without holding up the event loop, where there is a way to."""

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS) -> T:
        """Return what ``call()`` returns, or raise what it raises.

        Raises:
            TimeoutError: As many calls as may (``Lane.calls_max``) wait for that lane already.
        """
        ...

    async def close(self) -> None:
        """Take no more calls; return once those under way have ended.

        If this is cancelled, they go on, perhaps for ever.
        """
        ...


async def wait_at_most(
    timeout_s: float,
    call: Coroutine[Any, Any, T],
    late: Callable[["asyncio.Future[T]"], None] = lambda work: None,
) -> T:
    """Return what ``call`` returns, or raise what it raises.

    A call on a thread cannot be ended: when nobody waits any more, it goes on, and ``late`` gets
    what comes of it.

    Raises:
        TimeoutError: It takes longer.
    """
    work = asyncio.ensure_future(call)
    try:
        await asyncio.wait([work], timeout=timeout_s)
    finally:
        if not work.done():
            work.add_done_callback(_look)
            work.add_done_callback(late)
    if work.done():
        return work.result()
    raise TimeoutError(f"no answer within {timeout_s:g} s")


def leave(call: Coroutine[Any, Any, Any]) -> None:
    """Have a call made that nobody waits for; an error of it is told nobody."""
    asyncio.ensure_future(call).add_done_callback(_look)


def _look(work: "asyncio.Future[Any]") -> None:
    if not work.cancelled():
        work.exception()


class ThreadRunner:
    """Runs calls on threads, of each lane its own; they are made when they are needed."""

    def __init__(self) -> None:
        self._pools: dict[Lane, ThreadPoolExecutor] = {}
        self._calls: Counter[Lane] = Counter()  # that run or wait, of lanes with a bound

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS) -> T:
        """See ``Runner.run``."""
        loop = asyncio.get_running_loop()
        if lane.calls_max is None:
            return await loop.run_in_executor(self._pool(lane), call)
        if self._calls[lane] >= lane.calls_max:
            raise TimeoutError(f"{self._calls[lane]} calls wait for the places of archives already")
        self._calls[lane] += 1
        future = loop.run_in_executor(self._pool(lane), call)
        future.add_done_callback(lambda _: self._ended(lane))
        return await asyncio.shield(future)

    def _ended(self, lane: Lane) -> None:
        self._calls[lane] -= 1

    def _pool(self, lane: Lane) -> ThreadPoolExecutor:
        pool = self._pools.get(lane)
        if pool is None:
            pool = ThreadPoolExecutor(
                max_workers=lane.threads, thread_name_prefix=f"vq-{lane.value[0]}"
            )
            self._pools[lane] = pool
        return pool

    async def close(self) -> None:
        """See ``Runner.close``."""
        for lane in Lane:  # also those not made yet: nothing can be begun any more
            self._pool(lane).shutdown(wait=False, cancel_futures=True)
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def join() -> None:
            for pool in self._pools.values():
                pool.shutdown(wait=True)
            with contextlib.suppress(RuntimeError):  # nobody waits, and the loop has ended
                loop.call_soon_threadsafe(ended.set)

        # Not on the loop, which still serves; and a daemon, since a call may hang for ever.
        threading.Thread(target=join, name="vq-close", daemon=True).start()
        await ended.wait()


class InlineRunner:
    """The twin for simulated clusters: runs calls on the loop."""

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS) -> T:
        """See ``Runner.run``. Gives way once, as the real one does."""
        await asyncio.sleep(0)
        return call()

    async def close(self) -> None:
        """See ``Runner.close``."""
