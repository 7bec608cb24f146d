"""A proof holds for one side of one connection, and in time; all else ends the connection."""

from typing import Any

import pytest

from vq.clock import ManualClock
from vq.errors import AuthenticationFailed
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import ClientConnection, Closing, Request, ServerConnection
from vq.remoting.format import Command
from vq.remoting.hello import ServerIdentity
from vq.remoting.membership import (
    ANYONE,
    PROOF_TIMEOUT_S,
    Exchange,
    Principal,
    ProofCheck,
    Proving,
    Side,
    is_proof,
    proof,
)
from vq.remoting.messages import encode_header

SECRET = b"s" * 32
BROKER = Principal("b1", "n1")
ASKER = Principal("b1", "n2")
EXCHANGE = Exchange("c", ASKER, BROKER, b"a" * 32, b"b" * 32)


class Broker:
    """The broker's side, with a clock of its own and nonces b…, c…, …"""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.nonces = iter(bytes([each]) * 32 for each in range(ord("b"), 256))
        self.failures = 0
        self.proving = Proving(
            secret=lambda: SECRET,
            nonce=lambda: next(self.nonces),
            now=self.clock.monotonic,
            failed=self._failed,
        )

    def _failed(self) -> None:
        self.failures += 1

    def check(self) -> ProofCheck:
        return ProofCheck(self.proving, cluster="c", broker=BROKER)


def first(asker: Principal = ASKER, nonce: bytes = b"a" * 32, **more: Any) -> wire.ProveRequest:
    return wire.ProveRequest(group=asker.group, node=asker.node, nonce=nonce, **more)


def second(given: bytes, **more: Any) -> wire.ProveRequest:
    return wire.ProveRequest(proof=given, **more)


def test_both_ends_prove():
    check = Broker().check()
    exchange = EXCHANGE._replace(broker_nonce=check.take(first()).nonce)
    assert check.principal is ANYONE
    answer = check.take(second(proof(SECRET, Side.ASKER, exchange)))
    assert check.principal == ASKER
    assert is_proof(answer.proof, SECRET, Side.BROKER, exchange)
    assert not is_proof(answer.proof, b"t" * 32, Side.BROKER, exchange)


@pytest.mark.parametrize(
    "other",
    [
        EXCHANGE._replace(cluster="d"),
        EXCHANGE._replace(asker=Principal("b1", "n3")),
        EXCHANGE._replace(asker=Principal("b2", "n2")),
        EXCHANGE._replace(asker=Principal("", "")),
        EXCHANGE._replace(asker=Principal("b", "1n2")),  # the same letters, cut elsewhere
        EXCHANGE._replace(asker=Principal("b1n", "2")),
        EXCHANGE._replace(cluster="cb1", asker=Principal("", "n2")),
        EXCHANGE._replace(broker=Principal("b1", "n3")),
        EXCHANGE._replace(asker=BROKER, broker=ASKER),
        EXCHANGE._replace(asker_nonce=b"b" * 32, broker_nonce=b"a" * 32),
        EXCHANGE._replace(broker_nonce=b"c" * 32),
        EXCHANGE._replace(asker_nonce=b"c" * 32),
    ],
)
def test_a_proof_is_about_all_names_and_nonces(other):
    for side in Side:
        assert not is_proof(proof(SECRET, side, other), SECRET, side, EXCHANGE)


def test_a_proof_of_the_other_side_is_none():
    """So what a broker gives cannot be sent back to it."""
    check = Broker().check()
    check.take(first())
    with pytest.raises(AuthenticationFailed, match="does not know"):
        check.take(second(proof(SECRET, Side.BROKER, EXCHANGE)))
    assert check.principal is ANYONE


@pytest.mark.parametrize("given", [b"", b"x", bytes(32), proof(b"t" * 32, Side.ASKER, EXCHANGE)])
def test_a_wrong_proof_is_refused_and_told(given):
    """The secret may have been changed."""
    broker = Broker()
    check = broker.check()
    check.take(first())
    with pytest.raises(AuthenticationFailed, match="does not know the cluster's secret"):
        check.take(second(given))
    assert (check.principal, broker.failures) == (ANYONE, 1)


def test_a_proof_that_was_heard_on_another_connection_is_none():
    broker = Broker()
    one, two = broker.check(), broker.check()
    heard = proof(SECRET, Side.ASKER, EXCHANGE._replace(broker_nonce=one.take(first()).nonce))
    one.take(second(heard))
    two.take(first())
    with pytest.raises(AuthenticationFailed):
        two.take(second(heard))


@pytest.mark.parametrize(("late_s", "taken"), [(0, True), (0.1, False)])
def test_a_late_proof_is_refused(late_s, taken):
    broker = Broker()
    check = broker.check()
    check.take(first())
    broker.clock.advance(PROOF_TIMEOUT_S + late_s)
    given = second(proof(SECRET, Side.ASKER, EXCHANGE))
    if taken:
        check.take(given)
    else:
        with pytest.raises(AuthenticationFailed, match="later than 10 s"):
            check.take(given)
    assert check.principal.proved is taken


@pytest.mark.parametrize(
    "request_",
    [
        first(nonce=b""),
        first(nonce=b"a" * 31),
        first(nonce=b"a" * 33),
        first(proof=b"x"),
        first(Principal("b1", "")),
        first(Principal("", "n2")),
        first(Principal("b1", "a/b")),
        first(Principal("\x1b[2J", "n2")),
        wire.ProveRequest(),
    ],
)
def test_a_first_request_of_another_form_is_refused(request_):
    broker = Broker()
    with pytest.raises(AuthenticationFailed):
        broker.check().take(request_)
    assert next(broker.nonces) == b"b" * 32  # no challenge was made


def test_a_connection_has_one_exchange():
    """Otherwise somebody could change names after the proof, or have many MACs made."""
    check = Broker().check()
    check.take(first())
    with pytest.raises(AuthenticationFailed, match="a proof and nothing else"):
        check.take(first())
    check.take(second(proof(SECRET, Side.ASKER, EXCHANGE)))
    with pytest.raises(AuthenticationFailed, match="proved before"):
        check.take(first(Principal("b1", "n3")))
    assert check.principal == ASKER


# On a connection ------------------------------------------------------------------------------
class Wire:
    """Both ends of a connection, without a network."""

    def __init__(self, proving: Proving | None) -> None:
        self.client = ClientConnection()
        identity = ServerIdentity(cluster="c", group="b1", node="n1")
        self.server = ServerConnection(identity, proving=proving)
        self.server.receive_data(b"".join(self.client.hello()))
        self.answers()

    def answers(self) -> list[Any]:
        return self.client.receive_data(b"".join(self.server.data_to_send()))

    def frame(self, command: Command, message: Any, *, flags: int = 0) -> bytes:
        header = encode_header(command, message, flags)
        return b"".join(self.client.request(command, header, flags=flags)[1])


@pytest.mark.parametrize("flags", [0, 1])
def test_a_connection_answers_proofs_itself(flags):
    """Also in Hessian; what follows in the same bytes is the member's already."""
    wired = Wire(Broker().proving)
    assert wired.server.receive_data(wired.frame(Command.PROVE, first(), flags=flags)) == []
    assert len(wired.answers()) == 1
    given = wired.frame(Command.PROVE, second(proof(SECRET, Side.ASKER, EXCHANGE)), flags=flags)
    (event,) = wired.server.receive_data(given + wired.frame(Command.PING, wire.PingRequest()))
    assert isinstance(event, Request)
    assert wired.server.principal == ASKER
    assert len(wired.answers()) == 1
    assert wired.server.requests_in_flight == 1


def test_nothing_behind_a_wrong_proof_is_taken():
    wired = Wire(Broker().proving)
    data = [first(), second(b"x")]
    sent = b"".join(wired.frame(Command.PROVE, each) for each in data)
    sent += wired.frame(Command.PING, wire.PingRequest())
    (event,) = wired.server.receive_data(sent)
    assert isinstance(event, Closing)
    assert isinstance(event.error, AuthenticationFailed)
    assert wired.server.principal is ANYONE


def test_without_a_secret_no_proof_is_taken():
    wired = Wire(None)
    (event,) = wired.server.receive_data(wired.frame(Command.PROVE, first()))
    assert isinstance(event, Closing)
    assert isinstance(event.error, AuthenticationFailed)
