"""The thread that makes appends durable, and its twin for simulated clusters.

In here: how a set of dirty logs becomes durable, and on which thread. Not in here: which logs are
dirty and who waits for them (``storer``), and what a log syncs (``vq.store``).

One flush is in flight at a time. Whatever is appended meanwhile gathers for the next one, so the
number of messages behind one fdatasync grows by itself as the disk gets slower or the load higher
(group commit; see "Group Commit Implementations and Variations" in DB literature, DeWitt 1984).
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from vq.clock import Clock
from vq.store.ticket import SyncTicket

logger = logging.getLogger(__name__)

#: One entry per ticket: None when it is durable, otherwise why it is not known to be.
Outcome = Sequence[BaseException | None]
OnDone = Callable[[Sequence[SyncTicket], Outcome], None]


class Flusher(Protocol):
    """Runs tickets, off the event loop where there is one to be kept free."""

    def start(self, on_done: OnDone) -> None:
        """Begin; ``on_done`` is called on the event loop, once per ``submit``."""
        ...

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        """Flush ``tickets``. At most one submission may be in flight; the caller sees to that."""
        ...

    def close(self) -> None:
        """End; a flush in flight is finished, but ``on_done`` may not be called for it."""
        ...


class FlushPolicy:
    """Decides how a set of dirty logs is synced: file by file, or the whole file system at once.

    Syncing in turn costs about the same for every file; ``syncfs`` costs little more for many files
    than for one. Measured on ext4 with 500 dirty bytes a file (ms): 1 file 0.14 / 0.19, 2 files
    0.32 / 0.14, 4 files 0.56 / 0.16, 16 files 2.0 / 0.29, 256 files 31 / 1.6. But ``syncfs``
    also writes out what strangers left dirty on that file system, so the choice follows
    what both really cost lately rather than a fixed number of files, and every
    ``RETRY_EVERY`` flushes the dearer way is tried again.
    """

    RETRY_EVERY = 512
    _WEIGHT = 0.2

    def __init__(self, *, whole_allowed: bool) -> None:
        self._whole_allowed = whole_allowed
        # First guesses, from the table above; replaced by what is measured.
        self._file_s = 0.000_15
        self._whole_s = 0.000_18
        self._since_retry = 0

    def choose_whole(self, count: int) -> bool:
        """Whether ``count`` (>= 1) dirty logs should be synced by syncing the file system."""
        if count < 2 or not self._whole_allowed:
            return False
        whole = self._whole_s < self._file_s * count
        self._since_retry += 1
        if self._since_retry >= self.RETRY_EVERY:
            self._since_retry = 0
            # Sixty-four files in turn take longer than anybody should wait for a measurement.
            return not whole or count > 64
        return whole

    def record(self, *, whole: bool, count: int, seconds: float) -> None:
        """Learn that a flush of ``count`` logs took ``seconds``."""
        if whole:
            self._whole_s += self._WEIGHT * (seconds - self._whole_s)
        else:
            self._file_s += self._WEIGHT * (seconds / count - self._file_s)


class FlushRunner:
    """Runs the tickets of one flush on the calling thread and times them.

    Args:
        clock: Read before and after each flush.
        sync_all: Syncs the whole file system under the data directory, or None where that is not
            possible or does not report errors.
    """

    def __init__(self, clock: Clock, sync_all: Callable[[], None] | None) -> None:
        self._clock = clock
        self._sync_all = sync_all
        self._policy = FlushPolicy(whole_allowed=sync_all is not None)

    def run(self, tickets: Sequence[SyncTicket]) -> list[BaseException | None]:
        """Return, for each ticket, None when it is durable, otherwise what went wrong."""
        begin = self._clock.monotonic()
        whole = self._policy.choose_whole(len(tickets))
        outcome: list[BaseException | None] = []
        if whole and self._sync_all is not None:
            try:
                self._sync_all()
            except OSError as error:
                # Which file the error belongs to cannot be told: all of them are in doubt.
                return [error] * len(tickets)
        for ticket in tickets:
            try:
                ticket.run(data_synced=whole)
            except Exception as error:  # noqa: BLE001  a damaged log must not end the flusher
                outcome.append(error)
            else:
                outcome.append(None)
        seconds = self._clock.monotonic() - begin
        self._policy.record(whole=whole, count=len(tickets), seconds=seconds)
        return outcome


class ThreadFlusher:
    """A flusher with a thread of its own. ``start`` must run on the event loop it shall call back.

    The hand-over is one lock released by the loop and taken by the thread: of the ways tried
    (lock, ``Condition``, ``SimpleQueue``, eventfd) none was measurably faster, and the lock is
    the one that allocates nothing. Both ways together cost 30 to 60 µs, most of it the kernel
    waking a sleeping processor. Syncing on the loop itself when one message waits would save them,
    but then one stall of the disk stops reads, heartbeats of peers and every other partition.
    """

    def __init__(self, runner: FlushRunner) -> None:
        self._runner = runner
        self._wake = threading.Lock()
        self._wake.acquire()
        self._tickets: Sequence[SyncTicket] | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_done: OnDone | None = None

    def start(self, on_done: OnDone) -> None:
        """See ``Flusher.start``."""
        self._loop = asyncio.get_running_loop()
        self._on_done = on_done
        self._thread = threading.Thread(target=self._work, name="vq-flusher", daemon=True)
        self._thread.start()

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        """See ``Flusher.submit``."""
        self._tickets = tickets
        self._wake.release()

    def close(self) -> None:
        """See ``Flusher.close``. Waits for the flush in flight."""
        if self._thread is None:
            return
        self._closing = True
        try:
            self._wake.release()
        except RuntimeError:
            pass  # a submission is waiting; the thread takes it and then sees that it shall end
        self._thread.join()
        self._thread = None

    def _work(self) -> None:
        wake, run = self._wake, self._runner.run
        loop, on_done = self._loop, self._on_done
        assert loop is not None
        assert on_done is not None
        while True:
            wake.acquire()
            tickets, self._tickets = self._tickets, None
            if tickets is None:
                return  # only ``close`` wakes without tickets
            outcome = run(tickets)
            if self._closing:
                return
            try:
                loop.call_soon_threadsafe(on_done, tickets, outcome)
            except RuntimeError:
                logger.warning("flusher ends: the event loop was closed under it")
                return


class LoopFlusher:
    """The twin for simulated clusters: a flush is a timer of ``delay_s``; no thread."""

    def __init__(self, runner: FlushRunner, *, delay_s: float = 0.000_2) -> None:
        self._runner = runner
        self._delay_s = delay_s
        self._on_done: OnDone | None = None

    def start(self, on_done: OnDone) -> None:
        """See ``Flusher.start``."""
        self._on_done = on_done

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        """See ``Flusher.submit``."""
        asyncio.get_running_loop().call_later(self._delay_s, self._finish, tickets)

    def close(self) -> None:
        """See ``Flusher.close``."""
        self._on_done = None

    def _finish(self, tickets: Sequence[SyncTicket]) -> None:
        if self._on_done is not None:
            self._on_done(tickets, self._runner.run(tickets))
