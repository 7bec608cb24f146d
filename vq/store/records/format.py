"""Every byte layout that the log keeps on disk: constants, structs and the control record.

Belongs here: numbers, `struct` layouts, and the functions that turn one control record into bytes
and back. Does not belong here: ordinary records (``record``), files (``disk``), and anything that
decides what to do about bytes that do not parse (``recovery``). docs/formats.md shows all of it.

All integers are big-endian. A **record** is a 20-byte header and ``length`` bytes behind it:

    | at | size | field    |                                                              |
    |  0 |  4   | length   | bytes behind this header                                     |
    |  4 |  4   | checksum | first 4 bytes of an MD5, or a CRC-32C, of the bytes below     |
    |  8 |  8   | id       | message id; 0 in control records                             |
    | 16 |  4   | flag     | bits below                                                   |

The checksum of a message covers everything behind it: id, flag and the ``length`` bytes; a wrong
length makes it cover other bytes. So a reader can verify every record by itself, also one that it
got without the rest of its batch. The checksum of a control record covers its payload only, since
its length, id and flag are constants that readers compare.

Twenty zero bytes are no record: the MD5 of twelve zero bytes begins with 8dd6bb73.

A **batch** is one control record and the records it announces. The control record is an ordinary
record (id 0, flag CONTROL, MD5) with this payload:

    | at | size | field             |                                                       |
    |  0 |  1   | version           | 1                                                     |
    |  1 |  1   | attributes        | 0                                                     |
    |  2 |  2   | producer epoch    |                                                       |
    |  4 |  4   | master epoch      | never decreases along a log                           |
    |  8 |  8   | start offset      | of this very record                                   |
    | 16 |  8   | synced offset     | what was known to be flushed when this was appended   |
    | 24 |  4   | byte length       | of the whole batch, this record included              |
    | 28 |  4   | record count      | this record not counted                               |
    | 32 |  8   | append time       | ms since 1970 UTC; never decreases along a log        |
    | 40 |  8   | producer id       | 0: none                                               |
    | 48 |  8   | producer sequence |                                                       |
    | 56 |  8   | transaction id    | 0: none                                               |
    | 64 |  4   | crc               | CRC-32C of the records, then of bytes [0, 64) of this |

The CRC runs over the records first, so that the CRC a client computed over its records can be
extended by the broker without reading them again.
"""

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from vq import limits
from vq.errors import CorruptData
from vq.model import ProducerStamp

if TYPE_CHECKING:
    from hashlib import md5 as md5
else:
    try:  # the built-in MD5 costs a third less per small record than OpenSSL's; FIPS leaves it be
        from _md5 import md5
    except ImportError:  # pragma: no cover - interpreters without the built-in one
        from hashlib import md5

#: Version of the whole data directory; a directory with a larger one is refused.
FORMAT_VERSION: Final = 2
#: Version byte of a control record's payload.
CONTROL_VERSION: Final = 1

RECORD_HEADER: Final = struct.Struct(
    ">"
    "I"  # length
    "4s"  # checksum
    "Q"  # id
    "I"  # flag
)
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
#: The header up to its checksum, and what the checksum of a message covers of it.
CHECKSUM_HEADER: Final = struct.Struct(
    ">"
    "I"  # length
    "4s"  # checksum
)
COVERED_HEADER: Final = struct.Struct(
    ">"
    "Q"  # id
    "I"  # flag
)
COVERED_AT: Final = CHECKSUM_HEADER.size
COVERED_HEADER_BYTES: Final = COVERED_HEADER.size

FLAG_TAG: Final = 1
FLAG_PROPERTIES: Final = 1 << 1
FLAG_CONTROL: Final = 1 << 2
FLAG_COMPRESSION_SHIFT: Final = 4
FLAG_COMPRESSION_MASK: Final = 0b111 << FLAG_COMPRESSION_SHIFT
FLAG_CHECKSUM_SHIFT: Final = 8
FLAG_CHECKSUM_MASK: Final = 0b11 << FLAG_CHECKSUM_SHIFT
CHECKSUM_MD5: Final = 0 << FLAG_CHECKSUM_SHIFT
CHECKSUM_CRC32C: Final = 1 << FLAG_CHECKSUM_SHIFT

COMPRESSION_NONE: Final = 0
COMPRESSION_ZLIB: Final = 1
COMPRESSION_ZSTD: Final = 2
COMPRESSION_LZ4: Final = 3
COMPRESSIONS: Final = (COMPRESSION_NONE, COMPRESSION_ZLIB, COMPRESSION_ZSTD, COMPRESSION_LZ4)

#: Flags a reader of this version understands; every other combination is refused as damage.
KNOWN_FLAGS: Final = frozenset(
    tag | properties | compression << FLAG_COMPRESSION_SHIFT | checksum
    for tag in (0, FLAG_TAG)
    for properties in (0, FLAG_PROPERTIES)
    for compression in COMPRESSIONS
    for checksum in (CHECKSUM_MD5, CHECKSUM_CRC32C)
) | {FLAG_CONTROL}

#: Bits that the flag of a record in a PUT may have: no others, because a broker does not store what
#: no reader understands. The kinds of compression are the numbers of two bits.
SENDABLE_FLAGS_MASK: Final = (
    FLAG_TAG | FLAG_PROPERTIES | max(COMPRESSIONS) << FLAG_COMPRESSION_SHIFT | CHECKSUM_CRC32C
)

#: Largest ``length`` a record may announce; a larger one is damage, whatever follows.
RECORD_LENGTH_MAX: Final = (
    limits.MESSAGE_BYTES_MAX + limits.RECORD_OVERHEAD_BYTES_MAX - RECORD_HEADER_BYTES
)

_CONTROL_FIELDS: Final = (
    "B"  # version
    "B"  # attributes
    "H"  # producer epoch
    "I"  # master epoch
    "Q"  # start offset
    "Q"  # synced offset
    "I"  # byte length
    "I"  # record count
    "Q"  # append time
    "Q"  # producer id
    "Q"  # producer sequence
    "Q"  # transaction id
)
CONTROL_HEAD: Final = struct.Struct(">" + _CONTROL_FIELDS)
CONTROL_PAYLOAD_BYTES: Final = CONTROL_HEAD.size + 4
CONTROL_BYTES: Final = RECORD_HEADER_BYTES + CONTROL_PAYLOAD_BYTES
#: Bytes of the payload before the append time.
_APPEND_TIME_AT: Final = struct.calcsize(">" + _CONTROL_FIELDS[: _CONTROL_FIELDS.index("Q") + 4])
#: Bytes [8, 22) of every control record: id 0, flag CONTROL, version, attributes. What a search
#: for batches behind damage looks for; a hit counts only if its start offset is its own place.
_MARK: Final = struct.Struct(">QIBB")
CONTROL_MARK: Final = _MARK.pack(0, FLAG_CONTROL, CONTROL_VERSION, 0)
CONTROL_MARK_AT: Final = 8
#: The record header and the payload of a control record in one go, with its mark as one field.
_CONTROL_RECORD: Final = struct.Struct(f">I4s{_MARK.size}s{_CONTROL_FIELDS[2:]}I")

#: Largest batch as it lies in a block.
BATCH_ON_DISK_BYTES_MAX: Final = CONTROL_BYTES + limits.BATCH_BYTES_MAX

# Names of files in a partition's directory ------------------------------------------------------
BLOCK_SUFFIX: Final = ".block"
INDEX_SUFFIX: Final = ".index"
KEYS_SUFFIX: Final = ".keys"
CUT_MARK: Final = ".cut-"
DROPPED_SUFFIX: Final = ".drop"
DAMAGED_MARK: Final = ".damaged"
ARCHIVE_SUFFIX: Final = ".archive"
ZIP_SUFFIX: Final = ".zip"
DISCARD_SUFFIX: Final = ".discard"
UPLOAD_SUFFIX: Final = ".upload"
CHECKPOINT_NAME: Final = "checkpoint"
OFFSET_DIGITS: Final = 16
OFFSET_MAX: Final = 10**OFFSET_DIGITS - 1

assert RECORD_HEADER_BYTES == COVERED_AT + COVERED_HEADER_BYTES == 20
assert CONTROL_PAYLOAD_BYTES == 68
assert _APPEND_TIME_AT == 32
assert _CONTROL_RECORD.size == CONTROL_BYTES == 88
assert CONTROL_PAYLOAD_BYTES <= RECORD_LENGTH_MAX
assert set(range(max(COMPRESSIONS) + 1)) == set(COMPRESSIONS)
assert (max(COMPRESSIONS) + 1).bit_count() == 1, "SENDABLE_FLAGS_MASK relies on it"

_head_pack = CONTROL_HEAD.pack
_header_pack = RECORD_HEADER.pack
#: Stands for the head of a control record, in ``records_mark``.
_NO_HEAD: Final = bytes(CONTROL_HEAD.size)
_control_unpack = _CONTROL_RECORD.unpack_from
_crc = google_crc32c.value
_extend_crc = google_crc32c.extend
#: Makes a named tuple without the checks of its own constructor, which take 0.3 µs.
_new = tuple.__new__
_NO_HEAD_CRC: Final[int] = google_crc32c.value(_NO_HEAD)


class BatchHeader(NamedTuple):
    """What a control record says of its batch.

    Invariants: ``byte_length >= CONTROL_BYTES``; ``synced_offset <= start_offset``.
    """

    start_offset: int
    byte_length: int
    record_count: int
    append_time_ms: int
    master_epoch: int = 0
    synced_offset: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    producer_sequence: int = 0
    transaction_id: int = 0
    crc: int = 0  # set by decoding; encoding computes it

    @property
    def end_offset(self) -> int:
        """Where the next batch starts."""
        return self.start_offset + self.byte_length

    @property
    def stamp(self) -> ProducerStamp:
        """Who wrote it; the producer id 0 stands for nobody."""
        return _new(ProducerStamp, self[6:9])

    @property
    def records_mark(self) -> int:
        """``records_mark`` of the CRC of the batch's records, which need not be read for it."""
        start, length, count, time, epoch, synced, producer, its_epoch, sequence, id_, crc = self
        head = _head_pack(
            CONTROL_VERSION,
            0,
            its_epoch,
            epoch,
            start,
            synced,
            length,
            count,
            time,
            producer,
            sequence,
            id_,
        )
        head_crc: int = google_crc32c.value(head)
        return crc ^ head_crc


def records_mark(records_crc: int) -> int:
    """Return a number that is equal for batches whose records have the same CRC, and for no others.

    It follows from a control record alone: a CRC of A and B is the XOR of two numbers, of which one
    depends on A and the length of B, and the other one is the CRC of B. The first one is the mark
    of the records A; B is the head of the control record.
    """
    crc: int = _extend_crc(records_crc, _NO_HEAD)
    return crc ^ _NO_HEAD_CRC


def encode_control(header: BatchHeader, records_crc: int) -> bytes:
    """Return the 88 bytes of the control record of a batch.

    Args:
        header: What to say; its ``crc`` is ignored.
        records_crc: CRC-32C of the batch's records, back to back (0 when there are none).
    """
    return pack_control(*header[:-1], records_crc)


def pack_control(
    start_offset: int,
    byte_length: int,
    record_count: int,
    append_time_ms: int,
    master_epoch: int,
    synced_offset: int,
    producer_id: int,
    producer_epoch: int,
    producer_sequence: int,
    transaction_id: int,
    records_crc: int,
) -> bytes:
    """Do what ``encode_control`` does, without a ``BatchHeader``: an append saves 0.5 µs so.

    Raises:
        struct.error: A value does not fit its field.
    """
    head = _head_pack(
        CONTROL_VERSION,
        0,
        producer_epoch,
        master_epoch,
        start_offset,
        synced_offset,
        byte_length,
        record_count,
        append_time_ms,
        producer_id,
        producer_sequence,
        transaction_id,
    )
    payload: bytes = head + _extend_crc(records_crc, head).to_bytes(4, "big")
    return _header_pack(CONTROL_PAYLOAD_BYTES, md5(payload).digest(), 0, FLAG_CONTROL) + payload


def append_time_ms(payload: bytes) -> int | None:
    """Return the append time in the payload of a verified control record; None: not known.

    Of a record of another size or version nothing is known.
    """
    if len(payload) != CONTROL_PAYLOAD_BYTES or payload[0] != CONTROL_VERSION:
        return None
    return int.from_bytes(payload[_APPEND_TIME_AT : _APPEND_TIME_AT + 8], "big")


def decode_control(buf: bytes | memoryview, position: int = 0) -> BatchHeader | None:
    """Return the batch header at ``position``, or None when the bytes end before it does.

    The record's own checksum is verified, the batch's CRC is not (``batch_crc`` computes it).

    Raises:
        CorruptData: The bytes there are no control record of a version this code knows.
    """
    if len(buf) - position < CONTROL_BYTES:
        return None
    (
        length,
        checksum,
        mark,
        producer_epoch,
        master_epoch,
        start_offset,
        synced_offset,
        byte_length,
        record_count,
        append_time_ms,
        producer_id,
        producer_sequence,
        transaction_id,
        crc,
    ) = _control_unpack(buf, position)
    if mark != CONTROL_MARK or length != CONTROL_PAYLOAD_BYTES:
        raise _no_control(position, mark, length)
    payload = buf[position + RECORD_HEADER_BYTES : position + CONTROL_BYTES]
    if md5(payload).digest()[:4] != checksum:
        raise CorruptData(f"control record at position {position} fails its checksum")
    if not CONTROL_BYTES <= byte_length <= BATCH_ON_DISK_BYTES_MAX or synced_offset > start_offset:
        raise CorruptData(f"control record at position {position} contradicts itself")
    fields = (
        start_offset,
        byte_length,
        record_count,
        append_time_ms,
        master_epoch,
        synced_offset,
        producer_id,
        producer_epoch,
        producer_sequence,
        transaction_id,
        crc,
    )
    return _new(BatchHeader, fields)


def _no_control(position: int, mark: bytes, length: int) -> CorruptData:
    record_id, flag, version, attributes = _MARK.unpack(mark)
    if flag != FLAG_CONTROL or length != CONTROL_PAYLOAD_BYTES or record_id:
        return CorruptData(f"no control record at position {position}")
    return CorruptData(
        f"control record at position {position} has version {version}, attributes "
        f"{attributes}; this vq knows version {CONTROL_VERSION}, attributes 0"
    )


def batch_crc(buf: bytes, position: int, byte_length: int) -> int:
    """Return the CRC-32C that the batch at ``position`` should carry."""
    records = buf[position + CONTROL_BYTES : position + byte_length]
    head = buf[position + RECORD_HEADER_BYTES : position + CONTROL_BYTES - 4]
    crc: int = _extend_crc(_crc(records), head)
    return crc


def block_name(start_offset: int) -> str:
    """Return the file name of the block that starts at ``start_offset``."""
    return f"{start_offset:0{OFFSET_DIGITS}d}{BLOCK_SUFFIX}"


def keys_name(start_offset: int) -> str:
    """Return the name of the file with the key index of the block that starts there."""
    return f"{start_offset:0{OFFSET_DIGITS}d}{KEYS_SUFFIX}"


def parse_block_name(name: str) -> int | None:
    """Return the start offset a block's file name tells, or None if it is no block's name."""
    return parse_name(name, BLOCK_SUFFIX)


def parse_name(name: str, suffix: str) -> int | None:
    """Return the offset in a file name of 16 digits and ``suffix``; None: it is another name."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != OFFSET_DIGITS:
        return None
    return int(digits) if digits.isascii() and digits.isdigit() else None
