"""VERIFY: a reader reports bytes that fail a check, or an operator has everything verified.

A report costs one read of a few batches, and reports have a budget, so that nobody can keep the
broker reading. A pass over a whole partition goes slowly, on a thread of its own; what a pass has
found intact is not read again within ``FRESH_S``, unless an operator wants that; that its files are
there with their size is looked at in every pass. Both end in the same place: damage
is noted in its channel, told by STATUS, and logged once.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from vq.broker.base.runner import Lane, Runner
from vq.broker.base.session import Session
from vq.broker.base.steps import NO_PAUSES, StepPace, take_steps
from vq.broker.base.tasks import Tasks
from vq.broker.health.known_damage import RANGES_MAX, Known, Pass, is_broken
from vq.broker.logs.block_pass import BlockPass, TopicWork, Visitor
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.errors import Busy, InvalidRequest, VqError
from vq.log_lines import get_logger
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.store.archive.archive import place_of
from vq.store.archive.archived_file import stored_length
from vq.store.care.reported import ReportedWalk
from vq.store.care.walk import BadRange, Walk
from vq.store.disk.disk import Disk
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.log.piece import Piece

logger = get_logger(__name__)

#: Reports taken at once after a quiet time, and how long one place takes to be free again.
REPORTS_BURST: Final = 32
REPORT_EVERY_S: Final = 0.5
#: A pass reads nothing again that was found intact so short a time ago: asking all day costs one.
FRESH_S: Final = 86_400.0
#: Batches a pass verifies in a second, at most; each takes about 3 µs of the interpreter.
BATCHES_PER_S: Final = 20_000


class Verifier(Visitor):
    """Carries out VERIFY for all channels of a node; the visitor of passes that were asked for.

    Attributes:
        passes: Under way, or ended last.
        tokens: So many reports may be looked into now.
    """

    what = "verification"

    def __init__(
        self,
        context: Context,
        partitions: Partitions,
        *,
        disk: Disk,
        runner: Runner,
        tasks: Tasks,
        bytes_per_s: int,
    ) -> None:
        self._context = context
        self._partitions = partitions
        context.suspected.listen(self.suspect)
        self._disk = disk
        self._runner = runner
        self._tasks = tasks
        self._pace = StepPace(bytes_per_s, BATCHES_PER_S)
        self._known: dict[Log, Known] = {}
        self._damaged: dict[Channel, None] = {}  # all of which any was ever found
        self.passes: dict[Channel, Pass] = {}
        self._reports: dict[tuple[Channel, int], list[Callable[[], None]]] = {}
        self._reporting = False
        self._passing = False
        self._told: deque[tuple[Channel, int]] = deque(maxlen=RANGES_MAX)  # to be intact here
        self.tokens = float(REPORTS_BURST)
        self._tokens_at = context.clock.monotonic()

    # What others ask ----------------------------------------------------------------------------
    def verify(
        self, channel: Channel, session: Session, request_id: RequestId, header: wire.VerifyRequest
    ) -> None:
        """Answer a VERIFY: a report when it was looked into, everything else at once."""
        if header.whole:
            if header.begin:
                self._begin(channel, header)
            session.reply(request_id, self._response(channel))
        elif self.known_damage(channel, header.offset):
            session.reply(request_id, self._response(channel))
        else:
            self._report(
                channel,
                header.offset,
                lambda: session.reply(request_id, self._response(channel)),
            )

    def suspect(self, channel: Channel, offset: int) -> None:
        """Look into damage that this broker met itself, if there is time for it."""
        if not self.known_damage(channel, offset):
            try:
                self._report(channel, offset, lambda: None)
            except VqError:
                logger.warning(
                    "damage suspected, too many reports to check it now",
                    partition=channel,
                    offset=offset,
                )

    @property
    def busy(self) -> bool:
        """Whether it verifies something that was asked for, or reported."""
        return self._passing or self._reporting

    def known_damage(self, channel: Channel, offset: int) -> bool:
        """Whether damage is known at ``offset``."""
        return any(known.find(offset) is not None for known in self._of(channel))

    def damage(self, channel: Channel, *, at_most: int | None = None) -> list[wire.DamagedRange]:
        """Return all damage known of what is kept here of a partition, or the first of it."""
        return [
            wire.DamagedRange(
                start=max(each.start, known.log.start_offset),
                end=each.end,
                file=str(each.path),
                reason=each.why,
                found_ms=found_ms,
            )
            for known, each, found_ms in islice(self._ranges(channel), at_most)
        ]

    def count_damage(self, channel: Channel) -> int:
        """Return how many ranges ``damage`` has."""
        return sum(1 for _ in self._ranges(channel))

    def any_damage(self) -> bool:
        """Whether a log of this node is known to be damaged, or can be read or written no more.

        Or a log could not be looked at: its end may be missing.
        """
        if self._partitions.lacks_channel():
            return True
        channels = self._partitions.channels.values()
        if any(each.failed or is_broken(each) for each in channels):
            return True
        return any(True for each in self._damaged for _ in self._damage(each))

    def damaged_channels(self) -> list[Channel]:
        """Return the partitions of which damage is known that another node may repair."""
        return [each for each in self._damaged if any(True for _ in self._damage(each))]

    def known(self, channel: Channel) -> list[tuple[Log, BadRange]]:
        """Return what another node may repair of a partition, in rising order, each in its log."""
        return [(known.log, each) for known, each, _ in self._damage(channel)]

    async def look_again(self, channel: Channel, log: Log, start: int, end: int) -> None:
        """Verify a range of one of the channel's logs again, which was damaged."""
        pieces = log.reader.pieces(start, end)
        begin = min((each.start for each in pieces), default=start)
        walk = Walk(self._disk, pieces)
        unreachable = await self._take_all(channel, log, walk)
        if not _gone(channel, log) and not unreachable:
            self._note(channel, log, begin, end, walk.damage)

    def _ranges(self, channel: Channel) -> Iterator[tuple[Known, BadRange, int]]:
        for known in self._of(channel):
            for each, found_ms in known.ranges:
                if each.end > known.log.start_offset:
                    yield known, each, found_ms

    def _damage(self, channel: Channel) -> Iterator[tuple[Known, BadRange, int]]:
        for known in self._of(channel):
            for each, found_ms in known.damage:
                if each.end > known.log.start_offset:
                    yield known, each, found_ms

    def _of(self, channel: Channel) -> list[Known]:
        found = (self._known.get(log) for log in _logs(channel))
        return [known for known in found if known is not None]

    def _response(self, channel: Channel) -> wire.VerifyResponse:
        found = self.passes.get(channel)
        response = wire.VerifyResponse(
            damage=self.damage(channel), unverified=_unverified(channel, found)
        )
        if found is not None:
            response.running = not found.ended
            response.begun_ms = found.begun_ms
            response.verified_bytes = found.read_bytes
            response.total_bytes = found.total_bytes
            response.skipped_bytes = found.skipped_bytes
            left = {(known.log, each.start, each.end) for known, each, _ in self._damage(channel)}
            response.repaired = sum(
                not any(
                    log is other and start < last and first < end for other, first, last in left
                )
                for log, start, end in found.found
            )
        return response

    # Reports ------------------------------------------------------------------------------------
    def _report(self, channel: Channel, offset: int, then: Callable[[], None]) -> None:
        """Have the batch at ``offset`` verified, ``then`` go on.

        Raises:
            Busy: The budget of reports is used up.
            InvalidRequest: No batch is there.
        """
        key = (channel, offset)
        if key in self._reports:
            self._reports[key].append(then)
            return
        if not any(log.start_offset <= offset < _end(channel, log) for log in _logs(channel)):
            raise InvalidRequest(f"no message of {channel} that may be read is at offset {offset}")
        self._spend_token()
        self._reports[key] = [then]
        if not self._reporting:
            self._reporting = True
            self._tasks.start(self._look_into_reports())

    def _spend_token(self) -> None:
        now = self._context.clock.monotonic()
        earned = (now - self._tokens_at) / REPORT_EVERY_S
        self.tokens = min(self.tokens + earned, float(REPORTS_BURST))
        self._tokens_at = now
        if self.tokens < 1:
            raise Busy(
                f"more than {REPORTS_BURST} reports of damage at once, or than one every "
                f"{REPORT_EVERY_S:g} s; try again later"
            )
        self.tokens -= 1

    async def _look_into_reports(self) -> None:
        """Look into one report after the other until there are no more."""
        try:
            while self._reports:
                channel, offset = key = next(iter(self._reports))
                try:
                    await self._look_into(channel, offset)
                except Exception:
                    logger.exception("checking reported damage failed", partition=channel)
                finally:
                    for then in self._reports.pop(key):
                        then()
        finally:
            self._reporting = False

    async def _look_into(self, channel: Channel, offset: int) -> None:
        for log in _logs(channel):
            end = _end(channel, log)
            if not log.start_offset <= offset < end:
                continue
            pieces = log.reader.pieces(offset, end)
            if not pieces:
                continue
            start = pieces[0].start
            walk = ReportedWalk(self._disk, pieces, offset)
            unreachable = await self._take_all(channel, log, walk)
            if not _gone(channel, log) and not unreachable:
                self._note(channel, log, start, start + walk.read_bytes, walk.damage)
                if walk.unreadable is not None:
                    self._note_unreadable(channel, log, walk.unreadable)
                elif not self.known_damage(channel, offset) and (channel, offset) not in self._told:
                    self._told.append((channel, offset))
                    logger.warning(
                        "reported damage is not on the disk, check the reader and its network",
                        partition=channel,
                        offset=offset,
                    )

    # Passes -------------------------------------------------------------------------------------
    def _begin(self, channel: Channel, header: wire.VerifyRequest) -> None:
        """Begin a pass, unless one runs.

        Raises:
            InvalidRequest: The request does not name the topic's id, which only those who read
                ZooKeeper know.
        """
        if header.topic_id != channel.topic_id:
            raise InvalidRequest("a pass is begun only for a topic_id, as ZooKeeper has it")
        found = self.passes.get(channel)
        if found is None or found.ended:
            found = self._new_pass(channel)
            if not self._passing:
                self._passing = True
                self._tasks.start(self._carry_out_passes())
        if header.again:
            found.read_again(list(found.lately))

    def _new_pass(self, channel: Channel) -> Pass:
        clock = self._context.clock
        found = Pass(channel, clock.wall_ms())
        for log in _logs(channel):
            end = _end(channel, log)
            known = self._known.get(log)
            fresh = known is not None and clock.monotonic() - known.pass_ended < FRESH_S
            for piece in log.reader.pieces(log.start_offset, end):
                lately = piece.start
                if known is not None and fresh:
                    lately = known.intact_until(piece)
                if piece.start < lately:
                    found.lately.append((log, piece._replace(end=lately)))
                if lately < piece.end:
                    found.add(log, piece._replace(start=lately))
            found.ends[log] = end
        self.passes[channel] = found
        self._forget_gone()
        logger.info(
            "verification started",
            partition=channel,
            bytes=found.total_bytes,
            skipped_bytes=found.skipped_bytes,
        )
        return found

    async def _compare_files(self, current: Pass) -> None:
        """Have what was found intact lately read again where its file is gone or too short."""
        lately = list(current.lately)

        def lost() -> list[tuple[Log, Piece]]:
            return [each for each in lately if not _is_there(self._disk, each[1])]

        current.read_again(await self._runner.run(lost, Lane.VERIFY))
        current.compared = True

    async def _carry_out_passes(self) -> None:
        """Go on with passes, one partition after the other, until all have ended."""
        try:
            while asked := [each.channel for each in self.passes.values() if not each.ended]:
                await BlockPass(self, asked, self._context.clock).go_on()
        finally:
            self._passing = False

    def wants(self, channel: Channel) -> bool:
        """See ``Visitor.wants``."""
        return channel in self.passes

    async def visit(self, channel: Channel, work: TopicWork) -> bool:
        """Verify the next piece of a partition, as was asked for; see ``Visitor``."""
        current = self.passes[channel]
        try:
            await self._go_on(current)
        except Exception as error:
            current.trouble = f"verifying failed: {type(error).__name__}: {error}"
            current.ended = True
            raise
        return not current.ended

    async def _go_on(self, current: Pass) -> None:
        """Verify the next piece of a pass, slowly."""
        channel = current.channel
        if not current.compared:
            await self._compare_files(current)
            return
        if not current.todo:
            self._end(current)
            return
        log, piece = current.todo.popleft()

        def on_read(size: int) -> None:
            current.read_bytes += size

        unreachable = await self._verify(channel, log, piece, self._pace, on_read)
        if unreachable:
            current.ends.pop(log, None)  # what is intact is not known
            current.unreachable = unreachable

    async def scrub(
        self, channel: Channel, begin: int, pace: StepPace, on_read: Callable[[int], None]
    ) -> int | None:
        """Verify the next block that is kept of a partition from ``begin`` on, slowly.

        ``on_read`` is called with the bytes that were read. Return where the block ends; None:
        there is none.
        """
        for log in _logs(channel):
            end = _end(channel, log)
            if end <= begin or _gone(channel, log):
                continue
            for piece in log.reader.pieces(max(begin, log.start_offset), end, 1):
                await self._verify(channel, log, piece, pace, on_read)
                return piece.end
        return None

    async def _verify(
        self,
        channel: Channel,
        log: Log,
        piece: Piece,
        pace: StepPace,
        on_read: Callable[[int], None],
    ) -> str:
        """Verify a piece, slowly, and note what is damaged; return why not all could be read."""
        piece = _located(log, piece)  # it may have waited for days
        walk = Walk(self._disk, [piece])
        unreachable = await self._take_all(channel, log, walk, pace, on_read)
        if not _gone(channel, log) and not unreachable:
            self._note(channel, log, piece.start, piece.end, walk.damage)
        return unreachable

    async def _take_all(
        self,
        channel: Channel,
        log: Log,
        walk: Walk,
        pace: StepPace = NO_PAUSES,
        on_read: Callable[[int], None] = lambda size: None,
    ) -> str:
        """Take all steps; return why not all could be read."""
        try:
            await take_steps(
                walk,
                self._runner,
                Lane.VERIFY,
                self._context.clock,
                pace,
                still=lambda: not _gone(channel, log),
                on_read=on_read,
            )
        except TimeoutError as error:
            return str(error)
        return walk.unreachable[0].why if walk.unreachable else ""

    def _end(self, current: Pass) -> None:
        current.ended = True
        if current.read_bytes < current.total_bytes:
            why = current.unreachable or "their log was closed or replaced meanwhile"
            current.trouble = (
                f"{current.total_bytes - current.read_bytes} bytes were not read: {why}; "
                "verify again"
            )
        for log, end in current.ends.items():
            if not _gone(current.channel, log):
                known = self._known.setdefault(log, Known(log))
                known.intact_to, known.pass_ended = end, self._context.clock.monotonic()
        logger.info(
            "verification ended",
            partition=current.channel,
            bytes=current.read_bytes,
            damaged_ranges=len(self.damage(current.channel)),
        )

    # What was found -----------------------------------------------------------------------------
    def _note(
        self, channel: Channel, log: Log, start: int, end: int, found: list[BadRange]
    ) -> None:
        found = [each for each in found if each.end > log.start_offset]
        known = self._known.get(log)
        if known is None:
            if not found:
                return
            known = self._known[log] = Known(log)
        if found:
            self._damaged[channel] = None
        running = self.passes.get(channel)
        if running is not None and not running.ended:
            running.found |= {(log, each.start, each.end) for each in found}
        for each in known.replace(start, end, found, self._context.clock.wall_ms()):
            logger.error(
                "damage found",
                partition=channel,
                start=each.start,
                end=each.end,
                file=each.path,
                cause=each.why,
                hint="docs/howto/repair-damage.md: restore the file, or go past the range",
            )

    def _note_unreadable(self, channel: Channel, log: Log, found: BadRange) -> None:
        known = self._known.setdefault(log, Known(log))
        self._damaged[channel] = None
        if known.note_unreadable(found, self._context.clock.wall_ms()):
            logger.error(
                "a record cannot be read and was stored so, its producer is faulty",
                partition=channel,
                start=found.start,
                end=found.end,
                file=found.path,
                cause=found.why,
                hint="`vq group reset GROUP --past-damage` has a group skip it",
            )

    def _forget_gone(self) -> None:
        """Keep nothing of logs that were closed."""
        for log in [log for log in self._known if log.state is LogState.CLOSED]:
            del self._known[log]
        for channel in [each for each in self.passes if not each.rules.verify]:
            del self.passes[channel]
        for channel in [each for each in self._damaged if not each.rules.verify]:
            del self._damaged[channel]


def _logs(channel: Channel) -> list[Log]:
    return [each.log for each in (*channel.older, channel) if each.log is not None]


def _end(channel: Channel, log: Log) -> int:
    """Return the end of what may be verified of one of the channel's logs."""
    if log is not channel.log:
        return log.end_offset
    # A copy of a topic with min_insync 2 does not know what is committed; all of it is stored.
    return log.synced_offset if channel.role.follows else channel.high_watermark


def _gone(channel: Channel, log: Log) -> bool:
    """Whether the log is not the channel's any more: closed, put aside, or about to be."""
    return not channel.rules.verify or log not in _logs(channel)


def _located(log: Log, piece: Piece) -> Piece:
    """Return a piece where its block is by now: it may have become an archive, or a file again."""
    block = log.reader.block_at(piece.start)
    if block is None or block.start_offset != piece.block_start:
        return piece
    archive = block.archive
    return piece._replace(path=block.path, place=place_of(archive.url) if archive else "")


def _is_there(disk: Disk, piece: Piece) -> bool:
    """Whether the file of ``piece`` exists and is long enough to hold it."""
    try:
        return stored_length(disk, piece.path) >= piece.end - piece.block_start
    except OSError:
        return False


def _unverified(channel: Channel, found: Pass | None) -> str:
    """Return what a pass cannot tell of a partition, and why; "" when it tells everything."""
    state, reason = channel.told
    if state in {"failed", "quarantined"}:
        return f"only what is served can be read: it is {state}: {reason}"
    for older in channel.older:
        if not older.rules.read:
            return f"an earlier range is {older.state}: {older.cause}"
    for log in _logs(channel):
        if log.state in {LogState.FAILED, LogState.QUARANTINED}:
            return f"only what is served can be read: it is {log.state.value}: {log.reason}"
    return "" if found is None else found.trouble
