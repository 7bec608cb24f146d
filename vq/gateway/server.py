"""The process of ``vq gateway``: its server, its metrics, and its end."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from vq.aio.factory import MessageFactory
from vq.client.config import MessageFactoryConfig
from vq.errors import AddressUnavailable
from vq.gateway.app import Gateway, gateway_app
from vq.gateway.config import GatewayConfig
from vq.gateway.connections import ConnectionBounds, protocol_for
from vq.gateway.quiet_server import QuietServer
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.exposition import metrics_page
from vq.remoting.http import HttpServer, Page, text_page
from vq.remoting.transport import TcpNetwork

logger = get_logger(__name__)

#: Connections that the kernel may hold before they are accepted.
_BACKLOG: Final = 1_024
_KEEP_ALIVE_S: Final = 75


class GatewayProcess:
    """A gateway that serves at an address. Loop-bound.

    Args:
        config: Where, and its bounds.
        factory: An open one; it is shut down after the gateway.
    """

    def __init__(self, config: GatewayConfig, factory: MessageFactory) -> None:
        self._config = config
        self.gateway: Gateway = gateway_app(config, factory)
        self._server: QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._monitor = HttpServer(
            {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._readiness}
        )
        self._socket: socket.socket | None = None

    @property
    def address(self) -> Address:
        """Where it serves."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return Address(host, port)

    @property
    def metrics_address(self) -> Address | None:
        """Where its metrics are; None: nowhere."""
        return self._monitor.address

    async def start(self) -> None:
        """Serve from now on.

        Raises:
            AddressUnavailable: It cannot listen at one of its addresses.
        """
        config = self._config
        self._socket = _listening(config.host, config.port)
        if config.metrics_port:
            address = Address(config.metrics_host, config.metrics_port)
            try:
                await self._monitor.listen(TcpNetwork(), address)
            except AddressUnavailable as error:
                self._socket.close()
                raise AddressUnavailable(
                    f"metrics: {error}; choose another with --metrics-port, 0 serves none"
                ) from error
        bounds = ConnectionBounds(
            config.connections_max, config.header_timeout_s, config.write_timeout_s
        )
        self._server = QuietServer(
            uvicorn.Config(
                self.gateway,
                http=protocol_for(bounds, self.gateway.unread),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=config.header_bytes_max,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(config.stop_timeout_s)),
                backlog=_BACKLOG,
            )
        )
        self._serving = asyncio.ensure_future(self._server.serve([self._socket]))

    async def failed(self) -> None:
        """Return when it serves no more although nobody has stopped it.

        Raises:
            Exception: Why.
        """
        assert self._serving is not None
        await asyncio.shield(self._serving)

    async def stop(self) -> None:
        """Answer what waits, have members leave, and end the connections."""
        await self.gateway.stop()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving})
        await self.gateway.close()
        await self._monitor.close()

    async def _metrics(self) -> Page:
        gateway = self.gateway
        return await metrics_page(gateway.counts.families(gateway.gauges()))

    async def _health(self) -> Page:
        return text_page(200, "ok")

    async def _readiness(self) -> Page:
        reason = self.gateway.not_ready()
        return text_page(503, reason) if reason else text_page(200, "ready")


async def run_gateway(
    config: GatewayConfig, client: MessageFactoryConfig, remark: Callable[[str], object]
) -> None:
    """Run a gateway until SIGTERM or SIGINT; ``remark`` is told where it serves.

    Raises:
        VqError: It cannot start; the message says why and what to do.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logger.info("connecting to ZooKeeper", servers=client.zookeeper)
    async with MessageFactory(client) as factory:
        process = GatewayProcess(config, factory)
        await process.start()
        logger.info(
            "gateway serves",
            url=f"http://{process.address}",
            metrics=process.metrics_address,
            tokens=config.tokens,
        )
        remark(f"serving http://{process.address}/v1, described at /openapi.json")
        failing = asyncio.ensure_future(process.failed())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({failing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await process.stop()
        await failing
    logger.info("gateway has stopped")


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound; the server listens.

    Raises:
        AddressUnavailable: The port is taken, or the address is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressUnavailable(f"cannot listen at {host}:{port}: {error}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise AddressUnavailable(f"cannot listen at {host}:{port}: {error}") from error
    return bound
