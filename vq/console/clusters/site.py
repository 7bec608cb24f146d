"""One cluster as the console has it: a client, and what the last looks at it have found."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vq.aio.factory import MessageFactory
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import MessageFactoryConfig
from vq.console.clusters.broker_hints import BrokerHints
from vq.console.clusters.kept import (
    KEPT_PLANS_MAX,
    KEPT_REPORTS_MAX,
    KEPT_RESETS_MAX,
    KeptDefinitions,
    KeptReport,
    KeptReset,
    Recent,
)
from vq.console.clusters.lags import SeenGroup, TopicReaders, readers_of, seen, unread
from vq.console.clusters.turns import next_turn
from vq.coordination.brokers.loads import PublishedLoad, read_loads
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.reading import children_or_none, gather_all
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import CoordinationError, VqError
from vq.log_lines import get_logger
from vq.operations.allocation.facts import AllocationFacts
from vq.operations.cluster.bulk import (
    GROUPS_IN_TURN,
    GroupContract,
    TopicState,
    contracts_of,
    read_topic_states,
)
from vq.operations.cluster.cluster import ClusterStatus, status_of_groups
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.cluster.lag_memory import LagMemory
from vq.operations.cluster.pace import LookPace
from vq.operations.cluster.probe import ClusterProbe
from vq.operations.cluster.probed import ProbeResult
from vq.shown import shown_raised
from vq.tasks import begin_task, in_turns

logger = get_logger(__name__)

#: Pauses between two looks at brokers, and at the lists of topics and groups.
BROKERS_S: Final = 2.0
NAMES_S: Final = 10.0
#: A group is looked at again after so long: groups take turns, as fast as the pace of reads lets.
LAGS_S: Final = 15.0
#: One that an open page shows, after so long.
LIVE_S: Final = 5.0
#: Partitions of groups in one turn: for each, brokers tell all their ends once.
_TURN_PARTITIONS: Final = 10_000
_TURN_S: Final = 0.5
#: Groups that are looked at together because pages show them.
_LIVE_MAX: Final = 200
#: A look may take this share of the time at most: of a large cluster there are fewer looks.
_SHARE_MAX: Final = 0.05
#: Longest pause between two looks: a broker that hangs makes one long, and not dear.
_PAUSE_S_MAX: Final = 30.0
#: Shortest pause between two looks at the broker groups of which something was heard.
_HEARD_S: Final = 0.5
#: While a broker is silent, a look waits for it, which costs nothing: the pause has this bound.
_SILENT_PAUSE_S: Final = 10.0
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
        status: Every broker with its status, without the partitions that are written to and whole.
        loads: The load that each node has published, by group and node.
        topics: All topics, without their partitions.
        contracts: All consumer groups with what they read.
        lags: How far behind groups are, by name: the last look at each, in turns.
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
    probes: dict[str, ProbeResult] | None = None

    def readers(self, topic: str | None = None) -> dict[str, TopicReaders]:
        """Return the groups of each topic by what was found, or of one topic alone."""
        contracts = self.contracts
        if topic is not None:
            contracts = [each for each in contracts if topic in each.topics]
        return readers_of(contracts, self.lags)


Open = Callable[[MessageFactoryConfig], Awaitable[MessageFactory]]


async def _open(config: MessageFactoryConfig) -> MessageFactory:
    # The console is an operator's: where brokers take no anonymous clients, it shows them that it
    # knows the cluster's secret.
    return MessageFactory.on_cluster(await open_cluster(config, operator=True))


class Site:
    """A cluster that the console shows. Loop-bound.

    It is there while the cluster is not: ``problem`` says so, and it tries again. ``allocation``
    has the last measurement of all partitions, and when it was made by the monotonic clock;
    ``measuring`` is the one that is under way; ``reports`` has the last ones of Spark, and
    ``definitions`` and ``resets`` the last plans of definitions and of resets of groups.

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
        self.reports: Recent[KeptReport] = Recent(KEPT_REPORTS_MAX)
        self.definitions: Recent[KeptDefinitions] = Recent(KEPT_PLANS_MAX)
        self.resets: Recent[KeptReset] = Recent(KEPT_RESETS_MAX)
        self.problem = "the console has not reached it yet"
        self._on_look = on_look
        self._opened = opened or _open
        self._factory: MessageFactory | None = None
        self._has_probe = probe
        self._probe: ClusterProbe | None = None
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._memory = LagMemory()
        self._pace: LookPace | None = None
        self._wanted: set[str] = set()
        self._want_heard = asyncio.Event()
        self._named = asyncio.Event()
        self._hints: BrokerHints | None = None
        # What hints led to since the present look at all brokers began: groups, and their status.
        self._newer: list[tuple[set[str], ClusterStatus]] = []
        self._naming = asyncio.Lock()

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

    def want(self, groups: Iterable[str]) -> None:
        """Have groups that a page shows looked at soon, if what is known of them is old."""
        if self._factory is None:
            return
        now_ms = self.cluster.clock.wall_ms()
        for name in itertools.islice(groups, _LIVE_MAX):
            found = self.facts.lags.get(name)
            if found is None or now_ms - found.time_ms > LIVE_S * 1000:
                self._wanted.add(name)
                self._want_heard.set()

    def look_at_probe(self) -> None:
        """Take what the probe has seen up to now; a look at a broker that hangs takes longer."""
        if self._probe is not None:
            self.facts.probes = {each.group: each for each in self._probe.results()}

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
        self._hints = BrokerHints(self.cluster)
        self._pace = LookPace(self.cluster.clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(self._hints.heard, self._look_at_some, _HEARD_S))
            tasks.create_task(self._repeat("brokers_look", self._look_at_brokers, BROKERS_S))
            tasks.create_task(self._repeat("names_look", self._look_at_names, NAMES_S))
            tasks.create_task(self._repeat("lags_look", self._look_at_lags, _TURN_S, share_max=1))
            tasks.create_task(self._follow(self._asked_by_pages, self._look_at_asked, _TURN_S))
            if self._has_probe:
                self._probe = ClusterProbe(self.cluster)
                tasks.create_task(self._probe.run())

    def _failed(self, cause: str) -> None:
        if self.problem != cause:
            logger.warning("cluster is not reached", cluster=self.name, error=cause)
        self.problem = cause
        self._wake()

    async def _repeat(
        self,
        which: str,
        look: Callable[[], Awaitable[None]],
        pause_s: float,
        *,
        share_max: float = _SHARE_MAX,
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
            self.look_at_probe()
            self._wake()
            if self._on_look is not None and not error:
                await self._on_look(self)
            if error:  # to wait for who does not answer costs nothing: look again soon
                took = 0.0
            silent = any(each.error for each in self.facts.status.brokers)
            await asyncio.sleep(pause_after(pause_s, took, share_max, silent=silent))

    def _wake(self) -> None:
        self._looked.set()
        self._looked = asyncio.Event()

    async def _follow(
        self,
        heard: Callable[[], Awaitable[set[str]]],
        look: Callable[[set[str]], Awaitable[None]],
        pause_s: float,
    ) -> None:
        """Look at once at what is heard of, for half the time at most."""
        clock = self.cluster.clock
        while True:
            what = await heard()
            begun = clock.monotonic()
            try:
                await look(what)
            except VqError as error:  # the next look at everything tells it
                logger.debug("look failed", cluster=self.name, error=error)
            except Exception as error:
                logger.warning("look failed", cluster=self.name, exc_info=error)
            self._wake()
            await asyncio.sleep(max(pause_s, clock.monotonic() - begun))

    async def _look_at_some(self, groups: set[str]) -> None:
        """Look at the broker groups of which something was heard."""
        cluster, hints = self.cluster, self._hints
        assert hints is not None
        names = await children_or_none(cluster.coordinator, BROKERS, watch=hints.watch)
        known = {each.group.group for each in self.facts.status.brokers}
        changed = groups | (known ^ set(names))
        there = sorted(changed & set(names))
        newer = (await status_of_groups(cluster, there, watch=hints.watch)).without_plain()
        hints.looked(newer, changed)
        self._newer.append((changed, newer))
        self.facts.status = self.facts.status.with_groups(changed, newer)

    async def _look_at_brokers(self) -> None:
        cluster, hints = self.cluster, self._hints
        assert hints is not None
        self._newer.clear()
        await children_or_none(cluster.coordinator, BROKERS, watch=hints.watch)
        status = (await status_of_groups(cluster, watch=hints.watch)).without_plain()
        hints.looked(status)
        nodes = [(each.group.group, each.name) for each in status.brokers if each.node is not None]
        loads = await gather_all(_load_of(cluster, group, node) for group, node in nodes)
        self.facts.loads = {
            node: found.load for node, found in zip(nodes, loads, strict=True) if found is not None
        }
        for groups, newer in self._newer:
            status = status.with_groups(groups, newer)
        self.facts.status = status

    async def _look_at_names(self) -> None:
        async with self._naming:  # the newest look is the last one that counts
            topics, contracts = await asyncio.gather(
                read_topic_states(self.cluster), contracts_of(self.cluster, self._memory.members)
            )
            facts = self.facts
            facts.topics, facts.contracts = topics, contracts
        self._named.set()

    async def _look_at_lags(self) -> None:
        await self._named.wait()
        turn = next_turn(
            self.facts.contracts,
            {each.topic: each.partitions for each in self.facts.topics},
            self.facts.lags,
            self.cluster.clock.wall_ms(),
            due_s=LAGS_S,
            partitions_max=_TURN_PARTITIONS,
        )
        if turn:
            await self._look_at_groups(turn, self._pace)

    async def _asked_by_pages(self) -> set[str]:
        await self._want_heard.wait()
        self._want_heard.clear()
        wanted, self._wanted = self._wanted, set()
        return wanted

    async def _look_at_asked(self, groups: set[str]) -> None:
        """Look at the groups that open pages show, beside those whose turn it is."""
        await self._look_at_groups(sorted(groups)[:_LIVE_MAX], None)

    async def _look_at_groups(self, names: Sequence[str], pace: LookPace | None) -> None:
        begun_ms = self.cluster.clock.wall_ms()
        found = await look_at_groups(
            self.cluster, count=True, names=names, memory=self._memory, pace=pace
        )
        facts, there = self.facts, set(found.names)
        facts.lags = {
            name: each
            for name, each in facts.lags.items()
            if name in there or each.time_ms > begun_ms  # it is younger than this look
        }
        async for name in in_turns(there.intersection(names), GROUPS_IN_TURN):
            group, before = found.groups.get(name), facts.lags.get(name)
            if pace is not None and before is not None and before.time_ms > begun_ms:
                continue  # a page had it looked at during this turn, which read its offsets before
            if group is None:  # it cannot be read
                facts.lags[name] = unread(found.time_ms)
            else:
                whole = name not in found.left_out
                now = seen(group, found.time_ms, whole=whole)
                facts.lags[name] = now.since(before)

    async def _close(self) -> None:
        factory, self._factory = self._factory, None
        if factory is not None:
            await factory.shutdown()


def pause_after(least_s: float, took_s: float, share: float, *, silent: bool) -> float:
    """Return the pause after a look, in seconds.

    Args:
        least_s: Of this kind of look.
        took_s: How long it took.
        share: Of the time that such looks take at most.
        silent: A broker did not answer: waiting for it is part of what it took.
    """
    return max(least_s, min(took_s / share - took_s, _SILENT_PAUSE_S if silent else _PAUSE_S_MAX))


async def _load_of(cluster: ClusterClient, group: str, node: str) -> PublishedLoad | None:
    return (await read_loads(cluster.coordinator, {group: node})).get(group)
