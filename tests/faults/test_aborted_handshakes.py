"""Handshakes that are cut, in every way that a peer can: nothing of them stays, on both loops.

uvloop and asyncio have each leaked the buffers of such connections (a quarter of a MiB each).
"""

import asyncio
import contextlib
import gc
import os
import resource
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
import uvloop
from support.certificates import write_tls
from support.roles import new_role

from vq.broker.base.config import ConnectionLimits
from vq.broker.connections.server import Server
from vq.broker.standing.gate import Gate
from vq.clock import SystemClock
from vq.model import Address
from vq.remoting.hello import ServerIdentity
from vq.remoting.transport import TcpNetwork
from vq.security.tls import ClientCertificates, TlsContexts
from vq.testing.waiting import until
from vq.turn import Turn

LONG = os.environ.get("VQ_LONG") == "1"
#: 100,000 in the long form.
ROUNDS = 2_000 if LONG else 6
AT_ONCE = 50
#: What the process may grow by: up to a level, 50 connections with their buffers and what Python's
#: allocator keeps of them. Without the buffers freed the long form would need 25 GiB, the short
#: one 75 MiB; with asyncio's loop the level is as high, so there the objects are counted.
GROWTH_BYTES = (160 if LONG else 48) * 1024 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close sends RST


def client_hello(name: str) -> tuple[ssl.SSLObject, ssl.MemoryBIO, bytes]:
    """The first bytes of a client, and what goes on with them."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it trusts nobody
    made = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        made.do_handshake()
    return made, incoming, outgoing.read()


async def aborted(address: Address, kind: int) -> None:
    """One connection that ends in its handshake."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        await loop.sock_connect(sock, tuple(address))
        made, incoming, hello = client_hello("127.0.0.1")
        if kind == 1:
            await loop.sock_sendall(sock, b"GET / HTTP/1.1\r\n\r\n")
        elif kind == 2:
            await loop.sock_sendall(sock, hello[: len(hello) // 2])
        elif kind >= 3:
            await loop.sock_sendall(sock, hello)
            incoming.write(await loop.sock_recv(sock, 65_536))
        if kind == 4:  # it does not trust the certificate, and says so
            with contextlib.suppress(ssl.SSLError):
                made.do_handshake()
            await loop.sock_sendall(sock, b"\x15\x03\x03\x00\x02\x02\x30")
    except ConnectionError:
        pass  # the listener was first
    finally:
        sock.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def alive() -> int:
    """How many TLS connections there are; uvloop's are not seen by the collector."""
    return sum(isinstance(each, ssl.SSLObject) for each in gc.get_objects())


async def scenario(contexts: TlsContexts) -> tuple[int, int]:
    """Return by how much the process has grown, and how many connections are alive."""
    loop = asyncio.get_running_loop()
    server = Server(
        ConnectionLimits(before_hello_max=AT_ONCE, before_hello_per_address_max=AT_ONCE),
        turn=Turn(loop.call_soon),
        clock=SystemClock(),
        gate=Gate(ServerIdentity(cluster="c", group="b1", node="n1"), new_role()),
    )
    network = TcpNetwork(server_ssl=contexts.server)
    listener = await network.listen(Address("127.0.0.1", 0), server.new_session)

    async def rounds(count: int) -> None:
        for number in range(count):
            await asyncio.gather(
                *(aborted(listener.address, (number + each) % 5) for each in range(AT_ONCE))
            )
            await until(lambda: not server.sessions)

    await rounds(3)
    gc.collect()
    before = resident_bytes()
    await rounds(ROUNDS)
    assert server.admission.silent == 0
    assert server.failed_handshakes == (3 + ROUNDS) * AT_ONCE
    listener.close()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    return resident_bytes() - before, alive()


@pytest.mark.slow
@pytest.mark.timeout(1_800 if LONG else 120)
@pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_aborted_handshakes_leave_nothing_in_memory(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    contexts = TlsContexts(
        write_tls(tmp_path, trustme.CA()),
        serves=True,
        client_certificates=ClientCertificates.REQUIRED,
    )
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        grown, left = runner.run(scenario(contexts))
    assert left == 0
    assert grown < GROWTH_BYTES or not (LONG or loop_factory is uvloop.new_event_loop)
