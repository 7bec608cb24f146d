"""What HELLO agrees on: the version, who the server is, and how the client shows who it is.

mechanism        credentials                 then
""               none                        the connection is open, and the client anonymous;
                                             or the broker takes no anonymous clients: PROVE
SCRAM-SHA-256    the client's first message  AUTHENTICATE, see ``vq.security.scram``
CERTIFICATE      the user                    the connection is open: TLS has shown who it is
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from vq.errors import (
    AuthenticationFailed,
    UnsupportedVersion,
)
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import (
    VERSION_MAX,
    VERSION_MIN,
)
from vq.remoting.membership import ANYONE, Principal
from vq.security.scram import ScramSecret
from vq.shown import shown

#: The mechanism of a client that shows nothing.
ANONYMOUS: Final = ""
#: The mechanism of a client whose TLS certificate names its user.
CERTIFICATE: Final = "CERTIFICATE"


class KnownPeer(NamedTuple):
    """Who the peer of a connection is.

    Attributes:
        principal: See there.
        secret: What the user has proved to know; None: nothing, or a certificate names the user.
    """

    principal: Principal
    secret: ScramSecret | None = None


class UserCheck(Protocol):
    """The broker's side of an exchange that has begun.

    Attributes:
        challenge: What the client gets.
    """

    challenge: bytes

    def finish(self, data: bytes) -> tuple[KnownPeer, bytes]:
        """Take the client's last message; return who it is, and the answer.

        Raises:
            NotAuthenticated: It is no proof; the connection must end.
        """


Authenticate = Callable[[wire.HelloRequest], KnownPeer | UserCheck | None]
"""Says who a client is by its HELLO, or asks for more; None: only a member may go on, by PROVE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """A broker's identity in its answer to HELLO."""

    cluster: str
    group: str
    node: str
    incarnation: int = 0
    broker_version: str = ""


def accept_anonymous(hello: wire.HelloRequest) -> KnownPeer:
    """Accept a client without an authentication mechanism; the default of ``ServerConnection``.

    Raises:
        AuthenticationFailed: The client names a mechanism, and this broker has none.
    """
    if hello.mechanism:
        raise AuthenticationFailed(
            f"the client has a user, and this broker asks nobody who he is (mechanism "
            f"{shown(hello.mechanism)}, authentication = off)",
            hint="give no user, or set `authentication` of the broker to optional or required",
        )
    return KnownPeer(ANYONE)


def negotiate(hello: wire.HelloRequest) -> int:
    """Return the highest version that both ends support.

    Raises:
        UnsupportedVersion: The ranges do not overlap; the details have the broker's range.
    """
    version = min(hello.version_max, VERSION_MAX)
    if version < max(hello.version_min, VERSION_MIN):
        raise UnsupportedVersion(
            f"the client supports versions [{hello.version_min}, {hello.version_max}], "
            f"this broker [{VERSION_MIN}, {VERSION_MAX}]",
            details={"version_min": VERSION_MIN, "version_max": VERSION_MAX},
        )
    return version
