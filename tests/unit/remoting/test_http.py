"""The HTTP server: it answers GET and nothing else, and nobody can hold it up."""

import asyncio

import pytest
from support.http import http_get, http_peer

from vq.model import Address
from vq.remoting import http as http_module
from vq.remoting.http import CONNECTIONS_MAX, REQUEST_BYTES_MAX, HttpServer, Page, text_page
from vq.remoting.memory import MemoryNetwork
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

HERE = Address("broker", 8124)


async def _hello() -> Page:
    return text_page(200, "hello")


async def _wrong() -> Page:
    raise RuntimeError("broken")


@pytest.fixture
async def server():
    network = MemoryNetwork()
    made = HttpServer({"/hello": _hello, "/wrong": _wrong})
    made.network = network
    await made.listen(network, HERE)
    yield made
    await made.close()
    assert not made.connections


async def test_a_get_is_answered_and_the_connection_closed(server) -> None:
    answer = await http_get(server.network, HERE, "/hello?x=1")
    assert (answer.status, answer.text) == (200, "hello\n")
    assert answer.headers["Connection"] == "close"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert not server.connections


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /hello HTTP/1.1\r\n\r\n", 405),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", 404),
        (b"hello\r\n\r\n", 400),
        (b"GET /hello HTTP/2\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"GET /" + b"x" * REQUEST_BYTES_MAX, 431),
        (b"GET /hello HTTP/1.1\r\nA: " + b"x" * REQUEST_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET /wrong HTTP/1.1\r\n\r\n", 500),
    ],
)
async def test_what_is_no_get_of_a_page_is_told_so(server, request_: bytes, status: int) -> None:
    peer = await http_peer(server.network, HERE)
    peer.transport.write(request_)
    assert (await peer.answer()).status == status


async def test_a_request_may_come_byte_by_byte(server) -> None:
    peer = await http_peer(server.network, HERE)
    for byte in b"GET /hello HTTP/1.0\r\nHost: x\r\n\r\n":
        peer.transport.write(bytes([byte]))
        await asyncio.sleep(0)
    assert (await peer.answer()).text == "hello\n"


async def test_half_requests_do_not_keep_anybody_out(server) -> None:
    """For each one more the oldest of them is ended, and told why."""
    peers = [await http_peer(server.network, HERE) for _ in range(CONNECTIONS_MAX)]
    peers[0].transport.write(b"GET /hello HT")
    for _ in range(3):
        assert (await http_get(server.network, HERE, "/hello")).status == 200
    assert (await peers[0].answer()).status == 503
    peers[-1].transport.write(b"GET /hello HTTP/1.1\r\n\r\n")
    assert (await peers[-1].answer()).status == 200


async def test_one_more_than_can_be_answered_is_refused(server) -> None:
    """Nobody is cut off while its page is being made."""
    held = asyncio.Event()

    async def slow() -> Page:
        await held.wait()
        return text_page(200, "slow")

    server.routes["/slow"] = slow
    peers = [await http_peer(server.network, HERE) for _ in range(CONNECTIONS_MAX)]
    for peer in peers:
        peer.transport.write(b"GET /slow HTTP/1.1\r\n\r\n")
    await until(lambda: all(each.answering for each in server.connections))
    assert (await http_get(server.network, HERE, "/hello")).status == 503
    held.set()
    for peer in peers:
        assert (await peer.answer()).status == 200


async def test_who_sends_no_whole_request_in_time_is_cut(server) -> None:
    peer = await http_peer(server.network, HERE)
    peer.transport.write(b"GET /hello HTTP/1.1\r\n")
    await asyncio.sleep(http_module.REQUEST_TIMEOUT_S * 1.5)
    await until(peer.ended.is_set)
    assert peer.received == b""


async def test_close_ends_what_is_being_answered() -> None:
    network, held = MemoryNetwork(), asyncio.Event()

    async def waits() -> Page:
        await held.wait()
        return text_page(200, "late")

    server = HttpServer({"/": waits})
    await server.listen(network, HERE)
    peer = await http_peer(network, HERE)
    peer.transport.write(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: server.connections)
    await server.close()
    await until(peer.ended.is_set)
    assert peer.received == b""
