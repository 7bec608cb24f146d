"""The connection of a thread that waits, against peers that break every rule."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.threads import in_thread

from vq.errors import ProtocolError, ShuttingDown, Unreachable
from vq.model import Address
from vq.remoting.blocking_connection import BlockingConnection
from vq.remoting.connection import Opened, Request, ServerConnection
from vq.remoting.format import Command
from vq.remoting.hello import ServerIdentity
from vq.remoting.messages import decode_reply
from vq.remoting.ports import free_port
from vq.remoting.transport import TcpNetwork
from vq.remoting.wire_pb2 import PingRequest, PingResponse
from vq.testing.waiting import WAIT_S

PING = PingRequest().SerializeToString()


class Session:
    """The broker's end of one connection, in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.connection = ServerConnection(
            ServerIdentity(cluster="test", group="b1", node="n1"), requests_max=4
        )

    def hello(self) -> None:
        """Take HELLO and answer it."""
        while not any(isinstance(event, Opened) for event in self.events()):
            pass
        self.send(self.connection.data_to_send())

    def requests(self, count: int) -> list[Request]:
        """Take so many requests."""
        found: list[Request] = []
        while len(found) < count:
            found += [event for event in self.events() if isinstance(event, Request)]
        return found

    def events(self) -> list[object]:
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError
        return list(self.connection.receive_data(data))

    def send(self, buffers: object) -> None:
        self.sock.sendall(b"".join(bytes(each) for each in buffers))  # type: ignore[attr-defined]

    def reply(self, request: Request, body: bytes = b"") -> None:
        self.send(self.connection.reply(request.request_id, PingResponse(), body))


@contextmanager
def peer(*scripts: Callable[[Session], None]) -> Iterator[Address]:
    """A listener that plays one script per connection, and closes it at the script's end."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        for script in scripts:
            sock, _ = listener.accept()
            sock.settimeout(10)
            with sock:
                try:
                    script(Session(sock))
                except ConnectionError:
                    pass

    try:
        with in_thread(serve):
            yield Address(*listener.getsockname())
    finally:
        listener.close()


@contextmanager
def connection_to(address: Address, *, timeout: float = 5.0) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(
        TcpNetwork(), address, client_id="c", cluster="test", timeout=timeout
    )
    try:
        yield connection
    finally:
        connection.close()


def ask(connection: BlockingConnection, *, timeout: float = 5.0) -> bytes:
    frame = connection.exchange(Command.PING, PING, b"", timeout)
    decode_reply(frame)
    return bytes(frame.body)


def usual(session: Session) -> None:
    """Answer one request at a time until the peer goes."""
    session.hello()
    while True:
        (request,) = session.requests(1)
        session.reply(request, b"usual")


def test_one_connection_serves_many_exchanges() -> None:
    with peer(usual) as address, connection_to(address) as connection:
        assert [ask(connection) for _ in range(3)] == [b"usual"] * 3


def test_answers_in_pieces_are_put_together() -> None:
    def script(session: Session) -> None:
        session.hello()
        (request,) = session.requests(1)
        data = b"".join(
            bytes(each)
            for each in session.connection.reply(request.request_id, PingResponse(), b"xy")
        )
        for at in range(len(data)):
            session.sock.sendall(data[at : at + 1])
            time.sleep(0.001)

    with peer(script) as address, connection_to(address) as connection:
        assert ask(connection) == b"xy"


def test_nobody_listens() -> None:
    with (
        connection_to(Address("127.0.0.1", free_port())) as connection,
        pytest.raises(Unreachable, match="cannot connect"),
    ):
        ask(connection)


@pytest.mark.parametrize(
    "script",
    [
        lambda session: None,
        lambda session: session.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10),
        lambda session: session.sock.recv(1 << 16),
    ],
)
def test_a_peer_that_does_not_say_hello_leaves_no_doubt(script: Callable[[Session], None]) -> None:
    """Nothing was sent but HELLO. The next exchange connects anew."""
    with peer(script, usual) as address, connection_to(address) as connection:
        with pytest.raises(Unreachable):
            ask(connection)
        assert ask(connection) == b"usual"


def test_a_broker_of_another_cluster_says_so() -> None:
    def script(session: Session) -> None:
        session.events()
        session.send(session.connection.data_to_send())

    with peer(script) as address:
        connection = BlockingConnection(
            TcpNetwork(), address, client_id="c", cluster="other", timeout=5.0
        )
        with pytest.raises(Unreachable, match="belongs to cluster 'test'"):
            ask(connection)


def test_a_peer_that_goes_away_in_between_ends_the_exchange() -> None:
    def script(session: Session) -> None:
        session.hello()
        session.requests(1)

    with peer(script, usual) as address, connection_to(address) as connection:
        with pytest.raises(OSError):
            ask(connection)
        assert ask(connection) == b"usual"


def test_a_broker_that_stops_ends_the_exchange_with_what_it_says() -> None:
    """Not as Unreachable: the requests were sent, and may have been carried out."""

    def script(session: Session) -> None:
        session.hello()
        session.requests(1)
        session.connection.refuse(ShuttingDown("broker b1/n1 is stopping"))
        session.send(session.connection.data_to_send())

    with peer(script, usual) as address, connection_to(address) as connection:
        with pytest.raises(ShuttingDown):
            ask(connection)
        assert ask(connection) == b"usual"


def test_damage_ends_the_exchange() -> None:
    def script(session: Session) -> None:
        session.hello()
        session.requests(1)
        session.sock.sendall(b"\xff" * 100)

    with peer(script, usual) as address, connection_to(address) as connection:
        with pytest.raises(ProtocolError):
            ask(connection)
        assert ask(connection) == b"usual"


# Time ---------------------------------------------------------------------------------------------
def _silent(session: Session) -> None:
    session.hello()
    session.requests(1)
    with pytest.raises(ConnectionError):
        session.requests(1)


def _silent_before_hello(session: Session) -> None:
    session.events()
    with pytest.raises(ConnectionError):
        session.events()


def _drop_by_drop(session: Session) -> None:
    """A frame that never ends, a byte now and then: each wait is short, all together are not."""
    session.hello()
    (request,) = session.requests(1)
    data = b"".join(
        bytes(each)
        for each in session.connection.reply(request.request_id, PingResponse(), b"x" * 999)
    )
    for at in range(len(data)):
        session.sock.sendall(data[at : at + 1])
        time.sleep(0.05)


@pytest.mark.parametrize("script", [_silent, _silent_before_hello, _drop_by_drop])
def test_one_deadline_bounds_all_of_it(script: Callable[[Session], None]) -> None:
    with peer(script, usual) as address, connection_to(address) as connection:
        begin = time.monotonic()
        with pytest.raises((TimeoutError, Unreachable)):
            ask(connection, timeout=0.2)
        assert 0.15 < time.monotonic() - begin < WAIT_S, "a byte every 50 ms would take 50 s"
        assert ask(connection) == b"usual"


def test_connecting_has_a_bound_of_its_own() -> None:
    with peer(_silent_before_hello) as address, connection_to(address, timeout=0.1) as connection:
        begin = time.monotonic()
        with pytest.raises(Unreachable):
            ask(connection, timeout=60)
        assert time.monotonic() - begin < WAIT_S


def test_no_time_left_asks_nobody() -> None:
    with connection_to(Address("127.0.0.1", free_port())) as connection:
        for timeout in (0.0, -5.0):
            with pytest.raises(Unreachable, match="in time"):
                ask(connection, timeout=timeout)


def test_an_endless_time_out_is_as_good_as_a_long_one() -> None:
    with peer(usual) as address, connection_to(address, timeout=1e300) as connection:
        assert ask(connection, timeout=1e300) == b"usual"


def test_another_thread_may_interrupt_an_exchange() -> None:
    asked = threading.Event()

    def script(session: Session) -> None:
        session.hello()
        session.requests(1)
        asked.set()
        with pytest.raises(ConnectionError):
            session.requests(1)

    with peer(script) as address, connection_to(address) as connection:
        connection.interrupt()
        with in_thread(lambda: ask(connection, timeout=20)) as exchange:
            assert asked.wait(WAIT_S)
            connection.interrupt()
            assert isinstance(exchange.exception(WAIT_S), OSError)
