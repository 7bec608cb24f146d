"""A range of one partition, read forward: the only loop that takes stored bytes apart by position.

Loop-bound. In here: asking until there are bytes, the next request ahead, archives that the client
opens by itself, and reading again what failed a check. What is done about damage is in ``damage``,
and whom a request goes to in ``partition_reader``.
"""

import asyncio
import contextlib
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from vq import limits
from vq.backoff import Backoff
from vq.client.reading.chunk import Chunk, chunk_of
from vq.client.reading.decode import ChunkDecoder
from vq.client.reading.nodes import passes
from vq.errors import (
    CorruptData,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionQuarantined,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.message_filter import ALL, Filter
from vq.remoting.wire_pb2 import GetRequest, GetResponse
from vq.store.records.record import boundaries
from vq.tasks import begin_task

if TYPE_CHECKING:
    from vq.client.reading.partition_reader import PartitionReader
    from vq.client.reading.zips import Zips

logger = get_logger(__name__)
#: A master that has just taken over serves less than the one before it, until the nodes in sync
#: told it what they have. So long it is asked again for what a range should have.
BEHIND_S: Final = 15.0
#: Bytes of one request, if the caller does not say it.
READ_BYTES: Final = 1 * limits.MIB
#: Pauses while a broker is away, and how long one is to wait that serves less than it should.
_AGAIN: Final = Backoff(first_s=0.1, most_s=2.0)
_WAIT_S: Final = 1.0
#: The end of a range makes no request smaller.
_SIZE_MIN: Final = limits.KIB

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a range is read.

    Attributes:
        align: It may begin inside of a record; then it begins with the next one.
        ahead: The next request leaves while an answer is taken apart.
        tight: Where a record goes on, only its rest is asked for.
        patience_s: How long a broker is asked again that is away, or serves less than the range.
        wanted: Which messages.
        zips: Reads archives at URLs; None: their brokers do.
    """

    align: bool = False
    ahead: bool = False
    tight: bool = False
    patience_s: float = BEHIND_S
    wanted: Filter = ALL
    zips: "Zips | None" = None


#: For one answer: a broker that is away is asked again within one request only.
ONE_ANSWER: Final = ReadOptions(patience_s=0.0, tight=True)


class ForwardRead(Generic[T]):
    """Yields what a decoder makes of a range, in order; each step may be empty.

    It ends at the end of the range. Damage is read again, and in the end raised; what precedes it
    was yielded. Call ``close`` if it reads ahead.

    Args:
        reader: Of the partition.
        decoder: Takes the bytes apart.
        start: Where the range begins.
        end: Nothing is asked for from here on; the last record may go on behind it. None: there is
            no end, and what is not there yet gives empty steps.
        size: How many bytes a request is for; more if a record needs more.

    Attributes:
        wait_s: How long a broker is to wait for bytes, from now on.
        first: Where the first record begins.
        next_offset: Behind what was yielded: where to read on.
        latest: Where the partition ended, as the last answer told; -1 before that.
        is_idle: The last answer had nothing: there is no more at this moment.
        bad_reads: How often bytes failed a check.
    """

    def __init__(
        self,
        reader: "PartitionReader",
        decoder: ChunkDecoder[T],
        start: int,
        end: int | None,
        *,
        size: int = READ_BYTES,
        wait_s: float = 0.0,
        options: ReadOptions,
    ) -> None:
        self.wait_s = wait_s
        self.first = self.next_offset = start
        self.latest = -1
        self.is_idle = False
        self.bad_reads = 0
        self._reader = reader
        self._decoder = decoder
        self._end = end
        self._bytes = size
        self._options = options
        self._damaged = reader.damaged()
        self._at = start  # behind the last answer
        self._is_first = True  # there was no answer with bytes
        self._least = 0  # bytes that the next answer must bring: a record goes on there
        self._brokers_end = 0  # up to here brokers read archives: the zip cannot be read here
        self._task: asyncio.Task[tuple[Chunk, int]] | None = None

    def __aiter__(self) -> AsyncIterator[Sequence[T]]:
        return self

    async def __anext__(self) -> Sequence[T]:
        """Return what the next step gives.

        Raises:
            CorruptData, PartitionQuarantined: Some is damaged, also on its other nodes.
            OffsetNotBoundary: No record begins at the start.
            OffsetOutOfRange: It is not kept any more, or its brokers served less for long.
            VqError: A broker refuses, or does not answer.
        """
        decoder = self._decoder
        while not decoder.has_more:
            if decoder.error is not None:
                self.bad_reads += 1
                await self._read_again(decoder.error)
            elif self._end is not None and self.next_offset >= self._end:
                raise StopAsyncIteration
            try:
                chunk = await self._next_chunk()
            except PartitionQuarantined as error:
                if not self._damaged.reads:
                    raise
                await self._read_again(error)
            else:
                decoder.begin(chunk)
        found = decoder.more()
        self._note_step()
        return found

    def _note_step(self) -> None:
        decoder = self._decoder
        if decoder.next_offset > self.next_offset:
            self.next_offset = decoder.next_offset
            self._damaged.over()
        if not decoder.has_more and decoder.error is None and self._task is None:
            self._least = decoder.rest.missing

    async def close(self) -> None:
        """Give up what was asked for ahead."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, VqError):
                await task

    async def is_bad_everywhere(self, offset: int) -> bool:
        """Whether each node gave bad bytes for a record, and one has found them so on its disk.

        To be asked after the error of the last step.

        Raises:
            VqError: The nodes are not known now.
        """
        return await self._damaged.report(offset) and self._damaged.is_everywhere

    async def _read_again(self, error: VqError) -> None:
        """Go back to the record that failed a check, after a pause.

        Raises:
            CorruptData: It was read often enough.
        """
        await self._damaged.again(self.next_offset, error)
        await self.close()
        self._decoder.start_again()
        self._at, self._least = self.next_offset, 0

    # Asking -----------------------------------------------------------------------------------
    async def _next_chunk(self) -> Chunk:
        if self._options.ahead:
            task, self._task = self._task or begin_task(self._ask(self._at)), None
            chunk, self.latest = await task
        else:
            chunk, self.latest = await self._ask(self._at)
        self.is_idle = chunk.next_offset == chunk.offset
        self._at = chunk.next_offset
        self._least = 0
        if self._options.ahead and not self._damaged.reads and not self._is_at_end(self._at):
            self._task = begin_task(self._ask(self._at))
        return chunk

    def _is_at_end(self, offset: int) -> bool:
        return self._end is not None and offset >= self._end

    def _size(self, offset: int) -> int:
        if self._least and self._options.tight:
            return min(self._least, limits.FETCH_BYTES_MAX)
        size = self._bytes
        if self._end is not None:
            size = min(size, max(self._end - offset, _SIZE_MIN))
        return min(max(size, self._least), limits.FETCH_BYTES_MAX)

    async def _ask(self, offset: int) -> tuple[Chunk, int]:
        """Ask until there are bytes, or until nothing is an answer; also return the present end.

        Raises:
            VqError: The last error, or that there is nothing.
        """
        clock, options = self._reader.clock, self._options
        deadline = clock.monotonic() + options.patience_s
        tries, wait_s = 0, self.wait_s
        while True:
            size, late = self._size(offset), clock.monotonic() >= deadline
            is_again = self._damaged.reads > 0
            is_begin = self._is_first or (is_again and offset == self.next_offset)
            request = GetRequest(
                offset=offset,
                max_bytes=size,
                tags=options.wanted.tags,
                where=options.wanted.where,
                validate=is_begin,
                archives=options.zips is not None and not is_again and offset >= self._brokers_end,
            )
            try:
                answer, body = await self._reader.get(request, wait_s, damaged=self._damaged)
                if answer.archive_url:
                    found = await self._read_zip(answer, size)
                    if found is None:
                        self._brokers_end = max(answer.archive_end, offset + 1)
                        continue
                    answer.offset, body = found
                chunk = chunk_of(answer, body)
                is_something = chunk.next_offset > offset
                if is_something or self._end is None:
                    self._begin_at(chunk)
                    return chunk, answer.high_watermark
                if late:
                    raise self._served_less(answer)
                wait_s = _WAIT_S
            except OffsetNotBoundary as error:
                following = error.details.get("next")
                if not (self._is_first and options.align and isinstance(following, int)):
                    raise
                offset = following
                if self._is_at_end(offset):
                    chunk = Chunk(offset, offset, b"", None)
                    self._begin_at(chunk)
                    return chunk, self.latest
            except VqError as error:
                if late or not passes(error) or isinstance(error, UnknownTopic):
                    raise
                tries += 1
                logger.warning(
                    "cannot read, trying again", partition=self._reader.partition, error=error
                )
                await asyncio.sleep(_AGAIN.pause_s(tries))

    def _begin_at(self, chunk: Chunk) -> None:
        """Note where the range begins, unless it has begun."""
        if self._is_first:
            self.first = self.next_offset = chunk.offset
            self._is_first = chunk.next_offset == chunk.offset

    def _served_less(self, answer: GetResponse) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self._reader.partition} ends at {answer.high_watermark}, before {self._end}: it was "
            "cut after an unclean election, or a copy is behind",
            details={"earliest": answer.log_start_offset, "latest": answer.high_watermark},
        )

    async def _read_zip(self, answer: GetResponse, size: int) -> tuple[int, bytes] | None:
        """Return the bytes that a broker has told to be in a zip, and where they begin.

        None: they cannot be read here. They begin at the offset that was asked for, or in the first
        answer, like those of a broker, with the record behind it; that may be none.
        """
        reader, options = self._reader, self._options
        assert options.zips is not None
        part = await options.zips.read_told(
            answer, reader.partition, reader.topic_id, size, options.patience_s
        )
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
