"""The intact batches in a run of log bytes, for those who look at the records in them."""

from collections.abc import Callable
from typing import NamedTuple

from vq.errors import CorruptData
from vq.store.records.format import (
    CONTROL_BYTES,
    CONTROL_PAYLOAD_BYTES,
    CONTROL_RECORD,
    CONTROL_VERSION,
    FLAG_CONTROL,
    RECORD_HEADER_BYTES,
    batch_crc,
    decode_control,
    md5,
)

__all__ = ["Batch", "intact_batches", "read_batches"]


class Batch(NamedTuple):
    """One intact batch in a run of log bytes.

    Attributes:
        start: Position of its first byte in the run.
        end: Position behind its last byte.
        append_time_ms: When it was appended.
    """

    start: int
    end: int
    append_time_ms: int


def intact_batches(data: bytes, offset: int) -> list[Batch]:
    """Return the whole batches that ``data`` begins with, up to the first one that is damaged.

    A batch counts if its control record and its CRC hold and it says where it lies.

    Args:
        data: Log bytes that begin with a batch.
        offset: Of their first byte.
    """
    unpack = CONTROL_RECORD.unpack_from
    found: list[Batch] = []
    add = found.append
    start, size = 0, len(data)
    while size - start >= CONTROL_BYTES:
        fields = unpack(data, start)
        length, checksum, record_id, flag, version, attributes = fields[:6]
        end = start + fields[10]
        if flag != FLAG_CONTROL or length != CONTROL_PAYLOAD_BYTES or record_id:
            break
        if version != CONTROL_VERSION or attributes or fields[8] != offset + start:
            break
        if end > size or end - start < CONTROL_BYTES:
            break
        payload = data[start + RECORD_HEADER_BYTES : start + CONTROL_BYTES]
        if md5(payload).digest()[:4] != checksum:
            break
        if batch_crc(data, start, end - start) != fields[16]:
            break
        add(Batch(start, end, fields[12]))
        start = end
    return found


def read_batches(
    read: Callable[[int, int], bytes], block_start: int, offset: int, size: int, end: int
) -> tuple[bytes, list[Batch]]:
    """Read some bytes of a block, or one batch if that is larger; return the intact batches.

    Args:
        read: Reads from a position on so many bytes; ``File.pread``.
        block_start: Offset of the first byte of the block.
        offset: Where a batch begins.
        size: How much to read, >= 88.
        end: Where what may be read ends.

    Returns:
        The bytes from ``offset`` on, and the batches that they begin with; none: it is damaged.

    Raises:
        OSError: The medium cannot deliver them.
    """
    data = read(offset - block_start, min(size, end - offset))
    found = intact_batches(data, offset)
    if not found and len(data) == size < end - offset:
        try:
            header = decode_control(data)
        except CorruptData:
            header = None
        if header is not None and size < header.byte_length <= end - offset:
            data = read(offset - block_start, header.byte_length)
            found = intact_batches(data, offset)
    return data, found
