"""One partition, read by position: a range forward, the last messages, the offset of a time.

Loop-bound. A partition that was moved is asked for where the offset lies: each range of it has a
broker group, whose master and copies have the bytes, and whose archives they read. The group member
reads ahead with ``consumer.fetcher`` and asks here for places only.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from vq import limits
from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import StartPosition
from vq.client.reading.damage import AGAIN_WAIT_S, Damaged, report_damage
from vq.client.reading.decode import ChunkDecoder, Decoder, RawDecoder
from vq.client.reading.forward import READ_BYTES, ForwardRead, ReadOptions
from vq.client.reading.last_read import LastRead
from vq.client.reading.nodes import Nodes, passes
from vq.client.reading.positions import AtTime
from vq.client.reading.tail import Stored, read_last
from vq.errors import (
    CorruptData,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionQuarantined,
    UnknownTopic,
    VqError,
)
from vq.message_filter import ALL, Filter
from vq.model import OffsetBounds, Span, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    FindRequest,
    GetRequest,
    GetResponse,
    OffsetsRequest,
    OffsetsResponse,
)
from vq.store.records.record import Record, decode_into

#: Pauses of one request that follows a partition to its next broker.
_FOLLOW: Final = Backoff(first_s=0.02, most_s=0.5)
#: So many damaged messages in a row are looked past.
_DAMAGED_MAX: Final = 100
_DEFAULTS: Final = ReadOptions()

S = TypeVar("S", bound=Stored)
T = TypeVar("T")


class PartitionReader:
    """Reads one partition by position, wherever its bytes are.

    It is of the topic that has the name at the first request: offsets mean nothing in another one.

    Args:
        cluster: Where.
        partition: Which.
        topic_id: Of the topic that it must be; "": see above.
        nodes: Which nodes stored bytes are read from; None: masters.
        last_read: Notes the epochs of what is read, so that a log that lost its end is noticed at
            the next read; None: that is not checked.

    Attributes:
        partition: Which.
        topic_id: Of its topic; "": not known before the first request.
        clock: Of the client.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        partition: TopicPartition,
        topic_id: str = "",
        *,
        nodes: Nodes | None = None,
        last_read: LastRead | None = None,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.clock = cluster.clock
        self._cluster = cluster
        self._nodes = nodes or Nodes(cluster)
        self._last_read = last_read

    # Ranges -----------------------------------------------------------------------------------
    def read(
        self,
        start: int,
        decoder: ChunkDecoder[T],
        end: int | None = None,
        *,
        size: int = READ_BYTES,
        wait_s: float = 0.0,
        options: ReadOptions = _DEFAULTS,
    ) -> ForwardRead[T]:
        """Return what reads ``[start, end)`` forward; see there."""
        return ForwardRead(self, decoder, start, end, size=size, wait_s=wait_s, options=options)

    async def last(
        self,
        bounds: OffsetBounds,
        count: int,
        make_decoder: Callable[[], ChunkDecoder[S]],
        keep: Callable[[S], T],
        *,
        size_of: Callable[[S], int] = lambda _: 0,
        size: int = READ_BYTES,
        wanted: Filter = ALL,
    ) -> list[T]:
        """Return what ``keep`` keeps of the last ``count`` messages in ``bounds``, oldest first.

        Fewer if there are no more, or if they would take over ``tail.LAST_BYTES_MAX`` by
        ``size_of``.
        """
        options = ReadOptions(align=True, wanted=wanted)

        def window(start: int, end: int) -> ForwardRead[S]:
            return self.read(start, make_decoder(), end, size=size, options=options)

        return await read_last(window, bounds, count, keep, size_of)

    async def back(self, end: int, count: int, earliest: int) -> int:
        """Return the offset ``count`` messages before ``end``, at least ``earliest``."""
        bounds = OffsetBounds(earliest, end)
        found = await self.last(bounds, count, records_decoder, lambda record: record.offset)
        return found[0] if len(found) == count else earliest

    async def forward(self, start: int, count: int, latest: int) -> int:
        """Return the offset ``count`` messages behind ``start``, at most ``latest``."""
        read = self.read(start, records_decoder(), latest, options=ReadOptions(align=True))
        async for records in read:
            if len(records) >= count:
                return records[count - 1].next_offset
            count -= len(records)
        return latest

    # Places -----------------------------------------------------------------------------------
    async def bounds(self) -> OffsetBounds:
        """Return the earliest and latest offset.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
        """
        await self._find()
        placement = self._cluster.routes.placement(self.partition)
        last = placement.spans[-1]
        at = last.start if last.end is None else last.end - 1
        found = await self._offsets(at, OffsetsRequest())
        earliest = found.earliest
        for span in placement.spans[:-1]:  # the oldest bytes may lie in another group
            if span.end is None or span.end <= span.start:
                continue
            first = await self._offsets(span.start, OffsetsRequest())
            if first.earliest < span.end:  # else all of it was deleted
                earliest = first.earliest
                break
        return OffsetBounds(earliest, found.latest)

    async def place(self, wanted: int | AtTime | StartPosition) -> int:
        """Return the offset of a position; an offset is returned when a read may begin there.

        Raises:
            OffsetOutOfRange, OffsetNotBoundary: See ``MessageConsumer.get``.
            UnknownTopic, UnknownPartition: There is none.
        """
        if isinstance(wanted, AtTime):
            return await self.offset_at_time(wanted.ms)
        if isinstance(wanted, StartPosition):
            found = await self.bounds()
            return found.earliest if wanted is StartPosition.EARLIEST else found.latest
        await self.check(wanted)
        return wanted

    async def offset_at_time(self, time_ms: int) -> int:
        """Return the first batch appended at or after a time; the end if none is that young."""
        await self._find()
        offset = 0
        for span in self._cluster.routes.placement(self.partition).spans:
            if span.end is not None and span.end <= span.start:
                continue
            at = span.start if span.end is None else span.end - 1
            request = OffsetsRequest(by_time=True, time_ms=time_ms)
            offset = (await self._offsets(at, request)).offset
            if span.end is None or offset < span.end:
                break
        return offset

    async def check(self, offset: int) -> None:
        """Return if a read may begin at an offset.

        Raises:
            OffsetOutOfRange, OffsetNotBoundary: It may not.
        """
        await self.check_size(offset)
        await self.get(GetRequest(offset=offset, max_bytes=1, validate=True))

    async def check_size(self, offset: int) -> None:
        """Return if a request has room for an offset.

        Raises:
            OffsetOutOfRange: It has none, so there is no such offset.
        """
        if not 0 <= offset <= limits.OFFSET_MAX:
            earliest, latest = await self.bounds()
            raise OffsetOutOfRange(
                f"offset {offset} of {self.partition} is outside [{earliest}, {latest}]",
                details={"earliest": earliest, "latest": latest},
            )

    async def boundary(self, offset: int) -> int:
        """Return the first place at or behind ``offset`` where a record begins, or the end."""
        try:
            await self.check(offset)
        except OffsetNotBoundary as error:
            following = error.details.get("next")
            if not isinstance(following, int):
                raise
            return following
        return offset

    async def past_damage(self, offset: int) -> int:
        """Return where the first message begins that can be read behind damage at ``offset``.

        That is ``offset`` if the message there can be read, or none is there.

        Raises:
            CorruptData: Too much is damaged there.
            PartitionQuarantined: Nothing is served behind it.
        """
        for _ in range(_DAMAGED_MAX):
            read = self.read(offset, Decoder(self.partition))
            try:
                while not (await anext(read) or read.is_idle):
                    pass
            except (CorruptData, PartitionQuarantined) as error:
                offset = await self.behind(int(error.details.get("offset", offset)), error)
            else:
                return offset
        raise CorruptData(
            f"{self.partition}: more than {_DAMAGED_MAX} messages before offset {offset} cannot be "
            "read; give an offset behind them",
            details={"offset": offset},
        )

    async def behind(self, offset: int, damage: VqError) -> int:
        """Return where a record begins behind a damaged one.

        Raises:
            VqError: A broker does not answer, or knows of no ``damage``.
        """
        try:
            return await self.boundary(offset + 1)
        except VqError:  # the damage hides where records begin; its broker knows its end
            address, _ = self._cluster.master_at(self.partition, offset)
            end = await report_damage(self._cluster, address, self.partition, offset)
            if end is None:
                raise damage from None
            return await self.boundary(end)

    async def going_on(self, offset: int, error: VqError) -> tuple[int, int]:
        """Return where who follows the partition reads on after an error, at ``offset`` or behind.

        Behind what was deleted, cut or is damaged; ``offset`` after any other error.

        Returns:
            That, and the earliest offset if what was before it is deleted; otherwise 0.

        Raises:
            VqError: A broker does not answer.
        """
        if isinstance(error, OffsetOutOfRange):
            earliest, latest = await self.bounds()
            return (max(offset, earliest) if offset < latest else latest), earliest
        if isinstance(error, CorruptData | PartitionQuarantined):
            return await self.behind(int(error.details.get("offset", offset)), error), 0
        return offset, 0

    async def number_at(self, offset: int) -> int | None:
        """Return how many messages the partition had before the one at an offset; None: not known.

        Raises:
            VqError: A broker does not answer, or has no such offset.
        """
        answer = await self._offsets(offset, OffsetsRequest(number=True, number_offset=offset))
        return answer.number if answer.number_known else None

    async def end(self) -> tuple[int, int | None]:
        """Return where the partition ends, and the number of the next message; None: not known.

        Raises:
            VqError: A broker does not answer.
        """
        await self._find()
        last = self._cluster.routes.placement(self.partition).spans[-1]
        at = last.start if last.end is None else last.end - 1
        answer = await self._offsets(at, OffsetsRequest())
        last_read = self._last_read
        known = 0 if last_read is None else last_read.last(self.partition, last.group)
        if last_read is not None and 0 < known == answer.epoch:
            # The master of that epoch has written all from there to the end.
            last_read.note(self.partition, last.group, answer.latest, known)
        return answer.latest, answer.latest_number if answer.latest_number_known else None

    async def offset_at_number(self, number: int) -> int | None:
        """Return where the first message of a number or a higher one begins; else the end.

        None: a broker does not know it.

        Raises:
            VqError: A broker does not answer.
        """
        await self._find()
        spans = self._cluster.routes.placement(self.partition).spans
        offset = 0
        for span, following in zip(spans, [*spans[1:], None], strict=True):
            behind = None if following is None else following.first_number
            is_empty = span.end is not None and span.end <= span.start
            if is_empty or (behind is not None and behind <= number):
                continue
            at = span.start if span.end is None else span.end - 1
            request = OffsetsRequest(by_number=True, at_number=number)
            answer = await self._offsets(at, request)
            if not answer.offset_known:
                return None
            offset = answer.offset
            if span.end is None or offset < span.end:
                break
        return offset

    # Requests ---------------------------------------------------------------------------------
    def damaged(self) -> Damaged:
        """Return what notes bytes that fail a check, and has them read again."""
        return Damaged(self._cluster, self.partition, self._nodes)

    def group_at(self, offset: int) -> str:
        """Return the broker group that has an offset, as last read; "": it is not known."""
        span = self._span_at(offset)
        return "" if span is None else span.group

    async def get(
        self, request: GetRequest, wait_s: float = 0.0, *, damaged: Damaged | None = None
    ) -> tuple[GetResponse, bytes]:
        """Send a GET to a node that holds ``request.offset``; see ``request``.

        ``damaged``: what readings before gave.
        """
        await self._find()
        request.max_wait_ms = int(wait_s * 1000)
        offset, last_read = request.offset, self._last_read
        span = None if last_read is None else self._span_at(offset)
        if last_read is not None and span is not None and span.start < offset:
            # The batch before the start of a span has an epoch of another group.
            request.last_epoch = last_read.epoch(self.partition, span.group, offset)
        answer, body = await self._ask(offset, Command.GET, request, wait_s, damaged)
        assert isinstance(answer, GetResponse)
        if last_read is not None and span is not None:
            last_read.note(self.partition, span.group, answer.next_offset, answer.last_epoch)
        return answer, body

    async def request(
        self,
        offset: int,
        command: int,
        message: GetRequest | OffsetsRequest | FindRequest,
        extra_s: float = 0.0,
    ) -> tuple[object, bytes]:
        """Ask the broker that holds ``offset``, and the next one if it moved.

        Raises:
            UnknownTopic: There is none, or it was deleted, also if another one has its name now.
            UnknownPartition: The topic has no such partition.
        """
        await self._find()
        return await self._ask(offset, command, message, extra_s, None)

    async def _ask(
        self,
        offset: int,
        command: int,
        message: GetRequest | OffsetsRequest | FindRequest,
        extra_s: float,
        damaged: Damaged | None,
    ) -> tuple[object, bytes]:
        """See ``request``.

        ``damaged``: readings before gave bytes that failed a check, if it has any. Then it asks on
        a connection that is used for nothing else, the master and its copies in turn.
        """
        message.topic, message.partition = self.partition
        bad = damaged if damaged is not None and damaged.reads else None
        if bad is not None and isinstance(message, GetRequest):
            extra_s = max(extra_s, AGAIN_WAIT_S)
            message.from_copy, message.max_wait_ms = True, int(extra_s * 1000)
        deadline = self.clock.monotonic() + self._cluster.config.request_timeout_s
        tries = 0
        while True:
            tries += 1
            pause = _FOLLOW.pause_s(tries)
            address = None
            try:
                if bad is not None:
                    address, message.epoch = bad.node(offset, tries)
                elif isinstance(message, GetRequest) and self._nodes.from_copy:
                    address, message.epoch = self._nodes.at(self.partition, offset)
                    message.from_copy = True
                else:
                    address, message.epoch = self._cluster.master_at(self.partition, offset)
                message.topic_id = self._present_id()
                left = max(0.01, deadline - self.clock.monotonic())
                found = await self._cluster.request(
                    address, command, message, timeout=left + extra_s, anew=bad is not None
                )
                if not _says_more(*found) and self._nodes.is_copy(self.partition, offset, address):
                    self._nodes.avoid(address, self.partition)  # it is behind
                    continue
                return found
            except VqError as raised:
                error = raised
                if bad is not None:
                    bad.refused(raised)
                if (bad is not None or self._nodes.from_copy) and address is not None:
                    error = self._nodes.refused(self.partition, offset, address, raised)
                if self.clock.monotonic() + pause >= deadline or not passes(error):
                    raise error from raised.__cause__
                if self._is_beyond():  # by routes that ``_find`` has read again
                    raise
                self._cluster.refresh(self.partition.topic, error)
            await asyncio.sleep(pause)

    async def _find(self) -> None:
        """Learn where the partition is, and of which topic; raises if that is none."""
        if self.partition.topic not in self._cluster.routes.topics:
            await self._cluster.track(self.partition.topic)
        if self._is_beyond():  # the topic may have grown
            await self._cluster.refreshed(self.partition.topic)
        self.topic_id = self.topic_id or self._cluster.routes.topic(self.partition.topic).id

    def _span_at(self, offset: int) -> Span | None:
        view = self._cluster.routes.topics.get(self.partition.topic)
        if view is None or self.partition.partition >= len(view.partitions):
            return None
        return view.partitions[self.partition.partition].span_at(offset)

    def _present_id(self) -> str:
        """Return the id of the topic.

        Raises:
            UnknownTopic: Another one has its name now.
        """
        present = self._cluster.routes.topic(self.partition.topic).id
        if present != self.topic_id:
            raise UnknownTopic(
                f"topic {self.partition.topic!r} was deleted and created again meanwhile: its id "
                f"was {self.topic_id} and is {present}"
            )
        return present

    def _is_beyond(self) -> bool:
        """Whether the topic has no such partition, as far as is known here."""
        view = self._cluster.routes.topics.get(self.partition.topic)
        return view is not None and self.partition.partition >= len(view.partitions)

    async def _offsets(self, at: int, request: OffsetsRequest) -> OffsetsResponse:
        answer, _ = await self.request(at, Command.OFFSETS, request)
        assert isinstance(answer, OffsetsResponse)
        return answer


def records_decoder() -> RawDecoder[Record]:
    """Return a decoder that gives messages verified, and still compressed."""
    return RawDecoder(_records_of)


def _records_of(data: bytes, base: int, position: int) -> tuple[list[Record], int, bool]:
    records: list[Record] = []
    read_to = base + position
    try:
        read_to = decode_into(data[position:] if position else data, base + position, records)
    except CorruptData:
        if not records:
            raise
        return records, records[-1].next_offset - base, True
    return records, read_to - base, False


def _says_more(answer: object, body: bytes) -> bool:
    """Whether there are bytes at an offset that was asked for: here, or in an archive."""
    return bool(body) or (isinstance(answer, GetResponse) and bool(answer.archive_url))
