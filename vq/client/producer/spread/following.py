"""What steers the spread of a producer's topics: published load, and brokers whose disk is full."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.producer.spread.partitioner import NUMBER_MAX, PartitionLoad, Sense
from vq.client.producer.spread.weights import weights
from vq.clock import Clock
from vq.coordination.topics.routes import Master, Routes
from vq.coordination.tree.reading import TopicView
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.model import PartitionPlacement, Span, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import OffsetsRequest, OffsetsResponse
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


class SpreadTopic(Protocol):
    """A topic whose messages are spread; in practice ``TopicQueues``."""

    topic: str
    topic_id: str

    def follow_weights(self, weights: Sequence[float] | None) -> None:
        """Spread messages by these weights, one for each partition; None: all the same."""

    def follow_loads(self, loads: Sequence[PartitionLoad]) -> None:
        """Show these loads, one for each partition, to the application's partitioner."""

    def pass_by(self, full: frozenset[int]) -> None:
        """Deal no messages to partitions on full disks, while there are others."""


class LoadFollower:
    """Reads the load now and then, and passes it on to the topics of one producer. Loop-bound.

    Args:
        cluster: Its routes say which broker has which partition; its ``loads`` are refreshed.
        sense: What "least used" means; None: an application's partitioner looks at the load.
        topics: The topics to steer, by name; they may change.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        sense: Sense | None,
        topics: Mapping[str, SpreadTopic],
    ) -> None:
        self._cluster = cluster
        self._sense = sense
        self._topics = topics
        self.weights: dict[str, list[float]] = {}  # by topic id
        self.task: asyncio.Task[None] | None = None
        self._hint = asyncio.Event()
        self._stopped = False

    def look_soon(self) -> None:
        """Read the load at once, for a topic that is new; the first call starts the task."""
        if self._stopped:
            return
        self._hint.set()
        if self.task is None:
            self.task = begin_task(self._run(), self._cluster.context)

    def stop(self) -> None:
        """End the task, also during a reading. Nothing starts it again."""
        self._stopped = True
        if self.task is not None:
            self.task.cancel()

    async def wait_stopped(self) -> None:
        """Return once the task has ended, after ``stop``."""
        if self.task is not None:
            await asyncio.wait({self.task})

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
        topics = list(self._topics.values())
        stored: dict[str, dict[int, int]] = {}
        await self._cluster.loads.refresh(_masters(self._cluster.routes, topics))
        if self._sense is Sense.STORED:
            for each in topics:
                stored[each.topic] = await read_stored(self._cluster, each.topic)
        routes, before, self.weights = self._cluster.routes, self.weights, {}
        for each in topics:
            view = routes.topics.get(each.topic)
            if view is None or view.id != each.topic_id:
                continue
            loads = self._loads(view, routes, stored.get(each.topic, {}))
            if self._sense is None:
                each.follow_loads(loads)
                continue
            found = weights(self._sense, loads, before.get(view.id))
            self.weights[view.id] = found
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


def _masters(routes: Routes, topics: Iterable[SpreadTopic]) -> dict[str, str]:
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


#: Requests that one broker is sent at once; a small part of what it takes on one connection.
AT_ONCE_MAX: Final = 64


async def read_stored(cluster: ClusterClient, topic: str) -> dict[int, int]:
    """Return the bytes of the open span of each partition, without those that are not known.

    Bytes of earlier spans lie on other brokers, so they do not count. It costs one small request
    for each partition, at most ``AT_ONCE_MAX`` at a time for each broker. A broker that answers no
    request of such a step is not asked for the rest.
    """
    routes = cluster.routes
    view = routes.topics.get(topic)
    if view is None:
        return {}
    by_master: defaultdict[Master, list[PartitionPlacement]] = defaultdict(list)
    for placement in view.partitions:
        master = routes.masters.get(placement.writer_group or "")
        if master is not None:
            by_master[master].append(placement)
    asked = [_ask_all(cluster, master, view.id, each) for master, each in by_master.items()]
    found: dict[int, int] = {}
    for answers in await asyncio.gather(*asked):
        found.update(answers)
    return found


async def _ask_all(
    cluster: ClusterClient, master: Master, topic_id: str, placements: list[PartitionPlacement]
) -> dict[int, int]:
    found: dict[int, int] = {}
    rest = iter(placements)
    while step := list(itertools.islice(rest, AT_ONCE_MAX)):
        sizes = await asyncio.gather(*(_ask(cluster, master, topic_id, each) for each in step))
        known = {
            placement.partition: size
            for placement, size in zip(step, sizes, strict=True)
            if size is not None
        }
        if not known:
            break
        found.update(known)
    return found


async def _ask(
    cluster: ClusterClient, master: Master, topic_id: str, placement: PartitionPlacement
) -> int | None:
    request = OffsetsRequest(
        topic=placement.topic,
        partition=placement.partition,
        epoch=master.epoch,
        topic_id=topic_id,
    )
    try:
        answer, _ = await cluster.request(master.address, Command.OFFSETS, request)
    except VqError:
        return None
    assert isinstance(answer, OffsetsResponse)
    open_span: Span = placement.spans[-1]
    return max(0, answer.log_end_offset - max(answer.earliest, open_span.start))


#: Longer than the usual pauses between the tries of a batch that is refused.
FULL_S: Final = 5.0


class FullPartitions:
    """Partitions that refused messages lately because their disk is full. Loop-bound.

    The published load tells of a broker that is full, and only to producers that follow the load. A
    broker with several data directories may be full for some of its partitions alone.

    A partition counts as full for ``FULL_S`` from its last refusal on. While messages wait for it,
    they are sent again and again, so it counts until their end; then a few messages try it again.

    Args:
        clock: Says how long ago a refusal was.
        topics: The topics to steer, by name; they may change.
    """

    def __init__(self, clock: Clock, topics: Mapping[str, SpreadTopic]) -> None:
        self._now = clock.monotonic
        self._topics = topics
        self._until: dict[TopicPartition, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, partition: TopicPartition) -> None:
        """Note that a partition has refused messages for a full disk."""
        is_new = partition not in self._until
        self._until[partition] = self._now() + FULL_S
        if is_new:
            self._show_topic(partition.topic)
        self._wait()

    def stop(self) -> None:
        """Forget all of them."""
        self._until.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is None and self._until:
            pause_s = max(0.0, min(self._until.values()) - self._now())
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        over = [partition for partition, until in self._until.items() if until <= now]
        for partition in over:
            del self._until[partition]
        for topic in {partition.topic for partition in over}:
            self._show_topic(topic)
        self._wait()

    def _show_topic(self, topic: str) -> None:
        steered = self._topics.get(topic)
        if steered is not None:
            full = (each.partition for each in self._until if each.topic == topic)
            steered.pass_by(frozenset(full))
