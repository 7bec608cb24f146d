"""Making the key index of a closed block, in steps small enough to do beside other work.

The block is read with ``pread`` through a file of its own, so another thread than the log's takes
the steps. A block with damage gets no index: a search must meet the damage, and tell it.
"""

from pathlib import Path
from typing import Final

from vq.errors import CorruptData
from vq.limits import KIB
from vq.store.care.key_index import KeyIndexBuilder
from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk, File
from vq.store.log.piece import Piece
from vq.store.records.batches import read_batches

__all__ = ["KeyIndexBuild", "write_key_index"]

#: What one step reads, unless a batch is larger.
STEP_BYTES_MIN: Final = 8 * KIB
STEP_BYTES_MAX: Final = 256 * KIB
#: A step that meets more messages than this is followed by a smaller one: each takes about 1 µs of
#: the interpreter.
STEP_MESSAGES: Final = 400


class KeyIndexBuild:
    """Makes the key index of the block that ``piece`` covers as a whole.

    Attributes:
        done: Whether there is nothing more to do.
        index: The bytes of the index once it is done; None: the block is damaged, or cannot be
            read.
    """

    def __init__(self, disk: Disk, piece: Piece) -> None:
        self.done = False
        self.index: bytes | None = None
        self._disk = disk
        self._piece = piece
        self._builder = KeyIndexBuilder(piece.block_start)
        self._file: File | None = None
        self._step_bytes = STEP_BYTES_MIN

    def step(self) -> int:
        """Read the next bytes; return how many. Blocks for one read, or two."""
        if self.done:
            return 0
        before = self._builder.end_offset
        try:
            if self._file is None:
                self._file = self._piece.open(self._disk)
            self._add_some(self._file)
        except (OSError, CorruptData):
            self.done = True
        if self._builder.end_offset >= self._piece.end:
            self.index, self.done = self._builder.to_bytes(), True
        if self.done:
            self.close()
        return self._builder.end_offset - before

    def _add_some(self, file: File) -> None:
        piece, begin = self._piece, self._builder.end_offset
        data, batches = read_batches(
            file.pread, piece.block_start, begin, self._step_bytes, piece.end
        )
        if not batches:
            raise CorruptData(f"no intact batch at offset {begin} of {piece.path.name}")
        few = self._builder.add(data, batches, begin) < STEP_MESSAGES
        wish = self._step_bytes * 2 if few else self._step_bytes // 2
        self._step_bytes = min(max(wish, STEP_BYTES_MIN), STEP_BYTES_MAX)

    def close(self) -> None:
        """Give the file back. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def write_key_index(disk: Disk, path: Path, data: bytes) -> None:
    """Write a key index beside its block, without making it durable: it can be made again.

    A torn one, after a power cut, fails its CRC.

    Raises:
        OSError: It could not be written; there may be a part of it under another name.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    if disk.exists(temporary):
        disk.unlink(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.pwrite([data], 0)
    finally:
        file.close()
    disk.rename(temporary, path)
