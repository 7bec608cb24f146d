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

from vq.broker.base.histogram import Histogram
from vq.broker.base.process import Process
from vq.broker.base.tasks import Tasks
from vq.broker.observe.metrics import BrokerMetrics, Facts
from vq.broker.observe.survey import survey
from vq.broker.observe.watched import Watched
from vq.coordination.tree.coordinator import Coordinator, SessionState
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
#: How often it is looked how late the loop is.
LOOK_S: Final = 0.25


class Monitor:
    """Serves metrics and health of one node. Loop-bound.

    Args:
        watched: What is told; its settings say where.
        coordinator: Knows the session.
        process: Has families of its own.

    Attributes:
        has_started: Set by the node once it does its work.
    """

    def __init__(
        self,
        watched: Watched,
        coordinator: Coordinator,
        process: Process,
    ) -> None:
        self._coordinator = coordinator
        self._process = process
        self._watched = watched
        self._metrics = BrokerMetrics(watched)
        self._sessions_ended = 0
        self._scraping = asyncio.Lock()
        self._server = HttpServer(
            {"/metrics": self.metrics, "/healthz": self.health, "/readyz": self.readiness}
        )
        self.has_started = False

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
        if self._watched.config.metrics_port == 0:
            return
        await self._listen(network)
        if not self.port:
            return
        self._coordinator.add_listener(self._on_session)
        tasks.start(_watch_loop(self._metrics.loop_lag))
        logger.info("metrics and health are served", url=f"http://{self._server.address}/metrics")

    async def _listen(self, network: Network) -> None:
        config = self._watched.config
        host, named = config.metrics_host, config.metrics_port
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
        watched = self._watched
        totals = await survey(watched.partitions.channels, watched.verifier.count_damage)
        facts = Facts(
            totals=totals,
            lags=watched.lags.aged(totals.lag) if watched.context.role.epoch else {},
            connected=self._coordinator.state is SessionState.CONNECTED,
            sessions_ended=self._sessions_ended,
            registered=watched.presence.is_registered,
            ready=not self.not_ready(),
        )
        return chain(self._metrics.families(facts), self._process.families())

    async def health(self) -> Page:
        """Return that the loop runs: it does, or nobody would see this."""
        return text_page(200, "ok")

    async def readiness(self) -> Page:
        """Return whether the node does its work, and if not, why."""
        reasons = self.not_ready()
        return text_page(503, "\n".join(reasons)) if reasons else text_page(200, "ready")

    def not_ready(self) -> list[str]:
        """Return why the node does not do its work."""
        watched = self._watched
        if not self.has_started:
            reasons = ["the node is starting"]
        elif not watched.gate.serves:
            reasons = ["the node is stopping"]
        else:
            reasons = watched.disks.not_ready
        if self._coordinator.state is not SessionState.CONNECTED:
            reasons.append(f"ZooKeeper does not answer: {self._coordinator.state.value}")
        elif not watched.presence.is_registered:
            reasons.append("the node is not registered in ZooKeeper")
        return reasons

    # Beside -------------------------------------------------------------------------------------
    def _on_session(self, state: SessionState) -> None:
        self._sessions_ended += state is SessionState.LOST


async def _watch_loop(lag: Histogram) -> None:
    """Note how late the loop runs what is due, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        lag.observe(max(0.0, loop.time() - due))
