"""A range of a partition as columns, read ahead, verified, and bounded in memory.

Loop-bound. The bytes come from the broker groups that hold the range, one after the other. Archived
blocks are read by their brokers, or directly: then a broker says before each part where it lies,
and so that it may be read. No group is needed, and nothing is committed.
"""

import asyncio
import contextlib
from bisect import bisect_left
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, replace
from typing import Final, Literal

from vq import limits
from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ReadFrom
from vq.client.kinds import check_whole
from vq.client.zips import Zips
from vq.errors import (
    ConnectionCut,
    CorruptData,
    InvalidArgument,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionQuarantined,
    TimedOut,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import TopicPartition, check_timeout, choice_of
from vq.operations.messages.stored import Source
from vq.remoting.wire_pb2 import GetRequest, GetResponse
from vq.store.archive.zipped_block import WantedBlock
from vq.store.records.columns import ALL, COLUMNS, Selection, Table, decode_columns
from vq.store.records.record import boundaries, bytes_needed
from vq.tasks import begin_task

__all__ = ["FETCH_BYTES", "TIMEOUT_S", "StoredColumns", "read_columns"]

logger = get_logger(__name__)
#: Bytes of one request: large enough that a request costs little beside them.
FETCH_BYTES: Final = 4 * limits.MIB
TIMEOUT_S: Final = 60.0
#: Less cannot hold any record.
_FETCH_BYTES_MIN: Final = limits.KIB
_AGAIN: Final = Backoff(first_s=0.1, most_s=2.0)
#: A master that has just begun to lead may not say yet that readers may have the last bytes.
_WAIT_S: Final = 1.0


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


async def read_columns(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    columns: Collection[str] = COLUMNS,
    selection: Selection = ALL,
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
    check_whole("max_bytes", max_bytes)
    if not _FETCH_BYTES_MIN <= max_bytes <= limits.FETCH_BYTES_MAX:
        raise InvalidArgument(
            f"max_bytes = {max_bytes} is outside [{_FETCH_BYTES_MIN}, {limits.FETCH_BYTES_MAX}]"
        )
    if not 0 <= start <= end:
        raise InvalidArgument(f"[{start}, {end}) is not a range of offsets")
    end = min(end, max(start, selection.high))
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise InvalidArgument(f"columns {unknown} are unknown; known: {', '.join(COLUMNS)}")
    wanted = replace(selection, low=max(start, selection.low), high=end)
    nodes = choice_of(ReadFrom, "read_from", read_from)
    if nodes is ReadFrom.NEAREST:
        raise InvalidArgument("read_from = 'nearest' needs a consumer's rack; give master or any")
    source = Source(cluster, TopicPartition(topic, partition), topic_id, nodes)
    zips = cluster.zips if archives_directly else None
    ahead = _Ahead(source, zips, start, end, max_bytes, check_timeout(timeout))
    try:
        async for each in _decoded(ahead, columns, wanted):
            yield each
    finally:
        await ahead.stop()


async def _decoded(
    ahead: "_Ahead", columns: Collection[str], wanted: Selection
) -> AsyncGenerator[StoredColumns, None]:
    damaged = ahead.damaged
    rest = b""
    while ahead.at - len(rest) < ahead.end:
        try:
            answer, body = await ahead.next()
        except PartitionQuarantined as error:
            if not damaged.reads:
                raise
            await damaged.again(ahead.at, error)
            continue
        data = rest + body if rest else body
        base = answer.offset - len(rest)
        position, more = 0, True
        try:
            while more:
                table = Table(columns)
                here = position
                position, more = decode_columns(data, base, table, wanted, start=here)
                if position > here:
                    damaged.over()
                    yield StoredColumns(table, base + here, base + position, answer.high_watermark)
            rest = data[position:]
            _check_end(rest, base + position, answer)
        except CorruptData as error:
            await damaged.again(base + position, error)
            rest = b""
            await ahead.go_to(base + position)
            continue
        if rest:
            ahead.need(bytes_needed(rest) - len(rest))


def _check_end(rest: bytes, offset: int, answer: GetResponse) -> None:
    """Check that a record which goes on can do so: behind it are more bytes.

    Raises:
        CorruptData: There are none.
    """
    if rest and offset + len(rest) == answer.high_watermark:
        raise CorruptData(
            f"the record at offset {offset} claims to go on beyond the end of what is stored",
            details={"offset": offset},
        )


class _Ahead:
    """The answers of one range, in order; the next one is asked for while one is handled.

    Args:
        source: The partition.
        zips: Reads archives; None: their brokers do.
        start, end: The range.
        max_bytes: Of one answer.
        timeout_s: How long a broker is asked again while it is away.

    Attributes:
        source: The partition.
        at: The offset behind the answer that ``next`` returned last.
        end: Where the range ends.
        damaged: Notes bytes that fail a check.
    """

    def __init__(
        self,
        source: Source,
        zips: Zips | None,
        start: int,
        end: int,
        max_bytes: int,
        timeout_s: float,
    ) -> None:
        self.source = source
        self.at = start
        self.end = end
        self.damaged = source.damaged()
        self._size = max_bytes
        self._least = 0
        self._timeout_s = timeout_s
        self._is_first = True
        self._zips = zips
        self._brokers_end = 0  # up to here brokers read archives: the zip cannot be read here
        self._task: asyncio.Task[tuple[GetResponse, bytes]] | None = None

    async def next(self) -> tuple[GetResponse, bytes]:
        """Return the next answer, which is never empty."""
        if self._task is None:
            self._begin(self.at)
        assert self._task is not None
        task, self._task = self._task, None
        answer, body = await task
        self.at = answer.offset + len(body)
        self._least = 0
        if self.at < self.end and not self.damaged.reads:
            self._begin(self.at)
        return answer, body

    def need(self, size: int) -> None:
        """Have the next answer bring at least so many bytes: a record goes on there."""
        if self._task is None:
            self._least = size

    async def go_to(self, offset: int) -> None:
        """Go on at an offset whose bytes failed a check."""
        await self.stop()
        self.at = offset

    async def stop(self) -> None:
        """Give up what was asked for."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, VqError):
                await task

    def _begin(self, offset: int) -> None:
        self._task = begin_task(self._get(offset))

    async def _get(self, offset: int) -> tuple[GetResponse, bytes]:
        """Ask until there are bytes, or until the time is up.

        Raises:
            VqError: The last error, or that there is nothing.
        """
        clock = self.source.clock
        deadline = clock.monotonic() + self._timeout_s
        tries, wait_s = 0, 0.0
        while True:
            size = min(max(self.end - offset, _FETCH_BYTES_MIN), self._size)
            size = min(max(size, self._least), limits.FETCH_BYTES_MAX)
            directly = (
                self._zips is not None and not self.damaged.reads and offset >= self._brokers_end
            )
            request = GetRequest(
                offset=offset,
                max_bytes=size,
                validate=self._is_first or self.damaged.reads > 0,
                archives=directly,
            )
            late = clock.monotonic() >= deadline
            try:
                answer, body = await self.source.get(request, wait_s, damaged=self.damaged)
                if answer.archive_url:
                    found = await self._read_zip(answer, size)
                    if found is None:
                        self._brokers_end = max(answer.archive_end, offset + 1)
                        continue
                    answer.offset, body = found
                    if not body:
                        return answer, body
                if body:
                    self._is_first = False
                    return answer, body
                if late:
                    raise OffsetOutOfRange(
                        f"{self.source.partition} ends at {answer.high_watermark}, before "
                        f"{self.end}: it was cut after an unclean election, or a copy is behind",
                        details={
                            "earliest": answer.log_start_offset,
                            "latest": answer.high_watermark,
                        },
                    )
                wait_s = _WAIT_S
            except OffsetNotBoundary as error:
                following = error.details.get("next")
                if not self._is_first or not isinstance(following, int):
                    raise
                offset = following
                if offset >= self.end:
                    return GetResponse(offset=offset, high_watermark=offset + 1), b""
            except VqError as error:
                passes = error.retriable or error.refresh_routes
                passes = passes or isinstance(error, ConnectionCut | TimedOut)
                if late or not passes or isinstance(error, UnknownTopic):
                    raise
                logger.info("cannot read, trying again", error=error)
                tries += 1
                await asyncio.sleep(_AGAIN.pause_s(tries))

    async def _read_zip(self, answer: GetResponse, size: int) -> tuple[int, bytes] | None:
        """Return the bytes that a broker has told to be in a zip, and where they begin.

        None: they cannot be read here. They begin at the offset that was asked for, or in the first
        answer, like those of a broker, with the record behind it; that may be none.
        """
        assert self._zips is not None
        topic, partition = self.source.partition
        wanted = WantedBlock(
            answer.archive_url,
            answer.archive_bytes,
            topic,
            partition,
            self.source.topic_id,
            answer.archive_start,
            answer.archive_end,
        )
        part = await self._zips.read(wanted, answer.offset, size, self._timeout_s)
        if part is None:
            return None
        start, data = part
        begin: int | None = answer.offset
        if self._is_first:
            begin = _record_from(data, start, answer.offset)
        return None if begin is None else (begin, data[begin - start :] if begin > start else data)


def _record_from(data: bytes, start: int, offset: int) -> int | None:
    """Return where the first record at or behind ``offset`` begins, or the end of ``data``.

    ``data`` begins at ``start``. None: it does not have whole records.
    """
    if offset == start:
        return offset
    try:
        ends = boundaries(data, start)
    except CorruptData:
        return None
    return ends[bisect_left(ends, offset)] if ends[-1] == start + len(data) else None
