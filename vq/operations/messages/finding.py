"""Messages found by id, key, tag and time; and what was searched for them, without a silent gap.

Loop-bound functions on a ``ClusterClient``. Brokers search, each for the ranges of its group; here
they are asked range after range, and what they could not search is told as a gap.
"""

import asyncio
import contextlib
import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from vq import limits
from vq.bounds import check_between, check_whole
from vq.client.cluster import ClusterClient
from vq.client.producer.intake.stages import Heads
from vq.client.reading.decode import decode_messages
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.topics import topics
from vq.coordination.tree.reading import gather_all
from vq.errors import (
    ConnectionCut,
    CorruptData,
    InvalidArgument,
    InvalidRequest,
    NotMaster,
    PartitionQuarantined,
    PermissionRefused,
    TimedOut,
    UnknownTopic,
    Unreachable,
    VqError,
)
from vq.message_filter import Filter, Where
from vq.model import (
    Key,
    Message,
    PartitionPlacement,
    Span,
    TopicPartition,
    check_timeout,
    time_ms_of,
)
from vq.operations.messages.searched import (
    DAMAGE,
    Budget,
    FoundMessages,
    GapKind,
    SearchedPartition,
    SearchGap,
    Work,
)
from vq.operations.messages.stored import COUNT_MAX
from vq.operations.partitions.offsets import check_time
from vq.remoting.format import Command, KeyKind
from vq.remoting.wire_pb2 import FindRequest, FindResponse, OffsetsRequest, OffsetsResponse
from vq.store.records.record import boundaries

#: Messages that are found if the caller does not say how many.
LIMIT: Final = 100
TIMEOUT_S: Final = 60.0
#: An id has the time at which it was made, by the producer's clock. Without a range, batches that
#: brokers appended so long before and after it are searched: clocks differ, a producer under load
#: is ahead of its clock, and a message that is sent again and again comes late.
AROUND_MS: Final = 3_600_000
#: Partitions that are searched at once.
_AT_ONCE: Final = 8
#: Beside the usual time-out: searches of a broker take turns.
_EXTRA_S: Final = 10.0
_ID_MAX: Final = (1 << 63) - 1
#: A master that has just taken over serves less than the one before it, until the nodes in sync
#: told it what they have. So long, and so far apart, it is asked again for what follows.
_BEHIND_S: Final = 15.0
_BEHIND_PAUSE_S: Final = 0.2
#: Pauses before damage that a search met is searched once more: a broker repairs it meanwhile, if
#: another node of its group has the bytes.
_REPAIR_PAUSES_S: Final = (1.0, 3.0)
_AWAY: Final = (ConnectionCut, NotMaster, TimedOut, Unreachable)
_RAISED: Final = (UnknownTopic, PermissionRefused, InvalidRequest)


async def find_messages(
    cluster: ClusterClient,
    topic: str,
    *,
    id: int | None = None,
    key: Key | None = None,
    tag: str | None = None,
    where: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    partitions: Sequence[int] = (),
    offsets: Mapping[int, int] | None = None,
    limit: int = LIMIT,
    max_bytes: int | None = None,
    timeout: float = TIMEOUT_S,
) -> FoundMessages:
    """Return the messages of a topic that have all that is given, and what was searched.

    Brokers search; what a key index rules out is not read. No group is needed and none moves.
    Look at ``complete`` of the result before you take a message for missing: ``gaps`` are the
    ranges that could not be searched, ``rest`` says what is left after a bound was met.

    Args:
        topic: Its name.
        id: Of the message, in [1, 2**63). Without ``since_ms`` and ``until_ms``, batches stored
            up to an hour before and after the time in the id are searched: give them to search
            further.
        key: Of the message, of the same type: text, bytes, or an integer.
        tag: Of the message; ``a || b`` is one of both.
        where: An expression over its headers, as of ``vq.Where``; not beside ``tag``.
        since_ms: Stored at or after this time, in milliseconds since 1970 UTC.
        until_ms: Stored before this time.
        partitions: Only these.
        offsets: Only these partitions, each from an offset on: ``rest`` of an earlier result.
        limit: At most so many messages, 1 to 100,000.
        max_bytes: Stop after about so many bytes were searched; None: no bound.
        timeout: Stop after so many seconds.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument, MessageTooLarge: Nothing is asked for, or what no message can have.
        PermissionRefused: The topic is not readable.
    """
    wanted = _filter(tag, where)
    question = _question(id, key, wanted)
    for name, time_ms in (("since_ms", since_ms), ("until_ms", until_ms)):
        if time_ms is not None:
            check_time(name, time_ms)
    if since_ms is None and until_ms is None:
        if id is None and key is None and not wanted and tag is None and not offsets:
            raise InvalidArgument("give at least one of id, key, tag, where, since_ms and until_ms")
        if id is not None:
            sent_ms = time_ms_of(id)
            since_ms, until_ms = max(0, sent_ms - AROUND_MS), sent_ms + AROUND_MS
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise InvalidArgument(f"since_ms = {since_ms} is not before until_ms = {until_ms}")
    check_between("limit", limit, 1, COUNT_MAX, "messages")
    if max_bytes is not None:
        check_whole("max_bytes", max_bytes)
        if max_bytes < 1:
            raise InvalidArgument(f"max_bytes = {max_bytes} is below 1")
    deadline = cluster.clock.monotonic() + check_timeout(timeout)
    budget = Budget(limit, max_bytes)
    finder = ClusterSearch(cluster, question, wanted, since_ms, until_ms, budget, deadline)
    placements = await _placements(cluster, topic, partitions, offsets or {})
    turns = asyncio.Semaphore(_AT_ONCE)

    async def search(placement: PartitionPlacement) -> SearchedPartition:
        async with turns:
            return await finder.search(placement, (offsets or {}).get(placement.partition, 0))

    searched = await gather_all(search(each) for each in placements)
    found = heapq.merge(*finder.found.values(), key=lambda each: each.id)
    stopped = None if all(each.done for each in searched) else budget.stopped
    return FoundMessages(tuple(found), tuple(searched), since_ms, until_ms, stopped)


def _filter(tag: str | None, where: str | None) -> Filter:
    if where is None:
        return Filter.parse(tag, "tag")
    if tag is not None:
        raise InvalidArgument("give tag or where; in an expression, TAGS is the tag")
    return Filter.of(Where(where))


def _question(id: int | None, key: Key | None, wanted: Filter) -> FindRequest:
    """Return the fields of a request that say what is looked for.

    Raises:
        InvalidArgument, MessageTooLarge: No message can have that.
    """
    request = FindRequest()
    if id is not None:
        check_between("id", id, 1, _ID_MAX)
        request.message_id = id
    if key is not None:
        Heads().of_message(None, key, None)
        if key == "":
            raise InvalidArgument("an empty text is not a key: no message has it")
        if isinstance(key, str):
            request.key_kind, request.key = KeyKind.TEXT, key.encode()
        elif isinstance(key, bytes):
            request.key_kind, request.key = KeyKind.BYTES, key
        else:
            request.key_kind, request.key = KeyKind.INTEGER, key.to_bytes(8, "big", signed=True)
    request.tags.extend(wanted.tags)
    request.where = wanted.where
    return request


async def _placements(
    cluster: ClusterClient, topic: str, only: Sequence[int], offsets: Mapping[int, int]
) -> list[PartitionPlacement]:
    view = await topics.describe_topic(cluster.coordinator, topic)
    for number in (*only, *offsets):
        check_whole("partition", number)
        topics.check_partition(view, number)
    for offset in offsets.values():
        check_between("offset", offset, 0, limits.OFFSET_MAX)
    wanted = set(only) if only else set(offsets)
    if only and offsets and not set(offsets) <= wanted:
        raise InvalidArgument("an offset is given for a partition that is not to be searched")
    return [each for each in view.partitions if not wanted or each.partition in wanted]


class ClusterSearch:
    """Searches partition after partition; keeps what was found."""

    def __init__(
        self,
        cluster: ClusterClient,
        question: FindRequest,
        wanted: Filter,
        since_ms: int | None,
        until_ms: int | None,
        budget: Budget,
        deadline: float,
    ) -> None:
        self.found: dict[int, list[Message]] = {}  # by partition, in their order
        self._cluster = cluster
        self._question = question
        self._wanted = wanted
        self._since_ms = since_ms
        self._until_ms = until_ms
        # Batches behind it have the time of a clock that was wrong.
        self._ahead_ms = cluster.clock.wall_ms() + AROUND_MS
        self._budget = budget
        self._deadline = deadline
        self._away: dict[str, VqError] = {}  # groups that did not answer: they are asked once
        self._topic_id = ""  # offsets mean nothing in another topic

    async def search(self, placement: PartitionPlacement, start: int) -> SearchedPartition:
        """Search one partition from an offset on.

        Raises:
            UnknownTopic: It was deleted meanwhile.
            PermissionRefused: It is not readable.
        """
        partition = TopicPartition(placement.topic, placement.partition)
        spans = [each for each in placement.spans if each.end is None or start < each.end]
        first = max(start, spans[0].start) if spans else start
        work = Work(partition, first, first)
        try:
            async with asyncio.timeout(max(0.0, self._deadline - self._cluster.clock.monotonic())):
                done = await self._search_spans(work, spans)
                await self._search_damage(work)
        except TimeoutError:
            self._budget.stop("timeout")
            done = False
        return work.result(done=done)

    async def _search_spans(self, work: Work, spans: Sequence[Span]) -> bool:
        """Search one range after the other; return whether nothing is left."""
        topic = work.partition.topic
        await self._cluster.track(topic)
        self._topic_id = self._topic_id or self._cluster.routes.topic(topic).id
        is_late = False
        for span in spans:
            if span.end == span.start:
                continue
            if self._must_stop():
                return False
            if not await self._search_span(work, span, is_late=is_late):
                return False
            if span.end is not None and work.end is not None:
                # The next range is looked at all the same: each group has clocks of its own.
                is_late = is_late or work.end < span.end
        if work.end is None and not work.gaps:
            work.end = work.position
        return True

    async def _search_damage(self, work: Work) -> None:
        """Search once more what was damaged: by now it may be repaired."""
        for pause_s in _REPAIR_PAUSES_S:
            damaged = [each for each in work.gaps if each.kind is GapKind.DAMAGED and each.end]
            late = self._cluster.clock.monotonic() + pause_s >= self._deadline
            if not damaged or late or self._must_stop():
                return
            await asyncio.sleep(pause_s)
            for gap in damaged:
                await self._search_gap(work, gap, gap.end or 0)

    async def _search_gap(self, work: Work, gap: SearchGap, end: int) -> None:
        """Search a range again that was damaged; what it turns out to be replaces the gap."""
        damaged = self._reader(work).damaged()
        damaged.note(gap.start)
        again = Work(work.partition, gap.start, gap.start)
        try:
            await self._search_to(again, end)
        except _RAISED:
            raise
        except VqError:
            return  # it is still a gap
        if any(each.kind is GapKind.DAMAGED for each in again.gaps):
            damaged.note(gap.start)
            await damaged.report(again.gaps[0].start)
        again.add_gap(again.position, end, gap.kind, gap.reason)  # a limit came before
        work.gaps = [*(each for each in work.gaps if each is not gap), *again.gaps]
        work.read_bytes += again.read_bytes
        work.skipped_bytes += again.skipped_bytes
        self.found.setdefault(work.partition.partition, []).sort(key=lambda each: each.offset)

    def _reader(self, work: Work) -> PartitionReader:
        return PartitionReader(self._cluster, work.partition, self._topic_id)

    def _must_stop(self) -> bool:
        if self._cluster.clock.monotonic() >= self._deadline:
            self._budget.stop("timeout")
        return self._budget.stopped is not None

    async def _search_span(self, work: Work, span: Span, *, is_late: bool) -> bool:
        """Search one range, from the position of ``work`` on; return whether nothing is left.

        ``is_late``: what precedes it was stored too late.
        """
        before = work.place
        work.position, work.end = max(work.position, span.start), span.end
        away = self._away.get(span.group)
        if away is not None:
            work.fail(span, away)
            return True
        try:
            end = await self._bounds(work, span)
            if is_late and work.position >= end and work.place.gaps == before.gaps:
                work.go_back(before)  # so was all of this
                return True
            if not await self._search_to(work, end):
                return False
        except _RAISED:
            raise
        except VqError as error:
            if self._must_stop():
                return False
            if isinstance(error, _AWAY):
                self._away[span.group] = error
            work.fail(span, error)
        return True

    async def _search_to(self, work: Work, end: int) -> bool:
        """Search up to an offset of one range; return whether nothing is left.

        Raises:
            VqError: Its broker cannot search it.
        """
        now = self._cluster.clock.monotonic
        behind_since: float | None = None
        while work.position < end:
            if self._must_stop():
                return False
            position = work.position
            try:
                await self.search_some(work, end)
            except PartitionQuarantined as error:
                _go_behind(work, end, error)
            if work.position > position:
                behind_since = None
            elif not self._must_stop():
                behind_since = behind_since if behind_since is not None else now()
                if now() - behind_since >= _BEHIND_S:
                    work.add_gap(
                        position,
                        end,
                        GapKind.UNREACHABLE,
                        f"it was served, and its broker serves offsets up to {position} only now",
                    )
                    work.position = end
                    break
                await asyncio.sleep(_BEHIND_PAUSE_S)
        return True

    async def _bounds(self, work: Work, span: Span) -> int:
        """Move ``work`` to the first offset that is kept and young enough; return the end."""
        since_ms, answer = self._since_ms, None
        if since_ms is not None:
            with contextlib.suppress(*DAMAGE):  # where it is damaged, the beginning is not known
                answer = await self._ask(work, span, _at_time(since_ms))
        if answer is None:
            answer, since_ms = await self._ask(work, span, OffsetsRequest()), None
        end = answer.latest if span.end is None else span.end
        begin, kept = work.position, max(answer.earliest, work.position)
        if since_ms is not None:
            begin = max(begin, answer.offset)
        if begin <= answer.earliest:  # what was deleted may have been young enough
            gone = min(kept, end)
            work.add_gap(
                work.position,
                gone,
                GapKind.DELETED,
                "its messages were deleted: the topic does not keep them",
            )
        if not work.gaps and not work.first_ms and since_ms is not None:
            work.start = max(work.start, min(begin, end))
        if self._until_ms is not None and begin < end:
            with contextlib.suppress(*DAMAGE):
                answer = await self._ask(work, span, _at_time(self._until_ms))
                if not await self._has_ahead(work, span, end):
                    end = min(end, max(answer.offset, begin))
        work.position = min(max(begin, kept), max(end, work.position))
        work.end = end
        return end

    async def _has_ahead(self, work: Work, span: Span, end: int) -> bool:
        """Whether a range has messages whose append times lie ahead of the clock."""
        return (await self._ask(work, span, _at_time(self._ahead_ms))).offset < end

    async def _ask(self, work: Work, span: Span, request: OffsetsRequest) -> OffsetsResponse:
        at = span.start if span.end is None else span.end - 1
        answer, _ = await self._reader(work).request(at, Command.OFFSETS, request)
        assert isinstance(answer, OffsetsResponse)
        return answer

    async def search_some(self, work: Work, end: int) -> None:
        """Have the broker of a range search on from the position."""
        budget, request = self._budget, FindRequest()
        request.CopyFrom(self._question)
        request.offset, request.end_offset = work.position, end
        request.max_messages = min(budget.messages, limits.FIND_MESSAGES_MAX)
        request.max_searched_bytes = min(
            budget.searched_bytes or limits.OFFSET_MAX, limits.OFFSET_MAX
        )
        left_s = max(0.0, self._deadline - self._cluster.clock.monotonic())
        answer, body = await self._reader(work).request(
            work.position, Command.FIND, request, min(_EXTRA_S, left_s)
        )
        assert isinstance(answer, FindResponse)
        searched = answer.read_bytes + answer.skipped_bytes
        work.read_bytes += answer.read_bytes
        work.skipped_bytes += answer.skipped_bytes
        if answer.first_ms:
            work.first_ms = work.first_ms or answer.first_ms
            work.last_ms = answer.last_ms
        if answer.offset > work.position:
            work.add_gap(
                work.position, min(answer.offset, end), GapKind.DELETED, "its messages were deleted"
            )
        for ranges, kind in (
            (answer.damage, GapKind.DAMAGED),
            (answer.unreachable, GapKind.UNREACHABLE),
        ):
            for each in ranges:
                work.add_gap(each.start, each.end, kind, f"{each.reason} ({each.file})")
        found, next_offset = self._take(work, answer, bytes(body))
        self.found.setdefault(work.partition.partition, []).extend(found)
        budget.spend(found, searched)
        work.position = max(work.position, min(next_offset, end))

    def _take(self, work: Work, answer: FindResponse, body: bytes) -> tuple[list[Message], int]:
        """Return the messages in an answer, and where to go on.

        That is before the first message for which there is no room any more: partitions that are
        searched side by side share the bound.
        """
        found: list[Message] = []
        check = self._wanted.check
        ends = boundaries(body, 0)
        if not len(ends) - 1 == len(answer.offsets) == len(answer.append_ms):
            raise CorruptData(
                f"an answer for {work.partition} has {len(ends) - 1} records, "
                f"{len(answer.offsets)} offsets and {len(answer.append_ms)} times"
            )
        for number, (offset, append_ms) in enumerate(
            zip(answer.offsets, answer.append_ms, strict=True)
        ):
            if len(found) >= self._budget.messages:
                return found, offset
            record = body[ends[number] : ends[number + 1]]
            messages: list[Message] = []
            try:
                decode_messages(record, offset, work.partition, messages)
            except CorruptData as error:
                work.add_gap(offset, offset + len(record), GapKind.DAMAGED, str(error))
                continue
            found += [
                each._replace(append_time_ms=append_ms)
                for each in messages
                if self._is_in_time(append_ms, each.id)
                and (check is None or check(each))  # an earlier broker finds more
            ]
        return found, answer.next_offset

    def _is_in_time(self, append_ms: int, message_id: int) -> bool:
        """Whether a message is in the range of times: a broker may not know where that begins.

        An append time ahead of the clock says little; then the time in the id counts, too, roughly.
        """
        if self._is_between(append_ms, 0):
            return True
        return append_ms >= self._ahead_ms and self._is_between(time_ms_of(message_id), AROUND_MS)

    def _is_between(self, time_ms: int, around_ms: int) -> bool:
        since_ms, until_ms = self._since_ms, self._until_ms
        return (since_ms is None or since_ms - around_ms <= time_ms) and (
            until_ms is None or time_ms < until_ms + around_ms
        )


def _at_time(time_ms: int) -> OffsetsRequest:
    return OffsetsRequest(by_time=True, time_ms=time_ms)


def _go_behind(work: Work, end: int, error: PartitionQuarantined) -> None:
    """Go on behind blocks that are lost at the begin of a log.

    Raises:
        PartitionQuarantined: Nothing is served behind the damage.
    """
    behind = error.details.get("earliest")
    if not isinstance(behind, int) or not work.position < behind < end:
        raise error
    work.add_gap(work.position, behind, GapKind.DAMAGED, str(error))
    work.position = behind
