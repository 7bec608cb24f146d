"""The files of the machine: ``disk.Disk`` as it is outside of tests.

Errors are plain ``OSError`` with their errno. Nothing here retries anything except an interrupted
or short write.
"""

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vq.errors import DirectoryRefused
from vq.store.disk.disk import TEMPORARY_SUFFIX, Buffer
from vq.store.disk.file_system import FileSystem, FileSystems, birth
from vq.store.disk.local_files import flush_directory
from vq.store.disk.unlinked import UnlinkedFiles

#: Only the broker's user and its group (backup, metrics) may read messages.
FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
#: On Linux: an id that is drawn at each boot, the same in all containers of a machine.
BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")
#: An id of the installed system.
MACHINE_ID_PATH: Final = Path("/etc/machine-id")
sync_descriptor: Final = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
#: Linux 5.14: fault pages in and return EFAULT where touching them would be SIGBUS.
_MADV_POPULATE_READ: Final = 22
_PAGE: Final = mmap.PAGESIZE
#: Linux 4.14: reads what is in the page cache, and fails where it would have to wait.
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
#: Distance between the bytes that ``resident`` checks in the page cache.
_PROBE_BYTES: Final = 128 * 1024
#: Bytes that one system call fetches.
_FETCH_BYTES: Final = 1024 * 1024


class RealFile:
    """A file of the operating system; appends are ``pwritev``, reads are slices of a mapping."""

    __slots__ = ("_fd", "_map", "_map_length", "_mapped", "_read_only", "file_system")

    def __init__(
        self, fd: int, file_system: FileSystem | None = None, *, read_only: bool = False
    ) -> None:
        self._fd = fd
        self._read_only = read_only
        self.file_system = file_system
        self._map: mmap.mmap | None = None
        self._mapped = memoryview(b"")
        self._map_length = 0

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """See ``File.pwrite``."""
        if self._read_only:
            raise _no_writes()
        total = 0
        for buffer in buffers:
            total += len(buffer)
        written = os.pwritev(self._fd, buffers, position)
        if written != total:
            self._pwrite_rest(buffers, position, written)

    def _pwrite_rest(self, buffers: Sequence[Buffer], position: int, written: int) -> None:
        rest = memoryview(b"".join(buffers))
        while written < len(rest):
            count = os.pwrite(self._fd, rest[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "a write to a file wrote nothing")
            written += count

    def pread(self, position: int, length: int) -> bytes:
        """See ``File.pread``."""
        chunks = []
        while length > 0:
            chunk = os.pread(self._fd, length, position)
            if not chunk:
                break
            chunks.append(chunk)
            position += len(chunk)
            length -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def view(self, position: int, length: int) -> memoryview:
        """See ``File.view``."""
        end = position + length
        if end > self._map_length:
            self._remap(end)
        mapping = self._map
        if mapping is not None and length:
            start = position - position % _PAGE
            try:
                mapping.madvise(_MADV_POPULATE_READ, start, end - start)
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: an older kernel; then we trust the disk
                    raise OSError(
                        errno.EIO, f"bytes [{position}, {end}) of a file cannot be read: {error}"
                    ) from error
        return self._mapped[position:end]

    def resident(self, position: int, length: int) -> bool:
        """See ``File.resident``. True where the kernel cannot tell."""
        if _NOWAIT is None:
            return True
        probe, last = [bytearray(1)], position + length - 1
        try:
            for at in range(position, last, _PROBE_BYTES):
                os.preadv(self._fd, probe, at, _NOWAIT)
            os.preadv(self._fd, probe, last, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # a file system without it; or an error that the read itself will meet
            return True
        return True

    def fetch(self, position: int, length: int) -> None:
        """See ``File.fetch``.

        Reads into a buffer that is thrown away: ``preadv`` lets other threads run meanwhile, which
        ``mmap.madvise`` does not.
        """
        buffer = memoryview(bytearray(min(length, _FETCH_BYTES)))
        end = position + length
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, end, length, os.POSIX_FADV_WILLNEED)
        while position < end:
            count = os.preadv(self._fd, [buffer[: end - position]], position)
            if count == 0:
                return
            position += count

    def _remap(self, end: int) -> None:
        size = os.fstat(self._fd).st_size
        if end > size:
            raise OSError(errno.EIO, f"a file of {size} bytes should have at least {end}")
        # Old mappings live on as long as somebody holds a slice of them. Never beyond the end of
        # the file: touching a page there is SIGBUS.
        self._map = self._new_map(size)
        self._mapped = memoryview(self._map)
        self._map_length = size

    def _new_map(self, size: int) -> mmap.mmap:
        try:
            return mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        # The file system turned read-only after an error, and ext4 (seen with Linux 6.18) maps only
        # what was opened for reading. By its descriptor: the file may have another name by now.
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return mmap.mmap(fd, size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)

    def allocate(self, start: int, length: int) -> None:
        """See ``File.allocate``."""
        if self._read_only:
            raise _no_writes()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, start, length)
        elif start + length > self.size():  # pragma: no cover - not Linux
            os.ftruncate(self._fd, start + length)

    def truncate(self, length: int) -> None:
        """See ``File.truncate``."""
        if self._read_only:
            raise _no_writes()
        os.ftruncate(self._fd, length)
        if length < self._map_length:
            self._drop_map()

    def _drop_map(self) -> None:
        self._map = None
        self._mapped = memoryview(b"")
        self._map_length = 0

    @property
    def descriptor(self) -> int:
        """See ``File.descriptor``."""
        return self._fd

    def datasync(self) -> None:
        """See ``File.datasync``."""
        sync_descriptor(self._fd)

    def forget_cache(self) -> None:
        """See ``File.forget_cache``."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        """See ``File.size``."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """See ``File.close``."""
        fd, self._fd = self._fd, -1
        self._drop_map()
        if fd >= 0:
            os.close(fd)


def _no_writes() -> OSError:
    return OSError(errno.EROFS, "the file system was read-only when the file was opened")


class _RealLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if os.getpid() == self._pid:  # a child of a fork shares it, and may keep it open
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


class RealDisk:
    """The file system of the machine. Safe from any thread.

    One descriptor is held in reserve for ``sync_directory``: a process that has run out of them
    must still be able to make durable what it has written.
    """

    def __init__(self) -> None:
        self._reserve = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]  # empty while in use
        self._reserve_lock = threading.Lock()
        self._file_systems = FileSystems()
        self._unlinked = UnlinkedFiles()
        weakref.finalize(self, _close_all, self._reserve)

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        """See ``Disk.open``."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        read_only = False
        try:
            fd = os.open(path, flags, FILE_MODE)
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
            # The file system turned read-only after an error, say: what is there can be read.
            fd, read_only = os.open(path, os.O_RDONLY | os.O_CLOEXEC), True
        if create:
            _set_mode(fd, FILE_MODE)
        return RealFile(fd, self._file_systems.of_file(fd, path), read_only=read_only)

    def exists(self, path: Path) -> bool:
        """See ``Disk.exists``."""
        return path.exists()

    def size(self, path: Path) -> int:
        """See ``Disk.size``."""
        return path.stat().st_size

    def listdir(self, path: Path) -> list[str]:
        """See ``Disk.listdir``."""
        return sorted(os.listdir(path))

    def is_directory(self, path: Path) -> bool:
        """See ``Disk.is_directory``."""
        return path.is_dir()

    def mkdir(self, path: Path) -> list[Path]:
        """See ``Disk.mkdir``."""
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                directory.mkdir(DIRECTORY_MODE)
                _set_mode(directory, DIRECTORY_MODE)
        return [directory.parent for directory in reversed(missing)]

    def rename(self, source: Path, target: Path) -> None:
        """See ``Disk.rename``."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """See ``Disk.unlink``."""
        path.unlink()

    def unlink_large(self, path: Path) -> None:
        """See ``Disk.unlink_large``."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no descriptor is left, say
            path.unlink()
            return
        try:
            path.unlink()
        finally:
            self._unlinked.close(fd)

    def rmtree(self, path: Path) -> None:
        """See ``Disk.rmtree``."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: Path) -> None:
        """See ``Disk.sync_directory``."""
        try:
            flush_directory(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            with self._reserve_lock:
                if not self._reserve:
                    raise
                _close_all(self._reserve)
                flush_directory(path)  # no sync was tried before, so this hides no error
                with contextlib.suppress(OSError):
                    self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def lock(self, path: Path) -> _RealLock:
        """See ``Disk.lock``; the lock is ``flock``, so it ends with the process."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        if os.fstat(fd).st_size == 0:
            _set_mode(fd, FILE_MODE)  # made just now
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise DirectoryRefused(
                f"{path} is locked by process {holder}: another broker uses this data directory; "
                "stop it or choose another directory",
                details={"pid": holder},
            ) from error
        # Written over before it is cut: so it needs no new space, and works on a full disk.
        holder_now = f"{os.getpid()}\n".encode()
        os.pwrite(fd, holder_now, 0)
        os.ftruncate(fd, len(holder_now))
        return _RealLock(fd)

    def free_space(self, path: Path) -> tuple[int, int]:
        """See ``Disk.free_space``."""
        # Asked first: rather a little too much for a moment than messages deleted for space that
        # is about to be back.
        coming = self._unlinked.bytes_coming(path.stat().st_dev)
        stat = os.statvfs(path)
        free, total = _ours(stat.f_bavail, stat.f_bfree, stat.f_blocks)
        total *= stat.f_frsize
        return min(free * stat.f_frsize + coming, total), total

    def free_files(self, path: Path) -> tuple[int, int]:
        """See ``Disk.free_files``."""
        stat = os.statvfs(path)
        return _ours(stat.f_favail, stat.f_ffree, stat.f_files)

    def file_system_id(self, path: Path) -> str:
        """See ``Disk.file_system_id``.

        Containers of one machine share its boot, and the numbers of its devices.
        """
        boot, device = self.boot_id(), path.stat().st_dev
        return f"{boot} {os.major(device)}:{os.minor(device)}" if boot else ""

    def born(self, path: Path) -> str:
        """See ``Disk.born``.

        Number and time of birth tell it from a copy of the file; machine and directory from that
        in a copy of a whole file system. Only a clone of a machine that knows nothing of it has
        all four. A machine without an id, as many containers are, is another one after each boot.
        """
        try:
            machine = MACHINE_ID_PATH.read_text("ascii").strip()
        except OSError:
            machine = ""
        if machine in {"", "uninitialized"}:  # systemd writes the word into images
            machine = self.boot_id()
        number, time_ns = birth(path)
        facts = f"{machine} {path.parent.resolve()} {number} {time_ns}"
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    def boot_id(self) -> str:
        """See ``Disk.boot_id``."""
        try:
            return BOOT_ID_PATH.read_text("ascii").strip()
        except OSError:  # /proc is not mounted, or not that of Linux
            return ""

    def read_bytes(self, path: Path) -> bytes:
        """See ``Disk.read_bytes``."""
        return path.read_bytes()

    def write_atomic(self, path: Path, data: bytes) -> None:
        """See ``Disk.write_atomic``."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        file = self.open(temporary, create=True)
        try:
            file.pwrite([data], 0)
            file.datasync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def file_system(self, path: Path) -> FileSystem | None:
        """See ``Disk.file_system``."""
        return self._file_systems.of_directory(path)


def _ours(available: int, free: int, total: int) -> tuple[int, int]:
    """Return how much of ``total`` we can still have, and how much with what is in use.

    Args:
        available: Free for us. More than ``total``: a negative number, as on an overdrawn quota,
            that lost its sign.
        free: Free for root. Likewise.
        total: All that there is. Where nothing is in use and we can have nothing, all counts as in
            use: a total of 0 would mean that there is no bound.
    """
    available = 0 if available > total else available
    free = 0 if free > total else free
    in_use = total - max(free, available)
    return available, in_use + available or total


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _set_mode(made: Path | int, mode: int) -> None:
    """Give what was made just now its mode, whatever the umask of this process is."""
    try:
        if isinstance(made, int):
            os.fchmod(made, mode)
        else:
            made.chmod(mode)
    except OSError as error:  # a file system without modes, such as FAT
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
