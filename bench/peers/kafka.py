"""Apache Kafka as one KRaft node, through aiokafka. Looked for in KAFKA_HOME and on PATH.

With its default settings Kafka leaves flushing to the operating system: page cache class.
"""

import asyncio
import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import PAGE_CACHE, Missing, Peer, Server, Values, find_program, need_client
from vq.cli.workload import Ready, WorkFailed, contents
from vq.coordination.embedded import free_port

_IN_FLIGHT: Final = 10_000


def _tool(name: str) -> str:
    home = os.environ.get("KAFKA_HOME", "/opt/kafka")
    return find_program(f"{name}.sh", f"{home}/bin/{name}.sh")


def check() -> str:
    """See ``Peer.check``."""
    _tool("kafka-server-start")
    _tool("kafka-storage")
    need_client("aiokafka", "aiokafka")
    return "?"


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Values]:
    """See ``Peer.running``."""
    port, control = free_port(), free_port()
    settings = directory / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{control}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={directory / 'data'}\nnum.partitions=1\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "group.initial.rebalance.delay.ms=0\n"
    )
    command = [_tool("kafka-storage"), "format", "-t", uuid.uuid4().hex, "-c", str(settings)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Missing(f"kafka-storage failed: {made.stderr.strip()[-300:]}")
    log = directory / "server.log"
    start = [_tool("kafka-server-start"), str(settings)]
    with Server(start, log, LOG_DIR=str(directory / "logs")) as server:
        server.wait_port(port)
        yield {"port": port}


# Client works -----------------------------------------------------------------------------------
def one_by_one(ready: Ready, *, port: int, seconds: float, size: int) -> dict[str, Any]:
    """Publish and wait for each acknowledgement."""

    async def work() -> dict[str, Any]:
        import aiokafka

        bodies = contents(0, 0, 200_000, size)
        address = f"127.0.0.1:{port}"
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
            await producer.send_and_wait("one", bodies[0])
            ready()
            begin = time.perf_counter()
            sent = 0
            while (took := time.perf_counter() - begin) < seconds:
                await producer.send_and_wait("one", bodies[sent])
                sent += 1
            return {"messages": sent, "seconds": took}

    return asyncio.run(work())


def pipelined(ready: Ready, *, port: int, count: int, size: int) -> dict[str, Any]:
    """Publish with up to 10 000 acknowledgements outstanding."""

    async def work() -> dict[str, Any]:
        import aiokafka

        bodies = contents(0, 0, count, size)
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{port}", acks="all", enable_idempotence=True, linger_ms=5
        ) as producer:
            await producer.send_and_wait("warm", b"warm")
            ready()
            begin = time.perf_counter()
            for at in range(0, count, _IN_FLIGHT):
                answers = [
                    await producer.send("bulk", body) for body in bodies[at : at + _IN_FLIGHT]
                ]
                await asyncio.gather(*answers)
            return {"messages": count, "seconds": time.perf_counter() - begin}

    return asyncio.run(work())


def consume(ready: Ready, *, port: int, count: int, size: int) -> dict[str, Any]:
    """Receive message by message as a group's only member."""

    async def work() -> dict[str, Any]:
        import aiokafka

        received: list[bytes] = []
        async with aiokafka.AIOKafkaConsumer(
            "bulk",
            bootstrap_servers=f"127.0.0.1:{port}",
            group_id="bench",
            auto_offset_reset="earliest",
        ) as consumer:
            ready()
            begin = 0.0
            async for message in consumer:
                if not received:
                    begin = time.perf_counter()
                received.append(message.value)
                if len(received) == count:
                    break
            seconds = time.perf_counter() - begin
        if received != contents(0, 0, count, size):
            raise WorkFailed(f"what arrived is not what was sent: {len(received)} of {count}")
        return {"messages": count - 1, "seconds": seconds}

    return asyncio.run(work())


PEER = Peer(
    name="Kafka",
    durability=PAGE_CACHE,
    client="aiokafka",
    check=check,
    running=running,
    works={
        "kafka_one_by_one": one_by_one,
        "kafka_pipelined": pipelined,
        "kafka_consume": consume,
    },
    one_by_one="kafka_one_by_one",
    pipelined="kafka_pipelined",
    consume="kafka_consume",
)
