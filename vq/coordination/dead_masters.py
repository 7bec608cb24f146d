"""A master that is certainly dead: its registration is removed before its session ends.

A kill closes the connections of a process, but ZooKeeper keeps its registration until the session
ends. A copy that was connected to the master, and is told by the master's machine that nobody
listens there any more, need not wait for that.

Safety does not depend on it: a master that lives nevertheless (a firewall answered in its place)
acknowledges nothing without this copy, which is in sync and leads or follows another master by
then. It registers again, with another incarnation, and copies. With ``replication = async`` it may
acknowledge alone until it sees the record, as after any election.
"""

from vq.coordination.coordinator import Check, Coordinator, Delete, NoNode
from vq.coordination.leadership import Following
from vq.coordination.paths import BrokerNode, GroupState
from vq.coordination.update import Plan, apply_plan
from vq.errors import CoordinationError

__all__ = ["remove_dead_master"]


async def remove_dead_master(
    coordinator: Coordinator, group: str, node: str, following: Following
) -> bool:
    """Remove the registration of the master that ``node`` followed; return whether it is gone.

    Nothing is done if that master leads no more, if it is registered anew, or if ``node`` is not in
    sync by the present registration: whoever is not in sync could not lead instead.

    Raises:
        CoordinationError: It may be removed or not.
    """
    state_path = GroupState.path(group)
    parent = BrokerNode.parent(group)
    path = BrokerNode.path(group, following.master)

    async def plan(_: CoordinationError | None) -> Plan[bool]:
        registrations = await coordinator.get(parent)  # first: see ``BrokerRegistration``
        found = await coordinator.get(state_path)
        state = GroupState.decode(state_path, found.data)
        in_sync = node in state.insync and state.incarnations.get(node) == following.incarnation
        if not in_sync or (state.master, state.epoch) != (following.master, following.epoch):
            return Plan((), False)
        try:
            registered = await coordinator.get(path)
        except NoNode:
            return Plan((), True)
        if registered.stat.czxid != following.master_incarnation:
            return Plan((), False)
        return Plan(
            [
                Check(parent, registrations.stat.version),
                Check(state_path, found.stat.version),
                Delete(path, registered.stat.version),
            ],
            True,
        )

    return await apply_plan(
        coordinator, plan, what=f"the registration of {group}/{following.master}"
    )
