"""Files whose names are gone, and whose space comes back on a thread beside.

The last descriptor of a file without a name gives its space back. On ext4 that takes 30 ms for a
block of 128 MiB, so no thread that others wait for should do it. In here: the descriptors that are
still open, and the thread that closes them. Not in here: which files go (``ticket``).
"""

import contextlib
import os
import threading
from collections import Counter, deque
from typing import Final, NamedTuple

#: So many wait at once. Retention hands in a few at a time, and waits longer than they take.
FILES_MAX: Final = 32
#: A file that takes less space is closed at once: that takes a millisecond at most, and whoever
#: deletes it because the disk is full finds its space right away.
SMALL_BYTES: Final = 4 << 20

#: What ``st_blocks`` counts.
_BLOCK_BYTES: Final = 512


class _File(NamedTuple):
    """A file to be closed, and the space that comes back with it; 0: none, or not known."""

    fd: int
    device: int
    size: int


class UnlinkedFiles:
    """Closes descriptors one after the other. Safe from any thread.

    The thread is there while something is to be closed. The end of the process closes the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_File] = deque()
        self._coming: Counter[int] = Counter()  # bytes, by device: of these, and of the one at hand
        self._closing = False

    def close(self, fd: int) -> None:
        """Have a descriptor closed soon; at once where little space comes back with it.

        Also at once where too many wait, or no thread is to be had.
        """
        file = _file(fd)
        small = 0 < file.size < SMALL_BYTES
        with self._lock:
            if not small and len(self._waiting) < FILES_MAX and (self._closing or self._start()):
                self._waiting.append(file)
                self._coming[file.device] += file.size
                return
        os.close(fd)

    def bytes_coming(self, device: int) -> int:
        """Return how much space of a device will be back in a moment; ``device``: ``st_dev``."""
        return self._coming[device]

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._close_all, name="vq-unlinked", daemon=True).start()
        except RuntimeError:  # the process may have no more threads, or it ends
            return False
        self._closing = True
        return True

    def _close_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._closing = False
                    return
                file = self._waiting.popleft()
            with contextlib.suppress(OSError):  # it is closed all the same
                os.close(file.fd)
            with self._lock:
                self._coming[file.device] -= file.size


def _file(fd: int) -> _File:
    try:
        stat = os.fstat(fd)
    except OSError:  # nothing is known of its space
        return _File(fd, 0, 0)
    return _File(fd, stat.st_dev, 0 if stat.st_nlink else stat.st_blocks * _BLOCK_BYTES)
