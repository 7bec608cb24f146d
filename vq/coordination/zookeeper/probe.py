"""Finds out why servers give no session: one look at each address, after a start has failed.

kazoo tells of no cause. A look costs one connection and says which of these it is: the name cannot
be resolved, the connection is refused or closed at once, what listens is not ZooKeeper, or
ZooKeeper has no session for us.
"""

import asyncio
import socket
import ssl
from typing import Final

from vq.coordination.zookeeper.four_letter import is_of_zookeeper
from vq.model import Address
from vq.security.tls import TlsContexts, why_no_tls

#: Bound of all looks together.
PROBE_S: Final = 1.5
#: The word and an empty line, so that a server of HTTP and the like answers, too.
_SETTINGS: Final = "zookeeper_tls"
_ASK: Final = b"srvr\r\n\r\n"


async def why_no_session(servers: str, contexts: TlsContexts | None = None) -> str:
    """Return what is wrong with each server of a checked list, in at most ``PROBE_S`` seconds.

    ``contexts`` None: they are asked without TLS.
    """
    addresses = [Address.parse(each) for each in servers.split(",")]
    return "; ".join(await asyncio.gather(*(_look(each, contexts) for each in addresses)))


async def _look(address: Address, contexts: TlsContexts | None) -> str:
    connected = False
    context = None if contexts is None else contexts.client()
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
            connected = True
            try:
                writer.write(_ASK)
                answer = await reader.read(65_536)
            finally:
                writer.close()
    except TimeoutError:
        if connected:
            return (
                f"{address} accepts connections and does not answer: it hangs, or is not ZooKeeper"
            )
        return f"{address} does not answer"
    except (socket.gaierror, UnicodeError):
        return f"the name {address.host!r} cannot be resolved"
    except ConnectionRefusedError:
        return f"{address} refused the connection"
    except ssl.SSLError as error:
        return f"{address}: {why_no_tls(error, _SETTINGS)}"
    except OSError as error:
        if contexts is not None and isinstance(error, ConnectionError):
            return f"{address}: {why_no_tls(error, _SETTINGS)}"
        # A connection that is closed at once may be reset before it counts as made here.
        if not connected and not isinstance(error, ConnectionError):
            return f"{address} cannot be reached: {error.strerror or error}"
        answer = b""
    if is_of_zookeeper(answer.decode(errors="replace")):
        return f"ZooKeeper at {address} answers and gives no session"
    if not answer:
        return (
            f"{address} accepts connections and closes them at once, as ZooKeeper does when a host "
            "has as many as its maxClientCnxns allows (60 by default): close clients of this host, "
            "or raise maxClientCnxns in zoo.cfg and restart the server"
            + ("" if contexts else "; or it is a port for TLS: give zookeeper_tls_ca")
        )
    return f"the server at {address} is not ZooKeeper"
