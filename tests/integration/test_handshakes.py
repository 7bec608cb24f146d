"""TLS handshakes that do not get on: they are silent connections, and are bounded like these."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from support.roles import new_role

from vq.broker.base.config import ConnectionLimits
from vq.broker.connections.server import ENDED_COST, Server
from vq.broker.standing.gate import Gate
from vq.clock import SystemClock
from vq.model import Address
from vq.remoting.hello import ServerIdentity
from vq.remoting.transport import ACCEPT_BURST_S, HANDSHAKE_COST, TcpNetwork
from vq.testing.waiting import until
from vq.turn import Turn

SILENT_MAX = 8


@asynccontextmanager
async def serving(**bounds: float) -> AsyncIterator[tuple[Server, Address]]:
    """A broker's server behind TLS. It needs no certificate: no handshake comes so far."""
    loop = asyncio.get_running_loop()
    server = Server(
        ConnectionLimits(before_hello_max=SILENT_MAX, **bounds),
        turn=Turn(loop.call_soon),
        clock=SystemClock(),
        gate=Gate(ServerIdentity(cluster="c", group="b1", node="n1"), new_role()),
    )
    network = TcpNetwork(server_ssl=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    listener = await network.listen(Address("127.0.0.1", 0), server.new_session)
    try:
        yield server, listener.address
    finally:
        listener.close()
        for session in list(server.sessions):
            session.abort()
        await until(lambda: not server.sessions)


@contextmanager
def silent(address: Address, count: int) -> Iterator[list[socket.socket]]:
    peers = [socket.create_connection(address) for _ in range(count)]
    for peer in peers:
        peer.setblocking(False)
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()


def is_closed(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_handshakes_are_counted_as_silent_connections() -> None:
    """At the bound the oldest are ended; those that fail leave nothing behind."""
    async with serving() as (server, address):
        with silent(address, 3 * SILENT_MAX) as peers:
            await until(lambda: sum(map(is_closed, peers)) == 2 * SILENT_MAX)
            assert [is_closed(peer) for peer in peers] == [True] * 16 + [False] * 8
            await until(lambda: len(server.sessions) == SILENT_MAX)
            assert server.admission.silent == SILENT_MAX
            peers[-1].send(b"this is no handshake\r\n")
            await until(lambda: len(server.sessions) == SILENT_MAX - 1)
        await until(lambda: not server.sessions)
        assert server.admission.silent == 0


async def test_a_handshake_that_takes_too_long_is_ended() -> None:
    async with serving(hello_timeout_s=0.05) as (server, address):
        with silent(address, 3) as peers:
            await until(lambda: len(server.sessions) == 3)
            await asyncio.sleep(0.1)
            server.sweep()
            await until(lambda: all(map(is_closed, peers)))
        await until(lambda: not server.sessions)


async def test_connections_beyond_the_pace_wait_and_get_in_later() -> None:
    """More than come in a second at the pace: open connections are served meanwhile."""
    loop = asyncio.get_running_loop()
    per_s, count = 20.0, 100
    rows = ((None, 1.0, 1.0), (_no_context, HANDSHAKE_COST, 1.0), (None, 4.0, 4.0))
    for server_ssl, cost, weight in rows:
        network = TcpNetwork(server_ssl=server_ssl)
        started: list[float] = []

        def make(started: list[float] = started) -> asyncio.Protocol:
            started.append(loop.time())
            return asyncio.Protocol()

        begun = loop.time()
        listener = await network.listen(
            Address("127.0.0.1", 0), make, new_per_s=per_s, weight={"127.0.0.1": weight}.__getitem__
        )
        at_once = per_s * ACCEPT_BURST_S / cost
        with silent(listener.address, count) as peers:
            await until(lambda started=started, most=at_once: len(started) > most)
            assert len(started) <= at_once + per_s * (loop.time() - begun) / cost + 2
            assert len(peers) == count
        listener.close()


async def test_who_cuts_handshakes_has_new_connections_that_count_for_more() -> None:
    """So those who only cost the broker time have less of it, whatever they open anew."""
    async with serving(hello_timeout_s=60.0) as (server, address):
        cut = 0
        while not server.owes_much("127.0.0.1"):
            with silent(address, 4):
                await until(lambda: server.sessions)
            cut += 4
            await until(lambda cut=cut: server.failed_handshakes == cut)
        assert server.debts.of("127.0.0.1", server.now()) <= cut * ENDED_COST


def _no_context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
