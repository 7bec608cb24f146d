"""An HTTP server that whoever runs it stops, with TLS whose files are read again."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final

import uvicorn

from vq.model import Address
from vq.remoting.tls_files import TlsFiles
from vq.remoting.transport import LISTEN_BACKLOG, TcpListener, TcpNetwork
from vq.security.tls import TlsContexts
from vq.tasks import begin_task

#: uvicorn's own, for an application that does not start.
_STARTUP_FAILED: Final = 3


class QuietServer(uvicorn.Server):
    """A server that leaves signals to whoever runs it; ``should_exit`` stops it.

    uvicorn has one TLS context for all connections, and waits a minute for a handshake. So with TLS
    the listener is that of brokers: it takes the context of each connection when it begins.

    Args:
        config: Of uvicorn, without TLS.
        https: What it serves TLS with; None: plain HTTP.
    """

    def __init__(self, config: uvicorn.Config, https: TlsContexts | None = None) -> None:
        super().__init__(config)
        self._https = https
        self._files: TlsFiles | None = None
        self._looking: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing."""
        yield

    @property
    def scheme(self) -> str:
        """Of its URLs."""
        return "http" if self._https is None else "https"

    def look_at_files(self) -> None:
        """Look now whether the files of TLS have changed."""
        if self._files is not None:
            self._files.look_soon()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See ``uvicorn.Server``."""
        https, config = self._https, self.config
        if https is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(_STARTUP_FAILED)

        def connection() -> asyncio.Protocol:
            kind: Any = config.http_protocol_class
            made: asyncio.Protocol = kind(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        if sockets is None:
            address = Address(config.host, config.port)
            listener = await TcpNetwork(server_ssl=https.server).listen(address, connection)
        else:
            for each in sockets:
                each.setblocking(False)
                each.listen(LISTEN_BACKLOG)
            listener = TcpListener(list(sockets), connection, server_ssl=https.server)
        self.servers = [listener]  # type: ignore[list-item]
        self._files = TlsFiles(https)
        self._looking = begin_task(self._files.run())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See ``uvicorn.Server``."""
        if self._looking is not None:
            self._looking.cancel()
        await super().shutdown(sockets)
