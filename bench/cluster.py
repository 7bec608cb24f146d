"""A cluster of real processes for one scenario: ZooKeeper, one broker, topics. Blocking."""

import asyncio
import contextlib
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vq
from vq.admin.connect import cluster_client
from vq.cli.worker import Worker
from vq.coordination import topics
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper, free_port
from vq.model import FlushMode

CLUSTER = "bench"
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
    """One broker (group ``b1``) and the settings of its clients."""

    directory: Path
    zookeeper: str
    broker: BrokerChild
    samples: Path | None = None

    @property
    def client(self) -> dict[str, Any]:
        """The fields of a work's ``MessageFactoryConfig``."""
        return {"zookeeper": self.zookeeper, "cluster": CLUSTER}

    def topic(self, partitions: int = 1, *, flush: str = "sync") -> str:
        """Create a topic with a new name."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        settings = vq.TopicSettings(
            partitions=partitions, flush=FlushMode(flush), retention_hours=None
        )

        async def create() -> None:
            async with cluster_client(vq.MessageFactoryConfig(**self.client)) as cluster:
                await topics.create_topic(cluster.coordinator, name, settings)

        asyncio.run(create())
        return name

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
def cluster(parent: Path, *, samples: Path | None = None) -> Iterator[Cluster]:
    """Start ZooKeeper and a broker in a fresh directory under ``parent``; stop and remove all."""
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix="vq-bench-") as scratch,
        EmbeddedZooKeeper(Path(scratch) / "zookeeper") as zookeeper,
    ):
        values: dict[str, Any] = {
            "data": Path(scratch) / "b1",
            "group": "b1",
            "node": "n1",
            "address": vq.Address("127.0.0.1", free_port()),
            "zookeeper": zookeeper.hosts,
            "cluster": CLUSTER,
        }
        spec = (
            BrokerSpec(**values)
            if samples is None
            else SampledSpec(**values, samples=samples / "broker.json")
        )
        broker = BrokerChild(spec)
        try:
            broker.start()
            broker.wait_ready()
            yield Cluster(Path(scratch), zookeeper.hosts, broker, samples)
        finally:
            broker.stop()
