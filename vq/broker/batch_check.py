"""Is the body of a PUT what its header says? Plain values in, an error out; no I/O.

The CRC over the whole body is always checked. Whether the body is whole records, as many as
announced and none too large, would be work per message, which a broker that moves opaque batches
must not do. So records are walked only where that is cheap or where nothing less tells:

- batches of few records (``WALK_RECORDS_MAX``): a careless client in another language mostly sends
  these, and the walk costs less than the CRC of the frame around them;
- batches so large that a record beyond the topic's ``max_message_bytes`` could hide in them;
- everything, with ``BrokerConfig.verify_records``.

Otherwise the first record is checked, and that the body can hold so many. What passes unseen
damages only what the same producer wrote: batches lie between CONTROL records that carry their own
length, so recovery and readers of other batches are not led astray, and a consumer reports the
record that cannot be parsed.
"""

import struct
from typing import Final

import google_crc32c

from vq import limits
from vq.errors import BadChecksum, BatchTooLarge, InvalidRequest, MessageTooLarge
from vq.store.format import FLAG_CONTROL, FLAG_PROPERTIES, FLAG_TAG, RECORD_HEADER_BYTES

WALK_RECORDS_MAX: Final = 32

_LENGTH_AND_FLAG: Final = struct.Struct(
    ">"
    "I"  # length
    "12x"  # checksum, id
    "I"  # flag
)
_LENGTH: Final = struct.Struct(">I")


def check_batch(
    body: bytes,
    *,
    record_count: int,
    crc: int,
    max_message_bytes: int,
    verify_records: bool = False,
) -> None:
    """Return if ``body`` may be appended.

    Raises:
        InvalidRequest: It is empty, or not ``record_count`` whole records, or holds a control
            record.
        BatchTooLarge: It has more bytes or records than a batch may have.
        BadChecksum: Its CRC-32C is not ``crc``.
        MessageTooLarge: A record's payload has more than ``max_message_bytes``.
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
    found: int = google_crc32c.value(body)
    if found != crc:
        raise BadChecksum(f"CRC-32C of the body is {found:#010x}, the header says {crc:#010x}")
    if (
        verify_records
        or record_count <= WALK_RECORDS_MAX
        or size - record_count * RECORD_HEADER_BYTES > max_message_bytes
    ):
        walk_records(body, record_count, max_message_bytes)
    else:
        check_record(body, 0, max_message_bytes)


def walk_records(body: bytes, record_count: int, max_message_bytes: int) -> None:
    """Return if ``body`` is exactly ``record_count`` records; raises as ``check_batch``."""
    size = len(body)
    unpack = _LENGTH_AND_FLAG.unpack_from
    position = 0
    seen = 0
    while size - position >= RECORD_HEADER_BYTES:
        length, flag = unpack(body, position)
        if length > max_message_bytes or flag & FLAG_CONTROL:
            check_record(body, position, max_message_bytes)
        position += RECORD_HEADER_BYTES + length
        seen += 1
    if position != size or seen != record_count:
        raise InvalidRequest(
            f"the body is not {record_count} whole records: {seen} were found, the last one "
            f"ends at byte {position} of {size}"
        )


def check_record(body: bytes, position: int, max_message_bytes: int) -> None:
    """Check the record at ``position``, which has a whole header; raises as ``check_batch``."""
    length, flag = _LENGTH_AND_FLAG.unpack_from(body, position)
    start = position + RECORD_HEADER_BYTES
    end = start + length
    if end > len(body):
        raise InvalidRequest(
            f"the record at byte {position} ends at {end}, the body at {len(body)}"
        )
    if flag & FLAG_CONTROL:
        raise InvalidRequest(
            f"the record at byte {position} is a control record; only logs have them"
        )
    for bit in (FLAG_TAG, FLAG_PROPERTIES):
        if flag & bit:
            if end - start < _LENGTH.size:
                raise InvalidRequest(f"the record at byte {position} is cut off inside its fields")
            start += _LENGTH.size + _LENGTH.unpack_from(body, start)[0]
    if start > end:
        raise InvalidRequest(f"the record at byte {position} is cut off inside its fields")
    if end - start > max_message_bytes:
        raise MessageTooLarge(
            f"payload of {end - start} bytes; this topic takes at most {max_message_bytes}",
            details={"max_message_bytes": max_message_bytes},
        )
