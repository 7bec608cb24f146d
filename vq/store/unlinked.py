"""Files whose names are gone, and whose space comes back on a thread beside.

The last descriptor of a file without a name gives its space back. On ext4 that takes 30 ms for a
block of 128 MiB, so no thread that others wait for should do it. In here: the descriptors that are
still open, and the thread that closes them. Not in here: which files go (``ticket``).
"""

import os
import threading
from collections import deque
from typing import Final

__all__ = ["UnlinkedFiles"]

#: So many wait at once. Retention hands in a few at a time, and waits longer than they take.
FILES_MAX: Final = 32


class UnlinkedFiles:
    """Closes descriptors one after the other. Safe from any thread.

    The thread is there while something is to be closed. The end of the process closes the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[int] = deque()
        self._closing = False

    def close(self, fd: int) -> None:
        """Have a descriptor closed soon; at once where too many wait, or no thread is to be had."""
        with self._lock:
            if len(self._waiting) < FILES_MAX and (self._closing or self._start()):
                self._waiting.append(fd)
                return
        os.close(fd)

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
                fd = self._waiting.popleft()
            os.close(fd)
