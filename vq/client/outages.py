"""Says once that ZooKeeper is away from this client, and once that it is back."""

from vq.clock import Clock
from vq.coordination.tree.coordinator import SessionState
from vq.log_lines import get_logger

logger = get_logger(__name__)


class Outages:
    """The outages of one client, as its session tells them; a listener of the coordinator."""

    def __init__(self, zookeeper: str, clock: Clock) -> None:
        self._zookeeper = zookeeper
        self._clock = clock
        self._since: float | None = None  # None: ZooKeeper is reached

    def session_changed(self, state: SessionState) -> None:
        """Log the begin of an outage, or its end; a lost session within one is no other one."""
        now = self._clock.monotonic()
        if state is SessionState.CONNECTED and self._since is not None:
            seconds, self._since = round(now - self._since, 1), None
            logger.warning("ZooKeeper is reached again", zookeeper=self._zookeeper, seconds=seconds)
        elif state in {SessionState.SUSPENDED, SessionState.LOST} and self._since is None:
            self._since = now
            logger.warning("ZooKeeper cannot be reached, trying again", zookeeper=self._zookeeper)
