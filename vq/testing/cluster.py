"""A cluster in memory behind the API of coroutines."""

import asyncio
import contextlib
import random
from typing import Any, Final, Self

from vq.aio.factory import MessageFactory
from vq.bounds import check_between, check_whole
from vq.broker.node import BrokerNode
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.errors import InvalidArgument, InvalidState
from vq.limits import is_valid_name
from vq.model import TopicSettings
from vq.shown import shown
from vq.testing.faults import Faults
from vq.testing.loop import clock_of_loop, generator
from vq.testing.machines import CLUSTER, SESSION_TIMEOUT_S, Machines, host_of
from vq.testing.network import TappedNetwork

#: Broker groups, and nodes of each, at most: more say nothing that fewer do not.
GROUPS_MAX: Final = 16
NODES_MAX: Final = 5
#: A broker that is cut off does not say good-bye: a stop waits so long for one.
_STOP_S: Final = 5.0


class Cluster:
    """A cluster in this process. Loop-bound: all of it runs on the loop that started it.

    Example::

        async with vq.testing.Cluster() as cluster:
            await cluster.create_topic("orders", partitions=2)
            factory = await cluster.factory()
            producer = await factory.create_producer()
            await producer.send(vq.Message("orders", b"one"))

    Brokers, protocol and clients are the real ones, so outcomes, errors and time-outs are as in a
    cluster of processes. Times are those of the loop: on the loop of ``vq.testing.simulated``
    waiting takes no time. Nothing is on disk: what the cluster holds ends with it.

    Args:
        groups: Broker groups ``b1``, ``b2`` and so on, 1 to 16.
        nodes: Nodes ``n1``, ``n2`` and so on of each group, 1 to 5: a master, and copies of it.
        seed: Draws how long messages between hosts take, and what clients draw. None: nothing
            takes time on the way.

    Attributes:
        faults: What goes wrong on order.
        random: Random numbers for the test itself, from the seed.
    """

    def __init__(self, *, groups: int = 1, nodes: int = 1, seed: int | None = None) -> None:
        for name, value, most in (("groups", groups, GROUPS_MAX), ("nodes", nodes, NODES_MAX)):
            check_between(name, value, 1, most)
        if seed is not None:
            check_whole("seed", seed)
        self._groups = [f"b{number + 1}" for number in range(groups)]
        self._nodes = [f"n{number + 1}" for number in range(nodes)]
        self._seed = seed
        self.random = generator(seed or 0, "test")
        self._machines: Machines | None = None
        self._faults: Faults | None = None
        self._factories: dict[str, tuple[MessageFactory, MemoryCoordinator]] = {}

    @property
    def faults(self) -> Faults:
        """What goes wrong on order.

        Raises:
            InvalidState: The cluster does not run.
        """
        self._running()
        assert self._faults is not None
        return self._faults

    async def start(self) -> Self:
        """Start all brokers; return when each group has its master.

        Raises:
            InvalidState: It runs already.
        """
        if self._machines is not None:
            raise InvalidState("this cluster runs already")
        delays = generator(self._seed or 0, "zookeeper")
        drawn = self._seed is not None
        network = TappedNetwork(
            latency_s=0.000_2 if drawn else 0.0,
            jitter_s=0.002 if drawn else 0.0,
            rng=generator(self._seed or 0, "network") if drawn else None,
        )
        ensemble = MemoryEnsemble(
            clock=clock_of_loop(),
            delay=(lambda: delays.uniform(0.000_2, 0.003)) if drawn else (lambda: 0.0),
        )
        machines = self._machines = Machines(ensemble=ensemble, network=network)
        self._faults = Faults(machines, network, self._session_of)
        try:
            for group in self._groups:
                for node in self._nodes:
                    await machines.start(group, node)
        except BaseException:
            await self.stop()
            raise
        return self

    async def stop(self) -> None:
        """End all factories and brokers. May be called again."""
        machines, self._machines = self._machines, None
        if machines is None:
            return
        assert self._faults is not None
        self._faults.end()
        for factory, coordinator in self._factories.values():
            if coordinator.crashed:  # it cannot say good-bye
                machines.ensemble.end_session(coordinator.session_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await factory.shutdown()
        self._factories.clear()
        await machines.stop()

    async def factory(self, name: str = "client", **settings: Any) -> MessageFactory:
        """Return an open factory; the end of the cluster shuts it down if nobody does before.

        Args:
            name: Of its host, for ``faults``; each factory has another one.
            settings: Of its ``MessageFactoryConfig``.

        Raises:
            InvalidArgument: The name is not valid, or taken; or a setting is not valid.
            InvalidState: The cluster does not run.
        """
        cluster, coordinator = await self.client(name, **settings)
        made = MessageFactory.on_cluster(cluster)
        self._factories[name] = made, coordinator
        return made

    async def client(self, name: str, **settings: Any) -> tuple[ClusterClient, MemoryCoordinator]:
        """Return what a factory stands on, started. For vq only; see ``factory``."""
        machines = self._running()
        taken = {*self._factories, *machines.nodes}
        if not isinstance(name, str) or not is_valid_name(name) or name in taken:
            raise InvalidArgument(
                f"name = {shown(name)} of a factory is not a valid name, or it is taken; give each "
                f"factory a name of its own: taken are {', '.join(sorted(taken))}"
            )
        wanted: dict[str, Any] = {
            "client_id": name,
            "session_timeout_s": SESSION_TIMEOUT_S,
            "connect_timeout_s": 1.0,
            **settings,
            "cluster": CLUSTER,
        }
        config = MessageFactoryConfig(**wanted)
        coordinator = machines.ensemble.coordinator(
            CLUSTER, session_timeout_s=config.session_timeout_s
        )
        cluster = ClusterClient(
            config,
            coordinator=coordinator,
            network=machines.network.at(name),
            clock=machines.ensemble.clock,
            rng=self._draws(name),
        )
        await cluster.start()
        return cluster, coordinator

    async def create_topic(
        self, topic: str, settings: TopicSettings | None = None, **more: Any
    ) -> None:
        """Make a topic, as ``admin.create_topic`` does.

        Args:
            topic: Its name.
            settings: Its settings; or give them by name: ``partitions=4``.
            more: See ``settings``.
        """
        wanted = TopicSettings(**more) if settings is None else settings
        fields = {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}
        await self._running().create_topic(topic, **fields)

    async def add_broker(self, group: str, node: str = "n1") -> None:
        """Start a further broker: of a new group, or a copy in one that is there.

        Raises:
            InvalidArgument: That broker is there.
        """
        machines = self._running()
        if host_of(group, node) in machines.disks:
            raise InvalidArgument(
                f"broker {group}/{node} is there already; one that was killed starts again with "
                "faults.start_broker"
            )
        await machines.start(group, node)

    def broker(self, group: str = "b1", node: str = "n1") -> BrokerNode:
        """Return a broker, to look into it. For vq only."""
        return self._running().nodes[host_of(group, node)]

    def _draws(self, name: str) -> random.Random:
        return random.Random(name) if self._seed is None else generator(self._seed, name)  # nosec B311

    def _session_of(self, name: str) -> MemoryCoordinator:
        if name not in self._factories:
            known = ", ".join(sorted(self._factories))
            made = f"made were: {known}" if known else "none was made yet"
            raise InvalidArgument(f"there is no factory {shown(name)}; {made}")
        return self._factories[name][1]

    def _running(self) -> Machines:
        if self._machines is None:
            raise InvalidState("the cluster does not run; start it, or use it in `async with`")
        return self._machines

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
