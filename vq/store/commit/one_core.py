"""One core for an event loop and the threads that flush for it, while they fit on it.

They wake one another for each flush. The kernel starts a thread that is woken on a core that idles:
on a virtual machine that takes 30 µs and more, and the caches there are cold. On the core of the
thread that wakes it, and sleeps next, it takes 5 µs.

    apart ── many flushes, and the threads use little of a core ──▶ together, where the loop runs
      ▲                                                              │      │        ▲
      └───────────────────────── otherwise ──────────────────────────┘      │        │
                                                               after half a second   │
                                                                            └▶ free for 5 ms

While they are free, the kernel moves the loop away from a core that others use; the flushers follow
it. Threads that are made while they are together inherit the one core, and get the others back
after that. Nothing is done where the process may use one core, or somebody else places its threads.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import clock_gettime, pthread_getcpuclockid
from typing import Final, NamedTuple, Protocol

from vq.log_lines import get_logger

logger = get_logger(__name__)

#: They are looked at so often, while there are flushes.
LOOK_S: Final = 0.02
#: So long they stay together; then the kernel places them for ``FREE_S``.
TOGETHER_S: Final = 0.5
FREE_S: Final = 0.005
#: Fewer flushes a second are not worth it.
FLUSHES_PER_S: Final = 100
#: All of them may use so much of a core, or one would keep the other from its work.
SHARE_MAX: Final = 0.75
_PROCESSOR: Final = 36  # field of ``stat`` behind the name of the thread, see proc(5)

Mask = frozenset[int]


class Thread(NamedTuple):
    """A thread, as the system and as Python know it."""

    number: int
    ident: int


def thread_of(thread: threading.Thread) -> Thread:
    """Return a thread that was started."""
    assert thread.native_id is not None
    assert thread.ident is not None
    return Thread(thread.native_id, thread.ident)


class Cores(Protocol):
    """What a process can learn of its threads and cores, and ask for. All may raise ``OSError``."""

    def present(self) -> Thread:
        """Return the thread that calls."""
        ...

    def current(self) -> int:
        """Return the core on which that runs."""
        ...

    def used_s(self, thread: Thread) -> float:
        """Return the processor time that a thread has used."""
        ...

    def numbers(self) -> Iterable[int]:
        """Return the numbers of all threads of the process."""
        ...

    def mask(self, number: int) -> Mask:
        """Return the cores on which a thread may run."""
        ...

    def place(self, number: int, mask: Mask) -> None:
        """Have a thread run there only."""
        ...


class LinuxCores:
    """See ``Cores``."""

    def present(self) -> Thread:
        """See ``Cores.present``."""
        return thread_of(threading.current_thread())

    def current(self) -> int:
        """See ``Cores.current``."""
        stat = Path("/proc/thread-self/stat").read_text()
        return int(stat.rpartition(")")[2].split()[_PROCESSOR])

    def used_s(self, thread: Thread) -> float:
        """See ``Cores.used_s``."""
        return clock_gettime(pthread_getcpuclockid(thread.ident))

    def numbers(self) -> Iterable[int]:
        """See ``Cores.numbers``."""
        return [int(each) for each in os.listdir("/proc/self/task")]

    def mask(self, number: int) -> Mask:
        """See ``Cores.mask``."""
        return frozenset(os.sched_getaffinity(number))

    def place(self, number: int, mask: Mask) -> None:
        """See ``Cores.place``."""
        os.sched_setaffinity(number, mask)


class SharedCore(NamedTuple):
    """The threads are on one core.

    Attributes:
        core: That one.
        before: Where they may run otherwise.
        others: The numbers of all threads that the process had then.
        until: When they are to be free again.
    """

    core: Mask
    before: Mask
    others: frozenset[int]
    until: float


class OneCore:
    """See the module's text. Loop-bound.

    Args:
        cores: Of the process.
        now: Monotonic time, in seconds.
        call_later: Sets a timer of the loop; what it returns cancels that.
    """

    def __init__(
        self,
        cores: Cores,
        now: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Callable[[], object]],
    ) -> None:
        self._cores = cores
        self._now = now
        self._call_later = call_later
        self._threads: list[Thread] = []  # the loop's first, then those of flushers
        self._together: SharedCore | None = None
        self._cancel: Callable[[], object] | None = None  # the timer; while flushes go on
        self._ended = False
        self._flushes = 0  # since the last look
        self._begun = self._used_s = 0.0

    def join(self, thread: Thread) -> None:
        """Take a flusher's thread."""
        if not self._threads:
            self._threads.append(self._cores.present())
        self._threads.append(thread)

    def end(self) -> None:
        """Place nothing any more; all threads may run where they might before."""
        self._ended = True
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._try(self._part)

    def note_flush(self) -> None:
        """Note that a flush begins."""
        self._flushes += 1
        if self._cancel is None and not self._ended:
            self._try(self._look_later)

    def _try(self, step: Callable[[], None]) -> None:
        """Do a step; an error ends all of it."""
        try:
            step()
        except OSError as error:
            logger.info("threads stay where the system places them", error=error)
            if not self._ended:
                self.end()

    def _look_later(self) -> None:
        self._flushes = 0
        self._begun, self._used_s = self._now(), self._used()
        self._ring(LOOK_S, self._look)

    def _ring(self, delay_s: float, step: Callable[[], None]) -> None:
        self._cancel = self._call_later(delay_s, lambda: self._try(step))

    def _used(self) -> float:
        return sum(map(self._cores.used_s, self._threads))

    def _look(self) -> None:
        """Decide what the threads' use of processors since the last look is a reason for."""
        self._cancel = None
        now, together = self._now(), self._together
        seconds, used_s = now - self._begun, self._used() - self._used_s
        fits = self._flushes >= FLUSHES_PER_S * seconds and used_s <= SHARE_MAX * seconds
        if together is None and fits:
            self._place()
        elif together is not None and not (fits and now < together.until):
            self._part()
            if fits and not self._ended:
                self._ring(FREE_S, self._place)
        if self._cancel is None and self._flushes and not self._ended:
            self._look_later()  # otherwise the next flush has it done

    def _place(self) -> None:
        """Have the threads run where the loop runs now."""
        cores = self._cores
        before, *others = (cores.mask(each.number) for each in self._threads)
        if len(before) > 1 and all(each == before for each in others):
            core = frozenset((cores.current(),))
            until = self._now() + TOGETHER_S
            self._together = SharedCore(core, before, frozenset(cores.numbers()), until)
            for each in self._threads:
                cores.place(each.number, core)
        self._look_later()

    def _part(self) -> None:
        """Let the threads run where they might before, and those that were made meanwhile."""
        together, self._together = self._together, None
        if together is None:
            return
        cores = self._cores
        own = [each.number for each in self._threads]
        if any(cores.mask(each) != together.core for each in own):
            self._ended = True  # somebody else places them
        new = [each for each in cores.numbers() if each not in together.others]
        for number in (*own, *new):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                if cores.mask(number) == together.core:
                    cores.place(number, together.before)


def one_core(now: Callable[[], float]) -> OneCore | None:
    """Return what keeps the running loop and its flushers on one core; None: no use here."""
    if not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2:
        return None

    def call_later(delay_s: float, call: Callable[[], None]) -> Callable[[], object]:
        return asyncio.get_running_loop().call_later(delay_s, call).cancel

    return OneCore(LinuxCores(), now, call_later)
