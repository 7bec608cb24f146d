"""For whom a proxy asks: ``X-Forwarded-For`` and ``X-Forwarded-Proto`` of proxies that are trusted.

Anybody can send these headers. They count if the peer is a trusted proxy, and each address in them
counts as far as the one that has added it, at its right, is a trusted proxy, too.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from vq.console.config import ProxyNetwork

_FOR: Final = b"x-forwarded-for"
_PROTO: Final = b"x-forwarded-proto"
_SCHEMES: Final = frozenset({"http", "https"})
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def client_of(peer: str, forwarded: Iterable[str], trusted: Sequence[ProxyNetwork]) -> str:
    """Return the address that a request is from.

    Args:
        peer: Address of the connection.
        forwarded: The headers ``X-Forwarded-For`` in their order.
        trusted: The proxies that are believed.
    """
    found = peer
    for hop in reversed([each for header in forwarded for each in header.split(",")]):
        if not is_trusted(found, trusted):
            break
        address = _address(hop)
        if address is None:  # "unknown", or nonsense: the proxy is all that is known
            break
        found = str(address)
    return found


def is_trusted(host: str, trusted: Sequence[ProxyNetwork]) -> bool:
    """Return whether an address is that of a proxy that is believed."""
    address = _address(host)
    return address is not None and any(address in each for each in trusted)


def _address(text: str) -> _Address | None:
    """Return an address as proxies write it: perhaps with a port, IPv6 perhaps in brackets."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


class BehindProxies:
    """Has an application see who asks by way of proxies, and over what.

    Args:
        app: The application.
        trusted: The proxies that are believed.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[ProxyNetwork]) -> None:
        self._app = app
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and scope.get("client"):
            peer, port = scope["client"]
            if is_trusted(peer, self._trusted):
                forwarded = _headers(scope, _FOR)
                scope["client"] = (client_of(peer, forwarded, self._trusted), port)
                said = ",".join(_headers(scope, _PROTO)).rpartition(",")[2].strip().lower()
                if said in _SCHEMES:
                    scope["scheme"] = said
        await self._app(scope, receive, send)


def _headers(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
