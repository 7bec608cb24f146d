"""Making the key index of a closed block, in steps small enough to do beside other work.

A block with damage gets no index: a search must meet the damage, and tell it.
"""

from pathlib import Path
from typing import Final

from vq.errors import CorruptData
from vq.store.care.key_index import KeyIndexBuilder
from vq.store.care.walk import Run, Walk
from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk
from vq.store.log.piece import Piece

#: A step that meets more messages than this is followed by a smaller one: each takes about 1 µs of
#: the interpreter.
STEP_MESSAGES: Final = 400


class KeyIndexBuild(Walk):
    """Makes the key index of the block that ``piece`` covers as a whole; ends at damage.

    Attributes:
        index: The bytes of the index once it is done; None: the block is damaged, or cannot be
            read.
    """

    def __init__(self, disk: Disk, piece: Piece) -> None:
        super().__init__(disk, [piece], step_messages=STEP_MESSAGES)
        self.index: bytes | None = None
        self._builder = KeyIndexBuilder(piece.block_start)

    def step(self, stop: int | None = None) -> Run | None:
        """See ``Walk.step``."""
        run = super().step(stop)
        try:
            if run is not None:
                self._builder.add(run.data, run.batches, run.offset)
        except CorruptData:  # the records of a batch do not fill it
            self.stop()
            return run
        if self.in_damage or self.damage or self.unreachable:
            self.stop()
        elif self.done:
            self.index = self._builder.to_bytes()
        return run


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
