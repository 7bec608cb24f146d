"""The addresses of the ZooKeeper servers, as a setting: ``host:port[,host:port...]``."""

from vq.errors import InvalidArgument
from vq.model import Address

_PORT = 2181  # ZooKeeper's own default, for the example in an error


def checked_servers(servers: str) -> str:
    """Return the servers without white space around them; every one needs a port.

    Raises:
        InvalidArgument: One is not ``host:port``; the error says what to write.
    """
    entries = [entry.strip() for entry in servers.split(",")]
    for entry in entries:
        why = _what_is_wrong(entry)
        if why:
            raise InvalidArgument(f"zookeeper = {servers!r}: {why}")
    return ",".join(entries)


def _what_is_wrong(entry: str) -> str:
    scheme, mark, _ = entry.partition("://")
    if mark:
        return f"a scheme is not supported; leave out {scheme + mark!r}, write host:port"
    server, slash, path = entry.partition("/")
    if slash:
        return (
            f"a path is not supported; leave out {slash + path!r} (the setting cluster keeps "
            "clusters apart)"
        )
    try:
        if Address.parse(server).port > 0:
            return ""
    except InvalidArgument:
        pass
    if not server:
        return "a server is missing; write host:port[,host:port...]"
    host, colon, _ = server.partition(":")
    if not colon:
        return f"{server!r} has no port; write '{host}:{_PORT}'"
    return f"{server!r} is not host:port; write host:port[,host:port...]"
