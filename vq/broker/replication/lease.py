"""May this node still act as master? A clock says so where it acts alone, its copies elsewhere.

What all nodes in sync have stored in the epoch of their master stays, whoever is elected later: it
is one of them, and none takes anything of an older epoch once it follows or leads in a newer one.
No clock takes part in that. So a topic with replication ``sync`` goes on while ZooKeeper is away,
however long that is (``goes_on``).

Where the master acknowledges alone, it stops by itself before its session can have ended and
another master can have been chosen (``holds``). So less is lost in a take-over. A group whose
in-sync set is this node alone can have no other master, so it needs no lease.
"""

from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator

#: Share of the session time-out kept as a margin for clocks that run at different speeds.
MARGIN = 1 / 3


class Lease:
    """Held from a successful reply of ZooKeeper until its session could end, less a margin.

    Attributes:
        alone: The in-sync set of the group is this node only.
        revoked: The group's record names another master, or a newer epoch; or a node that copied
            from this one said so.
        silent: A node in sync that does not keep up, while ZooKeeper cannot be asked to put it out
            of the set; "": there is none.
    """

    def __init__(self, coordinator: Coordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self.alone = False
        self.revoked = False
        self.silent = ""

    def holds(self) -> bool:
        """Whether this node may act as master right now, without asking its copies."""
        if self.revoked:
            return False
        if self.alone:
            return True
        coordinator = self._coordinator
        lasts_s = coordinator.session_timeout_s * (1 - MARGIN)
        return self._clock.monotonic() < coordinator.last_reply_monotonic + lasts_s

    def goes_on(self) -> bool:
        """Whether it may act where nothing counts that not all nodes in sync have confirmed.

        While one of them is silent, nothing would be confirmed: messages are refused, not kept
        waiting for an outcome.
        """
        return not self.revoked and not self.silent
