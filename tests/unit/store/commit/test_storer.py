"""Group commit over all logs of a node: one log that misbehaves does not stop the others."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.store import DIRECTORY, append, memory_disk, open_log, payloads

from vq.clock import ManualClock
from vq.store.commit.flusher import FlushRunner, LoopFlusher, OnDone, Outcome
from vq.store.commit.storer import Storer
from vq.store.disk.memory_disk import keep_none
from vq.store.log.log import Log
from vq.store.log.ticket import SyncTicket
from vq.testing.waiting import until
from vq.turn import Turn

HOOKS = ("begin_flush", "end_flush", "acknowledge_flushed", "flush_failed")


class FakeFlusher:
    """Ends a flush when it is told to."""

    def __init__(self) -> None:
        self.submitted: list[Sequence[SyncTicket]] = []
        self.on_done: OnDone | None = None

    def start(self, on_done: OnDone) -> None:
        self.on_done = on_done

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        self.submitted.append(tickets)

    def close(self) -> None: ...

    def finish(self, outcome: Outcome | None = None) -> None:
        assert self.on_done is not None
        tickets = self.submitted.pop(0)
        self.on_done(tickets, outcome or [None] * len(tickets))


class FakeLog:
    """Notes what it is told, and raises where it is told to."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.calls: list[str] = []

    def _note(self, what: str) -> None:
        self.calls.append(what)
        if what in self.broken:
            raise RuntimeError(f"a bug in {what}")

    def begin_flush(self) -> SyncTicket | None:
        self._note("begin_flush")
        return cast(SyncTicket, object())

    def end_flush(self, ticket: SyncTicket) -> None:
        self._note("end_flush")

    def acknowledge_flushed(self) -> None:
        self._note("acknowledge_flushed")

    def flush_failed(self, error: BaseException) -> None:
        self._note("flush_failed")


@pytest.fixture
def flusher() -> FakeFlusher:
    return FakeFlusher()


@pytest.fixture
def storer(flusher: FakeFlusher) -> Storer:
    """A storer whose turns end at once."""
    callbacks: list[Callable[[], Any]] = []
    found = Storer(flusher, Turn(callbacks.append))
    found.start()
    return found


def test_one_flush_is_in_flight_and_what_comes_meanwhile_waits(
    storer: Storer, flusher: FakeFlusher
) -> None:
    """The next one starts before the first is acknowledged."""
    first, second = FakeLog(), FakeLog()
    storer.mark(first)
    storer.kick()
    storer.mark(second)
    storer.kick()
    assert [len(tickets) for tickets in flusher.submitted] == [1]
    flusher.finish()
    assert first.calls == ["begin_flush", "end_flush", "acknowledge_flushed"]
    assert second.calls == ["begin_flush"]
    flusher.finish()
    assert flusher.submitted == []
    assert (storer.flushes, storer.flushed_logs) == (2, 2)


def test_the_outcome_of_a_flush_is_handled_in_one_turn(flusher: FakeFlusher) -> None:
    """What acknowledgements write leaves at once, without another iteration of the loop."""
    callbacks: list[Callable[[], Any]] = []
    written: list[str] = []
    turn = Turn(callbacks.append)
    storer = Storer(flusher, turn)
    storer.start()

    class Answering(FakeLog):
        def acknowledge_flushed(self) -> None:
            turn.add(SimpleNamespace(write_out=lambda: written.append("answer")))

    storer.mark(Answering())
    storer.kick()
    callbacks.clear()
    flusher.finish()
    assert (written, callbacks) == (["answer"], [])


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("fails_too", [False, True])
def test_one_log_that_raises_anything_does_not_stop_the_others(
    storer: Storer, flusher: FakeFlusher, hook: str, fails_too: bool
) -> None:
    """Also if telling it that it failed fails, and in the flushes to come."""
    struck = FakeLog(hook, *["flush_failed"] * fails_too)
    others = [FakeLog(), FakeLog()]
    for number in range(1, 3):
        for log in (others[0], struck, others[1]):
            storer.mark(log)
        storer.kick()
        (tickets,) = flusher.submitted
        outcome: list[BaseException | None] = [None] * len(tickets)
        if hook == "flush_failed":
            outcome[1] = OSError(5, "disk")
        flusher.finish(outcome)
        for log in others:
            assert log.calls == ["begin_flush", "end_flush", "acknowledge_flushed"] * number
        assert flusher.submitted == []
        told = struck.calls.count("flush_failed")
        assert told == (0 if hook == "acknowledge_flushed" else number), (
            "a log that raised must be ended"
        )


class Waiter:
    """Waits until what was appended to a log is durable; it is no channel of a broker."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.durable = 0

    def begin_flush(self) -> SyncTicket | None:
        return self.log.begin_sync()

    def end_flush(self, ticket: SyncTicket) -> None:
        self.log.finish_sync(ticket)

    def acknowledge_flushed(self) -> None:
        self.durable = self.log.synced_offset

    def flush_failed(self, error: BaseException) -> None:
        raise error


async def test_logs_share_a_flush_without_a_broker() -> None:
    """What a process keeps of its own is durable in the same way."""
    disk = memory_disk()
    directories = [DIRECTORY, DIRECTORY.with_name("1")]
    waiters = [Waiter(open_log(disk, each)) for each in directories]
    storer = Storer(
        LoopFlusher(FlushRunner(ManualClock())), Turn(asyncio.get_running_loop().call_soon)
    )
    storer.start()
    for each in waiters:
        append(each.log, b"message")
        storer.mark(each)
    await until(lambda: all(each.durable == each.log.end_offset > 0 for each in waiters))
    assert (storer.flushes, storer.flushed_logs) == (1, 2)
    crashed = disk.crash(keep_none)
    assert [payloads(open_log(crashed, each)) for each in directories] == [[b"message"]] * 2
