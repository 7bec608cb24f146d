"""One connection to a scripted peer: requests, replies, refusals, damage, silence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from vq.client import future as futures
from vq.errors import (
    Busy,
    ConnectionCut,
    InvalidRequest,
    TimedOut,
    Unreachable,
    VqError,
)
from vq.model import Address
from vq.remoting import broker_connection as connections
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.connection import Closing, Opened, Request, ServerConnection
from vq.remoting.format import FLAG_DELAY, Command
from vq.remoting.frames import Frame, encode_frame
from vq.remoting.hello import ServerIdentity
from vq.remoting.memory import MemoryNetwork
from vq.remoting.messages import encode_delay
from vq.remoting.wire_pb2 import PingRequest, PingResponse
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

ADDRESS = Address("broker", 7000)


class Peer(asyncio.Protocol):
    """A broker whose every answer is up to the test."""

    def __init__(self, cluster: str = "test", requests_max: int = 100) -> None:
        identity = ServerIdentity(cluster=cluster, group="b1", node="n1")
        self.connection = ServerConnection(identity, requests_max=requests_max)
        self.transport: Any = None
        self.requests: list[Request] = []
        self.hello: Any = None
        self.gone = False
        self.answers_hello = True
        self.on_request: Callable[[Request], None] = self.requests.append

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        events = self.connection.receive_data(data)
        if self.answers_hello:
            self.transport.writelines(self.connection.data_to_send())
        for event in events:
            if isinstance(event, Opened):
                self.hello = event.hello
            elif isinstance(event, Request):
                self.on_request(event)
            elif isinstance(event, Closing):
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def reply(self, request: Request, body: bytes = b"") -> None:
        self.transport.writelines(self.connection.reply(request.request_id, PingResponse(), body))

    def refuse(self, request: Request, error: VqError) -> None:
        self.transport.writelines(self.connection.reply_error(request.request_id, error))


class World:
    """The network, the peer, and what the connection told of itself."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.peer = Peer()
        self.closed: list[BrokerConnection] = []
        self.accepted = 0

    def accept(self) -> Peer:
        self.accepted += 1
        return self.peer

    async def connect(self, *, timeout: float = 5.0, cluster: str = "test") -> BrokerConnection:
        return await connections.connect(
            self.network,
            ADDRESS,
            client_id="c",
            cluster=cluster,
            timeout=timeout,
            on_close=self.closed.append,
            report=futures.report,
        )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    listener = await world.network.listen(ADDRESS, world.accept)
    yield world
    listener.close()


async def ask(connection: BrokerConnection, *, timeout: float = 5.0) -> tuple[Any, bytes]:
    return await connection.request(Command.PING, PingRequest(), timeout=timeout)


# Connecting ---------------------------------------------------------------------------------------
async def test_hello_says_who_we_are(world: World) -> None:
    connection = await world.connect()
    assert (world.peer.hello.client_id, world.peer.hello.cluster) == ("c", "test")
    assert world.peer.hello.library.startswith("vq-python ")
    connection.close()
    await until(lambda: world.peer.gone and world.closed == [connection])


async def test_nobody_listens(world: World) -> None:
    with pytest.raises(Unreachable):
        await connections.connect(
            world.network,
            Address("nowhere", 1),
            client_id="c",
            cluster="test",
            timeout=5.0,
            on_close=world.closed.append,
            report=futures.report,
        )


async def test_a_peer_that_does_not_answer_hello_is_left(world: World) -> None:
    world.peer.answers_hello = False
    with pytest.raises(Unreachable, match="accepts connections and did not answer HELLO"):
        await world.connect(timeout=0.5)  # which includes the connection
    await until(lambda: world.peer.gone)


async def test_a_peer_that_cannot_be_reached_is_not_waited_for(world: World) -> None:
    world.network.cut("client", "broker")
    with pytest.raises(Unreachable):
        await world.connect(timeout=0.02)
    world.network.heal()


async def test_a_peer_of_another_cluster_refuses_and_says_why(world: World) -> None:
    with pytest.raises(InvalidRequest, match="belongs to cluster 'test'"):
        await world.connect(cluster="other")
    await until(lambda: world.peer.gone)


async def test_a_peer_that_is_no_broker_is_left(world: World) -> None:
    world.peer.data_received = (  # type: ignore[method-assign]
        lambda data: world.peer.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    )
    with pytest.raises(VqError):
        await world.connect()
    await until(lambda: world.peer.gone)


async def test_a_peer_that_closes_instead_of_answering(world: World) -> None:
    world.peer.data_received = (  # type: ignore[method-assign]
        lambda data: world.peer.transport.close()
    )
    with pytest.raises(ConnectionCut):
        await world.connect()
    assert len(world.closed) == 1


async def test_connecting_may_be_cancelled(world: World) -> None:
    world.peer.answers_hello = False
    task = asyncio.create_task(world.connect())
    await until(lambda: world.peer.hello is not None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: world.peer.gone)


# Requests -----------------------------------------------------------------------------------------
async def test_answers_come_back_out_of_order(world: World) -> None:
    connection = await world.connect()
    asked = [asyncio.create_task(ask(connection)) for _ in range(3)]
    await until(lambda: len(world.peer.requests) == 3)
    for number in (2, 0, 1):
        world.peer.reply(world.peer.requests[number], b"%d" % number)
    assert [body for _, body in await asyncio.gather(*asked)] == [b"0", b"1", b"2"]


async def test_an_error_in_the_answer_is_raised(world: World) -> None:
    connection = await world.connect()
    world.peer.on_request = lambda request: world.peer.refuse(request, Busy("later"))
    with pytest.raises(Busy, match="later"):
        await ask(connection)


async def test_silence_ends_the_wait_and_a_late_answer_goes_nowhere(world: World) -> None:
    connection = await world.connect()
    with pytest.raises(TimedOut, match="PING"):
        await ask(connection, timeout=0.02)
    world.peer.reply(world.peer.requests[0], b"late")
    world.peer.on_request = lambda request: world.peer.reply(request, b"in time")
    assert (await ask(connection))[1] == b"in time"


async def test_a_wait_may_be_cancelled(world: World) -> None:
    connection = await world.connect()
    task = asyncio.create_task(ask(connection))
    await until(lambda: world.peer.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    world.peer.reply(world.peer.requests[0])
    world.peer.on_request = world.peer.reply
    await ask(connection)


async def test_more_requests_than_the_broker_allows_are_refused_here(world: World) -> None:
    world.peer = Peer(requests_max=2)
    connection = await world.connect()
    waiting = [asyncio.create_task(ask(connection)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="at most 2"):
        await ask(connection)
    connection.close()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, ConnectionCut) for each in ended)


# Ends ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["peer closes", "peer dies", "we close"])
async def test_whoever_waits_is_told_of_the_end(world: World, how: str) -> None:
    connection = await world.connect()
    told: list[Frame | None] = []
    for _ in range(3):
        connection.send(Command.PING, b"", b"", told.append)
    waiting = asyncio.create_task(ask(connection))
    await until(lambda: len(world.peer.requests) == 4)
    if how == "peer closes":
        world.peer.transport.close()
    elif how == "peer dies":
        world.network.kill("broker")
    else:
        connection.close()
    with pytest.raises(ConnectionCut):
        await waiting
    assert told == [None] * 3
    assert world.closed == [connection]
    with pytest.raises(ConnectionCut):
        connection.send(Command.PING, b"", b"", told.append)
    with pytest.raises(ConnectionCut):
        await ask(connection)


async def test_nothing_is_sent_on_a_connection_that_is_being_closed(world: World) -> None:
    """Between the decision and ``connection_lost`` there is a turn of the loop."""
    connection = await world.connect()
    connection.close()
    with pytest.raises(ConnectionCut):
        connection.send(Command.PING, b"", b"", lambda frame: None)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 64,
        b"\xff" * 64,
        encode_frame(Command.PING, 0, 4_711, 0, b""),  # a reply nobody asked for
    ],
)
async def test_answers_before_the_damage_count_and_the_rest_is_told_of_the_end(
    world: World, garbage: bytes
) -> None:
    connection = await world.connect()
    told: list[tuple[int, Frame | None]] = []
    for number in range(3):
        connection.send(
            Command.PING, b"", b"", lambda frame, number=number: told.append((number, frame))
        )
    await until(lambda: len(world.peer.requests) == 3)
    good = world.peer.connection.reply(world.peer.requests[1].request_id, PingResponse())
    world.peer.transport.write(b"".join([*map(bytes, good), garbage]))
    await until(lambda: len(told) == 3)
    assert [number for number, frame in told if frame is not None] == [1]
    assert sorted(number for number, frame in told if frame is None) == [0, 2]
    await until(lambda: world.peer.gone)


async def test_a_reply_for_another_command_leaves_nobody_waiting(world: World) -> None:
    """The one whose number it carries is told of the end like the others."""
    connection = await world.connect()
    told: list[Frame | None] = []
    connection.send(Command.PING, b"", b"", told.append)
    await until(lambda: world.peer.requests)
    number = world.peer.requests[0].request_id.correlation_id
    world.peer.transport.write(encode_frame(Command.GET, 0, number, 0, b""))
    await until(lambda: told == [None])


async def test_a_callback_that_raises_takes_no_other_answer_with_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await world.connect()
    told: list[Frame | None] = []

    def fail(_: Frame | None) -> None:
        raise RuntimeError("a bug")

    for on_reply in (fail, told.append, fail, told.append):
        connection.send(Command.PING, b"", b"", on_reply)
    await until(lambda: len(world.peer.requests) == 4)
    for request in world.peer.requests[:2]:
        world.peer.reply(request)
    await until(lambda: len(told) == 1)
    assert told[0] is not None
    connection.close()
    await until(lambda: len(told) == 2)
    assert told[1] is None
    assert len(caplog.records) == 2
    assert world.closed == [connection]


class Stop(BaseException):
    """As a signal handler may raise, anywhere."""


@pytest.mark.parametrize("error", [RuntimeError, Stop, asyncio.CancelledError, SystemExit])
@pytest.mark.parametrize("logging_raises", [False, True])
async def test_answers_that_came_together_are_all_told_whatever_one_raises(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    logging_raises: bool,
) -> None:
    """Nobody would tell them later: their requests do not wait any more."""
    raised: list[BaseException] = []
    monkeypatch.setattr(futures, "_raise", raised.append)
    if logging_raises:
        monkeypatch.setattr(futures.logger, "error", fail_to_log)
    connection = await world.connect()
    told: list[Frame | None] = []

    def fail(_: Frame | None) -> None:
        raise error

    for on_reply in (fail, told.append, fail, told.append):
        connection.send(Command.PING, b"", b"", on_reply)
    await until(lambda: len(world.peer.requests) == 4)
    answers = [
        bytes(part)
        for request in world.peer.requests[:2]
        for part in world.peer.connection.reply(request.request_id, PingResponse())
    ]
    world.peer.transport.write(b"".join(answers))
    await until(lambda: len(told) == 1)
    assert told[0] is not None
    connection.close()
    await until(lambda: len(told) == 2)
    await until(lambda: [type(each) for each in raised] == [error] * (2 * (error is SystemExit)))


async def test_those_who_wait_are_told_of_the_end_whatever_its_listener_raises(
    world: World,
) -> None:
    connection = await world.connect()
    told: list[Frame | None] = []
    connection.send(Command.PING, b"", b"", told.append)

    def fail(_: BrokerConnection) -> None:
        raise Stop

    connection._on_close = fail
    with pytest.raises(Stop):
        connection.connection_lost(None)
    assert told == [None]


def fail_to_log(*_: object, **__: object) -> None:
    raise RuntimeError("logging, too")


# Quotas -------------------------------------------------------------------------------------------
async def test_requests_with_bodies_go_one_at_a_time_while_a_quota_is_used_up(
    world: World,
) -> None:
    """And before the first answer, which tells whether it is; neither for longer than a bound."""
    connection = await world.connect()
    peer, loop = world.peer, asyncio.get_running_loop()

    async def ask_with_body() -> Request:
        count = len(peer.requests)
        connection.send(Command.PING, PingRequest().SerializeToString(), b"body", lambda _: None)
        await until(lambda: len(peer.requests) > count)
        return peer.requests[-1]

    async def answered(request: Request, delay_s: float = 0.0) -> None:
        answer, request_id = PingResponse(), request.request_id
        if delay_s:
            answer.MergeFromString(encode_delay(delay_s))
            request_id = request_id._replace(flags=FLAG_DELAY)
        peer.transport.writelines(peer.connection.reply(request_id, answer))
        await asyncio.sleep(0.001)

    assert connection.waits_s() == 0.0
    first = await ask_with_body()
    assert 0.4 < connection.waits_s() <= connections.FIRST_ANSWER_S
    assert connection.takes_small
    await answered(first)
    second, third = await ask_with_body(), await ask_with_body()
    assert connection.waits_s() == 0.0
    await answered(second, delay_s=2.0)
    assert connection.waits_s() > 8.0  # for the third one
    assert not connection.takes_small
    peer.refuse(third, Busy("nobody has looked at the quota for this"))
    await asyncio.sleep(0.001)
    assert 1.9 < connection.waits_s() <= 2.0
    await asyncio.sleep(2.0)
    assert connection.waits_s() == 0.0
    begun = loop.time()
    fourth = await ask_with_body()
    assert 8.0 < connection.waits_s() <= connections.PACED_S
    await asyncio.sleep(connections.PACED_S)
    assert connection.waits_s() == 0.0
    assert loop.time() - begun < 2 * connections.PACED_S
    await answered(fourth)
    await ask_with_body()
    assert connection.waits_s() == 0.0
    connection.close()


async def test_what_answers_ask_for_leaves_once_they_are_handled(world: World) -> None:
    """In one write, with no further iteration of the loop: the broker need not wait for it."""
    connection = await world.connect()
    transport: Any = connection._transport
    seen: list[str] = []

    class Noted:
        def writelines(self, buffers: list[bytes]) -> None:
            seen.append(f"{len(buffers)} written")
            transport.writelines(buffers)

    connection._transport = Noted()  # type: ignore[assignment]

    def ask_on(_: Frame | None) -> None:
        seen.append("answered")
        connection.send(Command.PING, b"", b"", lambda _: None)
        connection.afterwards(behind)

    def behind() -> None:
        seen.append("behind")
        connection.send(Command.PING, b"", b"", lambda _: None)

    for _ in range(2):
        connection.send(Command.PING, b"", b"", ask_on)
    await until(lambda: len(world.peer.requests) == 2)
    assert seen == ["2 written"]
    seen.clear()
    answers = [
        bytes(part)
        for request in world.peer.requests
        for part in world.peer.connection.reply(request.request_id, PingResponse())
    ]
    connection.data_received(b"".join(answers))
    assert seen == ["answered", "answered", "behind", "behind", "4 written"]
    await until(lambda: len(world.peer.requests) == 6)


async def test_what_is_called_behind_no_answer_is_called_soon(world: World) -> None:
    connection = await world.connect()
    called: list[bool] = []
    connection.afterwards(lambda: called.append(True))
    assert not called
    await until(lambda: called)


async def test_what_is_raised_behind_answers_is_reported_and_the_rest_leaves(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await world.connect()

    def fail() -> None:
        raise RuntimeError("a bug")

    def ask_on(_: Frame | None) -> None:
        connection.afterwards(fail)
        connection.send(Command.PING, b"", b"", lambda _: None)

    connection.send(Command.PING, b"", b"", ask_on)
    await until(lambda: len(world.peer.requests) == 1)
    world.peer.reply(world.peer.requests[0])
    await until(lambda: len(world.peer.requests) == 2)
    assert len(caplog.records) == 1
