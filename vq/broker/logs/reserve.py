"""Space kept aside on the disk of the logs, for what a broker must write when it is full.

In here: one file, ``<data>/@reserve``, made while there is space and deleted when there is none.
A broker that starts on a full disk must still store its epoch and put a torn tail aside; with the
reserve it can serve before anybody frees space.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from vq import limits
from vq.errors import DiskFull
from vq.log_lines import get_logger
from vq.store.disk.disk import Disk
from vq.store.log.block import FULL_ERRNOS

logger = get_logger(__name__)

T = TypeVar("T")

RESERVE_NAME: Final = "@reserve"
#: Space for a few small files and for the usual torn tail: the last batch of a log, 4 MiB at most.
#: Cutting it gives its space back before the next log is opened, so one is enough for all. A longer
#: one (many batches in flight when the power went) has its partition wait for space …
RESERVE_BYTES: Final = 2 * limits.BATCH_BYTES_MAX
#: … but no more than this part of a small disk.
_SHARE: Final = 64


class Reserve:
    """The reserve of one data directory. Its methods block; one thread calls them."""

    def __init__(self, data: Path, disk: Disk) -> None:
        self._data = data
        self._path = data / RESERVE_NAME
        self._disk = disk

    @property
    def held(self) -> bool:
        """Whether there is a reserve now."""
        return self._disk.exists(self._path)

    def release_if_short(self) -> None:
        """Free the reserve when less than its size is free; called first at a start.

        A failure is logged only: the write that needs the space raises its own error.
        """
        try:
            free, total = self._disk.free_space(self._data)
            if free < self._size(total):
                self.release()
        except OSError as error:
            logger.warning("reserve cannot be freed", path=self._data, error=error)

    def release(self) -> bool:
        """Free the reserve; return whether there was one."""
        if not self.held:
            return False
        logger.warning("disk is full, the reserve is freed", path=self._data)
        self._disk.unlink(self._path)
        return True

    def hold(self) -> None:
        """Make the reserve if it is missing and leaves as much space again; failing is no error."""
        try:
            free, total = self._disk.free_space(self._data)
            size = self._size(total)
            if self.held or free < 2 * size:
                return
            file = self._disk.open(self._path, create=True)
            try:
                file.allocate(0, size)
            finally:
                file.close()
        except OSError as error:
            logger.info("reserve cannot be allocated", path=self._data, error=error)

    def spend(self, write: Callable[[], T], what: str) -> T:
        """Call ``write``; when the disk is full, free the reserve and call it once more.

        ``what`` says what it does, for the error: "the broker's epoch cannot be stored".

        Raises:
            DiskFull: There is no space even so.
            OSError: Something else went wrong.
        """
        try:
            try:
                return write()
            except OSError as error:
                if error.errno not in FULL_ERRNOS or not self.release():
                    raise
                return write()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            raise DiskFull(f"the disk of {self._data} is full: {what}; free some space") from error

    @staticmethod
    def _size(total: int) -> int:
        return min(RESERVE_BYTES, total // _SHARE)
