"""Archives of blocks: made, undone, checked, and removed elsewhere; one block at a time.

In here: the steps, beside other work, and what must still hold when they end. Not in here: which
blocks are archived, and when (that is for whoever calls), and the bytes (``vq.store.archive``).

A block is read and compressed without the partition's lock: it does not change, and may only go.
With the lock it is looked at again; then the archive takes its place. Nothing is archived that is
not closed, durable, committed and intact.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from vq.broker.channel import Channel
from vq.broker.flusher_share import is_done
from vq.broker.logs import Logs
from vq.broker.partition_state import State
from vq.broker.runner import Lane, Runner, leave, wait_at_most
from vq.clock import Clock
from vq.errors import Busy, CorruptData, DiskFull, InvalidState, VqError
from vq.log_lines import get_logger
from vq.store.archive import Archive
from vq.store.archive_place import Unreachable
from vq.store.archive_writer import ArchiveWriter, BlockWriter
from vq.store.block import FULL_ERRNOS, Block
from vq.store.log import Log

logger = get_logger(__name__)

#: Others get the processor for so many times as long as steps took; not before that is worth a
#: pause, which takes some 60 µs more than it should.
PAUSE_SHARE: Final = 1.0
PAUSE_S_MIN: Final = 0.000_3
PAUSE_S_MAX: Final = 1.0
#: So many steps are taken until the loop looks whether they are still wanted.
STEPS_AT_A_TIME: Final = 16
#: How long a step waits for a place elsewhere, and how long the end of them.
STEP_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 5.0
_ELSEWHERE: Final = frozenset({Lane.ELSEWHERE, Lane.UPLOAD})
#: How often zips elsewhere are tried to be removed.
DISCARD_S: Final = 10.0


class PlaceAway(Busy):
    """The place of archives cannot be reached, or does not answer."""


class Archived(NamedTuple):
    """A block that was archived.

    Attributes:
        size_bytes: Of the block.
        archive_bytes: Of its zip.
    """

    size_bytes: int
    archive_bytes: int


class Verified(NamedTuple):
    """What reading a whole archive has shown.

    Attributes:
        size_bytes: Of the block.
        archive_bytes: Of its zip.
        batches: That were found intact.
        problem: What is wrong; "": nothing.
    """

    size_bytes: int
    archive_bytes: int
    batches: int
    problem: str


class _Steps(Protocol):
    """Work in steps; see ``archive_writer``."""

    done: bool

    def step(self) -> int: ...

    def close(self) -> None: ...


S = TypeVar("S", bound=_Steps)
T = TypeVar("T")


class Archiving:
    """Makes archives of blocks, and blocks of archives. Loop-bound.

    Args:
        logs: The files.
        runner: For work on them.
        lock: Returns the lock of a partition.
        whole: Does the whole of a change, also if whoever waits for it is cancelled.
    """

    def __init__(
        self,
        logs: Logs,
        runner: Runner,
        lock: Callable[[tuple[str, int]], asyncio.Lock],
        whole: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
    ) -> None:
        self._logs = logs
        self._runner = runner
        self._lock = lock
        self._whole = whole
        self._busy: set[Block] = set()
        self._told: set[str] = set()

    # Archiving ----------------------------------------------------------------------------------
    async def archive(
        self, channel: Channel, block: Block, to: str | None, still: Callable[[], bool]
    ) -> Archived:
        """See ``ChannelLogs.archive``."""
        with _Errors(channel), self._alone(block):
            held = _Held(channel, block, still)
            held.check_archivable()
            start, end, path = block.start_offset, block.end_offset, block.path
            lane = Lane.ARCHIVE if to is None else Lane.UPLOAD
            writer = await self._begin(
                lambda: self._logs.new_archive(
                    channel.partition, channel.topic_id, path, start, end, place=to
                ),
                lane,
            )
            try:
                await self._take(writer, held, lane)
                await self._whole(self._swap_in(held, writer))
            finally:
                await self._end(writer, lane)
            await is_done(lambda: held.log.flushing.deletes)
        return Archived(end - start, writer.stub.archive.zip_bytes)

    async def _swap_in(self, held: "_Held", writer: ArchiveWriter) -> None:
        """Have the archive take the place of the block file."""
        block, log, run = held.block, held.log, self._runner.run
        async with self._lock(held.channel.partition):
            held.check_archivable()
            path = block.path
            try:
                stub = await run(writer.place, Lane.ARCHIVE)
                await run(lambda: self._logs.save_stub(path, stub), Lane.ARCHIVE)
                held.check_archivable()
                if block is log.open_block:  # of an earlier range, which takes no appends
                    log.roll()
                log.use_archive(block, stub.archive)
            except (OSError, VqError):
                log.flushing.discards += await run(
                    lambda: self._logs.drop_archive(path), Lane.ARCHIVE
                )
                raise
            held.part.flush_now()

    # Restoring ----------------------------------------------------------------------------------
    async def restore(self, channel: Channel, block: Block, still: Callable[[], bool]) -> None:
        """See ``ChannelLogs.restore``."""
        with _Errors(channel), self._alone(block):
            held = _Held(channel, block, still)
            held.check_restorable()
            if channel.place.refusal is not None:  # block files are larger than their archives
                raise channel.place.refusal
            path, lane = block.path, held.reading(Lane.ARCHIVE)
            writer = await self._begin(lambda: self._logs.restore(path), lane)
            try:
                await self._take(writer, held, lane)
                await self._whole(self._swap_out(held, writer))
            finally:
                await self._end(writer, lane)
            await is_done(lambda: held.log.flushing.deletes)

    async def _swap_out(self, held: "_Held", writer: BlockWriter) -> None:
        async with self._lock(held.channel.partition):
            held.check_restorable()
            await self._runner.run(writer.place, Lane.ARCHIVE)
            self.use_file(held)

    async def put_back(
        self, channel: Channel, block: Block, place: Callable[[], None], still: Callable[[], bool]
    ) -> None:
        """See ``ChannelLogs.put_back``."""
        with self._alone(block):
            held = _Held(channel, block, still)
            await self._whole(self._place(held, place))

    async def _place(self, held: "_Held", place: Callable[[], None]) -> None:
        async with self._lock(held.channel.partition):
            held.check_restorable()
            await self._runner.run(place, Lane.VERIFY)
            self.use_file(held)

    def use_file(self, held: "_Held") -> None:
        """Have the block file, which is there, take the place of the archive."""
        held.check_restorable()
        held.log.use_file(held.block)
        held.part.flush_now()

    # Checking -----------------------------------------------------------------------------------
    async def verify(self, channel: Channel, block: Block) -> Verified:
        """See ``ChannelLogs.verify_archive``."""
        held = _Held(channel, block, lambda: True)
        archive = held.check_archived()
        problem, batches = "", 0
        try:
            path, lane = block.path, held.reading(Lane.VERIFY)
            check = await self._begin(lambda: self._logs.check_archive(path), lane)
            try:
                await self._take(check, held, lane)
            finally:
                batches = check.batches
                await self._end(check, lane)
        except Unreachable as error:
            raise _unreachable(channel, error) from error
        except (CorruptData, OSError) as error:
            held.check_archived()  # it may have been restored, or dropped, meanwhile
            problem = str(error)
            details = error.details if isinstance(error, CorruptData) else {}
            channel.context.suspect(channel, int(details.get("offset", block.start_offset)))
            logger.error("archive is damaged", partition=channel, file=block.path, cause=problem)
        return Verified(archive.length, archive.zip_bytes, batches, problem)

    # Shared -------------------------------------------------------------------------------------
    def _alone(self, block: Block) -> "_Alone":
        return _Alone(self._busy, block)

    async def _take(self, steps: _Steps, held: "_Held", lane: Lane) -> None:
        """Take all steps, with pauses, as long as the block is to be kept as it is.

        Raises:
            Unreachable: A place elsewhere has not answered for long; the step may end one day.
        """
        pace = _Pace(held.channel.context.clock)
        while not steps.done:
            await self._wait(self._runner.run(lambda: pace.take(steps), lane), lane)
            held.check()

    async def _begin(self, make: Callable[[], S], lane: Lane) -> S:
        """Begin steps; what a place elsewhere begins too late is ended at once.

        Raises:
            Unreachable: As ``_take``.
        """

        def end(work: "asyncio.Future[S]") -> None:
            if not work.cancelled() and work.exception() is None:
                leave(self._runner.run(work.result().close, lane))

        return await self._wait(self._runner.run(make, lane), lane, end)

    async def _wait(
        self,
        call: Coroutine[Any, Any, T],
        lane: Lane,
        late: Callable[["asyncio.Future[T]"], None] = lambda work: None,
    ) -> T:
        """Return what a call on a lane returns; ``late`` gets what comes when nobody waits."""
        if lane not in _ELSEWHERE:
            return await call
        try:
            return await wait_at_most(STEP_TIMEOUT_S, call, late)
        except TimeoutError as error:
            raise Unreachable("", error) from error

    async def _end(self, steps: _Steps, lane: Lane) -> None:
        """Give back what steps hold; a place elsewhere that does not answer is not waited for."""
        if lane not in _ELSEWHERE:
            await self._runner.run(steps.close, lane)
            return
        with contextlib.suppress(TimeoutError):
            await wait_at_most(CLOSE_TIMEOUT_S, self._runner.run(steps.close, lane))

    # Removing what is elsewhere -----------------------------------------------------------------
    async def discard_all(self, channels: Callable[[], Iterable[Channel]]) -> None:
        """Remove zips elsewhere that no log has any more, for ever."""
        while True:
            await asyncio.sleep(DISCARD_S)
            for channel in list(channels()):
                for part in (*channel.older, channel):
                    if part.log is not None and part.log.flushing.discards:
                        await self.discard(part.log)

    async def discard(self, log: Log) -> None:
        """Remove the zips elsewhere that a log has dropped; what cannot be reached stays."""
        for mark in list(log.flushing.discards):
            try:
                await self._runner.run(lambda mark=mark: self._logs.discard(mark), Lane.UPLOAD)  # type: ignore[misc]
            except OSError as error:
                self._tell(mark, error)
            else:
                if mark in log.flushing.discards:
                    log.flushing.discards.remove(mark)

    def _tell(self, mark: Path, error: OSError) -> None:
        text = str(error)
        if text not in self._told:
            self._told.clear()
            self._told.add(text)
            logger.warning(
                "archive elsewhere cannot be removed, trying again", path=mark, error=error
            )


class _Pace:
    """Takes steps on a thread, and gives others as much time as they took.

    Pauses are made here: the loop's timers have steps of a millisecond, and a thread that works for
    several in a row keeps those waiting that are woken meanwhile. A pause that got too long counts
    for the next one.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._owed_s = 0.0

    def take(self, steps: _Steps) -> None:
        """Take the next steps, up to the end of a chunk."""
        for _ in range(STEPS_AT_A_TIME):
            begun_s = self._now()
            size = steps.step()
            self._owed_s += PAUSE_SHARE * (self._now() - begun_s)
            if self._owed_s >= PAUSE_S_MIN:
                self._pause()
            if size or steps.done:
                return

    def _pause(self) -> None:
        owed_s, begun_s = min(PAUSE_S_MAX, self._owed_s), self._now()
        time.sleep(owed_s)
        self._owed_s = max(-PAUSE_S_MIN, owed_s - (self._now() - begun_s))


class _Held:
    """A block, and where it is, when work on it begins. Later it may not be there any more."""

    def __init__(self, channel: Channel, block: Block, still: Callable[[], bool]) -> None:
        for part in (*channel.older, channel):
            if part.log is not None and part.log.has(block):
                self.channel = channel
                self.part = part
                self.log = part.log
                self.block = block
                self.still = still
                return
        raise _gone(channel, block)

    def check(self) -> None:
        """Return if the block is in the same log still, and the caller still wants this.

        Raises:
            InvalidState: It is not so; it is left alone.
        """
        is_here = self.part in (*self.channel.older, self.channel) and self.part.log is self.log
        if self.channel.state is State.CLOSED or not is_here or not self.log.has(self.block):
            raise _gone(self.channel, self.block)
        if not self.still():
            raise InvalidState(f"a block of {self.channel} is left alone: what was known changed")

    def check_archivable(self) -> None:
        """Return if the block may be archived now.

        Raises:
            VqError: It may not.
        """
        self.check()
        is_last = self.block is self.log.open_block and self.part is not self.channel
        self.log.check_archivable(self.block, takes_appends=is_last)
        if self.block.end_offset > self.part.high_watermark:
            raise InvalidState(f"a block of {self.channel} is not committed yet")

    def check_archived(self) -> Archive:
        """Return the archive that holds the block.

        Raises:
            InvalidState: There is none.
        """
        self.check()
        archive = self.block.archive
        if archive is None:
            raise InvalidState(
                f"the block at {self.block.start_offset} of {self.channel} is not archived"
            )
        return archive

    def reading(self, lane: Lane) -> Lane:
        """Return where the archive is read: on ``lane``, unless it lies elsewhere."""
        return Lane.ELSEWHERE if self.check_archived().url else lane

    def check_restorable(self) -> None:
        """Return if a block file may take the place of the archive now.

        Raises:
            VqError: It may not.
        """
        self.check()
        self.log.check_restorable(self.block)


class _Alone:
    """Work on a block that nothing else may do beside."""

    def __init__(self, busy: set[Block], block: Block) -> None:
        self._busy = busy
        self._block = block

    def __enter__(self) -> None:
        if self._block in self._busy:
            raise Busy(f"{self._block.path} is being archived or restored at this moment")
        self._busy.add(self._block)

    def __exit__(self, *_: object) -> None:
        self._busy.discard(self._block)


class _Errors:
    """Gives errors of disks and places the class that says what can be done."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Unreachable):
            raise _unreachable(self._channel, error) from error
        if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
            raise DiskFull(f"no space to archive or restore {self._channel}: {error}") from error
        if isinstance(error, CorruptData) and "offset" in error.details:
            self._channel.context.suspect(self._channel, int(error.details["offset"]))


def _unreachable(channel: Channel, error: Unreachable) -> PlaceAway:
    return PlaceAway(f"{channel}: {error}", hint="have the broker reach the place of the archives")


def _gone(channel: Channel, block: Block) -> InvalidState:
    return InvalidState(f"the block at {block.start_offset} of {channel} is not here any more")
