"""An end-to-end probe: a small message a second through each broker group, and what becomes of it.

Loop-bound. Each broker group has a topic of its own, ``reserved.probe_topic``, with one partition
there. The probe makes it, and moves it back when it lies elsewhere and its group takes partitions.

    every AUDIT_S ─▶ groups of the cluster ─▶ one ``_GroupProbe`` for each
                                                send ─▶ put, until it is answered ┐
                                                read ─▶ follows the partition     ┴─▶ Outstanding

It costs a broker one send and one read a second. Nobody waits for it: who asks for ``results`` gets
what is known.
"""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.puts import put_batch
from vq.client.reading.forward import ReadOptions
from vq.client.reading.partition_reader import PartitionReader, records_decoder
from vq.coordination.brokers import group_views
from vq.coordination.topics import topics
from vq.coordination.topics.cluster_settings import read_settings
from vq.coordination.tree.reading import TopicView
from vq.errors import InvalidState, OutcomeUnknown, UnknownTopic, VqError
from vq.log_lines import get_logger
from vq.model import (
    GroupView,
    ProducerStamp,
    RetentionPolicy,
    TopicPartition,
    TopicSettings,
)
from vq.operations.cluster.probed import Outstanding, ProbeResult
from vq.operations.partitions.placements import move_all, plan_moves
from vq.reserved import probe_topic
from vq.shown import shown_raised
from vq.store.records.record import encode_record
from vq.tasks import begin_task

logger = get_logger(__name__)

#: Broker groups that are probed, the first by name; further ones are told in the log.
GROUPS_MAX: Final = 256
#: Pause between two messages to a group, in seconds.
INTERVAL_S: Final = 1.0
#: How long the broker of one message is waited for, in seconds.
SEND_S: Final = 5.0
#: Pause between two looks at the groups of the cluster, in seconds.
AUDIT_S: Final = 30.0
#: The same after one that failed, or that could not give a group its topic.
AGAIN_S: Final = 5.0
_READ_WAIT_S: Final = 1.0
_ONE_TRY: Final = ReadOptions(patience_s=0.0)  # what fails is told here, once
_AGAIN: Final = Backoff(first_s=0.2, most_s=5.0, jitter=0.2)


class ClusterProbe:
    """Sends to every broker group and reads back.

    Args:
        cluster: Where.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._probes: dict[str, _GroupProbe] = {}
        self._results: dict[str, ProbeResult] = {}
        self._left_out = 0  # groups beyond the bound
        self._told = ""  # the last complaint, so that it is logged once

    def results(self) -> list[ProbeResult]:
        """Return what is known now of each group that is probed, by name; copies."""
        return [self._probes[name].result() for name in sorted(self._probes)]

    async def run(self) -> None:
        """Probe for ever; what fails is tried again."""
        try:
            while True:
                try:
                    failed = await self._audit()
                except VqError as error:
                    failed = {"": error}
                except Exception as error:
                    logger.error("looking for broker groups to probe failed", exc_info=error)
                    failed = {"": InvalidState(shown_raised(error))}
                self._complain(failed)
                await asyncio.sleep(AGAIN_S if failed else AUDIT_S)
        finally:
            for name in list(self._probes):
                await self._stop(name)

    async def _audit(self) -> dict[str, VqError]:
        """Probe the groups that there are; return why some are not."""
        cluster = self._cluster
        views = await group_views.groups(cluster.coordinator)
        wanted = {each.group: each for each in views if not each.draining}
        left_out = sorted(wanted)[GROUPS_MAX:]
        for name in left_out:
            del wanted[name]
        self._left_out = len(left_out)
        for name in [each for each in self._probes if each not in wanted]:
            await self._stop(name)
        for name in [each for each in self._results if each not in wanted]:
            del self._results[name]
        failed = {}
        for name, view in wanted.items():
            try:
                await self._begin(view)
            except VqError as error:
                failed[name] = error
        return failed

    async def _begin(self, view: GroupView) -> None:
        """Have a group probed; one without a master is, if it was before."""
        name = view.group
        running = self._probes.get(name)
        if running is not None and running.has_ended:
            await self._stop(name)
            running = None
        if not view.alive:
            return
        topic = await place_topic(self._cluster, view)
        if running is not None and running.topic_id != topic.id:
            await self._stop(name)
            running = None
        if running is None:
            partition = TopicPartition(topic.name, 0)
            await self._cluster.track(topic.name)
            result = self._results.setdefault(name, ProbeResult(name))
            self._probes[name] = _GroupProbe(self._cluster, partition, topic.id, result)

    async def _stop(self, name: str) -> None:
        await self._probes.pop(name).stop()

    def _complain(self, failed: dict[str, VqError]) -> None:
        complaints = [f"{name}: {error}" if name else str(error) for name, error in failed.items()]
        if self._left_out:
            complaints.append(f"{self._left_out} beyond the first {GROUPS_MAX} are left out")
        told = "; ".join(complaints)
        if told and told != self._told:
            logger.warning("broker groups cannot be probed, trying again later", error=told)
        self._told = told


async def place_topic(cluster: ClusterClient, group: GroupView) -> TopicView:
    """Return the probe's topic of a broker group that has a master, made or moved if need be.

    It is as safe as new topics of the cluster, and keeps messages for an hour.

    Raises:
        InvalidArgument: The name of the group is too long for such a topic.
        TopicExists: A deleted topic of the name can still be brought back.
        VqError: It could not be made or moved.
    """
    name = probe_topic(group.group)
    try:
        found = await topics.describe_topic(cluster.coordinator, name)
    except UnknownTopic:
        defaults = (await read_settings(cluster.coordinator)).defaults
        return await topics.create_topic(
            cluster.coordinator,
            name,
            settings_of_probe(defaults, group),
            origin=cluster.origin(auto=True),
            group=group.group,
        )
    writer = found.partitions[0].writer_group
    if writer is not None and writer != group.group:
        if found.settings.pool != group.pool:
            await topics.alter_settings(
                cluster.coordinator, name, lambda before: replace(before, pool=group.pool)
            )
        await move_all(cluster, await plan_moves(cluster, name, [0], group.group))
    return found


def settings_of_probe(defaults: TopicSettings, group: GroupView) -> TopicSettings:
    """Return the settings of a probe's topic, from those of new topics of the cluster."""
    return replace(
        defaults,
        partitions=1,
        pool=group.pool,
        min_insync=min(defaults.min_insync, group.nodes),
        retention_hours=1,
        retention_bytes=None,
        retention_early_hours=None,
        retention_policy=RetentionPolicy.DELETE,
        archive_after_hours=None,
        archive_to=None,
        readable=True,
        writable=True,
    )


class _GroupProbe:
    """Sends to one partition and follows it. Begins at once.

    Attributes:
        topic_id: Of its topic.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        partition: TopicPartition,
        topic_id: str,
        result: ProbeResult,
    ) -> None:
        self.topic_id = topic_id
        self._cluster = cluster
        self._partition = partition
        self._outstanding = Outstanding(result)
        self._reader = PartitionReader(cluster, partition, topic_id)
        self._run = b"%016x" % cluster.rng.getrandbits(64)
        self._stamp = ProducerStamp(0, 0, 0)
        self._troubles: dict[str, str] = {}  # by what is done: why it fails now
        self._task = begin_task(self._work())

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself: the topic is gone, or something unexpected happened."""
        return self._task.done()

    def result(self) -> ProbeResult:
        """Return a copy of what is known now."""
        found = copy.deepcopy(self._outstanding.result)
        found.waiting_s = self._outstanding.waiting_s(self._cluster.clock.monotonic())
        return found

    async def stop(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                at = await self._first_end()
                tasks.create_task(self._follow(at))
                tasks.create_task(self._send_all())
        except* UnknownTopic:
            pass  # somebody deleted it; the next audit sees what there is
        except* Exception as errors:
            for error in errors.exceptions:
                logger.exception("probe ends", partition=self._partition, exc_info=error)
                self._trouble("read", shown_raised(error))

    async def _first_end(self) -> int:
        """Return where the partition ends, before anything is sent."""
        failures = 0
        while True:
            try:
                return await self._end()
            except UnknownTopic:
                raise
            except VqError as error:
                failures += 1
                self._trouble("read", str(error))
                await asyncio.sleep(_AGAIN.pause_s(failures, self._cluster.rng))

    # Sending ----------------------------------------------------------------------------------
    async def _send_all(self) -> None:
        clock, outstanding = self._cluster.clock, self._outstanding
        await asyncio.sleep(self._cluster.rng.uniform(0, INTERVAL_S))  # not all groups at once
        number, due_s = 0, clock.monotonic()
        while True:
            if not outstanding.is_full:
                number += 1
                await self._send(number)
            due_s = max(due_s + INTERVAL_S, clock.monotonic())
            await asyncio.sleep(due_s - clock.monotonic())

    async def _send(self, number: int) -> None:
        """Send one message. A failure begins another stamp: what the broker knows is unclear."""
        cluster, outstanding = self._cluster, self._outstanding
        if not self._stamp.producer_id:
            self._stamp = ProducerStamp(cluster.rng.getrandbits(63) | 1, 0, 0)
        begun_s = cluster.clock.monotonic()
        outstanding.begin(number, begun_s)
        try:
            offset = await put_batch(
                cluster,
                self._partition,
                self._stamp,
                [encode_record(0, b"%b %d" % (self._run, number))],
                topic_id=self.topic_id,
                deadline=begun_s + SEND_S,
            )
        except VqError as error:
            outstanding.fail(number, is_unknown=isinstance(error, OutcomeUnknown))
            self._stamp = ProducerStamp(0, 0, 0)
            self._trouble("send", str(error))
            if isinstance(error, UnknownTopic):
                raise
        else:
            outstanding.acknowledge(number, offset)
            self._stamp = self._stamp._replace(sequence=self._stamp.sequence + 1)
            self._trouble("send", "")

    # Reading ----------------------------------------------------------------------------------
    async def _follow(self, at: int) -> None:
        """Read what is stored from an offset on, for ever."""
        failures = 0
        while True:
            read = self._reader.read(at, records_decoder(), wait_s=_READ_WAIT_S, options=_ONE_TRY)
            try:
                async for records in read:
                    failures = 0
                    self._trouble("read", "")
                    self._take([each.payload for each in records], read.next_offset)
            except UnknownTopic:
                raise
            except VqError as error:
                failures += 1
                self._trouble("read", str(error))
                await asyncio.sleep(_AGAIN.pause_s(failures, self._cluster.rng))
                at = await self._go_on(read.next_offset, error)
                self._take((), at)

    async def _go_on(self, at: int, error: VqError) -> int:
        """Return where to read on after an error."""
        try:
            at, earliest = await self._reader.going_on(at, error)
            self._outstanding.deleted(earliest)
        except UnknownTopic:
            raise
        except VqError as again:
            self._trouble("read", str(again))
        return at

    def _take(self, contents: Sequence[bytes], at: int) -> None:
        """Take what was read up to an offset."""
        clock, outstanding = self._cluster.clock, self._outstanding
        now_s, wall_ms = clock.monotonic(), clock.wall_ms()
        for content in contents:
            run, _, number = content.partition(b" ")
            if run == self._run:
                outstanding.read(int(number), now_s, wall_ms)
        if lost := outstanding.passed(at, now_s):
            logger.error(
                "acknowledged messages of the probe are lost",
                partition=self._partition,
                messages=len(lost),
                before=at,
            )

    async def _end(self) -> int:
        return (await self._reader.bounds()).latest

    def _trouble(self, what: str, why: str) -> None:
        """Note why something fails now; "": it does not."""
        self._troubles[what] = why
        told = "; ".join(filter(None, self._troubles.values()))
        if told and not self._outstanding.result.error:
            logger.warning("probe fails", partition=self._partition, error=told)
        self._outstanding.result.error = told
