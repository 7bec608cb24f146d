"""A master that is certainly dead: its registration is removed before its session ends.

A kill closes the connections of a process, but ZooKeeper keeps its registration until the session
ends. A copy that was connected to the master, and is told by the master's machine that nobody
listens there any more, need not wait for that.

Safety does not depend on it: a master that lives nevertheless (a firewall answered in its place)
acknowledges nothing without this copy, which is in sync and leads or follows another master by
then. It registers again, with another incarnation, and copies. With ``replication = async`` it may
acknowledge alone until it sees the record, as after any election.
"""

import asyncio
from collections import deque
from typing import Final

from vq.coordination.brokers.fitness import Fitness
from vq.coordination.brokers.leadership import Following
from vq.coordination.tree.coordinator import Check, Coordinator, Delete, NoNode, Operation
from vq.coordination.tree.reading import read_together
from vq.coordination.tree.round_trip import bound_s
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import CoordinationError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Number of processes to remember whose registrations were removed.
REMOVED_MAX: Final = 16
#: ZooKeeper removes the registration of a dead master within this time, and what its calls take
#: here; later, the master may live.
REMOVAL_TIMEOUT_S: Final = 1.0
REMOVAL_MOST_S: Final = 5.0
#: A removal is one read and one write; the rest is to spare.
_REMOVAL_CALLS: Final = 4


class DeadMasters:
    """Removes the registrations of dead masters, for one node of their group.

    That of each process once: one that registers again lives, and something between here and there
    refuses connections in its place. It would go on to lose its registration, again and again.

    Args:
        coordinator: A started coordinator.
        group, node: Of the node that removes them.
        fitness: Of that node.
    """

    def __init__(
        self, coordinator: Coordinator, *, group: str, node: str, fitness: Fitness
    ) -> None:
        self._coordinator = coordinator
        self._group = group
        self._node = node
        self._fitness = fitness
        self._removed: deque[str] = deque(maxlen=REMOVED_MAX)  # nonces

    async def remove(self, following: Following) -> None:
        """Remove the registration of the master that this node followed.

        Nothing is done if that master leads no more, if it is registered anew, or if this node
        could not lead instead: it is not in sync by the present registration, or has damage.

        Raises:
            CoordinationError: It may be removed or not.
        """
        if self._fitness.has_damage:
            return
        tried = ""

        async def plan(_: CoordinationError | None) -> Plan[str]:
            nonlocal tried
            planned = await self._plan(following, tried)
            tried = planned.result
            return planned

        most_s = bound_s(
            REMOVAL_TIMEOUT_S,
            calls=_REMOVAL_CALLS,
            round_trip_s=self._coordinator.round_trip_s,
            most_s=REMOVAL_MOST_S,
        )
        what = f"the registration of {self._group}/{following.master}"
        try:
            async with asyncio.timeout(most_s):
                nonce = await apply_plan(self._coordinator, plan, what=what)
        except TimeoutError:
            raise CoordinationError(
                f"ZooKeeper did not remove {what} within {most_s:g} s"
            ) from None
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
        parent = Registration.parent(self._group)
        state_path = GroupState.path(self._group)
        path = Registration.path(self._group, following.master)
        # The parent comes first: see ``BrokerRegistration``.
        registrations, found, registered = await read_together(
            self._coordinator, [parent, state_path, path]
        )
        if registrations is None or found is None:
            raise NoNode(parent if registrations is None else state_path)
        if registered is None:
            return Plan((), tried)
        state = GroupState.decode(state_path, found.data)
        known = state.incarnations.get(self._node)
        in_sync = self._node in state.insync and known == following.incarnation
        if not in_sync or (state.master, state.epoch) != (following.master, following.epoch):
            return Plan((), "")
        if registered.stat.czxid != following.master_incarnation:
            return Plan((), "")
        nonce = Registration.decode(path, registered.data).nonce
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
