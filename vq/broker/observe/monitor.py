"""What a node tells whoever watches it: metrics and health, over HTTP, from the node's own loop.

    /metrics   for Prometheus; see ``metrics``
    /healthz   200: the event loop answers
    /readyz    200: the node does its work; 503 with the reasons, one a line

Nothing is counted for this page alone but times per batch, per flush and of the loop itself: a
scrape reads what is there. Without a port nothing of it exists.
"""

import asyncio
from collections.abc import Iterable
from itertools import chain
from typing import Final

from prometheus_client.metrics_core import Metric

from vq.broker.base.config import BrokerConfig
from vq.broker.base.facts import Table
from vq.broker.base.process import Process
from vq.broker.base.tasks import Tasks
from vq.broker.observe.metrics import families
from vq.broker.observe.survey import Survey
from vq.broker.observe.vitals import Vitals
from vq.errors import AddressUnavailable
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.exposition import metrics_page
from vq.remoting.http import HttpServer, Page, text_page
from vq.remoting.transport import Network

logger = get_logger(__name__)

#: The port that is taken unless another is named, and how many after it may be taken instead.
PORT: Final = 8124
PORTS: Final = 100


class Monitor:
    """Serves metrics and health of one node. Loop-bound.

    Args:
        config: Says where.
        table: The facts of the node.
        survey: Adds up what some of them need.
        vitals: Whether the node does its work.
        process: Has families of its own.
    """

    def __init__(
        self,
        config: BrokerConfig,
        table: Table,
        survey: Survey,
        vitals: Vitals,
        process: Process,
    ) -> None:
        self._config = config
        self._table = table
        self._survey = survey
        self._vitals = vitals
        self._process = process
        self._scraping = asyncio.Lock()
        self._server = HttpServer(
            {"/metrics": self.metrics, "/healthz": self.health, "/readyz": self.readiness}
        )

    @property
    def port(self) -> int:
        """Where it listens; 0: it does not."""
        address = self._server.address
        return 0 if address is None else address.port

    async def start(self, network: Network, tasks: Tasks) -> None:
        """Listen, unless the settings say not to.

        Raises:
            AddressUnavailable: The port that was named cannot be used.
        """
        if self._config.metrics_port == 0:
            return
        await self._listen(network)
        if not self.port:
            return
        self._vitals.start(tasks)
        scheme = "http" if self._config.tls is None else "https"
        url = f"{scheme}://{self._server.address}/metrics"
        logger.info("metrics and health are served", url=url)

    async def _listen(self, network: Network) -> None:
        host, named = self._config.metrics_host, self._config.metrics_port
        if named is not None:
            try:
                await self._server.listen(network, Address(host, named))
            except AddressUnavailable as error:
                raise AddressUnavailable(
                    f"metrics: {error}; choose another with --metrics-port, 0 serves none"
                ) from error
            return
        reason: AddressUnavailable | None = None
        for port in range(PORT, PORT + PORTS):
            try:
                await self._server.listen(network, Address(host, port))
            except AddressUnavailable as error:
                reason = error
            else:
                return
        logger.warning(
            "metrics are not served, no port is free",
            host=host,
            first=PORT,
            last=PORT + PORTS - 1,
            error=reason,
        )

    async def close(self) -> None:
        """Stop listening and cut who is being answered."""
        await self._server.close()

    # Pages --------------------------------------------------------------------------------------
    async def metrics(self) -> Page:
        """Return the page for Prometheus; those who ask meanwhile wait for their turn."""
        async with self._scraping:
            return await metrics_page(await self.families())

    async def families(self) -> Iterable[Metric]:
        """Return the families of metrics as they are now."""
        await self._survey.look()
        return chain(families(self._table), self._process.families())

    async def health(self) -> Page:
        """Return that the loop runs: it does, or nobody would see this."""
        return text_page(200, "ok")

    async def readiness(self) -> Page:
        """Return whether the node does its work, and if not, why."""
        reasons = self._vitals.not_ready()
        return text_page(503, "\n".join(reasons)) if reasons else text_page(200, "ready")
