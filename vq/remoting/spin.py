"""Looking again for a moment instead of sleeping, where the wait is likely to be short.

Whoever sleeps for bytes of a peer must be woken. Its core has stopped and its caches are cold: on a
virtual machine that takes 50 µs and more, as much as the work itself. So a wait that follows short
ones looks again and again before it sleeps. One long wait ends that. A spin that finds nothing, or
loses its core, has the next ones begin later and later: on a busy machine nobody spins, because a
thread that has used its time up waits longer for a core than one that has slept.

In here: when a wait spins, and for how long. Not in here: how. A thread does in
``transport.TcpStream``, a broker's event loop in ``vq.broker.connections.loop_spin``.
"""

import os
from typing import Final

__all__ = ["ANSWER_SPIN_S", "REQUEST_SPIN_S", "Spin", "has_cores"]

#: The longest spin for an answer. One with an ``fdatasync`` of a fast disk takes 0.3 to 0.7 ms.
ANSWER_SPIN_S: Final = 0.001
#: The longest spin for a peer's next request after an answer.
REQUEST_SPIN_S: Final = 0.000_25
#: So many waits in a row must be short before one spins: at first, and at most.
SHORT_BEFORE: Final = 4
SHORT_BEFORE_MAX: Final = 4_096
#: Looks take 1 µs. If more than this is between two of them, the thread has lost its core, or the
#: interpreter, to somebody else.
LOST_S: Final = 0.000_1
#: A spin that ends without bytes makes that number as many times larger; one that finds some makes
#: it one part in so many smaller. So about 70 must find some for each that does not.
_GROWS: Final = 2.0
_SHRINKS: Final = 0.99


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
        self._needed = float(SHORT_BEFORE)  # short waits before a spin
        self._missing = self._needed  # of them

    @property
    def begins(self) -> bool:
        """Whether the next wait spins."""
        return self._missing <= 0

    def goes_on(self, begun: float, last: float, now: float) -> bool:
        """Whether a spin since ``begun`` goes on, whose last look but this one was at ``last``."""
        if now - begun < self._bound_s and now - last <= LOST_S:
            return True
        self._needed = min(self._needed * _GROWS, SHORT_BEFORE_MAX)
        self._missing = self._needed
        return False

    def note(self, waited_s: float) -> None:
        """Note how long a wait took, spinning and sleeping."""
        if waited_s > self._bound_s:
            self._missing = self._needed
        elif self._missing > 0:
            self._missing -= 1
        else:
            self._needed = max(self._needed * _SHRINKS, SHORT_BEFORE)
