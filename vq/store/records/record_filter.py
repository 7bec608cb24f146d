"""Selecting the records that a filter takes from log bytes, for readers that want no others.

A reader verifies what it gets and cannot verify what was left out. So every record is verified here
before its fields are believed: a flipped bit would otherwise hide a message from its readers.

Tag, key and headers of a record are never compressed, so nothing is decompressed here.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from vq.errors import CorruptData
from vq.message_filter import Filter, Subject
from vq.message_filter.syntax import Expression
from vq.model import Key
from vq.store.properties_pb2 import RecordProperties
from vq.store.records.codec import intact
from vq.store.records.format import (
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_LENGTH_MAX,
)
from vq.store.records.record import is_intact, parsed_key

_NO_HEADERS: Final[Mapping[str, str]] = {}


def takes(wanted: Filter, tag: bytes | None, properties: bytes | None) -> bool:
    """Whether a filter takes a message with these fields."""
    if wanted.expression is not None:
        return _is_true(wanted.expression, tag, properties)
    return not wanted.encoded or tag in wanted.encoded


def _is_true(expression: Expression, tag: bytes | None, properties: bytes | None) -> bool:
    """Whether an expression is true of a message.

    Fields that cannot be parsed count as true: they are no reason to hide a message. Its reader
    meets them, and tells.
    """
    key: Key | None = None
    headers: Mapping[str, str] = _NO_HEADERS
    try:
        text = None if tag is None else tag.decode()
        if properties is not None:
            message = RecordProperties.FromString(properties)
            headers = message.headers
            if expression.reads_key:
                key = parsed_key(message)
    except (UnicodeDecodeError, DecodeError):
        return True
    return expression.test(Subject(text, key, headers)) is True


def is_true_at(expression: Expression, data: bytes, start: int, end: int, flag: int) -> bool:
    """Whether an expression is true of the record whose header ``[start, end)`` is behind."""
    tag = properties = None
    if flag & FLAG_TAG:
        at = start + 4
        start = at + int.from_bytes(data[start:at], "big")
        tag = data[at:start]
    if flag & FLAG_PROPERTIES:
        at = start + 4
        start = at + int.from_bytes(data[start:at], "big")
        properties = data[at:start]
    # What goes on behind the record is as what cannot be parsed.
    return start > end or _is_true(expression, tag, properties)


def filter_records(
    buf: memoryview, base_offset: int, wanted: Filter
) -> tuple[list[memoryview], list[int], int]:
    """Return the records that a filter with tags or an expression takes, without copying them.

    Args:
        buf: Log bytes that begin at a record boundary.
        base_offset: Offset of the first byte of ``buf``.
        wanted: What to keep; by tags, a record without a tag is never kept.

    Returns:
        Slices of ``buf`` (records that lie side by side share one), the offset of every record
        kept, and where to go on: behind the last whole record, or at a damaged one.

    Raises:
        CorruptData: The first record is damaged.
    """
    tags, expression = wanted.encoded, wanted.expression
    data = bytes(buf)  # a slice of it takes half as long as one of a view
    needles: tuple[bytes, ...] = () if expression is None else tuple(expression.needles)
    is_hopeless = bool(needles) and not any(each in data for each in needles)
    unpack = RECORD_HEADER.unpack_from
    from_bytes, find = int.from_bytes, data.find
    slices: list[memoryview] = []
    offsets: list[int] = []
    run_start = run_end = 0
    position = 0
    size = len(data)
    last = size - RECORD_HEADER_BYTES
    verified = intact(data, 0)
    if is_hopeless:
        position = verified
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
            if is_hopeless:
                position = verified
                continue
        if expression is None:
            is_taken = False
            if flag & FLAG_TAG:
                tag_end = start + 4 + from_bytes(data[start : start + 4], "big")
                is_taken = data[start + 4 : tag_end] in tags and tag_end <= end
        elif flag & FLAG_CONTROL:
            is_taken = False
        else:
            for needle in needles:
                if find(needle, start, end) >= 0:
                    break
            else:
                if needles:
                    position = end
                    continue
            is_taken = is_true_at(expression, data, start, end, flag)
        if is_taken:
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
