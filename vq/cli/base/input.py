"""Standard input that a signal ends at once.

Python runs signal handlers between instructions. A signal that comes just before the main thread
blocks in ``read``, or that the kernel gives to another thread, would be seen when input comes: for
a terminal or a pipe that may be never. In here the main thread waits for input and for signals.
"""

import contextlib
import io
import os
import select
import signal
import stat
import threading
from collections.abc import Iterator
from typing import BinaryIO, cast

_BUFFER_BYTES = 1 << 16


class _WaitingInput(io.RawIOBase):
    """Reads a descriptor, and waits for input and for signals alike.

    Args:
        descriptor: What is read; not closed in here.
        signalled: Readable after a signal came, whatever thread got it.
    """

    def __init__(self, descriptor: int, signalled: int) -> None:
        self._descriptor, self._signalled = descriptor, signalled
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._poll.register(signalled, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            ready = [descriptor for descriptor, _ in self._poll.poll()]
            if self._descriptor in ready:
                return os.readv(self._descriptor, [buffer])
            os.read(self._signalled, _BUFFER_BYTES)  # its handler has run, and raised nothing


@contextlib.contextmanager
def interruptible(file: BinaryIO) -> Iterator[BinaryIO]:
    """Have a signal end a read of ``file`` that waits; use it in the main thread.

    ``file`` must not be read otherwise. A regular file never makes its reader wait: it is returned
    as it is, like what has no descriptor.
    """
    try:
        descriptor = file.fileno()
    except (OSError, ValueError):
        yield file
        return
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or stat.S_ISREG(os.fstat(descriptor).st_mode):
        yield file
        return
    signalled, written = os.pipe()
    os.set_blocking(written, False)
    before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    try:
        waiting = _WaitingInput(descriptor, signalled)
        yield cast("BinaryIO", io.BufferedReader(waiting, _BUFFER_BYTES))
    finally:
        signal.set_wakeup_fd(before)
        os.close(signalled)
        os.close(written)
