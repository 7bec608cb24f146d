"""The hand-over of flushes, in Python and compiled: who does what, and who is woken when."""

import ctypes
import errno
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vq.store.commit.handover import (
    CALL,
    CLOSED,
    HANDOVER,
    RUN,
    Handover,
    PythonHandover,
    wake_descriptors,
)
from vq.testing.waiting import WAIT_S

COMPILED = pytest.param(
    HANDOVER,
    id="compiled",
    marks=pytest.mark.skipif(HANDOVER is PythonHandover, reason="it is not compiled here"),
)
BOTH = pytest.mark.parametrize("make", [pytest.param(PythonHandover, id="python"), COMPILED])


class Pollfd(ctypes.Structure):
    """As ``poll`` of the C library takes it."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("found", ctypes.c_short))


class Both:
    """A loop's end, and a thread in ``serve``."""

    def __init__(self, make: Callable[[int, int], Handover]) -> None:
        self.wakes = wake_descriptors()
        self.handover = make(self.wakes[0], self.wakes[-1])
        self.found: list[int] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        self.found.append(self.handover.serve())

    def begin(self) -> None:
        """Have a thread serve."""
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def end(self) -> int:
        """Return what ``serve`` returned."""
        self.thread.join(WAIT_S)
        return self.found.pop()

    def is_woken(self, seconds: float) -> bool:
        """Whether the loop is woken within so many seconds."""
        return bool(select.select([self.wakes[0]], [], [], seconds)[0])


@pytest.fixture
def both(make: Callable[[int, int], Handover]) -> Iterator[Both]:
    made = Both(make)
    yield made
    made.handover.close()
    if made.thread.ident is not None:
        made.thread.join(WAIT_S)
    for each in made.wakes:
        os.close(each)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@BOTH
def test_a_file_is_synced_and_the_loop_woken_once(both: Both, descriptor: int) -> None:
    both.begin()
    for _ in range(3):
        both.handover.give(descriptor)
        assert both.is_woken(WAIT_S)
        assert 0.0 <= both.handover.take() < WAIT_S
        assert both.handover.take() == -1.0
        assert not both.is_woken(0)


@BOTH
def test_an_error_comes_out_of_serve_and_wakes_nobody(both: Both, descriptor: int) -> None:
    """So no end of a flush is told that was not one."""
    gone = os.dup(descriptor)
    os.close(gone)
    both.begin()
    both.handover.give(gone)
    assert both.end() == errno.EBADF
    assert not both.is_woken(0)
    assert both.handover.take() == -1.0
    both.begin()  # and the thread goes on
    both.handover.give(descriptor)
    assert both.is_woken(WAIT_S)


@BOTH
def test_other_work_comes_out_of_serve_and_its_end_is_told(both: Both) -> None:
    both.begin()
    both.handover.give(CALL)
    assert both.end() == RUN
    assert not both.is_woken(0)
    both.handover.tell()
    both.handover.tell()
    assert both.is_woken(0)
    assert both.handover.take() == -1.0


@BOTH
def test_closing_comes_behind_what_was_given(both: Both, descriptor: int) -> None:
    both.handover.give(descriptor)
    both.handover.close()
    both.begin()
    assert both.end() == CLOSED
    assert both.handover.take() >= 0.0


@BOTH
def test_one_that_has_no_work_closes(both: Both) -> None:
    both.begin()
    both.handover.close()
    both.handover.close()
    assert both.end() == CLOSED


@BOTH
def test_what_is_no_descriptor_is_refused(both: Both) -> None:
    with pytest.raises(ValueError, match="-2 is no descriptor"):
        both.handover.give(-2)


@pytest.mark.parametrize("make", [COMPILED])
def test_compiled_it_needs_no_interpreter(both: Both, descriptor: int) -> None:
    """The loop holds the interpreter's lock from the hand-over until it is woken."""
    poll = ctypes.PyDLL(None).poll  # it keeps the lock, which ``CDLL`` would give up
    both.begin()
    both.handover.give(descriptor)
    assert both.is_woken(WAIT_S)  # the thread is in ``serve`` by now
    both.handover.take()
    waits = Pollfd(both.wakes[0], select.POLLIN, 0)
    both.handover.give(descriptor)
    assert poll(ctypes.byref(waits), 1, round(WAIT_S * 1000)) == 1
