"""Every ``Network`` keeps the same promises: real TCP on both loops, TLS, and the twin in memory.

The twin also runs with a seeded generator that cuts writes at odd places and delays them.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

import pytest
import trustme
from support.certificates import write_tls

from vq.errors import AddressUnavailable, Unreachable
from vq.model import Address
from vq.remoting.frames import Frame, FrameParser, encode_frame
from vq.remoting.memory import MemoryNetwork
from vq.remoting.receiving import FrameProtocol
from vq.remoting.transport import Network, TcpNetwork, nobody_listens, tune
from vq.security.tls import TlsContexts
from vq.testing.waiting import WAIT_S

HERE = Address("127.0.0.1", 0)
E = TypeVar("E", bound="End | FrameEnd")


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> TlsContexts:
    """Those of both ends."""
    return TlsContexts(write_tls(tmp_path_factory.mktemp("tls"), trustme.CA()), serves=True)


@pytest.fixture(params=["tcp", "tls", "memory", "memory-shaken"])
def network(request: pytest.FixtureRequest, contexts: TlsContexts) -> Network:
    """One of the implementations."""
    if request.param == "tcp":
        return TcpNetwork()
    if request.param == "tls":
        return TcpNetwork(server_ssl=contexts.server, client_ssl=contexts.client)
    if request.param == "memory":
        return MemoryNetwork()
    return MemoryNetwork(latency_s=0.0005, jitter_s=0.002, rng=random.Random(1))


@dataclass(eq=False)
class End(asyncio.Protocol):
    """A protocol that remembers what happened to it, and lets a test wait for more."""

    log: list[str] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)
    chunks: list[bytes] = field(default_factory=list)
    writing: bool = True
    lost: bool = False
    error: Exception | None = None
    failure: Exception | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    transport: asyncio.Transport = field(init=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        tune(transport)
        self._note("made")

    def data_received(self, data: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.received += data
        self.chunks.append(data)
        self._note("data")

    def eof_received(self) -> bool:
        self._note("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost, self.error = True, exc
        self._note("lost")

    def pause_writing(self) -> None:
        self.writing = False
        self._note("pause")

    def resume_writing(self) -> None:
        self.writing = True
        self._note("resume")

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is looked at after every event of this end."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _note(self, what: str) -> None:
        self.log.append(what)
        self._changed.set()


class FrameEnd(FrameProtocol):
    """One that cuts frames, and reads no more for a moment behind each large one."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.lost = False
        self.bodies: list[bytes] = []
        self.in_rooms = 0
        self.parser = FrameParser()
        self._changed = asyncio.Event()

    transport: asyncio.Transport
    until, _note = End.until, End._note

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._note("made")

    def data_received(self, data: bytes) -> None:
        self._take(self.parser.feed(data))

    def room_filled(self, size: int) -> None:
        self.in_rooms += size
        self._take(self.parser.filled(size))

    def _take(self, frames: list[Frame]) -> None:
        self.bodies += [each.body for each in frames]
        if any(len(each.body) > 100_000 for each in frames):
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)
        self._note("data")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._note("lost")


@asynccontextmanager
async def pair(network: Network, kind: type[E] = End) -> AsyncIterator[tuple[E, E]]:
    """A client's end and a server's end of one connection."""
    ends: list[E] = []

    def serve() -> E:
        ends.append(kind())
        return ends[-1]

    listener = await network.listen(HERE, serve)
    _, client = await network.connect(listener.address, kind)
    listener.close()
    try:
        async with asyncio.timeout(WAIT_S):
            while not ends or not ends[0].log:
                await asyncio.sleep(0)
        yield client, ends[0]
    finally:
        for end in (client, *ends):
            if not end.lost:  # asyncio's TLS transport of Python 3.11.2 has nothing to abort then
                end.transport.abort()
            await end.until(lambda end=end: end.lost)  # type: ignore[misc]
        await listener.wait_closed()


async def test_a_free_port_is_found_and_named(network: Network) -> None:
    """Port 0 becomes a real one, to which one can connect."""
    listener = await network.listen(HERE, End)
    assert listener.address.host == "127.0.0.1"
    assert 0 < listener.address.port < 65536
    listener.close()
    await listener.wait_closed()


async def test_a_taken_port_is_refused_with_its_address(network: Network) -> None:
    """The error names the address and says what to do."""
    listener = await network.listen(HERE, End)
    with pytest.raises(AddressUnavailable, match=str(listener.address.port)) as caught:
        await network.listen(listener.address, End)
    assert "another port" in caught.value.hint
    listener.close()
    await listener.wait_closed()


@pytest.mark.parametrize("host", ["a..b", "", "x" * 64, "a\0b", ".", "zw\udc80lf"])
async def test_a_host_that_none_can_be_is_unreachable(network: Network, host: str) -> None:
    """Never a raw UnicodeError or ValueError: routes and settings may hold any text."""
    with pytest.raises(Unreachable):
        await network.connect(Address(host, 8123), End)
    with pytest.raises(AddressUnavailable):
        await network.listen(Address(host, 0), End)


async def test_a_closed_listener_frees_its_address(network: Network) -> None:
    """After ``wait_closed`` the port can be taken again, and nobody is reached meanwhile."""
    listener = await network.listen(HERE, End)
    listener.close()
    listener.close()
    await listener.wait_closed()
    with pytest.raises(Unreachable, match=str(listener.address.port)) as raised:
        await network.connect(listener.address, End)
    assert type(raised.value) is Unreachable, "programs know this name"
    assert nobody_listens(raised.value)
    again = await network.listen(listener.address, End)
    assert again.address == listener.address
    again.close()
    await again.wait_closed()


async def test_a_connection_survives_its_listener(network: Network) -> None:
    """``close`` of a listener ends no connection."""
    async with pair(network) as (client, server):
        client.transport.write(b"still here")
        await server.until(lambda: server.received == b"still here")


async def test_bytes_arrive_once_and_in_order(network: Network) -> None:
    """Both directions at once, in writes of very different size."""
    numbers = random.Random(7)
    there = [numbers.randbytes(numbers.choice([1, 20, 500, 70_000])) for _ in range(200)]
    back = [numbers.randbytes(numbers.choice([1, 20, 500, 70_000])) for _ in range(200)]
    async with pair(network) as (client, server):
        for a, b in zip(there, back, strict=True):
            client.transport.writelines([a[:7], memoryview(a)[7:]])
            server.transport.write(b)
        await server.until(lambda: len(server.received) == sum(map(len, there)))
        await client.until(lambda: len(client.received) == sum(map(len, back)))
        assert server.received == b"".join(there)
        assert client.received == b"".join(back)
        assert all(type(chunk) is bytes for chunk in server.chunks)


async def test_large_bodies_arrive_among_small_ones(network: Network) -> None:
    """In their rooms where a transport writes there, with a pause behind each; every byte once."""
    sizes = (0, 10, 70_000, 5, 1_000_000, 262_144, 1, 300_000, 0)
    bodies = [(bytes(range(251)) * (size // 251 + 1))[:size] for size in sizes]
    async with pair(network, FrameEnd) as (client, server):
        for at, body in enumerate(bodies):
            head = encode_frame(10, 0, at, 0, b"head", len(body))
            client.transport.writelines([head, body])
        await server.until(lambda: len(server.bodies) == len(bodies))
        assert server.bodies == bodies
        encrypted = server.transport.get_extra_info("sslcontext") is not None
        assert (server.in_rooms > 0) is not encrypted


async def test_a_buffer_may_be_changed_after_it_was_written(network: Network) -> None:
    """What is sent is what the buffer held at the time of the write."""
    async with pair(network) as (client, server):
        buffer = bytearray(b"x" * 100)
        client.transport.write(buffer)
        buffer[:] = b"y" * 100
        await server.until(lambda: len(server.received) == 100)
        assert server.received == b"x" * 100


async def test_close_delivers_what_was_written_then_ends_both(network: Network) -> None:
    """The peer sees all bytes, then the end; both get ``connection_lost`` once, without error."""
    async with pair(network) as (client, server):
        client.transport.write(b"z" * 100_000)
        client.transport.close()
        client.transport.close()
        assert client.transport.is_closing()
        await server.until(lambda: server.lost)
        await client.until(lambda: client.lost)
        assert len(server.received) == 100_000
        assert server.log[-2:] == ["eof", "lost"]
        assert (client.error, server.error) == (None, None)
        assert client.log.count("lost") == server.log.count("lost") == 1
        assert not client.chunks


async def test_what_is_written_after_close_is_dropped(network: Network) -> None:
    """Between ``close`` and ``connection_lost`` a late answer does no harm."""
    async with pair(network) as (client, server):
        client.transport.write(b"kept")
        client.transport.close()
        client.transport.write(b"dropped")
        await server.until(lambda: server.lost)
        assert server.received == b"kept"


async def test_abort_ends_both(network: Network) -> None:
    """The own end at once, the other one as soon as it is told."""
    async with pair(network) as (client, server):
        client.transport.abort()
        await client.until(lambda: client.lost)
        await server.until(lambda: server.lost)


async def test_a_reader_that_pauses_holds_the_writer_back(network: Network) -> None:
    """``pause_reading`` stops data; the writer is told to pause, and to go on afterwards."""
    async with pair(network) as (client, server):
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        sent = 0
        async with asyncio.timeout(WAIT_S):
            while client.writing:
                client.transport.write(b"p" * 256 * 1024)
                sent += 256 * 1024
                await asyncio.sleep(0)
        assert not server.received
        assert client.transport.get_write_buffer_size() > 0
        server.transport.resume_reading()
        await server.until(lambda: len(server.received) == sent)
        await client.until(lambda: client.writing)


async def test_ends_know_their_addresses(network: Network) -> None:
    """``peername`` of one end is ``sockname`` of the other."""
    async with pair(network) as (client, server):
        peer = client.transport.get_extra_info("peername")
        assert tuple(peer[:2]) == tuple(server.transport.get_extra_info("sockname")[:2])
        peer = server.transport.get_extra_info("peername")
        assert tuple(peer[:2]) == tuple(client.transport.get_extra_info("sockname")[:2])


async def test_a_protocol_that_fails_ends_only_its_connection(network: Network) -> None:
    """An exception out of ``data_received`` is reported to the loop and closes that connection."""
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    async with pair(network) as (client, server), pair(network) as (other, other_server):
        server.failure = ZeroDivisionError("a bug of this protocol")
        client.transport.write(b"boom")
        await client.until(lambda: client.lost)
        await server.until(lambda: server.lost)
        other.transport.write(b"unharmed")
        await other_server.until(lambda: other_server.received == b"unharmed")
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]


async def test_many_connections_at_once(network: Network) -> None:
    """A hundred clients get their own bytes back."""

    class Echo(End):
        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    listener = await network.listen(HERE, Echo)
    async with asyncio.timeout(WAIT_S):
        clients = [(await network.connect(listener.address, End))[1] for _ in range(100)]
    for number, client in enumerate(clients):
        client.transport.write(b"%d;" % number * 50)
    for number, client in enumerate(clients):
        expected = b"%d;" % number * 50
        await client.until(lambda c=client, e=expected: c.received == e)  # type: ignore[misc]
        client.transport.close()
        await client.until(lambda c=client: c.lost)  # type: ignore[misc]
    listener.close()
    await listener.wait_closed()


# Streams for threads ----------------------------------------------------------------------------
@asynccontextmanager
async def listening(network: Network) -> AsyncIterator[tuple[Address, list[End]]]:
    """An address that takes connections, and the ends it has made; all is closed afterwards."""
    ends: list[End] = []

    def make() -> End:
        ends.append(End())
        return ends[-1]

    listener = await network.listen(HERE, make)
    try:
        yield listener.address, ends
    finally:
        listener.close()
        await listener.wait_closed()
        for end in ends:
            end.transport.abort()
            await end.until(lambda end=end: end.lost)


def soon(seconds: float = WAIT_S) -> float:
    return time.monotonic() + seconds


async def test_a_thread_sends_and_receives(network: Network) -> None:
    async with listening(network) as (address, ends):
        stream = await asyncio.to_thread(network.open_stream, address, soon())
        await asyncio.to_thread(stream.send, b"question", soon())
        await ends[0].until(lambda: bytes(ends[0].received) == b"question")
        ends[0].transport.write(b"answer")
        received = b""
        while len(received) < 6:
            received += await asyncio.to_thread(stream.receive, soon(1e300))
        assert received == b"answer"
        stream.close()
        await ends[0].until(lambda: ends[0].lost)


async def test_a_stream_to_nobody_is_unreachable(network: Network) -> None:
    for address in (Address("127.0.0.1", 1), Address("no host", 1)):
        with pytest.raises(Unreachable, match=str(address)):
            await asyncio.to_thread(network.open_stream, address, soon())


async def test_a_stream_ends_with_its_peer(network: Network) -> None:
    async with listening(network) as (address, ends):
        stream = await asyncio.to_thread(network.open_stream, address, soon())
        await asyncio.to_thread(stream.send, b"x", soon())
        await ends[0].until(lambda: bool(ends[0].received))
        ends[0].transport.write(b"last")
        ends[0].transport.close()
        received = [await asyncio.to_thread(stream.receive, soon())]
        while received[-1]:
            received.append(await asyncio.to_thread(stream.receive, soon()))
        assert b"".join(received) == b"last"
        assert await asyncio.to_thread(stream.receive, soon()) == b""
        with pytest.raises(OSError):  # noqa: PT012 - a socket may take the first bytes
            while True:
                await asyncio.to_thread(stream.send, b"x", soon())
        stream.close()


async def test_a_stream_waits_no_longer_than_its_deadline(network: Network) -> None:
    async with listening(network) as (address, _):
        stream = await asyncio.to_thread(network.open_stream, address, soon())
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(stream.receive, soon(0.05))
        assert 0.04 < time.monotonic() - begin < WAIT_S
        for call in (lambda: stream.receive(soon(-1)), lambda: stream.send(b"x", soon(-1))):
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(call)
        with pytest.raises((Unreachable, TimeoutError)):
            await asyncio.to_thread(network.open_stream, address, soon(-1))
        stream.close()


async def test_another_thread_may_interrupt_a_stream(network: Network) -> None:
    async with listening(network) as (address, _):
        stream = await asyncio.to_thread(network.open_stream, address, soon())
        waiting = asyncio.create_task(asyncio.to_thread(stream.receive, soon()))
        await asyncio.sleep(0)
        stream.interrupt()
        assert await waiting == b""
        stream.close()
