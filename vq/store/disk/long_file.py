"""A large file that is written from front to back beside the logs, and flushed in steps.

In here: how much may be unflushed. Not in here: what is written (``archive_place``, ``new_block``).

A flush of another file on the same disk waits for one that is under way. On a disk that writes
2.5 GB/s, an ``fdatasync`` of a log took up to 54 ms beside one flush of 128 MiB, and 10 ms beside
flushes of 8 MiB.
"""

from typing import Final

from vq.limits import MIB
from vq.store.disk.disk import File

SYNC_BYTES: Final = 8 * MIB


class LongFile:
    """Appends to a new file; whoever opened it hands it over. One thread at a time.

    Attributes:
        length: How much was written.
    """

    def __init__(self, file: File) -> None:
        self.length = 0
        self._file = file
        self._synced_length = 0

    def write(self, data: bytes) -> None:
        """Write what follows; blocks for a flush now and then.

        Raises:
            OSError: The file is to be given up: it is unknown what of it is durable.
        """
        self._file.pwrite([data], self.length)
        self.length += len(data)
        if self.length - self._synced_length >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make what was written durable.

        Raises:
            OSError: As ``write``.
        """
        self._file.datasync()
        self._synced_length = self.length

    def forget_cache(self) -> None:
        """See ``File.forget_cache``."""
        self._file.forget_cache()

    def close(self) -> None:
        """See ``File.close``."""
        self._file.close()
