"""Key indexes of closed blocks, made in the background: searches then read little.

In here: which block is next, and how slowly. Not in here: what an index holds and how it is made
(``store.care.key_index``, ``store.care.key_index_build``). Nothing depends on an index: a search
reads a block without one. So none is made in the way of an append, and none while the disk is short
of space.

An index lies beside its block, goes with it, and is not made durable. Copies make their own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from vq.broker.base.facts import Facts, gauge
from vq.broker.base.jobs import Every, Jobs
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Lane, Runner
from vq.broker.base.steps import StepPace, take_steps
from vq.broker.logs.block_pass import BlockPass, TopicWork, Visitor
from vq.broker.partition.channel import Channel, Channels
from vq.clock import Clock
from vq.log_lines import get_logger
from vq.store.care.key_index import covers
from vq.store.care.key_index_build import KeyIndexBuild, write_key_index
from vq.store.disk.disk import Disk
from vq.store.log.block import Block
from vq.store.log.log import Log
from vq.store.records.format import keys_name

logger = get_logger(__name__)

#: From the end of a pass over all logs to the next one.
LOOK_S: Final = 10.0
#: A pause is at least so many times as long as the step before it: others get the interpreter.
PAUSE_SHARE: Final = 4.0
#: Blocks of one log that were there before are looked at together.
LOOKED_AT: Final = 256


class _Due(NamedTuple):
    """A block that needs an index."""

    channel: Channel
    log: Log
    block: Block


class KeyIndexer(Visitor):
    """Makes the key indexes of a node; the visitor of its passes. Loop-bound.

    Args:
        jobs: Has the passes made.
        channels: Those of the node.
        disk, runner: To read blocks and write indexes.
        clock: To measure steps.
        bytes_per_s: How fast blocks are read, at most; 0: no indexes are made.

    Attributes:
        unindexed_bytes: Of closed blocks that are to get an index and have none yet; None: not
            known yet, or none is made.
    """

    what = "key indexes"

    def __init__(
        self,
        jobs: Jobs,
        channels: Channels,
        *,
        disk: Disk,
        runner: Runner,
        clock: Clock,
        bytes_per_s: int,
    ) -> None:
        self._channels = channels
        self._disk = disk
        self._runner = runner
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self.problems = Problems(logger, "key index cannot be written, trying again")
        self.unindexed_bytes: int | None = None
        # Start offsets of blocks that have an index, or can have none, of logs that are open.
        self._settled: WeakKeyDictionary[Log, set[int]] = WeakKeyDictionary()
        # Those of blocks whose index a search had no use of, perhaps before the first pass.
        self._missed: WeakKeyDictionary[Log, set[int]] = WeakKeyDictionary()
        why_off = "" if bytes_per_s else "key_index_bytes_per_s is 0"
        jobs.add("key indexes", self.look, Every(LOOK_S), why_off=why_off)

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[KeyIndexer].of(
            self,
            gauge(
                "vq_unindexed_bytes",
                "Bytes of closed blocks that are to get a key index, and have none yet; none where "
                "the broker makes none.",
                lambda indexer: indexer.unindexed_bytes,
            ),
        )

    def rebuild(self, log: Log, start: int) -> None:
        """Have the index of a block made again if there was one: it is gone, or of no use."""
        self._missed.setdefault(log, set()).add(start)

    async def look(self) -> None:
        """Make one pass over all logs."""
        channels = list(self._channels.values())
        counting = _Counting(self)
        await BlockPass(counting, channels, self._clock).go_on()
        self.unindexed_bytes = counting.bytes
        await BlockPass(self, channels, self._clock).go_on()

    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """Make the next index of a partition; see ``Visitor``."""
        for part, log in _logs(channel):
            due = await self._next(part, log)
            if due is not None:
                await self._index(due)
                self._settled[log].add(due.block.start_offset)
                self.unindexed_bytes = max(0, (self.unindexed_bytes or 0) - due.block.length)
                return True
        return False

    async def missing(self, channel: Channel) -> int:
        """Return how many bytes of a partition's closed blocks are to get an index."""
        count = 0
        for _, log in _logs(channel):
            settled = await self._known(log)
            count += sum(
                each.length for each in log.closed_blocks if each.start_offset not in settled
            )
        return count

    async def _known(self, log: Log) -> set[int]:
        """Return the blocks of a log that have an index, or can have none."""
        if log not in self._settled:
            self._settled[log] = await self._fitting(log)
        return self._settled[log]

    async def _next(self, channel: Channel, log: Log) -> "_Due | None":
        """Return the next block of a log that needs an index, if one can be made now."""
        settled = await self._known(log)
        again = settled & self._missed.pop(log, set())
        if again:
            settled -= again
            logger.info("key indexes are made again", partition=channel, blocks=len(again))
        settled.intersection_update([each.start_offset for each in log.closed_blocks])
        for block in log.closed_blocks:
            if block.length and block.start_offset not in settled:
                due = _Due(channel, log, block)
                return due if _is_closed(due) and channel.place.refusal is None else None
        return None

    async def _fitting(self, log: Log) -> set[int]:
        """Return the start offsets of the blocks that had an index that seems to fit already."""
        ranges = [(each.start_offset, each.end_offset) for each in log.closed_blocks]
        found: set[int] = set()
        for at in range(0, len(ranges), LOOKED_AT):
            some = ranges[at : at + LOOKED_AT]
            found |= await self._runner.run(lambda some=some: self._look_at(log, some), Lane.KEYS)  # type: ignore[misc]
        return found

    def _look_at(self, log: Log, ranges: list[tuple[int, int]]) -> set[int]:
        found = set()
        for start, end in ranges:
            path = log.directory / keys_name(start)
            if self._disk.exists(path) and covers(self._head(path), start, end):
                found.add(start)
        return found

    def _head(self, path: Path) -> bytes:
        try:
            file = self._disk.open(path)
        except OSError:
            return b""
        try:
            return file.pread(0, 64)
        finally:
            file.close()

    async def _index(self, due: _Due) -> None:
        """Make the index of one block, slowly; none of a block that is damaged or goes away.

        Nor of one in a place that does not answer.

        Raises:
            OSError: It could not be written.
        """
        block = due.block
        build = KeyIndexBuild(self._disk, block.piece)
        pace = StepPace(bytes_per_s=self._bytes_per_s, share=PAUSE_SHARE)
        try:
            await take_steps(
                build, self._runner, Lane.KEYS, self._clock, pace, still=lambda: _is_closed(due)
            )
        except TimeoutError:
            return  # its place does not answer: a search that meets the block asks again
        data, path = build.index, due.log.directory / keys_name(block.start_offset)
        if data is None or not _is_closed(due):
            return
        try:
            await self._runner.run(lambda: write_key_index(self._disk, path, data), Lane.KEYS)
        except OSError:
            if _is_closed(due):
                raise
            return  # its log was moved out of the way meanwhile
        if not _is_closed(due):  # retention took the block meanwhile, perhaps with its files
            await self._runner.run(lambda: self._remove(path), Lane.KEYS)

    def _remove(self, path: Path) -> None:
        if self._disk.exists(path):
            self._disk.unlink(path)


class _Counting(Visitor):
    """Counts what has no key index yet; what cannot be read is told where indexes are made."""

    what = "the count of key indexes"

    def __init__(self, indexer: KeyIndexer) -> None:
        self.bytes = 0
        self._indexer = indexer

    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """See ``Visitor.visit``."""
        self.bytes += await self._indexer.missing(channel)
        return False


def _logs(channel: Channel) -> Iterator[tuple[Channel, Log]]:
    for part in (*channel.older, channel):
        if part.log is not None and part.log.status.can_flush:
            yield part, part.log


def _is_closed(due: _Due) -> bool:
    """Whether a block is still one of its log that takes no more appends, and is committed."""
    channel, log, block = due
    return (
        channel.log is log
        and log.status.can_flush
        and block.end_offset <= min(log.synced_offset, channel.high_watermark)
        and any(each is block for each in log.closed_blocks)
    )
