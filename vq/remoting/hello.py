"""What HELLO agrees on: the version, who the server is, and whether the client may stay."""

from dataclasses import dataclass

from vq.errors import (
    AuthenticationFailed,
    UnsupportedVersion,
)
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import (
    VERSION_MAX,
    VERSION_MIN,
)
from vq.shown import shown

__all__ = ["ServerIdentity", "accept_anonymous", "negotiate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """A broker's identity in its answer to HELLO."""

    cluster: str
    group: str
    node: str
    incarnation: int = 0
    broker_version: str = ""


def accept_anonymous(hello: wire.HelloRequest) -> None:
    """Accept a client without an authentication mechanism; the default of ``ServerConnection``.

    Raises:
        AuthenticationFailed: The client names a mechanism, and this broker has none.
    """
    if hello.mechanism:
        raise AuthenticationFailed(
            f"this broker does not know mechanism {shown(hello.mechanism)}; leave it empty"
        )


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
