"""Apache Kafka as three KRaft nodes, each broker and controller, through confluent-kafka.

Topics have three replicas and ``min.insync.replicas=2``; the producer has ``acks=all``: the leader
acknowledges when every replica that is in sync has appended. With its default settings no node
flushes before that; with ``log.flush.interval.messages=1`` each node flushes each batch that it
appends.
"""

import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench.peers import kafka
from bench.peers.accounts import account
from bench.peers.cluster import NODES, STRUCK, ClusterPeer, Nodes
from bench.peers.peer import FSYNC, PAGE_CACHE, Missing, Server
from bench.peers.steady import Done, Progress, send_steadily
from vq.cli.bench.workload import Ready
from vq.remoting.ports import free_port

_TAKE: Final = 10_000
_WAIT_S: Final = 60.0


@contextlib.contextmanager
def running(directory: Path, *, durability: str, more: str = "") -> Iterator[Nodes]:
    """See ``ClusterPeer.running``."""
    ports = [free_port() for _ in range(NODES)]
    controllers = [free_port() for _ in range(NODES)]
    voters = ",".join(f"{at + 1}@127.0.0.1:{port}" for at, port in enumerate(controllers))
    files = []
    for at, (port, control) in enumerate(zip(ports, controllers, strict=True)):
        own = directory / f"n{at + 1}"
        own.mkdir()
        files.append(own / "server.properties")
        files[-1].write_text(
            f"process.roles=broker,controller\nnode.id={at + 1}\n"
            f"controller.quorum.voters={voters}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={own / 'data'}\nnum.partitions=1\n"
            f"default.replication.factor={NODES}\nmin.insync.replicas=2\n"
            f"offsets.topic.replication.factor={NODES}\n"
            f"transaction.state.log.replication.factor={NODES}\n"
            "transaction.state.log.num.partitions=1\noffsets.topic.num.partitions=1\n"
            "group.initial.rebalance.delay.ms=0\n"
            + ("log.flush.interval.messages=1\n" if durability == FSYNC else "")
            + more
        )
    cluster_id = uuid.uuid4().hex
    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(lambda file: kafka.format_storage(file, cluster_id), files))
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                Server(
                    [*kafka.server_command(), str(file)],
                    file.parent / "server.log",
                    LOG_DIR=str(file.parent / "logs"),
                )
            )
            for file in files
        ]
        for server, port in zip(servers, ports, strict=True):
            server.wait_port(port)
        yield Nodes(ports, servers, functools.partial(_leader, ports))


def _leader(ports: list[int], name: str) -> int:
    """Return which node leads the only partition of a topic, once it has all replicas in sync."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": _hosts(ports)})
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(timeout=_WAIT_S)
        if len(found.brokers) < NODES:
            time.sleep(0.2)
            continue
        topic = found.topics.get(name)
        if topic is None:
            with contextlib.suppress(Exception):
                admin.create_topics([NewTopic(name, 1, NODES)])[name].result(_WAIT_S)
            continue
        partition = topic.partitions.get(0)
        if partition is not None and partition.leader > 0 and len(partition.isrs) == NODES:
            return int(partition.leader) - 1
        time.sleep(0.2)
    raise Missing(f"topic {name} had no three replicas in sync after {_WAIT_S:g} s")


def _hosts(ports: list[int]) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


# Client works -----------------------------------------------------------------------------------
def keep_sending(
    ready: Ready, *, ports: list[int], stream: int, in_flight: int, rate: float, size: int
) -> dict[str, Any]:
    """Send with callbacks, idempotent; the client itself retries."""
    # A lost connection is what is measured: no line of the log for each.
    settings = {"bootstrap.servers": _hosts(ports), "linger.ms": 0, "log_level": 0}
    producer = kafka.producer_of(ports[0], **settings)

    def send(body: bytes, done: Done) -> None:
        producer.produce(STRUCK, body, on_delivery=_reports_to(done))

    progress = Progress(stream=stream, size=size, in_flight=in_flight, rate=rate)
    return send_steadily(ready, progress, send, producer.poll)


def _reports_to(done: Done) -> Callable[[Any, Any], None]:
    def report(error: Any, _message: Any) -> None:
        done(None if error is None else RuntimeError(str(error)))

    return report


def read_back(
    ready: Ready,
    *,
    ports: list[int],
    sent: dict[str, int],
    failed: dict[str, list[int]],
    size: int,
) -> dict[str, Any]:
    """Read the partition to its end and judge it."""
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": _hosts(ports), "group.id": "back", "check.crcs": True}
    )
    begin = confluent_kafka.TopicPartition(STRUCK, 0, confluent_kafka.OFFSET_BEGINNING)
    consumer.assign([begin])
    _, end = consumer.get_watermark_offsets(begin, _WAIT_S)
    ready()
    received: list[bytes] = []
    position, deadline = 0, time.monotonic() + _WAIT_S
    while position < end and time.monotonic() < deadline:
        for message in consumer.consume(_TAKE, 1.0):
            if message.error() is None:
                received.append(message.value())
                position = message.offset() + 1
    consumer.close()
    return account(
        received,
        {int(stream): count for stream, count in sent.items()},
        {int(stream): numbers for stream, numbers in failed.items()},
        size,
    ).as_json()


_FLUSHED: Final = {FSYNC: "before the acknowledgement", PAGE_CACHE: "by the system"}
#: A session that is as short as the tuned one of vq.
_TUNED: Final = "broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n"


def _peer(name: str, durability: str, detection: str, more: str = "") -> ClusterPeer:
    return ClusterPeer(
        name=name,
        durability=durability,
        acknowledged_by="all in sync, 2 at least",
        flushed=_FLUSHED[durability],
        detection=detection,
        client="confluent-kafka",
        check=kafka.check,
        running=functools.partial(running, durability=durability, more=more),
        works={
            "kafka_one_by_one": kafka.one_by_one,
            "kafka_pipelined": kafka.pipelined,
            "kafka_consume": kafka.consume,
            "kafka_keep_sending": keep_sending,
            "kafka_read_back": read_back,
        },
        one_by_one="kafka_one_by_one",
        pipelined="kafka_pipelined",
        consume="kafka_consume",
        keep_sending="kafka_keep_sending",
        read_back="kafka_read_back",
        messages=500_000,
        only_struck=bool(more),
    )


_DEFAULT: Final = "broker session 9 s (default)"
PEERS: Final = (
    _peer("Kafka, flush every batch", FSYNC, _DEFAULT),
    _peer("Kafka, flush every batch, 3 s", FSYNC, "broker session 3 s", _TUNED),
    _peer("Kafka", PAGE_CACHE, _DEFAULT),
)
