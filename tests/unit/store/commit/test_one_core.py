"""A loop and its flushers share a core while they fit on it, and are left alone otherwise."""

import heapq
import itertools
import os
import threading
from collections.abc import Callable, Iterable

import pytest

from vq.store.commit.one_core import (
    FLUSHES_PER_S,
    FREE_S,
    LOOK_S,
    SHARE_MAX,
    TOGETHER_S,
    LinuxCores,
    OneCore,
    Thread,
    thread_of,
)

LOOP, FLUSHER, OTHER = (Thread(number, number) for number in (1, 2, 3))
BOTH = frozenset({0, 1})


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Machine:
    """A process with a loop and a flusher on two cores, its timers, and time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.masks = {each.number: BOTH for each in (LOOP, FLUSHER)}
        self.core = 0  # on which the loop runs
        self.used = {LOOP.number: 7.0, FLUSHER.number: 3.0}
        self.error: BaseException | None = None
        self.gone: set[int] = set()
        self.timers: list[tuple[float, int, Timer]] = []
        self.order = itertools.count()
        self.shared = OneCore(self, lambda: self.now, self.call_later)
        self.shared.join(FLUSHER)

    def present(self) -> Thread:
        return LOOP

    def current(self) -> int:
        return self.core

    def used_s(self, thread: Thread) -> float:
        return self.used[thread.number]

    def numbers(self) -> Iterable[int]:
        return list(self.masks)

    def mask(self, number: int) -> frozenset[int]:
        if number in self.gone:
            raise ProcessLookupError(number)
        return self.masks[number]

    def place(self, number: int, mask: frozenset[int]) -> None:
        if self.error is not None:
            raise self.error
        self.masks[number] = mask

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        timer = Timer(call)
        heapq.heappush(self.timers, (self.now + delay_s, next(self.order), timer))
        return timer.cancel

    @property
    def waiting(self) -> int:
        """How many timers run."""
        return sum(timer.call is not None for _, _, timer in self.timers)

    def run(self, seconds: float, *, share: float = 0.5, flushes: float = 1_000.0) -> None:
        """Have so many flushes a second, for which both use so much of a core."""
        until, step = self.now + seconds, 0.001
        left = 0.0
        while self.now < until:
            left += flushes * step
            while left >= 1:
                self.shared.note_flush()
                left -= 1
            self.now += step
            self.used[LOOP.number] += share * step * 0.8
            self.used[FLUSHER.number] += share * step * 0.2
            while self.timers and self.timers[0][0] <= self.now:
                _, _, timer = heapq.heappop(self.timers)
                if timer.call is not None:
                    timer.call()

    def run_until_together(self) -> None:
        self.run(LOOK_S + 2 * FREE_S)
        assert self.masks[LOOP.number] == self.masks[FLUSHER.number] == {self.core}


def test_loop_and_flusher_come_together_where_the_loop_runs() -> None:
    machine = Machine()
    machine.core = 1
    machine.run(LOOK_S / 2)
    assert set(machine.masks.values()) == {BOTH}
    machine.run_until_together()


def test_they_are_free_for_a_moment_in_each_period_and_follow_the_loop() -> None:
    """The kernel moves the loop away from a core that others use."""
    machine = Machine()
    machine.run_until_together()
    free = 0
    for _ in range(1_000):
        machine.run(0.001)
        if machine.masks[LOOP.number] == BOTH:
            free += 1
            assert machine.masks[FLUSHER.number] == BOTH
            machine.core = 1
    assert 0 < free * 0.001 <= 2 * FREE_S / TOGETHER_S
    assert set(machine.masks.values()) == {frozenset({1})}


def test_they_are_apart_while_one_core_is_too_little() -> None:
    machine = Machine()
    machine.run(1.0, share=SHARE_MAX + 0.1)
    assert set(machine.masks.values()) == {BOTH}
    machine.run(LOOK_S * 2, share=SHARE_MAX - 0.1)
    assert set(machine.masks.values()) == {frozenset({0})}
    machine.run(2 * LOOK_S, share=SHARE_MAX + 0.1)  # soon: one would keep the other from work
    assert set(machine.masks.values()) == {BOTH}


def test_few_flushes_are_left_alone() -> None:
    machine = Machine()
    machine.run(2.0, flushes=FLUSHES_PER_S / 2)
    assert set(machine.masks.values()) == {BOTH}


def test_an_idle_loop_has_no_timer_and_all_cores() -> None:
    machine = Machine()
    machine.run_until_together()
    machine.run(2 * TOGETHER_S, flushes=0)
    assert set(machine.masks.values()) == {BOTH}
    assert not machine.waiting
    machine.run(0.1)
    machine.run_until_together()


def test_a_thread_that_is_made_meanwhile_gets_its_cores_back() -> None:
    """It has inherited the one of the loop. One that somebody placed there before stays."""
    machine = Machine()
    machine.masks[9] = frozenset({0})
    machine.run_until_together()
    machine.masks[OTHER.number] = machine.masks[LOOP.number]
    machine.masks[4] = machine.masks[LOOP.number]
    machine.gone.add(4)
    machine.run(2 * TOGETHER_S, flushes=0)
    del machine.masks[4]
    assert machine.masks == {LOOP.number: BOTH, FLUSHER.number: BOTH, OTHER.number: BOTH, 9: {0}}


@pytest.mark.parametrize("number", [LOOP.number, FLUSHER.number])
def test_threads_that_somebody_else_places_are_left_there(number: int) -> None:
    machine = Machine()
    machine.run_until_together()
    machine.masks[number] = frozenset({1})
    machine.run(2.0)
    assert machine.masks[number] == {1}
    assert machine.masks[LOOP.number + FLUSHER.number - number] == BOTH
    assert not machine.waiting


def test_a_thread_with_cores_of_its_own_is_left_there() -> None:
    machine = Machine()
    machine.masks[FLUSHER.number] = frozenset({1})
    machine.run(2.0)
    assert machine.masks == {LOOP.number: BOTH, FLUSHER.number: {1}}


def test_a_process_with_one_core_places_nothing() -> None:
    machine = Machine()
    machine.masks = {LOOP.number: frozenset({1}), FLUSHER.number: frozenset({1})}
    machine.error = AssertionError("placed")
    machine.run(2.0)
    machine.shared.end()


def test_a_system_that_refuses_is_not_asked_again() -> None:
    machine = Machine()
    machine.error = OSError("not permitted")
    machine.run(2.0)
    machine.error = None
    machine.run(2.0)
    assert set(machine.masks.values()) == {BOTH}
    assert not machine.waiting


def test_the_end_gives_all_cores_back() -> None:
    machine = Machine()
    machine.run_until_together()
    machine.shared.end()
    machine.shared.end()
    assert set(machine.masks.values()) == {BOTH}
    machine.run(2.0)
    assert set(machine.masks.values()) == {BOTH}
    assert not machine.waiting


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system places threads")
def test_the_kernel_takes_and_tells_where_a_thread_runs() -> None:
    """On the thread of a test and one more, which sleeps."""
    cores, awake = LinuxCores(), threading.Event()
    sleeper = threading.Thread(target=awake.wait)
    sleeper.start()
    me, other = cores.present(), thread_of(sleeper)
    before = cores.mask(me.number)
    try:
        assert {me.number, other.number} <= set(cores.numbers())
        for core in before:
            cores.place(me.number, frozenset({core}))
            cores.place(other.number, frozenset({core}))
            assert cores.current() == core
            assert cores.mask(me.number) == cores.mask(other.number) == {core}
        assert cores.used_s(other) < 1.0
        used_s = cores.used_s(me)
        while cores.used_s(me) == used_s:
            pass
    finally:
        cores.place(me.number, before)
        awake.set()
        sleeper.join()
    assert cores.mask(me.number) == before
