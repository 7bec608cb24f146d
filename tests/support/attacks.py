"""Attacks on a broker: peers that only cost it, in a process of their own.

    python -m support.attacks NAME HOST PORT FILE [COUNT]

Each runs until it is killed, and writes into FILE what it has done so far. Nothing of it waits for
anybody's sake: a connection that is ended is opened again at once.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import random
import resource
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from vq import limits
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import Challenged, ClientConnection
from vq.remoting.format import FLAG_HESSIAN, MAGIC_VERSION, PREFIX, Command
from vq.remoting.frames import FrameParser
from vq.remoting.login import Login
from vq.security.scram import ITERATIONS_MIN
from vq.testing.waiting import block_until

MIB: Final = limits.MIB
TOPIC: Final = "healthy"
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close sends RST, and leaves no port
_TOLD_EVERY_S: Final = 0.2


# One connection of an attacker ------------------------------------------------------------------
@dataclasses.dataclass
class Tally:
    """What an attack has done."""

    connections: int = 0
    requests: int = 0
    mib: float = 0.0
    open: int = 0


class Peer(asyncio.Protocol):
    """A connection that an attack holds."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._received = bytearray()
        self._more = asyncio.Event()
        self._closed = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self.transport = transport
        self._tally.connections += 1
        self._tally.open += 1

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._received += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._tally.open -= 1
        self._closed = True
        self._more.set()

    def send(self, data: bytes) -> None:
        """Send bytes; they count as a request."""
        if self._closed:
            raise ConnectionError
        self.transport.write(data)
        self._tally.requests += 1
        self._tally.mib += len(data) / MIB

    def abort(self) -> None:
        """End the connection at once; one that has ended has no loop any more."""
        if not self._closed:
            self.transport.abort()

    async def answer(self) -> bytes:
        """Return what comes next.

        Raises:
            ConnectionError: The broker ended the connection.
        """
        await self._more.wait()
        if not self._received:
            raise ConnectionError
        data = bytes(self._received)
        self._received.clear()
        if not self._closed:
            self._more.clear()
        return data

    async def ended(self) -> None:
        """Wait until the broker ends the connection, whatever it says before."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self.answer()


async def hello(peer: Peer) -> ClientConnection:
    """Say HELLO as a client does, and wait until the connection is open."""
    connection = ClientConnection()
    peer.send(b"".join(connection.hello(client_id="attacker")))
    while not connection.receive_data(await peer.answer()):
        for each in connection.data_to_send():
            peer.send(bytes(each))
    return connection


def frame(
    command: int, header: bytes, body: bytes = b"", *, number: int = 1, flags: int = 0
) -> bytes:
    """Return a frame, whatever it has."""
    length = PREFIX.size - 4 + len(header) + len(body)
    fields = (length, MAGIC_VERSION, flags, command, 0, number, len(header))
    return PREFIX.pack(*fields) + header + body


# The attacks ------------------------------------------------------------------------------------
Script = Callable[[Peer, int], Awaitable[None]]


async def silent(peer: Peer, _number: int) -> None:
    """Say nothing."""
    await peer.ended()


async def slow_loris(peer: Peer, number: int) -> None:
    """Send HELLO a byte at a time; every other one says HELLO, and drips a frame then."""
    data = b"".join(ClientConnection().hello(client_id="attacker"))
    if number % 2:
        await hello(peer)
        data = frame(Command.PUT, bytes(1_000), bytes(MIB))
    for at in range(len(data)):
        peer.send(data[at : at + 1])
        await asyncio.sleep(1)


async def lengths(peer: Peer, number: int) -> None:
    """Announce 4 GiB; every other one does so after HELLO."""
    if number % 2:
        await hello(peer)
    peer.send(PREFIX.pack(2**32 - 1, MAGIC_VERSION, 0, Command.PUT, 0, 1, 2**32 - 1))
    await peer.ended()


async def large_frames(peer: Peer, _number: int) -> None:
    """Send nearly all of the largest frame, and nothing more."""
    await hello(peer)
    peer.send(_without_end())
    await peer.ended()


@functools.cache
def _without_end() -> bytes:
    """Made once: an attacker gives its time to what costs the broker."""
    return frame(Command.PUT, b"", bytes(limits.FRAME_BYTES_MAX - PREFIX.size))[:-1]


def hostile_headers() -> list[bytes]:
    """Return headers of 1 MiB, or of as much as fits, that nest, repeat or announce."""
    most = limits.FRAME_HEADER_BYTES_MAX - 100
    deep = b""
    for _ in range(90):  # protobuf's own bound of depth is 100
        deep = b"\xfa\x01" + _varint(len(deep)) + deep
    return [
        frame(Command.GET, (deep * (most // len(deep)))[:most]),
        frame(Command.GET, b"\xfa\x01\x00" * (most // 3)),
        frame(Command.GET, b"H" + b"\x79" * 60_000, flags=FLAG_HESSIAN),
        frame(Command.GET, b"H" + b"\x90\x90" * 30_000, flags=FLAG_HESSIAN),
        frame(Command.GET, b"H\x05topicZ" + b"R\xff\xff", flags=FLAG_HESSIAN),
        frame(Command.GET, b"H" + b"\x90\x90" * (most // 2), flags=FLAG_HESSIAN),
    ]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


async def header_bombs(peer: Peer, number: int) -> None:
    """Send headers that nest, repeat or announce much, one after the other."""
    await hello(peer)
    bombs = hostile_headers()
    while True:
        number += 1
        peer.send(bombs[number % len(bombs)])
        await peer.answer()


async def large_fetches(peer: Peer, number: int) -> None:
    """Fetch a thousand partitions of invented topics at once."""
    await hello(peer)
    rng = random.Random(number)
    session = 0
    while True:
        session += 1
        many = wire.FetchRequest(session=session)
        for each in range(limits.FETCH_PARTITIONS_PER_REQUEST_MAX):
            name = f"no-{rng.randbytes(9).hex()}"
            many.partitions.append(wire.FetchPartition(handle=each, topic=name, max_bytes=MIB))
        peer.send(frame(Command.FETCH, many.SerializeToString()))
        answers = FrameParser()
        while not answers.feed(await peer.answer()):
            pass


async def nonsense(peer: Peer, number: int) -> None:
    """Send bytes that are no frame."""
    rng = random.Random(number)
    peer.send(
        rng.choice(
            [
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                rng.randbytes(4_000),
                b"\x16\x03\x01" + bytes(99),
            ]
        )
    )
    await peer.ended()


async def answers_not_taken(peer: Peer, _number: int) -> None:
    """Ask for the largest answers, a thousand times, and take none."""
    await hello(peer)
    peer.transport.pause_reading()
    peer.send(_a_thousand_reads())
    await asyncio.sleep(5)


@functools.cache
def _a_thousand_reads() -> bytes:
    """Sent as one: a thousand sends take the attacker ten times what they take the broker."""
    asked = wire.GetRequest(topic=TOPIC, max_bytes=limits.FETCH_BYTES_MAX)
    header = asked.SerializeToString()
    numbers = range(1, limits.REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX + 1)
    return b"".join(frame(Command.GET, header, number=each) for each in numbers)


async def invented_topics(peer: Peer, number: int) -> None:
    """Name topics that nobody has, so that each is looked up in ZooKeeper."""
    await hello(peer)
    rng = random.Random(number)
    while True:
        asked = [wire.GetRequest(topic=f"no-{rng.randbytes(9).hex()}") for _ in range(150)]
        frames = enumerate(asked, 1)
        peer.send(b"".join(frame(11, each.SerializeToString(), number=n) for n, each in frames))
        answers, left = FrameParser(), len(asked)
        while left > 0:
            left -= len(answers.feed(await peer.answer()))


async def wrong_batches(peer: Peer, _number: int) -> None:
    """Send batches of the largest size whose checksum is wrong."""
    await hello(peer)
    asked = wire.PutRequest(topic=TOPIC, record_count=1, crc=1)
    sent = frame(Command.PUT, asked.SerializeToString(), bytes(limits.BATCH_BYTES_MAX))
    while True:
        peer.send(sent)
        await peer.answer()


async def wrong_passwords(peer: Peer, number: int) -> None:
    """Try passwords, each on a connection of its own."""
    login = _LOGINS.setdefault(number, Login("anna", "wrong"))
    connection, challenged = await _challenged(peer, login)
    keys = login.keys(challenged.salt, challenged.iterations)  # derived once
    peer.send(b"".join(connection.authenticate(keys)))
    await peer.ended()


async def cut_logins(peer: Peer, number: int) -> None:
    """Begin to log in, and leave when the broker has done its part."""
    await _challenged(peer, _LOGINS.setdefault(number, Login("anna", "wrong")))


async def _challenged(peer: Peer, login: Login) -> tuple[ClientConnection, Challenged]:
    connection = ClientConnection(login)
    peer.send(b"".join(connection.hello(client_id="attacker")))
    while True:
        for event in connection.receive_data(await peer.answer()):
            if isinstance(event, Challenged):
                return connection, event
            raise ConnectionError(event)


_LOGINS: Final[dict[int, Login]] = {}


async def handshakes(peer: Peer, _number: int) -> None:
    """Begin TLS, and leave when the broker has done its part."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        made.do_handshake()
    peer.send(outgoing.read())
    await peer.answer()


@dataclasses.dataclass(frozen=True)
class Attack:
    """One row.

    Attributes:
        script: What each connection does.
        count: Connections at a time, in the short form.
        many: In the long form.
        addresses: From how many addresses of this machine they come.
        memory_mib: By how much the broker may grow; what is more than the usual is a bound of its
            settings, all of which somebody who said HELLO may use.
        over_tls: It is for a broker with TLS.
    """

    script: Script
    count: int
    many: int
    addresses: int = 4
    memory_mib: int = 64
    over_tls: bool = False


ATTACKS: Final[Mapping[str, Attack]] = {
    "silent connections": Attack(silent, 500, 10_000, addresses=20),
    "slow-loris": Attack(slow_loris, 300, 300, addresses=3),
    "lengths of 4 GiB": Attack(lengths, 16, 16),
    "nonsense": Attack(nonsense, 16, 16),
    "frames that do not end": Attack(large_frames, 16, 64, addresses=4, memory_mib=64 + 256),
    "bombs in headers": Attack(header_bombs, 8, 8, memory_mib=128),
    "fetches of a thousand topics": Attack(large_fetches, 8, 8, memory_mib=64 + 256),
    "answers that nobody takes": Attack(answers_not_taken, 50, 50, memory_mib=64 + 128),
    "invented topics": Attack(invented_topics, 16, 16),
    "batches that are damaged": Attack(wrong_batches, 8, 8, memory_mib=64 + 256),
    "wrong passwords": Attack(wrong_passwords, 16, 16),
    "log-ins that are cut": Attack(cut_logins, 16, 16),
    "handshakes that are cut": Attack(handshakes, 16, 16, over_tls=True),
}


# The process ------------------------------------------------------------------------------------
async def _run(name: str, place: tuple[str, int], count: int, tally: Tally) -> None:
    attack, loop = ATTACKS[name], asyncio.get_running_loop()

    async def one(number: int) -> None:
        source = f"127.0.{1 + number % attack.addresses}.1"
        while True:
            peer = Peer(tally)
            sock = socket.socket()
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            try:
                sock.bind((source, 0))
                await loop.sock_connect(sock, place)
                await loop.create_connection(lambda peer=peer: peer, sock=sock)  # type: ignore[misc]
                await attack.script(peer, number)
            except Exception as error:  # whatever the broker says
                if os.environ.get("VQ_ATTACK_SHOWN"):
                    print(repr(error), file=sys.stderr)
                await asyncio.sleep(0)
            finally:
                if peer.transport is None:
                    sock.close()
                else:
                    peer.abort()

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))


async def _tell(file: Path, tally: Tally) -> None:
    aside = file.with_suffix(".aside")
    while True:
        aside.write_text(json.dumps(dataclasses.asdict(tally)))
        aside.replace(file)
        await asyncio.sleep(_TOLD_EVERY_S)


async def _main(name: str, host: str, port: str, file: str, count: str) -> None:
    tally = Tally()
    async with asyncio.TaskGroup() as group:
        group.create_task(_tell(Path(file), tally))
        group.create_task(_run(name, (host, int(port)), int(count), tally))


class Attacking:
    """An attack that goes on in another process.

    Attributes:
        did: What it has done until now.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def did(self) -> Tally:
        """What it has done until now."""
        return Tally(**json.loads(self._file.read_text())) if self._file.exists() else Tally()


@contextlib.contextmanager
def attacking(
    name: str, address: tuple[str, int], directory: Path, count: int
) -> Iterator[Attacking]:
    """Have an attack go on; it has begun when this is entered.

    It gives way to whoever else wants the processor: what it takes from clients is then what it has
    the broker do, and not what a machine of its own would do.
    """
    file = directory / f"did-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "support.attacks", name, address[0], str(address[1])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*command, str(file), str(count)], env=environ, preexec_fn=lambda: os.nice(19) and None
    ) as process:
        made = Attacking(file)
        try:
            block_until(lambda: made.did.connections >= min(count, 8), f"{name} did not begin")
            yield made
            assert process.poll() is None, f"{name} has ended by itself"
        finally:
            process.kill()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    assert ITERATIONS_MIN
    asyncio.run(_main(*sys.argv[1:6]))
