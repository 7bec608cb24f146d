"""What TLS between clients and brokers refuses, and what it says; on both loops."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn
from support.certificates import LONG_AGO, write_ca, write_tls
from support.recording_relay import recording_relay
from support.roles import new_role

from vq.broker.base.config import ConnectionLimits
from vq.broker.connections.server import Server
from vq.broker.standing.gate import Gate
from vq.clock import SystemClock
from vq.errors import VqError
from vq.gateway.quiet_server import QuietServer
from vq.model import Address
from vq.remoting.blocking_connection import BlockingConnection
from vq.remoting.broker_connection import BrokerConnection, connect
from vq.remoting.connection import RequestId
from vq.remoting.format import Command
from vq.remoting.hello import ServerIdentity
from vq.remoting.http import HttpServer, text_page
from vq.remoting.transport import TcpNetwork
from vq.remoting.wire_pb2 import PingRequest, PingResponse
from vq.security.tls import ClientCertificates, Tls, TlsContexts
from vq.testing.waiting import WAIT_S, until
from vq.turn import Turn

ANY_PORT = Address("127.0.0.1", 0)
SECRET = b"nobody on the wire may read this"
REQUIRED = ClientCertificates.REQUIRED


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@dataclass
class Served:
    """A broker's server that listens."""

    server: Server
    address: Address
    contexts: TlsContexts | None


@contextlib.asynccontextmanager
async def serving(
    tls: Tls | None,
    *,
    asked: ClientCertificates = ClientCertificates.NONE,
    plain_too: bool = False,
) -> AsyncIterator[Served]:
    """The connections of a broker, which answers PING with what it was sent, and a secret."""
    loop = asyncio.get_running_loop()
    server = Server(
        ConnectionLimits(),
        turn=Turn(loop.call_soon),
        clock=SystemClock(),
        gate=Gate(ServerIdentity(cluster="c", group="b1", node="n1"), new_role()),
    )

    def answer(session: Any, request_id: RequestId, _header: Any, body: bytes) -> None:
        session.reply(request_id, PingResponse(wall_ms=7), body + SECRET)

    contexts = None if tls is None else TlsContexts(tls, client_certificates=asked, serves=True)
    source = None if contexts is None else contexts.server
    network = TcpNetwork(server_ssl=source, plain_too=plain_too)
    await server.listen(network, ANY_PORT, answer)
    try:
        yield Served(server, server.address, contexts)
    finally:
        server.stop_listening()
        for session in list(server.sessions):
            session.abort()
        await until(lambda: not server.sessions)


def network_of(tls: Tls | None) -> TcpNetwork:
    return TcpNetwork() if tls is None else TcpNetwork(client_ssl=TlsContexts(tls).client)


async def connected(address: Address, tls: Tls | None) -> BrokerConnection:
    return await connect(
        network_of(tls),
        address,
        client_id="c",
        cluster="c",
        timeout=WAIT_S,
        on_close=lambda _: None,
    )


async def refusals(address: Address, tls: Tls | None) -> list[str]:
    """Return what a client on the loop and one that blocks are told."""
    found = []
    with pytest.raises(VqError) as refused:
        await connected(address, tls)
    found.append(str(refused.value))
    blocking = BlockingConnection(
        network_of(tls), address, client_id="c", cluster="c", timeout=WAIT_S
    )
    with pytest.raises(VqError) as refused:
        await asyncio.to_thread(
            blocking.exchange, Command.PING, PingRequest().SerializeToString(), b"", WAIT_S
        )
    found.append(str(refused.value))
    return found


async def echo(connection: BrokerConnection, body: bytes) -> bytes:
    _, answer = await connection.request(Command.PING, PingRequest(), body, timeout=WAIT_S)
    return answer


class Raw(asyncio.Protocol):
    """A connection that says nothing."""

    def __init__(self) -> None:
        self.lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


@contextlib.asynccontextmanager
async def raw(network: TcpNetwork, address: Address) -> AsyncIterator[asyncio.Transport]:
    """A connection of a client that says nothing."""
    transport, protocol = await network.connect(address, Raw)
    try:
        yield transport
    finally:
        transport.abort()
        await until(lambda: protocol.lost)


def said(found: Sequence[str], *words: str) -> bool:
    return all(word in each for each in found for word in words)


async def test_a_client_refuses_a_broker_that_it_cannot_trust(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """Another authority, an expired certificate, one for another name: each says what to do."""
    client = write_ca(tmp_path, ca)
    for name, tls, words in (
        ("other-ca", write_tls(tmp_path / "1", trustme.CA()), ("not signed by", "tls_ca")),
        ("expired", write_tls(tmp_path / "2", ca, expires=LONG_AGO), ("expired", "renew")),
        ("name", write_tls(tmp_path / "3", ca, "b1.example"), ("another name", "127.0.0.1")),
    ):
        async with serving(tls) as served:
            found = await refusals(served.address, client)
            assert said(found, str(served.address), *words), (name, found)
            await until(lambda served=served: served.server.failed_handshakes == 2)  # type: ignore[misc]
            assert served.server.admission.silent == 0


async def test_a_broker_refuses_a_client_without_the_right_certificate(
    tmp_path: Path, ca: trustme.CA
) -> None:
    tls = write_tls(tmp_path / "broker", ca)
    for name, client, words in (
        ("none", write_ca(tmp_path, ca), ("client certificate", "tls_certificate")),
        ("other", write_tls(tmp_path / "1", trustme.CA(), trusts=ca), ("certificate",)),
        ("old", write_tls(tmp_path / "2", ca, expires=LONG_AGO), ("certificate",)),
    ):
        async with serving(tls, asked=REQUIRED) as served:
            found = await refusals(served.address, client)
            assert said(found, *words), (name, found)
            assert served.server.requests_waiting == 0
    async with serving(tls, asked=REQUIRED) as served:
        connection = await connected(served.address, write_tls(tmp_path / "4", ca, "client"))
        assert await echo(connection, b"x") == b"x" + SECRET
        connection.close()


def before_1_2(kind: int) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.deprecated_call():
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


async def test_tls_before_1_2_is_refused_by_both_ends(tmp_path: Path, ca: trustme.CA) -> None:
    tls = write_tls(tmp_path, ca)
    old = before_1_2(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(str(tls.ca))
    async with serving(tls) as served:
        with pytest.raises(VqError, match="cannot connect"):
            await TcpNetwork(client_ssl=lambda: old).connect(served.address, asyncio.Protocol)
        await until(lambda: served.server.failed_handshakes == 1)
    server = before_1_2(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(str(tls.certificate), str(tls.key))
    listener = await TcpNetwork(server_ssl=lambda: server).listen(ANY_PORT, asyncio.Protocol)
    assert said(await refusals(listener.address, tls), "cannot connect")
    listener.close()


async def test_tls_1_3_is_used_where_both_ends_have_it(tmp_path: Path, ca: trustme.CA) -> None:
    tls = write_tls(tmp_path, ca)
    async with serving(tls) as served, raw(network_of(tls), served.address) as transport:
        assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"


async def test_a_plain_client_and_a_tls_broker_are_told_of_each_other(
    tmp_path: Path, ca: trustme.CA
) -> None:
    tls = write_tls(tmp_path, ca)
    async with serving(tls) as served:
        assert said(await refusals(served.address, None), "if it serves TLS", "--tls-ca")
        await until(lambda: served.server.failed_handshakes == 2)


async def test_a_tls_client_and_a_plain_broker_are_told_of_each_other(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    tls = write_tls(tmp_path, ca)
    async with serving(None) as served:
        assert said(await refusals(served.address, tls), "does not seem to speak TLS")
        await until(lambda: not served.server.sessions)
        served.server.sweep()
    assert "the other end speaks TLS" in caplog.text


async def test_a_broker_may_serve_both_at_one_port(
    tmp_path: Path, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that says nothing counts as a silent one, and is cut in time."""
    tls = write_tls(tmp_path, ca)
    async with serving(tls, plain_too=True) as served:
        for used in (None, tls):
            connection = await connected(served.address, used)
            assert await echo(connection, b"x") == b"x" + SECRET
            [session] = served.server.sessions
            assert session.encrypted is (used is not None)
            connection.close()
            await until(lambda: not served.server.sessions)
        monkeypatch.setattr("vq.remoting.tls_transport.TLS_HANDSHAKE_TIMEOUT_S", 0.1)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*served.address)
            await until(lambda: served.server.admission.silent == 1)
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            writer.close()
            await until(lambda: not served.server.sessions)
        _, gone = await asyncio.open_connection(*served.address)
        gone.close()
        await until(lambda: not served.server.sessions)
        assert served.server.admission.silent == 0


async def test_nothing_of_what_is_sent_can_be_read_on_the_wire(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """Without TLS a listener has it, which proves that the relay sees all."""
    tls = write_tls(tmp_path, ca)
    for encrypted in (False, True):
        used = tls if encrypted else None
        async with serving(used) as served, recording_relay(served.address) as relay:
            connection = await connected(relay.address, used)
            assert await echo(connection, b"a body") == b"a body" + SECRET
            blocking = BlockingConnection(
                network_of(used), relay.address, client_id="c", cluster="c", timeout=WAIT_S
            )
            header = PingRequest().SerializeToString()
            frame = await asyncio.to_thread(
                blocking.exchange, Command.PING, header, b"a body", WAIT_S
            )
            assert frame.body == b"a body" + SECRET
            # What a thread sends after another one has interrupted it stays secret, too.
            blocking.interrupt()
            with pytest.raises(OSError):
                await asyncio.to_thread(
                    blocking.exchange, Command.PING, header, b"late body", WAIT_S
                )
            connection.close()
        seen = bytes(relay.captured)
        assert [each in seen for each in (SECRET, b"a body")] == [not encrypted] * 2
        assert b"late body" not in seen
        assert len(seen) > 2 * len(SECRET)


async def test_a_reload_drops_no_connection(tmp_path: Path, ca: trustme.CA) -> None:
    """An open connection goes on; a new one gets the new certificate. Bad files change nothing."""
    tls = write_tls(tmp_path, ca)
    client = write_ca(tmp_path, ca)
    async with serving(tls) as served:
        assert served.contexts is not None
        first = await connected(served.address, client)
        write_tls(tmp_path, ca, "other.example", "127.0.0.1")
        Path(str(tls.key)).write_bytes(b"half of a ke")
        assert not served.contexts.look()
        second = await connected(served.address, client)
        write_tls(tmp_path, ca, "other.example", "127.0.0.1")
        assert served.contexts.look()
        async with raw(network_of(client), served.address) as transport:
            names = transport.get_extra_info("peercert")["subjectAltName"]
            assert ("DNS", "other.example") in names
        for connection in (first, second):
            assert await echo(connection, b"still here") == b"still here" + SECRET
            connection.close()


async def test_a_client_reads_its_files_again_by_itself(
    tmp_path: Path, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next connection trusts the new authority."""
    monkeypatch.setattr("vq.security.tls.LOOK_S", 0.0)
    other = trustme.CA()
    client = write_ca(tmp_path, other)
    network = network_of(client)
    async with serving(write_tls(tmp_path / "broker", ca)) as served:
        with pytest.raises(VqError, match="not signed"):
            await network.connect(served.address, asyncio.Protocol)
        write_ca(tmp_path, ca)
        async with raw(network, served.address):
            pass


async def test_a_large_answer_comes_whole(tmp_path: Path, ca: trustme.CA) -> None:
    """In many slices, to a client that reads slowly, with others between."""
    tls = write_tls(tmp_path, ca)
    body = bytes(range(256)) * 16_384  # 4 MiB
    async with serving(tls) as served:
        connection = await connected(served.address, tls)
        answers = await asyncio.gather(*(echo(connection, body[: 1 << n]) for n in (22, 3, 21)))
        assert answers == [body[: 1 << n] + SECRET for n in (22, 3, 21)]
        connection.close()


async def test_the_metrics_of_a_broker_are_read_over_tls(tmp_path: Path, ca: trustme.CA) -> None:
    tls = write_tls(tmp_path, ca)
    contexts = TlsContexts(tls, serves=True)

    async def page() -> Any:
        return text_page(200, "up 1")

    http = HttpServer({"/metrics": page})
    await http.listen(TcpNetwork(server_ssl=contexts.server), ANY_PORT)
    assert http.address is not None
    reader, writer = await asyncio.open_connection(*http.address, ssl=contexts.client())
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (await reader.read()).endswith(b"up 1\n")
    writer.close()
    silent, unspoken = await asyncio.open_connection(*http.address)
    await until(lambda: len(http.connections) == 1)  # a handshake counts
    await http.close()
    await until(lambda: not http.connections)
    assert await silent.read() == b""
    unspoken.close()


async def test_a_handshake_that_does_not_end_is_cut(
    tmp_path: Path, ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the listener's own time-out, and by that of a client whose broker says nothing."""
    monkeypatch.setattr("vq.remoting.tls_transport.TLS_HANDSHAKE_TIMEOUT_S", 0.1)
    tls = write_tls(tmp_path, ca)
    async with serving(tls) as served:
        reader, writer = await asyncio.open_connection(*served.address)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        await until(lambda: not served.server.sessions)
        writer.close()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = Address("127.0.0.1", mute.sockets[0].getsockname()[1])
    with pytest.raises(VqError, match="handshake"):
        await network_of(tls).connect(address, asyncio.Protocol)
    with pytest.raises(VqError, match=str(address)):
        await asyncio.to_thread(network_of(tls).open_stream, address, time.monotonic() + WAIT_S)
    mute.close()
    await mute.wait_closed()


async def test_an_http_server_has_tls_with_new_files_and_asks_for_certificates(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """The server of the gateway and of the console; the application sees HTTPS."""
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for what in ("startup", "shutdown"):
                assert (await receive())["type"] == f"lifespan.{what}"
                await send({"type": f"lifespan.{what}.complete"})
            seen.append("ended")
            return
        seen.append(scope["scheme"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    tls = write_tls(tmp_path / "server", ca)
    contexts = TlsContexts(tls, serves=True, client_certificates=REQUIRED)
    client = TlsContexts(write_tls(tmp_path / "client", ca, "anna")).client()
    server = QuietServer(
        uvicorn.Config(application, port=0, log_config=None, lifespan="on"), contexts
    )
    serving = asyncio.ensure_future(server.serve())
    await until(lambda: server.started)
    address = server.servers[0].sockets[0].getsockname()

    async def ask(context: ssl.SSLContext) -> bytes:
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        try:
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            names.append(writer.get_extra_info("peercert")["subjectAltName"])
            return await reader.read()
        finally:
            writer.transport.abort()

    names: list[Any] = []
    assert b"hello" in await ask(client)
    refused = TlsContexts(write_ca(tmp_path, ca)).client()
    with contextlib.suppress(OSError):
        assert await ask(refused) == b""
    write_tls(tmp_path / "server", ca, "new.example", "127.0.0.1")
    server.look_at_files()
    await until(lambda: contexts.reloads == 1)
    assert b"hello" in await ask(client)
    assert ("DNS", "new.example") in names[-1]
    server.should_exit = True
    await serving
    assert seen == ["https", "https", "ended"]
