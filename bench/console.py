"""The web console: its pages, its memory, and what its looks cost a broker.

The broker does nothing else. What it uses without the console is taken off what it uses with it.
"""

import asyncio
import json
import statistics
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import vq
from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure, Target
from bench.processor import memory_of, processor_s
from bench.served import served
from vq import aio
from vq.cli.bench.workload import WorkFailed

#: Topics, with a group each that has read a message.
TOPICS: Final = 200
PARTITIONS: Final = 4
LISTS: Final = ("/topics", "/groups", "/brokers", "/audit", "/dead-letters", "/delayed")
_LOADS: Final = 20
_WAIT_S: Final = 60.0

FIRST: Final = "first page"
LIST: Final = "list page, p95"
MEMORY: Final = "memory of the console"
LOOKS: Final = "looks at the cluster: the broker's processor"

TARGETS: Final[Mapping[str, Target]] = {
    FIRST: Target(value_max=1_000.0),
    LIST: Target(value_max=300.0),
    MEMORY: Target(value_max=300.0),
    LOOKS: Target(value_max=1.0),
}


def console(context: Context) -> Rounds:
    """Load pages, then let the console look at the cluster by itself."""
    topics = context.pick(TOPICS, 5)
    seconds = float(context.pick(60, 5))
    for _ in range(context.rounds):
        with context.cluster() as cluster:
            asyncio.run(_fill(cluster, topics))
            yield _measured(cluster, seconds)


def _measured(cluster: Cluster, seconds: float) -> list[Figure]:
    pid = cluster.broker.pid
    alone = _busy(pid, seconds)
    database = f"sqlite:///{Path(cluster.directory) / 'console.db'}"
    words = ("console", "--open", "--database", database)
    with served(cluster, words, "/health") as (url, console_pid):
        _wait_until_reached(url)
        here = f"{url}/c/{cluster.client['cluster']}"
        first_s = _load(here)
        lists = [_load(here + path) for path in LISTS for _ in range(_LOADS)]
        looked = _busy(pid, seconds)
        memory = memory_of(console_pid)["VmRSS"]
    p95_s = statistics.quantiles(lists, n=20)[-1]
    details = {"alone": alone, "looked_at": looked}
    return [
        Figure(FIRST, first_s * 1e3, "ms"),
        Figure(LIST, p95_s * 1e3, "ms"),
        Figure(MEMORY, memory, "MB"),
        Figure(LOOKS, max(0.0, looked - alone) * 100, "% of a core", details=details),
    ]


async def _fill(cluster: Cluster, topics: int) -> None:
    settings = vq.TopicSettings(partitions=PARTITIONS)
    async with (
        aio.MessageFactory(vq.MessageFactoryConfig(**cluster.client)) as factory,
        await factory.create_producer() as producer,
    ):
        for number in range(topics):
            name = f"topic-{number:04}"
            await factory.admin.create_topic(name, settings)
            await producer.send(vq.Message(name, b"x"))
            config = vq.ConsumerConfig(group=f"group-{number:04}")
            async with await factory.create_consumer(config) as consumer:
                await consumer.subscribe(name).get_many(1, 10.0)


def _busy(pid: int, seconds: float) -> float:
    """Return the share of a core that a process uses in a time."""
    before, begun = processor_s(pid), time.monotonic()
    time.sleep(seconds)
    return (processor_s(pid) - before) / (time.monotonic() - begun)


def _load(url: str) -> float:
    """Load a page; return how long that takes, in seconds."""
    begun = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        answer.read()
    return time.perf_counter() - begun


def _wait_until_reached(url: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        with urllib.request.urlopen(f"{url}/health") as answer:
            if not json.load(answer)["away"]:
                return
        if time.monotonic() > deadline:
            raise WorkFailed("the console does not reach the cluster")
        time.sleep(0.05)
