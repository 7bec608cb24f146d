"""The committed records of one partition, in order, whichever group has them.

What lies on this node is read from its log, what another group has of the partition over the
network. A record that cannot be read may be passed by after some tries, and read again later: it
may be damaged, and repaired; or its producer has sent it so. The others must not wait for it.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from vq import limits
from vq.broker.base.runner import Lane, Runner
from vq.broker.journal.items import Item
from vq.broker.journal.outbox import Outbox
from vq.broker.partition.channel import Channel
from vq.broker.partition.ranges import earliest, end_of_range, holding, range_at
from vq.errors import Busy, CorruptData, OffsetOutOfRange, VqError
from vq.log_lines import get_logger
from vq.store.archive.archived_file import NotInMemory
from vq.store.records.codec import intact
from vq.store.records.format import CONTROL_BYTES, RECORD_HEADER_BYTES
from vq.store.records.record import Record, bytes_needed, decode_into
from vq.store.records.scan import first_control

logger = get_logger(__name__)

#: What is read at a time: to take it apart holds the loop for one or two milliseconds.
READ_BYTES: Final = 64 * limits.KIB
#: Behind a record that cannot be read: in so many bytes the next batch begins, or the log ends.
BATCH_BYTES: Final = limits.BATCH_BYTES_MAX + 2 * CONTROL_BYTES
#: A record that cannot be read is passed by after so many tries.
TRIES: Final = 3


class LogRecords:
    """See the module. Loop-bound.

    Args:
        channel: Of the partition, which this node leads.
        outbox: Reads what another group has.
        runner: Reads what is not in memory.
        passes_by: A record that cannot be read is passed by after some tries; otherwise nothing
            behind it is read before it is repaired.

    Attributes:
        begin: The first offset that is kept.
        position: Where reading goes on.
        unread: The beginnings of ranges that were passed by, each with its end.
        settled: Offsets in these of messages that notes name: they are not read later.
        read_bytes: How much was read.
    """

    def __init__(
        self, channel: Channel, outbox: Outbox, runner: Runner, *, passes_by: bool = True
    ) -> None:
        spans = channel.placement.spans
        self.begin = spans[0].start if spans else earliest(channel)
        self.position = self.begin
        self.unread: dict[int, int] = {}
        self.settled: set[int] = set()
        self.read_bytes = 0
        self._channel = channel
        self._passes_by = passes_by
        self._outbox = outbox
        self._runner = runner
        self._size = READ_BYTES
        self._failed = (-1, 0)  # the record that could not be read last, and how often

    @property
    def has_more(self) -> bool:
        """Whether something is committed that was not read."""
        return self.position < self._channel.read_limit

    @property
    def problem(self) -> str:
        """What was passed by; "": nothing."""
        if not self.unread:
            return ""
        first = min(self.unread)
        return f"{len(self.unread)} range(s) of {self._channel} cannot be read, from {first} on"

    def was_passed(self, offset: int) -> bool:
        """Whether a message lies in a range that was passed by."""
        return any(begin <= offset < end for begin, end in self.unread.items())

    async def next_records(self) -> list[Record]:
        """Return the next records; there may be none, although there are more.

        Raises:
            VqError, OSError: They cannot be read now.
        """
        position = self.position
        try:
            data = await self.bytes_at(position, self._size)
        except OffsetOutOfRange as error:
            earliest = int(error.details.get("earliest", 0))
            if position != self.begin or earliest <= position:
                raise
            self.begin = self.position = earliest  # retention has taken what is before
            return []
        self.read_bytes += len(data)
        records: list[Record] = []
        try:
            end = decode_into(data, position, records)
            if data and end == position and bytes_needed(data) <= self._size:
                raise CorruptData(  # it was asked for as a whole
                    f"the record at offset {position} ends behind its block, or behind the log",
                    details={"offset": position},
                )
        except CorruptData as error:
            end = self._pass_by(error, bytes(data))
        if not data:
            self.position = self._next_range()
        elif end == position:
            self._size = max(self._size, bytes_needed(data))
        else:
            self.position, self._size = end, READ_BYTES
        return records

    def begin_at(self, offset: int) -> None:
        """Leave out what is before a record; before anything was read."""
        self.begin = self.position = max(offset, self.begin)

    async def last_records(self, size: int) -> list[Record]:
        """Return the records in about so many bytes before the end of what is committed.

        Some of what another group of nodes has, or what cannot be read, may be left out.

        Raises:
            VqError, OSError: They cannot be read now.
        """
        channel = self._channel
        end, first = channel.read_limit, max(channel.start_offset, self.begin)
        start = max(end - size, first)
        parts: list[memoryview] = []
        at = start
        while at < end:
            part = await self.bytes_at(at, end - at)
            if not part:
                break
            parts.append(part)
            at += len(part)
        data = b"".join(parts)
        self.read_bytes += len(data)
        begin = start
        if start > first:
            header = first_control(data, start)
            if header is None:
                return []
            begin = header.start_offset
        records: list[Record] = []
        with suppress(CorruptData):
            decode_into(memoryview(data)[begin - start :], begin, records)
        return records

    def _pass_by(self, error: CorruptData, data: bytes) -> int:
        """Return where the record ends that cannot be read; it is tried some times before.

        It may be damaged, and repaired later; or its producer has sent it so. The others must not
        wait for it, and it is read again from time to time.
        """
        at = int(error.details["offset"])
        channel = self._channel
        channel.context.suspect(channel, at)
        before, tries = self._failed
        self._failed = at, tries + 1 if at == before else 1
        if at > self.position:
            return at  # what is before it counts
        self._size = BATCH_BYTES
        if self._failed[1] < TRIES or not self._passes_by:
            raise error
        end = _end_of_damage(data, at)
        logger.error(
            "record cannot be read, going on behind it",
            partition=channel,
            offset=at,
            behind=end,
            error=error,
        )
        self.unread[at] = end
        return end

    async def read_again(self) -> list[Record]:
        """Return what was passed by and can be read now, but for messages that notes name."""
        found: list[Record] = []
        for begin, end in list(self.unread.items()):
            records: list[Record] = []
            with suppress(VqError, OSError):
                if decode_into(await self.bytes_at(begin, end - begin), begin, records) == end:
                    del self.unread[begin]
                    found += [each for each in records if each.offset not in self.settled]
        if not self.unread:
            self.settled.clear()
        return found

    def damaged(self, messages: Sequence[Item], parts: Sequence[bytes]) -> list[Item]:
        """Return the messages whose records are not as their producers sent them."""
        data = b"".join(parts)
        if intact(data, 0) == len(data) == sum(each.length for each in messages):
            return []
        bad = [
            each
            for each, part in zip(messages, parts, strict=True)
            if not (len(part) == each.length and _is_record(part))
        ]
        for each in bad:
            self._channel.context.suspect(self._channel, each.offset)
        return bad

    async def record_at(self, offset: int) -> Record:
        """Return one record.

        Raises:
            VqError, OSError: It cannot be read.
        """
        head = await self.bytes_at(offset, RECORD_HEADER_BYTES)
        records: list[Record] = []
        decode_into(await self.bytes_at(offset, bytes_needed(head)), offset, records)
        if not records:
            raise CorruptData(f"no message begins at offset {offset}", details={"offset": offset})
        return records[0]

    def _next_range(self) -> int:
        """Return where reading goes on behind an earlier range."""
        channel = self._channel
        part = holding(channel, self.position)
        if part is channel:
            raise Busy(f"offset {self.position} of {channel} cannot be read now")
        return max(self.position, range_at(part, end_of_range(part))[1] or channel.start_offset)

    async def bytes_at(self, offset: int, size: int) -> memoryview:
        """Return up to so many bytes from an offset on.

        Raises:
            VqError, OSError: They cannot be read now.
        """
        channel = self._channel
        span = channel.placement.span_at(offset)
        if span is not None and span.group != channel.context.group:
            end = offset + size if span.end is None else min(offset + size, span.end)
            data = await self._outbox.read(channel.partition, span.group, offset, end - offset)
            return memoryview(data)
        part = holding(channel, offset)
        log = part.log
        if log is None:
            raise Busy(f"the log of {self._channel} is not open yet")
        while True:
            try:
                fetch = log.reader.cold(offset, size, part.read_limit)
                if fetch is not None:
                    await self._runner.run(fetch, Lane.READ)
                return log.reader.read(offset, size, part.read_limit)
            except NotInMemory as error:
                await self._runner.run(error.fetch, Lane.READ)


def _is_record(data: bytes) -> bool:
    """Whether data are one whole record, as its producer sent it, of whatever kind."""
    if intact(data, 0) == len(data):
        return True
    records: list[Record] = []
    with suppress(CorruptData):
        return decode_into(data, 0, records) == len(data) and len(records) == 1
    return False


def _end_of_damage(data: bytes, at: int) -> int:
    """Return where to go on behind a damaged record, with which ``data`` begins at offset ``at``.

    Behind it, if its length seems right; else at the next batch, or behind the data: these end
    where a block does, or what is committed, if no batch begins in them.
    """
    with suppress(CorruptData):
        length = bytes_needed(data)
        if length == len(data) or (length < len(data) and intact(data[length:], 0)):
            return at + length
    header = first_control(data, at)
    return at + len(data) if header is None else header.start_offset
