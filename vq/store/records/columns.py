"""Record bytes taken apart into columns, as programs that analyse many messages want them.

A column has the layout of Apache Arrow: numbers are little-endian and lie side by side; texts lie
back to back, and ``ends`` has a 0 and then where each of them ends; ``valid`` has a bit for each
row, the lowest bit of a byte first, which is 0 where the row is null.

The loop over messages exists twice, as those of ``codec``: ``python_fill`` is the reference, and
``_columns.c`` replaces it where a C compiler was found at installation. ``decode_columns`` verifies
the records before, and handles those that the loop leaves: compressed ones, and properties that are
rare.

Whole batches are verified by the CRC-32C in their control record, which costs a tenth of the MD5 of
each record. Where that fails, or a batch is small or not whole, the checksums of the records count.
"""

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from vq import limits
from vq.errors import CorruptData, InvalidArgument
from vq.model import ID_EPOCH_MS, Key
from vq.store.records.codec import intact
from vq.store.records.compression import decompress
from vq.store.records.format import (
    CHECKSUM_CRC32C,
    CONTROL_BYTES,
    CONTROL_PAYLOAD_BYTES,
    FLAG_COMPRESSION_MASK,
    FLAG_COMPRESSION_SHIFT,
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    batch_crc,
    decode_control,
)
from vq.store.records.record import Record, decode_into, decode_key, read_properties

try:
    from vq.store.records import _columns
except ImportError:  # nothing compiled it
    _columns = None  # type: ignore[assignment]

#: What a table can have.
COLUMNS: Final = ("offset", "id", "timestamp", "tag", "key", "key_type", "headers", "value")
#: What the numbers in the column ``key_type`` mean.
KEY_TYPES: Final = (None, "text", "bytes", "int")
#: A step of decoding ends with the message that brings what was decompressed to this size.
STEP_BYTES: Final = 4 * limits.MIB
#: A step takes so many bytes at most, so that the ends of texts have 31 bits.
_STEP_RAW_BYTES: Final = 32 * limits.MIB
#: A batch from this size on is verified as a whole: below, the checksums of its few records cost
#: less than one more step of Python.
_CRC_BYTES_MIN: Final = 8 * limits.KIB
#: Records outside of such a batch are verified in steps of this size, to come to the next batch.
_INTACT_BYTES: Final = 64 * limits.KIB
_KNOWN_FLAGS: Final = FLAG_TAG | FLAG_PROPERTIES | CHECKSUM_CRC32C
_ID_SHIFT: Final = limits.ID_SLOT_BITS + limits.ID_SEQUENCE_BITS
_NUMBER_MAX: Final = 2**63 - 1
_ID_END: Final = 2**63
_u64 = struct.Struct("<Q").pack
_i32 = struct.Struct("<i").pack


class Texts(NamedTuple):
    """A column of texts or bytes."""

    valid: bytearray
    ends: bytearray  # 32-bit numbers, one more than rows
    data: bytearray


class Headers(NamedTuple):
    """A column of mappings: row i has the entries ``[ends[i], ends[i + 1])`` of names and texts."""

    valid: bytearray
    ends: bytearray
    name_ends: bytearray
    name_data: bytearray
    text_ends: bytearray
    text_data: bytearray


class Table:
    """Columns of some messages, in the order of their offsets.

    Attributes:
        rows: How many messages.
        offset, id: 64-bit numbers.
        timestamp: When the producer accepted the message, in microseconds since 1970 UTC; 64 bits.
        tag: In UTF-8; null without one.
        key: In UTF-8 if it is a text, and the decimal digits of an integer; null without one.
        key_type: One byte: an index of ``KEY_TYPES``.
        headers: Sorted by name; null without any.
        value: The contents, decompressed; never null, and without ``valid``.

    A column that nobody wanted is None.
    """

    def __init__(self, wanted: Collection[str] = COLUMNS) -> None:
        def plain(name: str) -> bytearray | None:
            return bytearray() if name in wanted else None

        self.rows = 0
        self.offset, self.id = plain("offset"), plain("id")
        self.timestamp, self.key_type = plain("timestamp"), plain("key_type")
        self.tag = _texts() if "tag" in wanted else None
        self.key = _texts() if "key" in wanted else None
        self.value = _texts() if "value" in wanted else None
        self.headers = (
            Headers(bytearray(), _ends(), _ends(), bytearray(), _ends(), bytearray())
            if "headers" in wanted
            else None
        )

    def buffers(self) -> tuple[bytearray | None, ...]:
        """Return the buffers in the order in which ``_columns.c`` takes them. For vq only."""
        none = (None,) * 6
        return (
            self.offset,
            self.id,
            self.timestamp,
            *(self.tag or none[:3]),
            *(self.key or none[:3]),
            self.key_type,
            *(self.headers or none),
            *(self.value[1:] if self.value else none[:2]),
        )

    def append(
        self,
        offset: int,
        message_id: int,
        tag: bytes | None,
        key: Key | None,
        headers: dict[str, str] | None,
        value: bytes,
    ) -> None:
        """Append one row. For vq only."""
        row, self.rows = self.rows, self.rows + 1
        if self.offset is not None:
            self.offset += _u64(offset)
        if self.id is not None:
            self.id += _u64(message_id)
        if self.timestamp is not None:
            self.timestamp += _u64(((message_id >> _ID_SHIFT) + ID_EPOCH_MS) * 1000)
        if self.tag is not None:
            _append(self.tag, row, tag)
        if self.key is not None:
            _append(self.key, row, _key_bytes(key))
        if self.key_type is not None:
            self.key_type.append(_type_of(key))
        if self.headers is not None:
            _append_headers(self.headers, row, headers)
        if self.value is not None:
            self.value.data.extend(value)
            self.value.ends.extend(_i32(len(self.value.data)))


def _ends() -> bytearray:
    return bytearray(4)  # the first text begins at 0


def _texts() -> Texts:
    return Texts(bytearray(), _ends(), bytearray())


def _append(column: Texts, row: int, text: bytes | None) -> None:
    _append_bit(column.valid, row, text is not None)
    if text is not None:
        column.data.extend(text)
    column.ends.extend(_i32(len(column.data)))


def _append_headers(column: Headers, row: int, headers: dict[str, str] | None) -> None:
    _append_bit(column.valid, row, bool(headers))
    for name, text in sorted((headers or {}).items()):
        column.name_data.extend(name.encode())
        column.name_ends.extend(_i32(len(column.name_data)))
        column.text_data.extend(text.encode())
        column.text_ends.extend(_i32(len(column.text_data)))
    column.ends.extend(_i32(len(column.name_ends) // 4 - 1))


def _append_bit(valid: bytearray, row: int, bit: bool) -> None:
    if row % 8 == 0:
        valid.append(0)
    valid[-1] |= bit << row % 8


def _key_bytes(key: Key | None) -> bytes | None:
    return key if key is None or isinstance(key, bytes) else str(key).encode()


def _type_of(key: Key | None) -> int:
    if key is None:
        return 0
    return 1 if isinstance(key, str) else 2 if isinstance(key, bytes) else 3


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are wanted; all by default. Ranges are half-open.

    Attributes:
        low, high: Offsets.
        id_low, id_high: Message ids, and with them the times in them; see ``id_at``.
        tags: In UTF-8, at most 64; a message has one of them. None: it may have any tag, or none.

    Raises:
        InvalidArgument: A number is outside [0, 2**63], or there are too many tags.
    """

    low: int = 0
    high: int = _NUMBER_MAX
    id_low: int = 0
    id_high: int = _ID_END
    tags: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        """Check what the compiled loop takes."""
        for name in ("low", "high", "id_low", "id_high"):
            number = getattr(self, name)
            if not 0 <= number <= _ID_END:
                raise InvalidArgument(f"{name} = {number} is outside [0, {_ID_END}]")
        if self.tags is not None and len(self.tags) > limits.FILTER_TAGS_MAX:
            raise InvalidArgument(
                f"{len(self.tags)} tags; a selection has at most {limits.FILTER_TAGS_MAX}: take "
                "all messages, and leave others out by their column"
            )

    @staticmethod
    def id_at(time_ms: int) -> int:
        """Return the least id of a message that was sent at a time, in ms since 1970 UTC, or later.

        Within the range of ids.
        """
        return min(max(time_ms - ID_EPOCH_MS, 0) << _ID_SHIFT, _ID_END)

    def takes(self, offset: int, message_id: int, tag: bytes | None) -> bool:
        """Return whether a message is wanted."""
        return (
            self.low <= offset < self.high
            and self.id_low <= message_id < self.id_high
            and (self.tags is None or tag in self.tags)
        )


ALL: Final = Selection()


def python_fill(
    data: bytes, position: int, end: int, base: int, table: Table, selection: Selection
) -> int:
    """Append the messages in ``[position, end)`` as far as their records are of the common kinds.

    Common is a record that is not compressed, with or without a tag and properties. Its checksum
    was verified before. Control records are passed.

    Returns:
        Where that ends: ``end``, or a record that must be looked at more closely.
    """
    unpack = RECORD_HEADER.unpack_from
    while end - position >= RECORD_HEADER_BYTES:
        length, _, message_id, flag = unpack(data, position)
        start = position + RECORD_HEADER_BYTES
        following = start + length
        if following > end:
            break
        if flag != FLAG_CONTROL:
            if flag & ~_KNOWN_FLAGS or message_id >= _ID_END:
                break
            row = _row(data[start:following], flag)
            if row is None:
                break
            if selection.takes(base + position, message_id, row[0]):
                table.append(base + position, message_id, *row)
        position = following
    return position


_Row = tuple[bytes | None, Key | None, dict[str, str] | None, bytes]


def _row(body: bytes, flag: int) -> _Row | None:
    """Return tag, key, headers and payload of a record; None: it is none of the common kinds."""
    tag = key = headers = None
    if flag & FLAG_TAG:
        at = 4 + int.from_bytes(body[:4], "big")
        if at > len(body):
            return None
        tag, body = body[4:at], body[at:]
    try:
        if tag is not None:
            tag.decode()
        if flag & FLAG_PROPERTIES:
            at = 4 + int.from_bytes(body[:4], "big")
            if at > len(body):
                return None
            properties, body = body[4:at], body[at:]
            key = decode_key(properties)
            if key is None:
                found = read_properties(properties)
                if found is None:
                    return None
                key, headers = found
    except UnicodeDecodeError:
        return None
    return tag, key, headers, body


def _compiled_fill(
    data: bytes, position: int, end: int, base: int, table: Table, selection: Selection
) -> int:
    position, table.rows = _columns.fill(
        data,
        position,
        end,
        base,
        table.rows,
        table.buffers(),
        selection.low,
        selection.high,
        selection.id_low,
        selection.id_high,
        selection.tags,
        _KNOWN_FLAGS,
        FLAG_CONTROL,
        _ID_SHIFT,
        ID_EPOCH_MS,
    )
    return position


fill: Callable[[bytes, int, int, int, Table, Selection], int] = (
    python_fill if _columns is None else _compiled_fill
)


def is_compiled() -> bool:
    """Return whether the loop over messages is compiled; in Python it gives the same, slower."""
    return _columns is not None


def decode_columns(
    data: bytes,
    base: int,
    table: Table,
    selection: Selection = ALL,
    *,
    start: int = 0,
) -> tuple[int, bool]:
    """Append the wanted messages of ``data`` from ``start`` on to ``table``, verified.

    Args:
        data: Log bytes; a record begins at ``start``.
        base: Offset of the first byte of ``data``.
        table: Receives the messages in rising order of offsets.
        selection: Which are wanted.
        start: Position in ``data`` of the record to begin with.

    Returns:
        The position to go on at, and whether there are whole records left: so that a table does not
        grow beyond its bound, ``STEP_BYTES`` are decompressed at most in one call, and a few
        megabytes are taken. Without, the rest is the beginning of a record.

    Raises:
        CorruptData: The record at ``start`` is damaged. Damage behind it ends the call before it.
    """
    position = verified = start
    decompressed = 0
    bound = start + _STEP_RAW_BYTES
    while True:
        if position == verified and position < bound:
            verified = _verified(data, position)
        if position < verified:
            position = fill(data, position, verified, base, table, selection)
            if position == verified:
                continue
        if len(data) - position < RECORD_HEADER_BYTES:
            return position, False
        if position >= bound or decompressed >= STEP_BYTES:
            return position, True
        length = RECORD_HEADER.unpack_from(data, position)[0]
        end = position + RECORD_HEADER_BYTES + length
        records: list[Record] = []
        try:
            read_to = decode_into(data[position:end], base + position, records) - base
            for record in records:
                decompressed += _append_record(table, record, selection)
        except CorruptData:
            if position > start:
                return position, True
            raise
        if read_to == position:
            return position, False  # the record goes on behind the data
        position = read_to
        verified = max(verified, position)


def _verified(data: bytes, position: int) -> int:
    """Return where the intact records end that begin at ``position``, or some of them."""
    if len(data) - position < RECORD_HEADER_BYTES:
        return position
    length, _, record_id, flag = RECORD_HEADER.unpack_from(data, position)
    if flag == FLAG_CONTROL and length == CONTROL_PAYLOAD_BYTES and not record_id:
        end = _end_of_batch(data, position)
        if end:
            return end
    window = RECORD_HEADER_BYTES + max(length, _INTACT_BYTES)
    return position + intact(memoryview(data)[position : position + window], 0)


def _end_of_batch(data: bytes, position: int) -> int:
    """Return where a large batch ends whose bytes are all there and right; 0: it is none."""
    try:
        header = decode_control(data, position)
    except CorruptData:
        return 0
    if header is None or header.byte_length < max(_CRC_BYTES_MIN, CONTROL_BYTES):
        return 0
    end = position + header.byte_length
    if end > len(data) or batch_crc(data, position, header.byte_length) != header.crc:
        return 0
    return end


def _append_record(table: Table, record: Record, selection: Selection) -> int:
    """Append a message that the loop leaves, if it is wanted; return what was decompressed.

    Raises:
        CorruptData: Its parts cannot be read.
    """
    if record.id >= _ID_END:  # no broker takes it; a selection would leave it out
        raise _corrupt(record.offset, f"has the id {record.id}, and ids have 63 bits")
    if not selection.takes(record.offset, record.id, record.tag):
        return 0
    kind = (record.flag & FLAG_COMPRESSION_MASK) >> FLAG_COMPRESSION_SHIFT
    key = headers = None
    try:
        if record.tag is not None:
            record.tag.decode()
    except UnicodeDecodeError as error:
        raise _corrupt(record.offset, "has a tag that is not UTF-8") from error
    if record.properties is not None:
        found = read_properties(record.properties)
        if found is None:
            raise _corrupt(record.offset, "has properties that cannot be parsed")
        key, headers = found
    try:
        payload = decompress(record.payload, kind)
    except CorruptData as error:
        raise _corrupt(record.offset, f"cannot be decompressed: {error}") from error
    table.append(record.offset, record.id, record.tag, key, headers, payload)
    return len(payload) if kind else 0


def _corrupt(offset: int, what: str) -> CorruptData:
    return CorruptData(f"the record at offset {offset} {what}", details={"offset": offset})
