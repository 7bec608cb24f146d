"""May an append still be acknowledged? The second line behind epochs, and only where it is needed.

The first line is that the other members of a group refuse an old epoch; no clock takes part in it.
This check makes a master that was cut off or paused stop by itself, before its session can have
ended and another master can have been chosen. A group whose in-sync set is this node alone can
have no other master, so it needs no lease and goes on while ZooKeeper is away.
"""

from vq.clock import Clock
from vq.coordination.coordinator import Coordinator

#: Share of the session time-out kept as a margin for clocks that run at different speeds.
MARGIN = 1 / 3


class Lease:
    """Held from a successful reply of ZooKeeper until its session could end, less a margin.

    Attributes:
        alone: The in-sync set of the group is this node only.
        revoked: The group's record names another master, or a newer epoch.
    """

    def __init__(self, coordinator: Coordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self.alone = False
        self.revoked = False

    def holds(self) -> bool:
        """Whether this node may act as master right now."""
        if self.revoked:
            return False
        if self.alone:
            return True
        coordinator = self._coordinator
        lasts_s = coordinator.session_timeout_s * (1 - MARGIN)
        return self._clock.monotonic() < coordinator.last_reply_monotonic + lasts_s
