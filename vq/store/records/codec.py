"""The loops that run once per message: clients make, place and read records, brokers check them.

Each loop exists twice: here in Python, the reference, and in ``_codec.c``, which replaces it where
a C compiler was found at installation. Both have the same arguments and results; a test compares
them. ``record`` handles what is not common: CRC-32C, damage.
"""

import struct
from collections.abc import Callable
from typing import Final

from vq import limits
from vq.errors import CorruptData
from vq.model import Message, SendResult
from vq.store.records.compression import decompress, python_decompress
from vq.store.records.format import (
    CHECKSUM_HEADER,
    CONTROL_PAYLOAD_BYTES,
    COVERED_AT,
    COVERED_HEADER,
    FLAG_COMPRESSION_MASK,
    FLAG_COMPRESSION_SHIFT,
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    SENDABLE_FLAGS_MASK,
    append_time_ms,
    md5,
)
from vq.store.records.record import decode_key, read_properties

try:
    from vq.store.records import _codec
except ImportError:  # nothing compiled it
    _codec = None  # type: ignore[assignment]

#: Whether the compiled loops are in use.
COMPILED = _codec is not None
#: Above this a record's flag says something that is not common.
_COMMON_FLAG_MAX = FLAG_TAG | FLAG_PROPERTIES
assert _COMMON_FLAG_MAX < FLAG_CONTROL

_ID_MAX: Final = 2**63 - 1
#: A record whose flag has one of the second bits has fields before its payload; or, with one of
#: the first, is none that a client may send.
_UNSENDABLE: Final = 0xFFFF_FFFF & ~SENDABLE_FLAGS_MASK
_NOT_PLAIN: Final = _UNSENDABLE | FLAG_TAG | FLAG_PROPERTIES
_CHECKED_FIELDS: Final = struct.Struct(
    ">"
    "I"  # length
    "4x"  # checksum: the reader's to verify
    "Q"  # id
    "I"  # flag
)
_field_length = struct.Struct(">I").unpack_from


def python_encode(
    contents: list[bytes], heads: list[tuple[int, bytes] | None], ids: list[int]
) -> tuple[bytes, list[int]]:
    """Return records back to back, and the size of each.

    Args:
        contents: The payloads.
        heads: Per record its flag and what stands before the payload; None for a plain record.
        ids: Message ids in [0, 2**63).

    Raises:
        ValueError: The lists differ in length.
    """
    parts: list[bytes] = []
    sizes: list[int] = []
    add = parts.append
    add_size = sizes.append
    pack_covered = COVERED_HEADER.pack
    pack = CHECKSUM_HEADER.pack
    digest = md5
    for content, head, message_id in zip(contents, heads, ids, strict=True):
        if head is None:
            covered = pack_covered(message_id, 0)
            body = content
        else:
            flag, before = head
            covered = pack_covered(message_id, flag)
            body = before + content
        size = len(body)
        add(pack(size, digest(covered + body).digest()))  # "4s" keeps the first four
        add(covered)
        add(body)
        add_size(size + RECORD_HEADER_BYTES)
    return b"".join(parts), sizes


def python_places(
    partition: int, offset: int, sizes: list[int], ids: list[int]
) -> list[SendResult]:
    """Return where each record of a batch lies, the first one at ``offset``.

    Example: at 88, sizes 30 and 40 lie at 88 and 118.

    Raises:
        ValueError: The lists differ in length.
    """
    result = SendResult
    new = tuple.__new__  # what SendResult(...) does, without its Python-level wrapper
    found: list[SendResult] = []
    append = found.append
    for size, message_id in zip(sizes, ids, strict=True):
        append(new(result, (partition, offset, message_id)))
        offset += size
    return found


def python_decode_common(
    data: bytes,
    position: int,
    base: int,
    topic: str,
    partition: int,
    tags: dict[bytes, str],
    out: list[Message],
    times: list[int | None] | None = None,
    room: list[int] | None = None,
) -> int:
    """Append the messages from ``position`` on to ``out`` as long as their records are common ones.

    Common is a whole record whose MD5 is right, with or without a tag and properties, and which can
    be decompressed if it is compressed. A short key is read here (see ``record.decode_key``), other
    properties by ``record.read_properties``; the compiled twin does so only with properties that no
    vq has written. Control records between them are skipped if their MD5 is right.

    Args:
        data: Log bytes.
        position: In ``data``, a record boundary.
        base: Offset of the first byte of ``data`` in the partition.
        topic: Put into every message, as ``partition`` is.
        partition: See ``topic``.
        tags: The text of every tag seen so far; kept up.
        out: Receives the messages.
        times: One element, the append time of the batch that ``position`` is in, or None if it is
            not known; kept up. Without it the time of the first batch is not known.
        room: One element, how many bytes may be decompressed; kept up. A compressed record is not
            common from 0 on, or without it; the last content may exceed it.

    Returns:
        The position of the first record that is not common, or the end of the last one.
    """
    unpack = RECORD_HEADER.unpack_from
    digest = md5
    append = out.append
    new = tuple.__new__  # what Message(...) does, without its Python-level wrapper
    message = Message
    header_bytes = RECORD_HEADER_BYTES
    covered_at = COVERED_AT
    common_flag_max = _COMMON_FLAG_MAX
    not_common = ~(_COMMON_FLAG_MAX | (0 if room is None else FLAG_COMPRESSION_MASK))
    offset = base + position
    size = len(data)
    last = size - header_bytes
    appended = None if times is None else times[0]
    while position <= last:
        length, checksum, message_id, flag = unpack(data, position)
        start = position + header_bytes
        end = start + length
        if end > size:
            break
        if flag > common_flag_max and flag & not_common:
            if flag != FLAG_CONTROL or length != CONTROL_PAYLOAD_BYTES or message_id:
                break
            if digest(data[start:end]).digest()[:4] != checksum:
                break
            appended = append_time_ms(data[start:end])
            position = end
            offset = base + end
            continue
        if digest(data[position + covered_at : end]).digest()[:4] != checksum:
            break
        body = data[start:end]
        tag = key = headers = None
        if flag:
            try:
                if flag & FLAG_TAG:
                    at = 4 + int.from_bytes(body[:4], "big")
                    if at > len(body):
                        break
                    encoded = body[4:at]
                    tag = tags.get(encoded)
                    if tag is None:
                        tag = tags[encoded] = encoded.decode()
                    body = body[at:]
                if flag & FLAG_PROPERTIES:
                    at = 4 + int.from_bytes(body[:4], "big")
                    if at > len(body):
                        break
                    key = decode_key(body[4:at])
                    if key is None:
                        found = read_properties(body[4:at])
                        if found is None:
                            break
                        key, headers = found
                    body = body[at:]
                if flag > common_flag_max:
                    if room is None or room[0] <= 0:
                        break
                    kind = (flag & FLAG_COMPRESSION_MASK) >> FLAG_COMPRESSION_SHIFT
                    body = decompress(body, kind)
                    room[0] -= len(body)
            except (UnicodeDecodeError, CorruptData):
                break
        next_offset = base + end
        append(
            new(
                message,
                (
                    topic,
                    body,
                    tag,
                    key,
                    headers,
                    partition,
                    offset,
                    next_offset,
                    message_id,
                    appended,
                    None,
                    None,
                ),
            )
        )
        offset = next_offset
        position = end
    if times is not None:
        times[0] = appended
    return position


def python_intact(data: bytes | memoryview, position: int) -> int:
    """Return where the intact records end that begin at ``position``, a record boundary.

    The walk passes whole control records, and messages with a tag, with properties, or with
    neither. It ends at the first damaged record, or record of another kind.
    """
    unpack = RECORD_HEADER.unpack_from
    size = len(data)
    last = size - RECORD_HEADER_BYTES
    while position <= last:
        length, checksum, record_id, flag = unpack(data, position)
        start = covered = position + RECORD_HEADER_BYTES
        end = start + length
        if flag <= _COMMON_FLAG_MAX:
            covered = position + COVERED_AT
        elif flag != FLAG_CONTROL or length != CONTROL_PAYLOAD_BYTES or record_id:
            break
        if end > size or md5(data[covered:end]).digest()[:4] != checksum:
            break
        position = end
    return position


def python_well_formed(data: bytes, count: int, payload_bytes_max: int) -> tuple[int, int]:
    """Return how many well-formed records stand at the front of ``data``, and where they end.

    At most ``count`` records are looked at. A record is well-formed when it is whole, its id has 63
    bits, its flag is one that clients may send, its tag is UTF-8 and, like its properties, within
    its own bound and inside the record, and its payload has at most ``payload_bytes_max`` bytes.
    Checksums are not verified, properties not parsed, payloads not decompressed.

    Example: two records of 30 and 40 bytes and 5 bytes behind them give ``(2, 70)``.
    """
    unpack = _CHECKED_FIELDS.unpack_from
    not_plain = _NOT_PLAIN
    good_tags: set[bytes] = set()
    size = len(data)
    last = size - RECORD_HEADER_BYTES
    position = found = 0
    while found < count and position <= last:
        length, message_id, flag = unpack(data, position)
        start = position + RECORD_HEADER_BYTES
        end = start + length
        if end > size or message_id > _ID_MAX:
            break
        if flag & not_plain:
            start = _payload_start(data, start, end, flag, good_tags)
            if start < 0:
                break
        if end - start > payload_bytes_max:
            break
        position = end
        found += 1
    return found, position


def _payload_start(data: bytes, start: int, end: int, flag: int, good_tags: set[bytes]) -> int:
    """Return where the payload begins behind tag and properties; -1 if they are not well-formed."""
    if flag & _UNSENDABLE:
        return -1
    if flag & FLAG_TAG:
        if end - start < 4:
            return -1
        (size,) = _field_length(data, start)
        tag_start = start + 4
        start = tag_start + size
        if size > limits.TAG_BYTES_MAX or start > end:
            return -1
        tag = data[tag_start:start]
        if tag not in good_tags:
            try:
                tag.decode()
            except UnicodeDecodeError:
                return -1
            good_tags.add(tag)
    if flag & FLAG_PROPERTIES:
        if end - start < 4:
            return -1
        (size,) = _field_length(data, start)
        start += 4 + size
        if size > limits.STORED_PROPERTIES_BYTES_MAX or start > end:
            return -1
    return start


def _compiled_intact(data: bytes | memoryview, position: int) -> int:
    return _codec.intact(data, position, FLAG_CONTROL, CONTROL_PAYLOAD_BYTES)


def _compiled_well_formed(data: bytes, count: int, payload_bytes_max: int) -> tuple[int, int]:
    return _codec.well_formed(
        data,
        count,
        payload_bytes_max,
        limits.TAG_BYTES_MAX,
        limits.STORED_PROPERTIES_BYTES_MAX,
        SENDABLE_FLAGS_MASK,
    )


def _compiled_places(
    partition: int, offset: int, sizes: list[int], ids: list[int]
) -> list[SendResult]:
    return _codec.places(SendResult, partition, offset, sizes, ids)


def _compiled_decode_common(
    data: bytes,
    position: int,
    base: int,
    topic: str,
    partition: int,
    tags: dict[bytes, str],
    out: list[Message],
    times: list[int | None] | None = None,
    room: list[int] | None = None,
) -> int:
    return _codec.decode_common(
        data,
        position,
        base,
        topic,
        partition,
        Message,
        tags,
        out,
        read_properties,
        FLAG_CONTROL,
        CONTROL_PAYLOAD_BYTES,
        times,
        room,
        python_decompress,  # of what the loop does not decompress itself
        CorruptData,
    )


encode_records: Callable[
    [list[bytes], list[tuple[int, bytes] | None], list[int]], tuple[bytes, list[int]]
] = python_encode if _codec is None else _codec.encode_records
places: Callable[[int, int, list[int], list[int]], list[SendResult]] = (
    python_places if _codec is None else _compiled_places
)
decode_common = python_decode_common if _codec is None else _compiled_decode_common
intact: Callable[[bytes | memoryview, int], int] = (
    python_intact if _codec is None else _compiled_intact
)
well_formed: Callable[[bytes, int, int], tuple[int, int]] = (
    python_well_formed if _codec is None else _compiled_well_formed
)
