"""The block in an archive's zip, for who has no stub: its directory tells where the chunks lie.

In here: which bytes of the zip are read, and what they must be. Not in here: where the zip is
(``archive_place``), and who may read it. All of it blocks.

The zip is believed only as far as it can be checked: ``description.json`` must be that of the block
that was asked for, every chunk has a CRC, and begins with the control record of its offset.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from vq.errors import CorruptData
from vq.limits import KIB
from vq.store.archive.archive import (
    CHUNK_BYTES,
    DESCRIPTION_NAME,
    DESCRIPTION_VERSION,
    ZipChunk,
    chunk_name,
)
from vq.store.archive.archive_place import ZipReader
from vq.store.archive.archived_file import inflate
from vq.store.archive.zip_format import END_BYTES, MEMBERS_MAX, ZipMember, directory_in, members
from vq.store.records.format import BATCH_ON_DISK_BYTES_MAX, decode_control

#: What is read of the end of a zip at first: the directory of a block of 128 MiB takes 8 KiB.
END_READ_BYTES: Final = 64 * KIB
#: No directory of ours has more bytes for one member.
_ENTRY_BYTES_MAX: Final = 128
_CHUNK_BYTES_MAX: Final = max(CHUNK_BYTES, BATCH_ON_DISK_BYTES_MAX)
_DESCRIPTION_BYTES_MAX: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class WantedBlock:
    """The block that a zip must hold.

    Attributes:
        url: Of the zip.
        zip_bytes: Size of the zip.
        topic, partition: Of the block.
        topic_id: Tells the topic from a namesake.
        start, end: Offsets ``[start, end)`` of the block.
    """

    url: str
    zip_bytes: int
    topic: str
    partition: int
    topic_id: str
    start: int
    end: int

    def check(self, told: Mapping[str, Any]) -> None:
        """Return if a description is that of this block.

        Raises:
            CorruptData: It is another one.
        """
        wanted = {
            "v": DESCRIPTION_VERSION,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "start_offset": self.start,
            "end_offset": self.end,
        }
        others = {name: told.get(name) for name in wanted if told.get(name) != wanted[name]}
        if others:
            raise CorruptData(f"{self.url} is not the zip of {wanted}: it has {others}")


class ZippedBlock:
    """A block in a zip that is read range by range; one thread at a time.

    Args:
        reader: Reads the zip.
        wanted: The block that it must be.

    Attributes:
        starts: Where its chunks begin.

    Raises:
        CorruptData: It is another one, or damaged.
        OSError: It cannot be read.
    """

    def __init__(self, reader: ZipReader, wanted: WantedBlock) -> None:
        self._reader = reader
        self._wanted = wanted
        tail = self._tail()
        *chunks, description = self._members(tail)
        if description.name != DESCRIPTION_NAME:
            raise CorruptData(f"{wanted.url} does not end with {DESCRIPTION_NAME}")
        self._chunks = _chunks(chunks, wanted, description.at)
        self.starts = [each.start for each in self._chunks]
        wanted.check(self._described(description, tail))

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """Return whole batches from the chunk on that has the byte at ``offset``, and their offset.

        No chunk is read that begins ``size`` bytes behind ``offset``, or farther.

        Raises:
            CorruptData: They are damaged, or the block does not have the offset.
            OSError: They cannot be read.
        """
        block = self._wanted
        if not block.start <= offset < block.end:
            raise CorruptData(f"offset {offset} is outside [{block.start}, {block.end})")
        first = bisect_right(self.starts, offset - block.start) - 1
        last = first + 1
        stop = offset - block.start + size
        while last < len(self._chunks) and self._chunks[last].start < stop:
            last += 1
        chunks = self._chunks[first:last]
        begin = chunks[0].at
        data = self._reader.pread(begin, chunks[-1].at + chunks[-1].size - begin)
        parts = []
        for chunk in chunks:
            at = chunk.at - begin
            part = inflate(data[at : at + chunk.size], chunk)
            self._check_start(part, chunk)
            parts.append(part)
        return block.start + chunks[0].start, parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_start(self, part: bytes, chunk: ZipChunk) -> None:
        header = decode_control(part)
        offset = self._wanted.start + chunk.start
        if header is None or header.start_offset != offset:
            raise CorruptData(f"a chunk of {self._wanted.url} does not begin at offset {offset}")

    def _tail(self) -> bytes:
        size = min(self._wanted.zip_bytes, END_READ_BYTES)
        return self._read(self._wanted.zip_bytes - size, size)

    def _members(self, tail: bytes) -> list[ZipMember]:
        zip_bytes = self._wanted.zip_bytes
        tail_at = zip_bytes - len(tail)
        position, count = directory_in(tail, zip_bytes)
        if not 2 <= count <= MEMBERS_MAX or zip_bytes - position > count * _ENTRY_BYTES_MAX:
            raise CorruptData(f"the directory of {self._wanted.url} claims {count} files")
        if position < tail_at:
            tail = self._read(position, tail_at - position) + tail
            tail_at = position
        return members(tail[position - tail_at : -END_BYTES], count)

    def _described(self, member: ZipMember, tail: bytes) -> Mapping[str, Any]:
        if not 0 < member.length <= _DESCRIPTION_BYTES_MAX or member.size > member.length:
            raise CorruptData(f"{DESCRIPTION_NAME} claims to have {member.length} bytes")
        at = member.data_at - (self._wanted.zip_bytes - len(tail))
        data = tail[at : at + member.size] if at >= 0 else b""
        if len(data) != member.size:  # it lies before the tail, or the directory is wrong
            data = self._read(member.data_at, member.size)
        try:
            told = json.loads(inflate(data, ZipChunk(0, member.length, 0, member.size, member.crc)))
        except (ValueError, RecursionError) as error:
            raise CorruptData(f"{DESCRIPTION_NAME} is not JSON: {error}") from error
        if not isinstance(told, dict):
            raise CorruptData(f"{DESCRIPTION_NAME} is not a JSON object")
        return told

    def _read(self, position: int, length: int) -> bytes:
        data = self._reader.pread(position, length)
        if len(data) != length:
            raise CorruptData(f"{self._wanted.url} ends {length - len(data)} bytes too early")
        return data


def _chunks(found: Sequence[ZipMember], wanted: WantedBlock, end: int) -> list[ZipChunk]:
    """Return the chunks that members of a zip are; ``end``: position behind their data.

    Raises:
        CorruptData: They are not the block, one after the other.
    """
    starts = list(accumulate((each.length for each in found), initial=0))
    chunks = [
        ZipChunk(start, each.length, each.data_at, each.size, each.crc)
        for start, each in zip(starts, found, strict=False)
    ]
    bounds = [each.at for each in found[1:]] + [end]
    if starts[-1] != wanted.end - wanted.start or not all(
        member.name == chunk_name(chunk.start)
        and 0 < chunk.size <= chunk.length <= _CHUNK_BYTES_MAX
        and chunk.at + chunk.size == bound
        for chunk, member, bound in zip(chunks, found, bounds, strict=True)
    ):
        raise CorruptData(
            f"the chunks of {wanted.url} are not those of [{wanted.start}, {wanted.end})"
        )
    return chunks
