"""The disk's twin in memory: records every operation; fails and loses power on request.

For tests and simulations, ours and our users'. What a crash keeps follows POSIX at its least
generous: bytes written since the last ``datasync`` of a file survive sector by sector or not at
all, its length changes in order, and a name survives only if its directory was synced (or is one
of the first few changes of that directory, in order).
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from vq.errors import DirectoryRefused
from vq.store.disk.disk import TEMPORARY_SUFFIX, Buffer
from vq.store.disk.file_system import FileSystem
from vq.store.disk.memory_names import (
    SECTOR_BYTES,
    Chance,
    FixedChance,
    MemoryDirectory,
    MemoryNode,
)

_TOP: Final = PurePath("/")


#: A power cut that took everything not synced, and a killed process, which takes nothing.
keep_none: Final[Chance] = FixedChance(keep=False)
keep_all: Final[Chance] = FixedChance(keep=True)


@dataclass(frozen=True, slots=True)
class DiskOperation:
    """One recorded operation. ``kind`` is the method's name; the other fields as it needs them."""

    kind: str
    path: PurePath
    target: PurePath | None = None
    position: int = 0
    data: bytes = b""


class MemoryFile:
    """An open file of a ``MemoryDisk``; see ``File``."""

    def __init__(self, disk: "MemoryDisk", path: PurePath, node: MemoryNode) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._closed = False
        self.file_system: FileSystem | None = disk._file_system

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """See ``File.pwrite``; on a full disk the part that fits is written."""
        self._check_open()
        data = b"".join(buffers)
        partly = self._disk.may_fail("pwrite", self._path)
        if partly is not None:
            self._apply(position, data[: len(data) // 2])
            raise partly
        space = self._disk._space_for(self._node, position + len(data))
        if space < position + len(data):
            self._apply(position, data[: max(0, space - position)])
            raise OSError(errno.ENOSPC, "the memory disk is full", str(self._path))
        self._apply(position, data)

    def _apply(self, position: int, data: bytes) -> None:
        self._node.now.write(position, data)
        self._node.pending.append(("write", position, data))
        self._disk._record(DiskOperation("pwrite", self._path, position=position, data=data))

    def pread(self, position: int, length: int) -> bytes:
        """See ``File.pread``."""
        self._check_open()
        self._disk._check("pread", self._path)
        return self._node.now.read(position, length)

    def view(self, position: int, length: int) -> memoryview:
        """See ``File.view``; a copy."""
        self._check_open()
        self._disk._check("view", self._path)
        if position + length > len(self._node.now):
            raise OSError(errno.EIO, "the file is shorter than that", str(self._path))
        return memoryview(self._node.now.read(position, length))

    def resident(self, position: int, length: int) -> bool:
        """See ``File.resident``; everything is, unless the disk's ``cold`` says otherwise."""
        self._check_open()
        return not self._disk.cold or (self._path, position) in self._disk.fetched

    def fetch(self, position: int, length: int) -> None:
        """See ``File.fetch``."""
        self._check_open()
        self._disk._check("pread", self._path)
        self._disk.fetched.append((self._path, position))

    def allocate(self, start: int, length: int) -> None:
        """See ``File.allocate``."""
        self._check_open()
        self._disk._check("allocate", self._path)
        end = start + length
        if self._disk._space_for(self._node, end) < end:
            raise OSError(errno.ENOSPC, "the memory disk is full", str(self._path))
        if end > len(self._node.now):
            self._node.pending.append(("truncate", end, b""))
            self._node.now.resize(end)
        self._disk._record(DiskOperation("allocate", self._path, position=end))

    def truncate(self, length: int) -> None:
        """See ``File.truncate``."""
        self._check_open()
        self._disk._check("truncate", self._path)
        self._node.now.resize(length)
        self._node.pending.append(("truncate", length, b""))
        self._disk._record(DiskOperation("truncate", self._path, position=length))

    @property
    def descriptor(self) -> int:
        """See ``File.descriptor``."""
        return -1

    def datasync(self) -> None:
        """See ``File.datasync``; after a failure the un-synced bytes are gone from the medium."""
        self._check_open()
        error = self._disk.may_fail("datasync", self._path)
        if error is None:
            error = self._disk._lost.pop(self._node, None)
        if error is not None:
            # As ext4 does: the page cache still shows them, and the next fsync says all is well.
            self._disk._drop_changes(self._node)
            raise error
        self._disk._flush_device()
        self._node.make_durable()
        self._disk._record(DiskOperation("datasync", self._path))

    def forget_cache(self) -> None:
        """See ``File.forget_cache``."""
        self._check_open()
        if not self._node.pending:
            self._node.now = self._node.durable.copy()

    def size(self) -> int:
        """See ``File.size``."""
        self._check_open()
        return len(self._node.now)

    def close(self) -> None:
        """See ``File.close``."""
        if not self._closed:
            self._closed = True
            self._disk.open_files -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", str(self._path))


class _MemoryLock:
    def __init__(self, locks: set[PurePath], path: PurePath) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class MemoryFileSystem:
    """All of a ``MemoryDisk``; see ``FileSystem``."""

    def __init__(self, disk: "MemoryDisk", *, flushes_device: bool) -> None:
        self.flushes_device = flushes_device
        self.block_bytes = SECTOR_BYTES
        self._disk = disk

    def sync(self) -> None:
        """See ``FileSystem.sync``."""
        self._disk._sync_all(flush=self.flushes_device)

    def check_journal(self) -> None:
        """See ``FileSystem.check_journal``."""
        self._disk._check("check_journal", _TOP)


class MemoryDisk:
    """A file system in memory; see ``Disk``. One thread only.

    Args:
        capacity_bytes: When it is full; None: never.
        open_files_max: How many files may be open at once.
        record: Keep every operation; False saves memory in a long simulation that replays none.
        syncfs_flushes: Whether syncing it as a whole flushes the device (True as on ext4, False as
            on XFS); None: it cannot be synced as a whole.

    Attributes:
        operations: Everything that changed something, in order (not part of a crash).
        open_files: How many files are open.
        cold: Nothing is in memory until it was fetched.
        fetched: What was fetched, in order: path and position.
        boots: How often its machine was started.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        open_files_max: int = 1 << 30,
        record: bool = True,
        syncfs_flushes: bool | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.open_files_max = open_files_max
        self.operations: list[DiskOperation] = []
        self._recording = record
        self.open_files = 0
        self.cold = False
        self.fetched: list[tuple[PurePath, int]] = []
        self.boots = 1
        self._births = 0
        self._root = MemoryDirectory()
        self._locks: set[PurePath] = set()
        self.faults: list[tuple[str, str, int, int]] = []
        self._syncfs_flushes = syncfs_flushes
        self._file_system = (
            None
            if syncfs_flushes is None
            else MemoryFileSystem(self, flushes_device=syncfs_flushes)
        )
        # Written out to the device and not flushed there: so many changes of each.
        self._written: dict[MemoryNode | MemoryDirectory, int] = {}
        self._lost: dict[MemoryNode, OSError] = {}  # what the next datasync of a file reports
        self._lost_some: OSError | None = None  # what the next sync of everything reports

    # Faults ---------------------------------------------------------------------------------------
    def fail(self, kind: str, *, error: int = errno.EIO, after: int = 0, name: str = "") -> None:
        """Make one call fail: the first of ``kind`` (a method's name) after ``after`` others.

        Args:
            kind: ``pwrite``, ``datasync``, ``allocate``, ``rename``, …
            error: The errno.
            after: How many calls of the kind succeed before.
            name: Only calls on paths that end in this count.
        """
        self.faults.append((kind, name, after, error))

    def lose(self, name: str) -> None:
        """Lose what is not synced of the files whose path ends in ``name``, as a failed write-back.

        Reads still show it. The next ``datasync`` of each of these files reports it, and so does
        the next sync of the whole file system, each of them once.
        """
        for path, node in self._root.walk(_TOP):
            if isinstance(node, MemoryNode) and str(path).endswith(name):
                self._drop_changes(node)
                error = OSError(errno.EIO, "writing out was told to fail", str(path))
                self._lost[node] = self._lost_some = error

    def _drop_changes(self, node: MemoryNode) -> None:
        node.pending.clear()
        self._written.pop(node, None)

    def forget_faults(self) -> None:
        """Let nothing fail any more that has not failed yet."""
        self.faults.clear()

    def may_fail(self, kind: str, path: PurePath) -> OSError | None:
        """Return the error of an operation that a test has fail, None: it goes well."""
        for at, (wanted, name, after, error) in enumerate(self.faults):
            if wanted == kind and str(path).endswith(name):
                if after:
                    self.faults[at] = (wanted, name, after - 1, error)
                    return None
                del self.faults[at]
                return OSError(error, f"{kind} was told to fail", str(path))
        return None

    def _check(self, kind: str, path: PurePath) -> None:
        error = self.may_fail(kind, path)
        if error is not None:
            raise error

    def _space_for(self, node: MemoryNode, end: int) -> int:
        """Return the length up to which the file may grow, at most ``end``."""
        if self.capacity_bytes is None:
            return end
        return min(end, len(node.now) + max(0, self.capacity_bytes - self.used_bytes()))

    def used_bytes(self) -> int:
        return self._root.size_bytes()

    def _record(self, operation: DiskOperation) -> None:
        if self._recording:
            self.operations.append(operation)

    # Crashes --------------------------------------------------------------------------------------
    def crash(self, chance: Chance) -> "MemoryDisk":
        """Return the disk as it is found after power was lost now; this one stays as it is."""
        after = MemoryDisk(
            capacity_bytes=self.capacity_bytes,
            open_files_max=self.open_files_max,
            record=self._recording,
            syncfs_flushes=self._syncfs_flushes,
        )
        after._root = self._root.after_crash(chance, {})
        after.boots = self.boots + (chance is not keep_all)
        after._births = self._births
        return after

    def release_locks(self) -> None:
        """Give back the locks and files of a process that was killed, as its kernel does."""
        self._locks.clear()
        self.open_files = 0

    def replay(self, operations: Sequence[DiskOperation]) -> Iterator[DiskOperation]:
        """Apply recorded operations to this disk, yielding each after it was applied."""
        for operation in operations:
            self._apply(operation)
            yield operation

    def _apply(self, operation: DiskOperation) -> None:
        path = Path(operation.path)
        kind = operation.kind
        if kind in ("pwrite", "allocate", "truncate", "datasync"):
            file = self.open(path)
            if kind == "pwrite":
                file.pwrite([operation.data], operation.position)
            elif kind == "allocate":
                file.allocate(0, operation.position)
            elif kind == "truncate":
                file.truncate(operation.position)
            else:
                file.datasync()
            file.close()
        elif kind == "open":
            self.open(path, create=True).close()
        elif kind == "rename":
            assert operation.target is not None
            self.rename(path, Path(operation.target))
        else:
            action: Callable[[Path], object] = getattr(self, kind)
            action(path)

    # Names ----------------------------------------------------------------------------------------
    def find(self, path: PurePath) -> MemoryNode | MemoryDirectory | None:
        """Return what is at a path now."""
        node: MemoryNode | MemoryDirectory | None = self._root
        for part in path.parts[1:] if path.is_absolute() else path.parts:
            node = node.now.get(part) if isinstance(node, MemoryDirectory) else None
        return node

    def _directory(self, path: PurePath) -> MemoryDirectory:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        if not isinstance(node, MemoryDirectory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return node

    def _file(self, path: PurePath) -> MemoryNode:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if isinstance(node, MemoryDirectory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        return node

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        """See ``Disk.open``."""
        key = PurePath(path)
        self._check("open", key)
        if self.open_files >= self.open_files_max:
            raise OSError(errno.EMFILE, "too many open files", str(path))
        if create:
            if self.find(key) is not None:
                raise FileExistsError(errno.EEXIST, "the file exists", str(path))
            directory = self._directory(key.parent)
            self._births += 1
            directory.change({key.name: MemoryNode(born=self._births)})
            self._record(DiskOperation("open", key))
        node = self._file(key)
        self.open_files += 1
        return MemoryFile(self, key, node)

    def exists(self, path: Path) -> bool:
        """See ``Disk.exists``."""
        self._check("exists", path)
        return self.find(path) is not None

    def size(self, path: Path) -> int:
        """See ``Disk.size``."""
        return len(self._file(path).now)

    def listdir(self, path: Path) -> list[str]:
        """See ``Disk.listdir``."""
        return sorted(self._directory(path).now)

    def is_directory(self, path: Path) -> bool:
        """See ``Disk.is_directory``."""
        return isinstance(self.find(path), MemoryDirectory)

    def mkdir(self, path: Path) -> list[Path]:
        """See ``Disk.mkdir``."""
        self._check("mkdir", path)
        missing = []
        while self.find(path) is None:
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            self._directory(directory.parent).change({directory.name: MemoryDirectory()})
            self._record(DiskOperation("mkdir", PurePath(directory)))
        return [directory.parent for directory in reversed(missing)]

    def rename(self, source: Path, target: Path) -> None:
        """See ``Disk.rename``; within one directory the change is atomic."""
        self._check("rename", source)
        node = self.find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", str(source))
        there = self.find(target)
        if isinstance(node, MemoryDirectory) and isinstance(there, MemoryDirectory) and there.now:
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(target))
        old, new = self._directory(source.parent), self._directory(target.parent)
        if old is new:
            old.change({source.name: None, target.name: node})
        else:
            new.change({target.name: node})
            old.change({source.name: None})
        self._record(DiskOperation("rename", source, target=target))

    def unlink(self, path: Path) -> None:
        """See ``Disk.unlink``."""
        self._check("unlink", path)
        self._file(path)
        self._directory(path.parent).change({path.name: None})
        self._record(DiskOperation("unlink", path))

    def unlink_large(self, path: Path) -> None:
        """See ``Disk.unlink_large``."""
        self.unlink(path)

    def rmtree(self, path: Path) -> None:
        """See ``Disk.rmtree``."""
        self._check("rmtree", path)
        if self.find(path) is None:
            return
        self._directory(path)
        self._directory(path.parent).change({path.name: None})
        self._record(DiskOperation("rmtree", path))

    def sync_directory(self, path: Path) -> None:
        """See ``Disk.sync_directory``."""
        self._check("sync_directory", path)
        self._flush_device()
        self._directory(path).make_durable()
        self._record(DiskOperation("sync_directory", path))

    def lock(self, path: Path) -> _MemoryLock:
        """See ``Disk.lock``."""
        key = PurePath(path)
        if key in self._locks:
            raise DirectoryRefused(
                f"{path} is locked: another broker uses this data directory; stop it or choose "
                "another directory"
            )
        if self.find(key) is None:
            self.open(path, create=True).close()
        self._locks.add(key)
        return _MemoryLock(self._locks, key)

    def free_space(self, path: Path) -> tuple[int, int]:
        """See ``Disk.free_space``."""
        self._directory(path)
        total = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return max(0, total - self.used_bytes()), total

    def free_files(self, path: Path) -> tuple[int, int]:
        """See ``Disk.free_files``; there is no bound."""
        self._directory(path)
        return 0, 0

    def file_system_id(self, path: Path) -> str:
        """See ``Disk.file_system_id``; it has none."""
        self._directory(path)
        return ""

    def born(self, path: Path) -> str:
        """See ``Disk.born``."""
        self._check("born", path)
        return f"{path.parent} {self._file(path).born:08d}"

    def boot_id(self) -> str:
        """See ``Disk.boot_id``."""
        return f"boot-{self.boots}"

    def read_bytes(self, path: Path) -> bytes:
        """See ``Disk.read_bytes``."""
        self._check("read_bytes", path)
        return self._file(path).now.read()

    def write_atomic(self, path: Path, data: bytes) -> None:
        """See ``Disk.write_atomic``; made of the same steps as the real one."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        if self.exists(temporary):
            self.unlink(temporary)
        file = self.open(temporary, create=True)
        try:
            file.pwrite([data], 0)
            file.datasync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def file_system(self, path: Path) -> MemoryFileSystem | None:
        """See ``Disk.file_system``."""
        return self._file_system

    def _sync_all(self, *, flush: bool) -> None:
        self._check("syncfs", _TOP)
        error, self._lost_some = self._lost_some, None
        if error is not None:
            raise error
        self._written = {self._root: len(self._root.pending)}
        for _, node in self._root.walk(_TOP):
            self._written[node] = len(node.pending)
        if flush:
            self._flush_device()

    def _flush_device(self) -> None:
        if not self._written:
            return
        walk = self._root.walk(_TOP) if self._recording else ()
        paths = {id(node): path for path, node in walk}
        for node, count in self._written.items():
            node.make_durable(count)
            kind = "datasync" if isinstance(node, MemoryNode) else "sync_directory"
            self._record(DiskOperation(kind, paths.get(id(node), _TOP)))
        self._written.clear()
