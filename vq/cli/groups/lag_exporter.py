"""``vq lag-exporter``: how far consumer groups are behind, as metrics for Prometheus.

One process asks ZooKeeper and the brokers for all groups, at a bounded rate, however many scrape.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import click
from prometheus_client.metrics_core import Metric

from vq.cli.base.options import (
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    flag,
    https_options,
    option,
)
from vq.cli.base.settings import build
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.model import Address, check_host
from vq.operations.base.connect import cluster_client
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.cluster.lag_memory import LagMemory
from vq.operations.cluster.probe import ClusterProbe
from vq.operations.cluster.probe_metrics import probe_families
from vq.operations.groups.group_lags import PARTITIONS_MAX, GroupLags
from vq.operations.groups.lag_metrics import lag_families
from vq.remoting.exposition import metrics_page
from vq.remoting.http import HttpServer, Page, text_page
from vq.remoting.ports import check_plaintext
from vq.remoting.tls_files import TlsFiles
from vq.remoting.transport import Network, TcpNetwork
from vq.security.tls import ClientCertificates, Tls, TlsContexts, check_asked
from vq.shown import shown_raised

logger = get_logger(__name__)

PORT = 8122
INTERVAL_S = 30.0
INTERVAL_S_MIN = 1.0


class LagExporter:
    """Looks at the groups every so often and serves what the last look found. Loop-bound.

    Args:
        look: Reads all groups.
        interval_s: The pause between two looks; they never overlap.
        cluster: Name of the cluster.
        probe: What it tells of broker groups, too; None: nothing.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[GroupLags]],
        *,
        interval_s: float,
        cluster: str = "",
        probe: ClusterProbe | None = None,
    ) -> None:
        self._look = look
        self._probe = probe
        self._cluster = cluster
        self._interval_s = interval_s
        self._found = GroupLags()
        self._failed_looks = 0
        self._cause = ""
        self._page: Page | None = None  # of the last look
        self._making = asyncio.Lock()
        self._server = HttpServer(
            {"/metrics": self.metrics, "/healthz": self.health, "/readyz": self.readiness}
        )

    async def serve(self, network: Network, address: Address) -> Address:
        """Listen; return where.

        Raises:
            AddressUnavailable: The port is taken, or the address is not of this machine.
        """
        await self._server.listen(network, address)
        assert self._server.address is not None
        return self._server.address

    async def run(self) -> None:
        """Look for ever. A look that fails takes all numbers away: old ones would be wrong."""
        while True:
            try:
                self._found = await self._look()
                self._failed_looks, self._cause = 0, ""
            except Exception as error:  # noqa: BLE001 - a task's outer edge
                self._failed(error)
            self._page = None
            await asyncio.sleep(self._interval_s)

    def _failed(self, error: Exception) -> None:
        self._found = GroupLags()
        self._failed_looks += 1
        cause = str(error) if isinstance(error, VqError) else shown_raised(error)
        if self._cause != cause:
            logger.warning(
                "groups cannot be read, trying again later",
                error=cause,
                exc_info=None if isinstance(error, VqError) else error,
            )
        self._cause = cause

    async def close(self) -> None:
        """Stop listening."""
        await self._server.close()

    def families(self) -> Iterator[Metric]:
        """Return what is known now."""
        return lag_families(self._found, cluster=self._cluster, failed_looks=self._failed_looks)

    async def metrics(self) -> Page:
        """Return the page for Prometheus.

        The part about groups is made once for each look, in a second or so; that of the probe each
        time.
        """
        async with self._making:
            while (page := self._page) is None:
                found = self._found
                page = await metrics_page(self.families())
                if found is self._found:  # no look has ended meanwhile
                    self._page = page
        if self._probe is None:
            return page
        probed = await metrics_page(probe_families(self._probe.results()))
        return replace(page, body=page.body + probed.body)

    async def health(self) -> Page:
        """Return that the loop runs."""
        return text_page(200, "ok")

    async def readiness(self) -> Page:
        """Return whether the last look found something."""
        if self._found.time_ms:
            return text_page(200, "ready")
        return text_page(503, self._cause or "the groups have not been read yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How other machines are served: the settings of ``https_options``."""

    https: Tls | None = None
    https_client_certificates: ClientCertificates = ClientCertificates.NONE
    plaintext: bool = False


@click.command(name="lag-exporter")
@option("--host ADDRESS", "Where to listen.", default="127.0.0.1")
@option("--port N", "Port to listen on; 0 takes a free one.", WholeNumber(0, 65535), default=PORT)
@option(
    "--interval SECONDS",
    "Pause between two looks at the groups.",
    Seconds(min=INTERVAL_S_MIN),
    default=INTERVAL_S,
)
@flag("--no-count", "Leave out the lag in messages: less work.")
@flag("--probe", "Send a message a second to each broker group, and read it back.")
@https_options
@command_options
def lag_exporter(
    invocation: Invocation,
    host: str,
    port: int,
    interval: float,
    no_count: bool,
    probe: bool,
    **https: Any,
) -> None:
    """Serve the lag of all consumer groups as metrics for Prometheus.

    Runs until ctrl-C or SIGTERM. One exporter for a cluster is enough: it asks ZooKeeper and the
    brokers once in each interval, whoever scrapes. What is not known is absent, never 0.

    With --probe it makes a topic of one partition on each broker group, _vq.probe.GROUP, and tells
    how long messages take from end to end, and whether any is late or lost.
    """
    check_host(host)
    config = invocation.client_config()
    serving = build(Serving, "lag_exporter", invocation.sources.with_flags(**https))
    asked = serving.https_client_certificates
    contexts = None
    if serving.https is not None:
        contexts = TlsContexts(serving.https, client_certificates=asked, serves=True)
    check_asked("https_client_certificates", asked, serving.https)
    check_plaintext(
        {"host": host},
        encrypted=contexts is not None,
        plaintext=serving.plaintext,
        settings="https",
    )

    async def work() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with cluster_client(config) as cluster:
            probing = ClusterProbe(cluster) if probe else None
            memory = LagMemory()
            exporter = LagExporter(
                lambda: look_at_groups(
                    cluster, count=not no_count, partitions_max=PARTITIONS_MAX, memory=memory
                ),
                interval_s=interval,
                cluster=config.cluster,
                probe=probing,
            )
            network = TcpNetwork(server_ssl=None if contexts is None else contexts.server)
            address = await exporter.serve(network, Address(host, port))
            scheme = "http" if contexts is None else "https"
            invocation.output.remark(f"serving {scheme}://{address}/metrics")
            tasks = {
                asyncio.ensure_future(exporter.run()),
                asyncio.ensure_future(stop.wait()),
            }
            if contexts is not None:
                files = TlsFiles(contexts)
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, files.look_soon)
                tasks.add(asyncio.ensure_future(files.run()))
            if probing is not None:
                tasks.add(asyncio.ensure_future(probing.run()))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await exporter.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    invocation.run(work())
