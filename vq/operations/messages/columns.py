"""A range of a partition as columns, read ahead, verified, and bounded in memory.

Loop-bound. The bytes come from the broker groups that hold the range, one after the other. Archived
blocks are read by their brokers, or directly: then a broker says before each part where it lies,
and so that it may be read. No group is needed, and nothing is committed.
"""

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, replace
from typing import Final, Literal

from vq import limits
from vq.bounds import check_between, check_whole
from vq.client.cluster import ClusterClient
from vq.client.config import ReadFrom
from vq.client.reading.chunk import Chunk, Rest
from vq.client.reading.decode import ChunkDecoder, Decoder, RawDecoder
from vq.client.reading.forward import ReadOptions
from vq.client.reading.nodes import Nodes
from vq.client.reading.partition_reader import PartitionReader
from vq.errors import CorruptData, InvalidArgument
from vq.message_filter import Filter, Where
from vq.model import TopicPartition, check_timeout, choice_of
from vq.store.records.columns import ALL, COLUMNS, Selection, Table, decode_columns

#: Bytes of one request: large enough that a request costs little beside them.
FETCH_BYTES: Final = 4 * limits.MIB
TIMEOUT_S: Final = 60.0
#: Less cannot hold any record.
_FETCH_BYTES_MIN: Final = limits.KIB


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The messages of ``[offset, next_offset)`` that were wanted.

    Attributes:
        table: Their columns.
        offset: Where the first record begins, wanted or not.
        next_offset: Behind the last one: where to read on.
        latest: Where the partition ended when it was asked last.
    """

    table: Table
    offset: int
    next_offset: int
    latest: int


class _FilteredColumns:
    """A ``ChunkDecoder`` of what a filter lets through, which brokers send without the rest."""

    def __init__(
        self,
        partition: TopicPartition,
        wanted: Filter,
        columns: Collection[str],
        selection: Selection,
    ) -> None:
        self._messages = Decoder(partition, wanted=wanted)
        self._columns = columns
        self._selection = selection
        self._at = selection.low

    @property
    def error(self) -> CorruptData | None:
        """See ``ChunkDecoder``."""
        return self._messages.error

    @property
    def has_more(self) -> bool:
        """See ``ChunkDecoder``."""
        return self._messages.has_more

    @property
    def rest(self) -> Rest:
        """See ``ChunkDecoder``."""
        return self._messages.rest

    @property
    def next_offset(self) -> int:
        """See ``ChunkDecoder``."""
        return self._messages.next_offset

    def begin(self, chunk: Chunk) -> None:
        """See ``ChunkDecoder``."""
        self._messages.begin(chunk)

    def more(self) -> list[tuple[Table, int]]:
        """Return a table of the messages of the next step, and where that begins."""
        table, at = Table(self._columns), self._at
        for each in self._messages.more():
            tag = None if each.tag is None else each.tag.encode()
            if self._selection.takes(each.offset, each.id, tag):
                headers = None if each.headers is None else dict(each.headers)
                table.append(each.offset, each.id, tag, each.key, headers, each.content)
        self._at = self.next_offset
        return [(table, at)]

    def start_again(self) -> None:
        """See ``ChunkDecoder``."""
        self._messages.start_again()


async def read_columns(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    columns: Collection[str] = COLUMNS,
    selection: Selection = ALL,
    where: Where | None = None,
    topic_id: str = "",
    read_from: ReadFrom | Literal["master", "any"] = ReadFrom.MASTER,
    archives_directly: bool = False,
    max_bytes: int = FETCH_BYTES,
    timeout: float = TIMEOUT_S,
) -> AsyncGenerator[StoredColumns, None]:
    """Yield the messages that begin in ``[start, end)`` as columns, some at a time.

    For programs that analyse many messages: no Python object is made for one. The next bytes
    are asked for meanwhile. Checksums are verified, and damaged bytes are read again, also from
    copies. Memory: about three times ``max_bytes``, and what is decompressed, 5 MiB at a time.

    Args:
        topic: The partition's topic.
        partition: Its number.
        start: A place inside a message means the start of the next one.
        end: An offset up to the partition's end.
        columns: Of ``vq.columns.COLUMNS``; the others stay None.
        selection: Which messages are wanted; the others are read and left out.
        where: Of these, only messages of which an expression is true. Brokers send no others; it is
            looked at again here, for which a Python object is made of each message.
        topic_id: The topic must be this one; "": the one that has the name at the first read.
        read_from: ``master``, or ``any``: nodes in sync in turn, so that masters have less
            to do.
        archives_directly: Read archives at URLs in this process, with fsspec (the extra
            ``archive``), and so that brokers have less to do. They still say before each part
            that it may be read. What cannot be read here, within 20 s, is asked of the broker;
            a warning says so, once for each place.
        max_bytes: Of one request, 1 KiB to 8 MiB.
        timeout: How long a broker is asked again while it is away, in seconds.

    Raises:
        UnknownTopic, UnknownPartition: There is none; or it was deleted meanwhile, also if
            another one has its name now.
        InvalidArgument: A number is out of range, or a column is unknown.
        OffsetOutOfRange: Some of it is not kept any more; ``details`` have the valid range.
        CorruptData, PartitionQuarantined: Some is damaged; what is before it was yielded.
    """
    for what, number in (("partition", partition), ("start", start), ("end", end)):
        check_whole(what, number)
    check_between("max_bytes", max_bytes, _FETCH_BYTES_MIN, limits.FETCH_BYTES_MAX)
    if not 0 <= start <= end:
        raise InvalidArgument(f"[{start}, {end}) is not a range of offsets")
    end = min(end, max(start, selection.high))
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise InvalidArgument(f"columns {unknown} are unknown; known: {', '.join(COLUMNS)}")
    wanted = replace(selection, low=max(start, selection.low), high=end)
    chosen = choice_of(ReadFrom, "read_from", read_from)
    if chosen is ReadFrom.NEAREST:
        raise InvalidArgument("read_from = 'nearest' needs a consumer's rack; give master or any")
    reader = PartitionReader(
        cluster, TopicPartition(topic, partition), topic_id, nodes=Nodes(cluster, chosen)
    )
    options = ReadOptions(
        align=True,
        ahead=True,
        patience_s=check_timeout(timeout),
        wanted=Filter.of(where),
        zips=cluster.zips if archives_directly else None,
    )

    def step(data: bytes, base: int, position: int) -> tuple[list[tuple[Table, int]], int, bool]:
        table = Table(columns)
        following, more = decode_columns(data, base, table, wanted, start=position)
        found = [(table, base + position)] if following > position else []
        return found, following, more

    decoder: ChunkDecoder[tuple[Table, int]] = RawDecoder(step)
    if where is not None:
        decoder = _FilteredColumns(reader.partition, options.wanted, columns, wanted)
    read = reader.read(start, decoder, end, size=max_bytes, options=options)
    try:
        async for some in read:
            for table, offset in some:
                yield StoredColumns(table, offset, read.next_offset, read.latest)
    finally:
        await read.close()
