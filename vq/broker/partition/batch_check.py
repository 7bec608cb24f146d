"""Is the body of a PUT what its header says? Plain values in, an error out; no I/O.

The CRC over the whole body is checked, and the structure of every record (``codec.well_formed``): a
record that a reader cannot take apart would stop every consumer of the partition, and only the
sender can be told so. That is one call for the whole body; compiled, it costs a fraction of the
CRC (docs/performance.md has the figures). What is inside a record stays the reader's to judge: its
checksum, what its properties say, what its payload is when decompressed.
"""

import struct
from typing import Final

import google_crc32c

from vq import limits
from vq.errors import BadChecksum, BatchTooLarge, InvalidRequest, MessageTooLarge, VqError
from vq.store.records.codec import well_formed
from vq.store.records.format import (
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    SENDABLE_FLAGS_MASK,
)

_LENGTH: Final = struct.Struct(">I")
_ID_MAX: Final = 2**63 - 1


def check_batch(body: bytes, *, record_count: int, crc: int, max_message_bytes: int) -> None:
    """Return if ``body`` may be appended.

    Raises:
        InvalidRequest: It is empty, or not ``record_count`` well-formed records.
        BatchTooLarge: It has more bytes or records than a batch may have.
        BadChecksum: Its CRC-32C is not ``crc``.
        MessageTooLarge: A record's payload has more than ``max_message_bytes``, or its tag or
            properties more than any may have.
    """
    size = len(body)
    if record_count < 1 or size < record_count * RECORD_HEADER_BYTES:
        raise InvalidRequest(
            f"a body of {size} bytes cannot hold {record_count} records of at least "
            f"{RECORD_HEADER_BYTES} bytes; a batch has at least one"
        )
    if size > limits.BATCH_BYTES_MAX or record_count > limits.BATCH_RECORDS_MAX:
        raise BatchTooLarge(
            f"batch of {record_count} records and {size} bytes; at most "
            f"{limits.BATCH_RECORDS_MAX} records and {limits.BATCH_BYTES_MAX} bytes are allowed"
        )
    found_crc: int = google_crc32c.value(body)
    if found_crc != crc:
        raise BadChecksum(f"CRC-32C of the body is {found_crc:#010x}, the header says {crc:#010x}")
    found, end = well_formed(body, record_count, max_message_bytes)
    if found != record_count or end != size:
        raise _what_is_wrong(body, record_count, found, end, max_message_bytes)


def check_empty(producer_id: int, sequence: int) -> None:
    """Return if a batch without records may be appended: the first one of a producer's epoch.

    It begins the epoch, so that the broker refuses what earlier epochs still send.

    Raises:
        InvalidRequest: It is no such batch.
    """
    if not producer_id or sequence:
        raise InvalidRequest(
            f"a batch without records from producer {producer_id} with sequence {sequence}: only "
            "the first batch of a producer's epoch may have none"
        )


def _what_is_wrong(
    body: bytes, record_count: int, found: int, position: int, max_message_bytes: int
) -> VqError:
    """Return the error for a body of which only ``found`` records, to ``position``, are good."""
    size = len(body)
    if found == record_count:
        return InvalidRequest(
            f"the header announces {record_count} records, which end at byte {position} of "
            f"{size}: more follows"
        )
    if size - position < RECORD_HEADER_BYTES:
        return InvalidRequest(
            f"the header announces {record_count} records, {found} were found: {size - position} "
            f"bytes from byte {position} of {size} on are not a record"
        )
    return what_is_wrong_with_record(body, position, max_message_bytes)


def what_is_wrong_with_record(body: bytes, position: int, max_message_bytes: int) -> VqError:
    """Return the error for the record at ``position``, which has a header and is not well-formed.

    The same rules as ``codec.python_well_formed``, in the same order, each with its own words.
    """
    record = f"the record at byte {position}"
    length, _, message_id, flag = RECORD_HEADER.unpack_from(body, position)
    start = position + RECORD_HEADER_BYTES
    end = start + length
    if end > len(body):
        return InvalidRequest(f"{record} ends at byte {end}, the body at {len(body)}")
    if message_id > _ID_MAX:
        return InvalidRequest(f"{record} has the id {message_id}; an id has 63 bits")
    if flag & FLAG_CONTROL:
        return InvalidRequest(f"{record} is a control record; only brokers write these")
    if flag & ~SENDABLE_FLAGS_MASK:
        return InvalidRequest(
            f"{record} has the flag {flag:#x}; bits {SENDABLE_FLAGS_MASK:#x} may be set"
        )
    for bit, field, bytes_max in (
        (FLAG_TAG, "tag", limits.TAG_BYTES_MAX),
        (FLAG_PROPERTIES, "properties", limits.STORED_PROPERTIES_BYTES_MAX),
    ):
        if not flag & bit:
            continue
        size = _LENGTH.unpack_from(body, start)[0] if end - start >= _LENGTH.size else 0
        if end - start < _LENGTH.size + size:
            return InvalidRequest(f"{record} is cut off inside its {field}")
        start += _LENGTH.size
        if size > bytes_max:
            return MessageTooLarge(
                f"{record} has {field} of {size} bytes; at most {bytes_max} are allowed",
                details={"max_message_bytes": max_message_bytes},
            )
        if bit == FLAG_TAG and not _is_utf8(body[start : start + size]):
            return InvalidRequest(f"{record} has a tag that is not UTF-8")
        start += size
    return MessageTooLarge(
        f"payload of {end - start} bytes; this topic takes at most {max_message_bytes}",
        details={"max_message_bytes": max_message_bytes},
    )


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
