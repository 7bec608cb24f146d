"""A run of whole batches in one block: what a reader of stored bytes is given to read.

In here: where the bytes are, and opening them, block file or archive. Not in here: what is read of
them (``block_facts``, ``scrub``, ``search``, ``key_index_build``).
"""

from pathlib import Path
from typing import NamedTuple

from vq.store.archive.archived_file import open_stored
from vq.store.disk.disk import Disk, File


class Piece(NamedTuple):
    """A run of whole batches ``[start, end)`` in the block at ``path``.

    ``place``: where its archive is, if that is at a URL, whose place may not answer; "": here.
    """

    path: Path
    block_start: int
    start: int
    end: int
    place: str = ""

    def open(self, disk: Disk) -> File:
        """Return the block's file, opened for this caller alone; any thread.

        Raises:
            OSError: It cannot be opened, or is gone.
        """
        return open_stored(disk, self.path)
