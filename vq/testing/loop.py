"""An event loop whose time is a number, and processes on it that can be stopped at any moment.

When nothing is ready the loop does not wait: it sets its clock to the next timer. A simulated
process is a context variable: all that is started in its context, directly or indirectly, belongs
to it. A process that is held runs no callback at all, as after SIGSTOP; one that is killed is held
for ever. What was to run is kept: a paused process finds it when it goes on.
"""

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from vq.clock import Clock, SystemClock

T = TypeVar("T")

#: Turns of the loop at one moment after which it is taken to spin.
TURNS_PER_MOMENT_MAX = 100_000
_START_S = 1_000.0

PROCESS: contextvars.ContextVar["SimulatedProcess | None"] = contextvars.ContextVar(
    "process", default=None
)


class Stuck(AssertionError):
    """The simulation cannot go on: nothing is left to happen, or it spins without time passing."""


class SimulatedProcess:
    """A simulated process, such as a broker or a client; all of it runs and stops together.

    Attributes:
        name: Unique in a simulation, restarts included.
        dead: It was killed; it will never run again.
    """

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.dead = False
        self.held = False
        self.backlog: list[asyncio.Handle] = []
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as a part of this process."""
        return self._loop.create_task(coroutine, context=self._context.copy())

    def pause(self) -> None:
        """Run none of its callbacks from now on."""
        self.held = True

    def resume(self) -> None:
        """Go on, with all that has become ready meanwhile."""
        if not self.dead:
            self.release()

    def kill(self) -> None:
        """Never run again."""
        self.dead = self.held = True

    def release(self) -> None:
        """Run again even if dead: only to take a simulation down at its end."""
        self.held = False
        backlog, self.backlog = self.backlog, []
        self._loop.put_back(backlog)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The stock loop without waiting and without sockets; one simulation each."""

    _ready: deque[asyncio.Handle]
    #: Timers behind their time and a number: so they are compared without calling Python.
    _scheduled: list[tuple[float, int, asyncio.TimerHandle]]
    _stopping: bool
    _closed: bool
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = _START_S
        self._turns = 0
        self._timers = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._tasks_pruned_at = 256

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def stand_still(self, seconds: float) -> None:
        """Have time pass in which nothing runs, as on a machine that is paused."""
        self._now += seconds

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        """Have callbacks that were kept back run in the next turn."""
        self._ready.extend(handles)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do it at once: a thread would take no virtual time, and nobody would wake this loop."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            done.set_exception(error)
        return done

    def _write_to_self(self) -> None:
        """Do nothing: this loop never sleeps in a selector."""

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Keep each task whose step this is, until it is done.

        asyncio refers to tasks weakly. Those of a killed process must not be collected while the
        simulation runs: that would run their ``finally`` blocks, after death. A task factory would
        not see the tasks that vq begins without asking one.
        """
        task = getattr(callback, "__self__", None)
        if isinstance(task, asyncio.Task) and task not in self._tasks:
            self._tasks[task] = None
            if len(self._tasks) > self._tasks_pruned_at:
                self._tasks = dict.fromkeys(self.unfinished())
                self._tasks_pruned_at = 2 * len(self._tasks) + 256
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)  # as the stock loop does
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it so many seconds from now."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it at a time; what is due at the same time is called in this order."""
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers += 1
        heapq.heappush(self._scheduled, (when, self._timers, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def unfinished(self) -> "list[asyncio.Task[Any]]":
        """Return all tasks that are not done, oldest first."""
        return [task for task in self._tasks if not task.done()]

    def _run_once(self) -> None:
        """Do one turn: what the stock loop does, with a jump in time instead of a wait."""
        ready, scheduled = self._ready, self._scheduled
        self._drop_cancelled()
        if not ready and not self._stopping:
            if not scheduled:
                raise Stuck("nothing is left that could ever happen")
            self._now = max(self._now, scheduled[0][0])
            self._turns = 0
        self._turns += 1
        if self._turns > TURNS_PER_MOMENT_MAX:
            raise Stuck(f"{self._turns} turns at {self._now:.6f} s, a callback spins: {ready[0]!r}")
        now = self._now
        while scheduled and scheduled[0][0] <= now:
            timer = heapq.heappop(scheduled)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and process.held:
                process.backlog.append(handle)
            else:
                handle._run()

    def _drop_cancelled(self) -> None:
        scheduled = self._scheduled
        if self._timer_cancelled_count > 100 and self._timer_cancelled_count * 2 > len(scheduled):
            for _, _, timer in scheduled:
                timer._scheduled = not timer.cancelled()  # type: ignore[attr-defined]
            scheduled[:] = [each for each in scheduled if not each[2].cancelled()]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)[2]._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1


class SimulatedClock:
    """The clocks of one host: the loop's time, and a wall clock that can be set wrong."""

    _EPOCH_MS = 1_760_000_000_000

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.wall_offset_ms = 0

    def wall_ms(self) -> int:
        """See ``vq.clock.Clock``."""
        return self._EPOCH_MS + int(self._loop.time() * 1000) + self.wall_offset_ms

    def monotonic(self) -> float:
        """See ``vq.clock.Clock``."""
        return self._loop.time()


def clock_of_loop() -> Clock:
    """Return the clock of the running loop: a ``VirtualLoop``'s own, else the system's."""
    loop = asyncio.get_running_loop()
    return SimulatedClock(loop) if isinstance(loop, VirtualLoop) else SystemClock()


def generator(seed: int, name: str) -> random.Random:
    """Return the random numbers of one part of a simulation: independent of all other parts."""
    return random.Random(f"{seed}/{name}")  # nosec B311
