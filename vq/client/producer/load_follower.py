"""Has the topics of a producer follow the load: reads it now and then, and passes it on."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.producer.load_weights import weights
from vq.client.producer.partition_load import NUMBER_MAX, PartitionLoad
from vq.client.producer.partitioner import Sense
from vq.client.producer.stored_bytes import read_stored
from vq.coordination.topics.routes import Routes
from vq.coordination.tree.reading import TopicView
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.tasks import begin_task

logger = get_logger(__name__)

#: How often the load is read, by what "least used" means. Stored bytes cost each broker one request
#: for each of its partitions, and change slowly.
INTERVAL_S: Final[Mapping[Sense | None, float]] = {
    Sense.STORED: 2 * limits.LOAD_READ_INTERVAL_S,
    Sense.HEADROOM: limits.LOAD_READ_INTERVAL_S,
    Sense.LOAD: limits.LOAD_READ_INTERVAL_S,
    None: limits.LOAD_READ_INTERVAL_S,
}


class FollowsLoad(Protocol):
    """A topic whose messages are spread by load; in practice ``TopicQueues``."""

    topic: str
    topic_id: str

    def follow_weights(self, weights: Sequence[float] | None) -> None:
        """Spread messages by these weights, one for each partition; None: all the same."""

    def follow_loads(self, loads: Sequence[PartitionLoad]) -> None:
        """Show these loads, one for each partition, to the application's partitioner."""


class LoadFollower:
    """The task of one producer. Loop-bound.

    Args:
        cluster: Its routes say which broker has which partition; its ``loads`` are refreshed.
        sense: What "least used" means; None: an application's partitioner looks at the load.
        topics: Returns the topics to steer.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        sense: Sense | None,
        topics: Callable[[], Iterable[FollowsLoad]],
    ) -> None:
        self._cluster = cluster
        self._sense = sense
        self._topics = topics
        self._weights: dict[str, list[float]] = {}  # by topic id
        self._task: asyncio.Task[None] | None = None
        self._hint = asyncio.Event()
        self._stopped = False

    def look_soon(self) -> None:
        """Read the load at once, for a topic that is new; the first call starts the task."""
        if self._stopped:
            return
        self._hint.set()
        if self._task is None:
            self._task = begin_task(self._run(), self._cluster.context)

    def stop(self) -> None:
        """End the task, also during a reading. Nothing starts it again."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def wait_stopped(self) -> None:
        """Return once the task has ended, after ``stop``."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            self._hint.clear()
            try:
                await self.look()
            except VqError as error:
                logger.debug("load cannot be followed, trying again later", error=error)
            except Exception:
                logger.exception("following the load failed, trying again later")
            spread = 1 - limits.LOAD_JITTER + 2 * limits.LOAD_JITTER * self._cluster.rng.random()
            try:
                async with asyncio.timeout(INTERVAL_S[self._sense] * spread):
                    await self._hint.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Read the load of all topics once, and pass it on."""
        topics = list(self._topics())
        stored: dict[str, dict[int, int]] = {}
        await self._cluster.loads.refresh(_masters(self._cluster.routes, topics))
        if self._sense is Sense.STORED:
            for each in topics:
                stored[each.topic] = await read_stored(self._cluster, each.topic)
        routes, before, self._weights = self._cluster.routes, self._weights, {}
        for each in topics:
            view = routes.topics.get(each.topic)
            if view is None or view.id != each.topic_id:
                continue
            loads = self._loads(view, routes, stored.get(each.topic, {}))
            if self._sense is None:
                each.follow_loads(loads)
                continue
            found = weights(self._sense, loads, before.get(view.id))
            self._weights[view.id] = found
            each.follow_weights(None if _all_the_same(found) else found)

    def _loads(
        self, view: TopicView, routes: Routes, stored: dict[int, int]
    ) -> list[PartitionLoad]:
        brokers: dict[str, PartitionLoad] = {}  # a topic may have thousands of partitions on one
        loads = []
        for placement in view.partitions:
            group = placement.writer_group or ""
            load = brokers.get(group)
            if load is None:
                load = brokers[group] = self._load_of(group, routes)
            size = stored.get(placement.partition)
            known = size is not None and size <= NUMBER_MAX
            loads.append(replace(load, stored_bytes=size) if known else load)
        return loads

    def _load_of(self, group: str, routes: Routes) -> PartitionLoad:
        master = routes.masters.get(group)
        load = None if master is None else self._cluster.loads.get(group, master.node)
        return load_of(group, load)


def _masters(routes: Routes, topics: Iterable[FollowsLoad]) -> dict[str, str]:
    """Return the master of each group that has an open partition of these topics, in order."""
    views = [routes.topics.get(each.topic) for each in topics]
    groups = {
        placement.writer_group
        for view in views
        if view is not None
        for placement in view.partitions
        if placement.writer_group is not None
    }
    masters = routes.masters
    return {group: masters[group].node for group in sorted(groups) if group in masters}


def load_of(group: str, load: BrokerLoad | None) -> PartitionLoad:
    """Return the load of any partition of a broker; numbers that cannot be count as unknown."""
    if load is not None:
        try:
            return PartitionLoad(
                broker=group,
                known=True,
                disk_used_ratio=load.disk_used_ratio,
                bytes_per_s=load.bytes_per_s,
                capacity_bytes_per_s=load.capacity_bytes_per_s,
                busy=load.busy,
                queue_depth=load.queue_depth,
                flush_ms=load.flush_ms,
            )
        except ValueError as error:
            logger.debug("load of a broker cannot be", group=group, error=error)
    return PartitionLoad(broker=group)


def _all_the_same(found: Sequence[float]) -> bool:
    return max(found) - min(found) < 1e-9
