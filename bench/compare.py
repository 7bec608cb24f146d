"""Runs vq and other systems with the same work in turns, within one durability class."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.cluster import WORKER
from bench.context import Context
from bench.figures import Figure, Row, shown
from bench.peers import PEERS, Missing, Peer
from bench.peers.peer import FSYNC, PAGE_CACHE
from vq.cli.bench.worker import Worker
from vq.cli.bench.workload import WorkFailed

SIZE: Final = 128
_SEPARATOR: Final = " | "  # in the names of figures: class, system, way
WAYS: Final = ("one by one", "pipelined", "consumed")

COLUMNS: Final = ("acknowledged after", "system", *WAYS)

System = Callable[[], dict[str, float]]
"""One round of one system: rate per way."""


@dataclass(frozen=True, slots=True)
class Found:
    """One system and its version; ``missing`` says why it cannot run, empty if it can."""

    name: str
    durability: str
    client: str
    version: str = ""
    missing: str = ""


def look_for_peers() -> list[tuple[Peer, Found]]:
    """Return every peer with the result of the search for it."""
    return [(peer, _look_for(peer)) for peer in PEERS]


def _look_for(peer: Peer) -> Found:
    try:
        version = peer.check()
    except Missing as missing:
        return Found(peer.name, peer.durability, peer.client, missing=str(missing))
    return Found(peer.name, peer.durability, peer.client, version=version)


def compare(context: Context) -> Iterator[list[Figure]]:
    """Run rounds over all systems of each durability class; yield the figures of each round."""
    found = look_for_peers()
    for durability, flush in ((FSYNC, "sync"), (PAGE_CACHE, "async")):
        systems: dict[str, System] = {f"vq, flush = {flush}": _vq(context, flush)}
        for peer, about in found:
            if peer.durability == durability and not about.missing:
                name = f"{peer.name} {about.version}"
                systems[name] = _peer(context, peer)
        for _ in range(context.rounds):
            yield [
                Figure(_SEPARATOR.join((durability, name, way)), rate, "msg/s")
                for name, system in systems.items()
                for way, rate in _attempt(context, name, system).items()
            ]


def lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the rows as a table: one line per system, one column per way."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        durability, name, way = row.name.split(_SEPARATOR)
        found.setdefault((durability, name), {})[way] = shown(row.value)
    return [(*key, *(rates.get(way, "–") for way in WAYS)) for key, rates in found.items()]


def _attempt(context: Context, name: str, system: System) -> dict[str, float]:
    """Run one system; report a failure and leave it out."""
    try:
        return system()
    except (Missing, WorkFailed) as error:
        if name.startswith("vq"):
            raise
        context.say(f"  {name}: {error}")
        return {}


def _vq(context: Context, flush: str) -> System:
    """Return a system that starts broker and ZooKeeper again for each round, like ``_peer``."""
    seconds = 1.0 if context.quick else 3.0
    count = context.pick(500_000, 50_000)

    def measure() -> dict[str, float]:
        with context.cluster() as cluster:
            topic = cluster.topic(flush=flush)
            one = cluster.run("send_sync", topic=topic, seconds=seconds, size=SIZE)
            cluster.run("verify", topic=topic, size=SIZE, sent=one["sent"])
            cluster.drop(topic)
            topic = cluster.topic(flush=flush)
            many = cluster.run("send_async", topic=topic, count=count, size=SIZE)
            out = cluster.run("consume", topic=topic, group=topic, count=count, size=SIZE)
        return {way: _rate(each) for way, each in zip(WAYS, (one, many, out), strict=True)}

    return measure


def _peer(context: Context, peer: Peer) -> System:
    """Return a system that starts the server again for each round, so that none stays idle."""
    seconds = 1.0 if context.quick else 3.0
    count = context.pick(peer.messages, peer.messages // 10)

    def measure() -> dict[str, float]:
        with (
            tempfile.TemporaryDirectory(dir=context.directory, prefix="vq-peer-") as scratch,
            peer.running(Path(scratch)) as values,
        ):
            one = _run(peer.one_by_one, **values, seconds=seconds, size=SIZE)
            many = _run(peer.pipelined, **values, count=count, size=SIZE)
            out = _run(peer.consume, **values, count=count, size=SIZE)
        return {way: _rate(each) for way, each in zip(WAYS, (one, many, out), strict=True)}

    return measure


def _run(work: str, **values: Any) -> dict[str, Any]:
    with Worker(work, command=WORKER, **values) as worker:
        return worker.wait_ready().go().result(300.0)


def _rate(measured: dict[str, Any]) -> float:
    return float(measured["messages"] / measured["seconds"])
