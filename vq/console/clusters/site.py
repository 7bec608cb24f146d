"""One cluster as the console has it: a client, and what the last looks at it have found."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from vq.aio.factory import MessageFactory
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.console.clusters.kept_reports import KeptReports
from vq.console.clusters.lags import SeenGroup, TopicReaders, readers_of, seen
from vq.coordination.brokers.loads import PublishedLoad, read_loads
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import CoordinationError, VqError
from vq.log_lines import get_logger
from vq.operations.allocation.facts import AllocationFacts
from vq.operations.cluster.bulk import GroupContract, TopicState, read_contracts, read_topic_states
from vq.operations.cluster.cluster import ClusterStatus, cluster_status
from vq.operations.cluster.probe import ClusterProbe
from vq.operations.cluster.probed import ProbeResult
from vq.operations.groups.group_lags import look_at_groups
from vq.shown import shown_raised
from vq.tasks import begin_task

logger = get_logger(__name__)

#: Pauses between two looks at brokers, at the lists of topics and groups, and at lags.
BROKERS_S: Final = 2.0
NAMES_S: Final = 10.0
LAGS_S: Final = 15.0
#: Partitions of groups that one look at lags asks brokers about: groups take turns.
_TURN_PARTITIONS: Final = 2_000
#: A look may take this share of the time at most: of a large cluster there are fewer looks.
_SHARE_MAX: Final = 0.05
_REOPEN_S: Final = 3.0
#: A page that shows what somebody has just changed waits so long for a look at topics and groups.
_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """What was found, and when.

    Attributes:
        time_ms: When the look ended, in milliseconds since 1970; 0: there was none yet.
        took_s: How long it took.
        error: Why the newest look found nothing: the values are those of the one before.
    """

    time_ms: int = 0
    took_s: float = 0.0
    error: str = ""


@dataclass(slots=True)
class SiteFacts:
    """What is known of a cluster.

    Attributes:
        brokers_look, names_look, lags_look: When, and whether it is of now.
        status: Every broker with its status.
        loads: The load that each node has published, by group and node.
        topics: All topics, without their partitions.
        contracts: All consumer groups with what they read.
        lags: How far behind groups are, by name: the last look at each, in turns.
        readers: The groups of each topic, by what the last looks have found.
        probes: What the end-to-end probe has seen, by broker group; None: there is no probe.
    """

    brokers_look: Look = field(default_factory=Look)
    names_look: Look = field(default_factory=Look)
    lags_look: Look = field(default_factory=Look)
    status: ClusterStatus = field(default_factory=lambda: ClusterStatus(()))
    loads: dict[tuple[str, str], BrokerLoad] = field(default_factory=dict)
    topics: list[TopicState] = field(default_factory=list)
    contracts: list[GroupContract] = field(default_factory=list)
    lags: dict[str, SeenGroup] = field(default_factory=dict)
    readers: dict[str, TopicReaders] = field(default_factory=dict)
    probes: dict[str, ProbeResult] | None = None


Open = Callable[[MessageFactoryConfig], Awaitable[MessageFactory]]


async def _open(config: MessageFactoryConfig) -> MessageFactory:
    return await MessageFactory(config).open()


class Site:
    """A cluster that the console shows. Loop-bound.

    It is there while the cluster is not: ``problem`` says so, and it tries again. ``allocation``
    has the last measurement of all partitions, and when it was made by the monotonic clock;
    ``measuring`` is the one that is under way; ``reports`` has the last ones of Spark.

    Args:
        name: What the console calls it.
        config: How to reach it.
        on_look: Called after each look.
        opened: Opens a session with the cluster.
        probe: Send messages through its broker groups; see ``ClusterProbe``.
    """

    def __init__(
        self,
        name: str,
        config: MessageFactoryConfig,
        on_look: Callable[["Site"], Awaitable[None]] | None = None,
        opened: Open | None = None,
        *,
        probe: bool = False,
    ) -> None:
        self.name = name
        self.config = config
        self.facts = SiteFacts()
        self.allocation: tuple[float, AllocationFacts] | None = None
        self.measuring: asyncio.Task[AllocationFacts] | None = None
        self.reports = KeptReports()
        self.problem = "the console has not reached it yet"
        self._on_look = on_look
        self._opened = opened or _open
        self._factory: MessageFactory | None = None
        self._has_probe = probe
        self._probe: ClusterProbe | None = None
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_group = ""
        self._naming = asyncio.Lock()
        self._calm_s: dict[str, float] = {}

    def start(self) -> None:
        """Begin to look."""
        self._task = begin_task(self._run())

    async def stop(self) -> None:
        """End the looks and the session."""
        tasks = [each for each in (self._task, self.measuring) if each is not None]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close()

    @property
    def cluster(self) -> ClusterClient:
        """The client for operations.

        Raises:
            CoordinationError: The cluster is not reached now.
        """
        if self._factory is None:
            raise CoordinationError(f"cluster {self.name} is not reached: {self.problem}")
        return self._factory.admin.cluster

    async def next_look(self) -> None:
        """Wait until something was looked at again."""
        await self._looked.wait()

    async def look_again(self) -> None:
        """Look at topics and groups now: somebody has changed something, and is to see it.

        Of a large cluster, where a look takes long, the next one shows it.
        """
        if self.facts.names_look.took_s > _AGAIN_S:
            return
        with contextlib.suppress(VqError, TimeoutError):
            async with asyncio.timeout(_AGAIN_S):
                await self._look_at_names()
            now_ms = self.cluster.clock.wall_ms()
            self.facts.names_look = replace(self.facts.names_look, time_ms=now_ms)
            self._wake()

    async def _run(self) -> None:
        while True:
            try:
                self._factory = await self._opened(self.config)
                break
            except VqError as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - a task's outer edge
                self._failed(shown_raised(error))
            await asyncio.sleep(_REOPEN_S)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(BROKERS_S, "brokers_look", self._look_at_brokers))
            tasks.create_task(self._repeat(NAMES_S, "names_look", self._look_at_names))
            tasks.create_task(self._repeat(LAGS_S, "lags_look", self._look_at_lags))
            if self._has_probe:
                self._probe = ClusterProbe(self.cluster)
                tasks.create_task(self._probe.run())

    def _failed(self, cause: str) -> None:
        if self.problem != cause:
            logger.warning("cluster is not reached", cluster=self.name, error=cause)
        self.problem = cause
        self._wake()

    async def _repeat(
        self, pause_s: float, which: str, look: Callable[[], Awaitable[None]]
    ) -> None:
        told = ""
        while True:
            clock = self.cluster.clock
            begun = clock.monotonic()
            error = ""
            try:
                await look()
            except VqError as raised:
                error = str(raised)
            except Exception as raised:
                error = shown_raised(raised)
                logger.warning("look failed", cluster=self.name, look=which, exc_info=raised)
            if error and error != told:
                logger.warning("look failed", cluster=self.name, look=which, error=error)
            told = error
            took = clock.monotonic() - begun
            before: Look = getattr(self.facts, which)
            found = Look(before.time_ms if error else clock.wall_ms(), took, error)
            setattr(self.facts, which, found)
            if which == "brokers_look":
                self.problem = error
            self._wake()
            if self._on_look is not None and not error:
                await self._on_look(self)
            await asyncio.sleep(max(pause_s, self._cost_s(which, took, error) / _SHARE_MAX))

    def _cost_s(self, which: str, took_s: float, error: str) -> float:
        """Return what a look costs the cluster. To wait for one who is silent costs nothing.

        Or an outage of seconds would be shown for minutes.
        """
        if error:
            return min(took_s, self._calm_s.get(which, 0.0))
        if which != "names_look" and self.facts.status.silent:
            return min(took_s, self._calm_s.get(which, took_s))
        self._calm_s[which] = took_s
        return took_s

    def _wake(self) -> None:
        self._looked.set()
        self._looked = asyncio.Event()

    async def _look_at_brokers(self) -> None:
        cluster = self.cluster
        status = await cluster_status(cluster)
        nodes = [(each.group.group, each.name) for each in status.brokers if each.node is not None]
        loads = await gather_all(_load_of(cluster, group, node) for group, node in nodes)
        self.facts.status = status
        self.facts.loads = {
            node: found.load for node, found in zip(nodes, loads, strict=True) if found is not None
        }
        if self._probe is not None:
            self.facts.probes = {each.group: each for each in self._probe.results()}

    async def _look_at_names(self) -> None:
        async with self._naming:  # the newest look is the last one that counts
            topics, contracts = await asyncio.gather(
                read_topic_states(self.cluster), read_contracts(self.cluster)
            )
            facts = self.facts
            facts.topics, facts.contracts = topics, contracts
            facts.readers = readers_of(contracts, facts.lags)

    async def _look_at_lags(self) -> None:
        found = await look_at_groups(
            self.cluster, count=True, partitions_max=_TURN_PARTITIONS, after=self._last_group
        )
        self._last_group = found.last
        facts = self.facts
        there = set(found.names)
        facts.lags = {name: each for name, each in facts.lags.items() if name in there}
        for name, group in found.groups.items():
            facts.lags[name] = seen(group, found.time_ms, whole=name not in found.left_out)
        facts.readers = readers_of(facts.contracts, facts.lags)

    async def _close(self) -> None:
        factory, self._factory = self._factory, None
        if factory is not None:
            await factory.shutdown()


async def _load_of(cluster: ClusterClient, group: str, node: str) -> PublishedLoad | None:
    return (await read_loads(cluster.coordinator, {group: node})).get(group)
