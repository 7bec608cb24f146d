"""Raising the epoch of a broker group, after ZooKeeper came back from an older backup.

Loop-bound functions on a ``ClusterClient``. A data directory knows the highest epoch that it acted
in, and refuses to lead in one that is not higher: two masters may have had it. So the record of the
group, if it is older, must be brought up to what the directories know.
"""

from dataclasses import dataclass, replace

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.tree.coordinator import Check, NoNode, Set
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.limits import EPOCH_MAX


@dataclass(frozen=True, slots=True)
class RaisedEpoch:
    """The epoch of a group's record, before and after.

    Attributes:
        group: The broker group.
        before: Its epoch as it was read.
        epoch: To which it was raised, or would be: the next master leads in a higher one.
    """

    group: str
    before: int
    epoch: int


async def raise_epoch(cluster: ClusterClient, group: str, epoch: int, *, do: bool) -> RaisedEpoch:
    """Raise the epoch of a group of which no node runs.

    Args:
        cluster: Where.
        group: The broker group.
        epoch: At least the highest that a data directory of the group has acted in.
        do: Whether to do it; otherwise only what it would do is returned.

    Raises:
        InvalidArgument: Nobody ever led such a group, or the epoch does not rise.
        InvalidState: A node of the group is registered.
        CoordinationError: ZooKeeper did not answer; ``vq cluster status`` shows the epoch.
    """
    coordinator = cluster.coordinator
    path = GroupState.path(group)
    result: RaisedEpoch | None = None

    async def plan(_: CoordinationError | None) -> Plan[RaisedEpoch]:
        nonlocal result
        try:
            found = await coordinator.get(path)
            registered = (await coordinator.get(Registration.parent(group))).stat.version
        except NoNode as error:
            raise InvalidArgument(f"no node has ever led a broker group {group!r}") from error
        running = await registry.nodes(coordinator, group)
        if running:
            names = ", ".join(f"{group}/{each.node}" for each in running)
            raise InvalidState(f"{names} must not run meanwhile: stop it first")
        state = GroupState.decode(path, found.data)
        if result is not None and state.epoch == epoch:
            return Plan((), result)  # an earlier try was applied, and its answer lost
        if not state.epoch < epoch < EPOCH_MAX:
            raise InvalidArgument(
                f"epoch {epoch} is outside ({state.epoch}, {EPOCH_MAX}): an epoch only rises"
            )
        result = RaisedEpoch(group, state.epoch, epoch)
        if not do:
            return Plan((), result)
        check = Check(Registration.parent(group), registered)  # no node came meanwhile
        data = replace(state, epoch=epoch).encode()
        return Plan([check, Set(path, data, found.stat.version)], result)

    return await apply_plan(coordinator, plan, what=f"the state of group {group!r}")
