"""The key index of one block: which parts of a block can have a key, a tag or an id.

A search reads only the parts that can. The index is made from a closed block in the background,
kept beside it as ``<16 digits>.keys``, and rebuilt whenever it is missing or does not fit. It is
never trusted over the block: a part that it names may turn out to have nothing. Knows nothing of
files.

A part is a run of whole batches of about 256 KiB. For its ids the index has the least and the
largest: they are times, so those of a part are near one another. For keys and tags it has a Bloom
filter: 10 bits for each different one, 7 of which are set. A key that is not there seems to be with
a chance of 1 in 120; one that is there is always found.

    | at | size  | field                                                             |
    |  0 |   4   | magic "vqky"                                                      |
    |  4 |   1   | version, 1                                                        |
    |  5 |   3   | zero                                                              |
    |  8 |   8   | start offset of the block                                         |
    | 16 |   8   | end offset of the block                                           |
    | 24 |   8   | offset of its last batch                                          |
    | 32 |   4   | CRC-32C of the control record of that batch                       |
    | 36 |   4   | number of parts n                                                 |
    | 40 |  48 n | columns of n numbers of 8 bytes: start offset, append time of the |
    |    |       | first batch, that of the last one, least id, largest id (0 and 0: |
    |    |       | no message), bytes of the filter                                  |
    | .. |       | the filters, in the order of the parts                            |
    | .. |   4   | CRC-32C of everything before                                      |

A filter of m bits has, for each key and tag, the bits (a + i * b) mod m for i = 0 to 6, where bit j
is bit j mod 8 (the lowest first) of byte j div 8. a and b are the first and the second 4 bytes of
the MD5 of the kind, one byte, and the value; b with its lowest bit set. Kinds: 0 a tag, 1 a key of
text, both in UTF-8; 6 a key of bytes; 7 an integer, as 8 bytes with sign.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import google_crc32c

from vq.errors import CorruptData
from vq.limits import KIB
from vq.model import Key
from vq.store.care.wanted import Wanted, fields_of, key_of
from vq.store.records.format import (
    CONTROL_BYTES,
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    BatchHeader,
    md5,
)

#: A part ends with the batch that brings it to this size.
PART_BYTES: Final = 256 * KIB
BITS_EACH: Final = 10
BITS_SET: Final = 7
_MAGIC: Final = b"vqky"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(
    ">"
    "4s"  # magic
    "B3x"  # version
    "Q"  # start offset
    "Q"  # end offset
    "Q"  # offset of the last batch
    "I"  # CRC-32C of its control record
    "I"  # number of parts
)
_COLUMNS: Final = 6
_TAG: Final = 0
_TEXT: Final = 1
_BYTES: Final = 6
_INTEGER: Final = 7

assert _HEAD.size == 40


class Part(NamedTuple):
    """A run of whole batches ``[start, end)`` of a block, by offsets, and their append times."""

    start: int
    end: int
    first_ms: int
    last_ms: int


def covers(head: bytes, start_offset: int, end_offset: int) -> bool:
    """Whether the first bytes of an index say that it is of this block; cheap, and not certain."""
    if len(head) < _HEAD.size:
        return False
    magic, version, *offsets, _, _, _ = _HEAD.unpack_from(head)
    return (magic, version, offsets) == (_MAGIC, _VERSION, [start_offset, end_offset])


class Probe:
    """What is wanted, as the filters have it; make one for a search."""

    def __init__(self, wanted: Wanted) -> None:
        self.id = wanted.id
        key = [] if wanted.key is None else [_key_hash(wanted.key)]
        tags = [_hash(_TAG, tag) for tag in wanted.filter.encoded]
        #: A part must have one of each of these.
        self.groups: list[list[int]] = [group for group in (key, tags) if group]

    @property
    def is_idle(self) -> bool:
        """Whether no index can rule anything out."""
        return self.id is None and not self.groups


class KeyIndex:
    """The index of one block, as ``KeyIndexBuilder.to_bytes`` made it.

    Attributes:
        start_offset, end_offset: Of the block.
        last_batch: Offset of its last batch.
        last_crc: CRC-32C of the control record of that batch.
    """

    __slots__ = (
        "_data",
        "_filters",
        "_first_ms",
        "_largest_ids",
        "_last_ms",
        "_least_ids",
        "_starts",
        "end_offset",
        "last_batch",
        "last_crc",
        "start_offset",
    )

    def __init__(self, data: bytes) -> None:
        """Read an index.

        Raises:
            CorruptData: The bytes are no index, are damaged, or of an unknown version.
        """
        if len(data) < _HEAD.size + 4 or data[:4] != _MAGIC or data[4] != _VERSION:
            raise CorruptData(f"{len(data)} bytes are not a key index of version {_VERSION}")
        if google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise CorruptData("a key index fails its CRC")
        _, _, self.start_offset, self.end_offset, self.last_batch, self.last_crc, count = (
            _HEAD.unpack_from(data)
        )
        size = count * 8
        at = _HEAD.size + _COLUMNS * size
        if not count or len(data) < at + 4:
            raise CorruptData(f"a key index of {count} parts has {len(data)} bytes")
        columns = [
            _numbers(data[_HEAD.size + n * size : _HEAD.size + (n + 1) * size])
            for n in range(_COLUMNS)
        ]
        self._starts, self._first_ms, self._last_ms, self._least_ids, self._largest_ids = columns[
            :5
        ]
        self._filters = array("Q", [at])
        for length in columns[5]:
            at += length
            if at > len(data):
                break
            self._filters.append(at)
        if at != len(data) - 4:
            raise CorruptData(f"the filters of a key index do not fill its {len(data)} bytes")
        ends = [*self._starts[1:], self.end_offset]
        if self._starts[0] != self.start_offset or any(
            start >= end for start, end in zip(self._starts, ends, strict=True)
        ):
            raise CorruptData("the parts of a key index do not cover its block")
        self._data = data

    def __len__(self) -> int:
        return len(self._starts)

    def part_at(self, offset: int) -> int:
        """Return the number of the part that holds ``offset``, which the block holds."""
        return bisect_right(self._starts, offset) - 1

    def part(self, number: int) -> Part:
        """Return one part."""
        following = number + 1
        end = self._starts[following] if following < len(self) else self.end_offset
        return Part(self._starts[number], end, self._first_ms[number], self._last_ms[number])

    def may_have(self, number: int, probe: Probe) -> bool:
        """Whether a part may have a message that is wanted; False is certain."""
        wanted_id = probe.id
        if wanted_id is not None and not (
            self._least_ids[number] <= wanted_id <= self._largest_ids[number]
        ):
            return False
        start, end = self._filters[number : number + 2]
        return all(
            any(_has(self._data, start, end, each) for each in group) for group in probe.groups
        )


class KeyIndexBuilder:
    """Makes the index of one block from its batches, in their order."""

    def __init__(self, start_offset: int) -> None:
        self._start_offset = start_offset
        self._end_offset = start_offset
        self._last_batch = start_offset
        self._last_crc = 0
        self._columns = [array("Q") for _ in range(_COLUMNS)]
        self._filters: list[bytes] = []
        self._begin_part()

    def _begin_part(self) -> None:
        self._part_start = self._end_offset
        self._times: list[int] = []
        self._ids: list[int] = []
        self._tags: set[bytes] = set()
        self._properties: set[bytes] = set()

    @property
    def end_offset(self) -> int:
        """Where the batches added so far end."""
        return self._end_offset

    def add(self, data: bytes, batches: Sequence[BatchHeader], offset: int) -> int:
        """Add intact batches of ``data``, whose first byte lies at ``offset``.

        Returns:
            How many messages they have.

        Raises:
            CorruptData: The records of one do not fill it.
        """
        messages = 0
        for batch in batches:
            start = batch.start_offset - offset
            messages += self._add_records(data, start, start + batch.byte_length)
            self._times.append(batch.append_time_ms)
            self._last_batch = batch.start_offset
            self._last_crc = google_crc32c.value(data[start : start + CONTROL_BYTES])
            self._end_offset = batch.end_offset
            if self._end_offset - self._part_start >= PART_BYTES:
                self._end_part()
        return messages

    def _add_records(self, data: bytes, begin: int, batch_end: int) -> int:
        unpack, before = RECORD_HEADER.unpack_from, len(self._ids)
        tags, properties, add_id = self._tags, self._properties, self._ids.append
        position = begin + CONTROL_BYTES
        while position < batch_end:
            start = position + RECORD_HEADER_BYTES
            if start > batch_end:
                raise CorruptData("a record goes on behind the end of its batch")
            length, _, message_id, flag = unpack(data, position)
            position = start + length
            if position > batch_end:
                raise CorruptData("a record goes on behind the end of its batch")
            if flag & FLAG_CONTROL:
                continue
            add_id(message_id)
            if flag & (FLAG_TAG | FLAG_PROPERTIES):
                fields = fields_of(data, start, position, flag)
                if fields.tag is not None:
                    tags.add(fields.tag)
                if fields.properties is not None:
                    properties.add(fields.properties)
        return len(self._ids) - before

    def _end_part(self) -> None:
        keys = map(key_of, self._properties)
        hashes = {_key_hash(key) for key in keys if key is not None}
        hashes |= {_hash(_TAG, tag) for tag in self._tags}
        made = _filter(hashes)
        ids = self._ids or [0]
        row = (self._part_start, self._times[0], self._times[-1], min(ids), max(ids), len(made))
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self._filters.append(made)
        self._begin_part()

    def to_bytes(self) -> bytes:
        """Return the bytes of the index, once all batches of the block were added; one at least."""
        if self._end_offset > self._part_start:
            self._end_part()
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self._start_offset,
            self._end_offset,
            self._last_batch,
            self._last_crc,
            len(self._filters),
        )
        body = b"".join((head, *map(_big_endian, self._columns), *self._filters))
        crc: int = google_crc32c.value(body)
        return body + crc.to_bytes(4, "big")


def _filter(hashes: Collection[int]) -> bytes:
    """Return a Bloom filter of these; empty for none."""
    bits = bytearray(-(-len(hashes) * BITS_EACH // 8))
    size = 8 * len(bits)
    for each in hashes:
        at, step = each >> 32, each & 0xFFFF_FFFF | 1
        for _ in range(BITS_SET):
            bit = at % size
            bits[bit >> 3] |= 1 << (bit & 7)
            at += step
    return bytes(bits)


def _has(data: bytes, start: int, end: int, hashed: int) -> bool:
    """Whether the filter ``data[start:end]`` may have been made with a hash."""
    size = 8 * (end - start)
    if not size:
        return False
    at, step = hashed >> 32, hashed & 0xFFFF_FFFF | 1
    for _ in range(BITS_SET):
        bit = at % size
        if not data[start + (bit >> 3)] >> (bit & 7) & 1:
            return False
        at += step
    return True


def _key_hash(key: Key) -> int:
    if isinstance(key, str):
        return _hash(_TEXT, key.encode())
    if isinstance(key, bytes):
        return _hash(_BYTES, key)
    return _hash(_INTEGER, key.to_bytes(8, "big", signed=True))


def _hash(kind: int, value: bytes) -> int:
    return int.from_bytes(md5(bytes((kind,)) + value).digest()[:8], "big")


def _numbers(data: bytes) -> "array[int]":
    column = array("Q")
    column.frombytes(data)
    if sys.byteorder == "little":
        column.byteswap()
    return column


def _big_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()
