"""FIND: messages with an id, a key or a tag, searched for on the broker.

A search may read gigabytes. So it runs on a thread of its own, in small steps with pauses, and one
request searches so much and no more; the client goes on where the answer says. Searches of a node
take turns, step by step, and there are few at a time. They see what readers see: nothing behind the
high watermark.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from vq import limits
from vq.broker.base.runner import Lane, Runner, leave, wait_at_most
from vq.broker.base.session import Session
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.partition.ranges import end_of_range, promised_start
from vq.broker.serving.reading import check_range, check_readable
from vq.broker.serving.under_way import UnderWay
from vq.errors import Busy, InvalidRequest, PartitionRangeElsewhere, VqError
from vq.message_filter import Filter
from vq.model import Key
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.format import KeyKind
from vq.store.care.search import Search
from vq.store.care.walk import BadRange
from vq.store.care.wanted import Wanted
from vq.store.disk.disk import Disk
from vq.store.log.log import Log

#: A request is answered after so long with what was found, but not before it got further.
ANSWER_S: Final = 0.5
#: A pause is so many times as long as the step before it: others get the interpreter.
PAUSE_SHARE: Final = 1.0
#: How long one step waits for an archive elsewhere; a client waits longer for the answer. Reads of
#: consumers there wait for the same threads.
ELSEWHERE_TIMEOUT_S: Final = 10.0
#: Blocks that one request looks into.
BLOCKS_MAX: Final = 64
_ID_END: Final = 1 << 63
_INTEGER_BYTES: Final = 8


class RunningFind:
    """One FIND under way; it ends early with its connection."""

    __slots__ = ("header", "is_wanted", "request_id", "session")

    def __init__(self, session: Session, request_id: RequestId, header: wire.FindRequest) -> None:
        self.session = session
        self.request_id = request_id
        self.header = header
        self.is_wanted = True

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self.is_wanted = False


class Indexes(Protocol):
    """Makes key indexes; in practice ``key_indexing.KeyIndexer``."""

    def rebuild(self, log: Log, start: int) -> None:
        """Have the index of a block made again if there was one: it is gone, or of no use."""
        ...


class Finder:
    """Carries out FIND for all channels of a node. Loop-bound.

    Args:
        context: Of the channels.
        indexes: Makes key indexes again that are of no use.
        disk, runner: To act with.

    Attributes:
        under_way: The searches, within a bound.
    """

    def __init__(self, context: Context, indexes: Indexes, *, disk: Disk, runner: Runner) -> None:
        self._context = context
        self._disk = disk
        self._runner = runner
        self.under_way = UnderWay("searches")
        self._indexes = indexes

    def find(
        self, channel: Channel, session: Session, request_id: RequestId, header: wire.FindRequest
    ) -> Coroutine[Any, Any, None] | None:
        """Answer a FIND: at once when there is nothing to search, else when it was searched."""
        wanted = wanted_of(header)
        check_readable(channel, header.epoch)
        part = _part_of(channel, header.offset)
        begin, end = _range_of(part, header)
        if begin >= end:
            response = wire.FindResponse(offset=begin, next_offset=max(begin, header.offset))
            self._reply(session, request_id, channel, part, header, response)
            return None
        check_range(part, begin)
        log = part.log
        if log is None:
            raise Busy(f"the log of {channel} is not open yet")
        search = self._search(part, log, header, wanted, begin, end)
        self.under_way.begin(
            session,
            per_connection_max=limits.FINDS_PER_CONNECTION_MAX,
            total_max=limits.FINDS_MAX,
        )
        finding = RunningFind(session, request_id, header)
        session.waiting[finding] = None
        return self._carry_out(finding, channel, part, log, search)

    def _search(
        self,
        part: Channel,
        log: Log,
        header: wire.FindRequest,
        wanted: Wanted,
        begin: int,
        end: int,
    ) -> Search:
        messages_max, bytes_max = limits.FIND_MESSAGES_MAX, limits.FIND_BYTES_MAX
        return Search(
            self._disk,
            log.directory,
            log.reader.pieces(begin, part.read_limit, BLOCKS_MAX),
            wanted,
            begin=begin,
            end=end,
            messages_max=min(header.max_messages or messages_max, messages_max),
            bytes_max=min(header.max_bytes or bytes_max, bytes_max),
        )

    async def _carry_out(
        self, finding: RunningFind, channel: Channel, part: Channel, log: Log, search: Search
    ) -> None:
        try:
            begin = search.position
            search = await self._work(finding, part, log, search)
            if not finding.is_wanted:
                return
            if _gone(channel, part, log):
                raise Busy(f"the log of {channel} was closed or replaced during the search")
            self._answer(finding, channel, part, search, begin)
        finally:
            finding.session.waiting.pop(finding, None)
            self.under_way.end(finding.session)

    async def _work(self, finding: RunningFind, part: Channel, log: Log, search: Search) -> Search:
        """Search until the end, or as long as one request may; return the search as it is then."""
        now = self._context.clock.monotonic
        most = limits.FIND_SEARCHED_BYTES_MAX
        most = min(finding.header.max_searched_bytes or most, most)
        begun, begin = now(), search.position
        try:
            while not search.done and finding.is_wanted and part.log is log:
                since = now()
                if search.waits_for:
                    search = await self._step_elsewhere(search)
                else:
                    await self._runner.run(search.step, Lane.FIND)
                took_s = now() - since
                is_enough = search.covered.size >= most or now() - begun >= ANSWER_S
                if is_enough and search.position > begin:
                    break
                await asyncio.sleep(took_s * PAUSE_SHARE)
        finally:  # behind a step that a cancellation left running
            await self._runner.run(search.close, Lane.FIND)
        search.end()
        return search

    async def _step_elsewhere(self, search: Search) -> Search:
        """Take a step that reads from a place elsewhere; return the search to go on with.

        When the place does not answer, that is another one: the step may end one day.
        """
        spare, place = search.fork(), search.waits_for
        try:
            step = self._runner.run(search.step, Lane.ELSEWHERE, place)
            await wait_at_most(ELSEWHERE_TIMEOUT_S, step)
        except TimeoutError as error:
            leave(self._runner.run(search.close, Lane.ELSEWHERE, place))
            spare.give_up(str(error))
            return spare
        return search

    def _answer(
        self, finding: RunningFind, channel: Channel, part: Channel, search: Search, begin: int
    ) -> None:
        log = part.log
        assert log is not None
        for start in (*search.unfit, *search.bare):
            self._indexes.rebuild(log, start)
        damage = _kept(search.damage, log)
        if damage:
            self._context.suspect(channel, damage[0].start)
        response = wire.FindResponse(
            offsets=[each.offset for each in search.found],
            append_ms=[each.append_time_ms for each in search.found],
            offset=begin,
            next_offset=search.position,
            read_bytes=search.covered.read_bytes,
            skipped_bytes=search.covered.skipped_bytes,
            first_ms=search.covered.first_ms,
            last_ms=search.covered.last_ms,
            damage=map(_told, damage),
            unreachable=map(_told, _kept(search.unreachable, log)),
        )
        body = b"".join(each.record for each in search.found)
        self._context.counters.bytes_out += len(body)
        args = (finding.session, finding.request_id, channel, part, finding.header, response, body)
        if finding.session.congested:
            finding.session.defer(lambda: self._reply(*args))
        else:
            self._reply(*args)

    @staticmethod
    def _reply(
        session: Session,
        request_id: RequestId,
        channel: Channel,
        part: Channel,
        header: wire.FindRequest,
        response: wire.FindResponse,
        body: bytes = b"",
    ) -> None:
        response.done = _is_done(part, header.end_offset, response.next_offset)
        response.log_start_offset = channel.start_offset
        response.high_watermark = channel.high_watermark
        response.epoch = channel.read_epoch
        session.reply(request_id, response, body)


def wanted_of(header: wire.FindRequest) -> Wanted:
    """Return what a FIND asks for.

    Raises:
        InvalidRequest: A field has what no message can have.
    """
    wanted = Filter.of_request(header.tags, header.where)
    if header.message_id >= _ID_END:
        raise InvalidRequest(f"message id {header.message_id} has more than 63 bits")
    return Wanted(header.message_id or None, _key_of(header.key_kind, header.key), wanted)


def _key_of(kind: int, value: bytes) -> Key | None:
    if len(value) > limits.PROPERTIES_BYTES_MAX:
        raise InvalidRequest(
            f"a key of {len(value)} bytes; none has more than {limits.PROPERTIES_BYTES_MAX}"
        )
    match kind:
        case KeyKind.ANY if not value:
            return None
        case KeyKind.TEXT if value:
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise InvalidRequest(f"the key is not UTF-8: {error}") from error
        case KeyKind.BYTES:
            return value
        case KeyKind.INTEGER if len(value) == _INTEGER_BYTES:
            return int.from_bytes(value, "big", signed=True)
    raise InvalidRequest(f"key_kind {kind} with {len(value)} bytes is not a key")


def _part_of(channel: Channel, offset: int) -> Channel:
    """Return the channel of the first range that has something behind ``offset``."""
    for older in channel.older:
        if offset < end_of_range(older):
            return older
    return channel


def _range_of(part: Channel, header: wire.FindRequest) -> tuple[int, int]:
    """Return the offsets to search of a range, ``[begin, end)``; empty: there are none."""
    begin = max(header.offset, promised_start(part))
    end = part.read_limit
    if header.end_offset:
        if begin >= header.end_offset:
            return header.end_offset, header.end_offset
        end = min(end, header.end_offset)
    if begin >= end:
        check_range(part, begin)  # why nothing is there
    return begin, end


def _is_done(part: Channel, end_offset: int, position: int) -> bool:
    """Whether nothing is left behind ``position`` of what is searched up to ``end_offset``.

    At the end of what is served more may follow that cannot be: then whoever asks again learns why.
    So it is with what is stored and not committed: where an earlier master served more, this one
    will serve that in a moment.
    """
    if end_offset and position >= end_offset:
        return True
    if position < part.read_limit:
        return False
    try:
        check_range(part, position)
    except PartitionRangeElsewhere:
        return not end_offset
    except VqError:
        return False
    return not end_offset or part.log is None or position >= part.log.end_offset


def _kept(ranges: list[BadRange], log: Log) -> list[BadRange]:
    """Return what retention has not taken away meanwhile: that is no damage."""
    start = log.start_offset
    return [each._replace(start=max(each.start, start)) for each in ranges if each.end > start]


def _told(each: BadRange) -> wire.DamagedRange:
    return wire.DamagedRange(start=each.start, end=each.end, file=str(each.path), reason=each.why)


def _gone(channel: Channel, part: Channel, log: Log) -> bool:
    """Whether the log is not the channel's any more: closed, put aside, or about to be."""
    parts = (*channel.older, channel)
    return part not in parts or part.log is not log or not part.rules.read
