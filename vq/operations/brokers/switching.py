"""Having another node lead a broker group, while both live.

Loop-bound functions on a ``ClusterClient``. The master does it
(``broker.replication.handing_over``); here it is asked, and the record is read to see what became
of it.
"""

from dataclasses import dataclass
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.errors import HandOverFailed, InvalidArgument, NotMaster, OutcomeUnknown
from vq.operations.base.acts import About, audited
from vq.operations.brokers.brokers import master_and_epoch
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import HandOverRequest, HandOverResponse

#: Bound of one hand-over; the master gives up long before.
SWITCH_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Switched:
    """A group that another node leads now, or led before.

    Attributes:
        group: The broker group.
        source: The node that led it.
        target: The node that leads it; the same if nothing had to be done.
        epoch: In which it leads.
    """

    group: str
    source: str
    target: str
    epoch: int


@audited(About.BROKERS, of="group")
async def switch_master(cluster: ClusterClient, group: str, node: str = "") -> Switched:
    """Have ``node``, or any node in sync, lead a broker group, without a failed send.

    Raises:
        InvalidArgument: There is no such group.
        NotMaster: It has no running master.
        HandOverFailed: The master goes on; the message says why.
        OutcomeUnknown: The master went away, and nobody leads yet.
    """
    if await registry.read_group(cluster.coordinator, group) is None:
        known = ", ".join(await registry.group_names(cluster.coordinator))
        raise InvalidArgument(f"there is no broker group {group!r}; known: {known or 'none'}")
    found = await master_and_epoch(cluster, group)
    if found is None:
        raise NotMaster(f"group {group!r} has no running master; start its broker first")
    master, epoch = found
    if node == master.node:
        return Switched(group, node, node, epoch)
    try:
        answer, _ = await cluster.request(
            master.address, Command.HAND_OVER, HandOverRequest(node=node), timeout=SWITCH_TIMEOUT_S
        )
    except OutcomeUnknown:
        after = await master_and_epoch(cluster, group)
        if after is None or after[0].node == master.node or node not in {"", after[0].node}:
            raise
        return Switched(group, master.node, after[0].node, after[1])
    assert isinstance(answer, HandOverResponse)
    state = await registry.read_state(cluster.coordinator, group)
    if state is None or state.master == master.node:
        raise HandOverFailed(f"group {group!r} is led by {master.node!r} again")
    return Switched(group, master.node, state.master, state.epoch)
