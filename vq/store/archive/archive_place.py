"""Where the zips of archives lie: beside their stubs, or at a URL that fsspec understands.

In here: writing, reading and deleting the bytes of a zip. Not in here: what they mean
(``archive``), and when they are written (``archive_writer``). All of it blocks; only opening a zip
that lies beside its stub is as cheap as opening a block.

fsspec is imported when a URL is used, and not before: brokers without one need not have it.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from vq.errors import CorruptData
from vq.extras import install_command
from vq.log_lines import get_logger
from vq.store.archive.archive import STUB_VERSION, ArchiveFiles, Stub, joined, place_of
from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk
from vq.store.disk.long_file import LongFile
from vq.store.disk.real_disk import FILE_MODE
from vq.store.records.checked_text import decode_text, encode_text
from vq.store.records.format import (
    ARCHIVE_SUFFIX,
    DAMAGED_MARK,
    DISCARD_SUFFIX,
    UPLOAD_SUFFIX,
)

logger = get_logger(__name__)

#: Whether the zip at a URL may be removed; see ``archive_owner``.
Owns = Callable[[str], bool]
#: Files that name a zip at a URL; also when they were put aside.
_NAME_ZIPS: Final = (ARCHIVE_SUFFIX, DISCARD_SUFFIX, UPLOAD_SUFFIX)
#: Kinds of URL whose files the operating system has; they are made durable as any other file.
_LOCAL: Final = frozenset({"file", "local"})
#: What such a file system says of bytes that are lost: the place is there, and they are not.
_MEDIUM: Final = frozenset({errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)})


class ZipUnreachable(OSError):
    """The place of a zip cannot be reached now, so nothing is known of its bytes."""

    def __init__(self, url: str, why: object) -> None:
        super().__init__(errno.EHOSTUNREACH, f"the place of an archive cannot be used: {why}", url)


class ZipReader(Protocol):
    """A zip that can be read; one thread at a time."""

    def pread(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end.

        Raises:
            ZipUnreachable: The place cannot be reached.
            OSError: The medium cannot deliver them, or the zip is not there.
        """
        ...

    def close(self) -> None:
        """Give back what it holds. May be called twice."""
        ...


class ZipWriter(Protocol):
    """A zip that is being written, from front to back."""

    def write(self, data: bytes) -> None:
        """Write what follows."""
        ...

    def sync(self) -> None:
        """Make what was written durable; nothing follows."""
        ...

    def reader(self) -> ZipReader:
        """Return what reads it back, from the medium as far as that can be told."""
        ...

    def place(self) -> None:
        """Give it its name, durably."""
        ...

    def discard(self) -> None:
        """Remove it, if ``place`` was not called. May be called twice."""
        ...


def open_zip(disk: Disk, stub_path: Path, url: str) -> ZipReader:
    """Return a zip to read; ``url``: where it is, "" beside its stub.

    Raises:
        OSError: It does not lie beside its stub. What is elsewhere is not looked at.
    """
    return zip_at(url) if url else disk.open(ArchiveFiles.of(stub_path).zip)


def zip_at(url: str) -> ZipReader:
    """Return a zip at a URL to read. It is not looked at yet."""
    return _Elsewhere(url)


def new_zip(disk: Disk, block_path: Path, url: str) -> ZipWriter:
    """Return a zip to write for a block; ``url``: where to, "" beside the block.

    Raises:
        ZipUnreachable: The place cannot be reached.
        OSError: It cannot be made.
    """
    files = ArchiveFiles.of(block_path)
    return _ElsewhereWriter(disk, files, url) if url else _BesideWriter(disk, files.zip)


class _BesideWriter:
    """A zip in the log's directory; until ``place`` it has a name that recovery removes."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._beside = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._is_placed = False
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(self._beside)
        self._file: LongFile | None = LongFile(disk.open(self._beside, create=True))

    def write(self, data: bytes) -> None:
        """See ``ZipWriter.write``."""
        assert self._file is not None
        self._file.write(data)

    def sync(self) -> None:
        """See ``ZipWriter.sync``."""
        assert self._file is not None
        self._file.sync()
        self._file.forget_cache()

    def reader(self) -> ZipReader:
        """See ``ZipWriter.reader``."""
        return self._disk.open(self._beside)

    def place(self) -> None:
        """See ``ZipWriter.place``."""
        self._close()
        self._disk.rename(self._beside, self._path)
        self._is_placed = True
        self._disk.sync_directory(self._path.parent)

    def discard(self) -> None:
        """See ``ZipWriter.discard``."""
        self._close()
        if not self._is_placed:
            with contextlib.suppress(FileNotFoundError):  # also if its directory was moved away
                self._disk.unlink(self._beside)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


# Elsewhere --------------------------------------------------------------------------------------
class _Elsewhere:
    """A zip at a URL, read range by range."""

    def __init__(self, url: str) -> None:
        self._url = url

    def pread(self, position: int, length: int) -> bytes:
        """See ``ZipReader.pread``."""
        with _at(self._url) as (system, path):
            return bytes(system.cat_file(path, start=position, end=position + length))

    def close(self) -> None:
        """See ``ZipReader.close``."""


class _ElsewhereWriter:
    """A zip at a URL. Only a note names it before the stub does, so it gets its name at once."""

    def __init__(self, disk: Disk, files: ArchiveFiles, url: str) -> None:
        self._disk = disk
        self._files = files
        self._url = url
        self._is_placed = False
        # What a killed process leaves there is known by this note, and removed by the next start.
        was_noted = disk.exists(files.upload)
        disk.write_atomic(files.upload, encode_text(STUB_VERSION, {"zip": url}))
        try:
            self._open(url)
        except OSError:
            if not was_noted:  # nothing was written
                disk.unlink(files.upload)
            raise

    def _open(self, url: str) -> None:
        with _at(url) as (system, path):
            #: Directories with names that are not durable; only where the system has the files.
            self._changed = _missing_names(Path(path).parent) if _is_local(system) else []
            if _has_buckets(path) and not system.isdir(_bucket(path)):
                raise FileNotFoundError(_bucket(path))  # s3fs would make a bucket of that name
            system.makedirs(_parent(path), exist_ok=True)
            self._file: Any = system.open(path, "wb")
            if _is_local(system):
                with contextlib.suppress(OSError):  # a file system without modes
                    Path(path).chmod(FILE_MODE)

    def write(self, data: bytes) -> None:
        """See ``ZipWriter.write``."""
        with _at(self._url):
            self._file.write(data)

    def sync(self) -> None:
        """See ``ZipWriter.sync``; a place that has no files keeps what it has taken."""
        with _at(self._url) as (system, path):
            self._file.close()
            if _is_local(system):
                for each in (Path(path), Path(path).parent, *self._changed):
                    fsync(each)
            system.invalidate_cache(_parent(path))

    def reader(self) -> ZipReader:
        """See ``ZipWriter.reader``."""
        return _Elsewhere(self._url)

    def place(self) -> None:
        """See ``ZipWriter.place``."""
        self._is_placed = True

    def discard(self) -> None:
        """See ``ZipWriter.discard``. What cannot be removed has its note still."""
        if self._is_placed:
            return
        self._is_placed = True
        try:
            with _at(self._url):
                self._file.close()
            _remove(self._url)
            with contextlib.suppress(FileNotFoundError):  # also if its directory was moved away
                self._disk.unlink(self._files.upload)
        except OSError as error:
            logger.warning("zip of an archive cannot be removed", url=self._url, error=error)


@contextlib.contextmanager
def _at(url: str) -> Iterator[tuple[Any, str]]:
    """Provide the file system of a URL and the path in it; have its errors be ``OSError``.

    That a file is not there can mean that nothing is: a mount is missing, say. So it counts only if
    its directory is there; in a store that has no directories, only if its bucket is.
    """
    try:
        import fsspec
    except ImportError as error:
        raise ZipUnreachable(
            url, f"fsspec is not installed: {install_command('archive')}"
        ) from error
    if "://" not in url:  # fsspec would take it for a path below the working directory
        raise ZipUnreachable(url, "a URL is needed, such as file:///mnt/archive or s3://bucket/vq")
    try:
        system, path = fsspec.core.url_to_fs(url)
    except Exception as error:
        raise ZipUnreachable(url, f"{type(error).__name__}: {error}") from error
    try:
        yield system, path
    except ZipUnreachable:
        raise
    except FileNotFoundError as error:
        if _has_place(system, path):
            raise FileNotFoundError(errno.ENOENT, "no such file", url) from error
        raise ZipUnreachable(url, f"its directory, or bucket, is not there: {error}") from error
    except Exception as error:  # each file system has its own
        if isinstance(error, OSError) and error.errno in _MEDIUM and _is_local(system):
            raise OSError(error.errno, f"the medium failed: {error.strerror}", url) from error
        raise ZipUnreachable(url, f"{type(error).__name__}: {error}") from error


def _has_place(system: Any, path: str) -> bool:
    """Whether what a file should lie in is there: its directory, or its bucket.

    A directory in a bucket seems to be gone with the last file in it.
    """
    try:
        return bool(system.isdir(_bucket(path) if _has_buckets(path) else _parent(path)))
    except Exception:  # noqa: BLE001  so it cannot be reached
        return False


def _has_buckets(path: str) -> bool:
    """Whether a path is one of a store with buckets, which has no directories."""
    return not path.startswith("/")


def _bucket(path: str) -> str:
    return path.partition("/")[0]


def local_path(url: str) -> Path | None:
    """Return the file that a URL names on this machine, without links; None: it is not here.

    Raises:
        ZipUnreachable: The URL means nothing.
    """
    with _at(url) as (system, path):
        return Path(path).resolve() if _is_local(system) else None


def _is_local(system: Any) -> bool:
    """Whether its files are those of this machine, whatever is mounted there."""
    found = system.protocol
    return bool(_LOCAL & {found} if isinstance(found, str) else _LOCAL & set(found))


def _missing_names(path: Path) -> list[Path]:
    """Return the directories that get a name when a directory and its parents are made."""
    found = []
    while not path.exists():
        path = path.parent
        found.append(path)
    return found


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(url: str) -> None:
    with contextlib.suppress(FileNotFoundError), _at(url) as (system, path):
        system.rm_file(path)


def lies_on_disk(url: str, directory: Path) -> bool:
    """Return whether an archive at a URL takes space of the disk that a directory lies on.

    True also where that cannot be told.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _LOCAL:
        return False
    path = Path(rest)
    try:
        while not path.exists():
            path = path.parent
        return path.stat().st_dev == directory.stat().st_dev
    except OSError:
        return True


# Removing ---------------------------------------------------------------------------------------
def drop_archive(disk: Disk, stub_path: Path) -> bool:
    """Remove a stub and the zip beside it; whether a zip elsewhere is left to be removed.

    Then the stub got another name, ``<16 digits>.discard``, until ``discard`` has removed the zip.
    Nothing of this reaches out to another machine. Done again, it does the rest.
    """
    files = ArchiveFiles.of(stub_path)
    is_elsewhere = False
    if disk.exists(files.stub):
        with contextlib.suppress(CorruptData):
            is_elsewhere = bool(Stub.from_bytes(disk.read_bytes(files.stub)).archive.url)
        if is_elsewhere:
            disk.rename(files.stub, files.discard)
        else:
            disk.unlink(files.stub)
    if disk.exists(files.zip):
        disk.unlink_large(files.zip)
    return end_upload(disk, stub_path) or is_elsewhere


def end_upload(disk: Disk, path: Path) -> bool:
    """Forget the note that a zip of a block is written elsewhere; whether that made a mark of it.

    It does unless a stub, or a mark, names the same zip: then the zip is to be removed. A note
    beside the mark of another place stays until that is done. ``path`` is any file of the block.
    """
    files = ArchiveFiles.of(path)
    if not disk.exists(files.upload):
        return False
    with contextlib.suppress(FileNotFoundError):  # who wrote it has just removed it
        url = url_in(disk, files.upload)
        named = [url_in(disk, each) for each in (files.stub, files.discard) if disk.exists(each)]
        if not url or url in named:
            disk.unlink(files.upload)
        elif not disk.exists(files.discard):
            disk.rename(files.upload, files.discard)
            return True
    return False


def discard(disk: Disk, path: Path, owns: Owns) -> None:
    """Remove the zip that a ``.discard`` file names, then that file; nothing if it is gone.

    A zip that another data directory owns stays.

    Raises:
        ZipUnreachable: The zip's place cannot be reached; it is to be tried again.
        OSError: The disk failed.
    """
    if not disk.exists(path):
        return
    url = url_in(disk, path)
    if url and owns(url):
        _remove(url)
    elif url:
        logger.info("archive of another data directory is left where it is", url=url)
    disk.unlink(path)
    disk.sync_directory(path.parent)


def url_in(disk: Disk, path: Path) -> str:
    """Return the URL that a stub, a mark or a note names; "": none, or it cannot be read."""
    try:
        return str(decode_text(disk.read_bytes(path), version_max=STUB_VERSION)[1]["zip"])
    except (CorruptData, KeyError) as error:
        logger.warning("stub of an archive cannot be read", path=path, error=error)
        return ""


def discard_all(disk: Disk, directory: Path, owns: Owns) -> None:
    """Remove all zips elsewhere of the logs below a directory that is to be removed.

    Those that another data directory owns stay.

    Raises:
        ZipUnreachable: A place cannot be reached; it is to be tried again.
        OSError: The disk failed.
    """
    for url in filter(owns, _urls_below(disk, directory)):
        _remove(url)


def has_archives_elsewhere(disk: Disk, directory: Path) -> bool:
    """Whether a log below a directory has a zip elsewhere."""
    return next(_urls_below(disk, directory), None) is not None


def places_below(disk: Disk, directory: Path) -> str:
    """Return the places of the zips elsewhere of all logs below a directory; see ``joined``."""
    return joined(map(place_of, _urls_below(disk, directory)))


def _urls_below(disk: Disk, directory: Path) -> Iterator[str]:
    if not disk.is_directory(directory):
        return
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:  # another thread has just removed it
        return
    for name in names:
        path = directory / name
        if name.partition(DAMAGED_MARK)[0].endswith(_NAME_ZIPS):
            url = url_in(disk, path)
            if url:
                yield url
        else:
            yield from _urls_below(disk, path)
