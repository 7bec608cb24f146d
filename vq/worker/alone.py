"""A gate for messages that a process may have died of: they run alone in their process."""

import contextlib
import threading
from collections.abc import Iterator


class AloneGate:
    """Lets many messages run at a time, or one alone. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._waiting_alone = 0  # nobody else enters before them

    @property
    def is_wanted_alone(self) -> bool:
        """Whether one runs alone, or waits for that."""
        return self._waiting_alone > 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Run beside others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_alone)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                if self._waiting_alone:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Run when no other one does; those that come meanwhile wait."""
        with self._changed:
            self._waiting_alone += 1
            try:
                self._changed.wait_for(lambda: not self._running)
            except BaseException:
                self._waiting_alone -= 1
                self._changed.notify_all()
                raise
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._waiting_alone -= 1
                self._changed.notify_all()
