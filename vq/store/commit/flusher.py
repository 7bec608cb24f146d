"""The thread that makes appends durable, and its twin for simulated clusters.

In here: how a set of dirty logs becomes durable, and on which thread. Not in here: which logs are
dirty and who waits for them (``storer``), and what a log syncs (``vq.store``).

One flush is in flight at a time. Whatever is appended meanwhile gathers for the next one, so the
number of messages behind one fdatasync grows by itself as the disk gets slower or the load higher
(group commit; see "Group Commit Implementations and Variations" in DB literature, DeWitt 1984).
"""

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from vq.clock import Clock
from vq.log_lines import get_logger
from vq.store.commit.handover import CALL, CLOSED, HANDOVER, RUN, Handover, wake_descriptors
from vq.store.commit.one_core import OneCore, thread_of
from vq.store.disk.file_system import FileSystem
from vq.store.log.begun import BegunLogs
from vq.store.log.ticket import SyncTicket

logger = get_logger(__name__)

#: One entry per ticket: None when it is durable, otherwise why it is not known to be.
Outcome = Sequence[BaseException | None]
#: Of the only ticket of a flush that is one ``fdatasync``.
_SYNCED: Final[Outcome] = (None,)
OnDone = Callable[[Sequence[SyncTicket], Outcome], None]


class Flusher(Protocol):
    """Runs tickets, off the event loop where there is one to be kept free."""

    def start(self, on_done: OnDone) -> None:
        """Begin; ``on_done`` is called on the event loop, once per ``submit``."""
        ...

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        """Flush ``tickets``. At most one submission may be in flight; the caller sees to that."""
        ...

    def stepped_s(self) -> float:
        """Return when a flush got on last, of a monotonic clock: it was done with one more log.

        A flush of a thousand logs may take long on a disk that is only slow.
        """
        ...

    def close(self) -> None:
        """End; a flush in flight is finished, but ``on_done`` may not be called for it."""
        ...


class FlushPolicy:
    """Decides how the dirty logs of one file system are synced: file by file, or all at once.

    Syncing in turn costs about the same for every file; ``syncfs`` costs little more for many files
    than for one. Measured on ext4 with 500 dirty bytes a file (ms): 1 file 0.14 / 0.19, 2 files
    0.32 / 0.14, 4 files 0.56 / 0.16, 16 files 2.0 / 0.29, 256 files 31 / 1.6. But ``syncfs``
    also writes out dirty data of other programs on that file system, so the choice follows the
    measured cost of both rather than a fixed number of files, and every ``RETRY_EVERY`` flushes the
    dearer way is tried again.
    """

    RETRY_EVERY = 512
    _WEIGHT = 0.2

    def __init__(self) -> None:
        self._whole_allowed = True
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
            # Syncing 64 files one by one takes too long for a measurement.
            return not whole or count > 64
        return whole

    def forbid_whole(self) -> None:
        """Sync every file by itself from now on."""
        self._whole_allowed = False

    def record(self, *, whole: bool, count: int, seconds: float) -> None:
        """Learn that a flush of ``count`` logs took ``seconds``."""
        if whole:
            self._whole_s += self._WEIGHT * (seconds - self._whole_s)
        else:
            self._file_s += self._WEIGHT * (seconds / count - self._file_s)


class FlushRunner:
    """Runs the tickets of one flush on the calling thread, one file system after the other.

    Args:
        clock: Read before and after each flush.

    Attributes:
        stepped_s: See ``Flusher.stepped_s``. Other threads may read it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.stepped_s = clock.monotonic()
        self._policies: defaultdict[FileSystem, FlushPolicy] = defaultdict(FlushPolicy)

    def run(self, tickets: Sequence[SyncTicket]) -> Outcome:
        """Return, for each ticket, None when it is durable, otherwise what went wrong."""
        if len(tickets) == 1:
            return [self._run_one(tickets[0])]
        first = tickets[0].file_system
        for ticket in tickets:
            if ticket.file_system is not first:
                return _save_beginnings(tickets, self._run_apart(tickets))
        return _save_beginnings(tickets, self._run_group(first, tickets))

    def _run_one(self, ticket: SyncTicket) -> BaseException | None:
        """Run the only ticket of a flush; return what went wrong. It is synced by itself."""
        begin = self._clock.monotonic()
        try:
            ticket.run()
        except Exception as error:  # noqa: BLE001  as in ``_run``
            self._check_after_error(ticket)
            return error
        self.note_synced(ticket, self._clock.monotonic() - begin)
        return None if ticket.beginning is None else _save(ticket.beginning.logs)

    def note_synced(self, ticket: SyncTicket, seconds: float) -> None:
        """Learn how long the only ticket of a flush took; the loop may call it between flushes."""
        if ticket.file_system is not None:
            self._policies[ticket.file_system].record(whole=False, count=1, seconds=seconds)

    def end_failed(self, ticket: SyncTicket, number: int) -> Outcome:
        """Return the outcome of the only ticket of a flush, whose ``fdatasync`` has failed."""
        self._check_after_error(ticket)
        return [OSError(number, os.strerror(number))]

    def _check_after_error(self, ticket: SyncTicket) -> None:
        if ticket.file_system is not None:
            _journal_error(ticket.file_system)

    def _run_apart(self, tickets: Sequence[SyncTicket]) -> Outcome:
        """Run tickets of several file systems."""
        groups: dict[FileSystem | None, list[int]] = {}
        for index, ticket in enumerate(tickets):
            groups.setdefault(ticket.file_system, []).append(index)
        outcome: list[BaseException | None] = [None] * len(tickets)
        for file_system, indexes in groups.items():
            errors = self._run_group(file_system, [tickets[index] for index in indexes])
            for index, error in zip(indexes, errors, strict=True):
                outcome[index] = error
        return outcome

    def _run_group(self, file_system: FileSystem | None, tickets: Sequence[SyncTicket]) -> Outcome:
        """Run tickets whose files are all on one file system."""
        if file_system is None:
            return [self._run(ticket, None) for ticket in tickets]
        policy = self._policies[file_system]
        count = len(tickets)
        begin = self._clock.monotonic()
        whole = policy.choose_whole(count) and _sync(file_system, tickets, policy)
        if whole:
            errors = self._run_rest(file_system, tickets)
        else:
            errors = [self._run(ticket, None) for ticket in tickets]
        if any(errors):
            journal = _journal_error(file_system)
            errors = [error or journal for error in errors]
        seconds = self._clock.monotonic() - begin
        policy.record(whole=whole, count=count, seconds=seconds)
        return errors

    def _run_rest(
        self, file_system: FileSystem, tickets: Sequence[SyncTicket]
    ) -> list[BaseException | None]:
        """Do what is left for tickets whose file system was synced as a whole.

        Where that does not flush the device, the first fdatasync does. Only then are the files of
        the other tickets durable.
        """
        self.stepped_s = self._clock.monotonic()  # the file system was synced
        errors: list[BaseException | None] = []
        durable = file_system.flushes_device
        for ticket in tickets:
            if durable and ticket.only_data:
                errors.append(None)
                continue
            error = self._run(ticket, file_system if durable else None)
            durable = durable or error is None
            errors.append(error)
        return errors

    def _run(self, ticket: SyncTicket, synced: FileSystem | None) -> BaseException | None:
        """Run a ticket; return what went wrong."""
        try:
            ticket.run(synced=synced)
        except Exception as error:  # noqa: BLE001  a damaged log must not end the flusher
            return error
        finally:
            self.stepped_s = self._clock.monotonic()
        return None


def _save_beginnings(tickets: Sequence[SyncTicket], outcome: Outcome) -> Outcome:
    """Have the record of begun logs name those whose first batch is durable now, all at once."""
    begun = [
        (index, ticket.beginning)
        for index, ticket in enumerate(tickets)
        if ticket.beginning is not None and outcome[index] is None
    ]
    if not begun:
        return outcome
    errors = list(outcome)
    saved: dict[BegunLogs, BaseException | None] = {}
    for index, beginning in begun:
        if beginning.logs not in saved:
            saved[beginning.logs] = _save(beginning.logs)
        errors[index] = saved[beginning.logs]
    return errors


def _save(logs: BegunLogs) -> BaseException | None:
    """Save the record; return what went wrong."""
    try:
        logs.save()
    except Exception as error:  # noqa: BLE001  as in ``_run``
        return error
    return None


def _sync(file_system: FileSystem, tickets: Sequence[SyncTicket], policy: FlushPolicy) -> bool:
    """Sync the file system as a whole; False if that failed.

    The error is reported here once, and belongs to any file, also to one that is in no ticket. Only
    an ``fdatasync`` of that file reports it again. So every log is flushed by itself from now on,
    those of this flush included: the log that lost bytes fails, now or at its next flush, and the
    others go on.
    """
    try:
        file_system.sync()
        for ticket in tickets:
            if ticket.needs_metadata(file_system.block_bytes):
                file_system.check_journal()
                break
    except Exception as error:
        policy.forbid_whole()
        logger.error(
            "syncing a file system failed, flushing each log by itself from now on",
            error=error,
            exc_info=None if isinstance(error, OSError) else error,
        )
        _journal_error(file_system)
        return False
    return True


def _journal_error(file_system: FileSystem) -> BaseException | None:
    """Check the journal after an error; return the error if nothing is durable any more."""
    try:
        file_system.check_journal()
    except Exception as error:  # noqa: BLE001  after any error the journal may be damaged
        return error
    return None


class ThreadFlusher:
    """A flusher with a thread of its own. ``start`` must run on the event loop it shall call back.

    A flush that is one ``fdatasync`` is done within the hand-over, compiled without Python and its
    lock; the thread comes back to Python for any other, and for errors (decision 0174). Syncing on
    the loop itself when one message waits would save the hand-over, but then one stall of the disk
    stops reads, heartbeats of peers and every other partition.

    Args:
        runner: Runs what is more than one ``fdatasync``.
        handover: Gets flushes to the thread.
        one_core: Has thread and loop run on one core, where that helps; None: nobody does.
    """

    def __init__(
        self,
        runner: FlushRunner,
        handover: Callable[[int, int], Handover] = HANDOVER,
        one_core: OneCore | None = None,
    ) -> None:
        self._runner = runner
        self._one_core = one_core
        self._new_handover = handover
        self._handover: Handover | None = None
        self._wakes: tuple[int, ...] = ()  # descriptors that wake the loop: both ends, or one
        self._tickets: Sequence[SyncTicket] = ()  # of the flush in flight
        self._outcome: Outcome | None = None  # of that, unless it was one sync that ended well
        self._closing = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_done: OnDone | None = None

    def start(self, on_done: OnDone) -> None:
        """See ``Flusher.start``."""
        self._loop = asyncio.get_running_loop()
        self._on_done = on_done
        self._wakes = wake_descriptors()
        self._handover = self._new_handover(self._wakes[0], self._wakes[-1])
        self._loop.add_reader(self._wakes[0], self._woken)
        self._thread = threading.Thread(target=self._work, name="vq-flusher", daemon=True)
        self._thread.start()
        if self._one_core is not None:
            self._one_core.join(thread_of(self._thread))

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        """See ``Flusher.submit``."""
        assert self._handover is not None
        if self._one_core is not None:
            self._one_core.note_flush()
        self._tickets = tickets
        self._handover.give(tickets[0].descriptor if len(tickets) == 1 else CALL)

    def stepped_s(self) -> float:
        """See ``Flusher.stepped_s``."""
        return self._runner.stepped_s

    def close(self) -> None:
        """See ``Flusher.close``. Waits for the flush in flight."""
        if self._thread is None:
            return
        assert self._handover is not None
        assert self._loop is not None
        if self._one_core is not None:
            self._one_core.end()
        self._closing = True
        self._handover.close()
        self._thread.join()
        self._thread = None
        if not self._loop.is_closed():
            self._loop.remove_reader(self._wakes[0])
        for descriptor in self._wakes:
            os.close(descriptor)

    def _woken(self) -> None:
        """Tell the loop how a flush ended."""
        assert self._handover is not None
        assert self._on_done is not None
        took_s = self._handover.take()
        tickets, outcome = self._tickets, self._outcome
        if outcome is not None:
            self._outcome = None
        elif took_s >= 0.0:
            outcome = _SYNCED
            self._runner.note_synced(tickets[0], took_s)
        else:
            return  # nothing has ended
        self._on_done(tickets, outcome)

    def _work(self) -> None:
        handover, runner = self._handover, self._runner
        assert handover is not None
        while True:
            found = handover.serve()
            if found == CLOSED:
                return
            tickets = self._tickets
            outcome: Outcome
            try:
                if found == RUN:
                    outcome = runner.run(tickets)
                else:
                    outcome = runner.end_failed(tickets[0], found)
            except BaseException as error:  # noqa: BLE001  somebody waits for the outcome
                outcome = [error] * len(tickets)
            if self._closing:
                return
            self._outcome = outcome
            handover.tell()


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

    def stepped_s(self) -> float:
        """See ``Flusher.stepped_s``."""
        return self._runner.stepped_s

    def close(self) -> None:
        """See ``Flusher.close``."""
        self._on_done = None

    def _finish(self, tickets: Sequence[SyncTicket]) -> None:
        if self._on_done is not None:
            self._on_done(tickets, self._runner.run(tickets))
