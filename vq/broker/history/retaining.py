"""Retention: what the master of a group deletes of its partitions, pass after pass.

In here: when a pass comes early, what it looks at, and who needs what. Not in here: the decision
(``store.log.retention``), how blocks go (``channel_logs``), and how copies follow (``copying``).

While a disk of the group is too full (``relief``), another pass follows that deletes messages early
where topics allow it, and passes come sooner (decision 0061).

A pass has no state: a missed one needs no policy (decision 0057). A visit deletes a few blocks of
one partition, whatever is due.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from vq.broker.base.facts import Facts, gauge
from vq.broker.base.flusher_share import give_way
from vq.broker.base.jobs import Every, Jobs
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Runner
from vq.broker.history.relief import Relief
from vq.broker.logs.block_pass import BlockPass, TopicWork, Visitor
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.logs.old_blocks import closed_blocks, first_ms_of, is_whole, kept_of, read_block
from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.ranges import earliest
from vq.clock import HOUR_MS, Clock
from vq.coordination.topics.needs import Needs, read_needs
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import CoordinationError, VqError
from vq.limits import MIB
from vq.log_lines import get_logger
from vq.model import RetentionPolicy, TopicSettings
from vq.store.disk.disk import Disk
from vq.store.log.block import Block
from vq.store.log.block_facts import read_facts
from vq.store.log.log import Log
from vq.store.log.retention import Cut, Kept, Limits, OpenBlock, decide, must_roll, relieve

logger = get_logger(__name__)

#: What goes at a time of a partition, and at least one block: to delete a file of 128 MiB takes the
#: flusher some 30 ms on ext4, and acknowledgements wait for it.
BLOCKS_AT_A_TIME: Final = 8
BYTES_AT_A_TIME: Final = 128 * MIB
#: While a disk is too full, and as long as that frees anything, a pass follows so soon.
PRESSED_S: Final = 5.0
#: Topics named in one line, of which messages are kept on a disk that is too full.
HELD_TOLD_MAX: Final = 5
#: What groups need is read again after this time: a pass over many blocks takes long, and a group
#: may come, or be reset, meanwhile.
NEEDS_S: Final = 10.0


class Held(NamedTuple):
    """What would be deleted if nobody needed it.

    Attributes:
        by: Who needs it.
        offset: From which offset on.
        size_bytes: How much it is.
        since_ms: When the oldest of it would have gone for its age; 0: it is not too old, but too
            much.
    """

    by: str
    offset: int
    size_bytes: int
    since_ms: int


class Early(NamedTuple):
    """What may go early of a partition.

    Attributes:
        end: What lies before this offset.
        settings, epoch: Under which that was decided; it does not hold under others.
    """

    end: int
    settings: TopicSettings
    epoch: int


class Retainer(Visitor):
    """Deletes what the topics of a node do not keep; the visitor of its passes. Loop-bound.

    Args:
        jobs: Has passes made.
        channels: Those of the node.
        logs: Changes their logs.
        coordinator: Tells what consumer groups have read.
        disk, runner: To look at blocks.
        clock: Tells the time.
        interval_s: From the end of a pass to the next one.
        relief: Knows which disks are too full.

    Attributes:
        held: What somebody needs that would go otherwise, as of the last pass.
    """

    what = "retention"

    def __init__(
        self,
        jobs: Jobs,
        channels: Channels,
        logs: ChannelLogs,
        coordinator: Coordinator,
        *,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        interval_s: float,
        relief: Relief,
    ) -> None:
        self._channels = channels
        self._logs = logs
        self._coordinator = coordinator
        self._disk = disk
        self._runner = runner
        self._clock = clock
        self.relief = relief
        self._freed = True  # the last pass under pressure freed something, or there was none
        self.problems = Problems(logger, "retention cannot delete, trying again")
        self._stays_full = ""  # why a disk does, as of the last pass
        self._needs: dict[str, tuple[float, Needs]] = {}  # by topic: when it was read, and what
        self._early: dict[Channel, Early] = {}  # what may go in this pass before its time
        self._deleted_early = 0
        self._early_held: dict[str, str] = {}  # by topic: who needs what would go early otherwise
        self.held: dict[Channel, Held] = {}
        self._job = jobs.add("retention", self.look, Every(interval_s))
        jobs.add("relief", self._look_for_pressure, Every(PRESSED_S))

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Retainer].of(
            self,
            gauge(
                "vq_held_bytes",
                "Bytes of topics with the retention policy keep that are kept only because a "
                "consumer group has not read them, on the node that leads.",
                lambda retainer: sum(each.size_bytes for each in retainer.held.values()),
            ),
        )

    async def _look_for_pressure(self) -> None:
        """Have a pass come sooner while a disk is too full."""
        if self._freed and any(map(_may_go_early, self._channels.values())):
            try:
                if await self.relief.pressed():
                    self._job.soon()
            except CoordinationError:
                pass  # the pass tells it

    async def look(self) -> None:
        """Make one pass over all partitions whose group this node leads, or two under pressure.

        First it has deleted, of all partitions, what could not be: the disk was full, say.
        """
        for channel in list(self._channels.values()):
            for part in (*channel.older, channel):
                if part.log is not None and part.log.flushing.delete_again():
                    part.flush_now()
        led = sorted(filter(_leads, self._channels.values()), key=lambda each: each.partition)
        seen = set(led)
        self.held = {each: held for each, held in self.held.items() if each in seen}
        self._freed = True
        self._needs.clear()
        self._early = {}
        await BlockPass(self, led, self._clock).go_on()
        self._early = await self._plan([each for each in led if _may_go_early(each)])
        if self._early:
            before = self._deleted_early
            early = [each for each in led if each in self._early]
            await BlockPass(self, early, self._clock).go_on()
            self._freed = self._deleted_early > before
            self.relief.note_deleted()

    def wants(self, channel: Channel) -> bool:
        """See ``Visitor.wants``."""
        return _leads(channel)

    def tell(self, work: TopicWork) -> None:
        """See ``Visitor.tell``."""
        topic, blocks, size = work.topic, work.done["blocks"], work.done["bytes"]
        if blocks and self._early:
            logger.info(
                "messages deleted early, since a disk is too full",
                topic=topic,
                bytes=size,
                blocks=blocks,
            )
        elif blocks:
            logger.info("old messages deleted", topic=topic, bytes=size, blocks=blocks)
        super().tell(work)

    # Under pressure -----------------------------------------------------------------------------
    async def _plan(self, channels: list[Channel]) -> dict[Channel, Early]:
        """Return what goes early, of those partitions that allow it."""
        try:
            pressed = await self.relief.pressed() if channels else []
        except CoordinationError as error:
            self._tell_plan(str(error))
            return {}
        begun = {each: (each.settings, each.role.epoch) for each in channels}
        spare: dict[Channel, list[Kept]] = {}
        needs: dict[str, Needs] = {}
        self._early_held.clear()
        problem = ""
        for channel in channels if pressed else ():
            try:
                spare[channel] = await self._spare(channel, needs)
            except (OSError, VqError) as error:
                problem = problem or f"{channel}: {error}"
        ends: dict[Channel, int] = {}
        for each in pressed:
            mine = {
                channel: each.seen(blocks) for channel, blocks in spare.items() if each.has(channel)
            }
            left = each.excess_bytes - sum(map(_freed_by, mine.values()))
            if left > 0:
                problem = problem or (
                    f"{each.name} has {left} bytes too many beyond what may go early"
                    + self._held_text()
                )
            for channel, end in relieve(mine, each.excess_bytes).items():
                ends[channel] = max(end, ends.get(channel, 0))
        self._freed = bool(ends) or not pressed
        self._tell_plan(problem)
        return {channel: Early(end, *begun[channel]) for channel, end in ends.items()}

    def _held_text(self) -> str:
        """Say which topics would let messages go early if nobody needed them; bounded."""
        held = sorted(self._early_held.items())
        if not held:
            return ""
        told = ", ".join(f"{topic} for {holder}" for topic, holder in held[:HELD_TOLD_MAX])
        more = len(held) - HELD_TOLD_MAX
        return f"; kept of topic {told}" + (f" and {more} more" if more > 0 else "")

    def _tell_plan(self, problem: str) -> None:
        """Log once that a disk stays too full."""
        before, self._stays_full = self._stays_full, problem
        if problem and not before:
            logger.warning("disk stays too full, trying again", error=problem)

    async def _spare(self, channel: Channel, needs: dict[str, Needs]) -> list[Kept]:
        """Return the blocks of a partition that may go early.

        Where blocks become archives before they are deleted, only archives may: other blocks become
        archives early (``early_archives``).

        Raises:
            VqError, OSError: They cannot be told.
        """
        settings, topic = channel.settings, channel.partition.topic
        if settings.retention_early_hours is None:  # it was altered a moment ago
            return []
        limits = Limits(age_ms=settings.retention_early_hours * HOUR_MS)
        await self._maybe_roll(channel, limits)
        blocks = closed_blocks(channel)
        await self._look_at(blocks, limits)
        cut = self._decide(channel, blocks, limits)
        if settings.retention_policy is RetentionPolicy.KEEP and cut.offset > cut.start:
            if topic not in needs:
                needs[topic] = await read_needs(self._coordinator, topic, channel.topic_id)
            cut = self._decide(channel, blocks, limits, needs[topic])
            if cut.holder:
                self._early_held.setdefault(topic, cut.holder)
        found = [each for each in blocks if each[1].end_offset <= cut.offset]
        is_archived = settings.archived_after_hours is not None
        if is_archived and settings.retention_policy is RetentionPolicy.ARCHIVE:
            found = list(takewhile(lambda each: each[1].is_archived, found))
        return [kept_of(*each, self._clock) for each in found]

    # One partition ------------------------------------------------------------------------------
    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """Delete some of what is due of a partition, or of what may go early; see ``Visitor``."""
        early = self._early.get(channel)
        settings, epoch = channel.settings, channel.role.epoch
        limits = limits_of(settings)
        if early is not None and (settings, epoch) != early[1:]:
            return False
        if limits == Limits() and early is None:
            self.held.pop(channel, None)
            return False
        early_end = 0 if early is None else early.end

        def still() -> bool:
            return _leads(channel) and channel.role.epoch == epoch and channel.settings == settings

        await self._maybe_roll(channel, limits)
        if not still():
            return False
        blocks = closed_blocks(channel)
        await self._look_at(blocks, limits)
        cut = self._decide(channel, blocks, limits, None, early_end)
        if settings.retention_policy is RetentionPolicy.KEEP and cut.offset > cut.start:
            needs = await self._needs_of(channel)
            cut = self._decide(channel, blocks, limits, needs, early_end)
        if early is None:
            self._note_held(channel, blocks, cut, limits)
        due = _at_a_time([each for each in blocks if each[1].end_offset <= cut.offset])
        if due:
            await self._look_at(due, None)
            begun_s, offset = self._clock.monotonic(), due[-1][1].end_offset
            freed = await self._logs.drop_before(channel, offset, still)
            work.done.update(bytes=freed.size_bytes, blocks=freed.blocks)
            if early is not None:
                channel.context.counters.deleted_early_bytes += freed.size_bytes
                self._deleted_early += freed.size_bytes
        # Also when nothing is left, and so nothing was due: copies may have more.
        if not still():
            return False
        if due or not (channel.older or channel.log is None or channel.log.size_bytes):
            channel.tell_deleted(min(max(cut.offset, channel.start_offset), earliest(channel)))
        if not due or not freed.blocks:
            return False
        # The next ones, of this or another partition, wait until the files of these are gone.
        return await give_way(self._clock, begun_s, lambda: _deletes(channel))

    async def _needs_of(self, channel: Channel) -> Needs:
        """Return who needs what of a topic, as it was ``NEEDS_S`` ago at most."""
        topic, now = channel.partition.topic, self._clock.monotonic()
        read_s, needs = self._needs.get(topic, (0.0, None))
        if needs is None or now - read_s > NEEDS_S:
            needs = await read_needs(self._coordinator, topic, channel.topic_id)
            self._needs[topic] = now, needs
        return needs

    def _decide(
        self,
        channel: Channel,
        blocks: "list[tuple[Log, Block]]",
        limits: Limits,
        needs: Needs | None = None,
        early: int = 0,
    ) -> Cut:
        logs = [each.log for each in (*channel.older, channel) if each.log is not None]
        return decide(
            [kept_of(log, block, self._clock) for log, block in blocks],
            limits,
            start=blocks[0][1].start_offset if blocks else channel.start_offset,
            size_bytes=sum(log.size_bytes for log in logs),
            now_ms=self._clock.wall_ms(),
            committed=channel.high_watermark,
            needed=_needed(channel, needs),
            early=early,
        )

    def _note_held(
        self, channel: Channel, blocks: list[tuple[Log, Block]], cut: Cut, limits: Limits
    ) -> None:
        if not cut.holder:
            self.held.pop(channel, None)
            return
        kept = [kept_of(log, block, self._clock) for log, block in blocks]
        held = [each for each in kept if cut.offset < each.end <= cut.wanted]
        due_ms = 0
        if limits.age_ms is not None and held[0].last_ms is not None:
            due_ms = held[0].last_ms + limits.age_ms
        self.held[channel] = Held(
            cut.holder,
            held[0].start,
            sum(each.end - each.start for each in held),
            due_ms if due_ms <= self._clock.wall_ms() else 0,
        )

    async def _maybe_roll(self, channel: Channel, limits: Limits) -> None:
        """End the block that takes appends if it could not go for long otherwise."""
        block = None if channel.log is None else channel.log.open_block
        if block is None or not block.length:
            return
        first_ms = None
        if limits.age_ms is not None:
            first_ms = await first_ms_of(self._disk, self._runner, block, self._clock)
        open_block = OpenBlock(block.start_offset, block.end_offset, first_ms)
        if must_roll(open_block, limits, now_ms=self._clock.wall_ms()):
            await self._logs.roll(channel, block)

    async def _look_at(self, blocks: "list[tuple[Log, Block]]", limits: Limits | None) -> None:
        """Learn the facts of blocks, up to the first one that is too young.

        Without ``limits``: of all, since the log counts the messages of what it drops.
        """
        if limits is not None and limits.age_ms is None:
            return
        now_ms = self._clock.wall_ms()
        for log, block in blocks:
            if block.facts is None:
                block.facts = await read_block(self._disk, self._runner, read_facts, block)
            if limits is None or block.facts is None:
                continue
            last_ms = kept_of(log, block, self._clock).last_ms
            if block.ahead_since is not None:  # the next one may tell how old it is at least
                continue
            if limits.age_ms is not None and (last_ms or 0) > now_ms - limits.age_ms:
                return


def _needed(channel: Channel, needs: Needs | None) -> Mapping[str, int] | None:
    """Return who needs a partition, and from where on: groups, if they are asked; the node."""
    needed = None if needs is None else needs.of(channel.partition.partition)
    if channel.needed is None:
        return needed
    return {**(needed or {}), channel.partition.topic: channel.needed}


def limits_of(settings: TopicSettings) -> Limits:
    """Return what a topic keeps."""
    hours = settings.retention_hours
    return Limits(
        age_ms=None if hours is None else hours * HOUR_MS, size_bytes=settings.retention_bytes
    )


def _leads(channel: Channel) -> bool:
    """Whether this node decides what is deleted of a partition, and its log can be changed.

    Nothing is deleted of a topic that can be brought back: it is to come back as it was.
    """
    role = channel.role
    return role.epoch > 0 and role.holds() and is_whole(channel) and not channel.deleted


def _may_go_early(channel: Channel) -> bool:
    return channel.settings.retention_early_hours is not None and _leads(channel)


def _deletes(channel: Channel) -> bool:
    """Whether files of dropped blocks are still to be deleted."""
    logs = [each.log for each in (*channel.older, channel) if each.log is not None]
    return any(log.flushing.deletes for log in logs)


def _freed_by(blocks: Sequence[Kept]) -> int:
    return sum(each.frees for each in blocks)


def _at_a_time(due: list[tuple[Log, Block]]) -> list[tuple[Log, Block]]:
    """Return the first of these blocks that may go at a time."""
    size = 0
    for number, (_, block) in enumerate(due):
        size += block.length
        if number and (size > BYTES_AT_A_TIME or number >= BLOCKS_AT_A_TIME):
            return due[:number]
    return due
