"""Both ends of a connection: HELLO first, bounds, pipelining, and what ends it."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from vq import limits
from vq.errors import (
    AuthenticationFailed,
    BadChecksum,
    Busy,
    FrameTooLarge,
    HelloRequired,
    InvalidArgument,
    InvalidRequest,
    InvalidState,
    ProtocolError,
    UnknownCommand,
    UnsupportedVersion,
    VqError,
)
from vq.remoting import messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import (
    TRANSITIONS,
    ClientConnection,
    Closing,
    ConnectionState,
    Opened,
    Reply,
    Request,
    RequestId,
    ServerConnection,
    Step,
    is_again,
)
from vq.remoting.format import CORRELATION_ID_MAX, FLAG_AGAIN, FLAG_HESSIAN, PREFIX, Command
from vq.remoting.frames import Buffer, Frame, FrameParser, encode_frame
from vq.remoting.hello import KnownPeer, ServerIdentity, negotiate
from vq.remoting.login import Login

IDENTITY = ServerIdentity(cluster="main", group="b1", node="n1", incarnation=5, broker_version="1")
PING = messages.encode_header(Command.PING, wire.PingRequest())
BOTH = pytest.mark.parametrize("flags", [0, FLAG_HESSIAN], ids=["protobuf", "Hessian"])


def joined(buffers: list[Buffer]) -> bytes:
    """What a transport would send."""
    return b"".join(buffers)


def request_bytes(
    command: int, message: Message, body: bytes = b"", *, correlation_id: int = 1, flags: int = 0
) -> bytes:
    """A request as any client may write it, checked by nobody."""
    header = messages.encode_header(command, message, flags)
    return encode_frame(command, 0, correlation_id, flags, header, len(body)) + body


HELLO = request_bytes(Command.HELLO, wire.HelloRequest(version_min=1, version_max=1))


def opened(**options: Any) -> tuple[ClientConnection, ServerConnection]:
    """Both ends, after HELLO."""
    client, server = ClientConnection(), ServerConnection(IDENTITY, **options)
    assert [type(e) for e in server.receive_data(joined(client.hello()))] == [Opened]
    assert [type(e) for e in client.receive_data(joined(server.data_to_send()))] == [Opened]
    return client, server


def refusal(server: ServerConnection) -> VqError:
    """The error that the server has to send, as a client reads it."""
    (frame,) = FrameParser().feed(joined(server.data_to_send()))
    return messages.decode_error(frame.status, frame.header, frame.flags)


# HELLO ----------------------------------------------------------------------------------------
@BOTH
def test_hello_opens_both_ends(flags: int) -> None:
    """Each learns who the other is, and the bounds."""
    client, server = ClientConnection(), ServerConnection(IDENTITY)
    (event,) = server.receive_data(joined(client.hello(client_id="c1", library="l", flags=flags)))
    assert isinstance(event, Opened)
    assert event.version == 1
    assert event.hello == wire.HelloRequest(
        version_min=1, version_max=1, client_id="c1", library="l"
    )
    (answer,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(answer, Opened)
    assert answer.hello == wire.HelloResponse(
        version=1,
        cluster="main",
        group="b1",
        node="n1",
        incarnation=5,
        broker_version="1",
        frame_bytes_max=limits.FRAME_BYTES_MAX,
        requests_in_flight_max=limits.REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX,
    )
    assert client.state is server.state is ConnectionState.OPEN
    assert client.requests_max == limits.REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX
    assert server.data_to_send() == []


def test_any_other_first_command_is_refused() -> None:
    """Then the connection ends."""
    server = ServerConnection(IDENTITY)
    (event,) = server.receive_data(request_bytes(Command.PING, wire.PingRequest()))
    assert isinstance(event, Closing)
    assert isinstance(event.error, HelloRequired)
    assert isinstance(refusal(server), HelloRequired)
    assert server.state is ConnectionState.CLOSED
    assert server.receive_data(HELLO) == []


@pytest.mark.parametrize(
    ("hello", "error", "text"),
    [
        ({"version_min": 2, "version_max": 9}, UnsupportedVersion, r"\[2, 9\], this broker \[1, 1"),
        ({"version_min": 0, "version_max": 0}, UnsupportedVersion, r"\[0, 0\]"),
        ({"cluster": "other"}, InvalidRequest, "cluster 'main', not 'other'"),
        ({"client_id": "../etc"}, InvalidRequest, "client id"),
        ({"mechanism": "SCRAM-SHA-256"}, AuthenticationFailed, "SCRAM-SHA-256"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused(
    hello: dict[str, Any], error: type[VqError], text: str
) -> None:
    """The client sees why, and both ends are closed."""
    server, client = ServerConnection(IDENTITY), ClientConnection()
    client.hello()
    fields = {"version_min": 1, "version_max": 1, **hello}
    (event,) = server.receive_data(request_bytes(Command.HELLO, wire.HelloRequest(**fields)))
    assert isinstance(event, Closing)
    (seen,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(seen, Closing)
    with pytest.raises(error, match=text):
        raise seen.error
    assert client.state is ConnectionState.CLOSED


def test_versions_are_negotiated_to_the_highest_common_one() -> None:
    """A client that knows later versions still gets this one."""
    assert negotiate(wire.HelloRequest(version_min=1, version_max=200)) == 1
    with pytest.raises(UnsupportedVersion) as caught:
        negotiate(wire.HelloRequest(version_min=2, version_max=1))
    assert caught.value.details == {"version_min": 1, "version_max": 1}


def test_hello_comes_once() -> None:
    """A second one ends the connection; our own client does not send it."""
    client, server = opened()
    with pytest.raises(InvalidState):
        client.hello()
    with pytest.raises(InvalidState, match="HELLO"):
        client.request(Command.HELLO, b"")
    (event,) = server.receive_data(HELLO)
    assert isinstance(event, Closing)
    assert "HELLO comes once" in str(refusal(server))


def test_authentication_decides_about_hello() -> None:
    """It sees what the client sent; what it raises is what the client reads."""
    seen = []

    def authenticate(hello: wire.HelloRequest) -> KnownPeer:
        seen.append((hello.mechanism, hello.credentials))
        raise AuthenticationFailed("wrong secret")

    server = ServerConnection(IDENTITY, authenticate=authenticate)
    client = ClientConnection(Login("anna"))
    server.receive_data(joined(client.hello()))
    assert seen == [("CERTIFICATE", b"anna")]
    assert refusal(server).message == "wrong secret"


# Bounds ---------------------------------------------------------------------------------------
def test_before_hello_a_frame_is_small() -> None:
    """4 KiB, and the client is told."""
    server = ServerConnection(IDENTITY)
    message = wire.HelloRequest(version_min=1, version_max=1, credentials=bytes(5_000))
    (event,) = server.receive_data(request_bytes(Command.HELLO, message))
    assert isinstance(event, Closing)
    error = refusal(server)
    assert isinstance(error, FrameTooLarge)
    assert error.details == {"max_bytes": limits.FRAME_BYTES_MAX_BEFORE_HELLO}


def test_right_behind_hello_a_frame_may_be_large() -> None:
    """Whatever chunk HELLO ends in: a client need not wait for the answer."""
    put = request_bytes(Command.PUT, wire.PutRequest(topic="t"), bytes(100_000))
    for cut in (0, 1, 10, len(HELLO) - 1, len(HELLO), len(HELLO) + 5, len(HELLO) + 50_000):
        server = ServerConnection(IDENTITY)
        data = HELLO + put
        events = server.receive_data(data[:cut]) + server.receive_data(data[cut:])
        assert [type(event) for event in events] == [Opened, Request]
        assert isinstance(events[1], Request)
        assert len(events[1].body) == 100_000


def test_after_hello_a_frame_has_the_larger_bound() -> None:
    """One byte more is refused with the frame's own correlation id, then the end."""
    _, server = opened(frame_bytes_max=10_000)
    at_bound = encode_frame(Command.PING, 0, 5, 0, b"", 10_000 - 20) + bytes(10_000 - 20)
    assert [type(event) for event in server.receive_data(at_bound)] == [Request]
    beyond = encode_frame(Command.PING, 0, 6, 0, b"", 10_001 - 20)
    (event,) = server.receive_data(beyond)
    assert isinstance(event, Closing)
    (frame,) = FrameParser().feed(joined(server.data_to_send()))
    assert (frame.command, frame.correlation_id, frame.status) == (2, 6, FrameTooLarge.status)


def test_a_client_does_not_send_what_the_broker_would_refuse() -> None:
    """It knows the broker's bound from HELLO."""
    client, _ = opened(frame_bytes_max=10_000)
    with pytest.raises(InvalidArgument, match="exceeds 10000"):
        client.request(Command.PUT, b"", bytes(10_000))
    assert client.requests_in_flight == 0
    with pytest.raises(InvalidArgument, match="exceeds 4096"):
        ClientConnection().hello(library="l" * 5_000)


def test_requests_in_flight_are_bounded() -> None:
    """The client stops by itself; a client that does not is answered Busy, and nothing ends."""
    client, server = opened(requests_max=2)
    data = b"".join(joined(client.request(Command.PING, PING)[1]) for _ in range(2))
    with pytest.raises(Busy, match="at most 2"):
        client.request(Command.PING, PING)
    first, second = server.receive_data(data)
    rude = request_bytes(Command.PING, wire.PingRequest(), correlation_id=99)
    assert server.receive_data(rude) == []
    assert server.requests_in_flight == 2
    error = refusal(server)
    assert isinstance(error, Busy)
    assert error.retriable
    assert isinstance(first, Request)
    client.receive_data(joined(server.reply(first.request_id, wire.PingResponse())))
    assert (client.requests_in_flight, server.requests_in_flight) == (1, 1)
    client.request(Command.PING, PING)
    assert isinstance(second, Request)


# Requests and replies -------------------------------------------------------------------------
@BOTH
def test_a_request_is_answered_in_its_own_encoding(flags: int) -> None:
    """Header, body and context come back together; the body is the buffer that was given."""
    client, server = opened()
    header = messages.encode_header(Command.PUT, wire.PutRequest(topic="t"), flags)
    body = memoryview(b"records")
    number, buffers = client.request(Command.PUT, header, body, context="mine", flags=flags)
    assert buffers[1] is body
    (request,) = server.receive_data(joined(buffers))
    assert isinstance(request, Request)
    assert request.message == wire.PutRequest(topic="t")
    assert request.body == b"records"
    assert request.request_id == RequestId(Command.PUT, number, flags, len(b"records"))
    answer = server.reply(request.request_id, wire.PutResponse(offset=88), b"more")
    (reply,) = client.receive_data(joined(answer))
    assert isinstance(reply, Reply)
    assert (reply.context, reply.frame.flags, reply.frame.body) == ("mine", flags, b"more")
    assert messages.decode_reply(reply.frame) == wire.PutResponse(offset=88)


@BOTH
def test_a_refused_request_leaves_the_connection_open(flags: int) -> None:
    """The error belongs to that request alone."""
    client, server = opened()
    header = messages.encode_header(Command.PUT, wire.PutRequest(topic="t"), flags)
    (request,) = server.receive_data(joined(client.request(Command.PUT, header, flags=flags)[1]))
    assert isinstance(request, Request)
    (reply,) = client.receive_data(
        joined(server.reply_error(request.request_id, BadChecksum("crc")))
    )
    assert isinstance(reply, Reply)
    with pytest.raises(BadChecksum, match="crc"):
        messages.decode_reply(reply.frame)
    assert client.state is server.state is ConnectionState.OPEN


def test_many_requests_are_refused_with_one_error() -> None:
    """Each in its own encoding."""
    client, server = opened()
    data = b""
    for number in range(4):
        flags = FLAG_HESSIAN if number % 2 else 0
        header = messages.encode_header(Command.PUT, wire.PutRequest(topic="t"), flags)
        data += joined(client.request(Command.PUT, header, context=number, flags=flags)[1])
    asked = [each.request_id for each in server.receive_data(data) if isinstance(each, Request)]
    answers = client.receive_data(joined(server.reply_errors(asked, BadChecksum("crc"))))
    replies = [each for each in answers if isinstance(each, Reply)]
    assert [each.context for each in replies] == list(range(4))
    for each in replies:
        with pytest.raises(BadChecksum, match="crc"):
            messages.decode_reply(each.frame)
    assert server.requests_in_flight == 0


def test_where_small_frames_begin_is_known_before_they_are_cut() -> None:
    """Large ones before them, which an attacker may send, hide nothing."""
    _, server = opened()
    small = request_bytes(Command.PING, wire.PingRequest())
    large = request_bytes(Command.PUT, wire.PutRequest(topic="t"), bytes(10_000))
    assert server.small_from(small * 1_000) == 0
    assert server.small_from(large * 2 + small * 1_000) == 2 * len(large)
    assert server.small_from(large * 3) == 3 * len(large)
    server.receive_data(large[:10])
    assert server.small_from(large[10:]) == 0, "not known yet"
    server.receive_data(large[10:5_000])
    assert server.small_from(large[5_000:-10]) == len(large) - 5_010
    server.receive_data(large[5_000:-10])
    assert server.small_from(large[-10:] + large) == 10 + len(large)
    assert server.small_from(large[-10:] + small * 1_000) == 10


def test_replies_may_come_in_any_order() -> None:
    """Each finds its request."""
    client, server = opened()
    data = b"".join(joined(client.request(Command.PING, PING, context=n)[1]) for n in range(5))
    request_ids = [
        event.request_id for event in server.receive_data(data) if isinstance(event, Request)
    ]
    answers = b"".join(
        joined(server.reply(request_id, wire.PingResponse()))
        for request_id in reversed(request_ids)
    )
    contexts = [event.context for event in client.receive_data(answers) if isinstance(event, Reply)]
    assert contexts == [4, 3, 2, 1, 0]
    assert client.requests_in_flight == server.requests_in_flight == 0


def test_a_fetch_may_be_answered_more_than_once() -> None:
    """It waits, and counts as a read, until a reply is the last one."""
    client, server = opened()
    header = messages.encode_header(Command.FETCH, wire.FetchRequest(again=True))
    (request,) = server.receive_data(joined(client.request(Command.FETCH, header, context="f")[1]))
    assert isinstance(request, Request)
    for _ in range(2):
        (part,) = client.receive_data(
            joined(server.reply_again(request.request_id, wire.FetchResponse(), [b"x"]))
        )
        assert isinstance(part, Reply)
        assert (part.context, part.frame.body, is_again(part.frame)) == ("f", b"x", True)
        assert client.requests_in_flight == server.requests_in_flight == 1
    (last,) = client.receive_data(joined(server.reply(request.request_id, wire.FetchResponse())))
    assert isinstance(last, Reply)
    assert not is_again(last.frame)
    assert client.requests_in_flight == server.requests_in_flight == 0
    with pytest.raises(InvalidState, match="FETCH 2 was answered before"):
        server.reply_again(request.request_id, wire.FetchResponse(), [])
    server.ended()
    assert server.reply_again(request.request_id, wire.FetchResponse(), []) == []


def test_a_reply_to_another_request_is_always_the_last_one() -> None:
    """Whatever flag a broker sets: nobody would take the next one."""
    client, server = opened()
    (request,) = server.receive_data(joined(client.request(Command.PING, PING)[1]))
    assert isinstance(request, Request)
    reply = encode_frame(Command.PING, 0, request.request_id.correlation_id, FLAG_AGAIN, b"")
    assert isinstance(client.receive_data(reply)[0], Reply)
    assert client.requests_in_flight == 0


def test_the_answer_to_hello_goes_first() -> None:
    """Also when a request right behind HELLO is answered before anything was sent."""
    server = ServerConnection(IDENTITY)
    ping = request_bytes(Command.PING, wire.PingRequest(), correlation_id=2)
    opened_event, request = server.receive_data(HELLO + ping)
    assert isinstance(opened_event, Opened)
    assert isinstance(request, Request)
    out = FrameParser().feed(joined(server.reply(request.request_id, wire.PingResponse())))
    assert [frame.command for frame in out] == [Command.HELLO, Command.PING]
    assert server.data_to_send() == []


def test_a_request_is_answered_once() -> None:
    """A second answer is a bug of the caller's."""
    client, server = opened()
    (request,) = server.receive_data(joined(client.request(Command.PING, PING)[1]))
    assert isinstance(request, Request)
    assert server.reply(request.request_id, wire.PingResponse())
    with pytest.raises(InvalidState, match="answered before"):
        server.reply(request.request_id, wire.PingResponse())
    with pytest.raises(InvalidState, match="answered before"):
        server.reply_error(request.request_id, Busy())


def test_an_answer_that_does_not_fit_can_still_be_refused() -> None:
    """The request stays open until an answer fits."""
    client, server = opened()
    (request,) = server.receive_data(joined(client.request(Command.PING, PING)[1]))
    assert isinstance(request, Request)
    with pytest.raises(InvalidArgument, match="exceeds"):
        server.reply(request.request_id, wire.PingResponse(), bytes(limits.FRAME_BYTES_MAX))
    assert server.reply_error(request.request_id, Busy())


def test_answers_for_an_ended_connection_go_nowhere() -> None:
    """No error either: the channel that answers late need not know."""
    client, server = opened()
    (request,) = server.receive_data(joined(client.request(Command.PING, PING)[1]))
    assert isinstance(request, Request)
    server.ended()
    assert server.reply(request.request_id, wire.PingResponse()) == []
    assert server.reply_error(request.request_id, Busy()) == []
    assert server.requests_in_flight == 0


def test_an_id_in_use_is_refused() -> None:
    """Two requests with one correlation id could not be told apart."""
    _, server = opened()
    ping = request_bytes(Command.PING, wire.PingRequest(), correlation_id=4)
    events = server.receive_data(ping + ping)
    assert [type(event) for event in events] == [Request, Closing]
    assert "correlation id 4" in str(refusal(server))


def test_correlation_ids_start_again_without_meeting_those_in_use() -> None:
    """After four thousand million requests."""
    client, _ = opened()
    kept, _ = client.request(Command.PING, PING)
    client._last_id = CORRELATION_ID_MAX - 1
    numbers = [client.request(Command.PING, PING)[0] for _ in range(3)]
    assert kept == 2
    assert numbers == [CORRELATION_ID_MAX, 1, 3]


def test_reads_that_wait_leave_room_for_other_requests() -> None:
    """Both ends count GET and FETCH apart; an answer gives the place back to its own kind."""
    client, server = opened(requests_max=2)
    get, fetch = wire.GetRequest().SerializeToString(), wire.FetchRequest().SerializeToString()
    data = joined(client.request(Command.GET, get)[1])
    data += joined(client.request(Command.FETCH, fetch)[1])
    with pytest.raises(Busy, match="2 reads"):
        client.request(Command.GET, get)
    data += b"".join(joined(client.request(Command.PING, PING)[1]) for _ in range(2))
    with pytest.raises(Busy, match="2 requests"):
        client.request(Command.PING, PING)
    events = server.receive_data(data)
    assert len(events) == server.requests_in_flight == 4
    rude = request_bytes(Command.GET, wire.GetRequest(), correlation_id=99)
    assert server.receive_data(rude) == []
    assert isinstance(refusal(server), Busy)
    assert isinstance(events[1], Request)
    client.receive_data(joined(server.reply(events[1].request_id, wire.FetchResponse())))
    with pytest.raises(Busy, match="2 requests"):
        client.request(Command.PING, PING)
    again = joined(client.request(Command.GET, get)[1])
    assert len(server.receive_data(again)) == 1


def test_a_body_may_come_in_parts() -> None:
    """They follow the header without being joined."""
    client, server = opened()
    _, buffers = client.request(Command.FETCH, wire.FetchRequest().SerializeToString())
    (request,) = server.receive_data(joined(buffers))
    assert isinstance(request, Request)
    part = memoryview(b"abc")
    answer = server.reply_parts(request.request_id, wire.FetchResponse(), [part, b"", b"de"])
    assert answer[1] is part
    (reply,) = client.receive_data(joined(answer))
    assert isinstance(reply, Reply)
    assert reply.frame.body == b"abcde"


def test_a_forgotten_request_keeps_its_place_until_the_reply() -> None:
    """The broker is still busy with it; its late reply disturbs nobody."""
    client, server = opened(requests_max=1)
    number, buffers = client.request(Command.PING, PING, context="waiter")
    assert client.forget(number) == "waiter"
    assert client.forget(12345) is None
    with pytest.raises(Busy):
        client.request(Command.PING, PING)
    (request,) = server.receive_data(joined(buffers))
    assert isinstance(request, Request)
    (reply,) = client.receive_data(joined(server.reply(request.request_id, wire.PingResponse())))
    assert isinstance(reply, Reply)
    assert reply.context is None
    client.request(Command.PING, PING)


def test_nothing_but_hello_before_opened() -> None:
    """The client's own end refuses it, and also after the end."""
    client = ClientConnection()
    with pytest.raises(InvalidState, match="awaiting hello"):
        client.request(Command.PING, PING)
    client.ended()
    with pytest.raises(InvalidState, match="closed"):
        client.request(Command.PING, PING)


def test_abandoned_requests_are_handed_back() -> None:
    """Their outcome is unknown; somebody must be told."""
    client, _ = opened()
    for context in "abc":
        client.request(Command.PING, PING, context=context)
    assert client.abandon() == ["a", "b", "c"]
    assert client.abandon() == []
    assert client.receive_data(b"anything") == []


# What ends a connection -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", ProtocolError),
        (PREFIX.pack(16, b"vq\x02", 0, 2, 0, 3, 0), UnsupportedVersion),
        (PREFIX.pack(2**31, b"vq\x01", 0, 10, 0, 3, 0), FrameTooLarge),
        (PREFIX.pack(16, b"vq\x01", 0, 77, 0, 3, 0), UnknownCommand),
        (PREFIX.pack(16, b"vq\x01", 0x80, 2, 0, 3, 0), InvalidRequest),
        (PREFIX.pack(16, b"vq\x01", 0, 2, 9, 3, 0), InvalidRequest),
        (PREFIX.pack(17, b"vq\x01", 0, 2, 0, 3, 1) + b"\xff", InvalidRequest),
        (PREFIX.pack(17, b"vq\x01", 1, 2, 0, 3, 1) + b"C", InvalidRequest),
    ],
)
def test_damage_is_answered_and_ends_the_connection(data: bytes, error: type[VqError]) -> None:
    """Requests in front of it are still handed out; nothing behind it is."""
    _, server = opened()
    ping = request_bytes(Command.PING, wire.PingRequest(), correlation_id=1)
    events = server.receive_data(ping + data + ping)
    assert [type(event) for event in events] == [Request, Closing]
    assert isinstance(events[1], Closing)
    assert type(events[1].error) is error
    assert type(refusal(server)) is error
    assert server.state is ConnectionState.CLOSED
    assert server.receive_data(ping) == []
    assert server.data_to_send() == []


@pytest.mark.parametrize("size", [1, 7, 20])
def test_the_same_events_in_any_chunks(size: int) -> None:
    """HELLO, requests, damage: byte by byte as in one piece."""
    ping = request_bytes(Command.PING, wire.PingRequest(), correlation_id=1)
    data = HELLO + ping + request_bytes(Command.PUT, wire.PutRequest(), bytes(70), correlation_id=2)
    data += PREFIX.pack(16, b"vq\x01", 0, 77, 0, 3, 0) + ping
    whole, pieces = ServerConnection(IDENTITY), ServerConnection(IDENTITY)
    expected = whole.receive_data(data)
    events = []
    for start in range(0, len(data), size):
        events += pieces.receive_data(data[start : start + size])
    assert [type(event) for event in events] == [Opened, Request, Request, Closing]
    assert repr(events) == repr(expected)
    assert joined(whole.data_to_send()) == joined(pieces.data_to_send())


def test_the_caller_may_end_a_connection() -> None:
    """The client reads the reason, on a frame that answers no request."""
    client, server = opened()
    closing = server.refuse(Busy("too many connections"))
    assert isinstance(closing.error, Busy)
    (event,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(event, Closing)
    assert isinstance(event.error, Busy)
    assert event.error.message == "too many connections"


@pytest.mark.parametrize(
    "end",
    [lambda server: server.refuse(Busy("too many bytes")), ServerConnection.ended],
    ids=["refused", "lost"],
)
def test_an_ended_connection_keeps_no_incomplete_frame(
    end: Callable[[ServerConnection], object],
) -> None:
    """Its peer has a while to read why; 64 of them would keep a GiB for so long.

    Nor does one that is lost, which may wait for the garbage collector.
    """
    _, server = opened()
    part = request_bytes(Command.PUT, wire.PutRequest(), bytes(8 * limits.MIB))[:-1]
    tracemalloc.start()
    try:
        for at in range(0, len(part), limits.MIB):
            server.receive_data(part[at : at + limits.MIB])
        kept, _ = tracemalloc.get_traced_memory()
        end(server)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept > 8 * limits.MIB
    assert left < limits.MIB
    assert server.pending_bytes == 0
    assert server.pending_frame is None


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame(2, 0, 77, 0, b"", b""), "correlation id 77, answers no request"),
        (Frame(10, 0, 2, 0, b"", b""), "command 10, correlation id 2, answers no request"),
    ],
)
def test_a_reply_to_nothing_ends_the_clients_end(frame: Frame, text: str) -> None:
    """After it, no reply can be trusted to belong where it says."""
    client, _ = opened()
    client.request(Command.PING, PING, context="waiting")
    command, status, number, flags, header, _ = frame
    (event,) = client.receive_data(encode_frame(command, status, number, flags, header))
    assert isinstance(event, Closing)
    with pytest.raises(ProtocolError, match=text):
        raise event.error
    assert client.state is ConnectionState.CLOSED


def test_a_broker_that_chooses_a_version_not_offered_is_left() -> None:
    """Also one whose HELLO cannot be read."""
    for header in (messages.encode_header(Command.HELLO, wire.HelloResponse(version=9)), b"\xff"):
        client = ClientConnection()
        client.hello()
        (event,) = client.receive_data(encode_frame(Command.HELLO, 0, 1, 0, header))
        assert isinstance(event, Closing)
        assert isinstance(event.error, UnsupportedVersion | ProtocolError)


def test_replies_in_front_of_damage_still_count() -> None:
    """An acknowledgement that arrived is an acknowledgement."""
    client, server = opened()
    (request,) = server.receive_data(joined(client.request(Command.PING, PING, context=1)[1]))
    assert isinstance(request, Request)
    answer = joined(server.reply(request.request_id, wire.PingResponse()))
    events = client.receive_data(answer + bytes(30))
    assert [type(event) for event in events] == [Reply, Closing]


def test_the_transitions_are_these() -> None:
    """The table is the documentation; CLOSED leads nowhere."""
    drawn = {(a.name, s.name): b.name for a, row in TRANSITIONS.items() for s, b in row.items()}
    assert drawn == {
        ("AWAITING_HELLO", "HELLO_ACCEPTED"): "OPEN",
        ("AWAITING_HELLO", "CHALLENGED"): "AUTHENTICATING",
        ("AWAITING_HELLO", "REFUSED"): "CLOSED",
        ("AWAITING_HELLO", "ENDED"): "CLOSED",
        ("AUTHENTICATING", "AUTHENTICATED"): "OPEN",
        ("AUTHENTICATING", "REFUSED"): "CLOSED",
        ("AUTHENTICATING", "ENDED"): "CLOSED",
        ("OPEN", "REFUSED"): "CLOSED",
        ("OPEN", "ENDED"): "CLOSED",
        ("CLOSED", "ENDED"): "CLOSED",
    }
    assert set(TRANSITIONS) == set(ConnectionState)
    assert {step for row in TRANSITIONS.values() for step in row} == set(Step)
