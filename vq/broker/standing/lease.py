"""For how long a reply of ZooKeeper vouches that no other node was elected."""

from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator

#: Share of the session time-out kept as a margin for clocks that run at different speeds.
MARGIN = 1 / 3


class Lease:
    """Lasts from a successful reply of ZooKeeper until its session could end, less a margin."""

    def __init__(self, coordinator: Coordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock

    def lasts(self) -> bool:
        """Whether the session of this node cannot have ended yet."""
        coordinator = self._coordinator
        lasts_s = coordinator.session_timeout_s * (1 - MARGIN)
        return self._clock.monotonic() < coordinator.last_reply_monotonic + lasts_s
