"""Stored bytes of a partition by position, for tools: no group, and nothing is committed.

Loop-bound functions on a ``ClusterClient``. A partition that was moved is read from the broker
groups that hold its ranges, one after the other.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.config import ReadFrom
from vq.client.consumer.damage import Damaged, report_damage
from vq.client.consumer.decode import decode_messages
from vq.client.consumer.nodes import Nodes
from vq.client.consumer.reader import Reader
from vq.client.consumer.troubles import Troubles
from vq.client.kinds import check_whole
from vq.coordination.tree.reading import gather_all
from vq.errors import (
    CorruptData,
    InvalidArgument,
    OffsetNotBoundary,
    PartitionQuarantined,
    VqError,
)
from vq.model import Address, Message, TopicPartition
from vq.operations.brokers.brokers import address_of
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import GetRequest, GetResponse
from vq.store.records.record import Record, boundaries, bytes_needed, decode_into

#: What ``read_range`` reads if the caller does not say it.
RANGE_BYTES: Final = 1 * limits.MIB
#: How long a copy is waited for that does not know of more committed bytes.
COPY_WAIT_MS: Final = 1_000
#: Messages that a search for a place counts at most.
COUNT_MAX: Final = 100_000
_OFFSET_MAX: Final = (1 << 64) - 1
#: Bytes of a message, as the first guess of a search backwards.
_GUESS_BYTES: Final = 256
_WINDOW_BYTES_MIN: Final = 64 * limits.KIB
_WINDOW_GROWTH: Final = 4
#: So many damaged messages in a row are looked past.
_DAMAGED_MAX: Final = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredRange:
    """The bytes ``[offset, next_offset)`` of a partition: whole records, as they are stored.

    Attributes:
        topic: The partition's topic.
        partition: Its number.
        offset: Of the first byte.
        next_offset: Behind the last byte: where to read on.
        latest: Where the partition ends now.
        data: The records, control records included. Their checksums were not verified;
            ``messages`` verifies them.
    """

    topic: str
    partition: int
    offset: int
    next_offset: int
    latest: int
    data: bytes

    def messages(self) -> list[Message]:
        """Return the messages of the range, verified and decompressed.

        Raises:
            CorruptData: A record is damaged.
        """
        found: list[Message] = []
        partition = TopicPartition(self.topic, self.partition)
        at, more = 0, True
        while more:
            at, more = decode_messages(self.data, self.offset, partition, found, start=at)
        return found


async def read_range(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    start: int,
    end: int | None = None,
    *,
    max_bytes: int = RANGE_BYTES,
) -> StoredRange:
    """Return the stored bytes of a partition between two offsets, for tools.

    Whole records as they are on disk, control records included; ``messages()`` of the result
    decodes them. Read on at its ``next_offset``; it is empty at the end of the partition. No
    group is needed and none moves.

    Args:
        topic: The partition's topic.
        partition: Its number.
        start: Where a record starts, such as ``bounds(topic)[partition].earliest``.
        end: Return no record that ends behind this offset; None: up to the partition's end.
        max_bytes: At most so many, 1 to 16 MiB; more only if the first record is larger.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument: A number is out of range.
        OffsetOutOfRange, OffsetNotBoundary: No record starts there; ``details`` say where one
            does.
    """
    for what, number in (("partition", partition), ("start", start), ("max_bytes", max_bytes)):
        check_whole(what, number)
    if end is not None:
        check_whole("end", end)
    if not 1 <= max_bytes <= limits.FETCH_BYTES_MAX:
        raise InvalidArgument(
            f"max_bytes = {max_bytes} is outside [1, {limits.FETCH_BYTES_MAX}] bytes"
        )
    if not 0 <= start <= _OFFSET_MAX or (end is not None and end < start):
        raise InvalidArgument(f"[{start}, {end}) is not a range of offsets")
    source = Source(cluster, TopicPartition(topic, partition))
    return await source.read(start, end, max_bytes)


async def boundaries_of(
    cluster: ClusterClient, topic: str, wanted: Mapping[int, int]
) -> dict[int, int]:
    """Return, by partition, the first place at or behind an offset where a message begins.

    The end of a partition is such a place, too.

    Args:
        topic: Its name.
        wanted: By partition an offset that it holds.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        OffsetOutOfRange: An offset is not kept; the valid range is in ``details``.
        PartitionQuarantined: It lies in damage.
    """
    for number, offset in wanted.items():
        check_whole("partition", number)
        check_whole("offset", offset)
        if not 0 <= offset <= _OFFSET_MAX:
            raise InvalidArgument(f"offset {offset} is outside [0, {_OFFSET_MAX}]")
    sources = [Source(cluster, TopicPartition(topic, number)) for number in wanted]
    found = await gather_all(
        each.boundary(offset) for each, offset in zip(sources, wanted.values(), strict=True)
    )
    return dict(zip(wanted, found, strict=True))


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """The bytes ``[offset, next_offset)`` of a partition, as one node has them.

    Attributes:
        topic: The partition's topic.
        partition: Its number.
        offset: Of the first byte.
        latest: Where the partition ends now, as far as the node knows.
        data: The bytes: not verified, and not cut at records.
    """

    topic: str
    partition: int
    offset: int
    latest: int
    data: bytes

    @property
    def next_offset(self) -> int:
        """Behind the last byte: where to read on."""
        return self.offset + len(self.data)


async def read_bytes(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    start: int,
    *,
    max_bytes: int = RANGE_BYTES,
    node: Address | str | None = None,
) -> StoredBytes:
    """Return the stored bytes of a partition as one node has them, for tools that check them.

    They are not verified and not cut at records, and reading them reports no damage.
    ``ContentCheck`` verifies them. Read on at ``next_offset`` of the result; it is empty at the
    end of the partition.

    Args:
        topic: The partition's topic.
        partition: Its number.
        start: An offset; a record need not start there.
        max_bytes: At most so many, 1 to 16 MiB. A node may send fewer: up to the end of a
            block, or of a part of an archive.
        node: Read the copy of the node with this address; None: the master's. A copy that
            knows of nothing more is waited for up to a second: it learns meanwhile what is
            committed.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument: A number is out of range.
        NotMaster: The node does not copy the partition at this moment.
        OffsetOutOfRange: It is before what is kept, or behind the end; ``details`` have both.
        PartitionQuarantined: Bytes are lost there.
        PartitionFailed: The medium does not deliver these bytes, or their archive is damaged.
        Busy: The place of their archive cannot be reached.
    """
    for what, number in (("partition", partition), ("start", start), ("max_bytes", max_bytes)):
        check_whole(what, number)
    if not 1 <= max_bytes <= limits.FETCH_BYTES_MAX:
        raise InvalidArgument(
            f"max_bytes = {max_bytes} is outside [1, {limits.FETCH_BYTES_MAX}] bytes"
        )
    if not 0 <= start <= _OFFSET_MAX:
        raise InvalidArgument(f"offset {start} is outside [0, 2**64)")
    request = GetRequest(offset=start, max_bytes=max_bytes)
    if node is None:
        answer, body = await Source(cluster, TopicPartition(topic, partition)).get(request)
    else:
        await cluster.track(topic)
        cluster.routes.placement(TopicPartition(topic, partition))  # raises with the range
        request.topic, request.partition, request.from_copy = topic, partition, True
        request.max_wait_ms = COPY_WAIT_MS  # a reader that waits has it ask what is committed
        request.topic_id = cluster.routes.topic(topic).id
        wait_s = cluster.config.request_timeout_s + COPY_WAIT_MS / 1000
        answer, body = await cluster.request(address_of(node), Command.GET, request, timeout=wait_s)
        assert isinstance(answer, GetResponse)
    return StoredBytes(topic, partition, start, answer.high_watermark, bytes(body))


class Source:
    """One partition, to be read by position: of the topic that has the name at the first read.

    ``topic_id``: of the topic that it must be; "": see above. ``read_from``: which nodes are asked.

    Attributes:
        partition: Which.
        topic_id: Of its topic; "": not known before the first read.
        clock: Of the client.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        partition: TopicPartition,
        topic_id: str = "",
        read_from: ReadFrom = ReadFrom.MASTER,
    ) -> None:
        self.partition = partition
        self.clock = cluster.clock
        self._cluster = cluster
        nodes = Nodes(cluster, read_from)
        self._reader = Reader(cluster, Troubles("", "", cluster.clock), nodes)
        self.topic_id = topic_id  # offsets mean nothing in another topic

    async def get(
        self, request: GetRequest, wait_s: float = 0.0, *, damaged: Damaged | None = None
    ) -> tuple[GetResponse, bytes]:
        """Send a GET to the broker that holds ``request.offset``; follow a partition that moved.

        ``damaged``: see ``Reader.request``.
        """
        await self._cluster.track(self.partition.topic)
        self._cluster.routes.placement(self.partition)  # raises with the range of partitions
        self.topic_id = self.topic_id or self._cluster.routes.topic(self.partition.topic).id
        request.topic, request.partition = self.partition
        request.max_wait_ms = int(wait_s * 1000)
        offset = request.offset
        answer, body = await self._reader.request(
            self.partition,
            offset,
            Command.GET,
            request,
            wait_s,
            damaged=damaged,
            topic_id=self.topic_id,
        )
        assert isinstance(answer, GetResponse)
        return answer, bytes(body)

    async def boundary(self, offset: int) -> int:
        """Return the first place at or behind ``offset`` where a record begins, or the end."""
        try:
            await self.get(GetRequest(offset=offset, max_bytes=1, validate=True))
        except OffsetNotBoundary as error:
            following = error.details.get("next")
            if not isinstance(following, int):
                raise
            return following
        return offset

    def damaged(self) -> Damaged:
        """Return what notes bytes that fail a check, and has them read again."""
        return self._reader.damaged(self.partition)

    async def read(self, start: int, end: int | None, max_bytes: int) -> StoredRange:
        """Return whole records from ``start`` on; see ``read_range``."""
        return await self._read(start, end, max_bytes, lambda found: found)

    async def _read(
        self, start: int, end: int | None, max_bytes: int, take: Callable[[StoredRange], T]
    ) -> T:
        """Return what ``take`` makes of the whole records from ``start`` on, once it can."""
        damaged = self.damaged()
        while True:
            try:
                return take(await self._read_once(start, end, max_bytes, damaged))
            except PartitionQuarantined as error:
                if not damaged.reads:
                    raise
                await damaged.again(start, error)
            except CorruptData as error:
                await damaged.again(start, error)

    async def _read_once(
        self, start: int, end: int | None, max_bytes: int, damaged: Damaged
    ) -> StoredRange:
        size = max_bytes
        while True:
            request = GetRequest(offset=start, max_bytes=size, validate=True)
            answer, body = await self.get(request, damaged=damaged)
            ends = boundaries(body, start)
            if len(ends) > 1 or not body or size >= limits.FETCH_BYTES_MAX:
                break
            size = min(max(size + 1, bytes_needed(body)), limits.FETCH_BYTES_MAX)
        limit = ends[-1] if end is None else min(end, ends[-1])
        next_offset = max(each for each in ends if each <= max(limit, start))
        data = body[: next_offset - start]
        latest = answer.high_watermark
        return StoredRange(*self.partition, start, next_offset, latest, data)

    async def records(self, start: int, end: int) -> AsyncIterator[list[Record]]:
        """Yield the messages that start in ``[start, end)``, still compressed, some at a time."""
        start = await self.boundary(start)
        end = max(start, end)
        while True:
            records, following = await self._read(start, end, RANGE_BYTES, _records_of)
            if following == start:
                return
            yield records
            if following >= end:
                return
            start = following

    async def past_damage(self, offset: int) -> int:
        """Return where the first message begins that can be read behind damage at ``offset``.

        That is ``offset`` if the message there can be read, or none is there.

        Raises:
            CorruptData: Too much is damaged there.
            PartitionQuarantined: Nothing is served behind it.
        """
        for _ in range(_DAMAGED_MAX):
            try:
                await self._read(offset, None, RANGE_BYTES, _check_first)
            except (CorruptData, PartitionQuarantined) as error:
                offset = await self._behind(int(error.details.get("offset", offset)), error)
            else:
                return offset
        raise CorruptData(
            f"{self.partition}: more than {_DAMAGED_MAX} messages before offset {offset} cannot be "
            "read; give an offset behind them",
            details={"offset": offset},
        )

    async def _behind(self, offset: int, damage: VqError) -> int:
        """Return where a record begins behind a damaged one."""
        try:
            return await self.boundary(offset + 1)
        except VqError:  # the damage hides where records begin; its broker knows its end
            address, _ = self._cluster.master_at(self.partition, offset)
            end = await report_damage(self._cluster, address, self.partition, offset)
            if end is None:
                raise damage from None
            return await self.boundary(end)

    async def back(self, end: int, count: int, earliest: int) -> int:
        """Return the offset ``count`` messages before ``end``, at least ``earliest``.

        It reads about that many messages, and up to four times their bytes.
        """
        window = max(count * _GUESS_BYTES, _WINDOW_BYTES_MIN)
        while True:
            start = max(earliest, end - window)
            last: deque[int] = deque(maxlen=count)
            async for records in self.records(start, end):
                last.extend(record.offset for record in records)
            if len(last) == count:
                return last[0]
            if start == earliest:
                return earliest
            window *= _WINDOW_GROWTH

    async def forward(self, start: int, count: int, latest: int) -> int:
        """Return the offset ``count`` messages behind ``start``, at most ``latest``."""
        async for records in self.records(start, latest):
            if len(records) >= count:
                return records[count - 1].next_offset
            count -= len(records)
        return latest


def _check_first(found: StoredRange) -> None:
    """Check that the first message of a range can be read.

    Raises:
        CorruptData: It cannot.
    """
    messages: list[Message] = []
    try:
        decode_messages(
            found.data, found.offset, TopicPartition(found.topic, found.partition), messages
        )
    except CorruptData:
        if not messages:
            raise


def _records_of(found: StoredRange) -> tuple[list[Record], int]:
    """Return the messages of a range, verified, and where to read on."""
    records: list[Record] = []
    decode_into(found.data, found.offset, records)
    return records, found.next_offset
