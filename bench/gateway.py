"""The HTTP gateway beside the client of vq, in turns in one process, with the same broker.

Its client here is a few lines over a socket: one that parses more would be measured, too.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import vq
from bench.context import Context, Rounds
from bench.figures import Figure
from bench.processor import processor_s
from bench.served import served
from vq import aio
from vq.cli.bench.workload import Ready, WorkFailed

SIZE: Final = 128
TOGETHER: Final = 100
#: Requests, or sends, that are under way at once.
AT_ONCE: Final = 16
#: Messages of one answer, and of one ``get_many``.
PULLED: Final = 500
GATEWAY: Final = ("gateway", "--metrics-port", "0")
SENDS: Final = {
    "send, one message a request": 1,
    f"send, {TOGETHER} messages a request": TOGETHER,
}
RECEIVES: Final = f"receive and commit, up to {PULLED} messages an answer"


def gateway(context: Context) -> Rounds:
    """Send and receive over HTTP and with ``vq.aio``."""
    for _ in range(context.rounds):
        with context.cluster() as cluster, served(cluster, GATEWAY, "/openapi.json") as (url, pid):
            figures = []
            for name, together in SENDS.items():
                topic = cluster.topic()
                requests = context.pick(10_000 if together == 1 else 2_000, 200)
                found = cluster.run(
                    "send_over_http",
                    topic=topic,
                    url=url.removeprefix("http://"),
                    requests=requests,
                    together=together,
                    pid=pid,
                )
                figures += _figures(name, found)
                if together == TOGETHER:
                    received = cluster.run(
                        "receive_over_http",
                        topic=topic,
                        url=url.removeprefix("http://"),
                        count=2 * requests * together,
                        pid=pid,
                    )
                    figures += _figures(RECEIVES, received)
                cluster.drop(topic)
            yield figures


def _figures(name: str, found: dict[str, Any]) -> list[Figure]:
    return [
        Figure(name, found["http"], "msg/s", found["aio"]),
        Figure(f"{name}: gateway's processor", found["processor_us"], "µs/msg"),
    ]


# In the client's process -------------------------------------------------------------------------
class HttpClient:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> "HttpClient":
        """Connect."""
        host, port = address.split(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=64 << 20))

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request; return the body of its answer.

        Raises:
            WorkFailed: It has no status of success.
        """
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        _, _, rest = head.lower().partition(b"content-length:")
        size = int(rest.partition(b"\r\n")[0] or 0)
        answer = await self._reader.readexactly(size)
        if head[9:10] != b"2":
            raise WorkFailed(f"{method} {path}: {head[:50]!r} {answer[:500]!r}")
        return answer

    async def close(self) -> None:
        """Disconnect."""
        self._writer.close()
        await self._writer.wait_closed()


async def _rate(work: Callable[[Any], Awaitable[int]], each: list[Any], count: int) -> float:
    """Run ``work`` with each until it has done ``count`` together; return how many a second."""
    left = itertools.count()

    async def run(one: Any) -> int:
        done = 0
        while next(left) < count:
            done += await work(one)
        return done

    begin = time.perf_counter()
    done = sum(await asyncio.gather(*map(run, each)))
    return done / (time.perf_counter() - begin)


def send_over_http(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    url: str,
    requests: int,
    together: int,
    pid: int,
) -> dict[str, Any]:
    """Send with the client, then over HTTP, in as many requests."""
    texts = [f"{number:0{SIZE}}" for number in range(together)]
    each = [vq.Message(topic, text.encode()) for text in texts]
    if together == 1:
        path, body = f"/v1/topics/{topic}/messages", json.dumps({"text": texts[0]}).encode()
    else:
        form = [{"topic": topic, "text": text} for text in texts]
        path, body = "/v1/messages", json.dumps({"messages": form}).encode()

    async def run() -> dict[str, Any]:
        async with aio.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
            producer = await factory.create_producer()
            peers = [await HttpClient.open(url) for _ in range(AT_ONCE)]

            async def plain(_: Any) -> int:
                if together == 1:
                    await producer.send(each[0])
                else:
                    await producer.send_batch(each)
                return together

            async def http(peer: HttpClient) -> int:
                await peer.ask("POST", path, body)
                return together

            await plain(None)
            await http(peers[0])
            ready()
            of_aio = await _rate(plain, peers, requests - 1)
            before = processor_s(pid)
            of_http = await _rate(http, peers, requests - 1)
            spent = processor_s(pid) - before
            for peer in peers:
                await peer.close()
        per_message = spent / ((requests - 1) * together) * 1e6
        return {"aio": of_aio, "http": of_http, "processor_us": per_message}

    return asyncio.run(run())


def receive_over_http(
    ready: Ready, *, client: dict[str, Any], topic: str, url: str, count: int, pid: int
) -> dict[str, Any]:
    """Receive all messages of a topic with the client, then over HTTP, each as one member."""

    async def run() -> dict[str, Any]:
        async with aio.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
            config = vq.ConsumerConfig(group=f"{topic}.aio")
            async with await factory.create_consumer(config) as consumer:
                consumer.subscribe(topic)
                first = await consumer.get_many(1, 10.0)
                ready()
                begin, done = time.perf_counter(), len(first)
                while done < count:
                    done += len(await consumer.get_many(PULLED, 10.0))
                of_aio = (count - len(first)) / (time.perf_counter() - begin)
        peer = await HttpClient.open(url)
        form = {"group": f"{topic}.http", "subscriptions": [{"topic": topic}]}
        made = json.loads(await peer.ask("POST", "/v1/consumers", json.dumps(form).encode()))
        here = f"/v1/consumers/{made['consumer']}"
        first_of_http = await _receive(peer, here, 1)
        before = processor_s(pid)
        begin, done = time.perf_counter(), first_of_http
        while done < count:
            done += await _receive(peer, here, PULLED)
        of_http = (count - first_of_http) / (time.perf_counter() - begin)
        spent = processor_s(pid) - before
        await peer.ask("DELETE", here)
        await peer.close()
        return {"aio": of_aio, "http": of_http, "processor_us": spent / count * 1e6}

    return asyncio.run(run())


async def _receive(peer: HttpClient, here: str, most: int) -> int:
    """Receive and commit; nothing is parsed but what is needed."""
    answer = await peer.ask("GET", f"{here}/messages?wait=10&max={most}")
    messages, _, positions = answer.rpartition(b',"commit":')
    if positions != b"[]}":
        await peer.ask("POST", f"{here}/commits", b'{"positions":' + positions)
    return messages.count(b'"next_offset":')


WORKS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "send_over_http": send_over_http,
    "receive_over_http": receive_over_http,
}
