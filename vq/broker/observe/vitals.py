"""Whether a node does its work, what is wrong with it as a whole, and how late its loop is."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from vq.broker.base.facts import Fact, Facts, counter, gauge, histogram
from vq.broker.base.histogram import Histogram
from vq.broker.base.own_certificate import OwnCertificate
from vq.broker.base.tasks import Tasks
from vq.broker.connections.server import Server
from vq.broker.disks.data_disks import DataDisks
from vq.broker.journal.readers import JournalReaders
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.context import Context
from vq.broker.replication.following import Follower
from vq.broker.replication.presence import Presence
from vq.broker.standing.gate import Gate, Stage
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.remoting.hello import ServerIdentity

#: How often it is looked how late the loop is.
LOOK_S: Final = 0.25


class Vitals:
    """What is asked of several parts of a node together. Loop-bound.

    Args:
        context: The role of the node, and time.
        coordinator: Knows the session.
        gate: Why requests are refused.
        server: The connections.
        disks: The data directories.
        partitions: All partitions.
        presence: Whether the node is registered in ZooKeeper.
        follower: What it copies.
        readers: What it reads of its own logs.
        certificate: What it serves TLS with.
    """

    def __init__(
        self,
        context: Context,
        coordinator: Coordinator,
        gate: Gate,
        server: Server,
        disks: DataDisks,
        partitions: Partitions,
        presence: Presence,
        follower: Follower,
        readers: Sequence[JournalReaders[Any]],
        certificate: OwnCertificate,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._gate = gate
        self._server = server
        self._disks = disks
        self._partitions = partitions
        self._presence = presence
        self._follower = follower
        self._readers = readers
        self._certificate = certificate
        self._started = context.clock.monotonic()
        self._sessions_ended = 0
        self._loop_lag = Histogram()

    def start(self, tasks: Tasks) -> None:
        """Count sessions that end, and look how late the loop is: somebody watches the node."""
        self._coordinator.add_listener(self._on_session)
        tasks.start(_watch_loop(self._loop_lag))

    def not_ready(self) -> list[str]:
        """Return why the node does not do its work."""
        if self._gate.stage is Stage.STARTING:
            reasons = ["the node is starting"]
        elif not self._gate.serves:
            reasons = ["the node is stopping"]
        else:
            reasons = self._disks.not_ready
        if self._coordinator.state is not SessionState.CONNECTED:
            reasons.append(f"ZooKeeper does not answer: {self._coordinator.state.value}")
        elif not self._presence.is_registered:
            reasons.append("the node is not registered in ZooKeeper")
        return reasons

    def problems(self) -> list[str]:
        """Return what is wrong with the node as a whole, for STATUS."""
        gate, disks, role = self._gate, self._disks, self._context.role
        # To follow another node is no problem.
        refusal = None if gate.refusal is not None else gate.put_refusal
        of_disks = disks.problems(follows=bool(role.follows))
        gone = disks.main.gone
        found = [
            self._server.trouble,
            *of_disks,
            "" if gone or str(refusal) in of_disks else str(refusal or ""),
            "" if gone else self._follower.problem,
            role.waits,
        ]
        return [
            *filter(None, found),
            *self._certificate.problems(),
            *self._partitions.told_problems(),
            *(why for each in self._readers for why in each.problems()),
        ]

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[int](
            labels=("cluster", "group", "node", "version"),
            things=lambda: {_names(self._gate.identity): 1},
            facts=(gauge("vq_node_info", "The names of this node; always 1.", int),),
        )
        yield Facts[ServerIdentity](
            things=lambda: {(): self._gate.identity},
            facts=(
                Fact(read=lambda identity: identity.cluster, status="cluster"),
                Fact(read=lambda identity: identity.group, status="group"),
                Fact(read=lambda identity: identity.node, status="node"),
                Fact(read=lambda identity: identity.broker_version, status="broker_version"),
            ),
        )
        yield Facts[Vitals].of(
            self,
            Fact(read=lambda _: self._uptime_ms(), status="uptime_ms"),
            gauge("vq_ready", "1 if /readyz says so, else 0.", lambda _: not self.not_ready()),
            histogram(
                "vq_event_loop_lag_seconds",
                "How much later than planned a timer of the event loop ran; looked at four times a "
                "second.",
                lambda _: self._loop_lag,
            ),
            counter(
                "vq_zookeeper_sessions_ended",
                "Sessions with ZooKeeper that ended while the node ran.",
                lambda _: self._sessions_ended,
            ),
            gauge(
                "vq_zookeeper_connected",
                "1 while ZooKeeper answers this node, else 0.",
                lambda _: self._coordinator.state is SessionState.CONNECTED,
            ),
        )

    def _uptime_ms(self) -> int:
        return int((self._context.clock.monotonic() - self._started) * 1000)

    def _on_session(self, state: SessionState) -> None:
        self._sessions_ended += state is SessionState.LOST


def _names(identity: ServerIdentity) -> tuple[str, ...]:
    return identity.cluster, identity.group, identity.node, identity.broker_version


async def _watch_loop(lag: Histogram) -> None:
    """Note how late the loop runs what is due, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        lag.observe(max(0.0, loop.time() - due))
