"""Where blocking work that is not a flush runs: opening logs, deleting files, reading cold data."""

import asyncio
import contextlib
import enum
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

#: Calls to a place that may never answer: nobody waits for them for ever, so they would pile up.
CALLS_MAX: Final = 256
#: Places with threads of their own. Those beyond share some, unless one before has no call.
PLACES_MAX: Final = 16
#: A place hangs that has answered none of its threads for so long: nothing more is asked there
#: until one of these calls ends.
HANGS_S: Final = 60.0


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
    # Places of archives that may not answer for ever. Each place has threads of its own, so nothing
    # else waits behind these two, no other place either.
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
    def by_place(self) -> bool:
        """Whether each place has threads of its own, and a bound of calls that run or wait.

        The calls of other lanes are bounded by who hands them in, who waits for them.
        """
        return self in (Lane.ELSEWHERE, Lane.UPLOAD)


class Runner(Protocol):
    """Runs blocking calls without holding up the event loop, where there is a way to."""

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS, place: str = "") -> T:
        """Return what ``call()`` returns, or raise what it raises.

        Args:
            call: Blocks.
            lane: Where it runs.
            place: Whose answer it waits for, of a lane with threads for each (``Lane.by_place``).

        Raises:
            TimeoutError: The place hangs, or as many calls as may wait for it already.
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


class _Threads:
    """The threads of one lane, or of one lane for one place.

    Attributes:
        calls: That run or wait.
    """

    def __init__(self, lane: Lane) -> None:
        self.calls = 0
        self._lane = lane
        self._pool = ThreadPoolExecutor(
            max_workers=lane.threads, thread_name_prefix=f"vq-{lane.value[0]}"
        )
        self._begun: dict[object, float] = {}  # the calls that run, and since when

    def begin(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Have a call made; count it until it has ended, whoever waits."""
        self.calls += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._call, call)
        future.add_done_callback(self._ended)
        return future

    def _call(self, call: Callable[[], T]) -> T:
        mark = object()
        self._begun[mark] = time.monotonic()
        try:
            return call()
        finally:
            del self._begun[mark]

    def _ended(self, _: "asyncio.Future[Any]") -> None:
        self.calls -= 1

    def why_not(self) -> str:
        """Return why a place is not asked now; "": it is."""
        running = list(self._begun.values())
        if len(running) >= self._lane.threads and time.monotonic() - max(running) > HANGS_S:
            return f"no answer for {time.monotonic() - max(running):.0f} s"
        return f"{self.calls} calls wait for it already" if self.calls >= CALLS_MAX else ""

    def close(self, *, wait: bool) -> None:
        """Take no more calls; ``wait`` until those under way have ended."""
        self._pool.shutdown(wait=wait, cancel_futures=True)


class ThreadRunner:
    """Runs calls on threads, of each lane, or lane and place, its own; made when needed."""

    def __init__(self) -> None:
        self._threads: dict[tuple[Lane, str], _Threads] = {}
        self._closed = False

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS, place: str = "") -> T:
        """See ``Runner.run``."""
        if not lane.by_place:
            return await self.threads_of(lane, "").begin(call)
        threads = self.threads_of(lane, place)
        why_not = threads.why_not()
        if why_not:
            raise TimeoutError(f"{place or 'the place of archives'}: {why_not}")
        return await asyncio.shield(threads.begin(call))

    def threads_of(self, lane: Lane, place: str) -> _Threads:
        """Return the threads of a lane for a place of archives, "": for all that have no own."""
        threads = self._threads.get((lane, place))
        if threads is None:
            others = [each for each in self._threads if each[0] is lane and each[1]]
            if place and len(others) >= PLACES_MAX:
                idle = next((each for each in others if not self._threads[each].calls), None)
                if idle is None:
                    return self.threads_of(lane, "")
                self._threads.pop(idle).close(wait=False)
            threads = self._threads[lane, place] = _Threads(lane)
            if self._closed:
                threads.close(wait=False)
        return threads

    async def close(self) -> None:
        """See ``Runner.close``."""
        self._closed = True
        for threads in self._threads.values():
            threads.close(wait=False)
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def join() -> None:
            for threads in list(self._threads.values()):
                threads.close(wait=True)
            with contextlib.suppress(RuntimeError):  # nobody waits, and the loop has ended
                loop.call_soon_threadsafe(ended.set)

        # Not on the loop, which still serves; and a daemon, since a call may hang for ever.
        threading.Thread(target=join, name="vq-close", daemon=True).start()
        await ended.wait()


class InlineRunner:
    """The twin for simulated clusters: runs calls on the loop."""

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS, place: str = "") -> T:
        """See ``Runner.run``. Gives way once, as the real one does."""
        await asyncio.sleep(0)
        return call()

    async def close(self) -> None:
        """See ``Runner.close``."""
