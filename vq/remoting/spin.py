"""Looking again for a moment instead of sleeping, where the wait is likely to be short.

Whoever sleeps for bytes of a peer must be woken. Its core has stopped and its caches are cold: on a
virtual machine that takes 50 µs and more, as much as the work itself. So a wait that follows short
ones looks again and again before it sleeps. One long wait ends that. A spin that finds nothing, or
loses its core, has the next ones begin later and later: on a busy machine spins are rare, because a
thread that has used its time up waits longer for a core than one that has slept.

In here: when a wait spins, and for how long. Not in here: how. A thread does in
``transport.TcpStream``, a broker's event loop in ``vq.broker.connections.loop_spin``.
"""

import os
from typing import Final

#: The longest spin for an answer. One with an ``fdatasync`` of a fast disk takes 0.3 to 0.7 ms.
ANSWER_SPIN_S: Final = 0.001
#: The longest spin for a peer's next request after an answer.
REQUEST_SPIN_S: Final = 0.000_25
#: So many waits must be short before one spins: in a row, ...
SHORT_BEFORE: Final = 4
#: ... and after a spin without bytes more and more, at most so many.
SHORT_BEFORE_MAX: Final = 1_024
#: That number grows so with a spin that finds nothing within its bound, and so with one that lasts
#: twice as long: somebody else has the core, or the interpreter, for milliseconds. One that finds
#: bytes makes it smaller. So 14 must do that for each that finds nothing, and 40 for a late one.
_GROWS: Final = 2.0
_GROWS_LATE: Final = 8.0
_SHRINKS: Final = 0.95


def has_cores() -> bool:
    """Whether this process may use two cores: with one, a spin keeps the peer from its work."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) > 1
    return (os.cpu_count() or 1) > 1


class Spin:
    """Says whether the next wait spins. For one thread at a time; times are ``time.monotonic``.

    Args:
        bound_s: The longest spin; a wait up to this is short.
    """

    __slots__ = ("_bound_s", "_missing", "_needed")

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._needed = float(SHORT_BEFORE)  # short waits, after a spin without bytes
        self._missing = self._needed  # before the next spin

    @property
    def begins(self) -> bool:
        """Whether the next wait spins."""
        return self._missing <= 0

    def goes_on(self, waited_s: float) -> bool:
        """Whether a spin goes on that has found nothing for so long."""
        if waited_s < self._bound_s:
            return True
        self._fail(waited_s)
        return False

    def note(self, waited_s: float) -> None:
        """Note how long a wait took, spinning and sleeping."""
        if waited_s > self._bound_s:
            if self._missing <= 0:  # it spun, and did not see the end of its bound
                self._fail(waited_s)
            self.begin_anew()
        elif self._missing > 0:
            self._missing -= 1
        else:
            self._needed = max(self._needed * _SHRINKS, SHORT_BEFORE)

    def begin_anew(self) -> None:
        """Spin only after ``SHORT_BEFORE`` short waits in a row."""
        self._missing = max(self._missing, SHORT_BEFORE)

    def _fail(self, waited_s: float) -> None:
        grows = _GROWS if waited_s < 2 * self._bound_s else _GROWS_LATE
        self._needed = min(self._needed * grows, SHORT_BEFORE_MAX)
        self._missing = self._needed
