"""The port to the network, and its TCP implementation. Only this module of vq opens sockets.

It uses asyncio's protocols and transports, so it works on any loop (uvloop or another).
``vq.remoting.memory`` is the twin without sockets; one contract suite covers both.
"""

import asyncio
import contextlib
import os
import resource
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

from vq import limits
from vq.errors import AddressUnavailable, Unreachable
from vq.log_lines import get_logger
from vq.model import Address, is_host
from vq.pace import Pace
from vq.remoting import tls_transport
from vq.remoting.address_lines import AddressLines
from vq.remoting.frames import Buffer
from vq.remoting.ports import counted_address
from vq.remoting.receiving import Receiver
from vq.remoting.spin import ANSWER_SPIN_S, Spin, has_cores
from vq.remoting.tls_transport import TlsTransport
from vq.security.tls import why_no_tls
from vq.tasks import begin_task
from vq.waits import LoopWork

logger = get_logger(__name__)

P = TypeVar("P", bound=Receiver)
#: Returns the context of a new TLS connection; see ``vq.security.tls.TlsContexts``.
ContextSource = Callable[[], ssl.SSLContext]

#: Connections accepted in one loop iteration.
ACCEPTS_PER_TURN: Final = 16
#: How long the listener pauses after the process ran out of descriptors or kernel memory.
ACCEPT_PAUSE_S: Final = 0.5
#: Descriptors kept free of connections, for files: an eighth of the limit, at most so many.
DESCRIPTORS_KEPT_MAX: Final = 512
#: Connections that the kernel holds for a listener until they are accepted; the kernel lowers this
#: to ``net.core.somaxconn``. If the backlog is full, the client's kernel tries again after 1 s.
LISTEN_BACKLOG: Final = 4096
#: So much more than the pace is accepted at first: as many as come in this time at that pace.
ACCEPT_BURST_S: Final = 1.0
#: Accepting costs an eighth of what a connection does: so many are accepted for each that begins.
#: The others wait for the turn of their address; if too many wait, one of the busiest is closed.
ACCEPTED_FOR_EACH: Final = 4
ACCEPTED_WAITING_MAX: Final = 1024
#: At the pace, connections are accepted in slices: so many ms of them at a time.
ACCEPT_SLICE_S: Final = 0.01
#: A connection with a TLS handshake takes the loop as long as so many without.
HANDSHAKE_COST: Final = 4.0
#: Connections that are not accepted, such as failed handshakes, are logged at most so often.
ENDED_TOLD_S: Final = 1.0
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
#: The first byte of a TLS handshake. That of a frame, and of HTTP, is another one.
_TLS_HANDSHAKE: Final = b"\x16"
_RECEIVE_BYTES: Final = 64 * limits.KIB
#: With more bytes than this in the write buffer, the protocol must pause writing.
WRITE_BUFFER_HIGH_BYTES: Final = limits.MIB


def nobody_listens(error: BaseException) -> bool:
    """Whether ``Network.connect`` failed since the machine said that no process listens there.

    It is no class of its own: ``--json`` shows the classes of errors to programs.
    """
    return isinstance(error, Unreachable) and isinstance(error.__cause__, ConnectionRefusedError)


class Listener(Protocol):
    """An address at which connections are accepted."""

    @property
    def address(self) -> Address:
        """The address it listens on, with the real port if 0 was given."""
        ...

    @property
    def trouble(self) -> str:
        """Why it does not accept connections now; empty if it does."""
        ...

    def close(self) -> None:
        """Accept no more connections; open ones stay open. May be called twice."""
        ...

    async def wait_closed(self) -> None:
        """Wait until the address is free again."""
        ...


class BlockingStream(Protocol):
    """A blocking connection, used by one thread at a time. Deadlines: ``time.monotonic``."""

    @property
    def encrypted(self) -> bool:
        """Whether it is under TLS."""
        ...

    def send(self, data: Buffer, deadline: float) -> None:
        """Pass all of ``data`` to the network.

        Raises:
            OSError: The connection ended, or the deadline passed (``TimeoutError``); a part may
                have been sent.
        """
        ...

    def receive(self, deadline: float) -> bytes:
        """Wait for the next bytes and return them; b"": the peer has closed the connection.

        Raises:
            OSError: The connection ended, or the deadline passed (``TimeoutError``).
        """
        ...

    def interrupt(self) -> None:
        """Make another thread's ``send`` or ``receive`` end soon; any thread."""
        ...

    def close(self) -> None:
        """Close the connection; no other thread may use it now."""
        ...


def all_alike(_address: str) -> float:
    """Have a connection of any address count as one; see ``Network.listen``."""
    return 1.0


class Network(Protocol):
    """Opens connections. Call it on the running loop, except ``open_stream``.

    Between ``close`` and ``connection_lost`` a transport drops writes. After ``connection_lost`` no
    write is allowed (uvloop and the twin raise ``RuntimeError``).
    """

    async def listen(
        self,
        address: Address,
        protocol_factory: Callable[[], Receiver],
        *,
        on_full: Callable[[], None] | None = None,
        new_per_s: float = 0.0,
        weight: Callable[[str], float] = all_alike,
    ) -> Listener:
        """Accept connections at ``address``; port 0 means any free port.

        While the process has no free file descriptor, connections wait in the backlog, and the
        listener checks again every ``ACCEPT_PAUSE_S``. When more than ``new_per_s`` come, they
        begin as addresses take turns, so that open connections are served meanwhile; of too many
        that wait, the newest of the busiest address is closed.

        Args:
            address: The address to listen on.
            protocol_factory: Makes the protocol of each connection.
            on_full: Called at each check that finds no free descriptor; it may close connections.
            new_per_s: How many begin in a second, behind the first ``ACCEPT_BURST_S``; one
                with a TLS handshake counts as ``HANDSHAKE_COST``. 0: as many as come.
            weight: As how many a connection counts, by its ``counted_address``.

        Raises:
            AddressUnavailable: The address is in use, is not of this machine, or is not permitted.
        """
        ...

    async def connect(
        self, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """Return a connection to ``address`` after its ``connection_made``.

        It has no deadline: wrap it in ``asyncio.timeout``.

        Raises:
            Unreachable: No process listens there (see ``nobody_listens``), there is no such
                machine, or no answer; nothing was sent.
        """
        ...

    def open_stream(self, address: Address, deadline: float) -> BlockingStream:
        """Return a blocking connection; any thread but the loop's.

        Args:
            address: The address to connect to.
            deadline: The bound of connecting, as ``time.monotonic``.

        Raises:
            Unreachable: No process listens there, the network is cut, or the deadline passed;
                nothing was sent.
        """
        ...


@runtime_checkable
class Announced(Protocol):
    """A protocol that counts connections from their first byte, not from the end of a handshake."""

    def announced(self, peername: object, abort: Callable[[], object]) -> None:
        """Note that a handshake begins; ``abort`` ends it.

        ``connection_made`` follows, or ``connection_lost`` if the handshake fails.
        """
        ...


class TcpNetwork:
    """TCP, with TLS where contexts are given.

    Args:
        server_ssl: Returns the context of each connection that ``listen`` accepts; None: plain TCP.
        client_ssl: Returns that of each connection that this end opens, on the loop or on the
            thread that does so; None: plain TCP.
        plain_too: With ``server_ssl``, accept plain TCP at the same port: the first byte of a peer
            tells which. For protocols whose clients speak first.
    """

    def __init__(
        self,
        *,
        server_ssl: ContextSource | None = None,
        client_ssl: ContextSource | None = None,
        plain_too: bool = False,
    ) -> None:
        self._plain_too = plain_too
        self._server_ssl = server_ssl
        self._client_ssl = client_ssl

    async def listen(
        self,
        address: Address,
        protocol_factory: Callable[[], Receiver],
        *,
        on_full: Callable[[], None] | None = None,
        new_per_s: float = 0.0,
        weight: Callable[[str], float] = all_alike,
    ) -> "TcpListener":
        """See ``Network.listen``."""
        if not is_host(address.host):
            raise AddressUnavailable(
                f"cannot listen on {address}: the name is not valid for a host"
            )
        try:
            sockets = await _bind(address)
        except OSError as error:
            reason = error.strerror or error
            raise AddressUnavailable(f"cannot listen on {address}: {reason}") from error
        return TcpListener(
            sockets,
            protocol_factory,
            server_ssl=self._server_ssl,
            plain_too=self._plain_too,
            on_full=on_full,
            new_per_s=new_per_s,
            weight=weight,
        )

    async def connect(
        self, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """See ``Network.connect``."""
        if not is_host(address.host):
            raise Unreachable(f"cannot connect to {address}: the name is not valid for a host")
        loop = asyncio.get_running_loop()
        try:
            if self._client_ssl is None:
                return await loop.create_connection(protocol_factory, address.host, address.port)
            tls = TlsTransport(
                protocol := protocol_factory(), self._client_ssl(), server_hostname=address.host
            )
            try:
                await loop.create_connection(lambda: tls, address.host, address.port)
                await tls.opened
            except BaseException:
                tls.abort()
                raise
        except OSError as error:  # ssl.SSLError is one, too
            raise self._unreachable(address, error) from error
        return tls, protocol

    def _unreachable(self, address: Address, error: OSError) -> Unreachable:
        why = "" if self._client_ssl is None else why_no_tls(error)
        return Unreachable(f"cannot connect to {address}: {why or error.strerror or error}")

    def open_stream(self, address: Address, deadline: float) -> "TcpStream":
        """See ``Network.open_stream``."""
        if not is_host(address.host):
            raise Unreachable(f"cannot connect to {address}: the name is not valid for a host")
        try:
            sock = _connect(address, deadline)
            try:
                _tune_socket(sock)
                if self._client_ssl is not None:
                    sock.settimeout(
                        min(seconds_left(deadline), tls_transport.TLS_HANDSHAKE_TIMEOUT_S)
                    )
                    sock = self._client_ssl().wrap_socket(sock, server_hostname=address.host)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            raise self._unreachable(address, error) from error
        return TcpStream(sock)


class TcpStream:
    """A socket for a thread that waits; ``TcpNetwork.open_stream`` makes it.

    With a time-out of its own, a socket costs two more system calls for each send and receive:
    Python sets its mode anew, and polls before it tries. So a plain socket never blocks here, and
    only ``receive`` polls, again and again for a moment where answers come fast. Under TLS bytes
    may wait inside the library, where ``poll`` does not see them: there the time-out of the socket
    stays.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._poll: select.poll | None = None
        self._spin = Spin(ANSWER_SPIN_S if has_cores() else 0.0)
        if not isinstance(sock, ssl.SSLSocket):
            sock.setblocking(False)
            self._poll = select.poll()
            self._poll.register(sock, select.POLLIN)

    @property
    def encrypted(self) -> bool:
        """See ``BlockingStream.encrypted``."""
        return self._poll is None

    def send(self, data: Buffer, deadline: float) -> None:
        """See ``BlockingStream.send``."""
        left = seconds_left(deadline)
        sent = 0
        if self._poll is not None:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass  # the peer is slow to read
            if sent == len(data):
                return
        self._socket.settimeout(left)
        try:
            self._socket.sendall(memoryview(data)[sent:])
        finally:
            if self._poll is not None:
                self._socket.setblocking(False)

    def receive(self, deadline: float) -> bytes:
        """See ``BlockingStream.receive``."""
        left = seconds_left(deadline)
        if self._poll is None:
            self._socket.settimeout(left)
        else:
            self._wait(self._poll.poll, left)
        return self._socket.recv(_RECEIVE_BYTES)

    def _wait(self, poll: Callable[[float], list[Any]], seconds: float) -> None:
        """Wait for bytes: first look again and again, if they are likely to come soon.

        Each look gives up the interpreter, and signals are handled between looks.
        """
        now, spin = time.monotonic, self._spin
        begun = now()
        if spin.begins:
            while not poll(0):
                waited_s = now() - begun
                if waited_s >= seconds or not spin.goes_on(waited_s):
                    break
            else:
                spin.note(now() - begun)
                return
        if not poll(max(0.0, seconds - (now() - begun)) * 1000):
            raise TimeoutError("no answer in time")
        spin.note(now() - begun)

    def interrupt(self) -> None:
        """See ``BlockingStream.interrupt``.

        It does not close the socket: another file could get the descriptor number while the thread
        still reads from it. ``shutdown`` of an ``SSLSocket`` would drop its TLS first: what the
        other thread sends at that moment would leave as plain text.
        """
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """See ``BlockingStream.close``."""
        self._socket.close()


def _connect(address: Address, deadline: float) -> socket.socket:
    """Return a socket connected to the first address that accepts; one deadline for all tries."""
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
    raise failure or OSError("the name has no address")


def _resolve(address: Address, deadline: float) -> list[Any]:
    """Return the result of ``getaddrinfo``, called in a thread: the resolver has no time-out."""
    host, port = address
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    asking: LoopWork[list[Any]] = LoopWork()
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    asked = partial(asking.call, ask)
    threading.Thread(target=asked, name="vq-resolve", daemon=True).start()
    if not asking.has_ended(seconds_left(deadline)):
        raise TimeoutError(f"the name {host} was not resolved in time")
    return asking.result()


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
    """A listening socket; ``TcpNetwork.listen`` makes it.

    It calls ``accept`` itself, because asyncio's server retries at once when the process is out of
    descriptors, and uvloop's server closes the connection without an error.

    Attributes:
        sockets: On which it listens; [] once it is closed.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        protocol_factory: Callable[[], Receiver],
        *,
        server_ssl: ContextSource | None = None,
        plain_too: bool = False,
        on_full: Callable[[], None] | None = None,
        new_per_s: float = 0.0,
        weight: Callable[[str], float] = all_alike,
    ) -> None:
        self.sockets = sockets
        self._protocol_factory = protocol_factory
        self._server_ssl = server_ssl
        self._plain_too = plain_too
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._trouble = ""
        self._weight = weight
        self._pace = Pace(new_per_s)
        self._accepts = Pace(ACCEPTED_FOR_EACH * new_per_s)
        self._lines: AddressLines[tuple[socket.socket, str]] = AddressLines(ACCEPTED_WAITING_MAX)
        self._next: asyncio.TimerHandle | None = None  # when some of them begin
        self._cost = 1.0 if server_ssl is None else HANDSHAKE_COST
        self._untold = 0  # connections that ended before they were accepted
        self._tell_at = 0.0
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
        for sock in self.sockets:
            sock.close()
        self.sockets = []
        if self._next is not None:
            self._next.cancel()
        while self._lines:
            self._lines.take()[0].close()

    async def wait_closed(self) -> None:
        """See ``Listener.wait_closed``: ``close`` frees the address at once."""
        await asyncio.sleep(0)

    def _watch(self) -> None:
        for sock in self.sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def _unwatch(self) -> None:
        for sock in self.sockets:
            self._loop.remove_reader(sock.fileno())

    def _accept(self, listening: socket.socket) -> None:
        """Accept some waiting connections; the bound keeps open connections served."""
        if self._retry is not None:
            return  # another socket has met the pace in this turn
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.pause(error.strerror or str(error))
                return
            sock.setblocking(False)
            full = sock.fileno() >= _descriptors_max()
            self._take(sock, str(peer[0]) if isinstance(peer, tuple) else "")
            if full:
                self.pause("file descriptors are almost used up")
                return
            now = self._loop.time()
            self._accepts.spend(1, now)
            if self._accepts.pause_s(now) >= ACCEPT_BURST_S:
                self._unwatch()
                self._retry = self._loop.call_later(ACCEPT_SLICE_S, self._go_on)
                return

    def _go_on(self) -> None:
        self._retry = None
        self._watch()

    def _take(self, sock: socket.socket, host: str) -> None:
        """Begin a connection, if the pace allows it, or have it wait for the turn of its address.

        One that waits is a descriptor, and nothing else: it is accepted so that its address has a
        turn, which the kernel's line does not give.
        """
        host = counted_address(host)
        if not self._lines and self._pace.pause_s(self._loop.time()) < ACCEPT_BURST_S:
            self._begin(sock, host)
            return
        gone, _ = self._lines.add(host, (sock, host)) or (None, "")
        if gone is not None:
            with contextlib.suppress(OSError):  # a reset leaves nothing of it in the kernel
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            gone.close()
        if self._next is None:
            self._next = self._loop.call_later(ACCEPT_SLICE_S, self._begin_some)

    def _begin_some(self) -> None:
        """Begin connections that have waited, as many as the pace allows by now."""
        self._next = None
        while self._lines and self._pace.pause_s(self._loop.time()) < ACCEPT_BURST_S:
            self._begin(*self._lines.take())
        if self._lines:
            self._next = self._loop.call_later(ACCEPT_SLICE_S, self._begin_some)

    def _begin(self, sock: socket.socket, host: str) -> None:
        self._pace.spend(self._cost * self._weight(host), self._loop.time())
        task = begin_task(self._start(sock))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, sock: socket.socket) -> None:
        protocol = self._protocol_factory()
        announced = self._announce(protocol, sock)
        try:
            if self._server_ssl is None or (self._plain_too and not await self._is_tls(sock)):
                await self._loop.connect_accepted_socket(lambda: protocol, sock)
            else:
                tls = TlsTransport(protocol, self._server_ssl(), server_side=True)
                try:
                    await self._loop.connect_accepted_socket(lambda: tls, sock)
                    await tls.opened
                except BaseException:
                    tls.abort()
                    raise
        except OSError as error:  # the peer closed the connection, or its TLS handshake failed
            self._tell_ended(error)
            sock.close()
            if announced:
                protocol.connection_lost(error)
        except BaseException:
            sock.close()
            if announced:
                protocol.connection_lost(None)
            raise

    async def _is_tls(self, sock: socket.socket) -> bool:
        """Return whether a peer begins a TLS handshake, once it has sent something.

        Raises:
            OSError: It sends nothing in time, or ends the connection.
        """
        spoke = asyncio.Event()
        self._loop.add_reader(sock.fileno(), spoke.set)
        try:
            async with asyncio.timeout(tls_transport.TLS_HANDSHAKE_TIMEOUT_S):
                await spoke.wait()
        finally:
            self._loop.remove_reader(sock.fileno())
        first = sock.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionAbortedError("the peer has sent nothing")
        return first == _TLS_HANDSHAKE

    def _tell_ended(self, error: OSError) -> None:
        """Log the end of connections that were not accepted: strangers do not fill the log."""
        self._untold += 1
        now = self._loop.time()
        if now < self._tell_at:
            return
        logger.info(
            "connections ended before they were accepted",
            address=self._address,
            connections=self._untold,
            last_error=error,
        )
        self._untold, self._tell_at = 0, now + ENDED_TOLD_S

    def _announce(self, protocol: Receiver, sock: socket.socket) -> bool:
        """Tell the protocol of a connection whose TLS handshake begins; whether it was told."""
        task = asyncio.current_task()
        if self._server_ssl is None or task is None or not isinstance(protocol, Announced):
            return False
        with contextlib.suppress(OSError):  # the peer has closed it
            protocol.announced(sock.getpeername(), task.cancel)
        return True

    def pause(self, why: str) -> None:
        """Pause accepting; the kernel holds new connections."""
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
        """Accept again if a descriptor is free; otherwise call ``on_full`` and check later."""
        if not self._has_free_descriptor():
            self._retry = self._loop.call_later(ACCEPT_PAUSE_S, self._look_again)
            if self._on_full is not None:
                self._on_full()
            return
        self._retry = None
        self._trouble = ""
        logger.info("accepting connections again", address=self._address)
        self._watch()

    def _has_free_descriptor(self) -> bool:
        try:
            descriptor = os.dup(self.sockets[0].fileno())
        except OSError:
            return False
        os.close(descriptor)
        return descriptor < _descriptors_max()


def _descriptors_max() -> int:
    """Return the descriptor number at which the listener stops accepting.

    The kernel assigns the lowest free number, so the number shows how many are in use. The numbers
    above are reserved for block files and directories, which connected clients need.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - min(DESCRIPTORS_KEPT_MAX, soft // 8)


async def _bind(address: Address) -> list[socket.socket]:
    """Return listening sockets, one for each address of the host's name."""
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
    """Set the options of every vq connection; call it in ``connection_made``.

    It disables Nagle's delay, sends keepalive probes after 30 s of silence to detect half-open
    connections, and bounds the write buffer. The socket options need a transport with a socket.
    """
    # A cast, not isinstance: uvloop's transports do not inherit from asyncio's.
    cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
    sock = transport.get_extra_info("socket")
    if sock is not None:
        _tune_socket(sock)


def _tune_socket(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the connection just ended, or it is not TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            option = getattr(socket, name, None)  # not on every platform
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
