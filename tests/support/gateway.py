"""A gateway to a cluster in memory, and clients of it without a socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from vq import aio
from vq.gateway.app import Gateway, gateway_app
from vq.gateway.bearer import make_token
from vq.gateway.config import GatewayConfig
from vq.gateway.tokens import entry_of
from vq.testing.waiting import until

BASE = "http://localhost"


@asynccontextmanager
async def gateway_of(factory: aio.MessageFactory, **settings: Any) -> AsyncIterator[Gateway]:
    """Provide a gateway; ``settings`` are those of its configuration."""
    gateway = gateway_app(GatewayConfig(**settings), factory)
    try:
        yield gateway
    finally:
        await gateway.close()


def http_client(gateway: Gateway, token: str = "") -> httpx.AsyncClient:
    """Return a client of a gateway in this process."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(gateway), base_url=BASE, headers=headers, timeout=None
    )


def token_file(path: Path, **rights: dict[str, Iterable[str]]) -> dict[str, str]:
    """Write a file of tokens; return the token of each name. ``rights``: of each, by kind."""
    tokens = {name: make_token() for name in rights}
    entries = [
        entry_of(
            name,
            tokens[name],
            write=given.get("write", ()),
            read=given.get("read", ()),
            groups=given.get("groups", ()),
        )
        for name, given in rights.items()
    ]
    path.touch(mode=0o600)
    path.write_text("\n".join(["version = 1", *entries]))
    return tokens


async def consumer_of(client: httpx.AsyncClient, **wanted: Any) -> str:
    """Create a consumer of topic ``t``; return its path."""
    form = {"group": "g", "subscriptions": [{"topic": "t"}], **wanted}
    answer = await client.post("/v1/consumers", json=form)
    assert answer.status_code == 201, answer.text
    path: str = answer.headers["Location"]
    return path


async def commit(client: httpx.AsyncClient, consumer: str, *positions: Any) -> httpx.Response:
    """Commit positions as answers have them."""
    return await client.post(f"{consumer}/commits", json={"positions": list(positions)})


def texts(answer: httpx.Response) -> list[str]:
    """Return the contents of an answer's messages."""
    assert answer.status_code == 200, answer.text
    return [each["text"] for each in answer.json()["messages"]]


class StreamPeer:
    """A request whose answer is read as it comes, or not at all.

    Attributes:
        status: Of the answer; 0: none has come.
        body: What has come of it.
        ended: The answer is whole.
    """

    def __init__(self, gateway: Gateway, path: str, *, token: str = "", last: str = "") -> None:
        headers = [(b"host", b"localhost")]
        if last:
            headers.append((b"last-event-id", last.encode()))
        if token:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8120),
        }
        self.status = 0
        self.body = b""
        self.ended = False
        self._reads = asyncio.Event()
        self._reads.set()
        self._gone = asyncio.Event()
        self.task = asyncio.ensure_future(gateway(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self._reads.wait()
        self.body += message["body"]
        self.ended = not message.get("more_body", False)

    def stop_reading(self) -> None:
        """Take nothing more."""
        self._reads.clear()

    async def leave(self) -> None:
        """Cut the connection, and wait for the end of the request."""
        self._gone.set()
        await self.task

    def events(self, kind: str = "message") -> list[dict[str, Any]]:
        """Return the data of the events that have come."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n") if line[:1] != ":")
            if lines.get("event") == kind:
                found.append({"event": lines.get("id"), **json.loads(lines["data"])})
        return found

    async def until_events(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many messages have come."""
        await until(lambda: len(self.events()) >= count)
        return self.events()
