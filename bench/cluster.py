"""A cluster of real processes for one scenario: ZooKeeper, brokers, topics. Blocking."""

import asyncio
import contextlib
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vq
from vq.cli.bench.worker import Worker
from vq.cli.bench.workload import WorkFailed
from vq.coordination.brokers import registry
from vq.coordination.topics import topics
from vq.coordination.tree.values.brokers import GroupState
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.model import FlushMode
from vq.operations.base.connect import cluster_client
from vq.remoting.ports import free_port

CLUSTER = "bench"
GROUP = "b1"
WORKER = (sys.executable, "-m", "bench.worker")
PYTHON_WORKER = (sys.executable, "-m", "bench.python_worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSpec(BrokerSpec):
    """A broker under the sampler; its samples are written when it ends."""

    samples: Path

    def command(self) -> list[str]:
        """See ``BrokerSpec.command``."""
        plain = BrokerSpec.command(self)
        return [plain[0], "-m", "bench.sampled", str(self.samples), *plain[2:]]


@dataclass(slots=True)
class Cluster:
    """The broker of group ``b1``, its further nodes if any, and the settings of its clients.

    Attributes:
        broker: The first node of the group, ``n1``.
        copies: The other nodes, ``n2`` and so on.
        others: Nodes of further groups, ``b2`` and so on, of one node each.
    """

    directory: Path
    zookeeper: str
    broker: BrokerChild
    samples: Path | None = None
    copies: Sequence[BrokerChild] = ()
    others: Sequence[BrokerChild] = ()

    @property
    def client(self) -> dict[str, Any]:
        """The fields of a work's ``MessageFactoryConfig``."""
        return {"zookeeper": self.zookeeper, "cluster": CLUSTER}

    @property
    def nodes(self) -> list[BrokerChild]:
        """All brokers."""
        return [self.broker, *self.copies]

    def topic(
        self,
        partitions: int = 1,
        *,
        flush: str = "sync",
        replication: str = "sync",
        min_insync: int = 1,
    ) -> str:
        """Create a topic with a new name."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        settings = vq.TopicSettings(
            partitions=partitions,
            flush=FlushMode(flush),
            replication=replication,
            min_insync=min_insync,
            retention_hours=None,
        )

        async def create() -> None:
            async with cluster_client(vq.MessageFactoryConfig(**self.client)) as cluster:
                await topics.create_topic(cluster.coordinator, name, settings)

        asyncio.run(create())
        return name

    def groups_of(self, *names: str) -> list[str]:
        """Return in which group partition 0 of each topic lies."""

        async def read() -> list[str]:
            async with cluster_client(vq.MessageFactoryConfig(**self.client)) as cluster:
                found = [await cluster.track(name) for name in names]
                return [
                    each.placement(vq.TopicPartition(name, 0)).writer_group or ""
                    for each, name in zip(found, names, strict=True)
                ]

        return asyncio.run(read())

    def state(self) -> GroupState:
        """Return the record of the group: its master, and the nodes in sync."""

        async def read() -> GroupState | None:
            async with cluster_client(vq.MessageFactoryConfig(**self.client)) as cluster:
                return await registry.read_state(cluster.coordinator, GROUP)

        found = asyncio.run(read())
        assert found is not None, f"no node has led {GROUP} yet"
        return found

    def wait_in_sync(self, timeout_s: float = 60.0) -> None:
        """Wait until all nodes are in sync. Needs a topic.

        Raises:
            WorkFailed: They are not in time.
        """
        deadline = time.monotonic() + timeout_s
        while len(self.state().insync) < len(self.nodes):
            if time.monotonic() > deadline:
                raise WorkFailed(f"after {timeout_s:g} s not all nodes are in sync: {self.state()}")
            time.sleep(0.05)

    def master(self) -> BrokerChild:
        """Return the node that leads the group."""
        name = self.state().master
        return next(node for node in self.nodes if node.spec.node == name)

    def drop(self, topic: str) -> None:
        """Delete a topic; the broker moves its data aside."""

        async def delete() -> None:
            async with cluster_client(vq.MessageFactoryConfig(**self.client)) as cluster:
                await topics.delete_topic(cluster.coordinator, topic)

        asyncio.run(delete())

    def worker(self, work: str, *, compiled: bool = True, **values: Any) -> Worker:
        """Start a client process for a work; under the sampler if the cluster is.

        Without ``compiled`` its loops run in Python, also if compiled ones are installed.
        """
        command: tuple[str, ...] = WORKER if compiled else PYTHON_WORKER
        if self.samples is not None:
            samples = self.samples / f"client-{work}.json"
            command = (sys.executable, "-m", "bench.sampled", str(samples), "bench.worker")
        return Worker(work, command=command, client=self.client, **values)

    def run(self, work: str, *, compiled: bool = True, **values: Any) -> dict[str, Any]:
        """Run a work to its end and return its results; see ``worker``."""
        with self.worker(work, compiled=compiled, **values) as worker:
            return worker.wait_ready().go().result()

    def log_files(self) -> list[Path]:
        """Return the block files of the broker."""
        return sorted(self.broker.spec.data.rglob("*.block"))


@contextlib.contextmanager
def cluster(
    parent: Path,
    *,
    samples: Path | None = None,
    nodes: int = 1,
    groups: int = 1,
    tls: vq.Tls | None = None,
) -> Iterator[Cluster]:
    """Start ZooKeeper and brokers in a fresh directory under ``parent``; stop and remove all.

    ``nodes`` are those of the first group, ``groups`` all groups. With ``tls`` clients need
    ``VQ_TLS_CA`` in their environment.
    """
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix="vq-bench-") as scratch,
        EmbeddedZooKeeper(Path(scratch) / "zookeeper") as zookeeper,
    ):
        brokers = []
        places = [(GROUP, number) for number in range(1, nodes + 1)]
        places += [(f"b{number}", 1) for number in range(2, groups + 1)]
        for group, number in places:
            name = _process(group, number)
            values: dict[str, Any] = {
                "data": Path(scratch) / name,
                "group": group,
                "node": f"n{number}",
                "address": vq.Address("127.0.0.1", free_port()),
                "zookeeper": zookeeper.hosts,
                "cluster": CLUSTER,
                "tls": tls,
                "metrics_port": free_port(),  # what is measured for them is part of the figures
            }
            spec = (
                BrokerSpec(**values)
                if samples is None
                else SampledSpec(**values, samples=samples / f"{name}.json")
            )
            brokers.append(BrokerChild(spec))
        try:
            for broker in brokers:  # the first one leads
                broker.start()
                broker.wait_ready()
            yield Cluster(
                Path(scratch),
                zookeeper.hosts,
                brokers[0],
                samples,
                copies=brokers[1:nodes],
                others=brokers[nodes:],
            )
        finally:
            for broker in brokers:
                broker.stop()


def _process(group: str, number: int) -> str:
    """Return the name of a node's samples, and of its directory."""
    name = "broker" if group == GROUP else f"broker-{group}"
    return name if number == 1 else f"{name}-n{number}"
