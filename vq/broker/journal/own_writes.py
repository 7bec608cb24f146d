"""How a node appends to its own log: as a PUT of its own, under a session without a peer."""

from collections.abc import Sequence
from typing import Any, Final

import google_crc32c

from vq.broker.partition import puts
from vq.broker.partition.channel import Channel
from vq.broker.standing.gate import Gate
from vq.errors import Busy, VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.format import Command, Header
from vq.remoting.frames import Buffer
from vq.remoting.membership import Principal

_NOTES: Final = RequestId(Command.PUT, 0, 0)


def append_notes(channel: Channel, gate: Gate, notes: Sequence[bytes]) -> VqError | None:
    """Append notes to a log as one batch; return why that cannot be; None: it was done.

    That they are committed is seen when they are read.
    """
    role, refusal = channel.role, gate.put_refusal
    if refusal is not None:
        return refusal
    if not (role.holds() or channel.goes_on):
        return Busy(f"group {role.group} may have another master")
    records = b"".join(notes)
    crc: int = google_crc32c.value(records)
    header = wire.PutRequest(
        topic=channel.partition.topic,
        partition=channel.partition.partition,
        record_count=len(notes),
        crc=crc,
    )
    writes = _OwnWrites(role.group)
    puts.put(channel, writes, _NOTES, header, records)
    return writes.error


class _OwnWrites:
    """What this node appends to its own log: a session without a peer."""

    address = counted_as = "this node"
    congested = False

    def __init__(self, group: str) -> None:
        self._principal = Principal(group, "")
        self.waiting: dict[Any, None] = {}
        self.error: VqError | None = None

    @property
    def principal(self) -> Principal:
        """This node."""
        return self._principal

    def reply(self, request_id: RequestId, message: Header, body: Buffer = b"") -> None:
        """See ``Session``; that a note is committed is seen when it is read."""

    def reply_parts(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> None:
        """See ``reply``."""

    def reply_again(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> bool:
        """See ``Session``; a PUT has one answer."""
        return False

    def defer(self, action: Any) -> None:
        """See ``Session``; a PUT has no answers that wait."""
        action()

    def refuse(self, request_id: RequestId, error: VqError) -> None:
        """Keep why nothing was appended."""
        self.error = error

    def owe(self, amount: float) -> None:
        """See ``Session``; the node owes itself nothing."""
