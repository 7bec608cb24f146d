"""What bounds the time of a thread that waits; tests with real peers are in tests/integration."""

import contextlib
import itertools
import os
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.interrupts import Interrupted, Interrupter
from support.threads import spawn

from vq.errors import NotAuthenticated, Unreachable
from vq.model import Address
from vq.remoting.blocking_connection import BlockingConnection
from vq.remoting.connection import Request, ServerConnection
from vq.remoting.format import FLAG_DELAY, Command
from vq.remoting.hello import KnownPeer, ServerIdentity, UserCheck
from vq.remoting.login import Login
from vq.remoting.membership import Principal
from vq.remoting.messages import decode_reply, encode_delay
from vq.remoting.wire_pb2 import HelloRequest, PingRequest, PingResponse
from vq.security.scram import MECHANISM, ScramUser, ServerFirst, derive
from vq.testing.waiting import WAIT_S


class NobodyThere:
    """A network that only says until when somebody waited."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []

    def open_stream(self, address: Address, deadline: float) -> Any:
        self.deadlines.append(deadline)
        raise Unreachable(f"cannot connect to {address}")


@pytest.mark.parametrize(("connect_s", "exchange_s"), [(1e3, 1e6), (1e6, 1e3)])
def test_connecting_has_a_bound_of_its_own_and_that_of_the_message(
    connect_s: float, exchange_s: float
) -> None:
    network: Any = NobodyThere()
    connection = BlockingConnection(
        network, Address("b", 1), client_id="c", cluster="c", timeout=connect_s
    )
    begin = time.monotonic()
    with pytest.raises(Unreachable):
        connection.exchange(Command.PUT, b"", b"", exchange_s)
    assert begin + 1e3 <= network.deadlines[0] <= time.monotonic() + 1e3


class Broker:
    """A network with a broker behind it that numbers its answers to PING from 1 on.

    ``interrupt``: raised once, by a thread that waits for the answer to a PING.
    ``delay_s``: for how long answers tell that the quota of the user is used up.
    """

    def __init__(self, interrupt: BaseException | None, delay_s: float = 0.0) -> None:
        self.interrupt = interrupt
        self.delay_s = delay_s
        self.pings = 0
        self.sent: list[bytes] = []

    def open_stream(self, address: Address, deadline: float) -> Any:
        return Stream(self)


class Stream:
    """One connection to ``Broker``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server = ServerConnection(ServerIdentity(cluster="c", group="b1", node="n1"))
        self._out = b""

    def send(self, data: bytes, deadline: float) -> None:
        self._broker.sent.append(data)
        for event in self._server.receive_data(data):
            if isinstance(event, Request):
                self._broker.pings += 1
                answer, request_id = PingResponse(wall_ms=self._broker.pings), event.request_id
                if self._broker.delay_s:
                    answer.MergeFromString(encode_delay(self._broker.delay_s))
                    request_id = request_id._replace(flags=FLAG_DELAY)
                self._out += b"".join(map(bytes, self._server.reply(request_id, answer)))
        self._out += b"".join(map(bytes, self._server.data_to_send()))

    def receive(self, deadline: float) -> bytes:
        interrupt = self._broker.interrupt
        if interrupt is not None and self._broker.pings:
            self._broker.interrupt = None
            raise interrupt
        out, self._out = self._out, b""
        return out

    def close(self) -> None:
        pass

    interrupt = close


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), TimeoutError(), MemoryError()])
def test_an_exchange_that_was_interrupted_leaves_its_answer_to_nobody(
    interrupt: BaseException,
) -> None:
    """The next one must not take it for its own: it would acknowledge what is not stored."""
    network: Any = Broker(interrupt)
    connection = BlockingConnection(
        network, Address("b", 1), client_id="c", cluster="c", timeout=1e3
    )
    ping = PingRequest().SerializeToString()
    with pytest.raises(type(interrupt)):
        connection.exchange(Command.PING, ping, b"", 1e3)
    assert decode_reply(connection.exchange(Command.PING, ping, b"", 1e3)).wall_ms == 2


@pytest.mark.parametrize("size", [1, 64 << 10])
def test_a_large_body_is_sent_as_it_is_and_a_small_one_with_its_header(size: int) -> None:
    """A copy of a large one would cost more than a system call."""
    network: Any = Broker(None)
    connection = BlockingConnection(
        network, Address("b", 1), client_id="c", cluster="c", timeout=1e3
    )
    body = bytes(size)
    connection.exchange(Command.PING, PingRequest().SerializeToString(), body, 1e3)
    assert any(each is body for each in network.sent) == (size > 1)
    assert len(network.sent) == 2 + (size > 1)  # the first is HELLO


def test_a_thread_waits_as_an_answer_tells_and_no_longer_than_its_time() -> None:
    """The quota of the user is used up."""
    broker: Any = Broker(None, delay_s=0.05)
    connection = BlockingConnection(
        broker, Address("b", 1), client_id="c", cluster="c", timeout=1e3
    )
    ping = PingRequest().SerializeToString()
    connection.exchange(Command.PING, ping, b"", 1e3)
    begun = time.monotonic()
    broker.delay_s = 3.0
    connection.exchange(Command.PING, ping, b"", 1e3)
    assert time.monotonic() - begun >= 0.05
    with pytest.raises(Unreachable, match=r"the user's quota is used up for \d"):
        connection.exchange(Command.PING, ping, b"", 0.1)
    assert broker.pings == 2


def test_a_thread_that_waits_for_a_quota_is_interrupted() -> None:
    """A producer that closes does not wait for it."""
    broker: Any = Broker(None, delay_s=4.0)
    connection = BlockingConnection(
        broker, Address("b", 1), client_id="c", cluster="c", timeout=1e3
    )
    ping = PingRequest().SerializeToString()
    connection.exchange(Command.PING, ping, b"", 1e3)
    begun = time.monotonic()
    threading.Timer(0.02, connection.interrupt).start()
    with pytest.raises(Unreachable):
        connection.exchange(Command.PING, ping, b"", 1e3)
    assert time.monotonic() - begun < 2


def test_a_request_that_the_connection_does_not_take_was_not_sent() -> None:
    """Such as one beyond the largest frame that the broker takes: its outcome is certain."""
    connection = BlockingConnection(
        cast("Any", NobodyThere()), Address("b", 1), client_id="c", cluster="c", timeout=1.0
    )
    stream = cast("Any", SimpleNamespace(close=lambda: None))  # nothing can be sent on it
    connection._stream = stream
    with pytest.raises(Unreachable, match="not sent to b:1: the connection is"):
        connection.exchange(Command.PUT, b"", b"", 1.0)


def test_an_answer_to_an_earlier_exchange_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler raised again just when the connection was to be closed."""
    network: Any = Broker(TimeoutError())
    connection = BlockingConnection(
        network, Address("b", 1), client_id="c", cluster="c", timeout=1e3
    )

    def interrupted() -> None:
        raise KeyboardInterrupt

    ping = PingRequest().SerializeToString()
    with monkeypatch.context() as signals:
        signals.setattr(connection, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.exchange(Command.PING, ping, b"", 1e3)
    assert decode_reply(connection.exchange(Command.PING, ping, b"", 1e3)).wall_ms == 2


# Users --------------------------------------------------------------------------------------------
class Asking(Stream):
    """A connection to a broker that knows one user, ``anna``."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        identity = ServerIdentity(cluster="c", group="b1", node="n1")
        self._server = ServerConnection(identity, authenticate=asks, mechanisms=[MECHANISM])


class Asked:
    """An exchange with ``anna``, whose password is ``secret``."""

    def __init__(self, hello: HelloRequest) -> None:
        keys = derive("secret", b"s" * 16, 4_096).secret
        user = ScramUser(b"s" * 16, 4_096, (keys,))
        self._step = ServerFirst(hello.credentials).challenge(user, b"c" * 32, "5" * 36)
        self.challenge = self._step.message

    def finish(self, data: bytes) -> tuple[KnownPeer, bytes]:
        secret, answer = self._step.finish(data)
        return KnownPeer(Principal("", "", proved=False, user="anna"), secret), answer


def asks(hello: HelloRequest) -> UserCheck | None:
    return Asked(hello) if hello.mechanism else None


def blocking(login: Login) -> BlockingConnection:
    broker: Any = Broker(KeyboardInterrupt())
    broker.interrupt = None
    broker.open_stream = lambda _address, _deadline: Asking(broker)
    return BlockingConnection(
        broker, Address("b", 1), client_id="c", cluster="c", timeout=1e3, login=login
    )


def test_a_thread_proves_its_password_by_itself() -> None:
    """And the keys are kept for the next connection."""
    login = Login("anna", "secret")
    for _ in range(2):
        connection = blocking(login)
        frame = connection.exchange(Command.PING, PingRequest().SerializeToString(), b"", 1e3)
        assert cast("PingResponse", decode_reply(frame)).wall_ms == 1
    assert login.known_keys(b"s" * 16, 4_096) is not None


@pytest.mark.parametrize("login", [Login("anna", "wrong"), Login(), Login("anna")])
def test_a_thread_that_is_not_taken_sends_nothing(login: Login) -> None:
    """The loop connects for the same messages, and tells their senders why."""
    with pytest.raises(Unreachable) as refusal:
        blocking(login).exchange(Command.PUT, b"", b"", 1e3)
    assert isinstance(refusal.value.__cause__, NotAuthenticated)


def test_an_interrupt_anywhere_in_the_wait_for_a_quota_keeps_no_loop_from_ending_it() -> None:
    """The loop shares no condition with the thread: one that is left locked would stop it."""
    ping = PingRequest().SerializeToString()
    for place in itertools.count():
        broker: Any = Broker(None, delay_s=0.005)
        connection = BlockingConnection(
            broker, Address("b", 1), client_id="c", cluster="c", timeout=1e3
        )
        connection.exchange(Command.PING, ping, b"", 1e3)
        interrupter = Interrupter(
            place, "remoting/blocking_connection.py", "vq/waits.py", f"{os.sep}threading.py"
        )
        with contextlib.suppress(Interrupted):
            interrupter.run(
                lambda connection=connection: connection.exchange(Command.PING, ping, b"", 1e3)
            )
        spawn(connection.interrupt).result(WAIT_S)
        if not interrupter.reached:
            break
    assert place > 10
