"""What recovery wants to know of the bytes of a block, and searching for batches behind damage.

In here: what the bytes hold. Not in here: what is done about it (``recovery``). Bytes are read with
``pread``, so that a medium error is an ``OSError`` here and no signal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from vq.errors import CorruptData
from vq.limits import MIB
from vq.store.disk.disk import File
from vq.store.records.batches import Order, read_batches
from vq.store.records.format import (
    CONTROL_BYTES,
    CONTROL_MARK,
    CONTROL_MARK_AT,
    BatchHeader,
    decode_control,
)
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.producers import ProducerTable

CHUNK_BYTES: Final = 1 * MIB
_ZEROS: Final = bytes(64 * 1024)


@dataclass(slots=True)
class LogFacts(Order):
    """What the batches seen so far add up to; ``verify`` carries it from block to block."""

    messages: int = 0
    batches: int = 0
    verified_bytes: int = 0
    producers: ProducerTable = field(default_factory=ProducerTable)

    def add(self, batches: list[BatchHeader]) -> None:
        """Add up batches that were taken (``Order.take``)."""
        self.producers.record_all(batches)
        self.messages += sum(header.record_count for header in batches)
        self.batches += len(batches)
        self.verified_bytes += batches[-1].end_offset - batches[0].start_offset


def verify(
    file: File, block_start: int, offset: int, end: int, facts: LogFacts, index: OffsetIndex
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
    add = index.maybe_add
    messages = 0  # of the index's block
    if index.messages_before >= 0:
        messages = facts.messages - index.messages_before
    while offset < end:
        try:
            _, found = read_batches(file.pread, block_start, offset, CHUNK_BYTES, end, facts)
        except CorruptData:
            break
        facts.add(found)
        for header in found:
            add(header.start_offset, messages, header.append_time_ms)
            messages += header.record_count
        offset = found[-1].end_offset
    return offset


def pass_damage(
    file: File, block_start: int, x: int, end: int, facts: LogFacts, index: OffsetIndex
) -> int:
    """Go on verifying behind damaged batches; return the first byte that is no known batch.

    Only a batch whose control record is whole counts, and that a later one says was flushed: so the
    end of a log that was cut off in the middle of a write does not.

    Args:
        file, block_start, end, facts, index: As of ``verify``.
        x: What that returned.
    """
    synced = -1
    while x + CONTROL_BYTES <= end:
        header = next(_controls(file.pread(x - block_start, CONTROL_BYTES), x), None)
        if header is None or header.end_offset > end:
            break
        if synced < 0:
            synced = look_behind(file, block_start, x, end, x).synced_offset or 0
        if header.end_offset > synced:
            break
        index.maybe_add(x, facts.messages - index.messages_before, header.append_time_ms)
        facts.add([header])
        x = verify(file, block_start, header.end_offset, end, facts, index)
    return x


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
