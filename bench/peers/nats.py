"""NATS JetStream with file storage, through nats-py.

``NATS_SERVER`` names the server's program; without it, it is looked for on PATH.

An acknowledgement does not wait for the disk (the server syncs every two minutes): page cache
class.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import (
    PAGE_CACHE,
    PROGRESS_EVERY,
    Peer,
    Server,
    Values,
    check_received,
    need_client,
    program_of,
)
from vq.cli.bench.workload import Ready, contents
from vq.remoting.ports import free_port

_IN_FLIGHT: Final = 500


def program() -> str:
    """Return the path of the server."""
    return program_of("NATS_SERVER", "nats-server")


def check() -> str:
    """See ``Peer.check``."""
    server = program()
    need_client("nats", "nats-py")
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip().rpartition(" ")[2].lstrip("v")


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Values]:
    """See ``Peer.running``."""
    port = free_port()
    command = [program(), "-js", "-sd", str(directory / "data")]
    command += ["-a", "127.0.0.1", "-p", str(port)]
    with Server(command, directory / "server.log") as server:
        server.wait_port(port)
        yield {"port": port}


# Client works -----------------------------------------------------------------------------------
async def stream(port: int, name: str, replicas: int, timeout: float = 60) -> tuple[Any, Any]:
    import nats
    from nats.js.api import StorageType, StreamConfig

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    jetstream = client.jetstream(timeout=timeout)
    await jetstream.add_stream(
        StreamConfig(
            name=name,
            subjects=[f"{name}.messages"],
            storage=StorageType.FILE,
            num_replicas=replicas,
        )
    )
    return client, jetstream


def one_by_one(
    ready: Ready, *, port: int, seconds: float, size: int, replicas: int = 1
) -> dict[str, Any]:
    """Publish and wait for each acknowledgement."""

    async def work() -> dict[str, Any]:
        client, jetstream = await stream(port, "one", replicas)
        bodies = contents(0, 0, 200_000, size)
        ready()
        begin = time.perf_counter()
        sent = 0
        while (took := time.perf_counter() - begin) < seconds:
            await jetstream.publish("one.messages", bodies[sent])
            sent += 1
        await client.close()
        return {"messages": sent, "seconds": took}

    return asyncio.run(work())


def pipelined(
    ready: Ready, *, port: int, count: int, size: int, replicas: int = 1
) -> dict[str, Any]:
    """Publish with 500 acknowledgements outstanding."""

    async def work() -> dict[str, Any]:
        client, jetstream = await stream(port, "bulk", replicas)
        bodies = contents(0, 0, count, size)
        left = iter(bodies)

        async def publish() -> None:
            # Many that wait are three times as fast here as the client's own publish_async.
            for body in left:
                await jetstream.publish("bulk.messages", body)

        ready()
        begin = time.perf_counter()
        await asyncio.gather(*(publish() for _ in range(_IN_FLIGHT)))
        seconds = time.perf_counter() - begin
        await client.close()
        return {"messages": count, "seconds": seconds}

    return asyncio.run(work())


def consume(ready: Ready, *, port: int, count: int, size: int, replicas: int = 1) -> dict[str, Any]:
    """Receive with a push subscription; an acknowledgement covers all messages before it."""

    async def work() -> dict[str, Any]:
        from nats.js.api import AckPolicy, ConsumerConfig

        client, jetstream = await stream(port, "bulk", replicas)
        received: list[bytes] = []
        marks: list[float] = []
        ended = asyncio.Event()

        async def take(message: Any) -> None:
            received.append(message.data)
            number = len(received)  # before others append while this one waits
            if number in {1, count}:
                marks.append(time.perf_counter())
            if number % PROGRESS_EVERY == 0 or number == count:
                await message.ack()
            if number == count:
                ended.set()

        ready()
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10 * PROGRESS_EVERY)
        await jetstream.subscribe("bulk.messages", cb=take, manual_ack=True, config=config)
        await asyncio.wait_for(ended.wait(), 120)
        await client.close()
        check_received(received, count, size)
        return {"messages": count - 1, "seconds": marks[-1] - marks[0]}

    return asyncio.run(work())


PEER = Peer(
    name="NATS JetStream",
    durability=PAGE_CACHE,
    client="nats-py (500 in flight)",
    check=check,
    running=running,
    works={
        "nats_one_by_one": one_by_one,
        "nats_pipelined": pipelined,
        "nats_consume": consume,
    },
    one_by_one="nats_one_by_one",
    pipelined="nats_pipelined",
    consume="nats_consume",
)
