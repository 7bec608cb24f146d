"""Apache Kafka as one KRaft node, through confluent-kafka.

Looked for in ``KAFKA_JARS``, a directory with kafka_2.13 and all jars that it needs, then in
``KAFKA_HOME`` and on PATH.

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
from statistics import median
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
from vq.cli.bench.workload import Outcomes, Ready, contents
from vq.remoting.ports import free_port

_COUNT: Final = 500_000  # fewer are over before the measure has begun
_WARM: Final = 100_000  # the server compiles itself meanwhile
_POLL_EVERY: Final = 1_000
_TAKE: Final = 10_000
_WAIT_S: Final = 60.0
_STORAGE: Final = "kafka-storage"
_SERVER: Final = "kafka-server-start"
_CLASSES: Final = {_STORAGE: "kafka.tools.StorageTool", _SERVER: "kafka.Kafka"}
#: Those of Kafka's own scripts.
_JAVA_OPTIONS: Final = (
    "-server",
    "-Xms1G",
    "-Xmx1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


def command(tool: str) -> list[str]:
    """Return the command of one of Kafka's tools.

    Raises:
        Missing: Kafka is not here.
    """
    jars = os.environ.get("KAFKA_JARS")
    if jars:
        if not list(Path(jars).glob("kafka_2.13-*.jar")):
            raise Missing(f"KAFKA_JARS names {jars}, which has no kafka_2.13-*.jar")
        return [find_program("java"), *_JAVA_OPTIONS, "-cp", f"{jars}/*", _CLASSES[tool]]
    home = os.environ.get("KAFKA_HOME", "/opt/kafka")
    try:
        return [find_program(f"{tool}.sh", f"{home}/bin/{tool}.sh")]
    except Missing:
        raise Missing(
            f"{tool}.sh is not installed, and KAFKA_JARS names no directory of jars"
        ) from None


def check() -> str:
    """See ``Peer.check``."""
    start = command(_SERVER)
    need_client("confluent_kafka", "confluent-kafka")
    said = subprocess.run([*start, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.partition(" ")[0].strip() or "?"


def server_command() -> list[str]:
    """Return the command of a node, without its settings."""
    return command(_SERVER)


def format_storage(settings: Path, cluster_id: str) -> None:
    """Make the data directory of a node.

    Raises:
        Missing: The tool failed; shows what it said.
    """
    tool = [*command(_STORAGE), "format", "-t", cluster_id, "-c", str(settings)]
    made = subprocess.run(tool, capture_output=True, text=True, check=False)
    if made.returncode:
        raise Missing(f"kafka-storage failed: {(made.stderr or made.stdout).strip()[-300:]}")


@contextlib.contextmanager
def running(directory: Path, *, durability: str, partitions: int = 1) -> Iterator[Values]:
    """See ``Peer.running``; a topic that is made on first use has so many partitions."""
    port, control = free_port(), free_port()
    settings = directory / "server.properties"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{control}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={directory / 'data'}\nnum.partitions={partitions}\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "group.initial.rebalance.delay.ms=0\n"
        + ("log.flush.interval.messages=1\n" if durability == FSYNC else "")
    )
    format_storage(settings, uuid.uuid4().hex)
    start = [*server_command(), str(settings)]
    with Server(start, directory / "server.log", LOG_DIR=str(directory / "logs")) as server:
        server.wait_port(port)
        yield {"port": port}


# Client works -----------------------------------------------------------------------------------
def producer_of(port: int, **settings: Any) -> Any:
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
    producer = producer_of(port, **{"linger.ms": 0})
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
    producer = producer_of(port)
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


def transact(
    ready: Ready, *, port: int, turns: int, size: int, messages: int, topics: int
) -> dict[str, Any]:
    """Send messages plainly and in a transaction, ``turns`` times each; return the median times."""
    bodies = contents(0, 0, messages, size)
    names = [f"together-{number}" for number in range(topics)]
    plainly = producer_of(port, **{"linger.ms": 0})
    together = producer_of(port, **{"linger.ms": 0, "transactional.id": "bench"})
    together.init_transactions(_WAIT_S)

    def send(producer: Any) -> None:
        for number, body in enumerate(bodies):
            producer.produce(names[number % topics], body)

    def plain() -> None:
        send(plainly)
        plainly.flush(_WAIT_S)

    def transaction() -> None:
        together.begin_transaction()
        send(together)
        together.commit_transaction(_WAIT_S)

    def timed(way: Callable[[], None]) -> float:
        begin = time.perf_counter()
        way()
        return (time.perf_counter() - begin) * 1e3

    for _ in range(turns):  # the server compiles itself meanwhile
        plain()
        transaction()
    ready()
    times = [(timed(plain), timed(transaction)) for _ in range(turns)]
    return {"plain": median(e[0] for e in times), "transaction": median(e[1] for e in times)}


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
            "kafka_transact": transact,
        },
        one_by_one="kafka_one_by_one",
        pipelined="kafka_pipelined",
        consume="kafka_consume",
        messages=_COUNT,
    )


PEERS: Final = (_peer("Kafka, flush every batch", FSYNC), _peer("Kafka", PAGE_CACHE))
