"""How a flush gets from the event loop to its thread, and its end back to the loop.

Most flushes are one ``fdatasync``. Compiled, the thread does these without the interpreter's lock:
it is woken, syncs and wakes the loop, whatever the loop runs meanwhile. In Python it takes the lock
twice for each flush, which the loop has at both times. ``PythonHandover`` is the reference, and
``_handover.c`` replaces it where a C compiler was found at installation.

In here: the hand-over, with what ``fdatasync`` says. Not in here: what else a flush does, and what
an error means (``flusher``).
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from vq.store.disk.real_disk import sync_descriptor

try:
    from vq.store.commit import _handover
except ImportError:  # nothing compiled it
    _handover = None  # type: ignore[assignment]

#: Given instead of a descriptor: ``serve`` is to return.
CALL: Final = -1
#: What ``serve`` returns: it was given ``CALL``; it was closed; above 0 it is the number of the
#: error of an ``fdatasync``.
RUN: Final = 0
CLOSED: Final = -1
_NOTHING: Final = -2
_ONE: Final = (1).to_bytes(8, "little")  # what an eventfd takes, and a pipe as well


class Handover(Protocol):
    """One thread is in ``serve``; one event loop calls the rest. One piece of work at a time."""

    def give(self, descriptor: int, /) -> None:
        """Have the thread sync a file, or with ``CALL`` leave ``serve``; from the loop.

        Raises:
            ValueError: It is neither.
        """
        ...

    def serve(self) -> int:
        """Do what is given, for ever; after each sync that succeeded the loop is woken.

        Returns:
            ``RUN``, ``CLOSED``, or the number of the error of a sync; the loop was not woken.
        """
        ...

    def tell(self) -> None:
        """Wake the loop; from the thread."""
        ...

    def take(self) -> float:
        """Note on the loop that it was woken.

        Returns:
            How long the sync took that ended well, in seconds; -1: none has since the last call.
        """
        ...

    def close(self) -> None:
        """Have ``serve`` return once it has done what was given; from any thread."""
        ...


class PythonHandover:
    """See ``Handover``.

    Args:
        read_fd: Readable for the loop once ``tell`` was called; it does not block.
        wake_fd: Its other end: the same of an eventfd, or that of a pipe.
    """

    def __init__(self, read_fd: int, wake_fd: int) -> None:
        self._read_fd = read_fd
        self._wake_fd = wake_fd
        self._wake = threading.Lock()
        self._wake.acquire()
        self._work = _NOTHING
        self._closing = False
        self._took_s = -1.0

    def give(self, descriptor: int, /) -> None:
        """See ``Handover.give``."""
        if descriptor < CALL:
            raise ValueError(f"{descriptor} is no descriptor, and not {CALL}")
        self._work = descriptor
        self._wake.release()

    def serve(self) -> int:
        """See ``Handover.serve``."""
        while True:
            self._wake.acquire()
            work, self._work = self._work, _NOTHING
            if work < 0:
                return RUN if work == CALL else CLOSED
            begun = time.monotonic()
            try:
                sync_descriptor(work)
            except OSError as error:
                return error.errno or errno.EIO
            self._took_s = time.monotonic() - begun
            if self._closing:
                return CLOSED
            self.tell()

    def tell(self) -> None:
        """See ``Handover.tell``."""
        try:
            os.write(self._wake_fd, _ONE)
        except BlockingIOError:
            pass  # what is not read yet wakes it

    def take(self) -> float:
        """See ``Handover.take``."""
        try:
            os.read(self._read_fd, len(_ONE))
        except BlockingIOError:
            pass  # it was woken for another reason
        took_s, self._took_s = self._took_s, -1.0
        return took_s

    def close(self) -> None:
        """See ``Handover.close``."""
        self._closing = True
        try:
            self._wake.release()
        except RuntimeError:
            pass  # work is given, after which ``serve`` returns


def wake_descriptors() -> tuple[int, ...]:
    """Return what a thread wakes a loop with: an eventfd, or the two ends of a pipe."""
    if hasattr(os, "eventfd"):
        return (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC),)
    ends = os.pipe()
    for each in ends:
        os.set_blocking(each, False)
    return ends


#: What is used.
HANDOVER: Final[Callable[[int, int], Handover]] = (
    PythonHandover if _handover is None else _handover.Handover
)
