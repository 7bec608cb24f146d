"""Flush policy, runner and thread: what is synced how, and how errors come back."""

import asyncio
import threading

import pytest
from support.broker import until

from vq.broker.flusher import FlushPolicy, FlushRunner, LoopFlusher, ThreadFlusher
from vq.clock import ManualClock, SystemClock


class FakeTicket:
    """A ticket that remembers how it was run."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs: list[bool] = []
        self.thread: int | None = None
        self.error = error

    def run(self, *, data_synced: bool = False) -> None:
        self.runs.append(data_synced)
        self.thread = threading.get_ident()
        if self.error is not None:
            raise self.error


def test_one_dirty_log_is_synced_by_itself_and_many_at_once():
    """One fdatasync is cheaper than a syncfs, sixteen are not."""
    policy = FlushPolicy(whole_allowed=True)
    assert [policy.choose_whole(n) for n in (1, 2, 16, 256)] == [False, True, True, True]


def test_without_syncfs_every_file_is_synced():
    """Where the file system cannot be synced as a whole, nothing changes with the number."""
    policy = FlushPolicy(whole_allowed=False)
    assert not policy.choose_whole(256)


def test_the_choice_follows_what_was_measured():
    """A file system that strangers keep dirty makes syncfs dear; the policy learns that."""
    policy = FlushPolicy(whole_allowed=True)
    for _ in range(30):
        policy.record(whole=True, count=8, seconds=0.2)
    assert not policy.choose_whole(8)
    for _ in range(60):
        policy.record(whole=True, count=8, seconds=0.000_1)
    assert policy.choose_whole(8)


def test_the_dearer_way_is_tried_again_now_and_then():
    """So that a bad measurement does not last for ever."""
    policy = FlushPolicy(whole_allowed=True)
    for _ in range(30):
        policy.record(whole=True, count=8, seconds=0.2)
    choices = [policy.choose_whole(8) for _ in range(FlushPolicy.RETRY_EVERY * 2)]
    assert choices.count(True) == 2


def test_an_error_of_one_log_does_not_touch_the_others():
    """Each ticket has its own outcome."""
    error = OSError(5, "disk")
    tickets = [FakeTicket(), FakeTicket(error), FakeTicket()]
    runner = FlushRunner(ManualClock(), None)
    assert runner.run(tickets) == [None, error, None]


def test_an_error_of_the_file_system_puts_all_logs_in_doubt():
    """Which file it belongs to cannot be told, so none is acknowledged."""
    error = OSError(5, "disk")

    def sync_all() -> None:
        raise error

    tickets = [FakeTicket() for _ in range(16)]
    assert FlushRunner(ManualClock(), sync_all).run(tickets) == [error] * 16
    assert all(not ticket.runs for ticket in tickets)


def test_tickets_know_when_the_file_system_was_synced():
    """Then only their checkpoints are left to write."""
    calls: list[int] = []
    tickets = [FakeTicket() for _ in range(16)]
    FlushRunner(ManualClock(), lambda: calls.append(1)).run(tickets)
    assert calls == [1]
    assert [ticket.runs for ticket in tickets] == [[True]] * 16


async def test_the_thread_flushes_off_the_loop_and_calls_back_on_it():
    """The loop's thread never runs a ticket, and the flusher's never calls back."""
    flusher = ThreadFlusher(FlushRunner(SystemClock(), None))
    done: list[tuple[int, list[object]]] = []
    flusher.start(lambda _, outcome: done.append((threading.get_ident(), list(outcome))))
    for n in range(1, 4):
        ticket = FakeTicket()
        flusher.submit([ticket])
        await until(lambda: len(done) == n)  # noqa: B023
        assert ticket.thread != threading.get_ident()
        assert done[-1] == (threading.get_ident(), [None])
    flusher.close()


async def test_closing_finishes_a_submission_that_was_not_taken_yet():
    """What was handed over is flushed, and the thread ends."""
    for _ in range(50):
        flusher = ThreadFlusher(FlushRunner(SystemClock(), None))
        flusher.start(lambda *_: None)
        ticket = FakeTicket()
        flusher.submit([ticket])
        flusher.close()
        assert ticket.runs == [False]
    assert not [t for t in threading.enumerate() if t.name == "vq-flusher"]


@pytest.mark.parametrize("started", [True, False])
async def test_a_flusher_without_work_closes(started):
    """Also when it was never started, and twice."""
    flusher = ThreadFlusher(FlushRunner(SystemClock(), None))
    if started:
        flusher.start(lambda *_: None)
    flusher.close()
    flusher.close()


async def test_the_twin_needs_no_thread():
    """It flushes on the loop's timers, after its delay."""
    flusher = LoopFlusher(FlushRunner(ManualClock(), None), delay_s=0.01)
    done: list[list[object]] = []
    flusher.start(lambda _, outcome: done.append(list(outcome)))
    before = set(threading.enumerate())
    flusher.submit([FakeTicket()])
    await asyncio.sleep(0)
    assert not done
    await until(lambda: done == [[None]])
    assert set(threading.enumerate()) <= before
