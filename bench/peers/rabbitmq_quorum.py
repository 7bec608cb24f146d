"""RabbitMQ's quorum queues on three nodes, through pika and aio-pika.

The leader of a queue confirms when a majority, two of three, has a message in its write-ahead log,
which each node syncs first: fsync class.
"""

import asyncio
import contextlib
import functools
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.peers import rabbitmq
from bench.peers.accounts import account
from bench.peers.cluster import NODES, STRUCK, ClusterPeer, Nodes
from bench.peers.peer import FSYNC, Missing, Server, find_program
from bench.peers.steady import Progress, publish_steadily
from vq.cli.bench.workload import Ready
from vq.remoting.ports import free_port

_KIND: Final = "quorum"
_WAIT_S: Final = 60.0
_CONFIRM_S: Final = 30.0
_PAUSE_S: Final = 0.05
_CTL_PLACES: Final = ("/usr/lib/rabbitmq/bin/rabbitmqctl",)
_PREFETCH: Final = 2_000


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Nodes]:
    """See ``ClusterPeer.running``. The nodes start one after the other and join the first one."""
    ports = [free_port() for _ in range(NODES)]
    names = [f"vqbench{port}@localhost" for port in ports]
    cookie = directory / ".erlang.cookie"
    cookie.write_text("VQBENCH")
    cookie.chmod(0o400)
    peers = "cluster_formation.peer_discovery_backend = classic_config\n" + "".join(
        f"cluster_formation.classic_config.nodes.{at} = {name}\n"
        for at, name in enumerate(names, start=1)
    )
    with contextlib.ExitStack() as stack:
        mapper_port = stack.enter_context(rabbitmq.mapper(directory))
        servers, environs = [], []
        for port, name in zip(ports, names, strict=True):
            own = directory / name
            own.mkdir()
            rabbitmq.configure(own, port, more=peers)
            environs.append(rabbitmq.environ_of(own, directory, name, port, mapper_port))
            command = [rabbitmq.server_program()]
            server = Server(command, own / "server.log", **environs[-1])
            servers.append(stack.enter_context(server))
            server.wait_port(port)
        _control(environs[0], "await_online_nodes", str(NODES))
        leader = functools.partial(_leader, ports, names, environs[0])
        yield Nodes(ports, servers, leader, {"kind": _KIND})


def _control(environ: dict[str, Any], *command: str) -> str:
    """Run rabbitmqctl; return what it prints.

    Raises:
        Missing: It failed.
    """
    program = [find_program("rabbitmqctl", *_CTL_PLACES), "-q", *command]
    asked = {**os.environ, **environ}
    del asked["RABBITMQ_DIST_PORT"]  # of the node, not of this command
    said = subprocess.run(
        program, env=asked, capture_output=True, text=True, check=False, timeout=_WAIT_S
    )
    if said.returncode:
        raise Missing(f"rabbitmqctl {command[0]} failed: {said.stderr.strip()[-300:]}")
    return said.stdout


def _leader(ports: list[int], names: list[str], environ: dict[str, Any], name: str) -> int:
    """Return which node leads a queue, with members on all nodes."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", ports[0]))
    connection.channel().queue_declare(name, durable=True, arguments=rabbitmq.arguments_of(_KIND))
    connection.close()
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        for line in _control(environ, "list_queues", "name", "leader", "online").splitlines():
            queue, leader, online = [*line.split("\t"), "", ""][:3]
            if queue == name and leader in names and online.count("@") == NODES:
                return names.index(leader)
        time.sleep(0.2)
    raise Missing(f"queue {name} had no three members after {_WAIT_S:g} s")


# Client works -----------------------------------------------------------------------------------
class _Line:
    """A connection to the first of several nodes that answers, made again when it breaks."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._lock = asyncio.Lock()
        self._connection: Any = None
        self._exchange: Any = None

    async def exchange(self) -> Any:
        """Return the exchange that publishes to queues by their names."""
        async with self._lock:
            while self._exchange is None or self._connection.is_closed:
                try:
                    await self._open()
                except Exception:  # noqa: BLE001 - the node is dead: the next one
                    self._exchange = None
                    self._ports = [*self._ports[1:], self._ports[0]]
                    await asyncio.sleep(_PAUSE_S)
            return self._exchange

    async def _open(self) -> None:
        import aio_pika

        url = f"amqp://guest:guest@127.0.0.1:{self._ports[0]}/"
        self._connection = await aio_pika.connect(url, timeout=5)
        channel = await self._connection.channel(publisher_confirms=True)
        self._exchange = channel.default_exchange

    def broken(self, exchange: Any) -> None:
        """Use this exchange no more."""
        if self._exchange is exchange:
            self._exchange = None

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()


def keep_sending(
    ready: Ready, *, ports: list[int], stream: int, in_flight: int, rate: float, size: int
) -> dict[str, Any]:
    """Publish; what a broken connection left unconfirmed is published again on another one."""

    async def work() -> dict[str, Any]:
        import aio_pika

        for library in ("aio_pika", "aiormq"):  # a lost connection is what is measured
            logging.getLogger(library).setLevel(logging.CRITICAL)
        line = _Line(ports)
        await line.exchange()

        async def publish(_number: int, body: bytes) -> None:
            persistent = aio_pika.DeliveryMode.PERSISTENT
            while True:
                exchange = await line.exchange()
                try:
                    message = aio_pika.Message(body, delivery_mode=persistent)
                    await exchange.publish(message, STRUCK, timeout=_CONFIRM_S)
                except Exception:  # noqa: BLE001 - of several libraries; each means: unconfirmed
                    line.broken(exchange)
                    await asyncio.sleep(_PAUSE_S)
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    line.broken(exchange)  # the client cancels what waits for its connection
                else:
                    return

        progress = Progress(stream=stream, size=size, in_flight=in_flight, rate=rate)
        result = await publish_steadily(ready, progress, publish)
        await line.close()
        return result

    return asyncio.run(work())


def read_back(
    ready: Ready,
    *,
    ports: list[int],
    sent: dict[str, int],
    failed: dict[str, list[int]],
    size: int,
    kind: str,
) -> dict[str, Any]:
    """Read the queue until it is empty, and judge it."""

    async def work() -> list[bytes]:
        import aio_pika

        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{ports[0]}/")
        received: list[bytes] = []
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=_PREFETCH)
            arguments = rabbitmq.arguments_of(kind)
            queue = await channel.declare_queue(STRUCK, durable=True, arguments=arguments)
            ready()
            news = asyncio.Event()

            async def take(message: Any) -> None:
                received.append(message.body)
                news.set()
                if len(received) % (_PREFETCH // 2) == 0:
                    await message.ack(multiple=True)

            await queue.consume(take)
            with contextlib.suppress(TimeoutError):
                while True:  # until nothing more comes
                    await asyncio.wait_for(news.wait(), 3.0)
                    news.clear()
        return received

    return account(
        asyncio.run(work()),
        {int(stream): count for stream, count in sent.items()},
        {int(stream): numbers for stream, numbers in failed.items()},
        size,
    ).as_json()


PEER: Final = ClusterPeer(
    name="RabbitMQ quorum queue",
    durability=FSYNC,
    acknowledged_by="2 of 3",
    flushed="before the acknowledgement",
    detection="a closed connection",
    client="pika, aio-pika (500 in flight)",
    check=rabbitmq.check,
    running=running,
    works={
        "rabbitmq_one_by_one": rabbitmq.one_by_one,
        "rabbitmq_pipelined": rabbitmq.pipelined,
        "rabbitmq_consume": rabbitmq.consume,
        "rabbitmq_keep_sending": keep_sending,
        "rabbitmq_read_back": read_back,
    },
    one_by_one="rabbitmq_one_by_one",
    pipelined="rabbitmq_pipelined",
    consume="rabbitmq_consume",
    keep_sending="rabbitmq_keep_sending",
    read_back="rabbitmq_read_back",
)
