"""How the connections of a node share its bounds, and the turns of its loop.

A bound of the node holds for all connections together. So that those that use much of it do not
keep out the others, a quarter of it is kept for connections that use little. All that one address
may have (``per_address_max``), each with little, fit into that quarter.

Example, with a bound of 65 536 requests that wait:

    requests that wait     the next of a connection     of one with fewer
                           with 16 of them or more
    below 49 152           is handled                   is handled
    up to 65 536           waits                        is handled
    65 536                 waits                        waits

What a request brings counts as its connection's: who has no bytes of sends that wait, and sends
many at once, does not use little of them.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, Protocol

from vq.limits import KIB, MIB
from vq.remoting.connection import Closing, Opened, Request

#: One part in so many is kept for connections that use little ...
KEPT_PART: Final = 4
#: ... which is less than one part in so many.
LITTLE_PART: Final = 4_096

#: Requests handled in one turn of the loop, some 40 µs each; what else has come waits for the next
#: turns. That many come in one turn only from hundreds of busy clients, or from a peer that sent
#: thousands at once.
REQUESTS_PER_TURN: Final = 256
#: While more of them are left, one that was done at once needs no end of a turn for itself.
HASTENED_LEFT: Final = REQUESTS_PER_TURN - 16
#: Of these, for requests that wait since an earlier turn, so that neither they nor new ones starve.
WAITED_PER_TURN: Final = REQUESTS_PER_TURN // 2
#: Requests of one connection that waited, before it is another one's turn.
SLICE: Final = 16
#: Bytes of requests that are not whole, read in one turn of the loop, some 3 ms; connections that
#: bring more take turns, as those whose requests wait.
GATHERED_PER_TURN: Final = 4 * MIB
#: What a peer has sent is cut into requests piece by piece, each when the last one is handled.
PIECE_BYTES: Final = 16 * KIB
#: Likewise, before any of it waits, from the first small request on; some 100 fit in, 0.5 ms.
SMALL_PIECE_BYTES: Final = 4 * KIB
#: Cutting so many requests out of what a peer has sent costs about as much as handling one.
CUT_PER_REQUEST: Final = 4


def shared(bound: int) -> int:
    """Return the part of a bound that is not kept for connections that use little."""
    return bound - bound // KEPT_PART


def is_much(own: int, bound: int) -> bool:
    """Whether so much of a bound is not little."""
    return own >= max(1, bound // LITTLE_PART)


def is_full(used: int, bound: int, own: int) -> bool:
    """Whether a connection may use no more; it uses ``own``, of what all use, or comes to it."""
    return used >= bound or (used >= shared(bound) and is_much(own, bound))


class WaitingPeer(Protocol):
    """A connection some of whose requests wait for a turn."""

    @property
    def counted_as(self) -> str:
        """What its address counts as."""
        ...

    def take_turn(self, count: int) -> tuple[int, bool]:
        """Handle up to ``count`` requests.

        Returns:
            How many turns of a request that took, and whether more requests wait.
        """
        ...


class TurnLine:
    """Connections whose requests wait for a turn: addresses take turns, and so do theirs.

    An address is what one counts as: a network, for IPv6.

    Example: A sends thousands of requests over each of two connections, then B sends one. It is
    handled behind one slice of A's first connection.

    Attributes:
        addresses: The connections of each address that has some, in the order of their turns.
    """

    def __init__(self) -> None:
        self.addresses: OrderedDict[str, OrderedDict[WaitingPeer, None]] = OrderedDict()

    def add(self, peer: WaitingPeer) -> None:
        """Append a connection."""
        self.addresses.setdefault(peer.counted_as, OrderedDict())[peer] = None

    def discard(self, peer: WaitingPeer) -> None:
        """Remove a connection, if it is here."""
        line = self.addresses.get(peer.counted_as)
        if line is not None:
            line.pop(peer, None)
            if not line:
                del self.addresses[peer.counted_as]

    def take(self, count: int) -> int:
        """Have some ``count`` requests handled; return how many turns of a request that took.

        A connection none of whose requests could be handled costs as much as one's slice.
        """
        left = count
        handled = 0
        while left > 0 and self.addresses:
            address, line = next(iter(self.addresses.items()))
            self.addresses.move_to_end(address)
            peer = next(iter(line))
            self.discard(peer)
            taken, more = peer.take_turn(min(SLICE, left))
            left -= taken or SLICE
            handled += taken
            if more:
                self.add(peer)
        return handled


class WaitingInput:
    """What a peer has sent that waits, for a turn or for room, in one of the server's lines.

    Requests, and behind them bytes as they came; or nothing: it is to be read in its turn.
    """

    __slots__ = ("begun", "events", "line", "pieces", "size")

    def __init__(self, line: TurnLine) -> None:
        self.line = line
        self.events: deque[Opened | Request | Closing] = deque()
        self.pieces: deque[bytes] = deque()
        self.size = 0  # bytes of all, those of the events' piece included, but for
        self.begun = 0  # those of the first event that came before its piece

    def cut(self, events: Sequence[Opened | Request | Closing], size: int) -> None:
        """Take the requests that a piece of so many bytes has completed."""
        self.events.extend(events)
        if events and type(events[0]) is Request:
            self.begun = max(0, len(events[0].body) - size)
