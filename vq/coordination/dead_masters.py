"""A master that is certainly dead: its registration is removed before its session ends.

A kill closes the connections of a process, but ZooKeeper keeps its registration until the session
ends. A copy that was connected to the master, and is told by the master's machine that nobody
listens there any more, need not wait for that.

Safety does not depend on it: a master that lives nevertheless (a firewall answered in its place)
acknowledges nothing without this copy, which is in sync and leads or follows another master by
then. It registers again, with another incarnation, and copies. With ``replication = async`` it may
acknowledge alone until it sees the record, as after any election.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from vq.coordination.coordinator import Check, Coordinator, Delete, NoNode, Operation
from vq.coordination.leadership import Following
from vq.coordination.update import Plan, apply_plan
from vq.coordination.values.brokers import BrokerNode, GroupState
from vq.errors import CoordinationError
from vq.log_lines import get_logger

__all__ = ["DeadMasters"]

logger = get_logger(__name__)

#: Number of processes to remember whose registrations were removed.
REMOVED_MAX: Final = 16


class DeadMasters:
    """Removes the registrations of dead masters, for one node of their group.

    That of each process once: one that registers again lives, and something between here and there
    refuses connections in its place. It would go on to lose its registration, again and again.

    Args:
        coordinator: A started coordinator.
        group, node: Of the node that removes them.
        may_lead: Returns whether this node could lead instead, if it is in sync.
    """

    def __init__(
        self, coordinator: Coordinator, *, group: str, node: str, may_lead: Callable[[], bool]
    ) -> None:
        self._coordinator = coordinator
        self._group = group
        self._node = node
        self._may_lead = may_lead
        self._removed: deque[str] = deque(maxlen=REMOVED_MAX)  # nonces

    async def remove(self, following: Following) -> None:
        """Remove the registration of the master that this node followed.

        Nothing is done if that master leads no more, if it is registered anew, or if this node
        could not lead instead: it is not in sync by the present registration, or has damage.

        Raises:
            CoordinationError: It may be removed or not.
        """
        if not self._may_lead():
            return
        tried = ""

        async def plan(_: CoordinationError | None) -> Plan[str]:
            nonlocal tried
            planned = await self._plan(following, tried)
            tried = planned.result
            return planned

        nonce = await apply_plan(
            self._coordinator, plan, what=f"the registration of {self._group}/{following.master}"
        )
        if nonce:
            self._removed.append(nonce)
            logger.warning(
                "master is dead, its registration is removed",
                group=self._group,
                master=following.master,
                address=following.address,
                epoch=following.epoch,
            )

    async def _plan(self, following: Following, tried: str) -> Plan[str]:
        """Return what removes the registration, and the nonce of the process; "": nothing is due.

        ``tried`` is the nonce of an earlier try whose outcome is not known.
        """
        parent = BrokerNode.parent(self._group)
        state_path = GroupState.path(self._group)
        path = BrokerNode.path(self._group, following.master)
        registrations = await self._coordinator.get(parent)  # first: see ``BrokerRegistration``
        found = await self._coordinator.get(state_path)
        try:
            registered = await self._coordinator.get(path)
        except NoNode:
            return Plan((), tried)
        state = GroupState.decode(state_path, found.data)
        known = state.incarnations.get(self._node)
        in_sync = self._node in state.insync and known == following.incarnation
        if not in_sync or (state.master, state.epoch) != (following.master, following.epoch):
            return Plan((), "")
        if registered.stat.czxid != following.master_incarnation:
            return Plan((), "")
        nonce = BrokerNode.decode(path, registered.data).nonce
        if nonce in self._removed:
            raise CoordinationError(
                f"node {following.master!r} of group {self._group!r} was removed before and "
                "registered again: something refuses connections in its place"
            )
        operations: list[Operation] = [
            Check(parent, registrations.stat.version),
            Check(state_path, found.stat.version),
            Delete(path, registered.stat.version),
        ]
        return Plan(operations, nonce)
