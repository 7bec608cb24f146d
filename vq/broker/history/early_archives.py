"""Archives made before their time: while a disk of this node is too full, of topics with archives.

Nothing is lost by it, unlike by early deletion (``retaining``). An archive elsewhere frees the disk
of the whole block. One beside the log frees what compression saves, and needs space for its zip
while the block is still there. Each node does this for its own disks, since each archives its own
blocks.

    which     closed, committed blocks on that disk, the oldest first, over all partitions; blocks
              that take messages, and have some of an hour or more, end before
    until     the disk is no longer too full of bytes (``DataDisk.pressure_bytes``); archives free
              no files
    not       beside the log beyond the last mark, at which copies stop: a zip that would fill the
              disk up to there is given up half-way. It is not tried again, nor are blocks of a
              topic that hardly get smaller, until the disk has space again

In here: when, and which blocks. Not in here: how a block becomes an archive (``archiving``), and
the runs once a day (``archive_runs``).
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from vq.broker.base.jobs import Every, Jobs, While
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Lane, Runner, wait_at_most
from vq.broker.disks.data_disk import DataDisk
from vq.broker.disks.disk_watch import DiskLevel, DiskWatch
from vq.broker.logs.block_pass import BlockPass, TopicWork, Visitor
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.logs.commit_waits import is_stored
from vq.broker.logs.old_blocks import closed_blocks, first_ms_of, is_whole, kept_of, read_block
from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.context import Counters
from vq.broker.standing.gate import Gate
from vq.clock import Clock
from vq.errors import Busy, InvalidState, VqError
from vq.log_lines import get_logger
from vq.store.archive.archive import CHUNK_BYTES
from vq.store.archive.archive_place import lies_on_disk
from vq.store.disk.disk import Disk
from vq.store.log.archive_age import must_roll
from vq.store.log.block import Block
from vq.store.log.block_facts import read_facts
from vq.store.log.log import Log
from vq.store.log.retention import OpenBlock

logger = get_logger(__name__)

#: How often the disks are looked at …
LOOK_S: Final = 5.0
#: … and one at each so many looks while nothing can be archived there.
LOOKS_IN_VAIN: Final = 12
#: From one block to the next; what works on a block makes pauses of its own.
PAUSE_S: Final = 0.05
#: A zip beside the log that saves less than this share of its block is in vain.
SAVES_LEAST: Final = 0.05
#: A zip beside the log is written on while there is space for so much more: some of its chunks, but
#: no more than this part of a small disk.
ROOM_BYTES: Final = 4 * CHUNK_BYTES
ROOM_SHARE: Final = 64
#: How long it may take to find out whether a place is on this disk.
PLACE_TIMEOUT_S: Final = 10.0
#: How long it is waited until a closed block is committed and durable, and in sum, in vain.
READY_S: Final = 1.0
READY_IN_VAIN_S: Final = 5.0


def fits(watch: DiskWatch, size: int) -> bool:
    """Return whether a disk has space for so many bytes below the mark where copies stop."""
    used = watch.total - watch.free + size
    return used < watch.marks.of(DiskLevel.STOP) * watch.total


class _Head(NamedTuple):
    """The first block of a partition that is no archive, and those behind it; sorted by time."""

    last_ms: int
    number: int
    channel: Channel
    block: Block
    rest: Iterator[tuple[Log, Block]]


class _Room:
    """Space for one archive; one that does not lie on the disk (``is_here``) needs none.

    Attributes:
        was_short: There was too little at some moment.
    """

    def __init__(self, disk: DataDisk, *, is_here: bool) -> None:
        self._disk = disk
        self._is_here = is_here
        self.was_short = False

    def is_left(self) -> bool:
        """Whether there was enough at the last look."""
        watch = self._disk.watch
        size = min(ROOM_BYTES, watch.total // ROOM_SHARE)
        enough = not self._is_here or fits(watch, size)
        self.was_short = self.was_short or not enough
        return enough


class EarlyArchiver(Visitor):
    """Makes archives early on one node; visits partitions for their oldest blocks. Loop-bound.

    Args:
        jobs: Has the disks looked at.
        channels: Those of the node.
        logs: Changes their blocks.
        disks: Of the node.
        disk, runner: To look at blocks.
        clock: Tells the time.
        counters: Of the node.
        gate: Knows whether the node stops.
    """

    what = "early archives"

    def __init__(
        self,
        jobs: Jobs,
        channels: Channels,
        logs: ChannelLogs,
        disks: Sequence[DataDisk],
        *,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        counters: Counters,
        gate: Gate,
    ) -> None:
        self._channels = channels
        self._logs = logs
        self._disks = disks
        self._disk = disk
        self._runner = runner
        self._clock = clock
        self._counters = counters
        self._gate = gate
        self._vain: dict[Path, set[str]] = {}  # by directory: topics that gain no space there
        self._problems = Problems(logger, "block cannot be archived early, trying again")
        # Of the look under way: the first blocks of partitions, and what is done to topics.
        self._heads: list[_Head] = []
        self._works: dict[str, TopicWork] = {}
        self._in_vain_s = 0.0  # so long it waited for blocks that were not ready
        self._looks: Counter[Path] = Counter()  # since something became an archive
        jobs.add("early archives", self._look_often, Every(LOOK_S), While.REGISTERED)

    async def _look_often(self) -> None:
        """Look at the disks; at those where nothing is left less often."""
        looks = self._looks
        for each in self._disks:
            if looks[each.path] % LOOKS_IN_VAIN and _is_pressed(each):
                looks[each.path] += 1
            elif await self._look_at(each):
                looks[each.path] = 0
            else:
                looks[each.path] += 1

    async def look(self) -> None:
        """Archive blocks on each disk that is too full, until it is not, or nothing is left."""
        for each in self._disks:
            await self._look_at(each)

    async def _look_at(self, disk: DataDisk) -> bool:
        """Do so on one disk; return whether anything became an archive, or nothing has to."""
        if _is_pressed(disk):
            await disk.look()
        if not _is_pressed(disk):
            self._vain.pop(disk.path, None)
            return True
        return await self._relieve(disk)

    async def _relieve(self, disk: DataDisk) -> bool:
        mine = sorted(
            (
                each
                for each in self._channels.values()
                if each.place is disk.place and _is_wanted(each)
            ),
            key=lambda each: each.partition,
        )
        self._in_vain_s = 0.0
        here = await self._places_here(disk, mine)
        self._heads, self._works = [], {}
        await BlockPass(self, mine, self._clock).go_on()
        heads = self._heads
        heapq.heapify(heads)
        silent: set[str | None] = set()  # places that did not answer: each would be waited for
        while heads and _is_pressed(disk) and self._gate.serves:
            head = heapq.heappop(heads)
            channel, topic = head.channel, head.channel.partition.topic
            to = channel.settings.archive_to
            is_here = to in here
            if to in silent or (is_here and topic in self._vain.get(disk.path, ())):
                continue
            work = self._works[topic]
            room = _Room(disk, is_here=is_here)
            if not room.is_left():
                continue
            problem = await self._archive(head, to, work.done, room)
            saved = work.done["archive_bytes"] <= (1 - SAVES_LEAST) * work.done["bytes"]
            if is_here and (room.was_short or not saved):
                self._vain.setdefault(disk.path, set()).add(topic)
            if problem is not None:
                work.fail(channel, problem)
                if to is not None and isinstance(problem, Busy):
                    silent.add(to)
                continue
            following = await self._next(head.number, channel, head.rest)
            if following is not None:
                heapq.heappush(heads, following)
            await asyncio.sleep(PAUSE_S)
            await disk.look()
        for work in self._works.values():
            self._tell_of(work)
        return any(work.done["blocks"] for work in self._works.values())

    def _tell_of(self, work: TopicWork) -> None:
        done = work.done
        if done["blocks"]:
            logger.info(
                "blocks archived early, since a disk is too full",
                topic=work.topic,
                blocks=done["blocks"],
                bytes=done["bytes"],
                archive_bytes=done["archive_bytes"],
            )
        self._problems.tell(work.topic, work.problem)

    async def _archive(
        self, head: _Head, to: str | None, sums: Counter[str], room: _Room
    ) -> Exception | None:
        """Archive a block; return why that was not possible, None if it was, or need not be."""
        channel, settings = head.channel, head.channel.settings

        def still() -> bool:
            now = channel.settings
            return _is_wanted(channel) and now.archive_to == settings.archive_to and room.is_left()

        try:
            made = await self._logs.archiving.archive(channel, head.block, to, still)
        except (Busy, InvalidState) as error:
            # A run works on it, or it went meanwhile; or its place does not answer.
            return error if to is not None and isinstance(error, Busy) else None
        except (OSError, VqError) as error:
            return error
        except Exception as error:  # one block must not keep the disk full
            logger.exception("archiving a block failed", partition=channel, block=head.block.path)
            return error
        sums.update(blocks=1, bytes=made.size_bytes, archive_bytes=made.archive_bytes)
        self._counters.archived_blocks += 1
        self._counters.archived_bytes += made.size_bytes
        self._counters.archived_early_bytes += made.size_bytes
        return None

    # Which blocks -------------------------------------------------------------------------------
    async def _places_here(self, disk: DataDisk, channels: Sequence[Channel]) -> set[str | None]:
        """Return the places of archives that take space of a disk; None stands for beside."""
        found: set[str | None] = {None}
        for url in {each.settings.archive_to for each in channels}:
            if url is None:
                continue
            try:
                look = partial(lies_on_disk, url, disk.path)
                call = self._runner.run(look, Lane.UPLOAD, url.rstrip("/"))
                is_here = await wait_at_most(PLACE_TIMEOUT_S, call)
            except TimeoutError:
                is_here = True
            if is_here:
                found.add(url)
        return found

    def wants(self, channel: Channel) -> bool:
        """See ``Visitor.wants``."""
        return _is_wanted(channel)

    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """End the block that takes messages if it is old; note the first block to be archived."""
        try:
            await self._maybe_roll(channel)
        except (OSError, VqError) as error:
            work.fail(channel, error)
        head = await self._next(len(self._heads), channel, iter(closed_blocks(channel)))
        if head is not None:
            self._heads.append(head)
        return False

    def tell(self, work: TopicWork) -> None:
        """See ``Visitor.tell``; it is told with what becomes of the blocks."""
        self._works[work.topic] = work

    async def _maybe_roll(self, channel: Channel) -> None:
        block = None if channel.log is None else channel.log.open_block
        if block is None or not block.length:
            return
        first_ms = await first_ms_of(self._disk, self._runner, block, self._clock)
        opened = OpenBlock(block.start_offset, block.end_offset, first_ms)
        if must_roll(opened, as_of_ms=self._clock.wall_ms()):
            await self._logs.roll(channel, block)

    async def _next(
        self, number: int, channel: Channel, rest: Iterator[tuple[Log, Block]]
    ) -> _Head | None:
        """Return the next block of a partition that can become an archive; None: there is none."""
        for log, block in rest:
            if block.is_archived:
                continue
            if block.end_offset > channel.high_watermark:
                wait_s = min(READY_S, READY_IN_VAIN_S - self._in_vain_s)
                if not await is_stored(channel, block.end_offset, wait_s):
                    self._in_vain_s += wait_s
                    return None
            if block.facts is None and block.end_offset != log.end_offset:
                block.facts = await read_block(self._disk, self._runner, read_facts, block)
            last_ms = kept_of(log, block, self._clock).last_ms
            return _Head(last_ms or 0, number, channel, block, rest)
        return None


def _is_pressed(disk: DataDisk) -> bool:
    return bool(disk.pressure_bytes and disk.watch.size_excess)


def _is_wanted(channel: Channel) -> bool:
    return channel.settings.archived_after_hours is not None and is_whole(channel)
