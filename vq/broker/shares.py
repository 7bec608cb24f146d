"""How the connections of a node share its bounds, and the turns of its loop.

A bound of the node holds for all connections together. So that those that use much of it do not
keep out the others, a quarter of it is kept for connections that use little. All that one address
may have (``per_address_max``), each with little, fit into that quarter.

Example, with a bound of 65 536 requests that wait:

    requests that wait     a connection with 16 of them or more    with fewer
    below 49 152           is read                                 is read
    up to 65 536           is not read                             is read
    65 536                 is not read                             is not read
"""

from collections import OrderedDict, deque
from typing import Final, Protocol

from vq.limits import KIB

#: One part in so many is kept for connections that use little ...
KEPT_PART: Final = 4
#: ... which is less than one part in so many.
LITTLE_PART: Final = 4_096

#: Requests handled in one turn of the loop, some 40 µs each; what else has come waits for the next
#: turns. That many come in one turn only from hundreds of busy clients, or from a peer that sent
#: thousands at once.
REQUESTS_PER_TURN: Final = 256
#: Of these, for requests that wait since an earlier turn, so that neither they nor new ones starve.
WAITED_PER_TURN: Final = REQUESTS_PER_TURN // 2
#: Requests of one connection that waited, before it is another one's turn.
SLICE: Final = 16
#: What a peer has sent is cut into requests piece by piece, each when the last one is handled.
PIECE_BYTES: Final = 16 * KIB
#: Cutting so many requests out of what a peer has sent costs about as much as handling one.
CUT_PER_REQUEST: Final = 4


def shared(bound: int) -> int:
    """Return the part of a bound that is not kept for connections that use little."""
    return bound - bound // KEPT_PART


def is_full(used: int, bound: int, own: int) -> bool:
    """Whether a connection that uses ``own`` of what all use may use no more."""
    return used >= bound or (used >= shared(bound) and own >= max(1, bound // LITTLE_PART))


class Waiting(Protocol):
    """A connection some of whose requests wait for a turn."""

    address: str

    def take_turn(self, count: int) -> tuple[int, bool]:
        """Handle up to ``count`` requests.

        Returns:
            How many turns of a request that took, and whether more requests wait.
        """
        ...


class Line:
    """Connections whose requests wait for a turn: addresses take turns, and so do theirs.

    Example: A sends thousands of requests over each of two connections, then B sends one. It is
    handled behind one slice of A's first connection.
    """

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, deque[Waiting]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def add(self, peer: Waiting) -> None:
        """Append a connection, once until ``take`` has told it that none of its requests waits."""
        self._addresses.setdefault(peer.address, deque()).append(peer)

    def take(self, count: int) -> None:
        """Have some ``count`` requests handled."""
        while count > 0 and self._addresses:
            address, line = self._addresses.popitem(last=False)
            peer = line.popleft()
            taken, more = peer.take_turn(min(SLICE, count))
            count -= max(1, taken)
            if more:
                line.append(peer)
            if line:
                self._addresses[address] = line
