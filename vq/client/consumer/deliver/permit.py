"""How long a member may deliver messages without checking that it still owns its partitions.

The loop extends the permit again and again; a delivery compares it with the clock before each
message. In a process that stood still (SIGSTOP, a suspended machine, a long swap) the permit has
lapsed, whichever thread runs first: other members may own its partitions by then.
"""

import asyncio
import math
from collections.abc import Callable

from vq.coordination.tree.coordinator import Coordinator

#: How long to wait before a lapsed permit is checked again.
RECHECK_S = 0.05
#: How often a permit is extended before it would lapse.
_EXTENSIONS = 5


class Permit:
    """Any thread reads it, the loop alone changes it.

    Attributes:
        now: The monotonic clock.
        until: When it lapses; read for every message.
    """

    __slots__ = ("now", "until")

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.until = -math.inf

    @property
    def holds(self) -> bool:
        """Whether messages may be handed out right now."""
        return self.now() < self.until


class PermitKeeper:
    """Extends a permit while this process runs, and detects that it stood still. Loop-bound."""

    def __init__(
        self, permit: Permit, coordinator: Coordinator, on_lapse: Callable[[], None]
    ) -> None:
        self._permit = permit
        self._coordinator = coordinator
        self._on_lapse = on_lapse
        self._session = 0  # the session that it was granted in; 0: it was not granted
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to keep the permit."""
        now = self._permit.now()
        if self._session and self._session == self._coordinator.session_id:
            if now < self._permit.until:
                self._extend(now)
            else:
                self.revoke()
                self._on_lapse()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._lasts_s / _EXTENSIONS, self.start)

    def stop(self) -> None:
        """Extend it no longer: it lapses."""
        if self._timer is not None:
            self._timer.cancel()

    def grant(self, since: float) -> None:
        """Note that the member owned all its partitions at ``since``, in the present session."""
        self._session = self._coordinator.session_id
        self._extend(since)

    def grant_for_good(self) -> None:
        """Let messages be handed out whatever happens: no other member gets them instead."""
        self._permit.until = math.inf

    def revoke(self) -> None:
        """Deliver nothing until the permit is granted again."""
        self._session = 0
        self._permit.until = -math.inf

    @property
    def _lasts_s(self) -> float:
        return self._coordinator.session_timeout_s / 2

    def _extend(self, since: float) -> None:
        """Extend it by half a session time-out, but not past the certain end of the session."""
        lives_until = self._coordinator.last_reply_monotonic + self._coordinator.session_timeout_s
        self._permit.until = min(since + self._lasts_s, lives_until)
