"""The sparse index of one block: from offset or append time to a batch not far before it.

Rebuilt from the block whenever it is missing or does not fit, never trusted over it. Knows nothing
of files; ``blocks`` keeps its bytes beside the block, ``checkpoint`` those of the active block.

    | at | size | field                                                        |
    |  0 |  4   | magic "vqix"                                                 |
    |  4 |  1   | version, 1                                                   |
    |  5 |  3   | zero                                                         |
    |  8 |  8   | start offset of the block                                    |
    | 16 |  8   | end offset: what the index covers                            |
    | 24 |  8   | messages in the log before the block, since its first byte;  |
    |    |      | all bits set: not known                                      |
    | 32 |  8   | messages in the block                                        |
    | 40 |  4   | number of entries n                                          |
    | 44 | 24 n | entries: n offsets, then n message counts, then n times      |
    | .. |  4   | CRC-32C of everything before                                 |
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

import google_crc32c

from vq.errors import CorruptData

#: A batch gets an entry when it starts at least so many bytes behind the last entry's.
INTERVAL_BYTES: Final = 64 * 1024
_MAGIC: Final = b"vqix"
_VERSION: Final = 1
_UNKNOWN: Final = (1 << 64) - 1
_HEAD: Final = struct.Struct(
    ">"
    "4s"  # magic
    "B3x"  # version
    "Q"  # start offset
    "Q"  # end offset
    "Q"  # messages before the block
    "Q"  # messages in the block
    "I"  # number of entries
)


class IndexEntry(NamedTuple):
    """One batch: where it starts, how many messages of the block lie before it, its append time."""

    offset: int
    messages: int
    append_time_ms: int


class OffsetIndex:
    """Entries in rising order; the first one is the block's first batch.

    Invariants: offsets rise strictly, message counts and times never fall.

    Attributes:
        messages_before: Messages of the log before this block, since its first byte; -1: unknown.
    """

    __slots__ = ("_messages", "_next", "_offsets", "_times", "messages_before", "start_offset")

    def __init__(self, start_offset: int, *, messages_before: int = -1) -> None:
        self.start_offset = start_offset
        self.messages_before = messages_before
        self._offsets = array("Q")
        self._messages = array("Q")
        self._times = array("Q")
        self._next = start_offset  # offset from which on the next entry is due

    def __len__(self) -> int:
        return len(self._offsets)

    def maybe_add(self, offset: int, messages: int, append_time_ms: int) -> None:
        """Note the batch at ``offset`` if the last entry is far enough away."""
        if offset >= self._next:
            self._offsets.append(offset)
            self._messages.append(messages)
            self._times.append(append_time_ms)
            self._next = offset + INTERVAL_BYTES

    def at_offset(self, offset: int) -> IndexEntry:
        """Return the last entry at or before ``offset``; the block's start if there is none."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def before_time(self, append_time_ms: int) -> IndexEntry:
        """Return the last entry whose time is smaller; the block's start if there is none."""
        return self._entry(bisect_left(self._times, append_time_ms) - 1)

    def before_message(self, messages: int) -> IndexEntry:
        """Return the last entry with no more messages before it; the block's start if none."""
        return self._entry(bisect_right(self._messages, messages) - 1)

    def before_first(self, is_late: Callable[[int], bool]) -> IndexEntry:
        """Return the last entry before those whose batch ``is_late``, told by its start offset.

        The block's start if there is none. Along the block ``is_late`` turns true once at most.
        """
        return self._entry(bisect_left(self._offsets, True, key=is_late) - 1)

    def _entry(self, at: int) -> IndexEntry:
        if at < 0:
            return IndexEntry(self.start_offset, 0, 0)
        return IndexEntry(self._offsets[at], self._messages[at], self._times[at])

    def cut(self, end_offset: int) -> None:
        """Forget the entries at or behind ``end_offset``."""
        keep = bisect_left(self._offsets, end_offset)
        del self._offsets[keep:], self._messages[keep:], self._times[keep:]
        self._next = self._offsets[-1] + INTERVAL_BYTES if keep else self.start_offset

    def to_bytes(self, *, end_offset: int, messages: int) -> bytes:
        """Return the bytes that the module's table shows.

        Args:
            end_offset: Where the block ends.
            messages: How many messages it holds.
        """
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.start_offset,
            end_offset,
            self.messages_before if self.messages_before >= 0 else _UNKNOWN,
            messages,
            len(self._offsets),
        )
        body = head + b"".join(map(_big_endian, (self._offsets, self._messages, self._times)))
        crc: int = google_crc32c.value(body)
        return body + crc.to_bytes(4, "big")

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple["OffsetIndex", int, int]:
        """Return the index, the end offset it covers, and the messages in the block.

        Raises:
            CorruptData: The bytes are no index, are damaged, or of an unknown version.
        """
        if len(data) < _HEAD.size + 4 or data[:4] != _MAGIC or data[4] != _VERSION:
            raise CorruptData(f"{len(data)} bytes are not a block index of version {_VERSION}")
        if google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise CorruptData("a block index fails its CRC")
        _, _, start, end, before, messages, count = _HEAD.unpack_from(data)
        size = count * 8
        if len(data) != _HEAD.size + 3 * size + 4:
            raise CorruptData(f"a block index of {count} entries has {len(data)} bytes")
        index = cls(start, messages_before=-1 if before == _UNKNOWN else before)
        for at, column in enumerate((index._offsets, index._messages, index._times)):
            column.frombytes(data[_HEAD.size + at * size : _HEAD.size + (at + 1) * size])
            if sys.byteorder == "little":
                column.byteswap()
        if count:
            index._next = index._offsets[-1] + INTERVAL_BYTES
        return index, end, messages


def _big_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()
