"""Which connections are ended when there are too many: bounds and shares, without I/O.

A connection is *silent* until its HELLO was accepted. A silent connection costs its peer nothing,
so it never keeps out a newer one: at a bound the oldest silent connection is ended, and only when
there is none is the newcomer refused. Some places are kept for *favoured* addresses: those of the
machine itself, and those from which a client has said HELLO lately. Other connections, called
strangers', compete for the rest. An address of IPv6 counts as its network
(``remoting.ports.counted_address``).

    bound                              who goes, if somebody must
    silent connections of one address  the oldest of them
    connections of one address         its oldest silent one, else the newcomer
    silent connections, strangers'     the strangers' oldest
    silent connections                 the oldest, a stranger's first
    connections, strangers'            the strangers' oldest silent one, else the newcomer
    connections                        the oldest silent one, a stranger's first, else the newcomer
"""

from collections import Counter, OrderedDict
from typing import Final, Protocol

from vq.broker.base.config import ConnectionLimits
from vq.errors import Busy
from vq.remoting.ports import is_loopback

#: One place in so many, of silent ones and of all, is kept from strangers.
KEPT_PART: Final = 4
#: How long an address stays favoured after the last of its clients was seen.
KNOWN_S: Final = 600.0
#: Favoured addresses remembered; the one seen least recently is forgotten first.
KNOWN_MAX: Final = 4_096


class Peer(Protocol):
    """A connection, as far as this module looks at it."""

    @property
    def counted_as(self) -> str:
        """What its address counts as."""
        ...


Ended = list[tuple[Peer, Busy]]


class Admission:
    """The connections of a node that count towards its bounds.

    Invariant: after ``admit`` no bound is exceeded by those that are not in its answer.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._peers: dict[Peer, bool] = {}  # whether it is a stranger's
        self._strangers = 0
        self._by_address: Counter[str] = Counter()
        self._silent: dict[bool, dict[Peer, None]] = {True: {}, False: {}}  # strangers', others
        self._silent_by_address: dict[str, dict[Peer, None]] = {}
        self._known: OrderedDict[str, float] = OrderedDict()

    @property
    def silent(self) -> int:
        """How many connections have not said HELLO."""
        return len(self._silent[True]) + len(self._silent[False])

    def admit(self, peer: Peer, now: float) -> Ended:
        """Count a new connection; return those that must be ended for it, perhaps itself."""
        limits, address = self._limits, peer.counted_as
        stranger = not self._is_favoured(address, now)
        self._add(peer, stranger)
        of_address = self._silent_by_address[address]
        strangers_silent, others_silent = self._silent[True], self._silent[False]
        pools = [strangers_silent, others_silent]
        ended: Ended = []

        def keep(what: str, count: int, bound: int, *candidates: dict[Peer, None]) -> None:
            """End one of the candidates, or the newcomer, if ``count`` is above ``bound``."""
            if count <= bound or peer not in self._peers:
                return
            oldest = (next(iter(pool), peer) for pool in candidates)
            victim = next((each for each in oldest if each is not peer), peer)
            self.forget(victim)
            ended.append((victim, _why(what, bound, refused=victim is peer)))

        per_address = min(limits.before_hello_per_address_max, limits.before_hello_max)
        keep(f"silent connections from {address}", len(of_address), per_address, of_address)
        keep(
            f"connections from {address}",
            self._by_address[address],
            limits.per_address_max,
            of_address,
        )
        if stranger:
            keep(
                "silent connections of strangers",
                len(strangers_silent),
                _share(limits.before_hello_max),
                strangers_silent,
            )
            keep(
                "connections of strangers",
                self._strangers,
                _share(limits.connections_max),
                strangers_silent,
            )
        keep("silent connections", self.silent, limits.before_hello_max, *pools)
        keep("connections", len(self._peers), limits.connections_max, *pools)
        return ended

    def spoke(self, peer: Peer, now: float) -> None:
        """Note that a connection's HELLO was accepted."""
        if peer in self._peers:
            self._no_longer_silent(peer)
            self._see(peer.counted_as, now)

    def forget(self, peer: Peer, now: float | None = None) -> None:
        """Count a connection no more; with ``now``, remember the address of one that spoke."""
        stranger = self._peers.pop(peer, None)
        if stranger is None:
            return
        address = peer.counted_as
        self._strangers -= stranger
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if peer in self._silent[stranger]:
            self._no_longer_silent(peer, stranger)
        elif now is not None:
            self._see(address, now)

    def oldest_silent(self) -> Peer | None:
        """Return the silent connection to end first: a stranger's before others'."""
        return next((peer for pool in self._silent.values() for peer in pool), None)

    def _add(self, peer: Peer, stranger: bool) -> None:
        self._peers[peer] = stranger
        self._strangers += stranger
        self._by_address[peer.counted_as] += 1
        self._silent[stranger][peer] = None
        self._silent_by_address.setdefault(peer.counted_as, {})[peer] = None

    def _no_longer_silent(self, peer: Peer, stranger: bool | None = None) -> None:
        pool = self._silent[self._peers[peer] if stranger is None else stranger]
        pool.pop(peer, None)
        of_address = self._silent_by_address.get(peer.counted_as, {})
        of_address.pop(peer, None)
        if not of_address:
            self._silent_by_address.pop(peer.counted_as, None)

    def _is_favoured(self, address: str, now: float) -> bool:
        return now - self._known.get(address, -KNOWN_S) < KNOWN_S or is_loopback(address)

    def _see(self, address: str, now: float) -> None:
        self._known[address] = now
        self._known.move_to_end(address)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


def _share(bound: int) -> int:
    return bound - bound // KEPT_PART


def _why(what: str, bound: int, *, refused: bool) -> Busy:
    if refused:
        return Busy(f"too many {what}: at most {bound} are allowed; try again later")
    return Busy(
        f"too many {what}: at most {bound} are allowed, and this one is the oldest without a HELLO"
    )
