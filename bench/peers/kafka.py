"""Apache Kafka as one KRaft node, through confluent-kafka. Looked for in KAFKA_HOME and on PATH.

With its default settings Kafka leaves flushing to the operating system: page cache class. Told to
flush at every message (``log.flush.interval.messages=1``, in effect each batch that it appends) it
is measured a second time, in the fsync class.
"""

import contextlib
import functools
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import (
    FSYNC,
    PAGE_CACHE,
    Missing,
    Peer,
    Server,
    Values,
    check_received,
    find_program,
    need_client,
)
from vq.cli.workload import Outcomes, Ready, contents
from vq.devtools.zookeeper import free_port

_COUNT: Final = 500_000  # fewer are over before the measure has begun
_WARM: Final = 100_000  # the server compiles itself meanwhile
_POLL_EVERY: Final = 1_000
_TAKE: Final = 10_000
_WAIT_S: Final = 60.0


def _tool(name: str) -> str:
    home = os.environ.get("KAFKA_HOME", "/opt/kafka")
    return find_program(f"{name}.sh", f"{home}/bin/{name}.sh")


def check() -> str:
    """See ``Peer.check``."""
    _tool("kafka-storage")
    need_client("confluent_kafka", "confluent-kafka")
    said = subprocess.run(
        [_tool("kafka-server-start"), "--version"], capture_output=True, text=True, check=False
    )
    return said.stdout.partition(" ")[0].strip() or "?"


@contextlib.contextmanager
def running(directory: Path, *, durability: str) -> Iterator[Values]:
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
        + ("log.flush.interval.messages=1\n" if durability == FSYNC else "")
    )
    command = [_tool("kafka-storage"), "format", "-t", uuid.uuid4().hex, "-c", str(settings)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Missing(f"kafka-storage failed: {made.stderr.strip()[-300:]}")
    start = [_tool("kafka-server-start"), str(settings)]
    with Server(start, directory / "server.log", LOG_DIR=str(directory / "logs")) as server:
        server.wait_port(port)
        yield {"port": port}


# Client works -----------------------------------------------------------------------------------
def _producer(port: int, **settings: Any) -> Any:
    import confluent_kafka

    return confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "acks": "all",
            "enable.idempotence": True,
            "queue.buffering.max.messages": 2 * _COUNT,
            **settings,
        }
    )


def _reports_to(outcomes: Outcomes) -> Callable[[Any, Any], None]:
    return lambda error, _message: outcomes(None, error)


def _send_all(producer: Any, topic: str, bodies: list[bytes]) -> Outcomes:
    outcomes = Outcomes()
    delivered = _reports_to(outcomes)
    for number, body in enumerate(bodies):
        producer.produce(topic, body, on_delivery=delivered)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    producer.flush(_WAIT_S)
    return outcomes


def one_by_one(ready: Ready, *, port: int, seconds: float, size: int) -> dict[str, Any]:
    """Publish and wait for each acknowledgement."""
    bodies = contents(0, 0, 200_000, size)
    producer = _producer(port, **{"linger.ms": 0})
    _send_all(producer, "one", bodies[:1])
    outcomes = Outcomes()
    delivered = _reports_to(outcomes)
    ready()
    begin = time.perf_counter()
    sent = 0
    while (took := time.perf_counter() - begin) < seconds:
        producer.produce("one", bodies[sent], on_delivery=delivered)
        sent += 1
        while outcomes.acknowledged < sent and not outcomes.errors:
            producer.poll(_WAIT_S)
    outcomes.check(sent)
    return {"messages": sent, "seconds": took}


def pipelined(ready: Ready, *, port: int, count: int, size: int) -> dict[str, Any]:
    """Publish with a callback per message, idempotent, as fast as the client accepts them."""
    bodies = contents(0, 0, count, size)
    producer = _producer(port)
    _send_all(producer, "warm", contents(1, 0, min(_WARM, count), size))
    _send_all(producer, "bulk", [b"warm"])
    ready()
    begin = time.perf_counter()
    outcomes = _send_all(producer, "bulk", bodies)
    seconds = time.perf_counter() - begin
    outcomes.check(count)
    return {"messages": count, "seconds": seconds}


def consume(ready: Ready, *, port: int, count: int, size: int) -> dict[str, Any]:
    """Receive as a group's only member, 10 000 messages per call; examine each message."""
    import confluent_kafka

    received: list[bytes] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    consumer.subscribe(["bulk"])
    ready()
    first: list[Any] = []
    while not first:
        first = consumer.consume(1, _WAIT_S)  # the message that made the topic
    begin = time.perf_counter()
    while len(received) < count and time.perf_counter() < begin + _WAIT_S:
        received.extend(message.value() for message in consumer.consume(_TAKE, 1.0))
    seconds = time.perf_counter() - begin
    consumer.close()
    check_received(received, count, size)
    return {"messages": count, "seconds": seconds}


def _peer(name: str, durability: str) -> Peer:
    return Peer(
        name=name,
        durability=durability,
        client="confluent-kafka",
        check=check,
        running=functools.partial(running, durability=durability),
        works={
            "kafka_one_by_one": one_by_one,
            "kafka_pipelined": pipelined,
            "kafka_consume": consume,
        },
        one_by_one="kafka_one_by_one",
        pipelined="kafka_pipelined",
        consume="kafka_consume",
        messages=_COUNT,
    )


PEERS: Final = (_peer("Kafka, flush every batch", FSYNC), _peer("Kafka", PAGE_CACHE))
