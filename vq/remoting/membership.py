"""Proof that the peer of a connection belongs to the cluster: it knows the cluster's secret.

    asker                                        broker
      │── PROVE: names, nonce a ────────────────▶│ remembers both for PROOF_TIMEOUT_S
      │◀─ nonce b ───────────────────────────────│
      │── PROVE: proof of the asker ────────────▶│ compares it: now the connection is a member's
      │◀─ proof of the broker ───────────────────│
      compares it, and sends its requests

Both proofs are HMAC-SHA-256 under the secret, of the side that gives it, the cluster, the names of
asker and broker, and both nonces. So neither a proof of another connection nor the peer's own one
sent back is a proof here. A connection has one exchange; what does not fit ends it.

The broker gives its own proof last: to somebody who does not know the secret, it gives none.
This module has no sockets, no clock and no randomness of its own.
"""

import enum
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vq.errors import AuthenticationFailed
from vq.limits import is_valid_name
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Access
from vq.shown import shown

NONCE_BYTES: Final = 32
#: A proof that comes later than this after its challenge is refused.
PROOF_TIMEOUT_S: Final = 10.0
#: Names what is proved, so that no MAC of a later use of the secret is a proof here.
_PURPOSE: Final = b"vq member 1"


class Principal(NamedTuple):
    """Who sends requests, as far as it has proved that.

    Attributes:
        group, node: Names of a node; both "" of a command of an operator, and of anyone else.
        proved: It belongs to the cluster, which is above users.
        user: The user that it has proved to be; "" of members and of anonymous clients.
        roles: Roles of the user, as the broker knew them when the connection was opened.
    """

    group: str
    node: str
    proved: bool = True
    user: str = ""
    roles: frozenset[str] = frozenset()

    def may(self, access: Access, group: str) -> bool:
        """Whether a broker of ``group`` carries out its requests of that access."""
        if access is Access.GROUP:
            return self.proved and self.group == group
        return self.proved or access is Access.ANYONE


ANYONE: Final = Principal("", "", proved=False)
OPERATOR: Final = Principal("", "")


class Side(enum.Enum):
    """Who gives a proof."""

    ASKER = b"asker"
    BROKER = b"broker"


class Exchange(NamedTuple):
    """What both proofs of one connection are about."""

    cluster: str
    asker: Principal
    broker: Principal
    asker_nonce: bytes
    broker_nonce: bytes


def proof(secret: bytes, side: Side, exchange: Exchange) -> bytes:
    """Return the proof that ``side`` gives."""
    asker, broker = exchange.asker, exchange.broker
    names = (exchange.cluster, asker.group, asker.node, broker.group, broker.node)
    fields = (
        _PURPOSE,
        side.value,
        *(name.encode() for name in names),
        exchange.asker_nonce,
        exchange.broker_nonce,
    )
    message = b"".join(len(each).to_bytes(4, "big") + each for each in fields)
    return hmac.digest(secret, message, "sha256")


def is_proof(given: bytes, secret: bytes, side: Side, exchange: Exchange) -> bool:
    """Return whether ``given`` is the proof of ``side``, in a time that tells nothing about it."""
    return hmac.compare_digest(given, proof(secret, side, exchange))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proving:
    """What a broker needs to check proofs, the same for all its connections.

    Attributes:
        secret: Returns the cluster's secret.
        nonce: Returns ``NONCE_BYTES`` bytes that nobody can foresee.
        now: Returns the time, in seconds.
        failed: Called after a wrong proof: perhaps the secret was changed.
    """

    secret: Callable[[], bytes] = field(repr=False)
    nonce: Callable[[], bytes]
    now: Callable[[], float]
    failed: Callable[[], None] = lambda: None


class ProofCheck:
    """The broker's side of the exchange of one connection.

    Args:
        proving: See there.
        cluster: Of the broker.
        broker: Its names, as its answer to HELLO has them.

    Attributes:
        principal: Who the peer has proved to be.
    """

    __slots__ = ("_began", "_broker", "_cluster", "_exchange", "_proving", "principal")

    def __init__(self, proving: Proving, *, cluster: str, broker: Principal) -> None:
        self._proving = proving
        self._cluster = cluster
        self._broker = broker
        self._exchange: Exchange | None = None
        self._began = 0.0
        self.principal = ANYONE

    def take(self, request: wire.ProveRequest) -> wire.ProveResponse:
        """Take the next request of the exchange, and return the answer.

        Raises:
            AuthenticationFailed: It is no proof; the connection must end.
        """
        if self.principal.proved:
            raise AuthenticationFailed("this connection was proved before")
        if self._exchange is None:
            return self._begin(request)
        return self._finish(request, self._exchange)

    def _begin(self, request: wire.ProveRequest) -> wire.ProveResponse:
        asker = Principal(request.group, request.node)
        if asker != OPERATOR and not all(map(is_valid_name, (asker.group, asker.node))):
            raise AuthenticationFailed(
                f"{shown(request.group)}/{shown(request.node)} is not the name of a node"
            )
        if len(request.nonce) != NONCE_BYTES or request.proof:
            raise AuthenticationFailed(
                f"the first PROVE has a nonce of {NONCE_BYTES} bytes and no proof"
            )
        nonce = self._proving.nonce()
        self._began = self._proving.now()
        self._exchange = Exchange(self._cluster, asker, self._broker, request.nonce, nonce)
        return wire.ProveResponse(nonce=nonce)

    def _finish(self, request: wire.ProveRequest, exchange: Exchange) -> wire.ProveResponse:
        proving = self._proving
        if request.group or request.node or request.nonce:
            raise AuthenticationFailed("the second PROVE has a proof and nothing else")
        if proving.now() - self._began > PROOF_TIMEOUT_S:
            raise AuthenticationFailed(
                f"the proof came later than {PROOF_TIMEOUT_S:g} s after its challenge"
            )
        secret = proving.secret()
        if not is_proof(request.proof, secret, Side.ASKER, exchange):
            proving.failed()
            raise AuthenticationFailed("the peer does not know the cluster's secret")
        self.principal = exchange.asker
        return wire.ProveResponse(proof=proof(secret, Side.BROKER, exchange))
