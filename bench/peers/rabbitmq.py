"""RabbitMQ's classic queue: durable, persistent messages, publisher confirms.

A confirm of a persistent message in a durable classic queue comes after the message store was
synced to disk (RabbitMQ 3; seen with strace), so it is compared in the fsync class.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import FSYNC, PROGRESS_EVERY, Peer, Server, Values, find_program, need_client
from vq.cli.bench.workload import Ready, WorkFailed, contents
from vq.remoting.ports import free_port

_SERVER_PLACES: Final = ("/usr/lib/rabbitmq/bin/rabbitmq-server",)
_IN_FLIGHT: Final = 500


def check() -> str:
    """See ``Peer.check``."""
    server_program()
    find_program("epmd")
    need_client("pika", "pika")
    need_client("aio_pika", "aio-pika")
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return found[-1].name.partition("-")[2] if found else "?"


@contextlib.contextmanager
def mapper(directory: Path) -> Iterator[int]:
    """Start Erlang's port mapper; yield its port."""
    port = free_port()
    environ = {"ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(port)}
    command = [find_program("epmd"), "-address", "127.0.0.1", "-port", str(port)]
    with Server(command, directory / "server.log", **environ) as server:
        server.wait_port(port)
        yield port


def environ_of(directory: Path, home: Path, name: str, port: int, mapper_port: int) -> Values:
    """Return the environment of a node; its files are in ``directory``, its cookie in ``home``."""
    return {
        "HOME": str(home),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper_port),
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_FEATURE_FLAGS_FILE": str(directory / "feature_flags"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
    }


def configure(directory: Path, port: int, *, plugins: str = "", more: str = "") -> None:
    """Write the files of a node."""
    (directory / "plugins").write_text(f"[{plugins}].\n")
    (directory / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\n{more}"
    )


def server_program() -> str:
    """Return the path of the server.

    Raises:
        Missing: It is not installed.
    """
    return find_program("rabbitmq-server", *_SERVER_PLACES)


@contextlib.contextmanager
def broker(directory: Path, *, plugins: str = "", more: str = "") -> Iterator[Values]:
    """Start Erlang's port mapper and a RabbitMQ node; yield its AMQP port."""
    port = free_port()
    configure(directory, port, plugins=plugins, more=more)
    with mapper(directory) as mapper_port:
        name = f"vqbench{port}@localhost"
        environ = environ_of(directory, directory, name, port, mapper_port)
        with Server([server_program()], directory / "server.log", **environ) as server:
            server.wait_port(port)
            yield {"port": port}


# Client works -----------------------------------------------------------------------------------
def arguments_of(kind: str) -> dict[str, Any]:
    """Return the arguments of a queue: of the default kind, or a quorum queue that is led here."""
    return {"x-queue-type": kind, "x-queue-leader-locator": "client-local"} if kind else {}


def one_by_one(
    ready: Ready, *, port: int, seconds: float, size: int, kind: str = ""
) -> dict[str, Any]:
    """Publish with pika's blocking connection, each message confirmed before the next."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.queue_declare("one", durable=True, arguments=arguments_of(kind))
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2)
    bodies = contents(0, 0, 100_000, size)
    ready()
    begin = time.perf_counter()
    sent = 0
    while (took := time.perf_counter() - begin) < seconds:
        channel.basic_publish("", "one", bodies[sent], persistent, mandatory=True)
        sent += 1
    connection.close()
    return {"messages": sent, "seconds": took}


def pipelined(ready: Ready, *, port: int, count: int, size: int, kind: str = "") -> dict[str, Any]:
    """Publish with aio-pika, 500 waiting for their confirms at a time."""
    return asyncio.run(_pipelined(ready, port, contents(0, 0, count, size), kind))


async def _pipelined(ready: Ready, port: int, bodies: list[bytes], kind: str) -> dict[str, Any]:
    import aio_pika

    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.declare_queue("bulk", durable=True, arguments=arguments_of(kind))
        exchange = channel.default_exchange
        left = iter(bodies)

        async def publish() -> None:
            for body in left:
                message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await exchange.publish(message, "bulk")

        ready()
        begin = time.perf_counter()
        await asyncio.gather(*(publish() for _ in range(_IN_FLIGHT)))
        return {"messages": len(bodies), "seconds": time.perf_counter() - begin}


def consume(ready: Ready, *, port: int, count: int, size: int, kind: str = "") -> dict[str, Any]:
    """Receive with aio-pika; an acknowledgement covers all messages before it."""
    return asyncio.run(_consume(ready, port, count, size, kind))


async def _consume(ready: Ready, port: int, count: int, size: int, kind: str) -> dict[str, Any]:
    import aio_pika

    received: list[bytes] = []
    marks: list[float] = []
    ended = asyncio.Event()

    async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        received.append(message.body)
        number = len(received)  # before others append while this one waits
        if number in {1, count}:
            marks.append(time.perf_counter())
        if number % PROGRESS_EVERY == 0 or number == count:
            await message.ack(multiple=True)
        if number == count:
            ended.set()

    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=2 * PROGRESS_EVERY)
        queue = await channel.declare_queue("bulk", durable=True, arguments=arguments_of(kind))
        ready()
        await queue.consume(take)
        await asyncio.wait_for(ended.wait(), 120)
    if sorted(received) != contents(0, 0, count, size):
        raise WorkFailed(f"what arrived is not what was sent: {len(received)} of {count}")
    return {"messages": count - 1, "seconds": marks[-1] - marks[0]}


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Values]:
    """See ``Peer.running``."""
    with broker(directory) as values:
        yield values


PEER = Peer(
    name="RabbitMQ classic queue",
    durability=FSYNC,
    client="pika, aio-pika (500 in flight)",
    check=check,
    running=running,
    works={
        "rabbitmq_one_by_one": one_by_one,
        "rabbitmq_pipelined": pipelined,
        "rabbitmq_consume": consume,
    },
    one_by_one="rabbitmq_one_by_one",
    pipelined="rabbitmq_pipelined",
    consume="rabbitmq_consume",
)
