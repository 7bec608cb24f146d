"""The logs of channels: opened, sealed, put aside, cut, opened again and closed.

In here: each change of the files of one partition, one at a time, and what its channel sees of it.
Not in here: which channels exist (``partitions``), when a partition moves (``moving``) or is copied
(``following``), and the files themselves (``logs``).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vq.broker.base.flusher_share import give_way
from vq.broker.base.notice import Notice
from vq.broker.base.runner import Lane, Runner
from vq.broker.base.start_story import StartStory
from vq.broker.base.tasks import Tasks
from vq.broker.logs.archiving import Archiving
from vq.broker.logs.commit_waits import until_committed
from vq.broker.logs.file_changes import FileChanges
from vq.broker.logs.logs import Logs, start_of
from vq.broker.partition.channel import Channel
from vq.broker.partition.cold_reads import threads_of
from vq.broker.partition.partition_state import ChannelState, check_placement_version
from vq.broker.partition.ranges import add_older, is_cut_short, log_begin, take_logs
from vq.errors import Busy, DiskFull, NotMaster, VqError
from vq.log_lines import get_logger
from vq.store.archive.archived_file import NotInMemory
from vq.store.care.divergence import Diverged
from vq.store.log.block import Block
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin, LogState

logger = get_logger(__name__)


class Freed(NamedTuple):
    """What retention has deleted."""

    size_bytes: int
    blocks: int


class ChannelLogs:
    """Changes the logs of channels.

    Attributes:
        changes: Of their files.
        archiving: Makes and undoes archives of their blocks.
        cut: Told when something of a log was cut and kept.
        closed_unflushed: A log was closed, of which something may not be durable.
        dropping: Copies that drop what their master dropped, just now.
        story: What was opened while the node started.
    """

    def __init__(self, logs: Logs, *, runner: Runner, tasks: Tasks) -> None:
        self._logs = logs
        self._runner = runner
        self._tasks = tasks
        self.changes = FileChanges()
        self._opening: dict[Channel, list[Callable[[], None]]] = {}
        self.closed_unflushed = False
        self.story = StartStory()
        self.cut = Notice[[]]()
        self.dropping: set[Channel] = set()
        self.archiving = Archiving(logs, runner, self.changes)

    # Opening ------------------------------------------------------------------------------------
    def open(self, channel: Channel, then: Callable[[], None]) -> None:
        """Give the channel its log, or a failure; ``then`` is called afterwards."""
        waiting = self._opening.get(channel)
        if waiting is not None:
            waiting.append(then)
            return
        self._opening[channel] = [then]
        self._tasks.start(self._open_and_tell(channel))

    async def ensure_open(self, channel: Channel) -> None:
        """Give the channel its log, or its failure.

        Raises:
            Busy, DiskFull: Its directory is gone, or there is no space for it now; it may be tried
                again.
        """
        async with self.changes.lock(channel.partition):
            if channel.log is None and channel.rules.read:
                await self._open(channel)

    async def _open_and_tell(self, channel: Channel) -> None:
        try:
            await self.ensure_open(channel)
        except (Busy, DiskFull) as error:
            logger.warning(
                "log cannot be opened, trying again at the next request",
                partition=channel,
                error=error,
            )
        finally:
            for then in self._opening.pop(channel):
                try:
                    then()
                except Exception:  # the others wait, too
                    logger.exception("request that waited for a log failed", partition=channel)

    async def _open(
        self,
        channel: Channel,
        begin: LogBegin | None = None,
        *,
        lane: Lane = Lane.LOGS,
    ) -> None:
        """Open the usual log; a new one begins at ``begin`` (None: where the span does)."""
        new = log_begin(channel) if begin is None else begin
        now = channel.context.clock.monotonic

        def open_log() -> tuple[Log, list[Diverged], float]:
            begun = now()
            log = self._logs.open(
                channel.partition,
                channel.topic_id,
                begin=new,
                holds=channel.holds,
            )
            return log, self._logs.cut_before(log), now() - begun

        try:
            log, channel.copies.cut, took_s = await self._runner.run(open_log, lane)
        except (Busy, DiskFull):
            raise  # no failure of this log: whoever asks next tries again
        except (OSError, VqError) as error:
            logger.error("log cannot be opened", partition=channel, error=error)
            channel.fail(error)
        else:
            channel.place = channel.context.places[self._logs.home(channel.partition)]
            channel.attach(log)
            self.story.opened(channel.partition, log.recovery, took_s)
            if log.recovery.cut_bytes:
                self.cut.tell()

    async def open_older(self, channel: Channel, path: Path) -> None:
        """Open an earlier range of the partition, for reading; one that cannot be is noted."""

        def open_log() -> tuple[Log, list[Diverged]]:
            log = self._logs.open(
                channel.partition, channel.topic_id, path=path, holds=channel.holds
            )
            return log, self._logs.cut_before(log)

        try:
            log, cut = await self._runner.run(open_log)
        except (OSError, VqError) as error:
            logger.error(
                "earlier range of a log cannot be opened", partition=channel, path=path, error=error
            )
            add_older(channel, start_of(path), error)
        else:
            add_older(channel, start_of(path), log, cut)
            older = channel.older[-1]
            if _has_nothing(older, log):  # bytes beside it are an operator's
                channel.older.remove(older)
                await self._runner.run(lambda: self._logs.remove_aside(channel.partition, log))

    # Moving -------------------------------------------------------------------------------------
    async def adopt_log(self, channel: Channel, begin: LogBegin, *, version: int) -> None:
        """Give the channel a log that goes on at ``begin``; one that does not is put aside.

        The channel's state says if that did not work.

        Raises:
            PartitionReadOnly: The placement is not the one of ``version`` any more: whoever asks
                slept, and what the log holds may be acknowledged by now.
        """
        async with self.changes.lock(channel.partition):
            self._check_current(channel, version)
            if channel.log is None and channel.rules.read:
                await self._open(channel, begin, lane=Lane.MOVES)
            log = channel.log
            if log is None:
                return
            is_whole = log.state is not LogState.QUARANTINED and not channel.unprepared
            if log.end_offset == begin.offset and is_whole:
                return  # it comes back to where it left, or this is the same ADOPT again
            await self.settle(channel)
            self._check_current(channel, version)
            if channel.failed:
                return
            await self._renew(channel, log, begin)

    async def _renew(self, channel: Channel, log: Log, begin: LogBegin) -> None:
        """Put the log of a channel, which is settled, aside, and begin one at ``begin``."""
        channel.put_aside()
        try:
            path = await self._runner.run(
                lambda: self._logs.put_aside(channel.partition, log), Lane.MOVES
            )
        except Exception:
            await self._open(channel)  # it is closed by now; whoever asks again finds it
            raise
        if path is not None:
            await self.open_older(channel, path)
        await self._open(channel, begin, lane=Lane.MOVES)

    async def seal_log(self, channel: Channel, version: int) -> LogBegin:
        """Seal the channel's log for a move that was decided under ``version``.

        Returns:
            Where the next log goes on: everything in this one, and the seal itself, is durable.

        Raises:
            PartitionFailed, PartitionQuarantined, PartitionReadOnly: It cannot be sealed, or the
                placement changed meanwhile.
            StorageFailed: The seal may not be durable.
        """
        await self.ensure_open(channel)
        async with self.changes.lock(channel.partition):
            self._check_current(channel, version)
            channel.seal_log()
        # Without the lock: copies, for which this waits, compare their logs with this one.
        await self.settle(channel)
        await until_committed(channel)
        async with self.changes.lock(channel.partition):
            self._check_current(channel, version)
            log = channel.log
            if log is None or log.state is not LogState.SEALED or channel.unprepared:
                raise channel.why_refused()
            try:
                await self._runner.run(log.save_seal, Lane.MOVES)
            finally:
                channel.look_at_log()
            self._check_current(channel, version)
            return log.successor

    async def unseal_log(self, channel: Channel) -> bool:
        """Have a sealed log take appends again, if nothing speaks against it; whether it does.

        Not while a seal is being saved: that is done by another thread.
        """
        async with self.changes.lock(channel.partition):
            if channel.state is not ChannelState.UNSEALING or channel.log is None:
                return False
            channel.unseal_log(channel.log)
            return True

    def _check_current(self, channel: Channel, version: int) -> None:
        if channel.state is ChannelState.CLOSED:
            raise channel.why_refused()
        check_placement_version(channel.partition, channel.placement_version, version)

    # Copying ------------------------------------------------------------------------------------
    async def begin_log(self, channel: Channel, begin: LogBegin) -> None:
        """Give a channel without a log an empty one that begins at ``begin``.

        Raises:
            DiskFull: There is no space for it now; it may be tried again.
        """
        async with self.changes.lock(channel.partition):
            if channel.log is None and channel.rules.read:
                await self._open(channel, begin)

    async def unseal_copy(self, channel: Channel) -> None:
        """Have the log of a copy take appends: it was sealed when this node led.

        The move for which it was sealed is over; its mover is refused in the present epoch.
        """
        async with self.changes.lock(channel.partition):
            if channel.log is not None and channel.log.state is LogState.SEALED:
                channel.log.unseal()

    async def renew_log(self, channel: Channel, begin: LogBegin) -> None:
        """Put the log of a copy aside, an earlier range, and begin one at ``begin``.

        Raises:
            VqError, OSError: It could not be put aside, or no log begun.
        """
        await self.changes.whole(self._renew_copy(channel, begin))

    async def _renew_copy(self, channel: Channel, begin: LogBegin) -> None:
        async with self.changes.lock(channel.partition):
            await self._renew(channel, await self._settled_copy(channel), begin)

    async def _settled_copy(self, channel: Channel) -> Log:
        """Return the log of a copy once all of it is durable.

        Raises:
            NotMaster: This node leads by now, and may have acknowledged what is in the log.
            VqError: It is closed, or an I/O error ended it.
        """
        await self.settle(channel)
        if channel.role.epoch:
            raise NotMaster(
                f"the log of {channel} is not changed: its master was replaced by this node"
            )
        log = channel.log
        if log is None or channel.failed or channel.state is ChannelState.CLOSED:
            raise channel.why_refused()
        return log

    async def cut_log(self, channel: Channel, offset: int) -> None:
        """Have the log of a copy end at ``offset``; what followed is kept beside it.

        Raises:
            VqError, OSError: It could not be cut; the channel has its log, or says why not.
        """
        await self.changes.whole(self._cut_copy(channel, offset))

    async def _cut_copy(self, channel: Channel, offset: int) -> None:
        async with self.changes.lock(channel.partition):
            log = await self._settled_copy(channel)
            channel.detach()
            channel.copies.told = min(channel.copies.told, offset)  # what follows was taken back
            try:
                places = log.places_behind(offset)
                files = await self._runner.run(
                    lambda: self._logs.cut_back(channel.partition, log, offset),
                    Lane.ELSEWHERE if places else Lane.LOGS,
                    places,
                )
            finally:
                await self._open(channel)
        for each in files:
            _tell_cut(channel, each)
        if files:
            self.cut.tell()

    # Repairing ----------------------------------------------------------------------------------
    async def open_again(self, channel: Channel, part: Channel) -> None:
        """Close a damaged log, of ``channel`` or of an earlier range of it, and open what is there.

        Its files may have been repaired meanwhile.
        """
        await self.changes.whole(self._open_again(channel, part))

    async def _open_again(self, channel: Channel, part: Channel) -> None:
        async with self.changes.lock(channel.partition):
            log = part.log
            if log is None or channel.state is ChannelState.CLOSED:
                return
            if part is channel:
                await self.settle(channel)
                channel.put_aside()
                await self._runner.run(log.close)
                await self._open(channel)
            elif part in channel.older:
                channel.older.remove(part)
                part.close(Busy(f"an earlier range of {channel} is being opened"))
                await self._runner.run(log.close)
                await self.open_older(channel, log.directory)
                channel.older.sort(key=lambda each: each.start_offset)

    async def give_up(self, channel: Channel) -> list[Path]:
        """Put all logs of a copy out of the way, damaged as they are; return where they are now.

        The copy begins anew. This node must not be in sync.

        Raises:
            NotMaster: This node leads by now.
        """
        paths: list[Path] = []
        await self.changes.whole(self._give_up(channel, paths))
        return paths

    async def _give_up(self, channel: Channel, paths: list[Path]) -> None:
        async with self.changes.lock(channel.partition):
            if channel.state is ChannelState.CLOSED:
                return
            await self.settle(channel)
            if channel.role.epoch:
                raise NotMaster(f"the logs of {channel} are not given up: this node leads by now")
            logs = [each.log for each in (*channel.older, channel) if each.log is not None]
            for older in channel.older:
                older.close(Busy(f"the log of {channel} is copied anew"))
            channel.older = []
            channel.put_aside()
            for log in logs:
                try:
                    await self._runner.run(log.close)
                except (OSError, VqError) as error:
                    logger.warning("log was not closed cleanly", partition=channel, error=error)
            paths += await self._runner.run(
                lambda: self._logs.give_up(channel.partition, channel.topic_id), Lane.MOVES
            )
            channel.apply(channel.settings, channel.placement, channel.placement_version)

    # Retention ----------------------------------------------------------------------------------
    def drop_soon(self, channel: Channel, offset: int) -> None:
        """Drop what the master has dropped; a drop that fails is tried again with the next call."""
        if channel not in self.dropping:
            self.dropping.add(channel)
            self._tasks.start(self._drop_like_master(channel, offset, channel.copies.epoch))

    async def _drop_like_master(self, channel: Channel, offset: int, epoch: int) -> None:
        """Drop what the master of ``epoch`` has dropped, while the log is copied from it."""
        copies = channel.copies

        def still() -> bool:
            return copies.epoch == epoch

        try:
            await self.drop_before(channel, offset, still)
            if still() and channel.high_watermark >= offset:
                channel.tell_deleted(offset)
        except (OSError, VqError) as error:
            logger.warning(
                "copy cannot drop what its master has dropped, trying again",
                partition=channel,
                offset=offset,
                error=error,
            )
        finally:
            self.dropping.discard(channel)

    async def roll(self, channel: Channel, block: Block) -> None:
        """End the block of a log that takes appends, if it is still that one.

        Returns once its end is saved, and others had the flusher for a while: passes over thousands
        of partitions end one block after the other.

        Raises:
            PartitionFailed: An I/O error.
        """
        clock = channel.context.clock
        async with self.changes.lock(channel.partition):
            begun_s, log = clock.monotonic(), channel.log
            if log is None or log.open_block is not block:
                return
            log.roll()
            channel.flush_now()
        await give_way(clock, begun_s, lambda: channel.log is log and log.flushing.saves)

    async def drop_before(
        self, channel: Channel, offset: int, still: Callable[[], bool] = lambda: True
    ) -> Freed:
        """Drop the blocks of all ranges that end at or before ``offset``; return what that frees.

        Nothing goes that is not committed, or not durable. A block that takes appends ends if
        ``offset`` lies in it, so that it can go later. Ranges of which nothing is left are removed.

        Args:
            channel: Of the partition.
            offset: Where to stop.
            still: Whether the offset still counts: whoever decided it may have had other logs.

        Raises:
            VqError, OSError: Not all of it could be dropped.
        """
        found: list[Freed] = []
        try:
            await self.changes.whole(self._drop_before(channel, offset, still, found))
        finally:
            freed = Freed(
                sum(each.size_bytes for each in found), sum(each.blocks for each in found)
            )
            counters = channel.context.counters
            counters.deleted_bytes += freed.size_bytes
            counters.deleted_blocks += freed.blocks
        return freed

    async def _drop_before(
        self, channel: Channel, offset: int, still: Callable[[], bool], found: list[Freed]
    ) -> None:
        async with self.changes.lock(channel.partition):
            if channel.state is ChannelState.CLOSED or not still():
                return
            for part in [*channel.older, channel]:
                found += [await self._drop(part, min(offset, part.high_watermark))]
            for older in list(channel.older):
                log = older.log
                if log is not None and _has_nothing(older, log) and log.end_offset <= offset:
                    await self.settle(older)
                    if log.flushing.discards:
                        continue  # its archives elsewhere go first
                    channel.older.remove(older)
                    older.close(Busy(f"an earlier range of {channel} was deleted"))
                    await self._runner.run(
                        lambda log=log: self._logs.remove_aside(channel.partition, log),  # type: ignore[misc]
                        Lane.PURGE,
                    )

    async def _drop(self, part: Channel, offset: int) -> Freed:
        """Drop what lies before ``offset`` of one range.

        Raises:
            VqError: Not all of it could be dropped.
        """
        try:
            return _drop(part, offset)
        except NotInMemory as error:  # an index, to count messages
            await self.bring(error)
            return _drop(part, offset)

    async def bring(self, error: NotInMemory) -> None:
        """Bring into memory what a look-up lacked, on a lane.

        Raises:
            NotInMemory: That was begun, and may take long, as it comes from elsewhere.
        """
        lane, place = threads_of(error.fetch)
        if place:
            self._tasks.start(self._runner.run(error.fetch, lane, place))
            raise error
        await self._runner.run(error.fetch, lane)

    # Closing ------------------------------------------------------------------------------------
    async def settle(self, channel: Channel) -> None:
        """Return once everything appended is durable, or given up, and no flush runs."""
        done = asyncio.get_running_loop().create_future()

        def callback() -> None:
            if not done.done():
                done.set_result(None)

        channel.when_settled(callback)
        await done

    async def close(
        self, channel: Channel, error: VqError, saves: Callable[[], bool] = lambda: True
    ) -> None:
        """Close a channel, and its logs; ``saves``: whether there is time for a checkpoint."""
        channel.close(error)
        async with self.changes.lock(channel.partition):
            await self.settle(channel)
            for log in take_logs(channel):
                self.closed_unflushed |= log.state is LogState.FAILED
                try:
                    await self._runner.run(lambda log=log: log.close(saves=saves()))  # type: ignore[misc]
                except (OSError, VqError) as failure:
                    self.closed_unflushed = True
                    logger.warning("log was not closed cleanly", partition=channel, error=failure)


def _drop(part: Channel, offset: int) -> Freed:
    """Drop what lies before ``offset`` of one range."""
    log = part.log
    if log is None or not log.status.can_flush:
        return Freed(0, 0)
    block = log.open_block
    if block is not None and block.start_offset < offset:
        log.roll()
    blocks = len(log.closed_blocks)
    size = log.drop_before(offset)
    if size:
        part.take_start(log)
    if log.flushing.checkpoint_wanted:
        part.flush_now()
    return Freed(size, blocks - len(log.closed_blocks))


def _has_nothing(older: Channel, log: Log) -> bool:
    """Whether nothing is left of an earlier range, and nothing of it was lost."""
    has_bytes = bool(log.size_bytes or log.flushing.discards)
    return log.status.can_flush and not has_bytes and not is_cut_short(older)


def _tell_cut(channel: Channel, file: Diverged) -> None:
    """Log what was cut from the log of a copy; louder if somebody was told that it is stored."""
    epochs = f"{file.first_epoch}-{file.last_epoch}"
    if channel.acknowledges_alone:
        logger.error(
            "messages that may have been acknowledged are lost in a take-over, cut and kept",
            partition=channel,
            file=file.path,
            start_offset=file.start_offset,
            end_offset=file.end_offset,
            messages=file.messages,
            epochs=epochs,
        )
    else:
        logger.warning(
            "batches that the master does not have are cut and kept",
            partition=channel,
            file=file.path,
            start_offset=file.start_offset,
            end_offset=file.end_offset,
            messages=file.messages,
            epochs=epochs,
        )
