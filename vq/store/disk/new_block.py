"""A block whose file is gone, written anew: beside its place, so a crash leaves no half of it.

Not in here: where its bytes come from (``archive_writer``, the brokers' repair).
"""

from pathlib import Path

from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk
from vq.store.disk.long_file import LongFile


class NewBlock:
    """A block whose file is gone, written anew beside its place.

    ``finish``, ``discard`` or ``close`` it. ``mark`` keeps the names of two apart that are written
    at the same time.
    """

    def __init__(self, disk: Disk, path: Path, *, mark: str = "") -> None:
        self._disk = disk
        self._path = path
        self._beside = path.with_name(path.name + mark + TEMPORARY_SUFFIX)
        if disk.exists(self._beside):
            disk.unlink(self._beside)
        self._file: LongFile | None = LongFile(disk.open(self._beside, create=True))

    def add(self, data: bytes) -> None:
        """Write what follows."""
        assert self._file is not None
        self._file.write(data)

    def finish(self) -> None:
        """Put it in its place, durably."""
        assert self._file is not None
        self._file.sync()
        self.close()
        self._disk.rename(self._beside, self._path)
        self._disk.sync_directory(self._path.parent)

    def discard(self) -> None:
        """Remove it: its place is not there any more."""
        self.close()
        self._disk.unlink(self._beside)

    def close(self) -> None:
        """Give the file back. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
