"""The bytes of an archived block as a ``File``, served from a bounded cache of its chunks.

The event loop takes what the cache has, and decompresses nothing: ``view`` of other bytes raises
``NotInMemory``, which says how another thread brings them there. ``pread`` and ``fetch`` wait and
decompress; call them on a lane.

A chunk that could not be read leaves its error in the cache, for whoever looks there next.
"""

import contextlib
import errno
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from vq.errors import Busy, CorruptData
from vq.limits import MIB
from vq.store.archive.archive import Archive, ArchiveFiles, Stub, ZipChunk, place_of
from vq.store.archive.archive_place import ZipReader, ZipUnreachable, open_zip
from vq.store.disk.disk import Buffer, Disk, File
from vq.store.disk.file_system import FileSystem

#: Chunks that a node keeps; more than all that four lanes fetch for one answer each.
CACHE_BYTES: Final = 64 * MIB
#: Errors that wait to be told.
_FAILURES_MAX: Final = 256

#: What a chunk is known by: the digest of its zip, and its number there.
Key = tuple[str, int]


class NotInMemory(Busy):
    """Bytes of an archive, or an index, are not in memory. The log's thread does not wait for them.

    ``fetch`` brings them there, on a lane; then the same call is made again. Whoever knows nothing
    of this has a request refused that can be tried again.
    """

    def __init__(self, path: Path, fetch: "Fetch") -> None:
        super().__init__(f"bytes of {path} are not in memory", hint="try again")
        self.fetch = fetch


class ChunkCache:
    """The chunks used last, of all archives of a node. Safe from any thread.

    Attributes:
        chunks: In the order of their last use.
        size_bytes: Of all of them.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self.chunks: OrderedDict[Key, bytes] = OrderedDict()
        self._failures: OrderedDict[Key, OSError | CorruptData] = OrderedDict()
        self.size_bytes = 0
        self._lock = threading.Lock()

    def has(self, key: Key) -> bool:
        """Whether ``get`` would return bytes, or raise."""
        return key in self.chunks or key in self._failures

    def get(self, key: Key) -> bytes | None:
        """Return a chunk; None: it is not here.

        Raises:
            OSError, CorruptData: It could not be read, or built of what was read, when that was
                tried last. This is told once.
        """
        with self._lock:
            data = self.chunks.get(key)
            if data is not None:
                self.chunks.move_to_end(key)
                return data
            failure = self._failures.pop(key, None)
        if failure is not None:
            raise failure
        return None

    def put(self, key: Key, data: bytes) -> None:
        """Keep a chunk, and fewer of those that were used longer ago."""
        with self._lock:
            self._failures.pop(key, None)
            before = self.chunks.pop(key, b"")
            self.chunks[key] = data
            self.size_bytes += len(data) - len(before)
            while self.size_bytes > self._bytes_max and len(self.chunks) > 1:
                self.size_bytes -= len(self.chunks.popitem(last=False)[1])

    def fail(self, key: Key, error: OSError | CorruptData) -> None:
        """Have the next ``get`` raise an error."""
        with self._lock:
            self._failures[key] = error
            self._failures.move_to_end(key)
            while len(self._failures) > _FAILURES_MAX:
                self._failures.popitem(last=False)


class Fetch:
    """Brings bytes of an archive, or an index, into memory when it is called, on a lane.

    Attributes:
        url: Where they come from; "": from this machine's disk.
    """

    def __init__(
        self, work: Callable[[], None], chunks: ChunkCache, keys: Sequence[Key], url: str
    ) -> None:
        self.url = url
        self._work = work
        self._chunks = chunks
        self._keys = keys

    def __call__(self) -> None:
        """Do it; an error is kept for the read that follows."""
        self._work()

    def give_up(self, why: str) -> None:
        """Have the read that follows fail: the place does not answer. Any thread may call it."""
        for key in self._keys:
            if not self._chunks.has(key):
                self._chunks.fail(key, ZipUnreachable(self.url, why))


class ArchivedFile:
    """An archived block, opened for reading; see ``disk.File``.

    Args:
        disk: Where the stub is.
        path: The stub.
        chunks: For what was decompressed; None: only the last chunk is kept.
        waits: ``view`` decompresses what is missing, on the calling thread.

    Raises:
        OSError: Stub or zip are not there, or the stub is damaged. What is at a URL is not looked
            at.
    """

    def __init__(
        self, disk: Disk, path: Path, chunks: ChunkCache | None = None, *, waits: bool = True
    ) -> None:
        self.file_system: FileSystem | None = None
        self._disk = disk
        self._path = path
        self._stub = read_stub(disk, path)
        self._chunks = ChunkCache(1) if chunks is None else chunks
        self._waits = waits
        self._zip: ZipReader | None = open_zip(disk, path, self.archive.url)

    @property
    def archive(self) -> Archive:
        """What the stub tells."""
        return self._stub.archive

    def pread(self, position: int, length: int) -> bytes:
        """See ``File.pread``."""
        length = min(length, self.archive.length - position)
        if length <= 0:
            return b""
        numbers = self._stub.numbers(position, length)
        parts = [self._load(number) for number in numbers]
        return bytes(self._cut(parts, numbers, position, length))

    def view(self, position: int, length: int) -> memoryview:
        """See ``File.view``. Without a copy where one chunk has all of it.

        Raises:
            NotInMemory: A chunk is not.
            OSError: A chunk cannot be read, or the block is shorter than that.
        """
        if position + length > self.archive.length:
            raise OSError(
                errno.EIO,
                f"an archived block of {self.archive.length} bytes has no more",
                self._name,
            )
        numbers = self._stub.numbers(position, length)
        parts = []
        for number in numbers:
            data = self._load(number) if self._waits else self._chunks.get(self._key(number))
            if data is None:
                raise NotInMemory(self._path, self.fetcher(position, length))
            parts.append(data)
        return self._cut(parts, numbers, position, length)

    def fetcher(self, position: int, length: int) -> Fetch:
        """Return what brings these bytes into memory, through a file of its own."""
        work = partial(fetch_stored, self._disk, self._path, position, length, self._chunks)
        keys = [self._key(number) for number in self._stub.numbers(position, length)]
        return Fetch(work, self._chunks, keys, self.archive.url)

    def _cut(
        self, parts: Sequence[bytes], numbers: range, position: int, length: int
    ) -> memoryview:
        begin = position - self._stub.chunks[numbers.start].start
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        return memoryview(whole)[begin : begin + length]

    def chunk_end(self, position: int) -> int:
        """Return where the chunk ends that holds the byte at a position; a batch ends there."""
        return self._stub.chunks[self._stub.numbers(position, 1).start].end

    def resident(self, position: int, length: int) -> bool:
        """See ``File.resident``. Exact; an error that waits to be told counts."""
        numbers = self._stub.numbers(position, length)
        return all(self._chunks.has(self._key(number)) for number in numbers)

    def fetch(self, position: int, length: int) -> None:
        """See ``File.fetch``; an error is kept for the read that follows."""
        for number in self._stub.numbers(position, length):
            try:
                self._load(number)
            except OSError as error:
                self._chunks.fail(self._key(number), error)

    def _load(self, number: int) -> bytes:
        key = self._key(number)
        data = self._chunks.get(key)
        if data is None:
            data = self._read(self._stub.chunks[number])
            self._chunks.put(key, data)
        return data

    def _read(self, chunk: ZipChunk) -> bytes:
        if self._zip is None:
            raise OSError(errno.EBADF, "the archive is closed", self._name)
        try:
            return inflate(self._zip.pread(chunk.at, chunk.size), chunk)
        except CorruptData as error:
            raise OSError(errno.EIO, str(error), self._name) from error

    def _key(self, number: int) -> Key:
        return self.archive.zip_sha256, number

    @property
    def _name(self) -> str:
        return str(self._path)

    def size(self) -> int:
        """See ``File.size``: of the block."""
        return self.archive.length

    def close(self) -> None:
        """See ``File.close``."""
        opened, self._zip = self._zip, None
        if opened is not None:
            opened.close()

    @property
    def descriptor(self) -> int:
        """See ``File.descriptor``."""
        return -1

    def datasync(self) -> None:
        """See ``File.datasync``: all of it is."""

    def forget_cache(self) -> None:
        """See ``File.forget_cache``."""

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """See ``File.pwrite``: an archive is not written to."""
        raise self._read_only()

    def allocate(self, start: int, length: int) -> None:
        """See ``File.allocate``: an archive is not written to."""
        raise self._read_only()

    def truncate(self, length: int) -> None:
        """See ``File.truncate``: an archive is not written to."""
        raise self._read_only()

    def _read_only(self) -> OSError:
        return OSError(errno.EROFS, "an archived block is not written to", self._name)


def inflate(data: bytes, chunk: ZipChunk) -> bytes:
    """Return the bytes of a chunk from its data in the zip.

    Raises:
        CorruptData: They are damaged.
    """
    where = f"the chunk at position {chunk.start} of an archive"
    if len(data) != chunk.size:
        raise CorruptData(f"{where} ends after {len(data)} of {chunk.size} bytes of its zip")
    if chunk.size < chunk.length:
        decompress = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            data = decompress.decompress(data, chunk.length + 1)
        except zlib.error as error:
            raise CorruptData(f"{where} cannot be decompressed: {error}") from error
    if len(data) != chunk.length or zlib.crc32(data) != chunk.crc:
        raise CorruptData(f"{where} fails its CRC")
    return data


def read_stub(disk: Disk, path: Path) -> Stub:
    """Return a stub.

    Raises:
        OSError: It is not there, or damaged.
    """
    try:
        return Stub.from_bytes(disk.read_bytes(path))
    except CorruptData as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


def read_archive(disk: Disk, path: Path) -> Archive:
    """Return what a stub tells, if its zip is there with its size as far as this disk knows.

    Raises:
        OSError: It is not, or the stub is damaged.
    """
    archive = read_stub(disk, path).archive
    if not archive.url:
        zip_path = ArchiveFiles.of(path).zip
        size = disk.size(zip_path)
        if size != archive.zip_bytes:
            raise OSError(
                errno.EIO, f"a zip of {size} bytes should have {archive.zip_bytes}", str(zip_path)
            )
    return archive


# A block that may be archived, or restored, at this moment ---------------------------------------
def open_stored(disk: Disk, path: Path, *, chunks: ChunkCache | None = None) -> File:
    """Open the bytes of a block for reading, whatever holds them now; ``view`` waits.

    Args:
        disk: The disk.
        path: The block's file, or the stub of its archive. One takes the place of the other at any
            time, and is there before the other goes.
        chunks: For what is decompressed.

    Raises:
        OSError: Neither can be opened.
    """
    files = ArchiveFiles.of(path)
    other = files.stub if path == files.block else files.block
    for each in (path, other):
        with contextlib.suppress(FileNotFoundError):
            return _open(disk, each, chunks)
    return _open(disk, path, chunks)


def _open(disk: Disk, path: Path, chunks: ChunkCache | None) -> File:
    if path == ArchiveFiles.of(path).stub:
        return ArchivedFile(disk, path, chunks)
    return disk.open(path)


def place_of_file(file: File) -> str:
    """Return where the bytes of a file are that ``open_stored`` returned; "": on this disk.

    Reading them may wait for another machine.
    """
    return place_of(file.archive.url) if isinstance(file, ArchivedFile) else ""


def stored_length(disk: Disk, path: Path) -> int:
    """Return how many bytes of a block are there, as far as this disk can tell without reading.

    Raises:
        OSError: None are.
    """
    files = ArchiveFiles.of(path)
    if disk.exists(files.block):
        return disk.size(files.block)
    return read_archive(disk, files.stub).length


def fetch_stored(disk: Disk, path: Path, position: int, length: int, chunks: ChunkCache) -> None:
    """Bring bytes of a block into memory, through a file that no other thread may close.

    Errors are ignored here: the read that follows meets the same error and reports it.
    """
    with contextlib.suppress(OSError):
        file = open_stored(disk, path, chunks=chunks)
        try:
            file.fetch(position, length)
        finally:
            file.close()
