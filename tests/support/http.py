"""GET over any network, and what a page of metrics says."""

import asyncio
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from vq.model import Address
from vq.remoting.transport import Network
from vq.testing.waiting import WAIT_S


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str


class HttpPeer(asyncio.Protocol):
    """Sends whatever a test wants and keeps what comes back."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self.ended.set()

    async def answer(self) -> Answer:
        """Wait for the end of the connection; return what came before it."""
        async with asyncio.timeout(WAIT_S):
            await self.ended.wait()
        head, _, body = self.received.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert int(headers["Content-Length"]) == len(body)
        return Answer(int(first.split(" ")[1]), headers, body.decode())


async def http_peer(network: Network, address: Address) -> HttpPeer:
    """Return a connection."""
    return (await network.connect(address, HttpPeer))[1]


async def http_get(network: Network, address: Address, path: str) -> Answer:
    """Return the answer to a GET."""
    peer = await http_peer(network, address)
    peer.transport.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    return await peer.answer()


def samples(text: str) -> dict[str, float]:
    """Return the samples of a page: name and labels as the page has them, and the value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
