"""Records that no reader can read, in a batch that is what its producer sent.

A broker verifies the CRC of a batch, and not each record: a faulty client can store a record with a
wrong checksum, or one whose properties or compressed payload cannot be read. All nodes have the
same bytes then, so none can repair it. A reader that stops there reports it, and it is looked for.
"""

from bisect import bisect_left

from vq.errors import CorruptData
from vq.store.records.codec import intact
from vq.store.records.compression import decompress
from vq.store.records.format import (
    CONTROL_BYTES,
    FLAG_COMPRESSION_MASK,
    FLAG_COMPRESSION_SHIFT,
    RECORD_HEADER_BYTES,
)
from vq.store.records.record import (
    Record,
    boundaries,
    bytes_needed,
    decode_into,
    decode_properties,
)


def why_unreadable(record: bytes, offset: int) -> str:
    """Return why a whole record cannot be read; "": it can, or is no message."""
    found: list[Record] = []
    try:
        decode_into(record, offset, found)
        for each in found:
            if each.properties is not None:
                decode_properties(each.properties)
            if each.flag & FLAG_COMPRESSION_MASK:
                kind = (each.flag & FLAG_COMPRESSION_MASK) >> FLAG_COMPRESSION_SHIFT
                decompress(each.payload, kind)
    except CorruptData as error:
        return str(error.args[0])
    return ""


def first_unreadable(data: bytes, begin: int, offset: int) -> tuple[int, int, str] | None:
    """Return the first record at or behind ``offset`` that no reader can read, and why.

    It parses only the record that begins there: of the others it verifies the checksums.

    Args:
        data: The intact batch that holds ``offset``.
        begin: Where that starts.
        offset: See above.
    """
    position = CONTROL_BYTES
    while position + RECORD_HEADER_BYTES <= len(data):
        sound = intact(data, position)
        if begin + position <= offset < begin + sound:
            starts = boundaries(data[position:sound], begin + position)
            sound = starts[bisect_left(starts, offset)] - begin
        if sound > position:
            position = sound
            continue
        end = position + bytes_needed(data[position : position + RECORD_HEADER_BYTES])
        why = why_unreadable(data[position:end], begin + position)
        if why and begin + end > offset:
            return begin + position, begin + end, why
        position = end
    return None
