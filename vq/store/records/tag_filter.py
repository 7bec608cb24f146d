"""Selecting the records with some tags from log bytes, for readers that want no others.

A reader verifies what it gets and cannot verify what was left out. So every record is verified here
before its tag is believed: a flipped bit in a tag would otherwise hide a message from its readers.
"""

from vq.errors import CorruptData
from vq.message_filter import Filter
from vq.store.records.codec import intact
from vq.store.records.format import FLAG_TAG, RECORD_HEADER, RECORD_HEADER_BYTES, RECORD_LENGTH_MAX
from vq.store.records.record import is_intact

__all__ = ["filter_by_tag"]


def filter_by_tag(
    buf: memoryview, base_offset: int, wanted: Filter
) -> tuple[list[memoryview], list[int], int]:
    """Return the records that a filter with tags takes, without copying them.

    Args:
        buf: Log bytes that begin at a record boundary.
        base_offset: Offset of the first byte of ``buf``.
        wanted: What to keep; a record without a tag is never kept.

    Returns:
        Slices of ``buf`` (records that lie side by side share one), the offset of every record
        kept, and where to go on: behind the last whole record, or at a damaged one.

    Raises:
        CorruptData: The first record is damaged.
    """
    tags = wanted.encoded
    data = bytes(buf)  # a slice of it takes half as long as one of a view
    unpack = RECORD_HEADER.unpack_from
    from_bytes = int.from_bytes
    slices: list[memoryview] = []
    offsets: list[int] = []
    run_start = run_end = 0
    position = 0
    size = len(data)
    last = size - RECORD_HEADER_BYTES
    verified = intact(data, 0)
    while position <= last:
        length, _, _, flag = unpack(data, position)
        start = position + RECORD_HEADER_BYTES
        end = start + length
        if end > verified:
            whole = end <= size
            if length > RECORD_LENGTH_MAX or (whole and not is_intact(data[position:end])):
                if position:
                    break  # what lies before it is sound
                raise CorruptData(
                    f"the record at offset {base_offset} with length {length} and flag {flag:#x} "
                    "fails its checksum, or cannot be one",
                    details={"offset": base_offset},
                )
            if not whole:
                break
            verified = intact(data, end)
        if flag & FLAG_TAG:
            tag_end = start + 4 + from_bytes(data[start : start + 4], "big")
            if data[start + 4 : tag_end] in tags and tag_end <= end:
                offsets.append(base_offset + position)
                if position != run_end:
                    if run_end > run_start:
                        slices.append(buf[run_start:run_end])
                    run_start = position
                run_end = end
        position = end
    if run_end > run_start:
        slices.append(buf[run_start:run_end])
    return slices, offsets, base_offset + position
