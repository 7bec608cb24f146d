"""Whether a process is certainly dead: its machine says so, twice, with a pause in between.

A closed connection proves nothing, and a silent machine neither. A machine that refuses connections
to a port (ECONNREFUSED) has no process that listens there. It may do so for a moment while a
process begins or a firewall does, so one refusal is not enough.
"""

import asyncio
from typing import Final

from vq.errors import Unreachable
from vq.model import Address
from vq.remoting.transport import Network, nobody_listens

#: A process is dead when its machine refuses so many connections, with a pause.
REFUSALS: Final = 2
REFUSED_PAUSE_S: Final = 0.05


async def is_dead(network: Network, address: Address, *, timeout_s: float) -> bool:
    """Return whether a process that served at ``address`` is certainly dead.

    Without an answer within ``timeout_s`` it is not.
    """
    try:
        async with asyncio.timeout(timeout_s):
            for refusal in range(REFUSALS):
                if refusal:
                    await asyncio.sleep(REFUSED_PAUSE_S)
                try:
                    transport, _ = await network.connect(address, asyncio.Protocol)
                except Unreachable as error:
                    if not nobody_listens(error):
                        return False
                else:
                    transport.abort()
                    return False
    except TimeoutError:
        return False
    return True
