"""A connection as channels see it: requests come from it and are answered through it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from vq.errors import VqError
from vq.remoting.connection import RequestId
from vq.remoting.frames import Buffer
from vq.remoting.membership import Member
from vq.remoting.messages import Header


class Cancellable(Protocol):
    """A request that waits for something to happen."""

    def cancel(self) -> None:
        """Forget it without an answer."""
        ...


class Session(Protocol):
    """One open connection. Every request is answered once, by ``reply`` or ``refuse``.

    Attributes:
        address: Of the peer.
        waiting: Requests parked for this session, cancelled when it ends.
        put_bytes: Bytes of its PUTs that wait: for a look-up, for the log, or for their
            acknowledgement. Changed by ``count_put_bytes`` only.
    """

    address: str
    waiting: dict[Cancellable, None]
    put_bytes: int

    @property
    def member(self) -> Member | None:
        """The node, or command of an operator, that the peer has proved to be; None: anyone."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the peer does not read its answers; large ones should wait."""
        ...

    def count_put_bytes(self, change: int) -> None:
        """Add to the bytes of its waiting PUTs (below 0: subtract), here and on the node.

        Subtract before answering: the answer is when reading may go on.
        """
        ...

    def reply(self, request_id: RequestId, message: Header, body: Buffer = b"") -> None:
        """Answer; does nothing when the connection has ended meanwhile."""
        ...

    def reply_parts(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> None:
        """Answer with a body in parts; otherwise as ``reply``."""
        ...

    def defer(self, action: Callable[[], None]) -> None:
        """Call ``action`` once the peer has read enough of its answers."""
        ...

    def refuse(self, request_id: RequestId, error: VqError) -> None:
        """Answer with an error; does nothing when the connection has ended meanwhile."""
        ...


#: Handles a request: session, request id, header, body. It answers exactly once, now or later.
Handler = Callable[[Session, RequestId, Any, bytes], None]
