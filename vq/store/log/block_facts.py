"""What retention has to know of one block: when its batches were appended, and how many messages.

Read from the files, on any thread, since a block that nobody reads may be cold. A block that ends
while the log is open notes its facts itself (``Log``).
"""

from collections.abc import Iterator
from typing import NamedTuple

from vq.errors import CorruptData
from vq.store.disk.disk import Disk, File
from vq.store.log.piece import Piece
from vq.store.records.batches import read_headers
from vq.store.records.format import INDEX_SUFFIX, BatchHeader
from vq.store.records.offset_index import OffsetIndex


class BlockFacts(NamedTuple):
    """Facts of a block.

    Attributes:
        last_ms: Append time of its last batch.
        messages: In it, control records not counted.
    """

    last_ms: int
    messages: int


def read_facts(disk: Disk, piece: Piece) -> BlockFacts:
    """Return the facts of the block that ``piece`` covers as a whole; blocks.

    With an index beside the block it reads that, and 64 KiB of the block at most; without one the
    headers of all batches.

    Raises:
        CorruptData: A batch on the way is damaged.
        OSError: The medium cannot deliver it, or it is gone.
    """
    offset, messages, last_ms = _from_index(disk, piece)
    file = piece.open(disk)
    try:
        for header in _headers(file, piece, offset):
            last_ms = header.append_time_ms
            messages += header.record_count
    finally:
        file.close()
    return BlockFacts(last_ms, messages)


def read_first_ms(disk: Disk, piece: Piece) -> int:
    """Return the append time of the first batch of a block; blocks.

    Raises:
        CorruptData, OSError: As ``read_facts``.
    """
    file = piece.open(disk)
    try:
        return next(_headers(file, piece, piece.block_start)).append_time_ms
    finally:
        file.close()


def _from_index(disk: Disk, piece: Piece) -> tuple[int, int, int]:
    """Return the last batch of the index, the messages before it and its time; else the start."""
    try:
        index, end, _ = OffsetIndex.from_bytes(
            disk.read_bytes(piece.path.with_suffix(INDEX_SUFFIX))
        )
    except (OSError, CorruptData):
        return piece.block_start, 0, 0
    if (index.start_offset, end) != (piece.block_start, piece.end):
        return piece.block_start, 0, 0
    return index.at_offset(piece.end)


def _headers(file: File, piece: Piece, offset: int) -> Iterator[BatchHeader]:
    return read_headers(file.pread, piece.block_start, offset, piece.end, piece.path.name)
