"""``vq gateway`` as a process, beside a cluster of processes."""

import contextlib
import signal
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from support.cluster import ProcessCluster

from vq.testing.waiting import PROCESSES_WAIT_S, block_until


@dataclass
class GatewayHere:
    """A gateway that runs.

    Attributes:
        port: Where it serves.
        metrics: Where its metrics are, as a URL.
        process: It.
        log: What it has said.
        tls: What it is reached with; None: plain HTTP.
    """

    port: int
    metrics: str
    process: "subprocess.Popen[bytes]"
    log: Path
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """Where it serves, as a URL."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        """Return a client of it."""
        return httpx.Client(base_url=self.url, timeout=PROCESSES_WAIT_S, verify=self.tls or True)

    def serves(self) -> bool:
        """Whether it answers."""
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(httpx.TransportError):
            url = f"{self.url}/openapi.json"
            return httpx.get(url, verify=self.tls or True).status_code == 200
        return False

    def stop(self) -> int:
        """Tell it to stop; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PROCESSES_WAIT_S)


@contextlib.contextmanager
def gateway_process(
    cluster: ProcessCluster,
    directory: Path,
    *more: str,
    environ: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[GatewayHere]:
    """Run a gateway of a cluster; ``more`` are further flags."""
    port, metrics = cluster.hold_port(), cluster.hold_port()
    log = directory / f"gateway-{port}.log"
    flags = ("--port", str(port), "--metrics-port", str(metrics), *more)
    with log.open("wb") as out:
        process = subprocess.Popen(
            cluster.command("gateway", *flags),
            env={**cluster.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        scheme = "http" if tls is None else "https"
        made = GatewayHere(port, f"{scheme}://127.0.0.1:{metrics}", process, log, tls)
        block_until(made.serves, log)
        yield made
    finally:
        process.kill()
        process.wait()
