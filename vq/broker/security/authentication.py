"""The broker's side of HELLO's mechanisms, and the end of connections whose user is gone.

    authentication  mechanisms that the broker takes
    off             the empty one alone; this module has no part in it
    optional        the empty one, and those of users
    required        those of users; members of the cluster prove their secret with PROVE

Nothing here waits: users are in memory, and a broker does no rounds of a password.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from vq.broker.security.accounts import USERS_TOLD_MAX
from vq.broker.security.attempts import FailedAttempts
from vq.broker.security.users import MirroredUsers
from vq.clock import Clock
from vq.errors import AuthenticationFailed, NotAuthenticated, VqError
from vq.log_lines import get_logger
from vq.remoting import wire_pb2 as wire
from vq.remoting.hello import ANONYMOUS, CERTIFICATE, KnownPeer, UserCheck
from vq.remoting.membership import ANYONE, Principal
from vq.security.certificates import CertificateRule, users_of
from vq.security.scram import (
    MECHANISM,
    NONCE_BYTES,
    SECRETS_MAX,
    ServerChallenge,
    ServerFirst,
)
from vq.shown import shown

logger = get_logger(__name__)

_GONE: Final = "user {!r} was removed, or its password or its roles were changed; connect again"


class AuthenticatedPeer(Protocol):
    """A connection, as far as this module looks at it."""

    address: str

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The certificate that TLS has verified, as ``getpeercert`` returns it; None: none."""
        ...

    @property
    def known(self) -> KnownPeer:
        """Who its peer is."""
        ...

    def end(self, error: VqError) -> None:
        """Tell the peer why, and close."""
        ...


class Authentication:
    """Who may connect to a broker. Loop-bound.

    Args:
        anonymous: Clients without a user may connect, too.
        users: As the broker knows them.
        secret: Returns the cluster's secret, to make up salts.
        random: Returns so many bytes that nobody can foresee.
        clock: For attempts.
        certificates: Rules that say whose a certificate is; none: no certificate is anybody's.

    Attributes:
        mechanisms: That it takes.
        attempts: That failed.
        users: See above.
    """

    def __init__(
        self,
        *,
        anonymous: bool,
        users: MirroredUsers,
        secret: Callable[[], bytes],
        random: Callable[[int], bytes],
        clock: Clock,
        certificates: Sequence[CertificateRule] = (),
    ) -> None:
        self.mechanisms = (
            *((ANONYMOUS,) if anonymous else ()),
            MECHANISM,
            *((CERTIFICATE,) if certificates else ()),
        )
        self._certificates = certificates
        self.attempts = FailedAttempts()
        self.users = users
        self._secret = secret
        self._random = random
        self._now = clock.monotonic

    def begin(
        self, peer: AuthenticatedPeer, hello: wire.HelloRequest
    ) -> KnownPeer | UserCheck | None:
        """Say who a client is by its HELLO; see ``hello.Authenticate``.

        Raises:
            AuthenticationFailed: The broker does not take the mechanism, or the client.
            NotAuthenticated: A certificate shall name the user, and may name none here.
            Busy: The address has failed too often, or users cannot be checked now.
        """
        mechanism = hello.mechanism
        if mechanism not in self.mechanisms:
            if mechanism == ANONYMOUS:
                return None
            if mechanism == CERTIFICATE:
                raise NotAuthenticated(
                    "there is no password, and this broker lets no certificate name a user "
                    "(certificate_users is empty)"
                )
            raise AuthenticationFailed(
                f"this broker does not take mechanism {shown(mechanism)}; it takes "
                f"{', '.join(filter(None, self.mechanisms))}"
            )
        if mechanism == ANONYMOUS:
            return KnownPeer(ANYONE)
        self.attempts.check(peer.address, self._now())
        if mechanism == CERTIFICATE:
            return self._of_certificate(peer, hello.credentials)
        first = ServerFirst(hello.credentials)
        user = self.users.find(first.user)
        return _PasswordCheck(
            self.users,
            first.user,
            first.challenge(
                None if user is None else user.scram,
                self._secret(),
                self._random(NONCE_BYTES).hex(),
            ),
        )

    def _of_certificate(self, peer: AuthenticatedPeer, named: bytes) -> KnownPeer:
        """Return whose the certificate of a connection is.

        Args:
            peer: The connection.
            named: Whom the client says that it is; empty: whoever the certificate is of.

        Raises:
            NotAuthenticated: There is none, it is nobody's, or it is of another user.
        """
        if not peer.certificate:
            raise NotAuthenticated(
                "the client has shown no certificate, so it needs a password: the broker asks for "
                "certificates with tls_client_certificates"
            )
        found = users_of(peer.certificate, self._certificates)
        name = named.decode("ascii", "replace") if named or len(found) != 1 else next(iter(found))
        user = self.users.find(name)
        if name not in found or user is None:
            raise NotAuthenticated(
                "the certificate of the client is not of this user, or the user is unknown"
            )
        return KnownPeer(
            Principal("", "", proved=False, user=name, roles=frozenset(user.roles)), None
        )

    def failed(self, peer: AuthenticatedPeer) -> None:
        """Note that a client did not show who it is."""
        self.attempts.fail(peer.address, self._now())
        self.users.doubt()

    def must_wait(self, peer: AuthenticatedPeer) -> bool:
        """Whether clients at the address of a peer have failed too often lately."""
        return self.attempts.are_too_many(peer.address, self._now())

    def revoke(self, user: str, peers: Iterable[AuthenticatedPeer]) -> int:
        """End the connections of a user that are not what the user is now; return how many."""
        ended = 0
        for peer in list(peers):
            known = peer.known
            if known.principal.user == user and not _holds(self.users, known):
                peer.end(NotAuthenticated(_GONE.format(user)))
                ended += 1
        if ended:
            logger.info("connections of a user ended", user=user, connections=ended)
        return ended

    def old_passwords(self, peers: Iterable[AuthenticatedPeer]) -> Mapping[tuple[str, ...], int]:
        """Return how many connections have proved the older of two passwords, by their user.

        Users of whom two are valid are in there, ``USERS_TOLD_MAX`` of them at most.
        """
        older = {
            name: user.secrets[-1].keys
            for name, user in self.users.known.items()
            if len(user.secrets) == SECRETS_MAX
        }
        told: dict[tuple[str, ...], int] = {(name,): 0 for name in sorted(older)[:USERS_TOLD_MAX]}
        for known in (each.known for each in peers if told):
            user = known.principal.user
            if (user,) in told and known.secret == older[user]:
                told[user,] += 1
        return told


class _PasswordCheck:
    """The broker's side of SCRAM after its challenge; see ``hello.UserCheck``."""

    def __init__(self, users: MirroredUsers, user: str, challenge: ServerChallenge) -> None:
        self._users = users
        self._user = user
        self._challenge = challenge
        self.challenge = challenge.message

    def finish(self, data: bytes) -> tuple[KnownPeer, bytes]:
        """See ``UserCheck.finish``."""
        secret, answer = self._challenge.finish(data)
        user = self._users.find(self._user)  # it may have changed since the challenge
        roles = frozenset(() if user is None else user.roles)
        known = KnownPeer(Principal("", "", proved=False, user=self._user, roles=roles), secret)
        if not _holds(self._users, known):
            raise NotAuthenticated(_GONE.format(self._user))
        return known, answer


def _holds(users: MirroredUsers, known: KnownPeer) -> bool:
    """Whether what a connection has shown is still true of its user."""
    user = users.known.get(known.principal.user)
    return (
        user is not None
        and frozenset(user.roles) == known.principal.roles
        and (known.secret is None or any(each.keys == known.secret for each in user.secrets))
    )
