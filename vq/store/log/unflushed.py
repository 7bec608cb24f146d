"""Whether a loss of power may have taken something that this data directory's broker had counted.

With ``flush = async`` a broker acknowledges what is written and not flushed yet. Before it does, it
says so in a text file of one line, ``<data>/@unflushed``, sample:

    vq-unflushed 1 5c8b7c5e-9f0c-4f3e-8a53-3d3a3d2b1f07 086b344b

The words are: file type, version of this layout, id of the machine's boot, and CRC-32C of the three
words before. A clean stop removes the file when everything is flushed. A start that finds it with
another boot id was not preceded by a clean stop, and the page cache is gone. The file then keeps
that id until the broker has caught up with its group (``settle``): another start must know, too.
A broker that finds damage, or that others have more of a log, writes ``-`` as the id (``doubt``).

Threads: ``lost`` may be read anywhere; the methods block, and any thread may call them.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vq.log_lines import get_logger
from vq.store.disk.disk import Disk
from vq.store.records.checked_text import checksum

logger = get_logger(__name__)

UNFLUSHED_NAME: Final = "@unflushed"  # no topic can have this name
_MARK: Final = "vq-unflushed"
_VERSION: Final = "1"
_DOUBT: Final = "-"  # in the place of the id: no boot has it


class Unflushed:
    """The mark of one data directory.

    Attributes:
        lost: Since the directory was last up to date with its group, power was lost, and messages
            that were written and not flushed may have gone with it; or a start found them missing.
    """

    def __init__(
        self,
        path: Path,
        disk: Disk,
        check: Callable[[], None],
        *,
        marked: bool,
        lost: bool,
        noted: bool = False,
    ) -> None:
        """Use ``Unflushed.load``."""
        self._check = check
        self._path = path
        self._disk = disk
        self._marked = marked  # the file is there,
        self._noted = noted  # and has the next start know that something is lost
        self._counts = False  # this process counts what is not flushed
        self._lock = threading.RLock()
        self.lost = lost

    @classmethod
    def load(cls, data: Path, disk: Disk, check: Callable[[], None] = lambda: None) -> "Unflushed":
        """Return the mark of the data directory ``data``.

        ``check`` raises ``OSError`` while the directory is gone: a mark in its place would not be
        found again.

        Raises:
            OSError: It cannot be read.
        """
        path = data / UNFLUSHED_NAME
        if not disk.exists(path):
            return cls(path, disk, check, marked=False, lost=False)
        boot_id = disk.boot_id()
        # A file that cannot be understood counts as one of another boot: to lead less is safe.
        lost = not boot_id or disk.read_bytes(path) != _line(boot_id)
        if lost:
            logger.warning(
                "messages may be missing: power was lost before a clean stop, or an earlier start "
                "found a log damaged, cut its end, or found it too short",
                path=path,
            )
        return cls(path, disk, check, marked=True, lost=lost, noted=lost and bool(boot_id))

    def mark(self) -> None:
        """Make durable that something may be counted from now on that is not flushed.

        Raises:
            OSError: It is not durable.
        """
        with self._lock:
            self._counts = True
            if not self._marked:
                self._check()
                self._disk.write_atomic(self._path, _line(self._disk.boot_id()))
                self._marked = True

    def doubt(self) -> None:
        """Note that something is lost, however that came; later starts know it, until ``settle``.

        Raises:
            OSError: The next start may not know it.
        """
        with self._lock:
            self.lost = True
            if self._noted:
                return
            self._check()
            self._disk.write_atomic(self._path, _line(_DOUBT))
            self._marked = self._noted = True
            self.lost = True  # also if it was taken back while this was written

    def settle(self) -> None:
        """Have the next start know that nothing is lost: the owner took ``lost`` back.

        Does nothing if it is set again meanwhile: what is missing now is younger.

        Raises:
            OSError: The next start may not know that.
        """
        with self._lock:
            if self.lost:
                return
            self._noted = False
            if not self._counts:  # all topics have flush ``sync``: a loss of power takes nothing
                self.clear()
            elif self._disk.read_bytes(self._path) != (line := _line(self._disk.boot_id())):
                self._disk.write_atomic(self._path, line)

    def clear(self) -> None:
        """Note that everything is flushed, and that nothing more will be written.

        Raises:
            OSError: The mark may be there still.
        """
        with self._lock:
            if self._marked and not self.lost:
                self._disk.unlink(self._path)
                self._disk.sync_directory(self._path.parent)
                self._marked = False


def _line(boot_id: str) -> bytes:
    text = f"{_MARK} {_VERSION} {boot_id}"
    return f"{text} {checksum(text)}\n".encode()
