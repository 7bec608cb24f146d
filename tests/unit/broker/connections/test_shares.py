"""Who may use how much of a bound, and whose turn it is."""

from collections.abc import Callable

import pytest

from vq import limits
from vq.broker.base.config import ConnectionLimits
from vq.broker.connections.shares import KEPT_PART, LITTLE_PART, SLICE, TurnLine, is_full


@pytest.mark.parametrize(
    ("used", "own", "full"),
    [
        (49_151, 65_000, False),
        (49_152, 16, True),
        (49_152, 15, False),
        (65_535, 15, False),
        (65_536, 0, True),
    ],
)
def test_the_example_of_the_module(used: int, own: int, full: bool) -> None:
    assert is_full(used, 65_536, own) is full


def test_what_is_kept_is_enough_for_all_connections_of_an_address() -> None:
    """None of which uses more than little: one address cannot fill a bound."""
    for bound in (ConnectionLimits().requests_waiting_max, ConnectionLimits().reads_waiting_max):
        little = bound // LITTLE_PART
        assert limits.CONNECTIONS_PER_ADDRESS_MAX * little <= bound // KEPT_PART


class Peer:
    """A connection with so many requests that wait."""

    def __init__(self, address: str, requests: int, told: Callable[["Peer", int], None]) -> None:
        self.counted_as = address
        self.requests = requests
        self._told = told

    def take_turn(self, count: int) -> tuple[int, bool]:
        """See ``WaitingPeer``."""
        taken = min(count, self.requests)
        self.requests -= taken
        self._told(self, taken)
        return taken, self.requests > 0


def test_addresses_take_turns_and_so_do_the_connections_of_one() -> None:
    turns: list[tuple[Peer, int]] = []

    def note(peer: Peer, count: int) -> None:
        turns.append((peer, count))

    line = TurnLine()
    first, second = (Peer("A", 1_000, note) for _ in range(2))
    single = Peer("B", 1, note)
    for peer in (first, second, single):
        line.add(peer)
    line.take(4 * SLICE)
    assert turns[:4] == [(first, SLICE), (single, 1), (second, SLICE), (first, SLICE)]
    assert sum(count for _, count in turns) == 4 * SLICE
    while line.addresses:
        line.take(100)
    assert first.requests == second.requests == 0


def test_who_joins_during_the_turn_of_a_neighbour_has_its_turn() -> None:
    """Also when both are of one address, and the neighbour was the only one of it."""
    line = TurnLine()
    turns: list[Peer] = []

    def join(peer: Peer, _: int) -> None:
        turns.append(peer)
        if peer is first and len(turns) == 1:
            line.add(second)

    first, second = Peer("A", 2 * SLICE, join), Peer("A", 1, join)
    line.add(first)
    assert line.take(100) == 2 * SLICE + 1
    assert turns == [first, second, first]
    assert not line.addresses


def test_who_has_left_has_no_turn() -> None:
    line = TurnLine()
    first, second = (Peer("A", 1, lambda *_: None) for _ in range(2))
    line.add(first)
    line.add(second)
    line.discard(first)
    assert line.take(100) == 1
    line.discard(second)
    assert (first.requests, second.requests, bool(line.addresses)) == (1, 0, False)


def test_looking_at_those_that_must_go_on_waiting_has_a_bound() -> None:
    line = TurnLine()
    looks: list[Peer] = []

    class Stuck(Peer):
        def take_turn(self, count: int) -> tuple[int, bool]:
            looks.append(self)
            return 0, True

    for number in range(1_000):
        line.add(Stuck(f"A{number}", 1, lambda *_: None))
    assert line.take(128) == 0
    assert len(looks) == 128 // SLICE
