"""Runs vq and other systems with three nodes each: rates, and what a dead leader costs.

Every system stores each message on two nodes at least before it acknowledges it. They take turns;
each turn starts all nodes in a directory of its own. The kill has its own start: two clients send
on a schedule, one message at a time and many at a time, the node that leads gets SIGKILL, and the
clients go on for ``LASTS_S``. Afterwards everything is read back from the nodes that are left.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from bench.cluster import WORKER, Cluster
from bench.context import Context
from bench.figures import Figure, Row, markdown_table, shown
from bench.peers import CLUSTER_PEERS, Missing
from bench.peers.cluster import BULK, NODES, ONE, STRUCK, ClusterPeer
from bench.peers.peer import FSYNC, PAGE_CACHE
from bench.replication import gap_around
from vq.cli.bench.worker import Worker
from vq.cli.bench.workload import WorkFailed

SIZE: Final = 128
#: How long clients go on after a kill: more than any session or election here takes.
LASTS_S: Final = 20.0
#: The two clients of a kill: messages unacknowledged at a time, and messages a second.
CLIENTS: Final = ((1, 200.0), (500, 2_000.0))
_SEPARATOR: Final = " | "  # in the names of figures: class, system, way

RATES: Final = ("one by one", "pipelined")
GAPS: Final = ("gap, one by one", "gap, pipelined")
COUNTS: Final = ("acknowledged", "lost", "duplicates", "disordered", "failed")
RATE_COLUMNS: Final = (
    "acknowledged after",
    "system",
    "stored on",
    "flushed",
    *(f"{way}, msg/s" for way in RATES),
)
KILL_COLUMNS: Final = (
    "system",
    "a dead leader is noticed by",
    *(f"{way}, s" for way in GAPS),
    "acknowledged",
    "of these lost",
    "duplicates",
    "out of order",
    "outcome unknown",
)


@dataclass(frozen=True, slots=True)
class About:
    """What the tables say of a system beside its figures; see ``ClusterPeer``."""

    name: str
    durability: str
    acknowledged_by: str
    flushed: str
    detection: str
    client: str
    version: str = ""
    missing: str = ""


class System(Protocol):
    """One system under test."""

    about: About

    def rates(self) -> dict[str, float]:
        """Start it, and return messages a second by way."""
        ...

    def struck(self) -> dict[str, float]:
        """Start it, kill its leader, and return gaps and counts by name."""
        ...


def look_for_peers() -> list[tuple[ClusterPeer, About]]:
    """Return every peer of three nodes with the result of the search for it."""
    return [(peer, _look_for(peer)) for peer in CLUSTER_PEERS]


def _look_for(peer: ClusterPeer) -> About:
    version = missing = ""
    try:
        version = peer.check()
    except Missing as error:
        missing = str(error)
    return About(
        name=peer.name,
        durability=peer.durability,
        acknowledged_by=peer.acknowledged_by,
        flushed=peer.flushed,
        detection=peer.detection,
        client=peer.client,
        version=version,
        missing=missing,
    )


def compare(context: Context) -> Iterator[list[Figure]]:
    """Yield the figures of each round over all systems."""
    systems = _systems(context)
    for _ in range(context.rounds):
        yield [figure for system in systems for figure in _round(context, system)]


def _systems(context: Context) -> list[System]:
    found = [(peer, about) for peer, about in look_for_peers() if not about.missing]
    systems: list[System] = []
    for durability, flush in ((FSYNC, "sync"), (PAGE_CACHE, "async")):
        systems.append(_Own(context, flush))
        systems += [
            _Other(context, peer, about) for peer, about in found if peer.durability == durability
        ]
    return systems


def _round(context: Context, system: System) -> list[Figure]:
    """Measure one system once; report a failure of another system and leave that out."""
    about = system.about
    values: dict[str, float] = {}
    for measure in (system.rates, system.struck):
        try:
            values |= measure()
        except (Missing, WorkFailed) as error:
            if about.name.startswith("vq"):
                raise
            context.say(f"  {about.name}: {error}")
    details = {
        "acknowledged_by": about.acknowledged_by,
        "flushed": about.flushed,
        "detection": about.detection,
    }
    name = f"{about.name} {about.version}".strip()
    context.say(f"  {name}: " + ", ".join(f"{way} {shown(each)}" for way, each in values.items()))
    return [
        Figure(_SEPARATOR.join((about.durability, name, way)), each, _unit(way), details=details)
        for way, each in values.items()
    ]


def _unit(way: str) -> str:
    return "msg/s" if way in RATES else "s" if way in GAPS else "messages"


# The kill ---------------------------------------------------------------------------------------
def strike(
    sender: Callable[..., Worker],
    kill: Callable[[], None],
    read_back: Callable[..., dict[str, Any]],
) -> dict[str, float]:
    """Have both clients send, kill the leader, and judge what they sent.

    Args:
        sender: Starts a client; takes the fields of ``Progress``.
        kill: Kills the leader.
        read_back: Takes what was ``sent`` and ``failed``; returns an ``Account`` as values.
    """
    load = [
        {"stream": at, "in_flight": in_flight, "rate": rate}
        for at, (in_flight, rate) in enumerate(CLIENTS)
    ]
    with sender(**load[0]) as one, sender(**load[1]) as many:
        for client in (one, many):
            client.wait_ready()
        for client in (one, many):
            client.go().wait_ready()
        time.sleep(2.0)
        begin = time.monotonic()
        kill()
        time.sleep(max(0.0, begin + LASTS_S - time.monotonic()))
        results = [client.go() for client in (one, many)]
        found = [client.result(120.0) for client in results]
    judged = read_back(
        sent={str(at): each["sent"] for at, each in enumerate(found)},
        failed={str(at): each["failed"] for at, each in enumerate(found)},
    )
    if judged["altered"]:
        raise WorkFailed(f"{judged['altered']} messages were read that nobody sent")
    gaps = {name: gap_around(each["times"], begin) for name, each in zip(GAPS, found, strict=True)}
    return gaps | {name: judged[name] for name in COUNTS}


# Systems ----------------------------------------------------------------------------------------
class _Other:
    """Another system."""

    def __init__(self, context: Context, peer: ClusterPeer, about: About) -> None:
        self.about = about
        self._context = context
        self._peer = peer

    def rates(self) -> dict[str, float]:
        """See ``System``."""
        peer, context = self._peer, self._context
        if peer.only_struck:
            return {}
        seconds = 1.0 if context.quick else 3.0
        count = context.pick(peer.messages, peer.messages // 10)
        with (
            tempfile.TemporaryDirectory(dir=context.directory, prefix="vq-peer-") as scratch,
            peer.running(Path(scratch)) as nodes,
        ):
            port = nodes.ports[nodes.leader(ONE)]
            one = _run(peer.one_by_one, port=port, seconds=seconds, size=SIZE, **nodes.values)
            port = nodes.ports[nodes.leader(BULK)]
            load = {"port": port, "count": count, "size": SIZE, **nodes.values}
            many = _run(peer.pipelined, **load)
            _run(peer.consume, **load)  # compares what it receives
        return {way: _rate(each) for way, each in zip(RATES, (one, many), strict=True)}

    def struck(self) -> dict[str, float]:
        """See ``System``."""
        peer = self._peer
        with (
            tempfile.TemporaryDirectory(dir=self._context.directory, prefix="vq-peer-") as scratch,
            peer.running(Path(scratch)) as nodes,
        ):
            first = nodes.leader(STRUCK)
            ports = [nodes.ports[first], *nodes.ports[:first], *nodes.ports[first + 1 :]]
            left: list[int] = []

            def sender(**load: Any) -> Worker:
                return Worker(peer.keep_sending, command=WORKER, ports=ports, size=SIZE, **load)

            def kill() -> None:
                leader = nodes.leader(STRUCK)
                nodes.servers[leader].kill()
                left.extend(port for port in ports if port != nodes.ports[leader])

            def read_back(**found: Any) -> dict[str, Any]:
                return _run(peer.read_back, ports=left, size=SIZE, **nodes.values, **found)

            return strike(sender, kill, read_back)


class _Own:
    """vq: one group of three nodes and a ZooKeeper server."""

    def __init__(self, context: Context, flush: str) -> None:
        self.about = About(
            name=f"vq, flush = {flush}",
            durability=FSYNC if flush == "sync" else PAGE_CACHE,
            acknowledged_by="all in sync, 2 at least",
            flushed="before the acknowledgement" if flush == "sync" else "1 000 messages or 10 s",
            detection="refused connections",
            client="vq",
        )
        self._context = context
        self._flush = flush

    def _topic(self, cluster: Cluster) -> str:
        topic = cluster.topic(flush=self._flush, min_insync=2)
        cluster.wait_in_sync()
        return topic

    def rates(self) -> dict[str, float]:
        """See ``System``."""
        context = self._context
        seconds = 1.0 if context.quick else 3.0
        count = context.pick(500_000, 50_000)
        with context.cluster(nodes=NODES) as cluster:
            topic = self._topic(cluster)
            one = cluster.run("send_sync", topic=topic, seconds=seconds, size=SIZE)
            cluster.run("verify", topic=topic, size=SIZE, sent=one["sent"])
            cluster.drop(topic)
            topic = self._topic(cluster)
            many = cluster.run("send_async", topic=topic, count=count, size=SIZE)
            cluster.run("verify", topic=topic, size=SIZE, sent=many["sent"])
        return {way: _rate(each) for way, each in zip(RATES, (one, many), strict=True)}

    def struck(self) -> dict[str, float]:
        """See ``System``."""
        with self._context.cluster(nodes=NODES) as cluster:
            topic = self._topic(cluster)

            def sender(**load: Any) -> Worker:
                return cluster.worker("vq_keep_sending", topic=topic, size=SIZE, **load)

            def read_back(**found: Any) -> dict[str, Any]:
                return cluster.run("vq_read_back", topic=topic, size=SIZE, **found)

            return strike(sender, lambda: cluster.master().signal(signal.SIGKILL), read_back)


def _run(work: str, **values: Any) -> dict[str, Any]:
    with Worker(work, command=WORKER, **values) as worker:
        return worker.wait_ready().go().result(300.0)


def _rate(measured: dict[str, Any]) -> float:
    return float(measured["messages"] / measured["seconds"])


# Tables -----------------------------------------------------------------------------------------
def rate_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return one line per system with its rates; the columns are ``RATE_COLUMNS``."""
    return [
        (
            durability,
            name,
            _detail(own, "acknowledged_by"),
            _detail(own, "flushed"),
            *(shown(own[way].value) if way in own else "–" for way in RATES),
        )
        for (durability, name), own in _by_system(rows).items()
        if any(way in own for way in RATES)
    ]


def kill_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return one line per system with its gaps and counts; the columns are ``KILL_COLUMNS``.

    Gaps are medians. Of lost, doubled, disordered and unknown messages the worst round is shown.
    """
    return [
        (
            name,
            _detail(own, "detection"),
            *(shown(own[way].value) for way in GAPS),
            shown(own["acknowledged"].value),
            *(f"{own[way].most:.0f}" for way in COUNTS[1:]),
        )
        for (_, name), own in _by_system(rows).items()
        if all(way in own for way in (*GAPS, *COUNTS))
    ]


def tables(rows: Sequence[Row]) -> list[str]:
    """Return both tables as Markdown."""
    return [
        markdown_table(RATE_COLUMNS, rate_lines(rows)),
        markdown_table(KILL_COLUMNS, kill_lines(rows)),
    ]


def _by_system(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        durability, name, way = row.name.split(_SEPARATOR)
        found.setdefault((durability, name), {})[way] = row
    return found


def _detail(own: dict[str, Row], name: str) -> str:
    return str(next(iter(own.values())).details[0][name])
