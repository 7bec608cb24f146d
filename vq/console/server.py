"""The process of a console: the database opened, and HTTP served until it is told to stop."""

import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn

from vq.console.app import ConsoleApp
from vq.console.config import ConsoleConfig
from vq.console.database.database import Database

_STOP_S: Final = 5


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            found = self.servers[0].sockets[0].getsockname()
            host = f"[{found[0]}]" if ":" in found[0] else found[0]
            self._told(f"http://{host}:{found[1]}/")


def serve(config: ConsoleConfig, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        config: Of the console.
        started: Called with the address once it listens.

    Raises:
        DatabaseFailed: The database cannot be opened.
        InvalidArgument: A setting is not valid.
    """
    database = Database(config.database)
    try:
        database.upgrade()
        app: Any = ConsoleApp(config, database).asgi()
        settings = uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_S,
            lifespan="on",
        )
        _Server(settings, started).run()
    finally:
        database.close()
