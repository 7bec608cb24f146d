"""Who a client is: both ends of a connection until it is open, attacks included."""

import pytest
from google.protobuf.message import Message

from vq import limits
from vq.errors import (
    AuthenticationFailed,
    FrameTooLarge,
    InvalidArgument,
    InvalidRequest,
    InvalidState,
    NotAuthenticated,
    ProtocolError,
    VqError,
)
from vq.remoting import messages
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import (
    Challenged,
    ClientConnection,
    Closing,
    ConnectionState,
    Opened,
    ServerConnection,
)
from vq.remoting.format import Command
from vq.remoting.frames import Buffer, FrameParser, encode_frame
from vq.remoting.hello import ANONYMOUS, Authenticate, KnownPeer, ServerIdentity, UserCheck
from vq.remoting.login import Login
from vq.remoting.membership import ANYONE, Principal
from vq.security.scram import (
    MECHANISM,
    NONCE_BYTES,
    ScramUser,
    ServerChallenge,
    ServerFirst,
    derive,
)

IDENTITY = ServerIdentity(cluster="main", group="b1", node="n1")
SALT, ROUNDS = b"0123456789abcdef", 4_096
USERS = {"anna": ScramUser(SALT, ROUNDS, (derive("secret", SALT, ROUNDS).secret,))}


class Check:
    """An exchange of a broker that knows ``USERS``."""

    def __init__(self, user: str, challenge: ServerChallenge) -> None:
        self._user, self._challenge = user, challenge
        self.challenge = challenge.message

    def finish(self, data: bytes) -> tuple[KnownPeer, bytes]:
        secret, answer = self._challenge.finish(data)
        return KnownPeer(Principal("", "", proved=False, user=self._user), secret), answer


def begin(hello: wire.HelloRequest) -> KnownPeer | UserCheck | None:
    if hello.mechanism == ANONYMOUS:
        return None
    first = ServerFirst(hello.credentials)
    nonce = "5" * (2 * NONCE_BYTES)
    return Check(first.user, first.challenge(USERS.get(first.user), b"s" * 32, nonce))


def broker(authenticate: Authenticate = begin, *mechanisms: str) -> ServerConnection:
    return ServerConnection(
        IDENTITY, authenticate=authenticate, mechanisms=mechanisms or (MECHANISM,)
    )


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(buffers)


def frame(command: int, message: Message, *, correlation_id: int = 1) -> bytes:
    header = messages.encode_header(command, message)
    return encode_frame(command, 0, correlation_id, 0, header)


def error_of(connection: ServerConnection) -> VqError:
    *_, last = FrameParser().feed(joined(connection.data_to_send()))
    return messages.decode_error(last.status, last.header, last.flags)


def challenged(login: Login, server: ServerConnection) -> tuple[ClientConnection, Challenged]:
    """A client that was challenged."""
    client = ClientConnection(login)
    assert server.receive_data(joined(client.hello(cluster="main"))) == []
    (event,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(event, Challenged)
    assert client.state is server.state is ConnectionState.AUTHENTICATING
    return client, event


def opened(login: Login) -> tuple[ClientConnection, ServerConnection, bytes]:
    """Both ends when the password is proved, and the frame that proved it."""
    server = broker()
    client, event = challenged(login, server)
    proof = joined(client.authenticate(login.keys(*event)))
    (at_broker,) = server.receive_data(proof)
    (at_client,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(at_broker, Opened)
    assert isinstance(at_client, Opened)
    assert isinstance(at_client.hello, wire.HelloResponse)
    assert at_client.hello.node == "n1"
    return client, server, proof


def test_a_client_with_a_password_opens_a_connection() -> None:
    client, server, _ = opened(Login("anna", "secret"))
    assert client.state is server.state is ConnectionState.OPEN
    assert server.principal == Principal("", "", proved=False, user="anna")
    assert server.known.secret == USERS["anna"].secrets[0]


def test_keys_are_derived_once_for_a_salt() -> None:
    login = Login("anna", "secret")
    assert login.known_keys(SALT, ROUNDS) is None
    keys = login.keys(SALT, ROUNDS)
    assert login.known_keys(SALT, ROUNDS) is keys is login.keys(SALT, ROUNDS)
    for salt in range(10):  # a broker that draws salts does not make the client keep them all
        login.keys(bytes([salt]) * 16, ROUNDS)
    assert login.known_keys(SALT, ROUNDS) is None


@pytest.mark.parametrize("login", [Login("anna", "wrong"), Login("bert", "secret")])
def test_a_wrong_password_and_an_unknown_user_are_the_same(login: Login) -> None:
    server = broker()
    client, event = challenged(login, server)
    (closing,) = server.receive_data(joined(client.authenticate(login.keys(*event))))
    assert isinstance(closing, Closing)
    (seen,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(seen, Closing)
    assert type(seen.error) is NotAuthenticated
    assert seen.error.message == "the user is unknown, or the password is wrong"
    assert not seen.error.retriable
    assert server.principal is ANYONE


# Attacks on a client ------------------------------------------------------------------------------
def test_a_client_does_not_go_on_without_a_challenge() -> None:
    """A relay that offers only the empty mechanism learns nothing, and the client sends nothing."""
    client = ClientConnection(Login("anna", "secret"))
    first = joined(client.hello())
    assert b"secret" not in first
    stranger = ServerConnection(IDENTITY, authenticate=lambda _: KnownPeer(ANYONE))
    stranger.receive_data(first)
    (closing,) = client.receive_data(joined(stranger.data_to_send()))
    assert isinstance(closing, Closing)
    with pytest.raises(NotAuthenticated, match="without asking for the password"):
        raise closing.error
    with pytest.raises(InvalidState):
        client.request(Command.PUT, b"")


def test_a_client_does_not_try_another_mechanism() -> None:
    """A broker without users refuses it; that is the end, not an anonymous connection."""
    client, server = ClientConnection(Login("anna", "secret")), ServerConnection(IDENTITY)
    server.receive_data(joined(client.hello()))
    (closing,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, AuthenticationFailed)
    assert client.state is ConnectionState.CLOSED


def test_a_client_does_not_open_before_the_broker_has_proved_itself() -> None:
    login, server = Login("anna", "secret"), broker()
    client, event = challenged(login, server)
    (sent,) = FrameParser().feed(joined(client.authenticate(login.keys(*event))))
    with pytest.raises(InvalidState):
        client.request(Command.PUT, b"")
    header = messages.encode_header(
        Command.AUTHENTICATE, wire.AuthenticateResponse(data=b"v=" + b"A" * 43 + b"=")
    )
    answer = encode_frame(Command.AUTHENTICATE, 0, sent.correlation_id, 0, header)
    (closing,) = client.receive_data(answer)
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, NotAuthenticated)


@pytest.mark.parametrize("rounds", [1, 4_095, 16_385, 1_000_000_000])
def test_a_client_does_no_round_that_a_broker_must_not_ask_for(rounds: int) -> None:
    class Asks(Check):
        def __init__(self, hello: wire.HelloRequest) -> None:
            nonce = hello.credentials.decode().rpartition("=")[2]
            self.challenge = f"r={nonce}x,s=AAAA,i={rounds}".encode()

    client, server = ClientConnection(Login("anna", "secret")), broker(Asks)
    server.receive_data(joined(client.hello()))
    (closing,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(closing, Closing)
    with pytest.raises(NotAuthenticated, match="rounds"):
        raise closing.error


def test_a_challenge_that_nobody_asked_for_is_none() -> None:
    client, server = ClientConnection(), broker(lambda _: Check.__new__(Check))
    Check.challenge = b"x"  # type: ignore[attr-defined]
    try:
        server.receive_data(joined(client.hello()))
        (closing,) = client.receive_data(joined(server.data_to_send()))
    finally:
        del Check.challenge  # type: ignore[attr-defined]
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, ProtocolError)


def test_an_anonymous_client_is_told_that_it_needs_a_user() -> None:
    client, server = ClientConnection(), broker()
    assert server.receive_data(joined(client.hello())) == []
    (closing,) = client.receive_data(joined(server.data_to_send()))
    assert isinstance(closing, Closing)
    with pytest.raises(NotAuthenticated, match=r"no anonymous clients, .* it takes SCRAM-SHA-256"):
        raise closing.error
    assert "--user" in closing.error.hint


# Attacks on a broker ------------------------------------------------------------------------------
@pytest.mark.parametrize("login", [Login(), Login("anna", "secret")])
@pytest.mark.parametrize("command", [c for c in Command if c.access.value == "anyone"])
def test_nothing_is_carried_out_before_the_client_is_known(login: Login, command: Command) -> None:
    if command in {Command.HELLO, Command.AUTHENTICATE, Command.PROVE}:
        return
    server, client = broker(), ClientConnection(login)
    server.receive_data(joined(client.hello()))
    (closing,) = server.receive_data(frame(command, command.request(), correlation_id=9))
    assert isinstance(closing, Closing)
    assert isinstance(error_of(server), NotAuthenticated)
    assert server.state is ConnectionState.CLOSED


def test_a_request_behind_hello_does_not_slip_through() -> None:
    """Whatever pieces the bytes come in."""
    hello = joined(ClientConnection().hello())
    put = frame(Command.PUT, wire.PutRequest(topic="t"), correlation_id=2)
    for cut in range(len(hello + put)):
        server = broker()
        events = server.receive_data((hello + put)[:cut]) + server.receive_data((hello + put)[cut:])
        assert [type(each) for each in events] == [Closing]


def test_a_proof_that_was_recorded_is_none_on_another_connection() -> None:
    _, _, proof = opened(Login("anna", "secret"))
    server = broker()
    client = ClientConnection(Login("anna", "secret"))
    server.receive_data(joined(client.hello()))
    (closing,) = server.receive_data(proof)
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, NotAuthenticated)


def test_a_connection_has_one_exchange() -> None:
    """A second proof, a proof without a challenge, and one after a failure end the connection."""
    _, server, proof = opened(Login("anna", "secret"))
    (closing,) = server.receive_data(proof)
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, InvalidRequest)
    assert server.receive_data(proof) == []
    plain = ServerConnection(IDENTITY)
    plain.receive_data(joined(ClientConnection().hello()))
    (closing,) = plain.receive_data(proof)
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, InvalidRequest)


def test_a_user_does_not_become_a_member() -> None:
    """The cluster's secret is proved on a connection of its own."""
    _, server, _ = opened(Login("anna", "secret"))
    (closing,) = server.receive_data(frame(Command.PROVE, wire.ProveRequest(nonce=bytes(32))))
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, AuthenticationFailed)


def test_a_frame_is_small_until_the_client_is_known() -> None:
    """4 096 bytes, also after the challenge."""
    login, server = Login("anna", "secret"), broker()
    challenged(login, server)
    large = encode_frame(Command.AUTHENTICATE, 0, 3, 0, b"", 5_000)
    (closing,) = server.receive_data(large)
    assert isinstance(closing, Closing)
    error = error_of(server)
    assert isinstance(error, FrameTooLarge)
    assert error.details == {"max_bytes": limits.FRAME_BYTES_MAX_BEFORE_HELLO}


def test_behind_the_proof_a_frame_may_be_large() -> None:
    login, server = Login("anna", "secret"), broker()
    client, event = challenged(login, server)
    proof = joined(client.authenticate(login.keys(*event)))
    put = frame(Command.PUT, wire.PutRequest(topic="t" * 50_000), correlation_id=9)
    events = server.receive_data(proof + put)
    assert [type(each).__name__ for each in events] == ["Opened", "Request"]


# What may be given --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("user", "password", "said"),
    [
        ("../etc", "x", "user = '../etc'"),
        ("a b", "", "user = 'a b'"),
        ("", "hunter2", "no user"),
        ("anna", "hunter2\x00", "forbids"),
        ("anna", "hunter2" * 100, "700 bytes"),
    ],
)
def test_what_cannot_be_a_user_or_a_password_is_refused_at_once(
    user: str, password: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said) as refusal:
        Login(user, password)
    assert "hunter2" not in str(refusal.value)
    assert "hunter2" not in repr(Login("anna", "hunter2"))
