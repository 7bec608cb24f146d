"""Flush policy, runner and thread: what is synced how, and how errors come back."""

import asyncio
import errno
import os
import threading
from collections.abc import Sequence

import pytest
from support.store import DIRECTORY, append, memory_disk, open_log, payloads

from vq.clock import ManualClock, SystemClock
from vq.store.commit.flusher import (
    FlushPolicy,
    FlushRunner,
    LoopFlusher,
    Outcome,
    ThreadFlusher,
)
from vq.store.commit.handover import HANDOVER, PythonHandover
from vq.store.commit.one_core import one_core
from vq.store.disk.file_system import FileSystem
from vq.store.disk.memory_disk import keep_none
from vq.store.log.begun import Beginning, BegunLog, BegunLogs
from vq.store.log.log import Log
from vq.store.log.ticket import SyncTicket
from vq.testing.waiting import until

BOTH = pytest.mark.parametrize("handover", dict.fromkeys([PythonHandover, HANDOVER]))


class FakeTicket:
    """A ticket that remembers how it was run."""

    def __init__(
        self, error: BaseException | None = None, *, file_system: FileSystem | None = None
    ) -> None:
        self.runs: list[FileSystem | None] = []
        self.thread: int | None = None
        self.error = error
        self.file_system = file_system
        self.new_metadata = False
        self.only_data = False
        self.descriptor = -1
        self.beginning: Beginning | None = None

    def needs_metadata(self, block_bytes: int) -> bool:
        return self.new_metadata

    def run(self, *, synced: FileSystem | None = None) -> None:
        self.runs.append(synced)
        self.thread = threading.get_ident()
        if self.error is not None:
            raise self.error


class FakeFileSystem:
    """A file system that counts how often it is synced as a whole."""

    def __init__(self, *, flushes_device: bool = True, error: Exception | None = None) -> None:
        self.flushes_device = flushes_device
        self.error = error
        self.journal_error: Exception | None = None
        self.block_bytes = 4096
        self.syncs = 0
        self.checks = 0

    def sync(self) -> None:
        self.syncs += 1
        if self.error is not None:
            raise self.error

    def check_journal(self) -> None:
        self.checks += 1
        if self.journal_error is not None:
            raise self.journal_error


class SavedLogs(BegunLogs):
    """A record of begun logs that counts how often it is saved."""

    error: Exception | None = None
    saves = 0

    def save(self) -> None:
        self.saves += 1
        if self.error is not None:
            raise self.error


def tickets_on(file_system: FileSystem | None, count: int) -> list[FakeTicket]:
    return [FakeTicket(file_system=file_system) for _ in range(count)]


def test_one_dirty_log_is_synced_by_itself_and_many_at_once():
    """One fdatasync is cheaper than a syncfs, sixteen are not."""
    policy = FlushPolicy()
    assert [policy.choose_whole(n) for n in (1, 2, 16, 256)] == [False, True, True, True]


def test_the_choice_follows_what_was_measured():
    """A file system that strangers keep dirty makes syncfs dear; the policy learns that."""
    policy = FlushPolicy()
    for _ in range(30):
        policy.record(whole=True, count=8, seconds=0.2)
    assert not policy.choose_whole(8)
    for _ in range(60):
        policy.record(whole=True, count=8, seconds=0.000_1)
    assert policy.choose_whole(8)


def test_the_dearer_way_is_tried_again_now_and_then():
    """So that a bad measurement does not last for ever."""
    policy = FlushPolicy()
    for _ in range(30):
        policy.record(whole=True, count=8, seconds=0.2)
    choices = [policy.choose_whole(8) for _ in range(FlushPolicy.RETRY_EVERY * 2)]
    assert choices.count(True) == 2


def test_an_error_of_one_log_does_not_touch_the_others():
    """Each ticket has its own outcome."""
    error = OSError(5, "disk")
    tickets = [FakeTicket(), FakeTicket(error), FakeTicket()]
    assert FlushRunner(ManualClock()).run(tickets) == [None, error, None]


def test_the_only_log_of_a_flush_is_synced_by_itself_and_what_that_takes_is_learned():
    """A slow disk makes syncing the whole worth it, and a fast one does not."""
    clock = ManualClock()

    class SlowTicket(FakeTicket):
        def run(self, *, synced: FileSystem | None = None) -> None:
            super().run(synced=synced)
            clock.advance(self.seconds)

    for seconds, syncs in ((0.01, 1), (0.000_001, 0)):
        file_system = FakeFileSystem()
        runner = FlushRunner(clock)
        for _ in range(60):
            ticket = SlowTicket(file_system=file_system)
            ticket.seconds = seconds
            assert runner.run([ticket]) == [None]
            assert ticket.runs == [None]
        assert file_system.syncs == 0
        runner.run(tickets_on(file_system, 2))
        assert file_system.syncs == syncs


@pytest.mark.parametrize("file_system", [None, FakeFileSystem()])
def test_a_flush_tells_when_it_was_done_with_a_log(file_system: FakeFileSystem | None):
    """Whoever looks meanwhile sees that it does not hang."""
    clock, seen = ManualClock(), []
    begin = clock.monotonic()

    class SlowTicket(FakeTicket):
        only_data = False

        def run(self, *, synced: FileSystem | None = None) -> None:
            seen.append(runner.stepped_s - begin)
            clock.advance(10)
            super().run(synced=synced)

    runner = FlushRunner(clock)
    runner.run([SlowTicket(file_system=file_system) for _ in range(4)])
    assert seen == [0, 10, 20, 30]
    assert runner.stepped_s - begin == 40


@pytest.mark.parametrize("file_system", [None, FakeFileSystem()])
def test_the_only_log_of_a_flush_fails_alone(file_system: FakeFileSystem | None):
    """The journal is checked then: it may be damaged for the logs to come."""
    error = OSError(5, "disk")
    (ticket,) = tickets_on(file_system, 1)
    ticket.error = error
    assert FlushRunner(ManualClock()).run([ticket]) == [error]
    assert file_system is None or file_system.checks == 1


def test_the_only_log_of_a_flush_is_new():
    """The record of begun logs is saved before the flush counts, and its error is the log's."""
    begun = SavedLogs(DIRECTORY, memory_disk())
    outcomes = []
    for begun.error in (None, OSError(5, "disk")):
        (ticket,) = tickets_on(None, 1)
        ticket.beginning = Beginning(begun, BegunLog("id", "0", 0))
        outcomes += FlushRunner(ManualClock()).run([ticket])
    assert outcomes == [None, begun.error]
    assert begun.saves == 2


def test_without_a_file_system_that_can_be_synced_every_log_is_flushed_by_itself():
    """Whatever their number."""
    tickets = tickets_on(None, 256)
    assert FlushRunner(ManualClock()).run(tickets) == [None] * 256
    assert all(ticket.runs == [None] for ticket in tickets)


def test_where_syncfs_flushes_the_device_only_the_checkpoints_are_left():
    """One call for all."""
    ext4 = FakeFileSystem()
    tickets = tickets_on(ext4, 16)
    FlushRunner(ManualClock()).run(tickets)
    assert ext4.syncs == 1
    assert all(ticket.runs == [ext4] for ticket in tickets)


def test_where_syncfs_flushes_no_device_the_first_log_is_flushed_behind_it():
    """Its fdatasync flushes the device for all."""
    xfs = FakeFileSystem(flushes_device=False)
    tickets = tickets_on(xfs, 16)
    FlushRunner(ManualClock()).run(tickets)
    assert xfs.syncs == 1
    assert [ticket.runs for ticket in tickets] == [[None]] + [[xfs]] * 15


def test_a_log_whose_flush_fails_flushes_no_device_for_the_others():
    """The next one is flushed by itself, too; each failure is that of its own log."""
    xfs = FakeFileSystem(flushes_device=False)
    tickets = tickets_on(xfs, 5)
    tickets[0].error = tickets[1].error = OSError(5, "disk")
    outcome = FlushRunner(ManualClock()).run(tickets)
    assert outcome == [tickets[0].error, tickets[1].error, None, None, None]
    assert [ticket.runs for ticket in tickets] == [[None], [None], [None], [xfs], [xfs]]


def test_a_log_with_nothing_else_to_write_is_done_when_its_file_system_is_synced():
    """On the device, that is."""
    for flushes in (True, False):
        file_system = FakeFileSystem(flushes_device=flushes)
        tickets = tickets_on(file_system, 16)
        for ticket in tickets:
            ticket.only_data = True
        assert FlushRunner(ManualClock()).run(tickets) == [None] * 16
        assert [len(ticket.runs) for ticket in tickets] == [0 if flushes else 1] + [0] * 15


def test_each_file_system_is_synced_for_its_own_logs_only():
    """Outcomes come back in the order of the tickets."""
    one, other = FakeFileSystem(), FakeFileSystem(error=OSError(5, "disk"))
    tickets = [FakeTicket(file_system=fs) for fs in (one, other, None) * 16]
    error = tickets[4].error = OSError(5, "disk")
    outcome = FlushRunner(ManualClock()).run(tickets)
    assert (one.syncs, other.syncs) == (1, 1)
    assert [ticket.runs for ticket in tickets] == [[one], [None], [None]] * 16
    assert outcome == [error if index == 4 else None for index in range(48)]


@pytest.mark.parametrize("error", [OSError(5, "disk"), RuntimeError("a bug")])
def test_after_an_error_of_the_whole_every_log_is_flushed_by_itself(error: Exception):
    """Now and from now on: the error is told once, and does not say which file it belongs to."""
    file_system = FakeFileSystem(error=error)
    runner = FlushRunner(ManualClock())
    for _ in range(3):
        tickets = tickets_on(file_system, 16)
        assert runner.run(tickets) == [None] * 16
        assert all(ticket.runs == [None] for ticket in tickets)
    assert file_system.syncs == 1


def test_the_journal_is_looked_at_when_metadata_had_to_be_written():
    """Only then: looking at it costs the next sync a commit of the journal."""
    file_system = FakeFileSystem()
    runner = FlushRunner(ManualClock())
    tickets = tickets_on(file_system, 16)
    runner.run(tickets)
    assert file_system.checks == 0
    tickets[7].new_metadata = True
    runner.run(tickets)
    assert file_system.checks == 1


def test_a_journal_that_failed_in_silence_makes_every_log_flush_by_itself():
    """As if the sync had failed."""
    file_system = FakeFileSystem()
    file_system.journal_error = OSError(30, "read-only")
    runner = FlushRunner(ManualClock())
    for _ in range(3):
        tickets = tickets_on(file_system, 16)
        tickets[3].new_metadata = True
        assert runner.run(tickets) == [None] * 16
        assert all(ticket.runs == [None] for ticket in tickets)
    assert file_system.syncs == 1


def test_where_one_log_fails_and_the_journal_is_gone_all_of_them_fail():
    """The files of the others may have been synced before the kernel noticed."""
    file_system = FakeFileSystem()
    gone = file_system.journal_error = OSError(30, "read-only")
    tickets = tickets_on(file_system, 1) + tickets_on(None, 1)
    runner = FlushRunner(ManualClock())
    assert runner.run(tickets) == [None, None]
    own = OSError(5, "disk")
    many = tickets_on(file_system, 3)
    for ticket in many:
        ticket.new_metadata = True
    many[1].error = own
    assert runner.run([*many, tickets[1]]) == [gone, own, gone, None]


def test_a_new_log_whose_first_flush_fails_is_not_made_durable_by_its_neighbours():
    """The record of begun logs is saved for those that did not fail; that says nothing of it."""
    disk = memory_disk()
    begun = BegunLogs(DIRECTORY, disk)
    own = OSError(5, "disk")
    for file_system in (None, FakeFileSystem()):
        tickets = tickets_on(file_system, 3)
        for number, ticket in enumerate(tickets):
            ticket.beginning = Beginning(begun, BegunLog("id", str(number), 0))
        tickets[1].error = own
        assert FlushRunner(ManualClock()).run(tickets) == [None, own, None]


@pytest.mark.parametrize("flushes", [True, False])
def test_an_error_of_the_whole_ends_the_log_that_lost_bytes_and_no_other(flushes: bool):
    """The log that lost bytes is not in the flush that hears of it; its own flush tells."""
    disk = memory_disk(syncfs_flushes=flushes)
    logs = [open_log(disk, DIRECTORY.with_name(str(number))) for number in range(3)]
    runner = FlushRunner(ManualClock())

    def flush(*chosen: Log) -> list[BaseException | None]:
        tickets = [log.begin_sync() for log in chosen]
        outcome = runner.run([ticket for ticket in tickets if ticket is not None])
        for log, ticket, error in zip(chosen, tickets, outcome, strict=True):
            assert ticket is not None
            if error is None:
                log.finish_sync(ticket)
            else:
                log.fail(error)
        return outcome

    for log in logs:
        append(log, b"first")
    assert flush(*logs) == [None] * 3
    for log in logs:
        append(log, b"second")
    disk.lose(f"/2/{0:016d}.block")
    assert flush(*logs[:2]) == [None, None], "intact logs go on"
    (error,) = flush(logs[2])
    assert isinstance(error, OSError), "the log that lost bytes is told"
    for log in logs[:2]:
        append(log, b"third")
    assert flush(*logs[:2]) == [None, None]
    after = disk.crash(keep_none)
    stored = [payloads(open_log(after, log.directory)) for log in logs]
    assert stored == [[b"first", b"second", b"third"]] * 2 + [[b"first"]]


@pytest.mark.parametrize("flushes", [True, False])
def test_what_many_logs_share_is_on_the_medium_when_they_are_told(flushes: bool):
    """Also where syncing the whole file system leaves it in the device's cache."""
    disk = memory_disk(syncfs_flushes=flushes)
    logs = [open_log(disk, DIRECTORY.with_name(str(number))) for number in range(8)]
    runner = FlushRunner(ManualClock())
    for number in range(4):
        tickets = []
        for log in logs:
            append(log, b"%d" % number)
            ticket = log.begin_sync()
            assert ticket is not None
            tickets.append(ticket)
        assert runner.run(tickets) == [None] * 8
        for log, ticket in zip(logs, tickets, strict=True):
            log.finish_sync(ticket)
        after = disk.crash(keep_none)
        for log in logs:
            found = payloads(open_log(after, log.directory))
            assert found == [b"%d" % n for n in range(number + 1)]


@BOTH
async def test_the_thread_flushes_off_the_loop_and_calls_back_on_it(handover):
    """The loop's thread never runs a ticket, and the flusher's never calls back."""
    flusher = ThreadFlusher(FlushRunner(SystemClock()), handover)
    done: list[tuple[int, list[object]]] = []
    flusher.start(lambda _, outcome: done.append((threading.get_ident(), list(outcome))))
    for n in range(1, 4):
        ticket = FakeTicket()
        flusher.submit([ticket])
        await until(lambda: len(done) == n)  # noqa: B023
        assert ticket.thread != threading.get_ident()
        assert done[-1] == (threading.get_ident(), [None])
    flusher.close()


@BOTH
async def test_one_file_is_synced_without_its_ticket(handover, tmp_path):
    """Nothing else would be done by it. An error has the journal looked at, as by a ticket."""
    flusher = ThreadFlusher(FlushRunner(SystemClock()), handover)
    done: list[Outcome] = []
    flusher.start(lambda _, outcome: done.append(outcome))
    file_system = FakeFileSystem()
    ticket = FakeTicket(file_system=file_system)
    ticket.descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        for _ in range(2):
            flusher.submit([ticket])
            await until(lambda: done)
            assert list(done.pop()) == [None]
        assert not file_system.checks
    finally:
        os.close(ticket.descriptor)
    flusher.submit([ticket])
    await until(lambda: done)
    ((error,),) = done
    assert isinstance(error, OSError)
    assert error.errno == errno.EBADF
    assert file_system.checks == 1
    assert not ticket.runs
    flusher.submit([FakeTicket(), ticket])  # with another one, it is run
    await until(lambda: len(done) == 2)
    assert done[1] == [None, None]
    assert len(ticket.runs) == 1
    flusher.close()


@BOTH
async def test_whatever_a_flush_raises_reaches_those_who_wait(handover):
    """And the thread goes on."""

    class Broken(FlushRunner):
        def run(self, tickets: Sequence[SyncTicket]) -> Outcome:
            if tickets[0].error is not None:
                raise tickets[0].error
            return super().run(tickets)

    flusher = ThreadFlusher(Broken(SystemClock()), handover)
    done: list[Outcome] = []
    flusher.start(lambda _, outcome: done.append(outcome))
    error = SystemExit("a bug")
    flusher.submit([FakeTicket(error), FakeTicket()])
    await until(lambda: done)
    assert done.pop() == [error, error]
    flusher.submit([FakeTicket()])
    await until(lambda: done)
    assert done == [[None]]
    flusher.close()


@BOTH
async def test_closing_finishes_a_submission_that_was_not_taken_yet(handover):
    """What was handed over is flushed, and the thread ends."""
    for _ in range(50):
        flusher = ThreadFlusher(FlushRunner(SystemClock()), handover)
        flusher.start(lambda *_: None)
        ticket = FakeTicket()
        flusher.submit([ticket])
        flusher.close()
        assert ticket.runs == [None]
    assert not [t for t in threading.enumerate() if t.name == "vq-flusher"]


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="this process has one core",
)
async def test_loop_and_threads_share_a_core_until_a_flusher_closes():
    """Of two directories; each flush is quick, so all of them use little of a core."""
    before = os.sched_getaffinity(0)
    shared = one_core(asyncio.get_running_loop().time)
    flushers = [ThreadFlusher(FlushRunner(SystemClock()), one_core=shared) for _ in range(2)]
    done: list[Outcome] = []
    for each in flushers:
        each.start(lambda _, outcome: done.append(outcome))
    threads = [each.native_id for each in threading.enumerate() if each.name == "vq-flusher"]
    assert len(threads) == 2
    try:
        async with asyncio.timeout(60):
            while os.sched_getaffinity(0) == before:
                for each in flushers:
                    each.submit([FakeTicket()])
                await until(lambda: len(done) == 2)
                done.clear()
                await asyncio.sleep(0.001)
        for thread in threads:
            assert os.sched_getaffinity(thread) == os.sched_getaffinity(0)
        assert len(os.sched_getaffinity(0)) == 1
    finally:
        flushers[0].close()
        left = [os.sched_getaffinity(each) for each in (0, threads[1])]
        flushers[1].close()
    assert left == [before, before]


@BOTH
@pytest.mark.parametrize("started", [True, False])
async def test_a_flusher_without_work_closes(started, handover):
    """Also when it was never started, and twice; it keeps no descriptor."""
    before = os.listdir("/proc/self/fd")
    flusher = ThreadFlusher(FlushRunner(SystemClock()), handover)
    if started:
        flusher.start(lambda *_: None)
    flusher.close()
    flusher.close()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.virtual_time
async def test_the_twin_needs_no_thread():
    """It flushes on the loop's timers, after its delay."""
    flusher = LoopFlusher(FlushRunner(ManualClock()), delay_s=0.01)
    done: list[list[object]] = []
    flusher.start(lambda _, outcome: done.append(list(outcome)))
    before = set(threading.enumerate())
    begin = asyncio.get_running_loop().time()
    flusher.submit([FakeTicket()])
    await until(lambda: done == [[None]])
    assert asyncio.get_running_loop().time() - begin == pytest.approx(0.01, rel=0.2)
    assert set(threading.enumerate()) <= before
