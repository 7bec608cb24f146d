"""A network without sockets: the twin of ``TcpNetwork``, for tests and simulations.

Connections are ordered streams of bytes between asyncio protocols, delivered by timers of the
running loop. On a loop with virtual time and with a seeded generator, a run repeats exactly. On
request it simulates latency, chunks of any size, cuts that hold bytes back until they heal (like
TCP's resending), and hosts that die.

All of it runs on one event loop; only ``open_stream`` and its streams may be used by other threads.
Each end calls its protocol in the context in which the end was made (of ``connect``, or of
``listen``), as with sockets. Bytes under way belong to the network's own context. So a simulation
can stop one process and not its peers.
"""

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from vq import limits
from vq.errors import AddressUnavailable, Unreachable
from vq.model import Address, is_host
from vq.remoting.memory_stream import MemoryStream
from vq.remoting.receiving import FrameProtocol, Receiver
from vq.remoting.transport import all_alike, seconds_left
from vq.waits import LoopWork

P = TypeVar("P", bound=Receiver)

#: Largest chunk of one ``data_received``, as with sockets.
CHUNK_BYTES_MAX: Final = 256 * limits.KIB
_FIRST_FREE_PORT: Final = 49_152
_EOF: Final = b""


class MemoryNetwork:
    """All hosts and the links between them. It is also the ``Network`` of host ``local_host``.

    Args:
        latency_s: Time of a byte from one host to another, >= 0.
        jitter_s: The most that a write takes longer, drawn for each; the order is kept.
        rng: Draws the jitter and the sizes of chunks; None: no jitter, whole chunks.
        local_host: The host from which ``connect`` connects.

    Attributes:
        listeners: By their addresses.
    """

    def __init__(
        self,
        *,
        latency_s: float = 0.0,
        jitter_s: float = 0.0,
        rng: random.Random | None = None,
        local_host: str = "client",
    ) -> None:
        self.latency_s = latency_s
        self.jitter_s = jitter_s
        self._rng = rng
        self._local_host = local_host
        self.listeners: dict[Address, MemoryListener] = {}
        self._next_port = _FIRST_FREE_PORT
        self._cuts: set[tuple[str, str]] = set()  # from, to
        self._refused: set[Address] = set()
        self._held: list[tuple[str, str, Callable[[], None]]] = []
        self._transports: dict[MemoryTransport, None] = {}  # a set that keeps its order
        self._context = contextvars.copy_context()

    # The port ---------------------------------------------------------------------------------
    async def listen(
        self,
        address: Address,
        protocol_factory: Callable[[], Receiver],
        *,
        on_full: Callable[[], None] | None = None,
        new_per_s: float = 0.0,
        weight: Callable[[str], float] = all_alike,
    ) -> "MemoryListener":
        """See ``Network.listen``; the host may be any valid name, and as many come as will."""
        if not is_host(address.host):
            raise AddressUnavailable(
                f"cannot listen on {address}: the name is not valid for a host"
            )
        if not address.port:
            address = Address(address.host, self._free_port(address.host))
        if address in self.listeners:
            raise AddressUnavailable(f"cannot listen on {address}: address already in use")
        listener = MemoryListener(self, address, protocol_factory, on_full)
        self.listeners[address] = listener
        return listener

    async def connect(
        self, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """See ``Network.connect``; comes from ``local_host``."""
        return await self.connect_from(self._local_host, address, protocol_factory)

    async def connect_from(
        self, host: str, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """Connect as ``host``; wait while the network is cut in either direction.

        Raises:
            Unreachable: No process listens at ``address``, or it was killed meanwhile.
        """
        await self._travel(host, address.host)
        listener = self.listeners.get(address)
        while listener is not None and listener.full and not listener.closed:
            await listener.wait_for_change()
        await self._travel(address.host, host)
        if listener is None or listener.closed or address in self._refused:
            refused = ConnectionRefusedError(f"nobody listens at {address}")
            raise Unreachable(f"cannot connect to {address}: nobody listens there") from refused
        here = Address(host, self._free_port(host))
        client = MemoryTransport(self, here, address, contextvars.copy_context())
        server = MemoryTransport(self, address, here, listener.context)
        client.peer, server.peer = server, client
        for transport in (server, client):
            self._transports[transport] = None
        server.accept(listener.protocol_factory)
        await asyncio.sleep(0)  # the listener runs first, unless its process is stopped
        if client.is_closing():
            raise Unreachable(f"cannot connect to {address}: its host was killed")
        protocol = protocol_factory()
        client.start(protocol)
        return client, protocol

    def open_stream(self, address: Address, deadline: float) -> "MemoryStream":
        """See ``Network.open_stream``; comes from ``local_host``."""
        return self.open_stream_from(self._local_host, address, deadline)

    def open_stream_from(self, host: str, address: Address, deadline: float) -> "MemoryStream":
        """Open a stream as ``host``.

        Raises:
            Unreachable: Nobody listens at ``address``, or the time is up.
        """
        listener = self.listeners.get(address)
        if listener is None:
            raise Unreachable(f"cannot connect to {address}: nobody listens there")
        loop = listener.loop
        connecting: LoopWork[tuple[asyncio.Transport, MemoryStream]] = LoopWork()
        try:
            loop.call_soon_threadsafe(
                connecting.begin, self.connect_from(host, address, lambda: MemoryStream(loop))
            )
            if not connecting.has_ended(seconds_left(deadline)):
                raise TimeoutError("no answer in time")
            _, stream = connecting.result()
        except BaseException as error:
            if connecting.give_up():
                loop.call_soon_threadsafe(connecting.cancel)
            if isinstance(error, TimeoutError):
                raise Unreachable(f"cannot connect to {address}: no answer in time") from None
            raise
        return stream

    def at(self, host: str) -> "MemoryHost":
        """Return the ``Network`` as ``host`` sees it."""
        return MemoryHost(self, host)

    # Faults -----------------------------------------------------------------------------------
    def cut(self, a: str, b: str) -> None:
        """Hold back all bytes between two hosts, in both directions, until ``heal``."""
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def cut_one_way(self, source: str, target: str) -> None:
        """Hold back all bytes from ``source`` to ``target`` until ``heal``."""
        self._cuts.add((source, target))

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """End the cuts between two hosts, or without arguments all cuts.

        The bytes that were held back are delivered in order.
        """
        if a is None or b is None:
            self._cuts.clear()
        else:
            self._cuts -= {(a, b), (b, a)}
        held, self._held = self._held, []
        for source, target, deliver in held:
            self.send_later(source, target, deliver)

    def refuse(self, address: Address) -> None:
        """Refuse connections to an address where somebody may listen, until ``accept``."""
        self._refused.add(address)

    def accept(self, address: Address) -> None:
        """Undo ``refuse``."""
        self._refused.discard(address)

    def listener(self, address: Address) -> "MemoryListener":
        """Return who listens at an address."""
        return self.listeners[address]

    def kill(self, host: str) -> None:
        """Kill ``host``: its listeners and connections end at once.

        Its own protocols get ``connection_lost``; the other ends see a reset after the latency.
        """
        for address, listener in list(self.listeners.items()):
            if address.host == host:
                listener.close()
        self.reset_connections(host)

    def reset_connections(self, host: str) -> None:
        """End every connection of ``host`` as ``kill`` does; the host may connect again."""
        for transport in list(self._transports):
            if transport.local.host == host:
                transport.reset()

    @property
    def connections(self) -> int:
        """The number of connections with an open end."""
        pairs = {frozenset((end.local, end.remote)) for end in self._transports}
        return len(pairs)

    # For listeners and transports -------------------------------------------------------------
    def send_later(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Call ``deliver`` when bytes sent now arrive; hold it back while the network is cut."""

        def arrive() -> None:
            if (source, target) in self._cuts:
                self._held.append((source, target, deliver))
            else:
                deliver()

        loop = asyncio.get_running_loop()
        delay = self.latency_s
        if self._rng is not None and self.jitter_s:
            delay += self._rng.uniform(0, self.jitter_s)
        if delay > 0:
            loop.call_later(delay, arrive, context=self._context)
        else:
            loop.call_soon(arrive, context=self._context)

    def chunk_bytes(self, available: int) -> int:
        """Return how many of the ``available`` bytes the next chunk has, in [1, available]."""
        most = min(available, CHUNK_BYTES_MAX)
        return most if self._rng is None or most < 2 else self._rng.randint(1, most)

    def forget_listener(self, listener: "MemoryListener") -> None:
        """Free the address of a listener."""
        if self.listeners.get(listener.address) is listener:
            del self.listeners[listener.address]

    def forget_transport(self, transport: "MemoryTransport") -> None:
        """Forget a closed end of a connection."""
        self._transports.pop(transport, None)

    async def _travel(self, source: str, target: str) -> None:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        self.send_later(source, target, arrive)
        await arrived

    def _free_port(self, host: str) -> int:
        while True:
            port = self._next_port
            self._next_port += 1
            if Address(host, port) not in self.listeners:
                return port


class MemoryHost:
    """The ``Network`` of one host; ``MemoryNetwork.at`` makes it."""

    def __init__(self, network: MemoryNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def listen(
        self,
        address: Address,
        protocol_factory: Callable[[], Receiver],
        *,
        on_full: Callable[[], None] | None = None,
        new_per_s: float = 0.0,
        weight: Callable[[str], float] = all_alike,
    ) -> "MemoryListener":
        """See ``Network.listen``; it listens on this host, whatever the address names."""
        return await self._network.listen(
            Address(self._host, address.port), protocol_factory, on_full=on_full
        )

    async def connect(
        self, address: Address, protocol_factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        """See ``Network.connect``."""
        return await self._network.connect_from(self._host, address, protocol_factory)

    def open_stream(self, address: Address, deadline: float) -> "MemoryStream":
        """See ``Network.open_stream``."""
        return self._network.open_stream_from(self._host, address, deadline)


class MemoryListener:
    """A listening address; ``MemoryNetwork.listen`` makes it."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: Address,
        protocol_factory: Callable[[], Receiver],
        on_full: Callable[[], None] | None,
    ) -> None:
        self._network = network
        self._address = address
        self._on_full = on_full
        self._changed = asyncio.Event()
        self.protocol_factory = protocol_factory
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.full = False

    @property
    def address(self) -> Address:
        """See ``Listener.address``."""
        return self._address

    @property
    def trouble(self) -> str:
        """See ``Listener.trouble``."""
        return "new connections wait: no file descriptor left" if self.full else ""

    def set_full(self, full: bool) -> None:
        """Simulate that the process has no descriptors for new connections, or has some again."""
        self.full = full
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self) -> None:
        """Wait for a change of ``full`` or ``closed``."""
        if self._on_full is not None:
            self._on_full()
        await self._changed.wait()

    def close(self) -> None:
        """See ``Listener.close``."""
        self.closed = True
        self._changed.set()
        self._network.forget_listener(self)

    async def wait_closed(self) -> None:
        """See ``Listener.wait_closed``."""
        await asyncio.sleep(0)


class MemoryTransport(asyncio.Transport):
    """One end of a connection.

    Bytes stay in ``_outgoing`` of the sender until the receiver's protocol gets them. So if the
    receiver pauses reading, the sender's write buffer grows, as with full sockets.
    """

    peer: "MemoryTransport"

    def __init__(
        self,
        network: MemoryNetwork,
        local: Address,
        remote: Address,
        context: contextvars.Context,
    ) -> None:
        super().__init__({"sockname": tuple(local), "peername": tuple(remote)})
        self.local = local
        self.remote = remote
        self._context = context
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BaseProtocol | None = None
        self._outgoing: deque[bytes] = deque()  # not arrived yet; _EOF is the last one
        self._outgoing_bytes = 0  # in _outgoing and in the peer's _arrived
        self._arrived: deque[bytes] = deque()  # waiting for this end's protocol
        self._delivering = False
        self._reading = True
        self._closing = False
        self._eof_sent = False
        self._lost = False
        self._writing_paused = False
        self._high = 64 * limits.KIB
        self._low = 16 * limits.KIB

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Give this end its protocol and call ``connection_made``."""
        self._protocol = protocol
        protocol.connection_made(self)

    def accept(self, protocol_factory: Callable[[], Receiver]) -> None:
        """Start this end in the context of the process that listens."""
        self._loop.call_soon(lambda: self.start(protocol_factory()), context=self._context)

    # asyncio.Transport ------------------------------------------------------------------------
    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio."""
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing

    def is_reading(self) -> bool:
        """See asyncio."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """See asyncio."""
        self._reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        if not self._reading and not self._closing:
            self._reading = True
            self._deliver_soon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio. The bytes are copied; bytes for a closed end are dropped."""
        if self._protocol is None:
            raise RuntimeError("cannot write after connection_lost")
        if self._closing:
            return
        if self._eof_sent:
            raise RuntimeError("cannot write after write_eof()")
        if data:
            self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        """See asyncio. The list is sent as one write."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return True

    def write_eof(self) -> None:
        """See asyncio."""
        if not self._eof_sent and not self._closing:
            self._eof_sent = True
            self._send(_EOF)

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self._outgoing_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """See asyncio."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        if high is None:
            high = 64 * limits.KIB if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"limits low = {low}, high = {high} are not 0 <= low <= high")
        self._low, self._high = low, high

    def close(self) -> None:
        """See asyncio: written bytes are still delivered, then the peer gets the end."""
        if not self._closing:
            if not self._eof_sent:
                self._send(_EOF)
            self._lose(None)

    def abort(self) -> None:
        """See asyncio: bytes under way are dropped, then the peer gets the end."""
        if not self._lost:
            self._drop_outgoing()
            self._send(_EOF)
            self._lose(None)

    def reset(self) -> None:
        """Close both ends at once, the other one with ``ConnectionResetError``."""
        if self._lost:
            return
        self._drop_outgoing()
        self._lose(ConnectionResetError("this host was killed"))
        error = ConnectionResetError("connection reset by peer")
        self._network.send_later(self.local.host, self.remote.host, lambda: self.peer._lose(error))

    # Inside -----------------------------------------------------------------------------------
    def _send(self, data: bytes) -> None:
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        self._network.send_later(self.local.host, self.remote.host, self._arrive)
        self._maybe_pause_writing()

    def _arrive(self) -> None:
        """Pass the oldest write to the peer; any timer may fire first, the order is kept."""
        if not self._outgoing:
            return  # dropped meanwhile
        data = self._outgoing.popleft()
        if not self.peer._lost:
            self.peer._arrived.append(data)
            self.peer._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivering and self._arrived and not self._lost:
            self._delivering = True
            self._loop.call_soon(self._deliver, context=self._context)

    def _deliver(self) -> None:
        """Give the protocol one chunk or the end; the next chunk follows in the next iteration."""
        self._delivering = False
        if self._closing or not self._reading or not self._arrived:
            return
        protocol = self._protocol
        assert isinstance(protocol, Receiver)
        try:
            if self._arrived[0] == _EOF:
                self._arrived.popleft()
                if not protocol.eof_received():
                    self.close()
            elif isinstance(protocol, FrameProtocol):
                buffer = protocol.get_buffer(-1)
                chunk = self._next_chunk(len(buffer))
                buffer[: len(chunk)] = chunk
                protocol.buffer_updated(len(chunk))
            else:
                protocol.data_received(self._next_chunk(CHUNK_BYTES_MAX))
        except Exception as error:  # noqa: BLE001 - a protocol's bug ends its connection alone
            self._loop.call_exception_handler(
                {
                    "message": "Fatal error: protocol callback failed.",
                    "exception": error,
                    "transport": self,
                    "protocol": protocol,
                }
            )
            self.abort()
        self._deliver_soon()

    def _next_chunk(self, most: int) -> bytes:
        """Return the next chunk, of so many bytes at most: several writes, or a part of one."""
        pieces = []
        size = 0
        while self._arrived and self._arrived[0] != _EOF and size < most:
            pieces.append(self._arrived.popleft())
            size += len(pieces[-1])
        data = b"".join(pieces)
        cut = self._network.chunk_bytes(min(size, most))
        if cut < size:
            self._arrived.appendleft(data[cut:])
        self.peer._taken(cut)
        return data[:cut]

    def _taken(self, size: int) -> None:
        self._outgoing_bytes -= size
        if self._writing_paused and self._outgoing_bytes <= self._low:
            self._loop.call_soon(self._maybe_resume_writing, context=self._context)

    def _maybe_pause_writing(self) -> None:
        if not self._writing_paused and self._outgoing_bytes > self._high:
            self._writing_paused = True
            if self._protocol is not None and not self._closing:
                self._protocol.pause_writing()

    def _maybe_resume_writing(self) -> None:
        if self._writing_paused and self._outgoing_bytes <= self._low:
            self._writing_paused = False
            if self._protocol is not None and not self._closing:
                self._protocol.resume_writing()

    def _drop_outgoing(self) -> None:
        self._outgoing_bytes -= sum(map(len, self._outgoing))
        self._outgoing.clear()

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._closing = self._lost = True
        self._arrived.clear()
        self._network.forget_transport(self)
        self._loop.call_soon(self._report_lost, error, context=self._context)

    def _report_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)
