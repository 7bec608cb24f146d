"""Ports of this machine: one that is free, and why one cannot be listened on. Blocking."""

import ipaddress
import socket
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from vq.errors import InvalidArgument
from vq.log_lines import get_logger
from vq.model import Address

logger = get_logger(__name__)
#: What listens here is reached from this machine alone.
LOOPBACK: Final = "127.0.0.1"
#: Bits of an IPv6 address that one subscriber does not choose; the other 64 anybody can change.
_IPV6_PREFIX: Final = 64


def is_loopback(host: str) -> bool:
    """Return whether an address is one of this machine alone.

    Args:
        host: An address, also one of IPv4 inside IPv6 and one with a zone; or ``localhost``.
    """
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def peer_address(peername: object) -> str:
    """Return the address in what a transport says of its peer."""
    return str(peername[0]) if isinstance(peername, tuple) and peername else str(peername)


@lru_cache(maxsize=4_096)
def counted_address(address: str) -> str:
    """Return what all is counted under that a peer at an address does: the one rule for that.

    Of IPv6 it is the network, as ``a::/64``: whoever has one address there has 2^64 of them. An
    address of IPv4 is itself, also where IPv6 carries it; so is that of the machine itself, and
    what is no address.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _IPV6_PREFIX), strict=False))


def check_plaintext(
    listens: Mapping[str, str], *, encrypted: bool, plaintext: bool, settings: str
) -> None:
    """Refuse to serve other machines without TLS unless that was said; then warn of it.

    Args:
        listens: Each setting with a host that is listened on, and the host.
        encrypted: They have TLS.
        plaintext: Somebody said that they need none.
        settings: What the names of the settings for TLS begin with.

    Raises:
        InvalidArgument: There are some, and nobody said so.
    """
    open_to_others = (
        {} if encrypted else {name: host for name, host in listens.items() if not is_loopback(host)}
    )
    for name, host in open_to_others.items():
        if plaintext:
            logger.warning("other machines are served without TLS", setting=name, host=host)
            continue
        raise InvalidArgument(
            f"{name} = {host!r} can be reached from other machines, and without TLS whoever is on "
            f"the way reads and changes what is sent: give {settings}_certificate and "
            f"{settings}_key (docs/howto/use-tls.md); or say plaintext = true (--plaintext, "
            "VQ_PLAINTEXT) if the network is yours alone; or listen on 127.0.0.1"
        )


def free_port(host: str = LOOPBACK) -> int:
    """Return a TCP port of ``host`` that was free a moment ago.

    Raises:
        OSError: The host is no address of this machine.
    """
    family, kind, protocol, _, place = _places(Address(host, 0))[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.bind(place)
        port: int = probe.getsockname()[1]
        return port


def port_error(address: Address) -> str | None:
    """Return why no server can listen at ``address`` now; None when one can."""
    try:
        _bind_once(address)
    except OSError as refused:
        return refused.strerror or str(refused)
    return None


def _bind_once(address: Address) -> None:
    """Bind the address and release it, in each address family of its host.

    Raises:
        OSError: It cannot be bound.
    """
    for family, kind, protocol, _, place in _places(address):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(place)


def _places(
    address: Address,
) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[object, ...]]]:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(found)
