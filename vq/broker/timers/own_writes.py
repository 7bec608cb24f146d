"""The session under which a node appends to its own log."""

from collections.abc import Sequence
from typing import Any

from vq.errors import VqError
from vq.remoting.connection import RequestId
from vq.remoting.format import Header
from vq.remoting.frames import Buffer
from vq.remoting.membership import Principal

__all__ = ["OwnWrites"]


class OwnWrites:
    """What this node appends to its own log: a session without a peer."""

    address = "this node"
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

    def defer(self, action: Any) -> None:
        """See ``Session``; a PUT has no answers that wait."""
        action()

    def refuse(self, request_id: RequestId, error: VqError) -> None:
        """Keep why nothing was appended."""
        self.error = error
