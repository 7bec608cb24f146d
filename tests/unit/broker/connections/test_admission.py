"""Who must go when connections become too many."""

from dataclasses import dataclass

import pytest

from vq.broker.base.config import ConnectionLimits
from vq.broker.connections import admission
from vq.broker.connections.admission import KNOWN_S, Admission

LIMITS = ConnectionLimits(
    connections_max=20, per_address_max=8, before_hello_max=8, before_hello_per_address_max=4
)


@dataclass(eq=False)
class Peer:
    counted_as: str = "10.0.0.1"

    def __hash__(self) -> int:
        return id(self)


class Node:
    """An admission, and who is connected."""

    def __init__(self) -> None:
        self.admission = Admission(LIMITS)
        self.now = 1_000.0

    def connect(self, address: str = "10.0.0.1", *, speaks: bool = False) -> tuple[Peer, list]:
        peer = Peer(address)
        ended = self.admission.admit(peer, self.now)
        if speaks and peer not in [each for each, _ in ended]:
            self.admission.spoke(peer, self.now)
        return peer, [each for each, _ in ended]


@pytest.fixture
def node():
    return Node()


def test_the_oldest_silent_connection_of_an_address_goes_first(node):
    """A newcomer of the same address is let in, however many silent ones are there."""
    silent = [node.connect()[0] for _ in range(4)]
    for number in range(20):
        newest, ended = node.connect()
        assert ended == [silent[number]]
        silent.append(newest)
    assert node.admission.silent == 4


def test_one_that_spoke_is_not_ended_for_silent_ones(node):
    """HELLO takes a connection out of the competition."""
    client, _ = node.connect(speaks=True)
    for _ in range(50):
        assert client not in node.connect()[1]


def test_strangers_leave_places_to_the_machine_itself(node):
    """However many strangers there are, loopback has silent places of its own."""
    strangers = [node.connect(f"10.0.0.{n}")[0] for n in range(6)]
    mine = [node.connect("127.0.0.1")[1], node.connect("::1")[1]]
    assert mine == [[], []]
    assert node.connect("10.0.1.1")[1] == [strangers[0]]
    assert node.connect("127.0.0.1")[1] == [strangers[1]]


def test_an_address_that_spoke_lately_is_no_stranger(node):
    """Also after its connections are gone, for a while."""
    peer, _ = node.connect("10.9.9.9", speaks=True)
    node.admission.forget(peer, node.now)
    strangers = [node.connect(f"10.0.0.{n}")[0] for n in range(6)]
    assert node.connect("10.9.9.9")[1] == []
    node.now += KNOWN_S
    assert node.connect("10.9.9.9")[1] == [strangers[0]]


def test_of_too_many_addresses_the_one_seen_least_recently_is_forgotten(node, monkeypatch):
    """Whoever says HELLO now is remembered, however many did before."""
    monkeypatch.setattr(admission, "KNOWN_MAX", 2)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3"):
        peer, _ = node.connect(address, speaks=True)
        node.admission.forget(peer)
    seen = [f"10.0.0.{n}" for n in (1, 2, 3) if node.admission._is_favoured(f"10.0.0.{n}", 1_000.0)]
    assert seen == ["10.0.0.1", "10.0.0.3"]


def test_an_address_with_a_client_is_no_stranger(node):
    """From the first HELLO on, not only after that client has gone."""
    node.connect("10.9.9.9", speaks=True)
    for number in range(6):
        node.connect(f"10.0.0.{number}")
    assert node.connect("10.9.9.9")[1] == []


def test_strangers_that_speak_leave_places_too(node):
    """A quarter of all places is for favoured addresses, when nobody silent can go."""
    for n in range(15):
        assert node.connect(f"10.0.{n}.1", speaks=True)[1] == []
    newcomer, ended = node.connect("10.1.0.1")
    assert ended == [newcomer]
    for n in range(5):
        assert node.connect(f"127.0.0.{n + 1}", speaks=True)[1] == []
    newcomer, ended = node.connect("127.0.0.9")
    assert ended == [newcomer]


def test_an_address_is_bounded_whatever_its_connections_say(node):
    """With none silent the newcomer is refused; with one, that goes."""
    for _ in range(7):
        node.connect(speaks=True)
    silent, ended = node.connect()
    assert ended == []
    newcomer, ended = node.connect()
    assert ended == [silent]
    node.admission.spoke(newcomer, node.now)
    refused, ended = node.connect()
    assert ended == [refused]


def test_who_is_gone_does_not_count(node):
    """And may be forgotten twice."""
    for _ in range(100):
        peer, ended = node.connect(speaks=True)
        assert ended == []
        node.admission.forget(peer, node.now)
        node.admission.forget(peer, node.now)
    assert node.admission.silent == 0
    assert node.admission.oldest_silent() is None


def test_strangers_go_first_when_room_must_be_made(node):
    """The machine's own come last."""
    mine, _ = node.connect("127.0.0.1")
    stranger, _ = node.connect()
    assert node.admission.oldest_silent() is stranger
    node.admission.forget(stranger)
    assert node.admission.oldest_silent() is mine
