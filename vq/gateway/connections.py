"""Connections of a server of HTTP, with bounds for what a peer may do to it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vq.gateway.unread import Unread


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """What a server takes.

    Attributes:
        connections_max: Open connections.
        header_timeout_s: The headers of a request must be whole within this time.
        write_timeout_s: A connection whose peer takes nothing for so long is cut.
    """

    connections_max: int
    header_timeout_s: float
    write_timeout_s: float


class BoundedProtocol(H11Protocol):
    """A connection with the bounds that uvicorn does not have: how long a peer may take.

    A request's headers must be whole within a time, and a peer must take what is written within
    one; otherwise the connection is cut. One connection too many is cut at once.
    """

    bounds: ConnectionBounds  # these are set by ``protocol_for``
    unread: Unread
    handshakes: "set[BoundedProtocol]"

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._end_handshake: Callable[[], object] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        self.handshakes.discard(self)
        self._end_handshake = None
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
            transport.abort()
        self._await_headers()

    def announced(self, _peername: object, abort: Callable[[], object]) -> None:
        """See ``transport.Announced``: handshakes count as connections."""
        self._end_handshake = abort
        self.handshakes.add(self)
        if len(self.handshakes) + len(self.connections) > self.bounds.connections_max:
            abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        if self._end_handshake is not None:
            self.handshakes.discard(self)
            return
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        self.unread.transports.discard(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        is_between = self.cycle is None or self.cycle.response_complete
        if is_between and self._deadline is None:
            self._await_headers()
        super().data_received(data)
        if self._deadline is not None and self.cycle and not self.cycle.response_complete:
            self._deadline.cancel()
            self._deadline = None

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        super().pause_writing()
        self.unread.transports.add(self.transport)
        self._await_taking(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        super().resume_writing()
        self.unread.transports.discard(self.transport)
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _await_taking(self, size: int) -> None:
        """Cut the connection unless the peer takes something in time, and then again."""
        timeout_s = self.bounds.write_timeout_s
        self._write_deadline = self.loop.call_later(timeout_s, self._look_at_peer, size)

    def _look_at_peer(self, before: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size < before:
            self._await_taking(size)
        else:
            self._cut()

    def _await_headers(self) -> None:
        self._deadline = self.loop.call_later(self.bounds.header_timeout_s, self._cut)

    def _cut(self) -> None:
        self.transport.abort()


def protocol_for(bounds: ConnectionBounds, unread: Unread) -> type[BoundedProtocol]:
    """Return the protocol of the connections of one server."""
    attributes = {"bounds": bounds, "unread": unread, "handshakes": set[BoundedProtocol]()}
    return type("BoundedConnection", (BoundedProtocol,), attributes)
