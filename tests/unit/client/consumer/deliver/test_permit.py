"""The permit to deliver: extended while a process runs, lapsed when it stood still."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from vq.client.consumer.deliver.permit import Permit, PermitKeeper
from vq.clock import ManualClock


class Timers:
    """A loop's timers, run by the clock of the test."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Timers":
        self.due.append((self.clock.monotonic() + delay_s, callback))
        return self

    def cancel(self) -> None:
        self.due.clear()


class Kept:
    """A permit of a member with a session of 6 s."""

    session_timeout_s = 6.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(monotonic=100.0)
        self.timers = Timers(self.clock)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self.timers)
        self.session_id = 1
        self.last_reply_monotonic = 100.0
        self.lapses = 0
        self.permit = Permit(self.clock.monotonic)
        coordinator: Any = self
        self.keeper = PermitKeeper(self.permit, coordinator, self._lapsed)

    def _lapsed(self) -> None:
        self.lapses += 1

    def run(self, seconds: float, *, answers: bool = True) -> None:
        """Let time go by for a process that runs."""
        end = self.clock.monotonic() + seconds
        while self.timers.due and self.timers.due[0][0] <= end:
            due, callback = self.timers.due.pop(0)
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
            if answers:
                self.last_reply_monotonic = self.clock.monotonic()
            callback()
        self.clock.advance(max(0.0, end - self.clock.monotonic()))

    def stand_still(self, seconds: float) -> None:
        """Let time go by for a process that is stopped."""
        self.clock.advance(seconds)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(monkeypatch)


def test_it_holds_while_the_process_runs(kept: Kept) -> None:
    assert not kept.permit.holds, "nothing was proved yet"
    kept.keeper.grant(kept.clock.monotonic())
    kept.keeper.start()
    for _ in range(100):
        kept.run(0.5)
        assert kept.permit.holds
    assert kept.lapses == 0
    kept.keeper.stop()
    kept.run(3.1)
    assert not kept.permit.holds


@pytest.mark.parametrize(("seconds", "holds"), [(2.3, True), (3.1, False)])
def test_it_lapses_when_the_process_stood_still_for_half_a_session(
    kept: Kept, seconds: float, holds: bool
) -> None:
    """Whoever looks first: a worker, or the loop, which asks then."""
    kept.keeper.grant(kept.clock.monotonic())
    kept.keeper.start()
    kept.run(10.0)
    kept.stand_still(seconds)
    assert kept.permit.holds is holds
    kept.run(0.0)
    assert (kept.permit.holds, kept.lapses) == (holds, 0 if holds else 1)
    kept.run(10.0)
    assert (kept.permit.holds, kept.lapses) == (holds, 0 if holds else 1), "told once"
    kept.keeper.grant(kept.clock.monotonic())
    kept.run(10.0)
    assert kept.permit.holds


def test_it_never_outlives_the_session(kept: Kept) -> None:
    """It counts from the last answer, not from when somebody noticed that there are none."""
    kept.keeper.grant(kept.clock.monotonic())
    kept.keeper.start()
    kept.run(5.9, answers=False)
    assert kept.permit.holds
    kept.run(0.2, answers=False)
    assert not kept.permit.holds
    kept.run(1.0, answers=False)
    assert kept.lapses == 1


def test_a_proof_that_took_too_long_is_none(kept: Kept) -> None:
    kept.keeper.start()
    since = kept.clock.monotonic()
    kept.stand_still(4.0)
    kept.last_reply_monotonic = kept.clock.monotonic()
    kept.keeper.grant(since)
    assert not kept.permit.holds
    kept.run(1.0)
    assert kept.lapses == 1


def test_it_is_not_kept_into_another_session(kept: Kept) -> None:
    kept.keeper.grant(kept.clock.monotonic())
    kept.keeper.start()
    kept.session_id = 2
    kept.run(10.0)
    assert (kept.permit.holds, kept.lapses) == (False, 0)
    kept.keeper.grant(kept.clock.monotonic())
    kept.keeper.revoke()
    kept.run(10.0)
    assert (kept.permit.holds, kept.lapses) == (False, 0)
