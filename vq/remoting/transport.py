"""The port to the network, and TCP behind it. The only module of vq that opens sockets.

Protocols and transports are those of asyncio, so the loop (uvloop or another) is chosen by whoever
runs it. ``vq.remoting.memory`` holds the twin without sockets; one contract suite covers both.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

from vq import limits
from vq.errors import AddressUnavailable, Unreachable
from vq.model import Address

P = TypeVar("P", bound=asyncio.Protocol)

#: Writes queue up to this many bytes before the protocol is told to pause.
WRITE_BUFFER_HIGH_BYTES: Final = limits.MIB


class Listener(Protocol):
    """An address that takes connections."""

    @property
    def address(self) -> Address:
        """Where it listens; the real port if 0 was asked for."""
        ...

    def close(self) -> None:
        """Take no more connections; those already made go on. May be called twice."""
        ...

    async def wait_closed(self) -> None:
        """Return once the address is free again."""
        ...


class Network(Protocol):
    """Makes connections. Call it on the running loop.

    Between ``close`` and ``connection_lost`` a transport drops what is written; after
    ``connection_lost`` nothing may be written (uvloop and the twin raise ``RuntimeError``).
    """

    async def listen(
        self, address: Address, protocol_factory: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Take connections at ``address``; port 0 means any free one.

        Raises:
            AddressUnavailable: It is taken, not this machine's, or not permitted.
        """
        ...

    async def connect(
        self, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """Return a connection to ``address``; ``connection_made`` was called.

        Has no deadline of its own: wrap it in ``asyncio.timeout``.

        Raises:
            Unreachable: Nobody listens there or the way is cut; nothing was sent.
        """
        ...


class TcpNetwork:
    """TCP, with TLS where contexts are given.

    Args:
        server_ssl: For connections taken by ``listen``; None: plain TCP.
        client_ssl: For connections made by ``connect``; None: plain TCP.
        backlog: Connections the kernel may hold before they are accepted.
    """

    def __init__(
        self,
        *,
        server_ssl: ssl.SSLContext | None = None,
        client_ssl: ssl.SSLContext | None = None,
        backlog: int = 1024,
    ) -> None:
        self._server_ssl = server_ssl
        self._client_ssl = client_ssl
        self._backlog = backlog

    async def listen(
        self, address: Address, protocol_factory: Callable[[], asyncio.Protocol]
    ) -> "TcpListener":
        """See ``Network.listen``."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                protocol_factory,
                address.host,
                address.port,
                ssl=self._server_ssl,
                backlog=self._backlog,
                reuse_address=True,
            )
        except OSError as error:
            reason = error.strerror or error
            raise AddressUnavailable(f"cannot listen on {address}: {reason}") from error
        return TcpListener(server)

    async def connect(
        self, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """See ``Network.connect``."""
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.create_connection(
                protocol_factory, address.host, address.port, ssl=self._client_ssl
            )
        except OSError as error:  # ssl.SSLError is one, too
            reason = error.strerror or error
            raise Unreachable(f"cannot connect to {address}: {reason}") from error
        return transport, protocol


class TcpListener:
    """A listening socket; made by ``TcpNetwork.listen``."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self._address = Address(host, port)

    @property
    def address(self) -> Address:
        """See ``Listener.address``."""
        return self._address

    def close(self) -> None:
        """See ``Listener.close``."""
        self._server.close()

    async def wait_closed(self) -> None:
        """See ``Listener.wait_closed``.

        ``close`` frees the address in the same turn of the loop; asyncio's own ``wait_closed``
        would also wait for connections to end.
        """
        await asyncio.sleep(0)


def tune(transport: asyncio.BaseTransport) -> None:
    """Set what every vq connection wants; call it in ``connection_made``.

    No Nagle delay, keepalive probes after 30 s of silence so that a half-open connection is
    noticed, and a bound on what waits to be written. Does nothing to transports without a socket.
    """
    # A cast, not isinstance: uvloop's transports do not inherit from asyncio's.
    cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    with contextlib.suppress(OSError):  # a socket that just ended, or not TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            option = getattr(socket, name, None)  # not on every platform
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
