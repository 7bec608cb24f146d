"""The process of a console: the database opened, and HTTP served until it is told to stop."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Final

import uvicorn

from vq import limits
from vq.console.app import ConsoleApp
from vq.console.config import ConsoleConfig
from vq.console.database.database import Database
from vq.errors import AddressUnavailable
from vq.gateway.connections import ConnectionBounds, protocol_for
from vq.gateway.quiet_server import QuietServer
from vq.gateway.unread import Unread
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.ports import check_plaintext, port_error
from vq.security.tls import TlsContexts

logger = get_logger(__name__)
#: Streams of news go on until they are cut: nothing is lost with them.
_STOP_S: Final = 1
_KEEP_ALIVE_S: Final = 75
_BOUNDS: Final = ConnectionBounds(
    connections_max=1_000, header_timeout_s=10.0, write_timeout_s=limits.WRITE_TIMEOUT_S
)
_UNREAD_MAX: Final = 64 * limits.MIB


class ConsoleServer(QuietServer):
    """Says when it listens."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[str], None], https: TlsContexts | None
    ) -> None:
        super().__init__(config, https)
        self._told = started

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listen, and say where."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._told(f"{self.scheme}://{Address(host, port)}/")


async def serve(config: ConsoleConfig, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        config: Of the console.
        started: Called with the address once it listens.

    Raises:
        DatabaseFailed: The database cannot be opened.
        AddressUnavailable: The port is taken, or the address is not of this machine.
        InvalidArgument: A file of TLS cannot be used, or there is none and other machines would be
            served.
    """
    check_plaintext(
        {"host": config.host},
        encrypted=config.https is not None,
        plaintext=config.plaintext,
        settings="https",
    )
    asked = config.https_client_certificates
    https = None
    if config.https is not None:
        https = TlsContexts(config.https, client_certificates=asked, serves=True)
    why = port_error(Address(config.host, config.port))
    if why is not None:
        raise AddressUnavailable(
            f"the console cannot listen at {config.host}:{config.port} ({why}); choose another "
            "with --port, 0 takes a free one"
        )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    database = Database(config.database)
    try:
        await asyncio.to_thread(database.upgrade)
        server = ConsoleServer(
            uvicorn.Config(
                ConsoleApp(config, database).asgi(),
                host=config.host,
                port=config.port,
                http=protocol_for(_BOUNDS, Unread(_UNREAD_MAX)),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # see BehindProxies
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_STOP_S,
                lifespan="on",
            ),
            started,
            https,
        )

        def stop() -> None:
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        if https is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.look_at_files)
        await server.serve()
    finally:
        database.close()
    logger.info("console has stopped")
