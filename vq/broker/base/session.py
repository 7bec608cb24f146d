"""A connection as channels see it: requests come from it and are answered through it."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from vq.errors import BadChecksum, UnknownPartition, VqError
from vq.remoting.connection import RequestId
from vq.remoting.format import Header
from vq.remoting.frames import Buffer
from vq.remoting.membership import Principal


class Cancellable(Protocol):
    """A request that waits for something to happen."""

    def cancel(self) -> None:
        """Forget it without an answer."""
        ...


@runtime_checkable
class Revocable(Cancellable, Protocol):
    """A request that waits, and that a user had a right to when it came."""

    def look_at_rights(self) -> int:
        """End what the user has no right to any more; return how many decisions that took."""
        ...


class Session(Protocol):
    """One open connection. Every request is answered once, by ``reply`` or ``refuse``.

    Before that, one may be answered any number of times by ``reply_again``.

    Attributes:
        address: Of the peer.
        waiting: Requests parked for this session, cancelled when it ends.
    """

    address: str
    waiting: dict[Cancellable, None]

    @property
    def counted_as(self) -> str:
        """What is bounded by address is counted under this: see ``counted_address``."""
        ...

    @property
    def principal(self) -> Principal:
        """Who the peer has proved to be."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the peer does not read its answers; large ones should wait."""
        ...

    def reply(self, request_id: RequestId, message: Header, body: Buffer = b"") -> None:
        """Answer; does nothing when the connection has ended meanwhile."""
        ...

    def reply_parts(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> None:
        """Answer with a body in parts; otherwise as ``reply``."""
        ...

    def reply_again(self, request_id: RequestId, message: Header, parts: Sequence[Buffer]) -> bool:
        """Answer a request that goes on waiting; otherwise as ``reply_parts``.

        Returns:
            False: nothing was sent, because the connection has ended, or what its peer reads is
            measured by its requests.
        """
        ...

    def defer(self, action: Callable[[], None]) -> None:
        """Call ``action`` once the peer has read enough of its answers."""
        ...

    def refuse(self, request_id: RequestId, error: VqError) -> None:
        """Answer with an error; does nothing when the connection has ended meanwhile."""
        ...

    def owe(self, amount: float) -> None:
        """Note work for what was refused: whoever owes much is read more slowly."""
        ...


#: Errors that a client may try again, and that are of its own making all the same.
_OWN_FAULTS: Final = {BadChecksum, UnknownPartition}


def is_own_fault(error: VqError) -> bool:
    """Whether an error comes of what a client asks, not of what the node happens to be."""
    return not error.retriable or type(error) in _OWN_FAULTS


#: Takes a request: session, request id, header, body. It is answered exactly once, now or later.
Door = Callable[[Session, RequestId, Any, bytes], None]
