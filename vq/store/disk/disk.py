"""Files as a port: what the log asks of a disk.

``Disk`` and ``File`` are all the log knows of files; ``real_disk`` has those of the machine, and
``memory_disk`` the twin that records and replays crashes. Errors are plain ``OSError`` with their
errno; what an error means for a partition is decided in ``log``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from vq.store.disk.file_system import FileSystem

Buffer = bytes | bytearray | memoryview

#: What the name of a file ends in until the file is whole. Whoever finds one at a start removes it.
TEMPORARY_SUFFIX: Final = ".tmp"


class File(Protocol):
    """An open file. One thread writes; ``datasync`` may run on another one meanwhile.

    Attributes:
        file_system: What it is on, if that can be synced as a whole.
    """

    file_system: FileSystem | None

    @property
    def descriptor(self) -> int:
        """What ``fdatasync`` of is all that ``datasync`` does; -1: it does something else."""
        ...

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of ``buffers``, back to back, from ``position`` on.

        Raises:
            OSError: A part may have been written. ENOSPC and EDQUOT: the disk is full.
        """
        ...

    def pread(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def view(self, position: int, length: int) -> memoryview:
        """Return ``length`` bytes as they are now, without copying where the disk can.

        The view stays valid after ``close`` and ``truncate``; bytes cut off by a later ``truncate``
        must not be looked at.

        Raises:
            OSError: EIO when the medium cannot deliver them, or the file is shorter than that.
        """
        ...

    def resident(self, position: int, length: int) -> bool:
        """Whether ``view`` of these bytes would not wait for the medium, as far as is known.

        Cheap, and not exact: it checks one byte in 128 KiB, since disks read ahead at least that
        much.
        """
        ...

    def fetch(self, position: int, length: int) -> None:
        """Bring these bytes into memory, and begin to read as many behind them. Blocks.

        Raises:
            OSError: The medium cannot deliver them.
        """
        ...

    def allocate(self, start: int, length: int) -> None:
        """Make sure that ``[start, start + length)`` has space on the disk; grows the file.

        Raises:
            OSError: ENOSPC: there is not so much space, and the file is as long as before.
        """
        ...

    def truncate(self, length: int) -> None:
        """Cut the file to ``length`` bytes, or fill it up with zeros."""
        ...

    def datasync(self) -> None:
        """Return once every byte written before this call, and the length, are durable.

        Raises:
            OSError: It is unknown what is durable; calling it again proves nothing.
        """
        ...

    def forget_cache(self) -> None:
        """Let the next reads come from the medium where possible; call it after ``datasync``.

        After a failed write-back the page cache shows bytes that are not on the disk.
        """
        ...

    def size(self) -> int:
        """Return the length of the file in bytes."""
        ...

    def close(self) -> None:
        """Give the descriptor back. Says nothing about durability. May be called twice."""
        ...


class Lock(Protocol):
    """A lock on a file that is held until released or the process ends."""

    def release(self) -> None:
        """Give the lock back. May be called twice."""
        ...


class Disk(Protocol):
    """A file system, as far as the log needs one."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; with ``create`` the file must not exist yet.

        On a file system that is read-only, for reading: what would write raises ``EROFS``.

        The new name is durable only after ``sync_directory``.
        """
        ...

    def exists(self, path: Path) -> bool:
        """Whether something has this name."""
        ...

    def size(self, path: Path) -> int:
        """Return the length of the file in bytes."""
        ...

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def is_directory(self, path: Path) -> bool:
        """Whether the name is that of a directory."""
        ...

    def mkdir(self, path: Path) -> list[Path]:
        """Make the directory and its missing parents; return the directories to sync for that."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or directory another name, replacing a file of that name."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        ...

    def unlink_large(self, path: Path) -> None:
        """Remove a file that may be large: the name at once, its space soon, on another thread.

        The space of a file of less than ``unlinked.SMALL_BYTES`` is back at once.
        """
        ...

    def rmtree(self, path: Path) -> None:
        """Remove a directory and all in it, if it is there."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return once every change of names in the directory is durable."""
        ...

    def lock(self, path: Path) -> Lock:
        """Take the lock on the file, which is made if missing, at once.

        Raises:
            DirectoryRefused: Somebody else holds it.
        """
        ...

    def free_space(self, path: Path) -> tuple[int, int]:
        """Return the bytes free for us, and all that we can have there, free and in use together.

        Bytes that only root, or only others, can have are in neither, as in the shares of ``df``.
        What ``unlink_large`` has not given back yet is free.
        """
        ...

    def free_files(self, path: Path) -> tuple[int, int]:
        """Return how many files can be made there, and how many it can have; 0, 0: no bound."""
        ...

    def file_system_id(self, path: Path) -> str:
        """Return what is equal for paths on one file system of this boot; "": not known."""
        ...

    def born(self, path: Path) -> str:
        """Return what tells a file from each copy of it, and stays while it lies where it is.

        Another name in its directory leaves it as it is, and so does a change of its bytes.

        Raises:
            OSError: It is not there, or cannot be looked at.
        """
        ...

    def boot_id(self) -> str:
        """Return an id of this boot of the machine; "": not known.

        What was written and not flushed in another boot may be gone.
        """
        ...

    def read_bytes(self, path: Path) -> bytes:
        """Return the whole file."""
        ...

    def write_atomic(self, path: Path, data: bytes) -> None:
        """Replace the file with ``data``: after a crash it holds the old or the new, durably."""
        ...

    def file_system(self, path: Path) -> FileSystem | None:
        """Return the file system of a directory; None: no file was opened there, or no sync.

        Raises:
            OSError: The directory cannot be examined.
        """
        ...
