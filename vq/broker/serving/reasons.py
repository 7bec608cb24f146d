"""Why a node refuses a request before anybody looks at what it asks: one function for each reason.

    serves    no other node leads the group, so this one has its partitions
    reads     the same, or the reader takes the answer of a copy
    appends   it takes PUTs, and its lease holds, where that decides
    adopts    it takes PUTs
    copied    the peer is the node that it names, and follows this one in its epoch

The table of routes names one for each command (``parts``), the door asks it (``dispatcher``).
"""

from typing import Any

from vq.broker.base.session import Session
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.replication.mastership import Mastership
from vq.broker.serving.directory import Directory
from vq.broker.serving.reading import not_followed
from vq.broker.standing.gate import Gate
from vq.broker.standing.role import Role
from vq.errors import Busy, DiskFull, InvalidRequest, NotMaster, VqError
from vq.remoting import wire_pb2 as wire
from vq.shown import shown

_Copied = wire.ReplicateRequest | wire.EpochEndRequest


class Reasons:
    """The reasons of one node; each function returns one, or None.

    Args:
        gate: Knows why the whole node takes no requests.
        context: Has the role of the node.
        directory: Has the channels.
        mastership: Is told of an epoch that is newer than that in which this node leads.
    """

    def __init__(
        self, gate: Gate, context: Context, directory: Directory, mastership: Mastership
    ) -> None:
        self._gate = gate
        self._role = context.role
        self._directory = directory
        self._mastership = mastership

    def serves(self, _session: Session, _header: Any, _channel: Channel | None) -> VqError | None:
        """Return why this node has no partitions to serve."""
        return self._gate.refusal

    def reads(self, _session: Session, header: Any, _channel: Channel | None) -> VqError | None:
        """Return why this node answers no reader."""
        return None if header.from_copy else self._gate.refusal

    def appends(self, _session: Session, _header: Any, channel: Channel | None) -> VqError | None:
        """Return why this node takes no PUT for a channel; None: the channel is not known yet."""
        refusal, role = self._gate.put_refusal, self._role
        if refusal is None and not ((channel is not None and channel.goes_on) or role.holds()):
            return _lease_ended(role)
        return refusal

    def decides(self, session: Session, header: Any, channel: Channel | None) -> VqError | None:
        """Return why this node decides nothing; a full disk refuses only what it would note."""
        refusal = self.appends(session, header, channel)
        return None if isinstance(refusal, DiskFull) else refusal

    def seals(self, _session: Session, _header: Any, _channel: Channel | None) -> VqError | None:
        """Return why this node ends no log for a move: only a master knows what is committed."""
        role = self._role
        if role.acts:
            return None
        return self._gate.refusal or role.refusal or _lease_ended(role)

    def adopts(self, _session: Session, _header: Any, _channel: Channel | None) -> VqError | None:
        """Return why this node takes over no partition."""
        return self._gate.put_refusal

    def copied(self, session: Session, header: _Copied, channel: Channel | None) -> VqError | None:
        """Return why a copy must not follow this node."""
        role, epoch = self._role, header.epoch
        if header.node != session.principal.node:
            return InvalidRequest(
                f"{shown(header.node)} is not the node that this connection has proved to be"
            )
        if epoch != role.epoch or not epoch:
            if epoch > role.epoch > 0:
                self._hear_of_epoch(epoch, header.node)
            return not_followed(role, header.node, epoch)
        if channel is not None and self._directory.is_changing(channel.partition):
            return Busy(f"the logs of {channel} are being changed")
        return None

    def _hear_of_epoch(self, epoch: int, node: str) -> None:
        """Note that a node which copied from this one is in a newer epoch: nobody confirms here."""
        if self._mastership.hear(epoch, node):
            for channel in self._directory.channels.values():
                channel.acks.drop(channel.acks.mastership_lost())


def _lease_ended(role: Role) -> NotMaster:
    return NotMaster(
        f"ZooKeeper has not answered group {role.group} for so long that another node may lead it "
        "now. Topics with replication = sync take messages meanwhile, as long as all nodes in sync "
        f"({', '.join(sorted(role.insync))}) keep up"
    )
