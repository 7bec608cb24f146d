"""TLS over a plain transport, with both ends in memory: records, pauses, ends."""

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.certificates import write_ca, write_tls

from vq.remoting.tls_transport import TlsTransport
from vq.security.tls import ClientCertificates, TlsContexts

RECORD = 16 << 10
HEADER = 5


class Plain(asyncio.Transport):
    """A plain transport that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.ended = ""
        self.reading = True

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.sent += map(bytes, list_of_data)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def taken(self) -> bytes:
        """Return what was sent since the last call."""
        data = b"".join(self.sent)
        self.sent.clear()
        return data


class App(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.made = False
        self.data = b""
        self.calls = 0
        self.eof = False
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made = True

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.calls += 1

    def eof_received(self) -> None:
        self.eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


@dataclass
class End:
    """One end of a connection."""

    tls: TlsTransport
    app: App
    plain: Plain = field(default_factory=Plain)

    def feed(self, data: bytes) -> None:
        """Let it receive bytes, as a loop does."""
        while data:
            buffer = self.tls.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.tls.buffer_updated(size)
            data = data[size:]


def pair(tmp_path: Path, **server: Any) -> tuple[End, End]:
    """Two ends that have not begun."""
    ca = trustme.CA()
    serves = TlsContexts(write_tls(tmp_path, ca), serves=True, **server)
    trusts = TlsContexts(write_ca(tmp_path, ca))
    here, there = App(), App()
    return (
        End(TlsTransport(here, serves.server(), server_side=True), here),
        End(TlsTransport(there, trusts.client(), server_hostname="localhost"), there),
    )


def exchange(one: End, other: End) -> None:
    """Carry bytes both ways until there are none."""
    while True:
        there, back = one.plain.taken(), other.plain.taken()
        if not there and not back:
            return
        other.feed(there)
        one.feed(back)


def opened(tmp_path: Path, **server: Any) -> tuple[End, End]:
    one, other = pair(tmp_path, **server)
    one.tls.connection_made(one.plain)
    other.tls.connection_made(other.plain)
    exchange(one, other)
    return one, other


def records(data: bytes) -> list[int]:
    """Return the lengths of TLS records."""
    found = []
    while data:
        length = int.from_bytes(data[3:HEADER])
        found.append(length)
        data = data[HEADER + length :]
    return found


async def test_bytes_come_in_order_and_small_ones_share_a_record(tmp_path: Path) -> None:
    broker, client = opened(tmp_path)
    assert broker.app.made
    assert client.app.made
    await broker.tls.opened
    broker.tls.writelines([b"head", b"", b"body" * 10])
    sent = broker.plain.taken()
    assert len(records(sent)) == 1
    client.feed(sent)
    assert (client.app.data, client.app.calls) == (b"head" + b"body" * 10, 1)

    large = bytes(range(256)) * 4_000
    broker.tls.writelines([b"head", large, b"tail", b"tail"])
    broker.tls.write(b"end")
    sent = broker.plain.taken()
    assert len(records(sent)) == 1 + -(-len(large) // RECORD) + 1 + 1
    client.app.data = b""
    client.feed(sent)
    assert client.app.data == b"head" + large + b"tailtail" + b"end"


async def test_a_paused_end_is_handed_nothing_and_goes_on_later(tmp_path: Path) -> None:
    broker, client = opened(tmp_path)
    client.tls.pause_reading()
    assert not client.plain.reading
    broker.tls.write(b"x" * 100_000)
    client.feed(broker.plain.taken())
    assert not client.app.calls
    client.tls.resume_reading()
    assert client.plain.reading
    await asyncio.sleep(0)
    assert len(client.app.data) == 100_000


async def test_an_end_that_closes_tells_the_other_one(tmp_path: Path) -> None:
    """What was written before comes first; what is written later is dropped."""
    broker, client = opened(tmp_path)
    broker.tls.write(b"last")
    broker.tls.close()
    assert broker.tls.is_closing()
    broker.tls.write(b"dropped")
    assert broker.plain.ended == "closed"
    client.feed(broker.plain.taken())
    assert (client.app.data, client.app.eof, client.plain.ended) == (b"last", True, "closed")
    for end in (broker, client):
        end.tls.connection_lost(None)
        assert end.app.lost == [None]
        with pytest.raises(RuntimeError):
            end.tls.write(b"x")


async def test_bytes_that_are_no_record_end_the_connection(tmp_path: Path) -> None:
    broker, _ = opened(tmp_path)
    broker.feed(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert broker.plain.ended == "closed"
    broker.tls.connection_lost(None)
    (error,) = broker.app.lost
    assert isinstance(error, ssl.SSLError)


async def test_whoever_is_refused_is_told_why(tmp_path: Path) -> None:
    """The alert is sent, and the protocol of the server never hears of the connection."""
    required = ClientCertificates.REQUIRED
    broker, client = opened(tmp_path, client_certificates=required)
    broker.tls.connection_lost(None)
    with pytest.raises(ssl.SSLError):
        await broker.tls.opened
    assert not broker.app.made
    assert not broker.app.lost
    client.tls.connection_lost(None)  # TLS 1.3: its own handshake was over before
    (error,) = client.app.lost
    assert "CERTIFICATE_REQUIRED" in str(error).upper().replace(" ", "_")


async def test_an_end_in_the_middle_of_a_handshake_is_an_error(tmp_path: Path) -> None:
    _, client = pair(tmp_path)
    client.tls.connection_made(client.plain)
    client.tls.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await client.tls.opened
    assert not client.app.lost
