"""Archives of blocks: made, undone, checked, and removed elsewhere; one block at a time.

In here: the steps, beside other work, and what must still hold when they end. Not in here: which
blocks are archived, and when (that is for whoever calls), and the bytes
(``vq.store.archive.archive``).

A block is read and compressed without the partition's lock: it does not change, and may only go.
With the lock it is looked at again; then the archive takes its place. Nothing is archived that is
not closed, durable, committed and intact.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from vq.broker.base.flusher_share import is_done
from vq.broker.base.problems import Problems
from vq.broker.base.runner import Lane, Runner, leave, wait_at_most
from vq.broker.logs.file_changes import FileChanges
from vq.broker.logs.logs import Logs
from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.partition_state import ChannelState
from vq.clock import Clock
from vq.errors import Busy, CorruptData, DiskFull, InvalidState, VqError
from vq.log_lines import get_logger
from vq.store.archive.archive import Archive, place_of
from vq.store.archive.archive_place import ZipUnreachable
from vq.store.archive.archive_writer import ArchiveWriter, BlockWriter
from vq.store.log.block import FULL_ERRNOS, Block
from vq.store.log.log import Log

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
#: How often zips elsewhere are tried to be removed.
DISCARD_S: Final = 10.0


class _At(NamedTuple):
    """Where steps are taken: on a lane, or on the threads that a place elsewhere has there."""

    lane: Lane
    place: str = ""


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


class CheckedArchive(NamedTuple):
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
        changes: Of the files of all channels.
    """

    def __init__(self, logs: Logs, runner: Runner, changes: FileChanges) -> None:
        self._logs = logs
        self._runner = runner
        self._changes = changes
        self._busy: set[Block] = set()
        self._problems = Problems(logger, "archive elsewhere cannot be removed, trying again")

    # Archiving ----------------------------------------------------------------------------------
    async def archive(
        self,
        channel: Channel,
        block: Block,
        to: str | None = None,
        still: Callable[[], bool] = lambda: True,
    ) -> Archived:
        """Have a zip hold the bytes of a closed block, and delete its file.

        Returns when that is done: stub and zip are durable, and were read back.

        Args:
            channel: Of the partition.
            block: Of its log, or of an earlier range: closed, durable and committed.
            to: URL below which the zip goes; None: beside the log.
            still: Whether it is still wanted: asked again and again.

        Raises:
            InvalidState: The block cannot be archived, or not any more; it is left alone.
            CorruptData: The block is damaged; that is looked into.
            DiskFull: There is no space for the zip.
            Busy: The place cannot be reached, or this block is being worked on.
            VqError, OSError: Something else failed; the block is as it was.
        """
        with _Errors(channel), self._alone(block):
            held = _Held(channel, block, still)
            held.check_archivable()
            start, end, path = block.start_offset, block.end_offset, block.path
            at = _At(Lane.ARCHIVE) if to is None else _At(Lane.UPLOAD, to.rstrip("/"))
            writer = await self._begin(
                lambda: self._logs.new_archive(
                    channel.partition, channel.topic_id, path, start, end, place=to
                ),
                at,
            )
            try:
                await self._take(writer, held, at)
                await self._changes.whole(self._swap_in(held, writer))
            finally:
                await self._end(writer, at)
            await is_done(lambda: held.log.flushing.deletes)
        return Archived(end - start, writer.stub.archive.zip_bytes)

    async def _swap_in(self, held: "_Held", writer: ArchiveWriter) -> None:
        """Have the archive take the place of the block file."""
        block, log, run = held.block, held.log, self._runner.run
        async with self._changes.lock(held.channel.partition):
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
    async def restore(
        self, channel: Channel, block: Block, still: Callable[[], bool] = lambda: True
    ) -> None:
        """Have a block file hold the bytes of an archived block again, and delete the archive.

        Raises:
            VqError, OSError: As ``archive``; CorruptData: the archive is damaged.
        """
        with _Errors(channel), self._alone(block):
            held = _Held(channel, block, still)
            held.check_restorable()
            refusal = channel.place.to_raise()
            if refusal is not None:  # block files are larger than their archives
                raise refusal
            path, at = block.path, held.reading(Lane.ARCHIVE)
            writer = await self._begin(lambda: self._logs.restore(path), at)
            try:
                await self._take(writer, held, at)
                await self._changes.whole(self._swap_out(held, writer))
            finally:
                await self._end(writer, at)
            await is_done(lambda: held.log.flushing.deletes)

    async def _swap_out(self, held: "_Held", writer: BlockWriter) -> None:
        async with self._changes.lock(held.channel.partition):
            held.check_restorable()
            await self._runner.run(writer.place, Lane.ARCHIVE)
            self.use_file(held)

    async def put_back(
        self, channel: Channel, block: Block, place: Callable[[], None], still: Callable[[], bool]
    ) -> None:
        """Have a block file that was written anew take the place of a damaged archive.

        ``place`` gives the file its name, durably; it is called on a lane.

        Raises:
            InvalidState: The block is not archived any more, or gone; ``place`` was not called.
        """
        with self._alone(block):
            held = _Held(channel, block, still)
            await self._changes.whole(self._place(held, place))

    async def _place(self, held: "_Held", place: Callable[[], None]) -> None:
        async with self._changes.lock(held.channel.partition):
            held.check_restorable()
            await self._runner.run(place, Lane.VERIFY)
            self.use_file(held)

    def use_file(self, held: "_Held") -> None:
        """Have the block file, which is there, take the place of the archive."""
        held.check_restorable()
        held.log.use_file(held.block)
        held.part.flush_now()

    # Checking -----------------------------------------------------------------------------------
    async def verify(
        self, channel: Channel, block: Block, still: Callable[[], bool] = lambda: True
    ) -> CheckedArchive:
        """Read an archive as a whole; return what is wrong, if something is.

        Zip, block and batches are compared with what the stub says. Damage of batches is looked
        into, as a reader's report is. ``still``: whether anybody waits; asked again and again.

        Raises:
            InvalidState: The block is not archived, or not here any more, or nobody waits.
            Busy: The place of the archive cannot be reached.
        """
        held = _Held(channel, block, still)
        archive = held.check_archived()
        problem, batches = "", 0
        try:
            path, at = block.path, held.reading(Lane.VERIFY)
            check = await self._begin(lambda: self._logs.check_archive(path), at)
            try:
                await self._take(check, held, at)
            finally:
                batches = check.batches
                await self._end(check, at)
        except ZipUnreachable as error:
            raise _unreachable(channel, error) from error
        except (CorruptData, OSError) as error:
            held.check_archived()  # it may have been restored, or dropped, meanwhile
            problem = str(error)
            details = error.details if isinstance(error, CorruptData) else {}
            channel.context.suspect(channel, int(details.get("offset", block.start_offset)))
            logger.error("archive is damaged", partition=channel, file=block.path, cause=problem)
        return CheckedArchive(archive.length, archive.zip_bytes, batches, problem)

    # Shared -------------------------------------------------------------------------------------
    def _alone(self, block: Block) -> "_Alone":
        return _Alone(self._busy, block)

    async def _take(self, steps: _Steps, held: "_Held", at: "_At") -> None:
        """Take all steps, with pauses, as long as the block is to be kept as it is.

        Raises:
            ZipUnreachable: A place elsewhere has not answered for long; the step may end one day.
        """
        pace = _Pace(held.channel.context.clock)
        while not steps.done:
            await self._wait(lambda: pace.take(steps), at)
            held.check()

    async def _begin(self, make: Callable[[], S], at: "_At") -> S:
        """Begin steps; what a place elsewhere begins too late is ended at once.

        Raises:
            ZipUnreachable: As ``_take``.
        """

        def end(work: "asyncio.Future[S]") -> None:
            if not work.cancelled() and work.exception() is None:
                leave(self._runner.run(work.result().close, *at))

        return await self._wait(make, at, end)

    async def _wait(
        self,
        call: Callable[[], T],
        at: "_At",
        late: Callable[["asyncio.Future[T]"], None] = lambda work: None,
    ) -> T:
        """Return what a call returns; ``late`` gets what comes when nobody waits."""
        work = self._runner.run(call, *at)
        if not at.place:
            return await work
        try:
            return await wait_at_most(STEP_TIMEOUT_S, work, late)
        except TimeoutError as error:
            raise ZipUnreachable("", error) from error

    async def _end(self, steps: _Steps, at: "_At") -> None:
        """Give back what steps hold; a place elsewhere that does not answer is not waited for."""
        work = self._runner.run(steps.close, *at)
        if not at.place:
            await work
            return
        with contextlib.suppress(TimeoutError):
            await wait_at_most(CLOSE_TIMEOUT_S, work)

    # Removing what is elsewhere -----------------------------------------------------------------
    async def discard_all(self, channels: Channels) -> None:
        """Remove zips elsewhere that no log has any more."""
        by_place: dict[str, list[tuple[Log, Path]]] = {}
        for channel in list(channels.values()):
            for part in (*channel.older, channel):
                log = part.log
                if log is None or not log.flushing.discards:
                    continue
                marks = list(log.flushing.discards)
                read = partial(self._logs.places_of_marks, marks)
                for place, mark in zip(
                    await self._runner.run(read, Lane.PURGE), marks, strict=True
                ):
                    by_place.setdefault(place, []).append((log, mark))
        await asyncio.gather(*(self._discard(*each) for each in by_place.items()))

    async def _discard(self, place: str, marks: list[tuple[Log, Path]]) -> None:
        """Remove zips in one place; what cannot be reached stays, and so does what follows it."""
        for log, mark in marks:
            remove = self._runner.run(partial(self._logs.discard, mark), Lane.UPLOAD, place)
            try:
                await wait_at_most(STEP_TIMEOUT_S, remove)
            except (OSError, TimeoutError) as error:
                self._problems.tell(place, error, path=mark)
                return
            if mark in log.flushing.discards:
                log.flushing.discards.remove(mark)
        self._problems.tell(place, "")


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
        if self.channel.state is ChannelState.CLOSED or not is_here or not self.log.has(self.block):
            raise _gone(self.channel, self.block)
        if not self.still():
            raise InvalidState(
                f"a block of {self.channel} is left as it is: the partition has changed"
            )

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

    def reading(self, lane: Lane) -> _At:
        """Return where the archive is read: on ``lane``, unless it lies elsewhere."""
        place = place_of(self.check_archived().url)
        return _At(Lane.ELSEWHERE, place) if place else _At(lane)

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
        if isinstance(error, ZipUnreachable):
            raise _unreachable(self._channel, error) from error
        if isinstance(error, OSError) and error.errno in FULL_ERRNOS:
            raise DiskFull(f"no space to archive or restore {self._channel}: {error}") from error
        if isinstance(error, CorruptData) and "offset" in error.details:
            self._channel.context.suspect(self._channel, int(error.details["offset"]))


def _unreachable(channel: Channel, error: ZipUnreachable) -> PlaceAway:
    return PlaceAway(f"{channel}: {error}", hint="have the broker reach the place of the archives")


def _gone(channel: Channel, block: Block) -> InvalidState:
    return InvalidState(f"the block at {block.start_offset} of {channel} is not here any more")
