"""A broker's event loop that looks again for a moment after an answer, instead of sleeping.

A peer that sends one request at a time sends the next one some 100 µs after its answer. The loop
goes round without sleeping until then: all connections and timers are served meanwhile. It does so
if one peer alone has sent requests and got answers lately, each request soon after an answer
(``vq.remoting.spin``), no other request waits, and no flush runs, which may need the core. A peer
that was answered beside it, as a consumer is whose FETCH goes on, was woken and needs a core, too.
"""

import time
from collections.abc import Callable

from vq.remoting.spin import REQUEST_SPIN_S, Spin


class LoopSpin:
    """Loop-bound. While nobody is answered it does nothing.

    Args:
        call_soon: Schedules a call for the loop's next iteration.
        is_flushing: Whether a flush runs.
        now: Monotonic time, in seconds.
    """

    __slots__ = (
        "_answered_at",
        "_begins_anew",
        "_call_soon",
        "_is_flushing",
        "_now",
        "_peer",
        "_scheduled",
        "_spin",
        "_spins",
    )

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        is_flushing: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._call_soon = call_soon
        self._is_flushing = is_flushing
        self._now = now
        self._spin = Spin(REQUEST_SPIN_S)
        self._peer: object = None  # who has sent the last request
        self._begins_anew = True  # nothing is known of the gaps between its requests
        self._answered_at = 0.0
        self._spins = False
        self._scheduled = False  # a look, which may find that the spin has ended

    def answered(self, peer: object) -> None:
        """Spin for the next request of ``peer`` if it is likely to come soon.

        Call it when an answer has left and no request waits.
        """
        if peer is not self._peer:  # another one has sent requests since
            self._spins = False
            self._begins_anew = True
            return
        self._answered_at = self._now()
        if self._begins_anew:
            self._begins_anew = False
            self._spin.begin_anew()
        if self._spin.begins:
            self._spins = True
            if not self._scheduled:
                self._scheduled = True
                self._call_soon(self._look)

    def heard(self, peer: object) -> None:
        """Note that bytes of ``peer`` have come, which end a spin."""
        self._spins = False
        if peer is not self._peer:
            self._peer, self._begins_anew = peer, True
        elif not self._begins_anew:
            self._spin.note(self._now() - self._answered_at)

    def forget(self, peer: object) -> None:
        """Note that a peer is gone."""
        if peer is self._peer:
            self._spins = False
            self._peer = None

    def _look(self) -> None:
        """Have the loop go round once more, without sleeping."""
        if (
            self._spins
            and self._spin.goes_on(self._now() - self._answered_at)
            and not self._is_flushing()
        ):
            self._call_soon(self._look)
        else:
            self._spins = self._scheduled = False
