"""ZooKeeper, network, disks and brokers of one cluster in memory. Loop-bound."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from vq.broker.base.config import BrokerConfig, ConnectionLimits
from vq.broker.base.runner import InlineRunner, Runner
from vq.broker.node import BrokerNode
from vq.coordination.topics.topics import change_settings, create_topic
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.model import TopicSettings
from vq.remoting.memory import MemoryNetwork
from vq.store.commit.flusher import Flusher, FlushRunner, LoopFlusher
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.log_config import LogConfig
from vq.testing.loop import SimulatedClock, clock_of_loop

#: The cluster's name in ZooKeeper.
CLUSTER: Final = "test"
#: Where each broker has its data, on a disk of its own.
DATA: Final = Path("/data")
#: Of brokers and clients: one that is gone is noticed after so long.
SESSION_TIMEOUT_S: Final = 4.0
#: On a real loop somebody waits for what a node looks at now and then.
_LOOKS_OFTEN: Final = {
    "refresh_interval_s": 0.5,
    "connections": ConnectionLimits(sweep_interval_s=0.1),
}
#: Nearly a broker's own: in virtual time waiting takes no time, and looks are all that it costs.
_LOOKS_RARELY: Final = {"refresh_interval_s": 5.0, "connections": ConnectionLimits()}


def host_of(group: str, node: str) -> str:
    """Return the host of a broker: ``b1`` for the node ``n1``, else ``b1-n2``."""
    return group if node == "n1" else f"{group}-{node}"


@dataclass
class Machines:
    """The parts of a cluster in memory, by host.

    Attributes:
        ensemble: Its ZooKeeper.
        network: Between all hosts.
        disks: Of brokers; a disk outlives the broker that writes to it.
        coordinators: Sessions with ZooKeeper of brokers.
        nodes: The brokers, started or not.
    """

    ensemble: MemoryEnsemble = field(default_factory=lambda: MemoryEnsemble(clock=clock_of_loop()))
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    disks: dict[str, MemoryDisk] = field(default_factory=dict)
    coordinators: dict[str, MemoryCoordinator] = field(default_factory=dict)
    nodes: dict[str, BrokerNode] = field(default_factory=dict)

    def node(
        self,
        group: str = "b1",
        node: str = "n1",
        *,
        log_config: LogConfig | None = None,
        runner: Runner | None = None,
        **settings: Any,
    ) -> BrokerNode:
        """Return a broker, not started; ``settings`` are those of its configuration."""
        clock = self.ensemble.clock
        host = host_of(group, node)
        disk = self.disks.setdefault(host, MemoryDisk(record=False))
        looks = _LOOKS_RARELY if isinstance(clock, SimulatedClock) else _LOOKS_OFTEN
        config = BrokerConfig(
            **{
                "data": DATA,
                "cluster": CLUSTER,
                "group": group,
                "node": node,
                "host": host,
                "metrics_port": 0,
                **looks,
                **settings,
            }
        )
        self.coordinators[host] = self.session()
        runner = runner or self.runner_of(host)
        self.nodes[host] = BrokerNode(
            config,
            coordinator=self.coordinators[host],
            network=self.network.at(config.host),
            disk=disk,
            clock=clock,
            rng=random.Random(7),  # nosec B311
            flushers=(
                self.flusher_of(host),
                *(LoopFlusher(FlushRunner(clock)) for _ in config.directories[1:]),
            ),
            runner=runner,
            log_config=log_config,
        )
        return self.nodes[host]

    def runner_of(self, host: str) -> Runner:
        """Return what runs the blocking work of a broker."""
        return InlineRunner()

    def flusher_of(self, host: str) -> Flusher:
        """Return what flushes the main directory of a broker."""
        return LoopFlusher(FlushRunner(self.ensemble.clock))

    async def start(self, group: str = "b1", node: str = "n1", **settings: Any) -> BrokerNode:
        """Return a broker that serves, or follows."""
        made = self.node(group, node, **settings)
        await made.start()
        return made

    def session(self) -> MemoryCoordinator:
        """Return a session with ZooKeeper, not begun."""
        return self.ensemble.coordinator(CLUSTER, session_timeout_s=SESSION_TIMEOUT_S)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[MemoryCoordinator]:
        """Provide a session with ZooKeeper."""
        client = self.session()
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    async def create_topic(self, name: str = "t", **settings: Any) -> None:
        """Make a topic; a larger ``min_insync`` is set then: there may be too few nodes."""
        wanted = TopicSettings(**settings)
        async with self.admin() as coordinator:
            await create_topic(coordinator, name, replace(wanted, min_insync=1))
            if wanted.min_insync > 1:
                await change_settings(coordinator, name, wanted)

    async def stop(self) -> None:
        """Stop every broker."""
        for node in self.nodes.values():
            await node.stop()
