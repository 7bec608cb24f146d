"""What one connection owes for what it has brought in vain; see ``vq.broker.base.debts``.

    what                                    costs
    a request that is refused               1, and 1 more for each ``REFUSED_BYTES``
    bytes of a request that never is whole  1 for each ``REFUSED_BYTES``, when the connection ends
    the same, of a connection that owes     as much, but while they come; it is given back when
                                            the request is whole
    bytes behind the end of a connection    1 for each ``REFUSED_BYTES``
    answers of which nothing is taken       ``UNTAKEN_COST``, once that has lasted ``UNTAKEN_S``

So whoever owes, and comes again to send large requests that never end, is read only as fast as
debts are paid. A connection of a user owes for that user at its address, any other one for its
address. Members of the cluster owe nothing.
"""

from typing import TYPE_CHECKING, Final

from vq.limits import KIB

if TYPE_CHECKING:
    from vq.broker.connections.broker_session import BrokerSession
    from vq.broker.connections.server import Server

#: So many bytes that were read in vain count as one refused request.
REFUSED_BYTES: Final = 16 * KIB
#: What others of the same debtor bring does not slow down a connection that owes less than this.
OWED_MIN: Final = 64.0
#: So many bytes of a request that is not whole yet cost nothing.
FREE_BYTES: Final = 64 * KIB
#: A peer that takes nothing of its answers for so long may be slow, or stopped. If many of one
#: debtor do, its new connections begin more rarely; these go on as soon as they take them.
UNTAKEN_S: Final = 1.0
UNTAKEN_COST: Final = 64.0


class Owing:
    """What a connection owes itself. Loop-bound.

    Each method takes the connection: one that is gone must not wait for the garbage collector.
    """

    __slots__ = ("_own", "_pledged", "_server", "_untaken")

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._own = 0.0
        self._pledged = 0.0  # for the bytes of a request that is not whole
        self._untaken = False  # the answers that wait now are paid for

    def is_much(self, session: "BrokerSession") -> bool:
        """Whether its debtor owes much, part of it for this connection: read no more from it."""
        return (
            self._own >= OWED_MIN
            and not session.principal.proved
            and self._server.owes_much(debtor_of(session))
        )

    def owe(self, session: "BrokerSession", amount: float) -> None:
        """Note a cost; ask ``is_much`` then."""
        if not session.principal.proved:
            self._own += amount
            self._enter(session, amount)

    def begin(self, session: "BrokerSession") -> None:
        """The connection is open: whoever owes much does not begin anew on another connection."""
        if self._server.owes_much(debtor_of(session)):
            self.suspect()

    def suspect(self) -> None:
        """Have it wait whenever its debtor owes much, whatever it owes itself."""
        self._own = max(self._own, OWED_MIN)

    def keep(self, session: "BrokerSession", size: int) -> None:
        """Note how many bytes are kept for it now; ask ``is_much`` then."""
        if self._own < OWED_MIN:
            return
        pledged = max(0, size - FREE_BYTES) / REFUSED_BYTES
        if pledged != self._pledged and not session.principal.proved:
            self._enter(session, pledged - self._pledged)
            self._pledged = pledged

    def leave(self, session: "BrokerSession", size: int) -> None:
        """The connection ends, with so many bytes that were read in vain."""
        amount, self._pledged = size / REFUSED_BYTES - self._pledged, 0.0
        if amount > 0:
            self.owe(session, amount)

    def untaken(self, session: "BrokerSession") -> None:
        """Its peer has taken nothing for ``UNTAKEN_S``; what it owes by itself stays the same."""
        if not self._untaken and not session.principal.proved:
            self._untaken = True
            self._enter(session, UNTAKEN_COST)

    def taken(self) -> None:
        """Its peer has taken its answers."""
        self._untaken = False

    def _enter(self, session: "BrokerSession", amount: float) -> None:
        self._server.debts.owe(debtor_of(session), amount, self._server.now())


def debtor_of(session: "BrokerSession") -> str:
    """Return for whom a connection owes. There is no ``@`` in an address."""
    user, address = session.principal.user, session.counted_as
    return f"{user}@{address}" if user else address
