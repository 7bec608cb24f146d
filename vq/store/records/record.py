"""The record codec: one stored message to bytes and back.

Producers, the wire, the disk and consumers share these very bytes, so this module is the hot path
of a client: the loops below bind what they call to local names and build no object they can avoid.
``format`` has the layout. Not in here: batches, files and ``compression``.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from vq import limits
from vq.errors import CorruptData, InvalidArgument, MessageTooLarge
from vq.model import Key, TopicPartition
from vq.store import properties_pb2
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CHECKSUM_HEADER,
    CHECKSUM_MD5,
    COMPRESSION_NONE,
    CONTROL_PAYLOAD_BYTES,
    COVERED_AT,
    COVERED_HEADER,
    COVERED_HEADER_BYTES,
    FLAG_CHECKSUM_MASK,
    FLAG_COMPRESSION_SHIFT,
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    KNOWN_FLAGS,
    OFFSET_MAX,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_LENGTH_MAX,
    md5,
)

try:
    from vq.store.records import _codec
except ImportError:  # nothing compiled it
    _codec = None  # type: ignore[assignment]

_unpack = RECORD_HEADER.unpack_from
#: A record header and the word behind it, which is the tag's length if there is a tag.
_unpack_ahead = struct.Struct(RECORD_HEADER.format + "I").unpack_from
assert FLAG_TAG == 1, "decode_into relies on it"


class Record(NamedTuple):
    """One message record as it was read.

    ``payload`` is still compressed when ``flag`` says so: see ``compression``.
    """

    offset: int  # of its first byte in the partition
    next_offset: int  # of the first byte behind it: where reading goes on
    id: int
    flag: int
    tag: bytes | None
    properties: bytes | None
    payload: bytes


def encode_record(
    id: int,
    payload: bytes,
    tag: bytes | None = None,
    properties: bytes | None = None,
    compression: int = COMPRESSION_NONE,
    checksum: int = CHECKSUM_MD5,
) -> bytes:
    """Return the bytes of one record.

    Args:
        id: Message id in [0, 2**63).
        payload: Already compressed when ``compression`` says so.
        tag: UTF-8, at most 255 bytes.
        properties: As ``encode_properties`` returns them, at most 36 KiB.
        compression: One of ``format.COMPRESSION_*``.
        checksum: ``format.CHECKSUM_MD5`` or ``format.CHECKSUM_CRC32C``.

    Raises:
        MessageTooLarge: Payload, tag or properties exceed their bound.
    """
    flag = compression << FLAG_COMPRESSION_SHIFT | checksum
    body = payload
    if properties is not None:
        if len(properties) > limits.STORED_PROPERTIES_BYTES_MAX:
            raise _too_large("properties", len(properties), limits.STORED_PROPERTIES_BYTES_MAX)
        flag |= FLAG_PROPERTIES
        body = len(properties).to_bytes(4, "big") + properties + body
    if tag is not None:
        if len(tag) > limits.TAG_BYTES_MAX:
            raise _too_large("tag", len(tag), limits.TAG_BYTES_MAX)
        flag |= FLAG_TAG
        body = len(tag).to_bytes(4, "big") + tag + body
    if len(payload) > limits.MESSAGE_BYTES_MAX:
        raise _too_large("payload", len(payload), limits.MESSAGE_BYTES_MAX)
    covered = COVERED_HEADER.pack(id, flag) + body
    return CHECKSUM_HEADER.pack(len(body), _checksum(flag, covered)) + covered


def python_decode_into(buf: bytes | memoryview, base_offset: int, out: list[Record]) -> int:
    """Append every whole message record of ``buf`` to ``out``, verified; return where to read on.

    Intact control records are skipped. An incomplete record at the end is left alone: the returned
    offset is that of its first byte. Memory: one copy of ``buf`` unless it is ``bytes``.

    Args:
        buf: Log bytes that begin at a record boundary.
        base_offset: Offset of the first byte of ``buf``.
        out: Receives the records in rising order of offsets.

    Raises:
        CorruptData: A checksum fails, or a header is invalid. ``details["offset"]`` is where;
            ``out`` holds every record before it.
    """
    data = buf if type(buf) is bytes else bytes(buf)
    unpack = _unpack_ahead
    digest = md5
    append = out.append
    new = tuple.__new__
    record = Record
    header = RECORD_HEADER_BYTES
    position = 0
    size = len(data)
    data_ahead = data + b"\0\0\0\0"  # so that a word can be read behind any header
    last = size - header
    while position <= last:
        length, checksum, record_id, flag, tag_length = unpack(data_ahead, position)
        start = position + header
        end = start + length
        if end > size:
            if length > RECORD_LENGTH_MAX:
                raise _corrupt(base_offset + position, f"claims a length of {length} bytes")
            break
        covered = data[position + COVERED_AT : end]
        body = data[start:end]
        offset = base_offset + position
        position = end
        if flag <= 1 and digest(covered).digest()[:4] == checksum:  # nothing but a tag, and MD5
            if not flag:
                append(new(record, (offset, base_offset + end, record_id, 0, None, None, body)))
                continue
            at = 4 + tag_length
            if at <= length:
                tag = body[4:at]
                body = body[at:]
                append(new(record, (offset, base_offset + end, record_id, 1, tag, None, body)))
                continue
        if flag == FLAG_CONTROL and is_intact(data[start - header : end]):
            continue
        append(_decode_body(offset, record_id, flag, checksum, covered))
    return base_offset + position


def _compiled_decode_into(buf: bytes | memoryview, base_offset: int, out: list[Record]) -> int:
    """Do the same; from the first record on that is not common, one that is damaged perhaps."""
    if not 0 <= base_offset <= OFFSET_MAX:  # of a damaged control record: no log has it
        return python_decode_into(buf, base_offset, out)
    data = buf if type(buf) is bytes else bytes(buf)
    position = _codec.decode_records(
        data, base_offset, Record, out, FLAG_CONTROL, CONTROL_PAYLOAD_BYTES
    )
    if len(data) - position < RECORD_HEADER_BYTES:
        return base_offset + position
    return python_decode_into(data[position:], base_offset + position, out)


#: A module that an earlier checkout compiled has no such loop.
decode_into = _compiled_decode_into if hasattr(_codec, "decode_records") else python_decode_into


def decode_records(buf: bytes | memoryview, base_offset: int) -> list[Record]:
    """Return every whole message record of ``buf``; see ``decode_into``, which also tells the end.

    Raises:
        CorruptData: As ``decode_into``.
    """
    out: list[Record] = []
    decode_into(buf, base_offset, out)
    return out


def is_intact(record: bytes) -> bool:
    """Whether one whole record, a message or a control record, is what was written.

    A control record may have any size: later ones mean something that we do not know.
    """
    _, checksum, record_id, flag = _unpack(record)
    if flag == FLAG_CONTROL:
        return not record_id and md5(record[RECORD_HEADER_BYTES:]).digest()[:4] == checksum
    return flag in KNOWN_FLAGS and _checksum(flag, record[COVERED_AT:]) == checksum


def bytes_needed(buf: bytes | memoryview) -> int:
    """Return how many bytes the record at the start of ``buf`` takes as a whole.

    20 (the size of a header) when not even the header is there. A reader whose answer held no
    whole record asks again with at least this.

    Raises:
        CorruptData: The length is out of range.
    """
    if len(buf) < RECORD_HEADER_BYTES:
        return RECORD_HEADER_BYTES
    length: int = _unpack(buf, 0)[0]
    if length > RECORD_LENGTH_MAX:
        raise _corrupt(0, f"claims a length of {length} bytes")
    return RECORD_HEADER_BYTES + length


def boundaries(buf: bytes | memoryview, base_offset: int) -> list[int]:
    """Return the offset of every whole record of ``buf``, control records too, and of their end.

    Example: a control record (88 bytes) at 0 and one message record of 30 bytes give
    ``[0, 88, 118]``. Checksums are not verified.

    Raises:
        CorruptData: A length is out of range.
    """
    unpack = _unpack
    found = [base_offset]
    position = 0
    size = len(buf)
    last = size - RECORD_HEADER_BYTES
    while position <= last:
        length = unpack(buf, position)[0]
        end = position + RECORD_HEADER_BYTES + length
        if end > size:
            if length > RECORD_LENGTH_MAX:
                raise _corrupt(base_offset + position, f"claims a length of {length} bytes")
            break
        position = end
        found.append(base_offset + position)
    return found


def has_tag(data: bytes, tag: bytes) -> bool:
    """Whether one of some whole, well-formed messages has a tag."""
    wanted = len(tag).to_bytes(4, "big") + tag
    position = 0
    while position < len(data):
        length, _, _, flag = _unpack(data, position)
        position += RECORD_HEADER_BYTES
        if flag & FLAG_TAG and data.startswith(wanted, position):
            return True
        position += length
    return False


# Properties -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Properties:
    """What a record holds beside tag and payload.

    Attributes:
        key: Business id, or None. An empty text says the same as None.
        headers: Free text pairs.
        delivery_time_ms: Not to be delivered before this time (ms since 1970 UTC); 0: at once.
        retry_count: How often it was given back, >= 0.
        origin: Where it was copied from, empty for first-hand messages.
        destination: The partition where it goes at ``delivery_time_ms``; None: it is there.
    """

    key: Key | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery_time_ms: int = 0
    retry_count: int = 0
    origin: str = ""
    destination: TopicPartition | None = None


#: Properties with nothing but a short key are made and read without protobuf, since many messages
#: have a key and nothing else. They are what protobuf writes:
#:
#:     text of 1 to 127 bytes     KEY_FIELD (field 1), the size in one byte, the UTF-8 bytes
#:     1 to 127 bytes             KEY_BYTES_FIELD (field 6), the size in one byte, the bytes
#:     an integer                 KEY_INT_FIELD (field 7), the zigzag varint of 1 to 10 bytes
KEY_FIELD = 0x0A
KEY_BYTES_FIELD = 0x32
KEY_INT_FIELD = 0x38
KEY_BYTES_SHORT = 127
#: A header is an entry: this field, the size of what follows, and name and value with theirs.
HEADERS_FIELD = 0x12
_NAME_FIELD = 0x0A
_VALUE_FIELD = 0x12
_VARINT_BYTES_MAX = 10
_PARTITION_DIGITS_MAX = 9
#: Messages that wait go to few partitions, and a broker that starts reads all of them.
_PARTITIONS_REMEMBERED = 1_024
_U64_MAX = 2**64 - 1


def encode_key(key: Key) -> bytes | None:
    """Return what ``encode_properties(Properties(key=key))`` would; None unless the key is short.

    Example: 1001 is ``38 d2 0f``: its zigzag is 2002, which is 15 * 128 + 0x52.

    Args:
        key: Text, bytes, or an integer in [-2**63, 2**63).

    Raises:
        UnicodeEncodeError: It is no valid Unicode.
    """
    if isinstance(key, str):
        field, encoded = KEY_FIELD, key.encode()
    elif isinstance(key, bytes):
        field, encoded = KEY_BYTES_FIELD, key
    else:
        return _integer_field(key)
    size = len(encoded)
    return bytes((field, size)) + encoded if 0 < size <= KEY_BYTES_SHORT else None


def _integer_field(key: int) -> bytes:
    rest = 2 * key if key >= 0 else -2 * key - 1
    parts = [KEY_INT_FIELD]
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def decode_key(properties: bytes) -> Key | None:
    """Return the key of properties with nothing but a short key; None for all other properties.

    Raises:
        UnicodeDecodeError: Its text is no UTF-8.
    """
    size = len(properties) - 2
    if size < 0:
        return None
    field = properties[0]
    if field == KEY_INT_FIELD:
        return _zigzag(properties)
    if not 0 < size <= KEY_BYTES_SHORT or properties[1] != size:
        return None
    if field == KEY_FIELD:
        return properties[2:].decode()
    return properties[2:] if field == KEY_BYTES_FIELD else None


def _zigzag(properties: bytes) -> int | None:
    """Return the integer behind the first byte; None if it is not one varint up to the end."""
    last = len(properties) - 1
    if last > _VARINT_BYTES_MAX or properties[last] > 0x7F:
        return None
    rest = 0
    for number in range(last, 0, -1):
        byte = properties[number]
        if byte < 0x80 and number != last:
            return None
        rest = rest << 7 | byte & 0x7F
    return None if rest > _U64_MAX else (rest >> 1) ^ -(rest & 1)


def encode_properties(
    properties: Properties, *, bytes_max: int = limits.PROPERTIES_BYTES_MAX
) -> bytes | None:
    """Return the bytes for a record's properties field, or None when there is nothing to say.

    Equal properties give equal bytes: headers are written in sorted order.

    Raises:
        InvalidArgument: A text is no valid Unicode, or a number is outside its field's range.
        MessageTooLarge: They take more than ``bytes_max``.
    """
    message = properties_pb2.RecordProperties()
    try:
        _set_key(message, properties.key)
        message.headers.update(properties.headers)
        message.delivery_time_ms = properties.delivery_time_ms
        message.retry_count = properties.retry_count
        message.origin = properties.origin
        if properties.destination is not None:
            message.destination = str(properties.destination)
        data: bytes = message.SerializeToString(deterministic=True)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"properties cannot be encoded: {error}") from error
    if len(data) > bytes_max:
        raise _too_large("properties", len(data), bytes_max)
    return data or None


def decode_properties(data: bytes) -> Properties:
    """Return what ``encode_properties`` was given (an empty key comes back as None).

    Raises:
        CorruptData: The bytes are no properties.
    """
    message = properties_pb2.RecordProperties()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptData(f"properties of {len(data)} bytes cannot be parsed: {error}") from error
    return Properties(
        key=parsed_key(message),
        headers=_headers_of(message),
        delivery_time_ms=message.delivery_time_ms,
        retry_count=message.retry_count,
        origin=message.origin,
        destination=_partition_of(message.destination),
    )


def read_properties(data: bytes) -> tuple[Key | None, dict[str, str] | None] | None:
    """Return the key and the headers in properties; None if the bytes are no properties.

    For the loops that make messages: it makes no object that a message does not have.
    """
    found = _read_written(data)
    if found is not None:
        return found
    try:
        message = properties_pb2.RecordProperties.FromString(data)
    except DecodeError:
        return None
    return parsed_key(message), _headers_of(message) or None


def _read_written(data: bytes) -> tuple[Key | None, dict[str, str] | None] | None:
    """Return what ``read_properties`` does; None unless vq has written it, with short texts only.

    That is a key at most, and headers in rising order of their names. protobuf takes twice the time
    for it, and does not keep the order.
    """
    key: Key | None = None
    headers: dict[str, str] = {}
    last = ""
    at, size = 0, len(data)
    try:
        if data[0] == KEY_FIELD:
            at = 2 + data[1]
            key = decode_key(data[:at])
            if key is None:
                return None
        while at < size and data[at] == HEADERS_FIELD:
            end = at + 2 + data[at + 1]
            middle = at + 4 + data[at + 3]
            if (
                data[at + 1] > KEY_BYTES_SHORT
                or data[at + 2] != _NAME_FIELD
                or data[middle] != _VALUE_FIELD
                or middle + 2 + data[middle + 1] != end
                or end > size
            ):
                return None
            name = data[at + 4 : middle].decode()
            if name <= last:
                return None
            headers[name] = data[middle + 2 : end].decode()
            last, at = name, end
        if at < size:
            if key is not None:
                return None
            key = decode_key(data[at:])
            if key is None:
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    return key, headers or None


def _headers_of(message: properties_pb2.RecordProperties) -> dict[str, str]:
    """Return headers in the order of their names, in which they were written."""
    headers = dict(message.headers)  # in an order that differs from process to process
    return dict(sorted(headers.items())) if len(headers) > 1 else headers


def read_delivery(data: bytes) -> tuple[int, TopicPartition] | None:
    """Return when a delayed message is due and where it goes; None: the bytes do not say it."""
    try:
        message = properties_pb2.RecordProperties.FromString(data)
    except DecodeError:
        return None
    to = _partition_of(message.destination)
    return None if to is None else (message.delivery_time_ms, to)


@lru_cache(maxsize=_PARTITIONS_REMEMBERED)
def _partition_of(text: str) -> TopicPartition | None:
    """Return the partition that ``str`` of it names; None: it names none."""
    topic, _, number = text.rpartition("-")
    if not limits.is_valid_name(topic) or not (number.isascii() and number.isdigit()):
        return None
    return TopicPartition(topic, int(number)) if len(number) <= _PARTITION_DIGITS_MAX else None


def _set_key(message: properties_pb2.RecordProperties, key: Key | None) -> None:
    if isinstance(key, str):
        if key:
            message.key = key
    elif isinstance(key, bytes):
        message.key_bytes = key
    elif key is not None:
        message.key_int = key


def parsed_key(message: properties_pb2.RecordProperties) -> Key | None:
    """Return the key in properties that were parsed."""
    kind = message.WhichOneof("business_id")
    if kind == "key_bytes":
        return message.key_bytes
    if kind == "key_int":
        return message.key_int
    return message.key or None


# Slow paths -------------------------------------------------------------------------------------
def _checksum(flag: int, covered: bytes) -> bytes:
    """Return the checksum of a message: of its id, its flag, and what is behind its header."""
    if flag & FLAG_CHECKSUM_MASK == CHECKSUM_CRC32C:
        crc: int = google_crc32c.value(covered)
        return crc.to_bytes(4, "big")
    return md5(covered).digest()[:4]


def _decode_body(offset: int, record_id: int, flag: int, checksum: bytes, covered: bytes) -> Record:
    """Return any message record, or say what is wrong with it."""
    if _checksum(flag, covered) != checksum:
        raise _corrupt(offset, "fails its checksum")
    body = covered[COVERED_HEADER_BYTES:]
    if flag not in KNOWN_FLAGS or flag & FLAG_CONTROL:
        raise _corrupt(offset, f"has the unknown flag {flag:#x}")
    end = offset + RECORD_HEADER_BYTES + len(body)
    tag, properties, payload = _split(body, flag, offset)
    return Record(offset, end, record_id, flag, tag, properties, payload)


def _split(body: bytes, flag: int, offset: int) -> tuple[bytes | None, bytes | None, bytes]:
    tag = properties = None
    at = 0
    if flag & FLAG_TAG:
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        tag, at = body[at + 4 : end], end
    if flag & FLAG_PROPERTIES:
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        properties, at = body[at + 4 : end], end
    if at > len(body):
        raise _corrupt(offset, "has a tag or properties longer than itself")
    return tag, properties, body[at:]


def _corrupt(offset: int, what: str) -> CorruptData:
    return CorruptData(f"the record at offset {offset} {what}", details={"offset": offset})


def _too_large(what: str, size: int, bound: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"{what} of {size} bytes exceeds {bound}", details={"size": size, "bound": bound}
    )
