"""Waits that the handler of a signal may leave anywhere: whoever is waited for goes on."""

import itertools
import os
import threading
from concurrent.futures import CancelledError

import pytest
from support.interrupts import Interrupted, Interrupter
from support.threads import spawn

from vq.testing.waiting import WAIT_S
from vq.waits import Latch, LoopWork

#: Where the waits are.
WAITS = ("vq/waits.py", f"{os.sep}threading.py")


def test_a_latch_is_waited_for_and_set_any_number_of_times() -> None:
    latch = Latch()
    assert not latch.wait(0.0)
    assert not latch.wait(0.01)
    waiting = spawn(lambda: latch.wait(WAIT_S))
    latch.set()
    assert waiting.result(WAIT_S)
    latch.set()
    latch.set()
    assert latch.wait(0.0)
    assert latch.wait()


def test_an_interrupt_anywhere_in_a_wait_is_raised_and_keeps_nobody_from_setting() -> None:
    for place in itertools.count():
        latch = Latch()
        setting = threading.Timer(0.001, latch.set)
        setting.start()
        interrupter = Interrupter(place, *WAITS)
        try:
            assert interrupter.run(lambda latch=latch: latch.wait(WAIT_S))
        except Interrupted:
            pass
        setting.join(WAIT_S)
        assert not setting.is_alive(), interrupter.reached
        assert latch.wait(WAIT_S)
        if not interrupter.reached:
            break
    assert place > 3


def test_a_handler_may_set_what_its_own_thread_waits_for() -> None:
    """Anywhere in the wait. With an event, it may wait for the thread that it has interrupted."""

    class Setting(Interrupter):
        def handle(self) -> None:
            latch.set()

    for place in itertools.count():
        latch = Latch()
        setting = Setting(place, *WAITS)
        setting.run(lambda latch=latch: latch.wait(0.01))
        if not setting.reached:
            break
        assert latch.wait(0.0)
    assert place > 3


def test_work_that_is_cancelled_says_so() -> None:
    work: LoopWork[int] = LoopWork()
    work.call(lambda: 1)
    assert work.has_ended(0.0)
    assert work.result() == 1
    failed: LoopWork[int] = LoopWork()
    failed._fail(CancelledError())
    with pytest.raises(CancelledError):
        failed.result()
