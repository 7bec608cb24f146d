"""Verifying the bytes of a block, batch after batch, and searching for batches behind damage.

In here: what the bytes hold. Not in here: what is done about it (``recovery``). Bytes are read with
``pread``, so that a medium error is an ``OSError`` here and no signal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import google_crc32c

from vq.errors import CorruptData
from vq.limits import MIB
from vq.model import ProducerStamp
from vq.store.disk.disk import File, Readable
from vq.store.records.format import (
    BATCH_ON_DISK_BYTES_MAX,
    CONTROL_BYTES,
    CONTROL_MARK,
    CONTROL_MARK_AT,
    CONTROL_PAYLOAD_BYTES,
    CONTROL_RECORD,
    CONTROL_VERSION,
    FLAG_CONTROL,
    RECORD_HEADER_BYTES,
    BatchHeader,
    decode_control,
    md5,
    records_mark,
)
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.producers import ProducerTable, Records

__all__ = [
    "Behind",
    "LogFacts",
    "first_control",
    "is_zero",
    "look_behind",
    "next_control",
    "verify",
]

CHUNK_BYTES: Final = 8 * MIB
_ZEROS: Final = bytes(64 * 1024)
assert CHUNK_BYTES > BATCH_ON_DISK_BYTES_MAX


@dataclass(slots=True)
class LogFacts:
    """What the batches seen so far add up to; ``verify`` carries it from block to block."""

    epoch: int = 0
    append_time_ms: int = 0
    messages: int = 0
    batches: int = 0
    verified_bytes: int = 0
    producers: ProducerTable = field(default_factory=ProducerTable)


def verify(
    file: Readable, block_start: int, offset: int, end: int, facts: LogFacts, index: OffsetIndex
) -> int:
    """Verify batches from ``offset`` on and return the offset of the first byte that is no batch.

    A batch counts if it is whole and ends at or before ``end``, its CRC and its control record's
    checksum hold, it says where it lies, and epoch and append time do not fall.

    Args:
        file: The block.
        block_start: Offset of the block's first byte.
        offset: Where to begin, the start of a batch.
        end: Where the block's file ends, or the next block begins.
        facts: Updated with every good batch.
        index: Updated with every good batch.
    """
    unpack = CONTROL_RECORD.unpack_from
    crc32c = google_crc32c.value
    extend = google_crc32c.extend
    record_producer = facts.producers.record
    add = index.maybe_add
    before = facts.messages - _messages_so_far(index, facts)
    epoch, time, messages = facts.epoch, facts.append_time_ms, facts.messages
    batches = 0
    begin = chunk_start = offset
    chunk = file.pread(offset - block_start, min(CHUNK_BYTES, end - offset))
    while end - offset >= CONTROL_BYTES:
        at = offset - chunk_start
        if len(chunk) - at < BATCH_ON_DISK_BYTES_MAX and chunk_start + len(chunk) < end:
            chunk_start, at = offset, 0
            chunk = file.pread(offset - block_start, min(CHUNK_BYTES, end - offset))
        if len(chunk) - at < CONTROL_BYTES:
            break  # the file is shorter than its size said
        fields = unpack(chunk, at)
        length, checksum, record_id, flag, version, attributes = fields[:6]
        if flag != FLAG_CONTROL or length != CONTROL_PAYLOAD_BYTES or record_id:
            break
        if version != CONTROL_VERSION or attributes or fields[8] != offset:
            break
        size, master_epoch, append_time = fields[10], fields[7], fields[12]
        stop = at + size
        if size < CONTROL_BYTES or stop > len(chunk) or offset + size > end:
            break
        payload = chunk[at + RECORD_HEADER_BYTES : at + CONTROL_BYTES]
        if md5(payload).digest()[:4] != checksum:
            break
        crc = crc32c(chunk[at + CONTROL_BYTES : stop])
        if extend(crc, payload[:-4]) != fields[16]:
            break
        if master_epoch < epoch or append_time < time or fields[9] > offset:
            break
        epoch, time = master_epoch, append_time
        add(offset, messages - before, append_time)
        if fields[13]:
            stamp = ProducerStamp(fields[13], fields[6], fields[14])
            record_producer(stamp, offset, Records(fields[11], records_mark(crc)))
        messages += fields[11]
        batches += 1
        offset += size
    facts.epoch, facts.append_time_ms, facts.messages = epoch, time, messages
    facts.batches += batches
    facts.verified_bytes += offset - begin
    return offset


def _messages_so_far(index: OffsetIndex, facts: LogFacts) -> int:
    """Return how many messages of the index's block are in ``facts`` already."""
    return facts.messages - index.messages_before if index.messages_before >= 0 else 0


def is_zero(file: File, position: int, end: int) -> bool:
    """Whether the file holds nothing but zeros in ``[position, end)``."""
    for chunk in _chunks(file, position, end):
        view = memoryview(chunk)
        for at in range(0, len(chunk), len(_ZEROS)):
            part = view[at : at + len(_ZEROS)]
            if part != _ZEROS[: len(part)]:
                return False
    return True


@dataclass(slots=True)
class Behind:
    """What intact control records at and behind X, the first byte that is no batch, tell.

    Attributes:
        synced_offset: The highest that one *behind* X tells; None: there is none behind it.
        batches: How many there are, the one at X included.
        messages: How many messages they announce.
    """

    synced_offset: int | None = None
    batches: int = 0
    messages: int = 0

    def add(self, other: "Behind") -> None:
        """Take up what was found in another block."""
        if other.synced_offset is not None:
            self.synced_offset = max(self.synced_offset or 0, other.synced_offset)
        self.batches += other.batches
        self.messages += other.messages


def look_behind(file: File, block_start: int, offset: int, end: int, x: int) -> Behind:
    """Return what intact control records in ``[offset, end)`` tell of a log good up to ``x``."""
    found = Behind()
    position = offset - block_start
    keep = b""
    for chunk in _chunks(file, position, end - block_start):
        data = keep + chunk
        for header in _controls(data, block_start + position - len(keep)):
            found.batches += 1
            found.messages += header.record_count
            if header.start_offset > x:
                found.synced_offset = max(found.synced_offset or 0, header.synced_offset)
        keep = data[-(CONTROL_BYTES - 1) :]
        position += len(chunk)
    return found


def next_control(file: File, block_start: int, begin: int, stop: int, end: int) -> int | None:
    """Return the offset of the first intact control record that starts in ``[begin, stop)``.

    It counts if its batch ends at or before ``end``. None: there is none.
    """
    data = file.pread(begin - block_start, min(stop + CONTROL_BYTES, end) - begin)
    for header in _controls(data, begin):
        if header.start_offset < stop and header.end_offset <= end:
            return header.start_offset
    return None


def first_control(data: bytes, offset: int) -> BatchHeader | None:
    """Return the first intact control record in ``data``, whose first byte lies at ``offset``."""
    return next(_controls(data, offset), None)


def _controls(data: bytes, offset: int) -> Iterator[BatchHeader]:
    """Yield the intact control records in ``data``, the first byte of which lies at ``offset``.

    One counts if its checksum holds and its start offset is where it lies: copies of log bytes
    inside messages do not.
    """
    hit = data.find(CONTROL_MARK)
    while hit >= 0:
        at = hit - CONTROL_MARK_AT
        if at >= 0:
            try:
                header = decode_control(data, at)
            except CorruptData:
                header = None
            if header is not None and header.start_offset == offset + at:
                yield header
        hit = data.find(CONTROL_MARK, hit + 1)


def _chunks(file: File, position: int, end: int) -> Iterator[bytes]:
    while position < end:
        chunk = file.pread(position, min(CHUNK_BYTES, end - position))
        if not chunk:
            return
        yield chunk
        position += len(chunk)
