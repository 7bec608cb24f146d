"""Setting a consumer group's progress: planned first, shown, then carried out.

Loop-bound functions on a ``ClusterClient``. A reset raises the generation of each partition in the
same step, so a member that goes on meanwhile commits nothing over it: it claims the partition again
and goes on from the new offset.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.groups import claims, groups
from vq.coordination.groups.zookeeper_offsets import why_of_another
from vq.coordination.topics import topics
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import (
    InvalidArgument,
    InvalidState,
    OffsetOutOfRange,
    UnknownTopic,
)
from vq.model import PartitionPlacement, TopicPartition, choice_of
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import ResetUnknown, unknown_when_cut
from vq.operations.groups.terms import check_one_progress
from vq.operations.messages.stored import COUNT_MAX
from vq.operations.partitions.offsets import Inspector, PartitionEnds, check_time, no_answer
from vq.shown import shown


class Goal(enum.StrEnum):
    """Where a group is to go on."""

    EARLIEST = "earliest"  # the oldest message kept
    LATEST = "latest"  # the end of the log: what is there now is skipped
    COMMITTED = "committed"  # where it is: a group that was stopped goes on
    TIME = "time"  # the first message stored at or after a time
    OFFSET = "offset"  # the start of a record
    PAST_DAMAGE = "past-damage"  # behind messages that cannot be read, where it is at them
    SHIFT = "shift"  # so many messages after where it is, or before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A goal with its number. A goal may be its name as text: ``earliest``, ``past-damage`` …

    TIME takes milliseconds since 1970 UTC, OFFSET an offset. SHIFT takes a number of messages,
    -100,000 to 100,000: negative ones repeat messages. At the ends of what is kept it stops.
    """

    goal: (
        Goal | Literal["earliest", "latest", "committed", "time", "offset", "past-damage", "shift"]
    )
    value: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "goal", choice_of(Goal, "goal", self.goal))
        check_whole("value", self.value)
        if self.goal is Goal.TIME:
            check_time("a time", self.value)
        if self.goal is Goal.SHIFT and not 1 <= abs(self.value) <= COUNT_MAX:
            raise InvalidArgument(
                f"a shift by {shown(self.value)} messages is outside "
                f"[-{COUNT_MAX}, {COUNT_MAX}], or 0"
            )


@dataclass(frozen=True, slots=True)
class Reset:
    """One partition to be reset, as read from the cluster: nothing has happened yet."""

    partition: TopicPartition
    before: CommittedOffset | None
    after: CommittedOffset
    skips: int | None = 0  # messages that the group will not see
    repeats: int | None = 0  # messages that it will see again


async def plan_reset(
    cluster: ClusterClient,
    group: str,
    target: Target,
    *,
    only_topics: Collection[str] = (),
    only_partitions: Collection[int] = (),
    only_stopped: bool = False,
) -> list[Reset]:
    """Return what setting a group's progress would do, by partition; changes nothing.

    Args:
        group: Its name.
        target: Where it is to go on.
        only_topics: Of the group's topics; all of them when empty.
        only_partitions: Of these topics; all of them when empty.
        only_stopped: Only where the group was stopped, or its offset lies beyond the end.

    Raises:
        UnknownGroup, UnknownPartition: There is none.
        InvalidArgument: The group does not read such a topic, or the target does not fit.
        InvalidState: Each member has its own progress. Or the target says where the group is, and
            its offset is one of another topic of this name.
        NotMaster: A broker that must be asked does not answer.
        OffsetOutOfRange, OffsetNotBoundary: The partition has no such offset.
    """
    own = await groups.known_group(cluster.coordinator, group)
    contract = await groups.with_matches(cluster.coordinator, own)
    check_one_progress(group, contract, "there is no place of the group to be set")
    strangers = sorted(set(only_topics) - set(contract.topics))
    if strangers:
        raise InvalidArgument(
            f"group {group!r} does not read topic {strangers[0]!r}; it reads "
            f"{', '.join(sorted(contract.topics))}"
        )
    return await plan_places(
        cluster,
        group,
        target,
        start=contract.start,
        topics_needed=only_topics,
        topics_else=() if only_topics else contract.topics,
        by_pattern=contract.topics.keys() - own.topics.keys(),
        only_partitions=only_partitions,
        only_stopped=only_stopped,
    )


async def plan_places(
    cluster: ClusterClient,
    group: str,
    target: Target,
    *,
    start: str,
    topics_needed: Collection[str] = (),
    topics_else: Collection[str] = (),
    by_pattern: Collection[str] = (),
    only_partitions: Collection[int] = (),
    only_stopped: bool = False,
) -> list[Reset]:
    """Return what ``plan_reset`` does, of a group that need not be there yet.

    Args:
        cluster: Where.
        group: Its name.
        target: Where it is to go on.
        start: Where it begins without an offset.
        topics_needed: These topics, which must be there.
        topics_else: And those of these that are there.
        by_pattern: Those of them that it reads by pattern.
        only_partitions, only_stopped: As for ``plan_reset``.
    """
    names = sorted({*topics_needed, *topics_else})
    found = [await _view(cluster, name, needed=name in topics_needed) for name in names]
    views = [view for view in found if view is not None]
    chosen = [
        (view, placement) for view in views for placement in _placements(view, only_partitions)
    ]
    if target.goal is Goal.OFFSET and len(chosen) != 1:
        raise InvalidArgument(
            f"an offset means one partition; {len(chosen)} are named: name one topic and partition"
        )
    before = await cluster.offsets.read(group, names)
    planner = Planner(cluster, group, target, start, by_pattern)
    plans = await gather_all(
        planner.plan(view, placement, before.get(_partition_of(placement)), only_stopped)
        for view, placement in chosen
    )
    return [each for each in plans if each is not None]


async def _view(cluster: ClusterClient, name: str, *, needed: bool) -> TopicView | None:
    """Return a topic; None when it is gone and need not be there."""
    try:
        return await topics.describe_topic(cluster.coordinator, name)
    except UnknownTopic:
        if needed:
            raise
        return None


def _placements(view: TopicView, only: Collection[int]) -> Sequence[PartitionPlacement]:
    for number in only:
        topics.check_partition(view, number)
    return [each for each in view.partitions if not only or each.partition in only]


def _partition_of(placement: PartitionPlacement) -> TopicPartition:
    return TopicPartition(placement.topic, placement.partition)


class Planner:
    """Plans the reset of single partitions."""

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        target: Target,
        start: str,
        by_pattern: Collection[str],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._inspector = Inspector(cluster)
        self._target = target
        self._start = start  # where the group begins without an offset
        self._by_pattern = by_pattern  # what it reads so: may be younger as a whole

    async def plan(
        self,
        view: TopicView,
        placement: PartitionPlacement,
        before: CommittedOffset | None,
        only_stopped: bool,
    ) -> Reset | None:
        """Return what is to be done with one partition; None: nothing."""
        partition = _partition_of(placement)
        ends = await self._inspector.ends(placement)
        if ends is None:
            raise no_answer(partition)
        elsewhere = "" if before is None else why_of_another(before, view.id)
        if only_stopped and not (elsewhere or _is_stopped(before, ends)):
            return None
        if elsewhere and self._target.goal in {Goal.COMMITTED, Goal.PAST_DAMAGE, Goal.SHIFT}:
            raise InvalidState(
                f"group {self._group!r} is nowhere in {partition}: {elsewhere}; name another place"
            )
        if self._target.goal is Goal.COMMITTED:
            return await self._go_on(partition, before, ends)
        here = None if elsewhere else before
        offset = await self._offset(placement, ends, here)
        after = CommittedOffset(offset=offset, time_ms=self._now_ms(), topic_id=view.id)
        old = await self._place(partition, ends, here)
        if old == offset and self._target.goal is Goal.PAST_DAMAGE:
            return None
        if old == offset or (here is None and offset < old):  # nothing was handled here before
            return Reset(partition, before, after)
        if old > ends.latest:  # nobody knows what lay between
            return Reset(partition, before, after, None if offset < old else 0, None)
        count = await self._inspector.count(placement, min(old, offset), max(old, offset))
        forward = offset > old
        return Reset(partition, before, after, count if forward else 0, 0 if forward else count)

    async def _go_on(
        self, partition: TopicPartition, before: CommittedOffset | None, ends: PartitionEnds
    ) -> Reset | None:
        """Plan to take a stop away; the offset must be one that can be read.

        Without the epoch: an operator says that the log has what it had. The message is compared.
        """
        if before is None or not before.stopped:
            return None
        if before.offset > ends.latest:
            raise OffsetOutOfRange(
                f"the offset {before.offset} of {partition} still lies beyond the end {ends.latest}"
            )
        after = CommittedOffset(
            offset=before.offset,
            message_id=before.message_id,
            time_ms=self._now_ms(),
            topic_id=before.topic_id,
        )
        return Reset(partition, before, after)

    async def _offset(
        self, placement: PartitionPlacement, ends: PartitionEnds, before: CommittedOffset | None
    ) -> int:
        target = self._target
        if target.goal is Goal.SHIFT:
            return await self._shifted(_partition_of(placement), ends, before)
        if target.goal is Goal.PAST_DAMAGE:
            place = min(await self._place(_partition_of(placement), ends, before), ends.latest)
            return await PartitionReader(self._cluster, _partition_of(placement)).past_damage(place)
        if target.goal is Goal.EARLIEST:
            return ends.earliest
        if target.goal is Goal.LATEST:
            return ends.latest
        if target.goal is Goal.TIME:
            return await self._at_time(placement, target.value, ends)
        if not ends.earliest <= target.value <= ends.latest:
            raise OffsetOutOfRange(
                f"offset {target.value} of {_partition_of(placement)} is outside "
                f"[{ends.earliest}, {ends.latest}]"
            )
        if target.value < ends.latest:
            await PartitionReader(self._cluster, _partition_of(placement)).check(target.value)
        return target.value

    async def _place(
        self, partition: TopicPartition, ends: PartitionEnds, before: CommittedOffset | None
    ) -> int:
        """Return where the group is, or where it would begin."""
        if before is not None:
            return max(before.offset, ends.earliest)
        younger = self._start != "latest" or await claims.is_younger(
            self._cluster.coordinator,
            self._group,
            partition,
            by_pattern=partition.topic in self._by_pattern,
        )
        return ends.earliest if younger else ends.latest

    async def _shifted(
        self, partition: TopicPartition, ends: PartitionEnds, before: CommittedOffset | None
    ) -> int:
        """Return the place that many messages from where the group is."""
        place = min(await self._place(partition, ends, before), ends.latest)
        reader, count = PartitionReader(self._cluster, partition), self._target.value
        if count > 0:
            return await reader.forward(place, count, ends.latest)
        return await reader.back(place, -count, ends.earliest)

    async def _at_time(
        self, placement: PartitionPlacement, time_ms: int, ends: PartitionEnds
    ) -> int:
        offset = await self._inspector.offset_at_time(placement, time_ms)
        if offset is None:
            raise no_answer(_partition_of(placement))
        return min(max(offset, ends.earliest), ends.latest)

    def _now_ms(self) -> int:
        return self._cluster.clock.wall_ms()


def _is_stopped(before: CommittedOffset | None, ends: PartitionEnds) -> bool:
    return before is not None and (bool(before.stopped) or before.offset > ends.latest)


async def live_members(cluster: ClusterClient, group: str) -> list[str]:
    """Return the sorted names of the members for which a reset waits, unless it fences them."""
    return list(await groups.members(cluster.coordinator, group))


@audited(About.GROUP)
async def reset(
    cluster: ClusterClient, group: str, planned: Sequence[Reset], *, fence: bool = False
) -> None:
    """Set where a consumer group goes on, as planned.

    ``fence``: also while members are alive. What they have not committed by then counts for
    nothing, and they go on from the new offsets.

    Raises:
        InvalidState: The group has members, and they are not to be fenced; or since the plan the
            group, or one of the topics, was deleted or made anew. Nothing was changed.
        ResetUnknown: ZooKeeper went away; those before it in the plan were reset.
    """
    with unknown_when_cut(f"resetting {group}", ResetUnknown):
        await _check_plan(cluster, group, planned)
        present = await live_members(cluster, group)
        if present and not fence:
            names = ", ".join(present[:5])
            raise InvalidState(
                f"group {group!r} has members, {len(present)} in all: {names}; stop them first, "
                "or fence them (--fence)"
            )
        for each in planned:
            await cluster.offsets.reset(group, each.partition, each.after)


async def _check_plan(cluster: ClusterClient, group: str, planned: Sequence[Reset]) -> None:
    """Check that what was planned is still there: a reset would make a deleted group anew.

    Raises:
        InvalidState: It is not.
    """
    if await groups.read_group(cluster.coordinator, group) is None:
        raise InvalidState(f"group {group!r} was deleted meanwhile; nothing was reset")
    await check_topics(cluster, planned)


async def check_topics(cluster: ClusterClient, planned: Sequence[Reset]) -> None:
    """Check that the topics are those that were planned for.

    Raises:
        InvalidState: One was deleted, or made anew.
    """
    for name in sorted({each.partition.topic for each in planned}):
        view = await _view(cluster, name, needed=False)
        ids = {each.after.topic_id for each in planned if each.partition.topic == name}
        if view is None or ids - {view.id, ""}:
            raise InvalidState(
                f"topic {name!r} was deleted or made anew meanwhile; nothing was reset, plan again"
            )
