"""The port to the network, and TCP behind it. The only module of vq that opens sockets.

Protocols and transports are those of asyncio, so the loop (uvloop or another) is chosen by whoever
runs it. ``vq.remoting.memory`` holds the twin without sockets; one contract suite covers both.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import resource
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast

from vq import limits
from vq.errors import AddressUnavailable, Unreachable
from vq.log_lines import get_logger
from vq.model import Address, is_host

logger = get_logger(__name__)

P = TypeVar("P", bound=asyncio.Protocol)

#: Connections accepted in one loop iteration.
ACCEPTS_PER_TURN: Final = 16
#: How long no connection is accepted after the process ran out of descriptors or kernel memory.
ACCEPT_PAUSE_S: Final = 0.5
#: Descriptors kept free of connections, for files: an eighth of the limit, at most so many.
DESCRIPTORS_KEPT_MAX: Final = 512
#: Connections that the kernel holds for a listener until they are accepted; it lowers the number to
#: ``net.core.somaxconn``. The kernel of a client that finds no place tries again after 1 s.
LISTEN_BACKLOG: Final = 4096
_RECEIVE_BYTES: Final = 64 * limits.KIB
#: Writes queue up to this many bytes before the protocol is told to pause.
WRITE_BUFFER_HIGH_BYTES: Final = limits.MIB


class Listener(Protocol):
    """An address at which connections are accepted."""

    @property
    def address(self) -> Address:
        """The address it listens on, with the real port if 0 was given."""
        ...

    @property
    def trouble(self) -> str:
        """Why it accepts no connections now; empty if it does."""
        ...

    def close(self) -> None:
        """Accept no more connections; open ones stay open. May be called twice."""
        ...

    async def wait_closed(self) -> None:
        """Return once the address is free again."""
        ...


class BlockingStream(Protocol):
    """A connection for threads that wait; used by one at a time. Deadlines: ``time.monotonic``."""

    def send(self, data: bytes, deadline: float) -> None:
        """Hand all of ``data`` to the network.

        Raises:
            OSError: The connection ended, or the time (``TimeoutError``); part of it may be sent.
        """
        ...

    def receive(self, deadline: float) -> bytes:
        """Wait for the next bytes and return them; none: the peer has ended the connection.

        Raises:
            OSError: The connection ended, or the time (``TimeoutError``).
        """
        ...

    def interrupt(self) -> None:
        """Have another thread's ``send`` or ``receive`` end soon; any thread."""
        ...

    def close(self) -> None:
        """End the connection; only when no other thread uses it."""
        ...


class Network(Protocol):
    """Makes connections. Call it on the running loop, except ``open_stream``.

    Between ``close`` and ``connection_lost`` a transport drops what is written; after
    ``connection_lost`` nothing may be written (uvloop and the twin raise ``RuntimeError``).
    """

    async def listen(
        self,
        address: Address,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        on_full: Callable[[], None] | None = None,
    ) -> Listener:
        """Accept connections at ``address``; port 0 means any free one.

        While the process has no free file descriptor, connections wait in the backlog, and the
        listener checks again every ``ACCEPT_PAUSE_S``.

        Args:
            address: Where.
            protocol_factory: Makes the protocol of each connection.
            on_full: Called each time no descriptor is free; it may close connections.

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

    def open_stream(self, address: Address, deadline: float) -> BlockingStream:
        """Return a connection for a thread that waits; any thread but the loop's.

        Args:
            address: Where to.
            deadline: ``time.monotonic`` by which it is there.

        Raises:
            Unreachable: Nobody listens there, the way is cut, or the time is up; nothing was sent.
        """
        ...


class TcpNetwork:
    """TCP, with TLS where contexts are given.

    Args:
        server_ssl: For connections taken by ``listen``; None: plain TCP.
        client_ssl: For connections made by ``connect``; None: plain TCP.
    """

    def __init__(
        self,
        *,
        server_ssl: ssl.SSLContext | None = None,
        client_ssl: ssl.SSLContext | None = None,
    ) -> None:
        self._server_ssl = server_ssl
        self._client_ssl = client_ssl

    async def listen(
        self,
        address: Address,
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        on_full: Callable[[], None] | None = None,
    ) -> "TcpListener":
        """See ``Network.listen``."""
        if not is_host(address.host):
            raise AddressUnavailable(f"cannot listen on {address}: no host has such a name")
        try:
            sockets = await _bind(address)
        except OSError as error:
            reason = error.strerror or error
            raise AddressUnavailable(f"cannot listen on {address}: {reason}") from error
        return TcpListener(sockets, protocol_factory, ssl_context=self._server_ssl, on_full=on_full)

    async def connect(
        self, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """See ``Network.connect``."""
        if not is_host(address.host):
            raise Unreachable(f"cannot connect to {address}: no host has such a name")
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.create_connection(
                protocol_factory, address.host, address.port, ssl=self._client_ssl
            )
        except OSError as error:  # ssl.SSLError is one, too
            reason = error.strerror or error
            raise Unreachable(f"cannot connect to {address}: {reason}") from error
        return transport, protocol

    def open_stream(self, address: Address, deadline: float) -> "TcpStream":
        """See ``Network.open_stream``."""
        if not is_host(address.host):
            raise Unreachable(f"cannot connect to {address}: no host has such a name")
        try:
            sock = _connect(address, deadline)
            try:
                _tune_socket(sock)
                if self._client_ssl is not None:
                    sock.settimeout(seconds_left(deadline))
                    sock = self._client_ssl.wrap_socket(sock, server_hostname=address.host)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            reason = error.strerror or error
            raise Unreachable(f"cannot connect to {address}: {reason}") from error
        return TcpStream(sock)


class TcpStream:
    """A socket for a thread that waits; made by ``TcpNetwork.open_stream``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, data: bytes, deadline: float) -> None:
        """See ``BlockingStream.send``."""
        self._socket.settimeout(seconds_left(deadline))
        self._socket.sendall(data)

    def receive(self, deadline: float) -> bytes:
        """See ``BlockingStream.receive``."""
        self._socket.settimeout(seconds_left(deadline))
        return self._socket.recv(_RECEIVE_BYTES)

    def interrupt(self) -> None:
        """See ``BlockingStream.interrupt``.

        Closing the socket here would free the number of a descriptor that a thread still reads
        from.
        """
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See ``BlockingStream.close``."""
        self._socket.close()


def _connect(address: Address, deadline: float) -> socket.socket:
    """Return a socket connected to the first address that takes it; all tries have one deadline."""
    failure: OSError | None = None
    for family, kind, protocol, _, resolved in _resolve(address, deadline):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(seconds_left(deadline))
            sock.connect(resolved)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError("its name stands for no address")


def _resolve(address: Address, deadline: float) -> list[Any]:
    """Return what ``getaddrinfo`` says; the resolver has no time-out, so a thread asks it."""
    host, port = address
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    found: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()

    def ask() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=ask, name="vq-resolve", daemon=True).start()
    try:
        return found.result(seconds_left(deadline))
    except TimeoutError:
        raise TimeoutError(f"the name {host} was not resolved in time") from None


def seconds_left(deadline: float) -> float:
    """Return the seconds until ``deadline`` as a socket's time-out.

    Raises:
        TimeoutError: None are left.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return min(left, limits.TIMEOUT_S_MAX)


class TcpListener:
    """A listening socket; made by ``TcpNetwork.listen``.

    It calls ``accept`` itself: when the process is out of descriptors, asyncio's server retries at
    once, and uvloop's closes the connection without an error.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        protocol_factory: Callable[[], asyncio.Protocol],
        *,
        ssl_context: ssl.SSLContext | None = None,
        on_full: Callable[[], None] | None = None,
    ) -> None:
        self._sockets = sockets
        self._protocol_factory = protocol_factory
        self._ssl = ssl_context
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._trouble = ""
        host, port = sockets[0].getsockname()[:2]
        self._address = Address(host, port)
        self._watch()

    @property
    def address(self) -> Address:
        """See ``Listener.address``."""
        return self._address

    @property
    def trouble(self) -> str:
        """See ``Listener.trouble``."""
        return self._trouble

    def close(self) -> None:
        """See ``Listener.close``."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        else:
            self._unwatch()
        for sock in self._sockets:
            sock.close()
        self._sockets = []

    async def wait_closed(self) -> None:
        """See ``Listener.wait_closed``: ``close`` frees the address in the same turn."""
        await asyncio.sleep(0)

    def _watch(self) -> None:
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def _unwatch(self) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())

    def _accept(self, listening: socket.socket) -> None:
        """Accept some of the waiting connections, so that open ones are served, too."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error.strerror or str(error))
                return
            sock.setblocking(False)
            task = self._loop.create_task(self._start(sock))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)
            if sock.fileno() >= _descriptors_max():
                self._pause("file descriptors are almost used up")
                return

    async def _start(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol_factory, sock, ssl=self._ssl)
        except OSError as error:  # the peer has gone, or its TLS handshake failed
            logger.info(
                "connection ended before it was accepted", address=self._address, error=error
            )
            sock.close()
        except BaseException:
            sock.close()
            raise

    def _pause(self, why: str) -> None:
        """Accept nothing for a while; the kernel holds new connections."""
        self._unwatch()
        trouble = f"new connections wait: {why}"
        if trouble != self._trouble:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            logger.error(
                "cannot accept connections, end some or raise the limit of open files (ulimit -n)",
                address=self._address,
                cause=why,
                open_files_max=soft,
            )
        self._trouble = trouble
        self._retry = self._loop.call_later(ACCEPT_PAUSE_S, self._look_again)

    def _look_again(self) -> None:
        """Accept again if a descriptor is free; else call ``on_full`` and check again later."""
        if not self._has_room():
            self._retry = self._loop.call_later(ACCEPT_PAUSE_S, self._look_again)
            if self._on_full is not None:
                self._on_full()
            return
        self._retry = None
        self._trouble = ""
        logger.info("accepting connections again", address=self._address)
        self._watch()

    def _has_room(self) -> bool:
        try:
            descriptor = os.dup(self._sockets[0].fileno())
        except OSError:
            return False
        os.close(descriptor)
        return descriptor < _descriptors_max()


def _descriptors_max() -> int:
    """Return the descriptor number from which on no connection is accepted.

    The kernel gives the lowest free number, so the number tells how many are in use. Those above
    are left to block files and directories: clients that are connected already need them.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - min(DESCRIPTORS_KEPT_MAX, soft // 8)


async def _bind(address: Address) -> list[socket.socket]:
    """Return listening sockets, one for each address that the host's name stands for."""
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    port = address.port
    try:
        for family, kind, protocol, _, place in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((place[0], port, *place[2:]))
            port = sock.getsockname()[1]
        for sock in sockets:
            sock.listen(LISTEN_BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def tune(transport: asyncio.BaseTransport) -> None:
    """Set what every vq connection wants; call it in ``connection_made``.

    No Nagle delay, keepalive probes after 30 s of silence so that a half-open connection is
    noticed, and a bound on what waits to be written. Does nothing to transports without a socket.
    """
    # A cast, not isinstance: uvloop's transports do not inherit from asyncio's.
    cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is not None:
        _tune_socket(sock)


def _tune_socket(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # a socket that just ended, or not TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            option = getattr(socket, name, None)  # not on every platform
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
