"""Stored bytes of a partition by position, for tools: no group, and nothing is committed.

Loop-bound functions on a ``ClusterClient``. A partition that was moved is read from the broker
groups that hold its ranges, one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.bounds import check_between, check_whole
from vq.client.cluster import ClusterClient
from vq.client.reading.decode import RawDecoder, decode_messages
from vq.client.reading.forward import ONE_ANSWER, READ_BYTES
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.tree.reading import gather_all
from vq.errors import InvalidArgument
from vq.model import Address, Message, TopicPartition
from vq.operations.brokers.brokers import address_of
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import GetRequest, GetResponse
from vq.store.records.record import boundaries

#: What ``read_range`` reads if the caller does not say it.
RANGE_BYTES: Final = READ_BYTES
#: How long a copy is waited for that does not know of more committed bytes.
COPY_WAIT_MS: Final = 1_000
#: Messages that a search for a place counts at most.
COUNT_MAX: Final = 100_000


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
    check_whole("partition", partition)
    if end is not None:
        check_whole("end", end)
    check_between("max_bytes", max_bytes, 1, limits.FETCH_BYTES_MAX, "bytes")
    check_between("start", start, 0, limits.OFFSET_MAX)
    if end is not None and end < start:
        raise InvalidArgument(f"end = {end} is before start = {start}; leave it out to read on")
    reader = PartitionReader(cluster, TopicPartition(topic, partition))

    def step(data: bytes, base: int, position: int) -> tuple[list[bytes], int, bool]:
        """Give the whole records that end before ``end``, together."""
        ends = boundaries(data, base)
        limit = ends[-1] if end is None else max(start, min(end, ends[-1]))
        found = data[: max(each for each in ends if each <= limit) - base]
        return ([found] if len(ends) > 1 else []), ends[-1] - base, False

    read = reader.read(start, RawDecoder(step), size=max_bytes, options=ONE_ANSWER)
    while not (found := await anext(read)) and not read.is_idle:
        pass
    data = found[0] if found else b""
    return StoredRange(topic, partition, start, start + len(data), read.latest, data)


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
        check_between("offset", offset, 0, limits.OFFSET_MAX)
    found = await gather_all(
        PartitionReader(cluster, TopicPartition(topic, number)).boundary(offset)
        for number, offset in wanted.items()
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
    check_whole("partition", partition)
    check_between("max_bytes", max_bytes, 1, limits.FETCH_BYTES_MAX, "bytes")
    check_between("start", start, 0, limits.OFFSET_MAX)
    request = GetRequest(offset=start, max_bytes=max_bytes)
    if node is None:
        answer, body = await PartitionReader(cluster, TopicPartition(topic, partition)).get(request)
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
