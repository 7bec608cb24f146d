"""The archive's runs, as one node does them: its own blocks that are due, one after the other.

In here: which runs a node has to do, the way over its partitions, and what it tells of a run. Not
in here: what is due (``store.log.archive_age``), how a block becomes an archive (``archiving``),
and who makes runs (``daily_runs``).

Every node of a group archives its own blocks, whether it leads or copies. A run that dies half-way
is done again from the beginning by the next start: a block that is an archive already is not due.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from vq.backoff import Backoff
from vq.broker.base.facts import Facts, gauge
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Runner
from vq.broker.logs.archiving import PlaceAway
from vq.broker.logs.block_pass import BlockPass, TopicWork, Visitor
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.logs.commit_waits import is_stored
from vq.broker.logs.old_blocks import closed_blocks, first_ms_of, is_whole, kept_of, read_block
from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.context import Counters
from vq.broker.standing.gate import Gate
from vq.clock import HOUR_MS, Clock
from vq.coordination.leases.runs import read_result, read_run, write_result
from vq.coordination.tree.coordinator import Coordinator, Unreadable, Watch
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.values.runs import (
    ArchiveTopicRun,
    RunCounter,
    RunOrder,
    RunResult,
    RunState,
    covering,
    refused,
)
from vq.errors import Busy, CoordinationError, InvalidState, VqError
from vq.log_lines import get_logger
from vq.model import TopicSettings
from vq.store.disk.disk import Disk
from vq.store.log.archive_age import EARLY_MS_MAX, due, must_roll
from vq.store.log.block import Block
from vq.store.log.block_facts import read_facts
from vq.store.log.log import Log
from vq.store.log.retention import OpenBlock

logger = get_logger(__name__)

#: How often runs are looked at although no watch fired.
AUDIT_S: Final = 60.0
_BACKOFF: Final = Backoff(first_s=0.5, most_s=30.0)
#: From one block to the next; what works on a block makes pauses of its own.
PAUSE_S: Final = 0.05
#: A place elsewhere that so many blocks in turn could not reach gets no more in this run: one that
#: hangs costs a minute for each, and there may be thousands.
AWAY_AFTER: Final = 3
#: How long a run waits until a block that is due is committed and durable, and in sum, in vain.
READY_S: Final = 5.0
READY_IN_VAIN_S: Final = 30.0
#: How often a node writes how far it is.
PROGRESS_S: Final = 5.0


class LastRun(NamedTuple):
    """The last run that a node has done, or does.

    Attributes:
        number: Which.
        result: How far it is.
    """

    number: int
    result: RunResult


class Archiver:
    """Does the archive's runs on one node. Loop-bound.

    Args:
        channels: Those of the node.
        logs: Changes their blocks.
        coordinator: Has the runs.
        group, node: This node.
        disk, runner: To look at blocks.
        clock: Tells the time.
        counters: Of the node.
        rng: For the back-off.
        gate: Knows whether the node stops, and closes its partitions one after the other.

    Attributes:
        last: The last run; None: there was none since the start.
        problems: With topics.
        ended: What this node has done of the runs that there are, written or to be written.
        written: The runs of which that is written.
    """

    def __init__(
        self,
        channels: Channels,
        logs: ChannelLogs,
        coordinator: Coordinator,
        *,
        group: str,
        node: str,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        counters: Counters,
        rng: random.Random,
        gate: Gate,
    ) -> None:
        self._gate = gate
        self._channels = channels
        self.logs = logs
        self._coordinator = coordinator
        self._group = group
        self._node = node
        self.disk = disk
        self.runner = runner
        self.clock = clock
        self.counters = counters
        self._keeper = Keeper(
            coordinator,
            self._look,
            what="runs of the archive",
            audit_s=AUDIT_S,
            backoff=_BACKOFF,
            rng=rng,
        )
        self._mirror: Mirror[RunOrder | Unreadable] = Mirror(
            coordinator, RunCounter.path(), self._read_run, on_hint=self._keeper.wake
        )
        self._runs: Mapping[int, RunOrder] = {}
        self.ended: dict[int, RunResult] = {}
        self.written: set[int] = set()
        self._set_aside: set[int] = set()
        self.problems = Problems(logger, "block cannot be archived, trying again")
        self.last: LastRun | None = None

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[RunResult](
            things=lambda: {(): self.last.result} if self.last is not None else {},
            facts=(
                gauge(
                    "vq_archive_run_end_timestamp_seconds",
                    "When the last run of the archive ended; none while it goes on, or before the "
                    "first.",
                    lambda result: result.ended_ms or None,
                    ms=True,
                ),
                gauge(
                    "vq_archive_run_failed_blocks",
                    "Blocks that the last run of the archive, under way or ended, could not "
                    "archive.",
                    lambda result: result.total.failed,
                ),
            ),
        )

    def start(self) -> None:
        """Follow the runs."""
        self._keeper.start()
        self._keeper.wake()

    async def stop(self) -> None:
        """End that, also during a run."""
        await self._keeper.stop()

    async def _look(self, everything: bool) -> None:
        """Do every run that this node has not done yet; see ``Keeper``."""
        if everything:
            self._mirror.audit()
        await self._mirror.refresh()
        found = {int(name): each for name, each in self._mirror.values.items()}
        runs = {n: each for n, each in sorted(found.items()) if isinstance(each, RunOrder)}
        for number in found.keys() - runs.keys() - self._set_aside:
            logger.warning("run cannot be read and is not done", number=number, error=found[number])
        self._set_aside = found.keys() - runs.keys()
        self._runs = runs
        self.written &= runs.keys()
        self.ended = {number: each for number, each in self.ended.items() if number in runs}
        for number, run in runs.items():
            if number not in self.written:
                await self._settle(number, run)

    async def _read_run(self, name: str, _watch: Watch) -> RunOrder | Unreadable | None:
        known = self._mirror.values.get(name)
        if isinstance(known, RunOrder) or not name.isdecimal():
            return known  # runs do not change
        return await read_run(self._coordinator, int(name))

    async def _settle(self, number: int, run: RunOrder) -> None:
        """Have a run done and its result written, unless that is so."""
        if number not in self.ended:
            before = await read_result(self._coordinator, number, self._group, self._node)
            if before is not None and before.has_ended:
                self.last = LastRun(number, before)
            else:
                self.ended[number] = await self._do_or_leave(number, run, before)
                await self._write(number, self.ended[number])
        else:  # the last write of the result failed
            await self._write(number, self.ended[number])
        self.written.add(number)

    async def _write(self, number: int, result: RunResult) -> None:
        await write_result(self._coordinator, number, self._group, self._node, result)

    async def _do_or_leave(self, number: int, run: RunOrder, before: RunResult | None) -> RunResult:
        now_ms = self.clock.wall_ms()
        left = RunResult(state=RunState.COVERED, begun_ms=now_ms, ended_ms=now_ms)
        if refused(self._runs, number):
            logger.warning("run is not done, its lease had ended", number=number, by=run.by)
            return replace(left, state=RunState.REFUSED)
        if covering(self._runs, number) is not None:
            return left
        return await self._do(number, run, before)

    async def _do(self, number: int, run: RunOrder, before: RunResult | None) -> RunResult:
        """Do a run; return its result. What an interrupted one has done counts, too."""
        tally = _RunTally(self.clock, before)
        logger.info("run of the archive begun", number=number, by=run.by, dry_run=run.dry_run)
        begun = tally.result(RunState.RUNNING)
        self.last = LastRun(number, begun)
        await self._write(number, begun)
        telling = asyncio.get_running_loop().create_task(self._tell_progress(number, tally, begun))
        try:
            await self._archive_all(run, tally)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        if not self._gate.serves:
            await asyncio.Event().wait()  # until it is cancelled: the next start does the rest
        result = tally.result(RunState.FAILED if tally.failed else RunState.DONE)
        self.last = LastRun(number, result)
        logger.info(
            "run of the archive ended",
            number=number,
            state=str(result.state),
            blocks=result.total.blocks,
            bytes=result.total.size_bytes,
            archive_bytes=result.total.archive_bytes,
            failed=result.total.failed,
            later=result.total.later,
            seconds=(result.ended_ms - result.begun_ms) // 1000,
        )
        return result

    async def _tell_progress(self, number: int, tally: "_RunTally", told: RunResult) -> None:
        """Write how far a run is, while ZooKeeper takes it; the end of the run is told apart."""
        while True:
            await asyncio.sleep(PROGRESS_S)
            result = tally.result(RunState.RUNNING)
            self.last = LastRun(number, result)
            if result != told:
                try:
                    await self._write(number, result)
                    told = result
                except CoordinationError:
                    pass

    async def to_roll(self, channel: Channel, run: RunOrder) -> Block | None:
        """Return the block of a partition that takes appends and that the run ends, if there is."""
        block = None if channel.log is None else channel.log.open_block
        if block is None or not block.length:
            return None
        first_ms = await first_ms_of(self.disk, self.runner, block, self.clock)
        opened = OpenBlock(block.start_offset, block.end_offset, first_ms)
        return block if must_roll(opened, as_of_ms=run.as_of_ms) else None

    async def _archive_all(self, run: RunOrder, tally: "_RunTally") -> None:
        wanted = sorted(
            (each for each in self._channels.values() if _is_wanted(each, run)),
            key=lambda each: each.partition,
        )
        if not run.dry_run:
            # Before the first block is read: so they end close to the run's time.
            await BlockPass(_Rolling(self, run, tally), wanted, self.clock).go_on()
        await BlockPass(_Archiving(self, run, tally), wanted, self.clock).go_on()


class _RunTally:
    """What one run has done so far, by topic.

    Attributes:
        in_vain_s: For so long it has waited for blocks that were not ready then.
    """

    def __init__(self, clock: Clock, before: RunResult | None) -> None:
        self._clock = clock
        self.in_vain_s = 0.0
        self._begun_ms = before.begun_ms if before is not None else clock.wall_ms()
        # What failed before may not fail again; what became an archive did.
        self._topics = {
            name: replace(each, failed=0, error="", later=0)
            for name, each in (before.topics if before is not None else {}).items()
        }
        self._total = ArchiveTopicRun()
        for each in self._topics.values():
            self._total = self._total.plus(each)

    @property
    def failed(self) -> bool:
        """Whether not all that was due became an archive."""
        return bool(self._total.failed or self._total.error)

    def add(self, topic: str, result: ArchiveTopicRun) -> None:
        """Count what was done of a topic."""
        self._topics[topic] = self._topics.get(topic, ArchiveTopicRun()).plus(result)
        self._total = self._total.plus(result)

    def result(self, state: RunState) -> RunResult:
        """Return what is to be told."""
        ended_ms = 0 if state is RunState.RUNNING else self._clock.wall_ms()
        return RunResult(
            state=state,
            begun_ms=self._begun_ms,
            ended_ms=ended_ms,
            total=self._total,
            topics={name: each for name, each in self._topics.items() if each != ArchiveTopicRun()},
        )


class _Rolling(Visitor):
    """Ends the blocks that a run ends, so that a later run may take them: a visitor."""

    what = "run of the archive"

    def __init__(self, archiver: Archiver, run: RunOrder, tally: _RunTally) -> None:
        self._archiver = archiver
        self._run = run
        self._tally = tally

    def wants(self, channel: Channel) -> bool:
        """See ``Visitor.wants``."""
        return _is_wanted(channel, self._run)

    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """See ``Visitor.visit``."""
        block = await self._archiver.to_roll(channel, self._run)
        if block is not None:
            await self._archiver.logs.roll(channel, block)
        return False

    def tell(self, work: TopicWork) -> None:
        """See ``Visitor.tell``; it is told with the result of the run."""
        self._tally.add(work.topic, ArchiveTopicRun(error=work.problem))


class _Archiving(Visitor):
    """Makes archives of what is due in a run, one block a visit: a visitor."""

    what = "run of the archive"

    def __init__(self, archiver: Archiver, run: RunOrder, tally: _RunTally) -> None:
        self.pause_s = PAUSE_S
        self.problems = archiver.problems
        self._archiver = archiver
        self._run = run
        self._tally = tally
        self._settings: dict[Channel, TopicSettings] = {}  # as they were at the first visit
        self._tried: set[Block] = set()  # once in a run is enough
        self._unknown: set[Block] = set()  # of which no time can be read
        # By place: blocks in turn that did not reach it.
        self._away: Counter[str | None] = Counter()

    def wants(self, channel: Channel) -> bool:
        """See ``Visitor.wants``; not once the topic is archived in another way."""
        settings = self._settings.setdefault(channel, channel.settings)
        return _is_wanted(channel, self._run) and _same_archive(channel.settings, settings)

    def tell(self, work: TopicWork) -> None:
        """See ``Visitor.tell``; what was done is told with the result of the run."""
        self._tally.add(work.topic, ArchiveTopicRun(error=work.problem))
        super().tell(work)

    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """Archive the next block that is due of a partition; see ``Visitor``."""
        tally, settings = self._tally, channel.settings
        blocks = await self._due(channel)
        if self._run.dry_run:
            size = sum(block.length for block in blocks)
            tally.add(work.topic, ArchiveTopicRun(blocks=len(blocks), size_bytes=size))
            return False
        left = [each for each in blocks if each not in self._tried]
        if not left:
            return False
        if not await self._ready(channel, left[0]):  # those behind it are not, either
            tally.add(work.topic, ArchiveTopicRun(later=len(left)))
            return False
        if self._away[settings.archive_to] >= AWAY_AFTER:
            self._fail(channel, work, f"{settings.archive_to} does not answer", blocks=len(left))
            return False
        self._tried.add(left[0])
        await self._archive(channel, left[0], work)
        return True

    async def _archive(self, channel: Channel, block: Block, work: TopicWork) -> None:
        settings, counters = channel.settings, self._archiver.counters

        def still() -> bool:
            return is_whole(channel) and _same_archive(channel.settings, settings)

        try:
            done = await self._archiver.logs.archiving.archive(
                channel, block, settings.archive_to, still
            )
        except (OSError, VqError) as error:
            if isinstance(error, InvalidState) and not (still() and _has(channel, block)):
                return  # it was deleted meanwhile, say: nothing is left to be archived
            is_early = isinstance(error, InvalidState) and not _is_ready(channel, block)
            is_in_use = isinstance(error, Busy) and not isinstance(error, PlaceAway)
            if is_early or is_in_use:
                self._tally.add(work.topic, ArchiveTopicRun(later=1))
                return
            self._away[settings.archive_to] += isinstance(error, PlaceAway)
            self._fail(channel, work, error)
        except Exception as error:  # one block must not keep the others from being archived
            logger.exception("archiving a block failed", partition=channel, block=block.path)
            self._fail(channel, work, f"{type(error).__name__}: {error}")
        else:
            self._away[settings.archive_to] = 0
            counters.archived_blocks += 1
            counters.archived_bytes += done.size_bytes
            self._tally.add(work.topic, ArchiveTopicRun(1, done.size_bytes, done.archive_bytes))

    def _fail(self, channel: Channel, work: TopicWork, why: object, blocks: int = 1) -> None:
        work.fail(channel, why)
        self._tally.add(work.topic, ArchiveTopicRun(failed=blocks, error=work.problem))

    async def _ready(self, channel: Channel, block: Block) -> bool:
        """Return whether a block is committed and durable, once it is or time is up."""
        if _is_ready(channel, block):
            return True
        if channel.log is None or not channel.log.has(block):
            return False
        wait_s = min(READY_S, READY_IN_VAIN_S - self._tally.in_vain_s)
        stored = await is_stored(channel, block.end_offset, wait_s)
        if stored and _is_ready(channel, block):
            return True
        self._tally.in_vain_s += wait_s
        return False

    async def _due(self, channel: Channel) -> list[Block]:
        """Return the blocks of a partition that are due; in a dry run also one it would end."""
        after_hours, as_of_ms = channel.settings.archived_after_hours, self._run.as_of_ms
        assert after_hours is not None, "it is wanted"
        found = [each for each in closed_blocks(channel) if not is_archived(each[1])]
        if self._run.dry_run and channel.log is not None:
            block = await self._archiver.to_roll(channel, self._run)
            if block is not None:
                found.append((channel.log, block))
        await self._learn_times(found, as_of_ms - after_hours * HOUR_MS)
        kept = [kept_of(log, block, self._archiver.clock) for log, block in found]
        count = due(kept, after_hours=after_hours, as_of_ms=as_of_ms)
        return [block for _, block in found[:count]]

    async def _learn_times(self, blocks: list[tuple[Log, Block]], before_ms: int) -> None:
        """Learn the times of blocks, up to the first one that is certainly too young."""
        for log, block in blocks:
            is_last = block.end_offset == log.end_offset  # the log knows its time
            if block.facts is None and not is_last and block not in self._unknown:
                block.facts = await read_block(
                    self._archiver.disk, self._archiver.runner, read_facts, block
                )
                if block.facts is None:
                    self._unknown.add(block)
            last_ms = kept_of(log, block, self._archiver.clock).last_ms
            if block.ahead_since is not None:  # the next one may tell how old it is at least
                continue
            if last_ms is not None and last_ms > before_ms + EARLY_MS_MAX:
                return


def _is_wanted(channel: Channel, run: RunOrder) -> bool:
    """Whether a run concerns a partition."""
    if run.topic is not None and channel.partition.topic != run.topic:
        return False
    return channel.settings.archived_after_hours is not None and is_whole(channel)


def _is_ready(channel: Channel, block: Block) -> bool:
    """Whether a block is committed and durable."""
    for part in (*channel.older, channel):
        if part.log is not None and part.log.has(block):
            stored = min(part.high_watermark, part.log.synced_offset)
            return block.end_offset <= stored and not block.dirty
    return False


def _has(channel: Channel, block: Block) -> bool:
    """Whether a block is still one of the partition's."""
    logs = [each.log for each in (*channel.older, channel)]
    return any(log is not None and log.has(block) for log in logs)


def _same_archive(settings: TopicSettings, before: TopicSettings) -> bool:
    return (settings.archived_after_hours, settings.archive_to) == (
        before.archived_after_hours,
        before.archive_to,
    )


def is_archived(block: Block) -> bool:
    return block.is_archived
