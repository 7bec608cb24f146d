"""Reads by position: messages of one partition, its bounds, and the offset for a time.

Loop-bound. It asks the broker that has the bytes, and follows a partition that moved. A group
member reads ahead with ``fetcher``.
"""

import asyncio

from vq import limits
from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import StartPosition
from vq.client.consumer.damage import Damaged
from vq.client.consumer.decode import Decoder
from vq.client.consumer.fetcher import AGAIN_WAIT_S, Chunk, chunk_of
from vq.client.consumer.nodes import Nodes
from vq.client.consumer.positions import AtTime, Moment, check_moment
from vq.client.consumer.tail import check_count, merge_last, read_last, stored_ms
from vq.client.consumer.troubles import Troubles
from vq.client.kinds import check_whole
from vq.coordination.tree.reading import gather_all
from vq.errors import (
    ConnectionCut,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionQuarantined,
    TimedOut,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import Message, MessageList, OffsetBounds, TopicPartition, check_timeout
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    FindRequest,
    GetRequest,
    GetResponse,
    OffsetsRequest,
    OffsetsResponse,
)
from vq.store.records.record import bytes_needed

logger = get_logger(__name__)

#: If a partition is unknown after pauses up to this one, and fresh routes, it does not exist.
_LOOK_AGAIN_S = 0.1
#: Pauses of one request that follows a partition to its next broker.
_FOLLOW = Backoff(first_s=0.02, most_s=0.5)
#: So many partitions that were read by position are remembered.
_LAST_READ_MAX = 1_024
#: Largest offset on the wire.
_OFFSET_MAX = (1 << 64) - 1


class LastRead:
    """In which epoch the last batch was written that was read of each partition; bounded.

    Epochs never fall along the log of a broker group. So all between two offsets was written in one
    epoch if the batches before both were.
    """

    def __init__(self, partitions_max: int = _LAST_READ_MAX) -> None:
        self._partitions_max = partitions_max
        # Group, epoch, and the first and last offset of which this is known.
        self._known: dict[TopicPartition, tuple[str, int, int, int]] = {}

    def note(self, partition: TopicPartition, group: str, offset: int, epoch: int) -> None:
        """Note the epoch of the batch before ``offset``, on a broker group; 0: not known."""
        known = self._known.pop(partition, None)
        if not epoch:
            return
        if known is None or known[:2] != (group, epoch) or offset < known[2]:
            known = (group, epoch, offset, offset)
        self._known[partition] = (group, epoch, known[2], max(offset, known[3]))
        if len(self._known) > self._partitions_max:
            del self._known[next(iter(self._known))]

    def epoch(self, partition: TopicPartition, group: str, offset: int) -> int:
        """Return the epoch of the batch before ``offset``; 0: not known."""
        known = self._known.get(partition)
        if known is None or known[0] != group or not known[2] <= offset <= known[3]:
            return 0
        return known[1]


class Reader:
    """What one consumer reads by position; bytes that fail a check are counted in ``troubles``.

    ``nodes``: where stored bytes are read from; None: from masters.
    """

    def __init__(
        self, cluster: ClusterClient, troubles: Troubles, nodes: Nodes | None = None
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes or Nodes(cluster)
        self._troubles = troubles
        self._last_read = LastRead()

    async def get(
        self, topic: str, partition: int, offset: int, length: int, timeout: float | None = None
    ) -> MessageList:
        """See ``MessageConsumer.get``."""
        bound = 0.0 if timeout is None else check_timeout(timeout)
        for what, number in (("partition", partition), ("offset", offset), ("length", length)):
            check_whole(what, number)
        if not 1 <= length <= limits.FETCH_BYTES_MAX:
            raise InvalidArgument(f"length {length} is outside [1, {limits.FETCH_BYTES_MAX}] bytes")
        topic_partition = TopicPartition(topic, partition)
        await self._cluster.track(topic)
        # A number that fits no field of a request is checked here.
        if not 0 <= partition < limits.PARTITIONS_PER_TOPIC_MAX:
            self._cluster.routes.placement(topic_partition)  # raises with the range of partitions
        if not 0 <= offset <= _OFFSET_MAX:
            bounds = await self.bounds(topic, partition)
            raise OffsetOutOfRange(
                f"offset {offset} of {topic_partition} is outside "
                f"[{bounds.earliest}, {bounds.latest}]",
                details={"earliest": bounds.earliest, "latest": bounds.latest},
            )
        deadline = self._cluster.clock.monotonic() + bound
        damaged = self.damaged(topic_partition)
        append_time_ms: int | None = None
        while True:
            left = max(0.0, deadline - self._cluster.clock.monotonic())
            wait_s = min(left, limits.LONG_POLL_S_MAX)
            try:
                chunk = await self._fetch(topic_partition, offset, length, wait_s, damaged)
            except PartitionQuarantined as error:
                if not damaged.reads:
                    raise
                await damaged.again(offset, error)
                continue
            decoder = Decoder(topic_partition, append_time_ms)
            messages = decoder.decode(chunk)
            if messages:
                return MessageList(messages, messages[-1].next_offset)
            if decoder.error is not None:
                self._troubles.bad_reads += 1
                await damaged.again(offset, decoder.error)
            elif chunk.body:  # a control record alone, or a record larger than ``length``
                append_time_ms = decoder.append_time_ms
                offset, length = _further(chunk, offset, length)
            elif self._cluster.clock.monotonic() >= deadline:
                return MessageList((), offset)

    def damaged(self, partition: TopicPartition) -> Damaged:
        """Return what notes bytes of a partition that fail a check, and has them read again."""
        return Damaged(self._cluster, partition, self._nodes)

    async def _fetch(
        self, partition: TopicPartition, offset: int, length: int, wait_s: float, damaged: Damaged
    ) -> Chunk:
        """Read once; ``damaged``: what readings before gave."""
        span = self._cluster.routes.placement(partition).span_at(offset)
        # The batch before the start of a span has an epoch of another group.
        group = span.group if span is not None and span.start < offset else ""
        response, body = await self.request(
            partition,
            offset,
            Command.GET,
            GetRequest(
                topic=partition.topic,
                partition=partition.partition,
                offset=offset,
                max_bytes=length,
                max_wait_ms=int(wait_s * 1000),
                validate=True,
                last_epoch=self._last_read.epoch(partition, group, offset),
            ),
            wait_s,
            damaged=damaged,
        )
        assert isinstance(response, GetResponse)
        if span is not None:
            last_epoch = response.last_epoch
            self._last_read.note(partition, span.group, response.next_offset, last_epoch)
        return chunk_of(response, body)

    async def request(
        self,
        partition: TopicPartition,
        offset: int,
        command: int,
        message: GetRequest | OffsetsRequest | FindRequest,
        extra_s: float = 0.0,
        *,
        damaged: Damaged | None = None,
        topic_id: str = "",
    ) -> tuple[object, bytes]:
        """Ask the broker that holds ``offset``, and the next one if it moved.

        ``topic_id``: of the topic that the offset is one of; "": the one that has the name now.
        ``damaged``: readings before gave bytes that failed a check, if it has any. Then it asks on
        a connection that is used for nothing else, the master and its copies in turn.
        """
        bad = damaged if damaged is not None and damaged.reads else None
        if bad is not None and isinstance(message, GetRequest):
            extra_s = max(extra_s, AGAIN_WAIT_S)
            message.from_copy, message.max_wait_ms = True, int(extra_s * 1000)
        deadline = self._cluster.clock.monotonic() + self._cluster.config.request_timeout_s
        tries = 0
        while True:
            tries += 1
            pause = _FOLLOW.pause_s(tries)
            address = None
            try:
                if bad is not None:
                    address, message.epoch = bad.node(offset, tries)
                elif isinstance(message, GetRequest) and self._nodes.from_copy:
                    address, message.epoch = self._nodes.at(partition, offset)
                    message.from_copy = True
                else:
                    address, message.epoch = self._cluster.master_at(partition, offset)
                message.topic_id = self._cluster.routes.topic(partition.topic).id
                if topic_id not in {"", message.topic_id}:
                    raise UnknownTopic(
                        f"topic {partition.topic!r} was deleted and created again meanwhile: its "
                        f"id was {topic_id} and is {message.topic_id}"
                    )
                left = max(0.01, deadline - self._cluster.clock.monotonic())
                found = await self._cluster.request(
                    address, command, message, timeout=left + extra_s, anew=bad is not None
                )
                if not _says_more(*found) and self._nodes.is_copy(partition, offset, address):
                    self._nodes.avoid(address, partition)  # it is behind
                    continue
                return found
            except VqError as raised:
                error = raised
                if (bad is not None or self._nodes.from_copy) and address is not None:
                    error = self._nodes.refused(partition, offset, address, raised)
                late = self._cluster.clock.monotonic() + pause >= deadline
                cut = isinstance(error, ConnectionCut)  # asking twice does no harm
                if late or not (cut or error.retriable or error.refresh_routes):
                    raise error from raised.__cause__
                if pause > _LOOK_AGAIN_S and self._is_beyond(partition):
                    raise
                self._cluster.refresh(partition.topic, error)
            await asyncio.sleep(pause)

    def _is_beyond(self, partition: TopicPartition) -> bool:
        """Whether the topic has no such partition, as far as is known here."""
        view = self._cluster.routes.topics.get(partition.topic)
        return view is not None and partition.partition >= len(view.partitions)

    async def offsets(
        self, partition: TopicPartition, *, time_ms: int | None = None
    ) -> OffsetsResponse:
        """Return the earliest and latest offset of a partition, and the one for a time.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
        """
        await self._cluster.track(partition.topic)
        placement = self._cluster.routes.placement(partition)
        last = placement.spans[-1]
        at = last.start if last.end is None else last.end - 1
        request = OffsetsRequest(topic=partition.topic, partition=partition.partition)
        if time_ms is not None:
            request.by_time, request.time_ms = True, time_ms
        response, _ = await self.request(partition, at, Command.OFFSETS, request)
        assert isinstance(response, OffsetsResponse)
        for span in placement.spans[:-1]:  # the oldest bytes may lie in another group
            if span.end is None or span.end <= span.start:
                continue
            first, _ = await self.request(partition, span.start, Command.OFFSETS, request)
            assert isinstance(first, OffsetsResponse)
            if first.earliest < span.end:  # else all of it was deleted
                response.earliest = first.earliest
                break
        return response

    async def place(self, partition: TopicPartition, wanted: int | AtTime | StartPosition) -> int:
        """Return the offset of a position; an offset is returned when a read may begin there.

        Raises:
            OffsetOutOfRange, OffsetNotBoundary: See ``MessageConsumer.get``.
            UnknownTopic, UnknownPartition: There is none.
        """
        if isinstance(wanted, AtTime):
            return await self._offset_at_time(partition, wanted.ms)
        if isinstance(wanted, StartPosition):
            found = await self.offsets(partition)
            return found.earliest if wanted is StartPosition.EARLIEST else found.latest
        await self.get(partition.topic, partition.partition, wanted, 1)
        return wanted

    async def _offset_at_time(self, partition: TopicPartition, time_ms: int) -> int:
        """Return the first batch appended at or after a time; the end if none is that young."""
        await self._cluster.track(partition.topic)
        offset = 0
        for span in self._cluster.routes.placement(partition).spans:
            if span.end is not None and span.end <= span.start:
                continue
            request = OffsetsRequest(
                topic=partition.topic, partition=partition.partition, by_time=True, time_ms=time_ms
            )
            at = span.start if span.end is None else span.end - 1
            response, _ = await self.request(partition, at, Command.OFFSETS, request)
            assert isinstance(response, OffsetsResponse)
            offset = response.offset
            if span.end is None or offset < span.end:
                break
        return offset

    async def offset_at(self, topic: str, partition: int, moment: Moment) -> int:
        """See ``MessageConsumer.offset_at``."""
        check_whole("partition", partition)
        return await self.place(TopicPartition(topic, partition), check_moment(moment))

    async def offsets_at(self, topic: str, moment: Moment) -> dict[TopicPartition, int]:
        """See ``MessageConsumer.offsets_at``."""
        wanted = check_moment(moment)
        partitions = await self._partitions(topic)
        found = await gather_all(self.place(each, wanted) for each in partitions)
        return dict(zip(partitions, found, strict=True))

    async def last(self, topic: str, count: int, partition: int | None) -> list[Message]:
        """See ``MessageConsumer.get_last``."""
        check_count(count)
        if partition is not None:
            check_whole("partition", partition)
            return await self._last_of(TopicPartition(topic, partition), count)
        partitions = await self._partitions(topic)
        found = await gather_all(self._last_of(each, count) for each in partitions)
        return merge_last(found, count, stored_ms)

    async def _last_of(self, partition: TopicPartition, count: int) -> list[Message]:
        topic, number = partition
        bounds = await self.bounds(topic, number)

        async def get(offset: int, length: int) -> tuple[list[Message], int]:
            messages = await self.get(topic, number, offset, length)
            return messages, messages.next_offset

        return await read_last(get, bounds, count, size_of=lambda message: len(message.content))

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        routes = await self._cluster.track(topic)
        return [TopicPartition(topic, each.partition) for each in routes.partitions(topic)]

    async def bounds(self, topic: str, partition: int) -> OffsetBounds:
        """See ``MessageConsumer.get_bounds``."""
        check_whole("partition", partition)
        found = await self.offsets(TopicPartition(topic, partition))
        return OffsetBounds(found.earliest, found.latest)


def _says_more(answer: object, body: bytes) -> bool:
    """Whether there are bytes at an offset that was asked for: here, or in an archive."""
    return bool(body) or (isinstance(answer, GetResponse) and bool(answer.archive_url))


def _further(chunk: Chunk, offset: int, length: int) -> tuple[int, int]:
    """Return the offset and length to read with when ``chunk`` held no whole message.

    Raises:
        TimedOut: Never in practice: the record would have to be larger than any frame.
    """
    position = 0
    while len(chunk.body) - position >= 20:
        size = bytes_needed(memoryview(chunk.body)[position:])
        if position + size > len(chunk.body):
            if size > limits.FETCH_BYTES_MAX:
                raise TimedOut(f"the record at {offset + position} has {size} bytes")
            return offset + position, max(length, size)
        position += size
    return offset + position, max(length, 64)
