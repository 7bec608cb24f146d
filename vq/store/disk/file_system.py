"""File systems: which of them can be synced as a whole, and how.

In here: ``syncfs`` and what it is worth, and when a file was made. Not in here: when ``syncfs`` is
called instead of one ``fdatasync`` per file (``vq.store.commit.flusher``), and files and
directories (``disk``).

``syncfs`` writes out all dirty data and metadata of a file system. What else it does depends on the
kind of file system:

    kind    flushes the device          reports that the journal cannot be written
    ext4    always                      not always; a later change of metadata is refused
    xfs     only if the log was dirty   not needed: every later call is refused
    others  unknown                     unknown

Overwriting a few bytes in place leaves the log of XFS clean. An ``fdatasync`` of any file flushes
the device on both. So on XFS ``syncfs`` needs one ``fdatasync`` behind it, on ext4 it needs a look
at the journal when metadata had to be written, and on any other file system every file is synced
by itself (decision 0017).
"""

import ctypes
import os
import re
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Kind of file system, as mountinfo names it -> whether ``syncfs`` always flushes the device.
#: "ext4" is not "ext2": the driver of that name flushes nothing.
SYNCFS_FLUSHES: Final[Mapping[str, bool]] = MappingProxyType({"ext4": True, "xfs": False})

#: Of ``statx``: what is asked for, its size, and where the time of birth lies.
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_STATX_BTIME_AT: Final = 80
_AT_FDCWD: Final = -100

#: Kinds that ask a server for each write, or for many; see ``is_remote``.
_REMOTE: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "glusterfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "virtiofs",
    }
)


class FileSystem(Protocol):
    """A file system that can be synced as a whole. Files on the same one have the same object.

    Attributes:
        flushes_device: Whether ``sync`` alone makes data durable. Otherwise it needs a
            ``File.datasync`` of any file on this file system, begun after ``sync`` returned.
        block_bytes: Writes within a block that is durable already need no new metadata.
    """

    flushes_device: bool
    block_bytes: int

    def sync(self) -> None:
        """Write out everything that was written on this file system before this call.

        Raises:
            OSError: Something on this file system was lost since the last call. It is not known
                which file, and the next call does not report it again: sync each file by itself
                from now on.
        """
        ...

    def check_journal(self) -> None:
        """Return if metadata can still be written; otherwise every later ``datasync`` fails, too.

        Call it after a ``sync`` that had metadata to write, and after any error.

        Raises:
            OSError: What was written since the last call may be lost.
        """
        ...


class RealFileSystem:
    """A file system of the operating system, synced by ``syncfs``.

    Holds a descriptor for good: the kernel reports to a descriptor what failed since it was opened.
    """

    def __init__(self, fd: int, path: Path, kind: str) -> None:
        self.flushes_device = SYNCFS_FLUSHES[kind]
        self.block_bytes = os.fstatvfs(fd).f_frsize
        self._checks_journal = kind == "ext4"
        self._fd = fd
        self._path = path
        syncfs = _syncfs()
        assert syncfs is not None, "it is asked for before a file system is met"
        self._syncfs = syncfs
        weakref.finalize(self, os.close, fd)

    def sync(self) -> None:
        """See ``FileSystem.sync``."""
        if self._syncfs(self._fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"syncfs failed: {os.strerror(number)}", str(self._path))

    def check_journal(self) -> None:
        """See ``FileSystem.check_journal``.

        When ext4 cannot write its journal, ``syncfs`` may still return 0, and so does ``fdatasync``
        of a file whose data was written out before. ext4 looks at the journal at the next change of
        metadata: the first one here makes it refuse all later calls, the second one is refused.
        """
        if self._checks_journal:
            os.utime(self._fd)
            os.utime(self._fd)


class FileSystems:
    """The file systems that files were opened on, by device number. Safe from any thread.

    A file system is met when the first file on it is opened, before anything is written to that
    file: so no error of writing out a file happens before its file system's descriptor is open.
    """

    def __init__(self) -> None:
        self._known: dict[int, RealFileSystem | None] = {}
        self._lock = threading.Lock()

    def of_file(self, fd: int, path: Path) -> RealFileSystem | None:
        """Return the file system of an open file; None if its files are synced one by one."""
        if _syncfs() is None:
            return None
        device = os.fstat(fd).st_dev
        try:
            return self._known[device]
        except KeyError:
            return self._meet(device, path.parent)

    def of_directory(self, path: Path) -> RealFileSystem | None:
        """Return the file system of a directory if a file on it was opened."""
        return self._known.get(path.stat().st_dev)

    def _meet(self, device: int, directory: Path) -> RealFileSystem | None:
        with self._lock:
            if device in self._known:
                return self._known[device]
            try:
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:  # out of descriptors: this file is synced by itself, the next asks anew
                return None
            if os.fstat(fd).st_dev != device:  # the file is a link to another file system
                os.close(fd)
                return None
            kind = kind_of(fd)
            found = None
            if kind in SYNCFS_FLUSHES:
                found = RealFileSystem(fd, directory, kind)
            else:
                os.close(fd)
            logger.info(
                "file system found",
                path=directory,
                kind=kind or None,
                commits_of_many_files=_describe(found),
            )
            if is_remote(kind):
                logger.warning(
                    "file system asks a server for writes; while that does not answer, this "
                    "process may hang",
                    path=directory,
                    kind=kind,
                )
            self._known[device] = found
            return found


def is_remote(kind: str) -> bool:
    """Whether a write to such a file system may wait for another machine or process."""
    return kind in _REMOTE or kind.partition(".")[0] == "fuse"


def _describe(found: RealFileSystem | None) -> str:
    if found is None:
        return "fdatasync"
    return "syncfs" if found.flushes_device else "syncfs+fdatasync"


@cache
def _syncfs() -> Callable[[int], int] | None:
    """Return ``syncfs`` where it reports errors of writing out: from Linux 5.8 on."""
    if sys.platform != "linux" or _kernel_version() < (5, 8):
        return None
    call: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return call


def _kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def kind_of(fd: int) -> str:
    """Return the kind of file system an open directory is on; "" if that cannot be told.

    Not ``statfs``: ext2, ext3 and ext4 share one number there.
    """
    try:
        facts = Path(f"/proc/self/fdinfo/{fd}").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
    number = re.search(r"^mnt_id:\s*(\d+)$", facts, re.MULTILINE)
    return "" if number is None else parse_kind(mounts, int(number[1]))


def parse_kind(mounts: str, mount_id: int) -> str:
    """Return the kind of file system of a mount; "" if unknown.

    A line of mountinfo: ``36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/vda rw,discard``.
    An XFS with a device for real-time data counts as unknown: ``fdatasync`` of a file on one of its
    devices does not flush the other.
    """
    for line in mounts.splitlines():
        if line.startswith(f"{mount_id} "):
            kind, _, options = line.partition(" - ")[2].split(" ", 2)
            return "" if "rtdev=" in options else kind
    return ""


def birth(path: Path) -> tuple[int, int]:
    """Return the number of a file in its file system, and when it was made, in ns; 0: not known.

    Raises:
        OSError: It is not there, or cannot be looked at.
    """
    number = path.stat().st_ino
    statx = getattr(ctypes.CDLL(None), "statx", None) if sys.platform == "linux" else None
    if statx is None:  # pragma: no cover - not Linux, or an older C library
        return number, 0
    found = ctypes.create_string_buffer(_STATX_BYTES)
    failed = statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found)
    (mask,) = struct.unpack_from("=I", found)
    if failed or not mask & _STATX_BTIME:
        return number, 0
    seconds, rest = struct.unpack_from("=qI", found, _STATX_BTIME_AT)
    return number, seconds * 1_000_000_000 + rest
